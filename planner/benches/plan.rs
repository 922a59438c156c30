//! Resources in, plan out. `cargo bench -p cacheplan-planner`.

use std::path::Path;

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::{Budget, Engine, EngineSpec, PlanRequest};
use cacheplan_transforms::{Model, ModelInfo, ReadOptions, Resource, Resources};
use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

const ZOO: [&str; 5] = [
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen__Qwen3.5-122B-A10B",
    "moonshotai__Kimi-K3",
    "openai__gpt-oss-120b",
    "deepseek-ai__DeepSeek-V3",
];

fn read(name: &str) -> (ModelInfo, Resources) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/fixtures/configs/{name}.json"));
    let mut model = Model::read(&path, &ReadOptions::default()).expect("a config of the zoo");
    let resources = model.graph.collect(&Budget::default().pass_context(&model.info)).expect("caches").resources;
    (model.info, resources)
}

fn budget() -> Budget {
    Budget::from_toml("max_seq_len = 8192\n[memory]\nbytes = '40GiB'", "bench").expect("a budget")
}

#[divan::bench(args = ZOO)]
fn plan_a_model(bencher: Bencher<'_, '_>, name: &str) {
    let ((model, resources), budget) = (read(name), budget());
    let request = PlanRequest::of((model.clone(), resources.clone())).with_budget(budget.clone());
    bencher.bench_local(|| black_box(&request).plan());
}

/// Prints the slowest of the zoo's models: the goal is below 100 microseconds for each.
#[divan::bench(sample_count = 1)]
#[expect(clippy::print_stdout, reason = "divan has no place for the name of the slowest")]
fn plan_the_slowest_of_the_zoo(bencher: Bencher<'_, '_>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs");
    let files = std::fs::read_dir(folder).expect("the zoo").map(|entry| entry.expect("a config").path());
    let budget = budget();
    let median = |path: std::path::PathBuf| {
        let mut model = Model::read(&path, &ReadOptions::default()).ok()?;
        let resources = model.graph.collect(&budget.pass_context(&model.info)).ok()?.resources;
        let request = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone());
        let mut times: Vec<_> = (0..101)
            .map(|_| {
                let start = std::time::Instant::now();
                drop(black_box(black_box(&request).plan()));
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        Some((times[50], path.file_stem()?.to_string_lossy().into_owned()))
    };
    let mut all: Vec<_> = files.filter_map(median).collect();
    all.sort_unstable();
    println!("{} models, slowest {:?}, median {:?}", all.len(), all.last(), all.get(all.len() / 2));
    bencher.bench_local(|| ());
}

#[divan::bench(args = ZOO)]
fn check_a_plan(bencher: Bencher<'_, '_>, name: &str) {
    let ((model, resources), budget) = (read(name), budget());
    let request = PlanRequest::of((model.clone(), resources.clone())).with_budget(budget.clone());
    let plan = request.plan().expect("a plan");
    bencher.bench_local(|| black_box(&request).check(black_box(&plan)));
}

#[divan::bench]
fn compare_with_every_engine(bencher: Bencher<'_, '_>) {
    let ((model, resources), budget) = (read(ZOO[0]), budget());
    let request = PlanRequest::of((model.clone(), resources.clone())).with_budget(budget.clone());
    bencher.bench_local(|| {
        let sequences = |engine| black_box(&request).compare(EngineSpec::from(engine)).map(|row| row.sequences);
        Engine::all().iter().copied().map(sequences).collect::<Vec<_>>()
    });
}

#[divan::bench(args = [1_000, 10_000])]
fn plan_many_layers(bencher: Bencher<'_, '_>, layers: u32) {
    let (mut model, _) = read(ZOO[0]);
    model.layers = layers;
    let mut resources = Resources::default();
    for layer in 0..layers {
        let handler = match layer % 4 {
            0 => ResourceHandler::kv_paged(8, 128, DType::Bf16),
            _ => ResourceHandler::ssm(64, 64, 128, DType::F32),
        };
        let resource = Resource {
            name: format!("cache_{layer}"),
            layer: Some(layer),
            handler: handler.expect("a handler"),
            node: format!("layers.{layer}"),
            provenance: Vec::new(),
            shared_by: Vec::new(),
        };
        resources.push(resource).expect("a name of its own");
    }
    let budget = Budget::from_toml("max_seq_len = 1024\nmax_batch_size = 1", "bench").expect("a budget");
    let request = PlanRequest::of((model.clone(), resources.clone())).with_budget(budget.clone());
    bencher.bench_local(|| black_box(&request).plan());
}
