//! Every config of the zoo: plans check, and `by-key` admits what each engine does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cacheplan_handlers::Growth;
use cacheplan_planner::{
    Budget, ByteSize, CachePlan, DeviceInfo, Engine, EngineSpec, PlanError, PlanRequest, Serving, Target,
};
use cacheplan_transforms::{Model, PassContext, ReadOptions, Resources};

use super::common::budget;

fn configs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(files.len() > 60, "{} configs", files.len());
    files
}

/// Configs that no front-end knows are the front-ends' tests' matter.
pub(crate) fn models() -> impl Iterator<Item = (String, Model)> {
    configs().into_iter().filter_map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Some((name, Model::read(&path, &ReadOptions::default()).ok()?))
    })
}

pub(crate) fn collected(model: &Model, context: &PassContext) -> Option<Resources> {
    Some(model.graph.clone().collect(context).ok()?.resources)
}

/// A line of its table beyond 80 columns, or beyond 100 where names of pools are long.
fn too_wide(plan: &CachePlan) -> Option<String> {
    let most = if plan.pools.iter().all(|pool| pool.id.len() <= 20) { 80 } else { 100 };
    plan.table().lines().find(|line| line.chars().count() > most).map(str::to_owned)
}

#[test]
fn every_config_plans_and_checks_under_every_policy() {
    let mut checked = 0;
    for (name, model) in models() {
        for grouping in ["by-key", "first-reference", "by-window"] {
            let budget = budget(&format!("grouping = '{grouping}'\nmax_seq_len = 8192\nmax_batch_size = 4"));
            let Some(resources) = collected(&model, &budget.pass_context(&model.info)) else { continue };
            let request = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone());
            match request.plan() {
                Ok(plan) => {
                    checked += 1;
                    assert_eq!(request.check(&plan), Ok(()), "{name} {grouping}");
                    let table = plan.table();
                    assert_eq!(too_wide(&plan), None, "{name}\n{table}");
                }
                Err(error) => assert_eq!(grouping, "by-window", "{name}: {error}"),
            }
        }
    }
    assert!(checked > 150, "{checked} plans");
}

/// Devices add lines and notes, and several of them headings and classes of weights.
#[test]
fn every_table_for_devices_is_at_most_80_columns_wide_and_that_beside_ranks_100() {
    let (device, mut tables): (DeviceInfo, _) = ("mi325x".parse().unwrap(), 0);
    for (name, model) in models() {
        for parallel in ["", "tp = 8", "dp = 8\nep = 8", "tp = 4\npp = 4"] {
            let budget = budget(&format!(
                "max_seq_len = 65536\n[memory]\nfraction = 0.9\nof = 'total'\nweights = '700GiB'\n[parallel]\n{parallel}"
            ));
            let Some(resources) = collected(&model, &budget.pass_context(&model.info)) else { continue };
            let request = PlanRequest::of((model.info.clone(), resources.clone()))
                .with_budget(budget.clone())
                .with_devices(device.clone());
            // Some do not divide by so many, and some do not fit.
            let Ok(ranks) = request.ranks() else { continue };
            let text = ranks.table() + &ranks.heading();
            assert_eq!(text.lines().find(|line| line.chars().count() > 100), None, "{name} {parallel}");
            assert_eq!(too_wide(&ranks.stages[0]), None, "{name} {parallel}");
            tables += 1;
        }
    }
    assert!(tables > 100, "{tables} tables");
}

const WORKLOADS: [(&str, &str); 3] = [
    (
        "short chat",
        "max_seq_len = 8192\n[workload]\nprompt = { lognormal = { median = 300 } }\noutput = { fixed = 200 }",
    ),
    ("retrieval", "max_seq_len = 8192\n[workload]\nprompt = { fixed = 4000 }\noutput = { fixed = 300 }"),
    ("agents", "max_seq_len = 20480\n[workload]\nprompt = { fixed = 16000 }\noutput = { fixed = 1000 }"),
];

