//! A plan beside what an engine is about to allocate.

use cacheplan_handlers::DType;
use cacheplan_planner::engines::Version;
use cacheplan_planner::logs::start::{EngineCache, EngineGroup};
use cacheplan_planner::logs::{Drift, Fact};
use cacheplan_planner::{CachePlan, EngineSpec, EngineStart, PlanRequest};
use rstest::rstest;

use crate::common::{budget, published};

const BUDGET: &str = "max_seq_len = 4096\nmax_num_tokens = 2048\nmax_batch_size = 8\n[memory]\nbytes = '20GiB'\n";

fn planned(config: &str) -> CachePlan {
    let (mut model, budget) = (published(config), budget(BUDGET));
    let engine: EngineSpec = "vllm@0.33.0".parse().unwrap();
    let collected = model.graph.collect(&budget.engine_context(&model.info, engine)).unwrap();
    PlanRequest::of((model.info.clone(), collected.resources.clone())).with_budget(budget).plan().unwrap()
}

/// What a start keeps of every layer of the plan, in blocks of 16: attention in one group, states in another.
fn as_planned(plan: &CachePlan) -> EngineStart {
    let caches = |state: bool| {
        let own = plan.resources.iter().filter(|own| own.handler.is_state() == state);
        let caches = own.map(|own| EngineCache {
            layer: own.layer,
            dtypes: vec![own.dtype.to_string()],
            bytes: own.handler.unit_bytes() * if state { 1 } else { 16 },
            tokens: (!state).then_some(16),
        });
        caches.collect::<Vec<EngineCache>>()
    };
    let groups = [("FullAttentionSpec", false), ("MambaSpec", true)];
    let groups = groups.map(|(kind, state)| EngineGroup { kind: kind.into(), caches: caches(state) });
    EngineStart {
        engine: "vllm".into(),
        version: "0.33.0+cpu".into(),
        facts: [(Fact::MaxSeqLen, 4096), (Fact::PrefixCaching, 0), (Fact::CacheBytes, 20 << 30)].into(),
        groups: groups.into_iter().filter(|group| !group.caches.is_empty()).collect(),
    }
}

/// Qwen3-8B as vLLM 0.33.0 starts it in 20 GiB, by its own planner.
fn qwen() -> (CachePlan, EngineStart) {
    let plan = planned("Qwen__Qwen3-8B");
    let mut start = as_planned(&plan);
    start.facts.extend([(Fact::TokensPerBlock, 16), (Fact::NumBlocks, 9102), (Fact::Groups, 1)]);
    (plan, start)
}

#[test]
fn a_start_as_planned_has_no_drift_and_names_its_owners() {
    let (plan, start) = qwen();
    let found = plan.check_start(&start).unwrap();
    assert!(!found.drifted, "{}", found.table());
    assert_eq!(found.drifting(), Vec::<String>::new());
    assert_eq!(
        found.owners(),
        [
            "group 0: FullAttentionSpec of layers 0-35, bf16, 64.00 KiB per block of 16 tokens; kv_cache_manager: one of 36 \
          kv_paged alike in kv_factor 2, head_dim 128, bf16"
        ]
    );
    assert!(found.table().lines().all(|line| line.chars().count() <= 100), "{}", found.table());
    assert!(found.table().contains("num_blocks"), "{}", found.table());
}

#[test]
fn states_and_pages_of_a_hybrid_are_compared_apart() {
    let plan = planned("Qwen__Qwen3.5-9B");
    let mut start = as_planned(&plan);
    let found = plan.check_start(&start).unwrap();
    assert!(!found.drifted, "{}", found.table());
    assert_eq!(found.owners().len(), 2);
    assert!(found.owners()[1].contains("mamba_cache_manager"), "{:?}", found.owners());
    // Its states are in bf16.
    for cache in &mut start.groups[1].caches {
        cache.dtypes = vec![DType::F32.to_string()];
    }
    let found = plan.check_start(&start).unwrap();
    assert_eq!(found.drifting(), ["MambaSpec"], "{}", found.table());
    assert_eq!(found.groups[0].drift, Drift::None);
}

