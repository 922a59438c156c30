//! Commands and what vLLM 0.33.0 made of them without a GPU: rows under `tests/fixtures/oracles`, made by
//! `cargo xtask oracle vllm-commands`.
//!
//! `COMMANDS=FOLDER cargo test -p cacheplan-serve --test vllm_commands` compares a larger set, `questions.jsonl` and `answers.jsonl` there,
//! and writes what differs to `differences.jsonl` beside them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Launch, Models, Options, Question, ServeError, Starts, outcome};
use cacheplan_transforms::{Model, ReadOptions};
use serde::Deserialize;
use serde_json::{Value, json};

/// A command, as the oracle was asked about it.
#[derive(Debug, Deserialize)]
struct Command {
    model: String,
    words: Vec<String>,
    devices: u32,
    bytes: u64,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// What an engine makes of a command.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    /// Its parser refuses it.
    Parser(String),
    /// It would not start.
    Refused(String),
    Starts(Numbers),
    /// Nobody knows.
    Unknown(String),
}

/// What it starts with; of a number that is not known none.
#[derive(Clone, Debug, Default, PartialEq)]
struct Numbers {
    length: Option<u64>,
    sequences: Option<u64>,
    step: Option<u64>,
    blocks: Option<u64>,
    tokens: Option<u64>,
}

impl Numbers {
    /// Whether they are the same where both are known; tokens but for the rounding of one.
    fn differ(&self, other: &Self) -> bool {
        let pairs = [
            (self.length, other.length),
            (self.sequences, other.sequences),
            (self.step, other.step),
            (self.blocks, other.blocks),
        ];
        pairs.into_iter().any(|pair| matches!(pair, (Some(one), Some(other)) if one != other))
            || matches!((self.tokens, other.tokens), (Some(one), Some(other)) if one.abs_diff(other) > 1)
    }
}

impl Verdict {
    fn class(&self) -> &'static str {
        match self {
            Self::Parser(_) => "parser",
            Self::Refused(_) => "refused",
            Self::Starts(_) => "starts",
            Self::Unknown(_) => "unknown",
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Parser(said) | Self::Refused(said) | Self::Unknown(said) => said.clone(),
            Self::Starts(numbers) => format!("{numbers:?}"),
        }
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// What vLLM answered.
fn theirs(answer: &Value) -> Verdict {
    let said = |key: &str| answer[key].as_str().map(str::to_owned);
    if let Some(said) = said("parser") {
        return Verdict::Parser(said);
    }
    if let Some(said) = said("refused") {
        return Verdict::Refused(said);
    }
    if answer["needed"].is_number() {
        return Verdict::Refused(format!("{} GiB are needed; {} tokens", answer["needed"], answer["longest"]));
    }
    if answer["ends"].is_number() {
        return Verdict::Parser("it prints something and ends".into());
    }
    let (values, plan) = (&answer["values"], &answer["plan"]);
    if let Some(why) = said("unplanned") {
        let refuses =
            ["ValueError", "AssertionError", "NotImplementedError"].iter().any(|error| why.starts_with(error));
        return if refuses { Verdict::Refused(why) } else { Verdict::Unknown(why) };
    }
    if plan.is_null() {
        return Verdict::Starts(Numbers::default());
    }
    Verdict::Starts(Numbers {
        length: plan[4].as_u64(),
        sequences: values[0].as_u64(),
        step: values[1].as_u64(),
        blocks: plan[0].as_u64(),
        tokens: plan[3].as_u64(),
    })
}

/// What is answered here.
fn ours(command: &Command) -> Verdict {
    let words = ["vllm", "serve", "model"].into_iter().map(str::to_owned).chain(command.words.iter().cloned());
    let launch = Launch { words: words.collect(), env: command.env.clone(), ..Launch::default() };
    let states_bytes = command.words.iter().any(|word| word.starts_with("--kv-cache-mem"));
    let options = Options {
        version: Some("0.33.0".into()),
        devices: Some(format!("{}xh100", command.devices).parse().unwrap()),
        cache_bytes: (!states_bytes).then_some(Logged::exact(command.bytes)),
        model_is_given: true,
        ..Options::default()
    };
    let found = Question::of(&launch, &options).and_then(|question| {
        let draft = question.draft.as_deref().and_then(|name| name.strip_prefix("config:")).map(config);
        let models = Models { draft: draft.map(Into::into), ..config(&command.model).into() };
        outcome(&launch, &models, &options)
    });
    match found {
        Err(error @ ServeError::Parser { .. }) => Verdict::Parser(error.to_string()),
        Err(error) if error.exit_code() == 3 => Verdict::Refused(error.to_string()),
        Err(error) => Verdict::Unknown(error.to_string()),
        Ok(answer) if answer.starts == Starts::No => Verdict::Refused(answer.reason.unwrap_or_default()),
        Ok(answer) => {
            let fact = |fact: Fact| answer.facts.get(&fact).filter(|of| of.low == of.high).map(|of| of.low);
            Verdict::Starts(Numbers {
                length: fact(Fact::MaxSeqLen),
                sequences: answer.limits.max_batch_size,
                step: Some(answer.limits.max_num_tokens),
                blocks: fact(Fact::NumBlocks),
                tokens: fact(Fact::Tokens),
            })
        }
    }
}

/// Why an answer of either says nothing of the other: in which of them words are, and which.
const BESIDE: [(bool, &str, &str); 10] = [
    (true, "Arctic Inference is required", "a package that is not installed"),
    (true, "Failed to import Ray", "a package that is not installed"),
    (true, "hpc module", "a package that is not installed"),
    (true, "No module named", "a module of the user's"),
    (true, "failed to tokenize", "a tokenizer that is not here"),
    (true, "the process ended", "the oracle's process ended"),
    (false, "exceeds available Mamba cache blocks", "only a worker looks at it"),
    (false, "CUDA out of memory", "only a worker looks at it"),
    (false, "Load format", "only a worker looks at it"),
    (false, "prefix_cache_retention_interval", "only the scheduler looks at it"),
];

/// Why a question is none for both.
fn beside(command: &Command, theirs: &Verdict, ours: &Verdict) -> Option<&'static str> {
    let says = |(of_theirs, words, _): &&(bool, &str, &str)| {
        let said = if *of_theirs { theirs.text() } else { ours.text() };
        said.contains(words)
    };
    let sees_none = command.env.get("CUDA_VISIBLE_DEVICES").is_some_and(String::is_empty);
    let found = BESIDE.iter().find(says).map(|(_, _, why)| *why);
    let found = found.or(sees_none.then_some("the oracle's GPUs are not looked for"));
    // One device stands for as many as the command takes.
    let one = command.devices == 1 && theirs.text().contains("World size");
    found.or(one.then_some("one device is a kind of device, whatever their number"))
}

