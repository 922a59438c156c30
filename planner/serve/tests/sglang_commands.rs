//! Commands as SGLang's own parser, checks and pools take them, without it: `tests/fixtures/oracles`, by
//! `cargo xtask oracle sglang-commands`.

use std::collections::BTreeMap;
use std::path::Path;

use cacheplan_planner::Devices;
use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Answer, Launch, Models, Options, Starts, answer, request};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Deserialize)]
struct Question {
    model: String,
    words: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    devices: Option<u32>,
    device: Option<String>,
}

/// What a command comes to.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// The parser refuses it.
    Parser,
    /// The engine refuses it.
    Refuses,
    /// Numbers by their names.
    Starts(BTreeMap<String, u64>),
    /// Nobody planned for it.
    NotPlanned,
}

const GIB: u64 = 20;

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// As the engine was asked about it: how weights are stored decides kernels that were not there.
fn model(name: &str) -> Model {
    let mut config: Map<String, Value> = serde_json::from_str(&fixture(&format!("configs/{name}.json"))).unwrap();
    config.remove("quantization_config");
    Model::read_config("config.json", &Value::Object(config).to_string(), &ReadOptions::default()).unwrap()
}

impl Question {
    fn ours(&self) -> (Verdict, String) {
        let draft = self.words.iter().find_map(|word| word.strip_prefix("DRAFT:"));
        let start = "python -m sglang.launch_server --model-path m".split(' ');
        let words =
            start.chain(self.words.iter().map(|word| if word.starts_with("DRAFT:") { "d" } else { word.as_str() }));
        let launch = Launch { words: words.map(str::to_owned).collect(), env: self.env.clone(), ..Launch::default() };
        let device = format!("{}x{}", self.devices.unwrap_or(1), self.device.as_deref().unwrap_or("h100"));
        let shared = Options {
            version: Some("0.5.23".into()),
            devices: Some(device.parse::<Devices>().unwrap()),
            ..Options::default()
        };
        let options = Options { cache_bytes: Some(Logged::exact(GIB << 30)), ..shared.clone() };
        let models = Models { model: model(&self.model).into(), draft: draft.map(|name| model(name).into()) };
        match answer(&launch, models.clone(), &options) {
            Err(error) => {
                let verdict = match error.exit_code() {
                    2 => Verdict::Parser,
                    3 => Verdict::Refuses,
                    _ => Verdict::NotPlanned,
                };
                (verdict, error.to_string())
            }
            // It starts all the same, and refuses each sequence of that length.
            Ok(found) if found.starts == Starts::No && found.sequences.is_none() => {
                (Verdict::Refuses, found.reason.unwrap_or_default())
            }
            Ok(found) => {
                let mut numbers = numbers(&found);
                numbers.extend(share(&launch, &models, &shared).map(|share| ("share".to_owned(), share)));
                (Verdict::Starts(numbers), String::new())
            }
        }
    }
}

/// Millionths of the device for weights and caches, where the bytes of these are not stated.
fn share(launch: &Launch, models: &Models, options: &Options) -> Option<u64> {
    let (_, request) = request(launch, models, options).ok()?;
    let fraction = request.config().budget.memory.as_ref()?.fraction?;
    Some((f64::from(fraction) * 1e6).round() as u64)
}

fn numbers(found: &Answer) -> BTreeMap<String, u64> {
    let facts = [
        ("context", Fact::MaxSeqLen),
        ("tokens", Fact::Tokens),
        ("window", Fact::WindowTokens),
        ("slots", Fact::StateSlots),
        ("running", Fact::MaxBatchSize),
        ("page", Fact::TokensPerBlock),
        ("chunk", Fact::MaxNumTokens),
    ];
    facts.iter().filter_map(|(name, fact)| Some(((*name).to_owned(), found.facts.get(fact)?.low))).collect()
}