#[rstest]
#[case::fewer_bytes(|start: &mut EngineStart| {
    start.facts.extend([(Fact::CacheBytes, 10 << 30), (Fact::NumBlocks, 4551)]);
}, &["cache_bytes"], "the engine has 10.00 GiB less")]
#[case::other_blocks(|start: &mut EngineStart| {
    start.facts.extend([(Fact::TokensPerBlock, 32), (Fact::NumBlocks, 4551)]);
    start.groups[0].caches.iter_mut().for_each(|cache| (cache.bytes, cache.tokens) = (2 * cache.bytes, Some(32)));
}, &["tokens_per_block"], "the engine was told another, or took its kernel's")]
#[case::another_dtype(|start: &mut EngineStart| {
    start.facts.insert(Fact::NumBlocks, 18204);
    for cache in &mut start.groups[0].caches {
        (cache.dtypes, cache.bytes) = (vec!["fp8".into()], cache.bytes / 2);
    }
}, &["num_blocks", "FullAttentionSpec"], "layers 0-35: f8_e4m3, planned bf16")]
#[case::other_bytes_that_no_rule_gives(|start: &mut EngineStart| {
    start.facts.insert(Fact::NumBlocks, 4551);
    start.groups[0].caches[3].bytes *= 2;
}, &["num_blocks", "FullAttentionSpec"], "layer 3: 8192 B per token, planned 4096 B per token")]
#[case::a_layer_left_out(|start: &mut EngineStart| {
    start.groups[0].caches.remove(7);
}, &["layers"], "layer 7: planned, and kept nowhere")]
#[case::a_state_where_none_is_planned(|start: &mut EngineStart| {
    start.groups[0].caches[0].tokens = None;
}, &["FullAttentionSpec"], "layer 0: the plan has no cache of this kind there")]
#[case::more_groups(|start: &mut EngineStart| {
    start.facts.insert(Fact::Groups, 2);
}, &["groups"], "neither the plan nor the engine's rules give it")]
fn another_start_is_drift_by_name(#[case] change: fn(&mut EngineStart), #[case] names: &[&str], #[case] reason: &str) {
    let (plan, mut start) = qwen();
    change(&mut start);
    let found = plan.check_start(&start).unwrap();
    assert!(found.drifted);
    assert_eq!(found.drifting(), names, "{}", found.table());
    assert!(found.table().contains(reason), "{}", found.table());
}

#[rstest]
#[case::a_layout_of_its_own(|start: &mut EngineStart| {
    start.groups[0].caches.iter_mut().for_each(|cache| cache.bytes += 16);
}, Drift::Follows, "4097 B per token, planned 4096 B per token; its rules have a layout of their own")]
#[case::a_dtype_that_has_no_name_here(|start: &mut EngineStart| {
    start.groups[0].caches[0].dtypes = vec!["octave_k3v4".into()];
}, Drift::None, "equal")]
#[case::a_layer_without_a_number(|start: &mut EngineStart| {
    let other = EngineCache { layer: None, ..start.groups[0].caches[0].clone() };
    start.groups[0].caches.push(other);
}, Drift::Estimate, "a layer: without a number: not compared")]
#[case::a_drafts_layer(|start: &mut EngineStart| {
    let draft = EngineCache { layer: Some(36), ..start.groups[0].caches[0].clone() };
    start.groups[0].caches.push(draft);
}, Drift::Estimate, "layer 36: a draft's, which the plan numbers apart")]
fn what_the_rules_account_for_is_no_drift(
    #[case] change: fn(&mut EngineStart),
    #[case] drift: Drift,
    #[case] reason: &str,
) {
    let (plan, mut start) = qwen();
    change(&mut start);
    let found = plan.check_start(&start).unwrap();
    assert!(!found.drifted, "{}", found.table());
    assert_eq!(found.groups[0].drift, drift);
    let said = found.table().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(reason), "{}", found.table());
}

/// SGLang is told the plan's own tokens, a page less than its bytes hold.
#[test]
fn tokens_that_sglang_is_told_are_the_plans() {
    let plan = planned("Qwen__Qwen3-8B");
    let pool = &plan.pools[0];
    let tokens = (pool.units - pool.reserved) * 16;
    let told = |stated: u64| {
        let facts = [(Fact::TokensPerBlock, 16), (Fact::MaxTotalTokens, stated), (Fact::Tokens, stated)].into();
        let start = EngineStart { engine: "sglang".into(), version: "0.5.23".into(), facts, groups: Vec::new() };
        plan.check_start(&start).unwrap()
    };
    assert_eq!(told(tokens).drifting(), Vec::<String>::new(), "{}", told(tokens).table());
    let fewer = told(tokens - 1600);
    assert_eq!(fewer.drifting()[0], "max_total_tokens", "{}", fewer.table());
}

#[test]
fn a_start_of_no_known_engine_or_version_is_refused() {
    let (plan, start) = qwen();
    let of = |engine: &str, version: &str| {
        let start = EngineStart { engine: engine.into(), version: version.into(), ..start.clone() };
        plan.check_start(&start).map(|found| found.numbers.version).map_err(|error| error.to_string())
    };
    assert!(of("vlm", "0.33.0").unwrap_err().contains("vlm"));
    assert!(of("vllm", "dev").unwrap_err().contains("dev"));
    // A newer one by the newest rules, as of a log.
    assert_eq!(of("vllm", "0.99.0"), Ok(Version(0, 33, 0).to_string()));
    let unknown = r#"{"engine": "vllm", "version": "0.33.0", "facts": {"blocks": 1}, "groups": []}"#;
    assert!(serde_json::from_str::<EngineStart>(unknown).unwrap_err().to_string().contains("unknown variant `blocks`"));
}
