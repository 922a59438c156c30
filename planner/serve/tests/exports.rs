//! Every export of the zoo to vLLM, put back as a command, starts; or it is refused before, in the engine's words.

use std::path::Path;

use cacheplan_planner::export::Setting;
use cacheplan_planner::{Budget, DeviceInfo, Devices, ExportError, PlanError, PlanRequest, Serving, Target};
use cacheplan_serve::{Launch, Models, Options, ServeError, Starts, answer};
use cacheplan_transforms::{Model, ReadOptions};

const VERSIONS: [&str; 4] = ["0.11.0", "0.24.0", "0.28.0", "0.33.0"];
const DTYPES: [&str; 4] = ["", "f16", "f8_e4m3", "nvfp4"];

/// The command that a file for vLLM stands for.
fn command(settings: &[Setting]) -> Launch {
    let flag = |setting: &Setting| {
        let name = format!("--{}", setting.key);
        match &setting.value {
            serde_json::Value::Bool(true) => vec![name],
            serde_json::Value::String(word) => vec![name, word.clone()],
            value => vec![name, value.to_string()],
        }
    };
    let words = ["vllm", "serve", "m"].map(str::to_owned).into_iter().chain(settings.iter().flat_map(flag));
    Launch { words: words.collect(), ..Launch::default() }
}

#[test]
fn every_export_to_vllm_starts_as_a_command_or_is_refused() {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/configs");
    let target: Target = "vllm".parse().unwrap();
    let serving = Serving { model: Some("m".into()), ..Serving::default() };
    // An H100 that would hold any weights, of which a plan in bytes for caches says nothing.
    let h100: Devices = "h100".parse().unwrap();
    let roomy = DeviceInfo { total_bytes: 4 << 40, free_bytes: 4 << 40, ..h100.device().clone() };
    let (mut started, mut refused, mut unread, mut wrong) = (0, 0, 0, Vec::new());
    for path in std::fs::read_dir(zoo).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(model) = Model::read(&path, &ReadOptions::default()) else { continue };
        let models = Models::from(model);
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
                Err(error) => panic!("{}: {error}", path.display()),
            };
            for version in VERSIONS {
                let place = format!("{} {dtype} {version}", path.file_stem().unwrap().to_string_lossy());
                let export = match plan.export(target, Some(version), &serving) {
                    Ok(export) => export,
                    Err(ExportError::Refused(_) | ExportError::Unsupported { .. }) => {
                        refused += 1;
                        continue;
                    }
                    Err(error) => panic!("{place}: {error}"),
                };
                let options = Options {
                    version: Some(version.to_owned()),
                    devices: Some(roomy.clone().into()),
                    ..Options::default()
                };
                match answer(&command(&export.settings), models.clone(), &options) {
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