fn config(name: &str) -> Model {
    let path = fixtures().join(format!("configs/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Model::read_config("config.json", &text, &ReadOptions::default()).unwrap()
}

/// All of the sample are the same but for those that `commands.rest.txt` lists with their reasons, which starts with the numbers of both:
/// run with `COMMANDS=WRITE` it is written anew.
#[test]
fn commands_start_as_the_engine_starts_them() {
    let rows = |name: &str| std::fs::read_to_string(fixtures().join("oracles").join(name)).unwrap();
    let (questions, answers) = (rows("commands.jsonl"), rows("vllm-0.33.0.commands.jsonl"));
    assert_eq!(questions.lines().count(), answers.lines().count());
    let rows: Vec<(&str, &str)> = questions.lines().zip(answers.lines()).collect();
    let (mut rest, mut same, mut counted) = (Vec::new(), 0, BTreeMap::new());
    for line in differences(&rows).lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        if row["same"] == true {
            same += 1;
            *counted.entry(text("theirs").to_owned()).or_insert(0) += 1;
            continue;
        }
        let question = &row["question"];
        let words =
            question["words"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
        let env = question["env"].as_object().map(|env| format!("{} ", Value::from(env.clone()))).unwrap_or_default();
        let model = question["model"].as_str().unwrap_or_default();
        let why = row["beside"].as_str().map_or_else(|| why(text("theirs"), text("ours")), str::to_owned);
        rest.push(format!("{why}: {env}{model} {words}"));
    }
    rest.sort();
    let counts = counted.iter().map(|(class, count)| format!("{class} {count}")).collect::<Vec<_>>().join(", ");
    let head = format!("{} asked, {same} the same: {counts}", rows.len());
    let found = format!("{head}\n{}\n", rest.join("\n"));
    let path = fixtures().join("oracles/commands.rest.txt");
    if std::env::var_os("COMMANDS").is_some_and(|word| word == "WRITE") {
        std::fs::write(&path, found).unwrap();
        return;
    }
    assert_eq!(found, std::fs::read_to_string(path).unwrap());
}

/// Why answers differ, by what each is.
fn why(theirs: &str, ours: &str) -> String {
    match (theirs, ours) {
        (_, "unknown") => "not planned, and said so",
        ("unknown", _) => "only code of the GPU says it",
        ("parser" | "refused", "parser" | "refused") => "refused by the other of parser and configuration",
        ("starts", _) => "refused here alone",
        _ => "refused there alone",
    }
    .to_owned()
}

#[test]
fn larger_sets_are_compared() {
    let folder = std::env::var_os("COMMANDS").filter(|word| word != "WRITE").map(PathBuf::from);
    let Some(folder) = folder else { return };
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let (questions, answers) = (read("questions.jsonl"), read("answers.jsonl"));
    let rows: Vec<(&str, &str)> = questions.lines().zip(answers.lines()).collect();
    let parts: Vec<String> = std::thread::scope(|scope| {
        let threads = rows.chunks(rows.len().div_ceil(2).max(1)).map(|part| scope.spawn(|| differences(part)));
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    std::fs::write(folder.join("differences.jsonl"), parts.concat()).unwrap();
}

fn differences(rows: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (question, answer) in rows {
        let command: Command = serde_json::from_str(question).unwrap();
        let (theirs, ours) = (theirs(&serde_json::from_str(answer).unwrap()), ours(&command));
        let differ = match (&theirs, &ours) {
            (Verdict::Starts(theirs), Verdict::Starts(ours)) => theirs.differ(ours),
            (theirs, ours) => theirs.class() != ours.class(),
        };
        let row = json!({
            "same": !differ,
            "beside": differ.then(|| beside(&command, &theirs, &ours)).flatten(),
            "theirs": theirs.class(),
            "ours": ours.class(),
            "question": serde_json::from_str::<Value>(question).unwrap(),
            "said": theirs.text(),
            "here": ours.text(),
        });
        writeln!(out, "{row}").unwrap();
    }
    out
}
