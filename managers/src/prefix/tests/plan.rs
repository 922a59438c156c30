//! Simulations take their sizes from plans.

use std::path::Path;

use crate::prefix::{CheckpointFormat, HostTier, PrefixError, Provision};
use crate::simulate::{Piece, Policy, Scenario, TraceRequest, Workload};
use cacheplan_planner::{Budget, CachePlan, PlanRequest, Pool, Unit};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;

#[rstest]
fn pages_of_a_plan_cost_little_of_the_hit_rate(#[values(16, 32, 64)] page: usize) {
    let requests = &Workload::Chat.requests()[..400];
    let rate = |policy, page| Scenario { policy, page, ..Scenario::default() }.run(requests).unwrap().hit_rate;
    let (exact, paged) = (rate(Policy::Coverage, 1), rate(Policy::Coverage, page));
    assert!(paged > 0.9 * exact, "{paged} against {exact}");
    assert!(paged >= rate(Policy::DoubleBuffered, page));
}

#[test]
fn without_states_every_policy_hits_what_is_resident() {
    let requests = &Workload::Rag.requests()[..200];
    let scenario = Scenario { states: false, page: 16, ..Scenario::default() };
    let report = scenario.run(requests).unwrap();
    assert_eq!(report.hit_rate, report.kv_hit_rate);
    assert!(report.hit_rate > 0.0);
}

const CONFIGS: &str = "../tests/fixtures/configs";
const HYBRID: &str = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";
const CHECKPOINTS: &str = "[workload]\ncheckpoints_per_sequence = 4\nprompt = { fixed = 4000 }\n";

fn plan_of(config: &str, budget: &str) -> CachePlan {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(CONFIGS).join(config);
    let mut model = Model::read(&config, &ReadOptions::default()).unwrap();
    let limits = "max_seq_len = 4096\nmax_batch_size = 3\nmax_num_tokens = 2048\ntokens_per_block = 32\n";
    let budget = Budget::from_toml(&format!("{limits}{budget}"), "budget.toml").unwrap();
    let collected = model.graph.collect(&budget.pass_context(&model.info)).unwrap();
    PlanRequest::of((model.info.clone(), collected.resources.clone())).with_budget(budget.clone()).plan().unwrap()
}

#[test]
fn the_sizes_are_those_of_the_plan() {
    let plan = plan_of(HYBRID, CHECKPOINTS);
    let scenario = Scenario::of_plan(&plan, 128).unwrap();
    assert_eq!((scenario.page, scenario.chunk, scenario.prefill_chunk), (32, 128, 2048));
    assert_eq!((scenario.states, scenario.format, scenario.host), (true, CheckpointFormat::Native, None));
    assert_eq!((scenario.checkpoints, scenario.concurrency), (Some(12), 3));
    assert!(scenario.kv_tokens.unwrap() >= 3 * 4000);
}

#[test]
fn checkpoints_in_8_bits_and_a_host_come_from_the_plan() {
    let text = format!("{CHECKPOINTS}checkpoint_dtype = 'int8'\n[host]\nbytes = '1GiB'\n");
    let plan = plan_of(HYBRID, &text);
    let Provision { tree, checkpoints, shape, .. } = Provision::of_plan(&plan, 128).unwrap();
    let host = |pool: &str| plan.host.as_ref().unwrap().pools.iter().find(|share| share.pool == pool).unwrap().units;
    assert_eq!((tree.checkpoints, checkpoints), (CheckpointFormat::Int8, 12));
    let expected = HostTier { blocks: host("kv_paged.0") as u32, slots: host("checkpoint.ssm.0") as u32, windows: 0 };
    assert_eq!(tree.host, Some(expected));
    let bytes = |pool: &str| plan.pool(pool).unwrap().unit_bytes as usize;
    assert_eq!(shape.block_bytes, bytes("kv_paged.0"));
    assert_eq!(shape.state_bytes, bytes("checkpoint.ssm.0") + bytes("checkpoint.causal_conv.0"));
}

#[test]
fn windows_come_from_the_plan() {
    let plan = plan_of("google__gemma-3-1b-it.json", "");
    let provision = Provision::of_plan(&plan, 1).unwrap();
    assert_eq!((provision.tree.window, provision.tree.states), (Some(512), false));
    let windowed: u64 = plan.pools.iter().filter(|pool| pool.window.is_some()).map(|pool| pool.unit_bytes).sum();
    assert!(windowed > 0 && provision.shape.window_bytes as u64 == windowed);
}

#[test]
fn pools_with_pages_of_different_sizes_are_refused_by_name() {
    let mut plan = plan_of("google__gemma-3-1b-it.json", "");
    let pool = plan.pools.iter_mut().find(|pool| pool.window.is_some()).unwrap();
    pool.tokens_per_block = Some(48);
    let id = pool.id.clone();
    let refused = Provision::of_plan(&plan, 1);
    assert!(matches!(refused, Err(PrefixError::Plan { pool, found: 48, expected: 32, .. }) if pool == id));
}

#[rstest]
fn what_the_cache_takes_never_exceeds_the_planned_bytes(
    #[values("", "checkpoint_dtype = 'int8'\n")] format: &str,
    #[values("", "[host]\nbytes = '1GiB'\n")] host: &str,
) {
    let text = format!("{CHECKPOINTS}{format}{host}");
    let plan = plan_of(HYBRID, &text);
    let shape = Provision::of_plan(&plan, 128).unwrap().shape;
    let requests: Vec<TraceRequest> =
        Workload::Chat.requests().into_iter().filter(|r| tokens(r) < 4000).take(300).collect();
    let report = Scenario::of_plan(&plan, 128).unwrap().run(&requests).unwrap();
    let peak = report.peak;
    assert!(report.metrics.states_evicted > 0 && report.metrics.tokens_evicted > 0, "there was not enough for all");

    let units = |of: fn(&Pool) -> bool| plan.pools.iter().filter(|pool| of(pool)).collect::<Vec<_>>();
    let bytes = |pools: &[&Pool]| pools.iter().map(|pool| pool.bytes).sum::<u64>() as usize;
    assert!(peak.kv_tokens / 32 * shape.block_bytes <= bytes(&units(|pool| pool.unit == Unit::Block)));
    let live = if format.is_empty() { 3 } else { 0 };
    let apart = |pool: &Pool| pool.checkpoints_of.is_some();
    let slots = if format.is_empty() { units(|pool| pool.unit == Unit::Slot) } else { units(apart) };
    assert!((peak.checkpoints + live) * shape.state_bytes <= bytes(&slots));
    let on_host = peak.host_kv_tokens / 32 * shape.block_bytes + peak.host_checkpoints * shape.state_bytes;
    assert!(on_host as u64 <= plan.host.as_ref().map_or(0, |host| host.bytes));
    assert_eq!(on_host > 0, !host.is_empty());
}

fn tokens(request: &TraceRequest) -> usize {
    request.prompt.iter().map(Piece::len).sum::<usize>() + request.output.len()
}
