//! What engines' own planners answered, without the engines: rows under `tests/fixtures/oracles`, made by
//! `cargo xtask oracle`.

use std::path::Path;

use cacheplan_planner::engines::EnginePrediction;
use cacheplan_planner::{Budget, ByteSize, EngineSpec, PlanError, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::common::budget;

/// A question and its answer in one line.
#[derive(Deserialize)]
struct Row {
    #[serde(flatten)]
    question: Question,
    answer: Answer,
}

/// What an engine's planner was asked.
#[derive(Deserialize)]
struct Question {
    model: String,
    /// The layers that the model has: from the first number to before the second.
    layers: Option<[usize; 2]>,
    /// Keys of the config that were changed.
    #[serde(default)]
    changes: Map<String, Value>,
    flags: Flags,
    bytes: u64,
    /// Of the GPU, times ten; 90 where absent.
    capability: Option<u32>,
}

/// What vLLM was told.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Flags {
    max_model_len: u64,
    /// Asked both ways where absent.
    enable_prefix_caching: Option<bool>,
    max_num_batched_tokens: Option<u64>,
    block_size: Option<u64>,
    kv_cache_dtype: Option<String>,
    mamba_ssm_cache_dtype: Option<String>,
    speculative_config: Option<Drafts>,
    tensor_parallel_size: Option<u32>,
    pipeline_parallel_size: Option<u32>,
    async_scheduling: Option<bool>,
    disable_hybrid_kv_cache_manager: Option<bool>,
    mamba_cache_mode: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Drafts {
    method: String,
    num_speculative_tokens: u32,
}

/// What its planner said; `layers` is for people.
#[derive(Debug, Deserialize)]
struct Answer {
    blocks: u64,
    groups: u64,
    block: u64,
    tokens: u64,
}

/// What it said of bytes that do not hold one sequence.
#[derive(Clone, Copy, Debug)]
struct TooFew {
    needed_gib: f64,
    /// The longest sequence that they hold; 0 where it says none.
    longest: u64,
}

impl TooFew {
    fn parse(text: &str) -> Option<Self> {
        let (needed, longest) = text.strip_prefix("! ")?.split_once(' ')?;
        Some(Self { needed_gib: needed.parse().unwrap(), longest: longest.parse().unwrap() })
    }

    /// What differs: bytes but for the last digit that is printed, and one percent.
    fn difference(self, ours: Result<EnginePrediction, PlanError>) -> Option<String> {
        let short = match ours {
            Err(PlanError::DoesNotFit(short)) => short,
            other => return Some(format!("{self:?}, ours {other:?}")),
        };
        let needed = short.needed as f64 / f64::from(1 << 30);
        let longest =
            short.suggestions.first().map_or(0, |longest| longest.change.rsplit(' ').next().unwrap().parse().unwrap());
        let same = (needed - self.needed_gib).abs() <= 0.005 + 0.01 * self.needed_gib && longest == self.longest;
        (!same).then(|| format!("{self:?}, ours {needed} GiB and {longest}"))
    }
}

impl Answer {
    /// Four numbers in their order; `-` where the engine refuses the model or a flag.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { blocks: next()?, groups: next()?, block: next()?, tokens: next()? })
    }
}