#[test]
fn by_key_admits_at_least_what_every_engine_admits() {
    let mut compared = 0;
    let mut missed = Vec::new();
    for (name, model) in models() {
        let mut collected_in: HashMap<_, Option<Resources>> = HashMap::new();
        for engine in Engine::all().iter().copied().map(EngineSpec::from) {
            for (workload, text) in WORKLOADS {
                let mut budget = budget(text);
                // Engines that store the same dtypes share what was collected.
                let context = budget.engine_context(&model.info, engine);
                let key = context.dtypes;
                let resources = collected_in
                    .entry(key)
                    .or_insert_with(|| collected(&model, &budget.engine_context(&model.info, engine)));
                let Some(resources) = resources else { continue };
                if !resources.iter().any(|resource| is_state_or_window(resource.handler.growth())) {
                    continue;
                }
                for device_gb in [24, 80, 141] {
                    // Half of the device, as if weights took the other.
                    budget.engine.cache_bytes = Some(ByteSize(device_gb * 500_000_000));
                    let row = PlanRequest::of((model.info.clone(), resources.clone()))
                        .with_budget(budget.clone())
                        .compare(engine);
                    let row = match row {
                        Err(PlanError::Engine(_)) => continue,
                        row => row.unwrap_or_else(|error| panic!("{name}: {error}")),
                    };
                    // They keep DeepSeek's records in 8 bits, and our plan in the model's dtype.
                    if model.info.model_type == "deepseek_v4" && engine.engine.name() != "llama.cpp" {
                        continue;
                    }
                    // It keeps none of its states, which the model then lacks.
                    if model.info.model_type == "zaya" && engine.engine.name() == "vllm" {
                        continue;
                    }
                    compared += 1;
                    // One sequence of slack for null blocks and padding slots.
                    if row.sequences + 1 < row.engine_sequences {
                        let (ours, theirs) = (row.sequences, row.engine_sequences);
                        missed.push(format!(
                            "{name} {workload} {device_gb} GB: {ours} against {theirs} of {}",
                            row.engine
                        ));
                    }
                }
            }
        }
    }
    assert!(compared > 1_000, "{compared} rows");
    assert!(missed.is_empty(), "{} of {compared}:\n{}", missed.len(), missed.join("\n"));
}

fn is_state_or_window(growth: Growth) -> bool {
    matches!(growth, Growth::PerSequence | Growth::Paged { window: Some(_), .. })
}

/// Every plan of the zoo, put into each engine's words and back through its model.
#[test]
fn exports_of_the_zoo_admit_what_the_plan_says_or_say_what_is_lost() {
    let mut exported = 0;
    for (name, model) in models() {
        let budget = budget("max_seq_len = 4096\nmax_num_tokens = 8192\n[memory]\nbytes = '40GiB'");
        for engine in Engine::all().iter().copied().map(EngineSpec::from) {
            let Ok(target) = engine.engine.name().parse::<Target>() else { continue };
            let Some(resources) = collected(&model, &budget.engine_context(&model.info, engine)) else { continue };
            let Ok(plan) = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone()).plan()
            else {
                continue;
            };
            let Ok(export) = plan.export(target, None, &Serving::default()) else { continue };
            let planned = plan.capacity.sequences;
            let said = match export.admits {
                Some(admits) if admits >= planned => false,
                Some(admits) => {
                    export.not_expressed.iter().any(|gap| gap.starts_with(&format!("{admits} of the plan's")))
                }
                None => export.not_expressed.iter().any(|gap| gap.starts_with("what ")),
            };
            let exact = export.admits.is_some_and(|admits| admits >= planned);
            assert!(exact || said, "{name} {}: {:?}", engine.engine, export.not_expressed);
            exported += 1;
        }
    }
    assert!(exported > 150, "{exported}");
}

/// A plan holds when its own sequences, or its own tokens of a step, are stated: the same sequences, pools and ledger.
#[test]
fn a_plans_own_numbers_stated_give_the_plan_again() {
    let devices = [("rtx-4090", ""), ("h100", ""), ("mi300x", "tp = 8"), ("h200", "tp = 4\npp = 2")];
    let mut held = 0;
    for (name, model) in models() {
        let request = PlanRequest::of(model);
        for (device, parallel) in devices {
            let device: DeviceInfo = device.parse().unwrap();
            for length in [128, 4_096, 32_768] {
                let asked = budget(&format!(
                    "max_seq_len = {length}\n[memory]\nfraction = 0.9\nof = 'total'\n[parallel]\n{parallel}"
                ));
                let planned =
                    |budget: &Budget| request.clone().with_budget(budget.clone()).with_devices(device.clone()).ranks();
                // Some models do not fit, do not divide, or nobody knows their weights.
                let Ok(plans) = planned(&asked) else { continue };
                let (batch, step) = (plans.agreement.sequences, plans.stages[0].limits.max_num_tokens);
                for stated in [
                    Budget { max_batch_size: Some(batch), ..asked.clone() },
                    Budget { max_num_tokens: Some(step), ..asked.clone() },
                    Budget { max_batch_size: Some(batch), max_num_tokens: Some(step), ..asked.clone() },
                ] {
                    let again = planned(&stated).unwrap();
                    let place = || format!("{name} {} {parallel} {length}", device.name);
                    assert_eq!(again.agreement, plans.agreement, "{}", place());
                    for (again, plan) in again.stages.iter().zip(&plans.stages) {
                        assert_eq!((&again.pools, &again.ledger), (&plan.pools, &plan.ledger), "{}", place());
                    }
                }
                held += 1;
            }
        }
    }
    assert!(held > 300, "{held} plans");
}
