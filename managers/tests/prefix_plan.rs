//! Simulations take their sizes from plans.

use std::path::Path;

use cacheplan_managers::book::simulate::{Policy, Scenario, Workload, simulate};
use cacheplan_planner::{Budget, PlanRequest, plan};
use cacheplan_transforms::{ReadOptions, collect, read_model};
use rstest::rstest;

#[rstest]
fn pages_of_a_plan_cost_little_of_the_hit_rate(#[values(16, 32, 64)] page: usize) {
    let requests = &Workload::Chat.requests()[..400];
    let rate = |policy, page| simulate(requests, Scenario { policy, page, ..Scenario::default() }).unwrap().hit_rate;
    let (exact, paged) = (rate(Policy::Coverage, 1), rate(Policy::Coverage, page));
    assert!(paged > 0.9 * exact, "{paged} against {exact}");
    assert!(paged >= rate(Policy::DoubleBuffered, page));
}

#[test]
fn without_states_every_policy_hits_what_is_resident() {
    let requests = &Workload::Rag.requests()[..200];
    let scenario = Scenario { states: false, page: 16, ..Scenario::default() };
    let report = simulate(requests, scenario).unwrap();
    assert_eq!(report.hit_rate, report.kv_hit_rate);
    assert!(report.hit_rate > 0.0);
}

#[test]
fn the_sizes_are_those_of_the_plan() {
    let config = "../tests/fixtures/configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(config);
    let mut model = read_model(&config, &ReadOptions::default()).unwrap();
    let budget = "max_seq_len = 4096\nmax_batch_size = 3\nmax_num_tokens = 2048\ntokens_per_block = 32\n\
                  [workload]\ncheckpoints_per_sequence = 4\nprompt = { fixed = 4000 }\n";
    let budget = Budget::from_toml(budget, "budget.toml").unwrap();
    let collected = collect(&mut model.graph, &budget.pass_context(&model.info)).unwrap();
    let plan = plan(&PlanRequest::new(&model.info, &collected.resources, &budget)).unwrap();
    let scenario = Scenario::of_plan(&plan);
    assert_eq!((scenario.page, scenario.prefill_chunk, scenario.states), (32, 2048, true));
    assert_eq!((scenario.checkpoints, scenario.concurrency), (Some(12), 3));
    assert!(scenario.kv_tokens.unwrap() >= 3 * 4000);
}
