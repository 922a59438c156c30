//! Every export of the zoo to vLLM, put back as a command, starts; or it is refused before, in the engine's words. What an export
//! of windows admits the command does.

mod common;

use std::path::Path;

use cacheplan_planner::export::Setting;
use cacheplan_planner::{
    Budget, DeviceInfo, Devices, EngineSpec, ExportError, Override, PlanError, PlanRequest, Serving, Target,
};
use cacheplan_serve::{Launch, Models, Options, ServeError, Starts, answer};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;

const VERSIONS: [&str; 4] = ["0.11.0", "0.24.0", "0.28.0", "0.33.0"];
const DTYPES: [&str; 4] = ["", "f16", "f8_e4m3", "nvfp4"];

/// The command that a file stands for, behind the words that start its engine.
fn command(start: &str, settings: &[Setting]) -> Launch {
    let flag = |setting: &Setting| {
        let name = format!("--{}", setting.key);
        match &setting.value {
            serde_json::Value::Bool(true) => vec![name],
            serde_json::Value::String(word) => vec![name, word.clone()],
            value => vec![name, value.to_string()],
        }
    };
    let words = start.split(' ').map(str::to_owned).chain(settings.iter().flat_map(flag));
    Launch { words: words.collect(), ..Launch::default() }
}

/// The models that are read, by their names.
fn zoo() -> impl Iterator<Item = (String, Models)> {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/configs");
    std::fs::read_dir(zoo).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let model = Model::read(&path, &ReadOptions::default()).ok()?;
        Some((path.file_stem()?.to_string_lossy().into_owned(), model.into()))
    })
}

fn serving() -> Serving {
    Serving { model: Some("m".into()), ..Serving::default() }
}

/// An H100 that would hold any weights, of which a plan in bytes for caches says nothing.
fn roomy() -> Devices {
    let h100: Devices = "h100".parse().unwrap();
    DeviceInfo { total_bytes: 4 << 40, free_bytes: 4 << 40, ..h100.device().clone() }.into()
}

/// Model types with windows of which engines have pools, beside others that have some.
const WINDOWED: [&str; 6] = ["llama4", "gpt_oss", "gemma4", "gemma3", "mimo_v2_flash", "laguna"];

