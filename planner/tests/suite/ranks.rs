//! Several ranks: what each holds, what all agree on.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::plan::LedgerItem;
use cacheplan_planner::{Config, DeviceInfo, Devices, Override, Parallel, PlanRequest};
use cacheplan_transforms::ReadOptions;
use rstest::rstest;

use super::common::{Model, budget, kv, mamba2, nemotron_3_nano, published};

#[test]
fn tensor_parallel_ranks_hold_a_share_of_heads_and_channels() {
    let model = nemotron_3_nano();
    let budget = budget("max_batch_size = 2\n[parallel]\ntp = 4");
    let request = model.request(&budget);
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    // 2 KV heads over 4 ranks: one each, twice. 64 state heads and 6,144 channels in sections divide.
    assert_eq!(plan.totals.kv_bytes_per_token, 6_144 / 2);
    assert_eq!(plan.totals.state_bytes_per_sequence, (48_234_496 + 847_872) / 4);
}

#[test]
fn a_size_that_does_not_divide_the_model_is_an_error_that_names_it() {
    let model = nemotron_3_nano();
    let error = model.request(&budget("[parallel]\ntp = 3")).plan().unwrap_err().to_string();
    assert!(error.contains("tp 3 does not divide"), "{error}");
    let error = model.request(&budget("[parallel]\npp = 100")).plan().unwrap_err().to_string();
    assert!(error.contains("more than the 52 layers"), "{error}");
}

#[test]
fn context_parallel_ranks_hold_a_share_of_the_tokens() {
    let model = Model::new("m", 1).with("kv", 0, kv(8, 128));
    let at = |cp: u32| {
        let budget = budget(&format!("max_seq_len = 4096\nmax_batch_size = 1\n[parallel]\ncp = {cp}"));
        model.request(&budget).plan().unwrap().pools[0].units - 1
    };
    assert_eq!((at(1), at(4)), (256, 64));
}

/// What a sequence takes and how many tokens there are is said of the rank.
#[test]
fn a_rank_that_holds_a_share_of_the_tokens_says_what_it_holds() {
    let model = Model::new("m", 1).with("kv", 0, kv(8, 128));
    let said = |cp: u32| {
        let budget = budget(&format!("max_seq_len = 4096\nmax_batch_size = 2\n[parallel]\ncp = {cp}"));
        let ranks = model.request(&budget).ranks().unwrap();
        ranks.heading() + &ranks.stages[0].table()
    };
    let (whole, share) = (said(1), said(4));
    assert!(whole.contains("16.00 MiB at 4096 tokens") && whole.contains(" 8192 tokens in pages,"), "{whole}");
    assert!(share.contains(" 4.00 MiB at 4096 tokens") && share.contains("1.00 KiB per token"), "{share}");
    assert!(share.contains(" tokens, 2048 on each rank") && share.contains("spare tokens on each rank"), "{share}");
}

/// Ranks that divide the tokens of a sequence are an engine's that has them.
#[rstest]
#[case(
    "tensorrt-llm",
    "tp = 2\ndcp = 2",
    "tensorrt-llm has no `parallel.dcp` (--dcp), which tells vllm and sglang something"
)]
#[case("llama.cpp", "tp = 2\ndcp = 2", "llama.cpp has no `parallel.dcp` (--dcp)")]
#[case("llama.cpp", "cp = 2", "llama.cpp has no `parallel.cp` (--cp), which tells vllm something; leave it out")]
fn ranks_that_an_engine_lacks_are_refused(#[case] engine: &str, #[case] parallel: &str, #[case] expected: &str) {
    let model = Model::new("m", 1).with("kv", 0, kv(1, 128));
    let budget = budget(&format!("max_seq_len = 4096\n[memory]\nbytes = '1GiB'\n[parallel]\n{parallel}"));
    let refused = model.request(&budget).predict(engine.parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains(expected), "{refused}");
}

/// Each size that a refusal lists is one: also the caches divide by it.
#[rstest]
#[case("Qwen__Qwen3.5-27B", 7)]
#[case("meta-llama__Llama-4-Scout-17B-16E-Instruct", 3)]
#[case("tiiuae__Falcon-H1-7B-Instruct", 5)]
#[case("Zyphra__Zamba2-7B", 3)]
fn what_is_said_to_divide_a_model_does(#[case] name: &str, #[case] tp: u32) {
    let planned = |tp: u32| {
        let budget = budget(&format!("max_seq_len = 4096\nmax_batch_size = 1\n[parallel]\ntp = {tp}"));
        PlanRequest::of(published(name)).with_budget(budget).plan()
    };
    let error = planned(tp).unwrap_err().to_string();
    let (_, listed) = error.split_once("these do: ").unwrap();
    let sizes: Vec<u32> = listed.split(", ").map(|size| size.parse().unwrap()).collect();
    for size in &sizes {
        assert!(planned(*size).is_ok(), "{size} of {error}");
    }
    assert!(sizes.starts_with(&[1, 2]), "{error}");
}

