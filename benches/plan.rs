//! From a config.json to a plan: reading, walking and planning, together and apart.
//!
//! The goals: under 1 ms together and under 100 µs for the plan alone, for every real model; 10,000 layers in 20 ms.

use cacheplan::handlers::DType;
use cacheplan::planner::{Budget, CachePlan, PlanRequest};
use cacheplan::transforms::layers::{Attention, Mamba2};
use cacheplan::transforms::{GraphBuilder, Model, ReadOptions, Resources};
use divan::Bencher;

const MODELS: [&str; 5] = [
    "meta-llama__Llama-3.1-8B-Instruct",
    "Qwen__Qwen3-235B-A22B",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "deepseek-ai__DeepSeek-V3",
    "google__gemma-4-26B-A4B",
];

fn main() {
    divan::main();
}

fn config(name: &str) -> String {
    let path = format!("{}/tests/fixtures/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn walk(model: &mut Model, budget: &Budget) -> Resources {
    let context = budget.pass_context(&model.info);
    model.graph.collect(&context).expect("the fixture's graph can be walked").resources
}

fn planned(model: &Model, resources: &Resources, budget: &Budget) -> CachePlan {
    PlanRequest::of((model.info.clone(), resources.clone()))
        .with_budget(budget.clone())
        .plan()
        .expect("a plan without a memory budget always fits")
}

#[divan::bench(args = MODELS)]
fn read_walk_and_plan(bencher: Bencher<'_, '_>, name: &str) {
    let text = config(name);
    let budget = Budget::default();
    bencher.bench(|| {
        let mut model = Model::read_config(name, &text, &ReadOptions::default()).expect("a real config");
        let resources = walk(&mut model, &budget);
        planned(&model, &resources, &budget)
    });
}

#[divan::bench(args = MODELS)]
fn plan_alone(bencher: Bencher<'_, '_>, name: &str) {
    let mut model = Model::read_config(name, &config(name), &ReadOptions::default()).expect("a real config");
    let budget = Budget::default();
    let resources = walk(&mut model, &budget);
    bencher.bench(|| planned(&model, &resources, &budget));
}

#[divan::bench(args = [100, 1_000, 10_000])]
fn plan_a_hybrid_of_layers(bencher: Bencher<'_, '_>, layers: u32) {
    let mut builder = GraphBuilder::new("made_up", 4096, DType::Bf16);
    for layer in 0..layers {
        builder.layer();
        if layer % 8 == 0 {
            builder.attention(&Attention::grouped(32, 8, 128));
        } else {
            builder.mamba2(&Mamba2 {
                num_heads: 64,
                head_dim: 64,
                d_state: 128,
                n_groups: 8,
                d_conv: 4,
                state_dtype: None,
            });
        }
    }
    let mut model = builder.build();
    let budget = Budget::default();
    let resources = walk(&mut model, &budget);
    bencher.bench(|| planned(&model, &resources, &budget));
}
