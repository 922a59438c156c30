//! One table of questions through three doors: command, library and page answer with the same JSON, or refuse with the same
//! code and words. Python's tests put the same table through the fourth.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cacheplan::planner::{Config, Devices, EngineSpec, MeasuredLedger, PlanError, PlanRequest};
use cacheplan::transforms::{Model, ReadOptions};
use cacheplan_web::OpenModels;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    name: String,
    model: String,
    budget: String,
    device: String,
    draft: Option<String>,
    #[serde(default)]
    stage: u32,
    engine: Option<String>,
    measured: Option<String>,
}

/// A plan, or the exit code with the first line of what is said.
type Answer = Result<Value, (u8, String)>;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

fn questions() -> Vec<Question> {
    serde_json::from_slice(&fs::read(fixture("questions.json")).unwrap()).unwrap()
}

fn config(model: &str) -> PathBuf {
    fixture(&format!("configs/{model}.json"))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn by_command(question: &Question) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    let beside = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.arg("plan").arg(config(&question.model)).args(["--format", "json"]).env("NO_COLOR", "1");
    command.arg("--budget").arg(beside("budget.toml", &question.budget));
    command.args(["--stage".to_owned(), question.stage.to_string()]);
    if !question.device.is_empty() {
        command.args(["--device-memory", &question.device]);
    }
    if let Some(draft) = &question.draft {
        command.arg("--draft").arg(config(draft));
    }
    if let Some(engine) = &question.engine {
        command.args(["--as", engine]);
    }
    if let Some(measured) = &question.measured {
        command.arg("--measured").arg(beside("measured.toml", measured));
    }
    let output = command.output().unwrap();
    match output.status.code() {
        Some(0) => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        code => Err((u8::try_from(code.unwrap()).unwrap(), String::from_utf8(output.stderr).unwrap())),
    }
}

fn by_library(question: &Question) -> Answer {
    let refused = |error: PlanError| (error.exit_code(), first_line(&error.to_string()));
    let read = |model: &str| Model::read(&config(model), &ReadOptions::default()).unwrap();
    let devices: Option<Devices> = (!question.device.is_empty()).then(|| question.device.parse().unwrap());
    let device = devices.as_ref().map(Devices::device);
    let config = Config::resolve_on(device, Some((&question.budget, "budget.toml")), &[], &[]);
    let config = config.map_err(|error| (error.exit_code(), first_line(&error.to_string())))?;
    let mut request = PlanRequest::of(read(&question.model)).with_config(config).of_stage(question.stage);
    request = devices.into_iter().fold(request, PlanRequest::with_devices);
    if let Some(draft) = &question.draft {
        request = request.with_draft(read(draft));
    }
    if let Some(measured) = &question.measured {
        request = request.with_measured(MeasuredLedger::from_toml(measured, "measured.toml").unwrap());
    }
    let engine: Option<EngineSpec> = question.engine.as_ref().map(|engine| engine.parse().unwrap());
    request = engine.into_iter().fold(request, PlanRequest::for_engine);
    let plan = request.plan().map_err(refused)?;
    assert_eq!(request.check(&plan), Ok(()), "{}", question.name);
    let answer = match engine {
        None => serde_json::to_value(&plan),
        Some(engine) => serde_json::to_value(request.predict(engine).map_err(refused)?.beside(&plan)),
    };
    Ok(answer.unwrap())
}

fn by_page(models: &OpenModels, question: &Question) -> Answer {
    let ask = |question: Value| -> Value {
        let text = question.to_string();
        let bytes = [&u32::try_from(text.len()).unwrap().to_le_bytes()[..], text.as_bytes()].concat();
        serde_json::from_str(&models.answer(&bytes)).unwrap()
    };
    let open = |model: &str| ask(json!({ "ask": "open_path", "path": config(model) }))["model"].clone();
    let of = json!({
        "model": open(&question.model),
        "draft": question.draft.as_deref().map(open),
        "budget": question.budget,
        "device": question.device,
        "stage": question.stage,
        "engine": question.engine,
        "measured": question.measured,
    });
    let answer = ask(json!({ "ask": "plan", "of": of }));
    match answer.get("error") {
        None => Ok(answer["plan"].clone()),
        Some(error) => {
            let code = u8::try_from(error["code"].as_u64().unwrap()).unwrap();
            Err((code, first_line(error["message"].as_str().unwrap())))
        }
    }
}

/// The words of an error but for the file that it begins with, which each door names otherwise.
fn same(said: &str, by_library: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let core =
        by_library.split_once(": ").filter(|(place, _)| place.contains("budget")).map_or(by_library, |(_, why)| why);
    words(said).contains(&words(core))
}

#[test]
fn there_are_at_least_forty_questions_and_some_of_each_answer() {
    let questions = questions();
    assert!(questions.len() >= 40, "{}", questions.len());
    let codes: Vec<u8> = questions.iter().filter_map(|question| Some(by_library(question).err()?.0)).collect();
    for code in [1, 2, 3, 4] {
        assert!(codes.contains(&code), "no question ends with {code}: {codes:?}");
    }
    assert!(codes.len() < questions.len() / 3, "{codes:?}");
}

#[test]
fn every_door_gives_the_same_answer() {
    let models = OpenModels::with_disk(Vec::new(), |path| {
        Model::read(Path::new(path), &ReadOptions::default()).map_err(|error| (1, error.to_string()))
    });
    for question in questions() {
        let name = &question.name;
        match (by_library(&question), by_command(&question), by_page(&models, &question)) {
            (Ok(library), Ok(command), Ok(page)) => {
                assert_eq!(command, library, "{name}: the command");
                assert_eq!(page, library, "{name}: the page");
            }
            (Err((code, why)), Err((by_command, said)), Err((by_page, told))) => {
                assert_eq!((by_command, by_page), (code, code), "{name}: {why}\n{said}\n{told}");
                assert!(same(&said, &why), "{name}: the command says\n{said}\nwhere the library says\n{why}");
                assert!(same(&told, &why), "{name}: the page says\n{told}\nwhere the library says\n{why}");
            }
            answers => panic!("{name}: not all of them answer: {answers:?}"),
        }
    }
}