/// Three of the four layers of the first stage are attention, one of the second.
fn lopsided() -> Model {
    let state = || ResourceHandler::ssm(64, 64, 128, DType::F32).unwrap();
    let mut model = Model::new("m", 8);
    for layer in 0..8 {
        model = if matches!(layer, 0 | 1 | 2 | 4) {
            model.with("kv", layer, kv(8, 128))
        } else {
            model.with("ssm", layer, state())
        };
    }
    model
}

/// Its convolutions have 8 groups, so that 16 ranks have no equal share.
#[test]
fn devices_that_cannot_be_tensor_parallel_ranks_come_with_a_layout_that_would_do() {
    let model = published("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16");
    let budget = budget("max_seq_len = 8192\n[memory]\nfraction = 0.9\nof = 'total'");
    let devices: Devices = "16xh200".parse().unwrap();
    let request = PlanRequest::of(model).with_budget(budget).with_devices(devices.clone());
    let error = request.plan().unwrap_err().to_string();
    let (_, layout) = error.split_once("; ").unwrap();
    let layout = layout.strip_suffix(" would do").unwrap();
    let stated: Vec<Override> = layout
        .split(", ")
        .map(|key| key.split_once(" = ").unwrap())
        .map(|(key, value)| Override::by_argument(key, value, key))
        .collect();
    let config =
        Config::resolve_on(Some(devices.device()), Some(("max_seq_len = 8192", "budget.toml")), &[], &stated).unwrap();
    assert!(request.with_config(config).plan().is_ok(), "{error}");
}

/// Eight heads on two ranks are on one rank each, whose tokens no other can divide; so are those of four ranks.
#[rstest]
#[case("2xh100", "dcp = 2", "; without parallel.dcp = 2, parallel.tp = 2 would do")]
#[case("4xh100", "dcp = 3", "; without parallel.dcp = 3, parallel.tp = 4 would do")]
#[case("16xh100", "dcp = 4", "; without parallel.dcp = 4, parallel.tp = 8, parallel.pp = 2 would do")]
fn what_no_layout_goes_with_is_named_with_what_would_do_without(
    #[case] devices: &str,
    #[case] stated: &str,
    #[case] said: &str,
) {
    let budget = budget(&format!("max_seq_len = 8192\n[memory]\nfraction = 0.9\nof = 'total'\n[parallel]\n{stated}"));
    let request = PlanRequest::of(published("Qwen__Qwen3-8B")).with_budget(budget);
    let error = request.with_devices(devices.parse::<Devices>().unwrap()).plan().unwrap_err();
    assert!(error.to_string().ends_with(said), "{error}");
}

#[test]
fn stages_agree_on_what_the_poorest_can_serve() {
    let model = lopsided();
    let budget = budget("max_seq_len = 4096\n[parallel]\npp = 2\n[memory]\nbytes = '1GiB'");
    let request = model.request(&budget);
    // Each half of the layers as a model of its own.
    let alone = [0..4, 4..8].map(|layers| {
        let mut half = Model::new("m", 4);
        for resource in model.resources.iter().filter(|resource| layers.contains(&resource.layer.unwrap())) {
            half.resources.push(resource.clone()).unwrap();
        }
        let budget = super::common::budget("max_seq_len = 4096\n[memory]\nbytes = '1GiB'");
        half.request(&budget).plan().unwrap().capacity.sequences
    });
    let ranks = request.ranks().unwrap();
    assert_ne!(alone[0], alone[1]);
    assert_eq!(ranks.agreement.sequences, *alone.iter().min().unwrap());
    for plan in &ranks.stages {
        assert_eq!(plan.capacity.sequences, ranks.agreement.sequences);
        assert_eq!(plan.capacity.spare_tokens, ranks.agreement.spare_tokens);
        assert_eq!(request.check(plan), Ok(()));
    }
    let layers: Vec<u32> = ranks.stages[1].resources.iter().filter_map(|resource| resource.layer).collect();
    assert_eq!(layers, [4, 5, 6, 7]);
    assert_eq!(ranks.hash, request.ranks().unwrap().hash);
}