/// Whether sequences outgrow the windows or not, and whether the plan is one for the engine.
#[rstest]
fn an_engine_admits_of_a_command_what_its_export_says(
    #[values("sglang serve --model-path m", "vllm serve m")] start: &str,
    #[values(100, 1000, 4096, 20_000, 131_072)] length: u64,
    #[values(false, true)] as_engine: bool,
) {
    let engine = start.split(' ').next().unwrap();
    let (target, engine): (Target, EngineSpec) = (engine.parse().unwrap(), engine.parse().unwrap());
    let (mut told, mut wrong) = (0, Vec::new());
    for (name, models) in zoo() {
        let model_type = &models.model.info().model_type;
        let known = models.model.info().max_position_embeddings.is_none_or(|most| length <= most);
        if !known || !WINDOWED.iter().any(|of| model_type.starts_with(of)) {
            continue;
        }
        let budget =
            Budget::from_toml(&format!("max_seq_len = {length}\n[memory]\nbytes = '40GiB'"), "b.toml").unwrap();
        let request = PlanRequest::of(models.model.clone()).with_budget(budget);
        let request = if as_engine { request.for_engine(engine) } else { request };
        let Ok(plan) = request.plan() else { continue };
        let export = plan.export(target, None, &serving()).unwrap();
        // Some files do not tell them, and there is room for any; vLLM is told the bytes for caches instead.
        let weights = Override::by_flag("memory.weights", "'1GiB'", "--weights");
        let overrides = Some(weights).filter(|_| target.name() == "sglang").into_iter().collect();
        let options = Options { devices: Some(roomy()), overrides, ..Options::default() };
        let command = command(start, &export.settings);
        let found = answer(&command, models, &options).unwrap_or_else(|error| panic!("{name}: {error}\n{command}"));
        let held = found.sequences.map(|all| (all.low, all.high));
        if held != export.admits.map(|admits| (admits, admits)) {
            wrong.push(format!("{name}: {held:?}, the export says {:?}\n  {command}", export.admits));
        }
        told += 1;
    }
    assert!(wrong.is_empty() && told >= 3, "{} of {told}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_export_to_vllm_starts_as_a_command_or_is_refused() {
    let target: Target = "vllm".parse().unwrap();
    let serving = serving();
    let (mut started, mut refused, mut unread, mut wrong) = (0, 0, 0, Vec::new());
    for (name, models) in zoo() {
        for dtype in DTYPES {
            let mut text = "max_seq_len = 2048\n[memory]\nbytes = '20GiB'\n".to_owned();
            if !dtype.is_empty() {
                text.push_str(&format!("[dtypes]\nkv = '{dtype}'\n"));
            }
            let budget = Budget::from_toml(&text, "budget.toml").unwrap();
            let plan = match PlanRequest::of(models.model.clone()).with_budget(budget).plan() {
                Ok(plan) => plan,
                // Too large for one device, or caches that take no such dtype.
                Err(PlanError::DoesNotFit(_) | PlanError::Budget(_) | PlanError::Unconsumed { .. }) => continue,
                Err(error) => panic!("{name}: {error}"),
            };
            for version in VERSIONS {
                let place = format!("{name} {dtype} {version}");
                let export = match plan.export(target, Some(version), &serving) {
                    Ok(export) => export,
                    Err(ExportError::Refused(_) | ExportError::Unsupported { .. }) => {
                        refused += 1;
                        continue;
                    }
                    Err(error) => panic!("{place}: {error}"),
                };
                let options =
                    Options { version: Some(version.to_owned()), devices: Some(roomy()), ..Options::default() };
                match answer(&command("vllm serve m", &export.settings), models.clone(), &options) {
                    Ok(found) if found.starts == Starts::Yes => started += 1,
                    Ok(found) => wrong.push(format!("{place}: {:?} {:?}", found.starts, found.reason)),
                    // Caches of which nobody read how vLLM allocates them.
                    Err(error) if error.to_string().ends_with("nothing is predicted rather than guessed") => {
                        unread += 1;
                    }
                    Err(ServeError::Engine { said, .. }) => wrong.push(format!("{place}: {said}")),
                    Err(error) => wrong.push(format!("{place}: {error}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), wrong.len() + started, wrong.join("\n"));
    println!("{started} start, {refused} are refused, of {unread} nothing is known");
    assert!(started > 900 && refused > 0 && unread < started / 10, "{started} {refused} {unread}");
}

/// Slots of a llama.cpp server have cells of their own where the plan's sequences are whole, as `plan --as` says, and pass as many
/// tokens at once as that.
#[rstest]
#[case::whole(4096, "", true)]
#[case::of_fewer_tokens(8192, "[workload]\nprompt = { fixed = 1024 }\noutput = { fixed = 256 }\n", false)]
fn an_export_to_llama_cpp_is_the_plan_beside_it(#[case] length: u64, #[case] workload: &str, #[case] own: bool) {
    let (target, engine): (Target, EngineSpec) = ("llama.cpp".parse().unwrap(), "llama.cpp".parse().unwrap());
    let text = format!("max_seq_len = {length}\nmax_batch_size = 4\nmax_num_tokens = 2048\n{workload}");
    let budget = Budget::from_toml(&text, "b.toml").unwrap();
    let request = PlanRequest::of(common::models("Qwen__Qwen3-8B").model).with_budget(budget);
    let export = request.plan().unwrap().export(target, None, &serving()).unwrap();
    let said =
        |key: &str| export.settings.iter().find(|setting| setting.key == key).map(|setting| setting.value.clone());
    assert_eq!(said("kv-unified").is_none(), own, "{}", export.text);
    assert_eq!((said("ubatch-size"), said("n-gpu-layers")), (Some(512.into()), Some(99.into())));
    let predicted = request.predict(engine).unwrap();
    assert_eq!(said("ctx-size") == predicted.tokens.map(Into::into), own, "{} {:?}", export.text, predicted.tokens);
    let options = Options { devices: Some(roomy()), model_is_given: true, ..Options::default() };
    let command = command("llama-server -m m", &export.settings);
    let found = answer(&command, common::models("Qwen__Qwen3-8B"), &options).unwrap();
    let held = found.sequences.map(|all| (all.low, all.high));
    // A command says nothing of sequences that are shorter.
    assert!(!own || held == export.admits.map(|all| (all, all)), "{held:?} {:?}", command.words);
}