pub(super) fn fixture(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/oracles").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(super) fn lines<T: for<'a> Deserialize<'a>>(text: &str) -> Vec<T> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// A config of the zoo.
pub(super) fn zoo(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/fixtures/configs/{name}.json"));
    Model::read(&path, &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// The config of a model of the zoo or of a folder beside it; `transformers:` stands before a class whose defaults it is.
fn config(name: &str) -> String {
    let Some(class) = name.strip_prefix("transformers:") else { return fixture(&format!("../configs/{name}.json")) };
    let table = fixture("../transformers/parameters.tsv");
    let mut rows = table.lines().map(|row| row.split('\t').collect::<Vec<_>>());
    rows.find(|row| row[0] == class && row[2] != "-").unwrap_or_else(|| panic!("no class {class}"))[2].to_owned()
}

/// The model of a question: a config, with what the question changes.
fn model(question: &Question) -> Model {
    // Python writes infinity, which is no JSON; no cache depends on it.
    let text = config(&question.model).replace("Infinity", "1e300");
    let mut config: Value = serde_json::from_str(&text).unwrap();
    if let Some([first, end]) = question.layers {
        cut(&mut config, first, end);
    }
    for (path, value) in &question.changes {
        let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
        let section = if section.is_empty() { String::new() } else { format!("/{}", section.replace('.', "/")) };
        config.pointer_mut(&section).unwrap()[key] = value.clone();
    }
    let read = Model::read_config("config.json", &config.to_string(), &ReadOptions::default());
    read.unwrap_or_else(|error| panic!("{}: {error}", question.model))
}

/// Keeps some of the layers, as the script does that asks: of what has an element or a letter for each of them, those.
fn cut(config: &mut Value, first: usize, end: usize) {
    let nested = config.get("text_config").is_some_and(Value::is_object);
    let section = if nested { &mut config["text_config"] } else { config };
    let layers = section["num_hidden_layers"].as_u64().unwrap() as usize;
    for value in section.as_object_mut().unwrap().values_mut() {
        match value {
            Value::Array(list) if list.len() == layers => *list = list[first..end].to_vec(),
            Value::String(text) if text.chars().count() == layers => {
                *text = text.chars().skip(first).take(end - first).collect();
            }
            _ => {}
        }
    }
    section["num_hidden_layers"] = (end - first).into();
    // Where layers are listed by number, those that are gone count for nothing.
    if let Some(Value::Array(numbers)) = section.get_mut("full_attn_idxs") {
        numbers.retain(|number| number.as_u64().is_some_and(|number| number < (end - first) as u64));
    }
    // transformers makes the last layer of Gemma 4 one of full attention, as those of every published config are.
    if section["model_type"] == "gemma4_text" {
        section["layer_types"][end - first - 1] = "full_attention".into();
    }
}

fn told(question: &Question, caching: bool) -> Budget {
    let flags = &question.flags;
    let mut told = budget("");
    told.max_seq_len = Some(flags.max_model_len);
    told.max_num_tokens = flags.max_num_batched_tokens;
    told.dtypes.kv = flags.kv_cache_dtype.as_ref().map(|dtype| dtype.parse().unwrap());
    told.dtypes.ssm = flags.mamba_ssm_cache_dtype.as_ref().map(|dtype| dtype.parse().unwrap());
    told.engine.cache_bytes = Some(ByteSize(question.bytes));
    told.engine.prefix_caching = Some(caching);
    told.engine.block_size = flags.block_size;
    told.engine.compute_capability = question.capability;
    told.parallel.tp = flags.tensor_parallel_size.unwrap_or(1);
    told.parallel.pp = flags.pipeline_parallel_size.unwrap_or(1);
    told.engine.async_scheduling = flags.async_scheduling;
    told.engine.hybrid_kv_cache = flags.disable_hybrid_kv_cache_manager.map(|off| !off);
    let mode = flags.mamba_cache_mode.as_ref().map(|mode| serde_json::from_value(mode.as_str().into()).unwrap());
    told.engine.mamba_cache_mode = mode;
    if let Some(drafts) = &flags.speculative_config {
        let layers = u32::from(drafts.method == "mtp");
        let text = format!("[speculation]\ndraft_tokens = {}\nmtp_layers = {layers}", drafts.num_speculative_tokens);
        told.speculation = budget(&text).speculation;
    }
    told
}

fn predicted(model: &Model, budget: &Budget, engine: EngineSpec) -> Result<EnginePrediction, PlanError> {
    let context = budget.engine_context(&model.info, engine);
    let resources = model.graph.clone().collect(&context).unwrap().resources;
    PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone()).predict(engine)
}

/// What differs from the answer.
fn difference(model: &Model, budget: &Budget, engine: EngineSpec, answer: &Answer) -> Option<String> {
    match predicted(model, budget, engine) {
        Ok(ours) => {
            let same = ours.num_blocks == Some(answer.blocks)
                && ours.groups == Some(answer.groups)
                && ours.block_size == Some(answer.block)
                && ours.tokens.is_some_and(|tokens| tokens.abs_diff(answer.tokens) <= 1);
            let ours = (ours.num_blocks, ours.groups, ours.block_size, ours.tokens, ours.blocks_per_request);
            (!same).then(|| format!("{answer:?}, ours {ours:?}"))
        }
        Err(error) => Some(error.to_string()),
    }
}

/// vLLM gives every head of Zamba2 a key and a value, but aligns its block as if there were as many as the config states:
/// fewer in two rows, and in no published config.
fn is_known_to_differ(question: &Question) -> bool {
    let is_row = question.changes.get("mamba_d_state").is_some_and(|state| *state == 16);
    is_row && question.model == "Zyphra__Zamba2-2.7B" && question.changes.contains_key("num_key_value_heads")
}

/// The config in the zoo does not say which layer is what, where vLLM takes an order of its own.
const NOT_WHOLE: &str = "nvidia__NVIDIA-Nemotron-3-Nano-4B";

/// How many answers there were, and which of them differ.
#[derive(Debug, Default)]
struct Held {
    answers: usize,
    wrong: Vec<String>,
}

impl Held {
    fn to(&mut self, question: &Question, model: &Model, caching: bool, engine: EngineSpec, answer: &Answer) {
        self.answers += 1;
        let difference = difference(model, &told(question, caching), engine, answer);
        if let Some(difference) = difference.filter(|_| !is_known_to_differ(question)) {
            let Question { model, layers, changes, flags, .. } = question;
            self.wrong.push(format!("{model} {layers:?} {changes:?} {flags:?} cached {caching}: {difference}"));
        }
    }

    fn end(&self) {
        assert!(self.wrong.is_empty(), "{} of {}:\n{}", self.wrong.len(), self.answers, self.wrong.join("\n"));
    }
}

/// A number as the docs write it.
pub(super) fn written(number: usize) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
}

/// The docs state what was counted here.
pub(super) fn docs_state(sentence: &str) {
    let docs = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/engines.md")).unwrap();
    let docs = docs.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(docs.contains(sentence), "docs/engines.md does not say `{sentence}`");
}

#[test]
fn vllm_0_33_0_plans_as_its_model_says() {
    let engine: EngineSpec = "vllm@0.33.0".parse().unwrap();
    let rows: Vec<Row> = lines(&fixture("vllm-0.33.0.jsonl"));
    let mut held = Held::default();
    for Row { question, answer } in &rows {
        held.to(question, &model(question), question.flags.enable_prefix_caching.unwrap(), engine, answer);
    }
    held.end();
    assert_eq!(rows.iter().filter(|row| is_known_to_differ(&row.question)).count(), 2);
    docs_state(&format!("two of its {} differ", rows.len()));
}

/// Every config of the zoo and a thousand random hybrids, each with prefix caching off and on. A table in the docs has the
/// counts.
#[rstest]
fn every_version_of_vllm_that_was_asked_plans_as_its_model_says(
    #[values("0.32.0", "0.33.0")] version: &str,
    #[values("zoo", "random")] set: &str,
    #[values(false, true)] caching: bool,
) {
    let engine: EngineSpec = format!("vllm@{version}").parse().unwrap();
    let questions: Vec<Question> = lines(&fixture(&format!("{set}.jsonl")));
    let answers = fixture(&format!("vllm-{version}.{set}.txt"));
    assert_eq!(questions.len(), answers.lines().count());
    let (mut held, mut answered) = (Held::default(), 0);
    for (question, answers) in questions.iter().zip(answers.lines()) {
        let mut answers = answers.split(", ").map(Answer::parse);
        let Some(answer) = answers.nth(usize::from(caching)).flatten() else { continue };
        answered += 1;
        if question.model != NOT_WHOLE {
            held.to(question, &model(question), caching, engine, &answer);
        }
    }
    held.end();
    assert!(held.answers * 100 >= answered * 98, "{} of {answered}", held.answers);
    let [asked, answered, equal] = [questions.len(), answered, held.answers].map(written);
    let caching = if caching { "on" } else { "off" };
    docs_state(&format!("| {version} | {set} | {caching} | {asked} | {answered} | {equal} |"));
}

/// The configs beside the zoo, and the defaults of transformers' classes, as far as it loads them.
#[rstest]
#[case("models")]
#[case("classes")]
fn vllm_plans_what_is_beside_the_zoo_as_its_model_says(#[case] set: &str) {
    let engine: EngineSpec = "vllm@0.33.0".parse().unwrap();
    let questions: Vec<Question> = lines(&fixture(&format!("{set}.jsonl")));
    let answers = fixture(&format!("vllm-0.33.0.{set}.txt"));
    assert_eq!(questions.len(), answers.lines().count());
    let (mut answered, mut differ) = (0, Vec::new());
    for (question, answers) in questions.iter().zip(answers.lines()) {
        for (answer, caching) in answers.split(", ").zip([false, true]) {
            let difference = match (Answer::parse(answer), TooFew::parse(answer)) {
                (Some(answer), _) => difference(&model(question), &told(question, caching), engine, &answer),
                (None, Some(too_few)) => {
                    too_few.difference(predicted(&model(question), &told(question, caching), engine))
                }
                (None, None) => {
                    assert_eq!(answer, "-", "{}", question.model);
                    continue;
                }
            };
            answered += 1;
            differ.extend(difference.map(|why| (question.model.as_str(), why)));
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
    let [asked, answered] = [2 * questions.len(), answered].map(written);
    docs_state(&format!("| 0.33.0 | {set} | both | {asked} | {answered} | {answered} |"));
}

/// What is rare: stages of a pipeline, prediction heads, too few bytes, flags that turn the usual off; and a Blackwell GPU.
/// Both ways, of every answer.
#[rstest]
#[case("edges", None)]
#[case("blackwell", Some(100))]
fn vllm_plans_as_its_model_says_at_the_edges(#[case] set: &str, #[case] capability: Option<u32>) {
    let engine: EngineSpec = "vllm@0.33.0".parse().unwrap();
    let questions: Vec<Question> = lines(&fixture(&format!("{set}.jsonl")));
    let answers = fixture(&format!("vllm-0.33.0.{set}.txt"));
    assert_eq!(questions.len(), answers.lines().count());
    let (mut asked, mut refused, mut wrong) = (0, 0, Vec::new());
    for (question, answers) in questions.iter().zip(answers.lines()) {
        let stated = question.flags.enable_prefix_caching;
        let both = if stated.is_some() { vec![stated.unwrap()] } else { vec![false, true] };
        assert_eq!(answers.split(", ").count(), both.len(), "{answers}");
        for (answer, caching) in answers.split(", ").zip(both) {
            asked += 1;
            if differs_at_an_edge(question, capability) {
                continue;
            }
            let mut budget = told(question, caching);
            budget.engine.compute_capability = capability;
            let model = model(question);
            let difference = match (Answer::parse(answer), TooFew::parse(answer)) {
                (Some(answer), _) => difference(&model, &budget, engine, &answer),
                (None, Some(too_few)) => too_few.difference(predicted(&model, &budget, engine)),
                // What it refuses without a number is refused, unless it does not know the model at all.
                (None, None) => {
                    refused += 1;
                    let ours = predicted(&model, &budget, engine);
                    let known = !NOT_IN_THE_PACKAGE.contains(&question.model.as_str());
                    (known && !matches!(ours, Err(PlanError::Engine(_)))).then(|| format!("it refuses, ours {ours:?}"))
                }
            };
            wrong
                .extend(difference.map(|it| format!("{} {:?} cached {caching}: {it}", question.model, question.flags)));
        }
    }
    assert!(wrong.is_empty(), "{} of {asked}:\n{}", wrong.len(), wrong.join("\n"));
    let differ = questions.iter().filter(|question| differs_at_an_edge(question, capability)).count() * 2;
    let [asked, refused, equal] = [asked, refused, asked - refused - differ].map(written);
    docs_state(&format!("| {set} | {asked} | {refused} | {equal} |"));
}

/// vLLM gives the layers that do not divide evenly to the middle stages, our plans to the first; and with a block that
/// FlashInfer does not read it halves the one of windows of heads of 256 alone.
fn differs_at_an_edge(question: &Question, capability: Option<u32>) -> bool {
    let flags = &question.flags;
    let uneven = question.model == "LiquidAI__LFM2-1.2B" && flags.pipeline_parallel_size == Some(3);
    let halved = question.model == "google__gemma-3-1b-it" && capability == Some(100) && flags.block_size == Some(48);
    uneven || halved
}

/// Models of the zoo whose code is not in the engine's package.
const NOT_IN_THE_PACKAGE: [&str; 2] = ["ibm-fms__Bamba-9.8b-2.2T-hf", "MiniMaxAI__MiniMax-Text-01"];