/// The minimum over ranks of 1,000, 900 and 1,100 tokens, then whole blocks.
#[test]
fn ranks_take_the_least_tokens_and_floor_them_to_blocks() {
    let model = Model::new("m", 3).with("kv", 0, kv(10, 128)).with("kv", 1, kv(9, 128)).with("kv", 2, kv(11, 128));
    // One layer per stage and 1,000 * 10 heads' worth of bytes: 1,000, 1,111 and 909 tokens less the null block.
    let budget = budget("max_seq_len = 16\n[parallel]\npp = 3\n[memory]\nbytes = 5120000");
    let ranks = model.request(&budget).ranks().unwrap();
    let tokens: Vec<_> = ranks.stages.iter().map(|plan| plan.capacity.tokens).collect();
    assert_eq!(tokens, [Some(909 / 16 * 16 - 16); 3]);
}

/// DeepSeek-V3 (671B, fp8), read from its config, on devices of which 0.9 is divided.
fn deepseek_v3(parallel: &str) -> cacheplan_planner::CachePlan {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/configs/deepseek-ai__DeepSeek-V3.json");
    let text = format!("max_seq_len = 32768\n[memory]\nfraction = 0.9\nof = 'total'\n[parallel]\n{parallel}");
    let budget = budget(&text);
    let mut model = cacheplan_transforms::Model::read(std::path::Path::new(file), &ReadOptions::default()).unwrap();
    let resources = model.graph.collect(&budget.pass_context(&model.info)).unwrap().resources;
    let device: DeviceInfo = "h200".parse().unwrap();
    let request = PlanRequest::of((model.info.clone(), resources.clone()))
        .with_budget(budget.clone())
        .with_devices(device.clone());
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    plan
}

/// By hand, from the config: hidden 7,168, 61 layers of which 3 are dense, 256 experts of 2,048 channels and one shared,
/// 128 heads of 128 + 64 with values of 128, ranks 1,536 and 512, fp8 matrices and bf16 embeddings.
///
/// | class           | bytes                                                                       | per GPU        |
/// |-----------------|-----------------------------------------------------------------------------|----------------|
/// | routed experts  | 58 * 256 * 3 * 7,168 * 2,048 = 653,908,770,816                               | / 8            |
/// | shared experts  | 58 * 3 * 7,168 * 2,048 = 2,554,331,136                                       | all            |
/// | dense           | 3 * 3 * 7,168 * 18,432 = 1,189,085,184                                       | all            |
/// | attention       | 61 * (1,536 * 24,576 + 512 * 32,768 + 16,384 * 7,168) = 10,489,954,304       | all            |
/// | embeddings      | 2 * 129,280 * 7,168 * 2 = 3,706,716,160                                      | all            |
/// | to latents      | 61 * 7,168 * (1,536 + 576) = 923,467,776, routers 58 * 7,168 * 256, norms    | all            |
///
/// 81.74 + 2.55 + 1.19 + 10.49 + 3.71 + 1.03 GB are 100.71 GB or 93.8 GiB. 0.9 of 143,771 MiB are 126.36 GiB; less
/// weights, 0.5 GiB of context and 0.5 GiB of activations 31.6 GiB are left. A sequence of 32,768 tokens of
/// 61 * 576 * 2 = 70,272 bytes takes 2.145 GiB: 14 of them on each of 8 GPUs, 112 in all.
#[test]
fn data_parallel_attention_spreads_the_experts_and_replicates_the_rest() {
    let plan = deepseek_v3("dp = 8\nep = 8");
    let deployment = plan.deployment.as_ref().unwrap();
    let share = |class: &str| deployment.weights.iter().find(|share| share.class == class).unwrap();
    let expected = [
        ("attention", 10_489_954_304, 1),
        ("dense", 1_189_085_184, 1),
        ("routed experts", 653_908_770_816, 8),
        ("shared experts", 2_554_331_136, 1),
        ("embeddings", 3_706_716_160, 1),
        // Routers in bf16; norms: 61 layers of 2 * 7,168 + 1,536 + 512 and the last one, at 2 bytes.
        ("replicated", 923_467_776 + 2 * 106_430_464 + 61 * (2 * 7_168 + 1_536 + 512) * 2 + 7_168 * 2, 1),
    ];
    for (class, bytes, ranks) in expected {
        assert_eq!((share(class).bytes, share(class).ranks), (bytes, ranks), "{class}");
        assert_eq!(share(class).bytes_per_rank, bytes.div_ceil(ranks), "{class}");
    }
    let weights = plan.ledger.iter().find(|line| line.name == LedgerItem::Weights).unwrap();
    assert_eq!(weights.bytes, deployment.weights.iter().map(|share| share.bytes_per_rank).sum::<u64>());
    assert_eq!(weights.bytes >> 20, 96_146);
    assert_eq!(plan.totals.kv_bytes_per_token, 61 * 576 * 2);
    assert_eq!((plan.capacity.sequences, deployment.sequences, deployment.devices), (14, 112, 8));
}

