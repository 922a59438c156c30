//! vLLM's replicas divide the experts of a mixture among all of their ranks, whether each has whole experts or parts of all.

mod common;

use std::collections::BTreeMap;

use cacheplan_planner::fit::Fit;
use cacheplan_planner::plan::LedgerItem;
use cacheplan_planner::{Budget, EngineSpec, PlanRequest, Serving, Target};
use cacheplan_serve::fit::Asks;
use cacheplan_serve::{Launch, ServeError, answer, request};
use cacheplan_transforms::WeightClasses;
use rstest::rstest;

use common::{launch, models, on, question};

const EXPERTS: [&str; 7] = [
    "Qwen__Qwen3-30B-A3B",
    "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "Qwen__Qwen3.5-35B-A3B",
    "deepseek-ai__DeepSeek-V3",
    "google__gemma-4-26B-A4B",
    "mistralai__Mixtral-8x7B-v0.1",
    "openai__gpt-oss-120b",
];
const DENSE: [&str; 2] = ["Qwen__Qwen3-8B", "meta-llama__Llama-3.1-70B-Instruct"];

fn asked(flags: &str) -> Launch {
    launch(format!("vllm serve m --max-model-len 4096 {flags}").trim_end())
}

/// Bytes of weights on a device, as the ledger has them.
fn weights(model: &str, flags: &str) -> u64 {
    let (engine, request) = request(&asked(flags), &models(model), &on("8xh200")).unwrap();
    let lines = request.beside_caches(engine).unwrap();
    lines.iter().filter(|line| line.name == LedgerItem::Weights).map(|line| line.bytes).sum()
}

#[rstest]
fn a_rank_has_its_share_of_the_experts_of_all_replicas(
    #[values((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2), (8, 1))] (tp, dp): (u64, u64),
) {
    let flags = format!("-tp {tp} -dp {dp}");
    for model in EXPERTS.into_iter().chain(DENSE) {
        let all = models(model).model.info().weights.unwrap();
        let WeightClasses { attention, dense, routed, shared, embeddings, replicated, .. } = all.classes.unwrap();
        assert_eq!(routed > 0, EXPERTS.contains(&model), "{model}");
        let expected = (attention + dense + shared + embeddings) / tp + routed / (tp * dp) + replicated;
        let found = weights(model, &flags);
        // Rounding of each class.
        assert!(found.abs_diff(expected) <= 8, "{model} {flags}: {found} {expected}");
        if routed > 0 && tp * dp > 1 {
            assert_eq!(found, weights(model, &format!("{flags} --enable-expert-parallel")), "{model} {flags}");
        }
    }
}

/// What starts, and how much it holds, is the same as with whole experts.
#[rstest]
#[case("deepseek-ai__DeepSeek-V3", "-dp 8")]
#[case("Qwen__Qwen3-30B-A3B", "-dp 8")]
#[case("openai__gpt-oss-120b", "-dp 4 -tp 2")]
#[case("openai__gpt-oss-120b", "-dp 16 -dpl 8")]
fn parts_of_experts_take_what_whole_ones_do(#[case] model: &str, #[case] flags: &str) {
    let of = |more: &str| answer(&asked(&format!("{flags}{more}")), models(model), &on("8xh200")).unwrap();
    let [parts, whole] = [of(""), of(" --enable-expert-parallel")];
    assert_eq!((parts.starts, &parts.facts, parts.sequences), (whole.starts, &whole.facts, whole.sequences));
}

/// Replicas of a dense model share nothing.
#[test]
fn a_replica_of_a_dense_model_is_as_one_alone() {
    for model in DENSE {
        let of = |flags: &str| answer(&asked(flags), models(model), &on("8xh200")).unwrap().facts;
        assert_eq!(of("-tp 4 -dp 2"), of("-tp 4"), "{model}");
    }
}

/// 768 channels of an expert of Qwen3, 2880 of gpt-oss.
#[rstest]
#[case("Qwen__Qwen3-30B-A3B", "-dp 5", true)]
#[case("Qwen__Qwen3-30B-A3B", "-dp 5 --enable-expert-parallel", false)]
#[case("Qwen__Qwen3-30B-A3B", "-dp 6", false)]
#[case("openai__gpt-oss-120b", "-dp 7", true)]
#[case("Qwen__Qwen3-8B", "-dp 5", false)]
fn ranks_divide_the_channels_of_an_expert(#[case] model: &str, #[case] flags: &str, #[case] refused: bool) {
    match answer(&asked(flags), models(model), &on("8xh200")) {
        Err(error @ ServeError::Engine { .. }) => {
            assert!(refused && error.to_string().contains("self.intermediate_size % tp_size"), "{error}");
        }
        found => assert!(!refused && found.is_ok(), "{found:?}"),
    }
}

/// A plan that keeps all experts in each replica is none that vLLM can be told.
#[rstest]
#[case("Qwen__Qwen3-30B-A3B", "dp = 4", Some("`parallel.ep` = 4"))]
#[case("Qwen__Qwen3-30B-A3B", "dp = 4\nep = 4", None)]
#[case("Qwen__Qwen3-30B-A3B", "tp = 2\ndp = 2\nep = 2", Some("`parallel.ep` = 4"))]
#[case("Qwen__Qwen3-30B-A3B", "tp = 4", None)]
#[case("Qwen__Qwen3-8B", "dp = 4", None)]
fn vllm_is_told_of_replicas_that_share_their_experts(
    #[case] model: &str,
    #[case] parallel: &str,
    #[case] refused: Option<&str>,
) {
    let text = format!("max_seq_len = 4096\n[memory]\nbytes = '20GiB'\n[parallel]\n{parallel}");
    let budget = Budget::from_toml(&text, "cacheplan.toml").unwrap();
    let plan = PlanRequest::of(models(model).model).with_budget(budget).plan().unwrap();
    let target: Target = "vllm".parse().unwrap();
    let found = plan.export(target, None, &Serving { model: Some("m".into()), ..Serving::default() });
    match refused {
        None => assert!(found.unwrap().settings.iter().any(|setting| setting.key.ends_with("parallel-size"))),
        Some(said) => {
            let error = found.unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}

#[test]
fn the_checker_finds_the_same_shares() {
    let (_, request) = request(&asked("-tp 2 -dp 4"), &models("Qwen__Qwen3-30B-A3B"), &on("8xh100")).unwrap();
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    let shares: BTreeMap<&str, u64> =
        plan.deployment.as_ref().unwrap().weights.iter().map(|share| (&*share.class, share.ranks)).collect();
    assert_eq!((shares["routed experts"], shares["attention"]), (8, 2));
}

#[test]
fn no_row_of_vllm_keeps_all_experts_in_each_of_its_replicas() {
    let vllm: EngineSpec = "vllm".parse().unwrap();
    for model in ["Qwen__Qwen3-30B-A3B", "Qwen__Qwen3-8B"] {
        let asked = PlanRequest::of(models(model).model);
        let asks = Asks::of_model(&asked, Some("org/model"));
        let answer = asks.fit(&[(&asked, question(&["h100"], 4096, 500))], &[vllm.into()]).unwrap().unwrap();
        let rows = || answer.fits.iter().filter(|row| row.engine.is_some() && row.parallel.dp > 1);
        assert!(rows().next().is_some());
        let shares = |row: &Fit| row.parallel.ep == row.parallel.tp * row.parallel.dp;
        assert!(rows().all(|row| shares(row) == (model != "Qwen__Qwen3-8B")), "{model}");
    }
}
