//! Every model of the zoo, scaled down by its limits, takes exactly the bytes that were planned.

use std::path::{Path, PathBuf};

use cacheplan_managers::book::{Accepted, StepMetadata, Work};
use cacheplan_managers::device::{CacheSet, ReplayLayer};
use cacheplan_planner::{Budget, CachePlan, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions};
use candle_core::Device;
use rstest::rstest;

const SMALL: &str = "max_seq_len = 32\nmax_batch_size = 1\nmax_num_tokens = 32\ntokens_per_block = 16\n";

fn planned(config: &Path, budget: &str) -> Option<CachePlan> {
    let mut model = Model::read(config, &ReadOptions::default()).ok()?;
    let budget = Budget::from_toml(budget, "budget.toml").unwrap();
    let collected = model.graph.collect(&budget.pass_context(&model.info)).unwrap();
    Some(PlanRequest::of((model.info.clone(), collected.resources.clone())).with_budget(budget.clone()).plan().unwrap())
}

/// Allocates a plan, compares its bytes, and runs a sequence to the limit.
fn run(plan: &CachePlan) -> u64 {
    let mut set = CacheSet::allocate(plan, &Device::Cpu).unwrap();
    let mut bytes = 0;
    for pool in set.bytes().unwrap() {
        assert_eq!(pool.actual_bytes, Some(pool.planned_bytes), "pool {}", pool.id);
        bytes += pool.planned_bytes;
    }
    let manager = set.manager_mut().unwrap();
    for resource in &plan.resources {
        let route = manager.route_of(&resource.name).unwrap();
        let reachable = manager.kv_layer(route).map(|layer| layer.pool.dims()[0]);
        let reachable = reachable.or_else(|_| manager.state_layer(route).map(|layer| layer.pool.dims()[0]));
        let reachable = reachable.or_else(|_| manager.fixed(route).map(|tensor| tensor.dims()[0]));
        assert!(reachable.unwrap() > 0, "{}", resource.name);
    }
    let sequence = manager.admit(16).unwrap();
    let mut step = StepMetadata::default();
    for tokens in [16, 16] {
        manager.step(&[Work { sequence, tokens }], &mut step).unwrap();
    }
    manager.finish(sequence).unwrap();
    set.shutdown().unwrap();
    bytes
}

#[test]
fn every_model_takes_exactly_its_planned_bytes_and_serves_what_was_planned() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs");
    let mut served = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let Some(plan) = planned(&entry.unwrap().path(), SMALL) else { continue };
        run(&plan);
        served += 1;
    }
    assert!(served >= 60, "only {served} models were read");
}

#[rstest]
#[case::snapshots("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "snapshots", "", 0)]
#[case::mamba2("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "replay", "replay.x", 23)]
#[case::mamba1("state-spaces__mamba-130m-hf", "replay", "replay.dt", 24)]
#[case::gated_delta("Qwen__Qwen3.5-2B", "replay", "replay.k", 18)]
#[case::kimi_delta("moonshotai__Kimi-Linear-48B-A3B-Instruct", "replay", "replay.g", 20)]
#[case::rg_lru("google__recurrentgemma-2b", "replay", "replay.recurrence_gate", 18)]
#[case::convolutions("LiquidAI__LFM2-1.2B", "replay", "", 0)]
#[case::generic_states("RWKV__rwkv-4-169m-pile", "snapshots", "", 0)]
#[case::compressors("deepseek-ai__DeepSeek-V4-Flash", "snapshots", "", 0)]
fn a_model_with_speculation_commits_its_states(
    #[case] config: &str,
    #[case] scheme: &str,
    #[case] input: &str,
    #[case] replays: usize,
) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs");
    let config = folder.join(format!("{config}.json"));
    let budget = format!("{SMALL}[speculation]\nscheme = '{scheme}'\ndraft_tokens = 2\n");
    let plan = planned(&config, &budget).unwrap();
    run(&plan);
    let mut set = CacheSet::allocate(&plan, &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(8).unwrap();
    let mut step = StepMetadata::default();
    manager.speculate(&[Work { sequence, tokens: 3 }], &mut step).unwrap();
    assert_eq!(step.draft_rows.len(), 1);
    let mut replayed = 0;
    let accepted = [(sequence, Accepted::First(2))];
    let replay = &mut |layer: &ReplayLayer<'_>| {
        replayed += 1;
        assert_eq!(layer.input(input)?.dims()[0], 2);
        Ok(())
    };
    manager.commit_replaying(&accepted, replay).unwrap();
    assert_eq!(replayed, replays);
}