#[test]
fn replicas_that_share_nothing_serve_each_what_one_does() {
    let one = deepseek_v3("tp = 8");
    let eight = deepseek_v3("tp = 8\ndp = 8");
    assert_eq!(one.capacity.sequences, 21);
    assert_eq!(one.capacity, eight.capacity);
    let deployment = eight.deployment.as_ref().unwrap();
    assert_eq!((deployment.devices, deployment.replicas, deployment.devices_per_replica), (64, 8, 8));
    assert_eq!((deployment.sequences_per_replica, deployment.sequences), (21, 168));
    let table = eight.table();
    assert!(table.contains("21 sequences per replica of 32768 tokens"), "{table}");
    assert!(table.contains("168 sequences on 64 devices, 8 replicas of 8"), "{table}");
}

/// The latent of a token is on one of 8 ranks instead of on all of them.
#[test]
fn decode_context_parallel_ranks_divide_a_latents_tokens() {
    let (whole, divided) = (deepseek_v3("tp = 8"), deepseek_v3("tp = 8\ndcp = 8"));
    assert_eq!(divided.deployment.unwrap().devices, 8);
    let blocks = |sequences: u64, each: u64| sequences * each;
    assert_eq!(whole.pools[0].units - 1, blocks(21, 2_048) + whole.capacity.spare_tokens / 16);
    assert!(divided.capacity.sequences >= 8 * 21, "{:?}", divided.capacity);
}

#[rstest]
#[case("dcp = 2", "does not divide tp 1")]
#[case("tp = 8\ndcp = 8", "hold each of its 2 heads")]
fn context_is_divided_among_ranks_that_hold_the_same_heads(#[case] parallel: &str, #[case] expected: &str) {
    let model = Model::new("m", 1).with("kv", 0, kv(2, 128));
    let budget: cacheplan_planner::Budget = toml::from_str(&format!("[parallel]\n{parallel}")).unwrap();
    let error = model.request(&budget).plan().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// granite-4.0-h-small: one group of B and C for 128 state heads.
#[test]
fn the_one_group_of_all_heads_is_on_every_rank() {
    let conv = ResourceHandler::causal_conv(8192 + 2 * 128, 4, vec![8192, 128, 128], DType::Bf16).unwrap();
    let state = mamba2(128, 64, 128, 1, DType::F32);
    let model = Model::new("m", 1).with("ssm", 0, state).with("conv", 0, conv);
    let budget = budget("max_batch_size = 2\n[parallel]\ntp = 2");
    let request = model.request(&budget);
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    assert_eq!(plan.totals.state_bytes_per_sequence, 64 * 64 * 128 * 4 + (4096 + 2 * 128) * 3 * 2);
}

/// A budget that was built in Rust is held to what its file would be.
#[rstest]
#[case(Parallel { pp: 0, ..Parallel::default() }, "parallel.pp")]
#[case(Parallel { tp: 0, ..Parallel::default() }, "parallel.tp")]
#[case(Parallel { tp: u32::MAX, dp: u32::MAX, ..Parallel::default() }, "parallel.tp")]
fn ranks_that_there_cannot_be_are_refused_by_every_question(#[case] parallel: Parallel, #[case] key: &str) {
    let request = nemotron_3_nano().request(&budget("max_seq_len = 1024\n[memory]\nbytes = '8GiB'"));
    let plan = request.plan().unwrap();
    let wrong = request.changed(|budget| budget.parallel = parallel);
    let refused = |error: Option<String>| assert!(error.is_some_and(|error| error.contains(key)), "{key}");
    refused(wrong.plan().err().map(|error| error.to_string()));
    refused(wrong.fingerprint().err().map(|error| error.to_string()));
    refused(wrong.stage_of(&plan).err().map(|error| error.to_string()));
    refused(wrong.predict("vllm".parse().unwrap()).err().map(|error| error.to_string()));
    refused(wrong.check(&plan).err().map(|violations| violations[0].to_string()));
    assert!(wrong.knobs(&plan).is_empty());
}

/// Latents have no heads to divide, and keys and values have.
#[test]
fn pools_that_every_rank_holds_whole_are_named() {
    let heading = |name: &str| {
        let budget = budget("max_seq_len = 4096\nmax_batch_size = 1\nparallel.tp = 2");
        PlanRequest::of(published(name)).with_budget(budget).ranks().unwrap().heading()
    };
    let latents = heading("deepseek-ai__DeepSeek-V3");
    assert!(latents.contains("WHOLE") && latents.contains(": whole on every rank of tp"), "{latents}");
    assert!(!heading("meta-llama__Llama-3.1-8B-Instruct").contains("WHOLE"));
}
