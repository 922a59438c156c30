//! What SGLang's own pool sizes are of models whose entries stand for several tokens: `tests/fixtures/oracles`, by `cargo xtask oracle
//! sglang`.

use std::path::Path;

use cacheplan_planner::Devices;
use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Launch, Options, Starts, answer};
use cacheplan_transforms::{Model, ReadOptions};
use serde_json::Value;

const LENGTH: &str = "4096";

/// Tokens, those of windows and slots for states; or why it does not start.
fn answered(question: &Value, model: Model) -> Result<[Option<u64>; 3], String> {
    let words = question["words"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let start = "python -m sglang.launch_server --model-path m --context-length".split(' ').chain([LENGTH]);
    let launch = Launch { words: start.chain(words).map(str::to_owned).collect(), ..Launch::default() };
    let device: Devices = match question["capability"].as_u64() {
        Some(90) => "8xh100",
        Some(100) => "8xb200",
        _ => "8xrtx-pro-6000",
    }
    .parse()
    .unwrap();
    let bytes = Logged::exact(question["gib"].as_u64().unwrap() << 30);
    let options = Options {
        version: Some("0.5.23".into()),
        devices: Some(device),
        cache_bytes: Some(bytes),
        ..Options::default()
    };
    let found = answer(&launch, model, &options).map_err(|error| error.to_string())?;
    if found.starts == Starts::No {
        return Err(found.reason.unwrap_or_default());
    }
    let of = |fact: Fact| found.facts.get(&fact).map(|number| number.low);
    Ok([of(Fact::Tokens), of(Fact::WindowTokens), of(Fact::StateSlots)])
}

#[test]
fn compressed_caches_have_the_pools_of_the_engine() {
    let oracles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let read = |name: &str| std::fs::read_to_string(oracles.join(name)).unwrap();
    let (questions, answers) = (read("oracles/compressed.sglang.jsonl"), read("oracles/sglang-0.5.23.compressed.txt"));
    assert_eq!(questions.lines().count(), answers.lines().count());
    let mut wrong = Vec::new();
    for (question, said) in questions.lines().zip(answers.lines()) {
        let parsed: Value = serde_json::from_str(question).unwrap();
        let config = read(&format!("configs/{}.json", parsed["model"].as_str().unwrap()));
        let model = Model::read_config("config.json", &config, &ReadOptions::default()).unwrap();
        let ours = answered(&parsed, model);
        let said: Value = serde_json::from_str(said).unwrap();
        let same = match &ours {
            Ok(ours) => *ours == ["tokens", "window", "slots"].map(|key| said[key].as_u64()),
            Err(_) => said.is_string(),
        };
        if !same {
            wrong.push(format!("{question}\n  {ours:?}\n  {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