/// Whether both come to the same; numbers that one of them does not say do not count.
fn same(ours: &Verdict, said: &Verdict) -> bool {
    match (ours, said) {
        (Verdict::Starts(ours), Verdict::Starts(said)) => {
            // A share is rounded on its way.
            let near = |name: &str, found: u64, number: u64| found.abs_diff(number) <= u64::from(name == "share");
            said.iter().all(|(name, number)| ours.get(name).is_none_or(|found| near(name, *found, *number)))
        }
        _ => ours == said,
    }
}

fn verdict(said: &Map<String, Value>) -> Verdict {
    if said.contains_key("parser") {
        return Verdict::Parser;
    }
    if said.contains_key("refuses") {
        return Verdict::Refuses;
    }
    // A prompt that is not cut has no chunk.
    let numbers =
        said.iter().filter_map(|(name, value)| Some((name.clone(), value.as_u64().filter(|number| *number > 0)?)));
    Verdict::Starts(numbers.collect())
}

/// What is said otherwise, by a part of what either says, and why.
const OTHERWISE: [(&str, &str); 9] = [
    ("must not be negative", "numbers below nothing are refused, also where it takes them and nothing reads them"),
    ("does not divide tp", "it makes the groups of ranks behind what was asked, and finds none there"),
    ("mem_fraction_static must be between 0 and 1", "its bytes were stated; of no share it has none"),
    ("FlashInfer mamba module not available", "a package that was not where it was asked"),
    ("Minimum capability", "raised as weights are loaded, for which it was not asked"),
    ("FlashAttention v3 Backend requires SM", "raised as kernels are made, for which it was not asked"),
    ("backend can only be used with MLA models", "raised as kernels are made, for which it was not asked"),
    ("MiniMaxAI__MiniMax-M3", "the file names a class that it has by another name"),
    ("SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "buffers of experts on AMD's GPUs were not read"),
];

/// Commands of a file: how many are equal and how many not planned, and those that differ.
fn asked(name: &str) -> (usize, usize, Vec<String>) {
    let (questions, answers) =
        (fixture(&format!("oracles/{name}.sglang.jsonl")), fixture(&format!("oracles/sglang-0.5.23.{name}.txt")));
    assert_eq!(questions.lines().count(), answers.lines().count());
    let (mut equal, mut not_planned, mut differ) = (0, 0, Vec::new());
    for (question, said) in questions.lines().zip(answers.lines()) {
        let question: Question = serde_json::from_str(question).unwrap();
        let said: Map<String, Value> = serde_json::from_str(said).unwrap();
        let (ours, why) = question.ours();
        if ours == Verdict::NotPlanned {
            not_planned += 1;
        } else if same(&ours, &verdict(&said)) {
            equal += 1;
        } else {
            let Question { model, words, env, devices, device } = question;
            let said = Value::Object(said);
            differ
                .push(format!("{model} {device:?} {devices:?} {env:?} {words:?}\n  it {said}\n  ours {ours:?} {why}"));
        }
    }
    (equal, not_planned, differ)
}

#[rstest]
#[case::any_flags("commands")]
#[case::usual_flags_on_devices("devices")]
fn commands_come_to_what_the_engine_makes_of_them(#[case] name: &str) {
    let (found, unplanned, mut differ) = asked(name);
    let all = found + unplanned + differ.len();
    differ.retain(|text| !OTHERWISE.iter().any(|(part, _)| text.contains(part)));
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
    let docs = fixture("../../docs/engines.md");
    let row = format!("{all} commands: {found} equal, {unplanned} not planned");
    assert!(docs.contains(&row), "docs/engines.md does not say `{row}`");
}

/// Each reason for a difference still stands for one.
#[test]
fn reasons_for_differences_are_of_some() {
    let differ: Vec<String> = ["commands", "devices"].into_iter().flat_map(|name| asked(name).2).collect();
    for (part, why) in OTHERWISE {
        assert!(differ.iter().any(|text| text.contains(part)), "nothing is said otherwise because {why}");
    }
}
