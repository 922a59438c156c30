//! What engines' own parsers and planners make of our exports, without the engines: for each config of the zoo the file
//! that is exported, and the answers that `cargo xtask oracle` got for it.
//!
//! SGLang says besides how it divides 20 GiB without our flags, to which its model is held.
//!
//! An export that is no longer the file which was asked about fails here; with `ASK_ANEW=1` the questions are written anew,
//! which then have to be asked.

use std::path::Path;

use cacheplan_planner::{Budget, CachePlan, EngineSpec, PlanError, PlanRequest, Serving};
use rstest::rstest;
use serde::Deserialize;
use serde_json::json;

use super::common::budget;
use super::oracles::{fixture, zoo};

const LENGTH: u64 = 4096;

/// A plan of 20 GiB, and what its export says.
struct Question {
    model: String,
    /// Sequences that the plan holds, and how many of them the export says the engine runs.
    sequences: u64,
    admits: Option<u64>,
    /// The concurrency that the export says will be logged, where it is less.
    logs: Option<f64>,
    /// Its file without comments.
    file: String,
    /// What the engine's model says of these bytes without any flag: tokens, tokens of windows, slots.
    divided: [Option<u64>; 3],
}

/// How SGLang divides 20 GiB, as far as it has such pools.
#[derive(Deserialize)]
struct Divided {
    admits: u64,
    tokens: Option<u64>,
    window: Option<u64>,
    slots: Option<u64>,
}

/// What an engine said of an export.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Admits(u64),
    Divided(Divided),
    Refused(String),
}

impl Question {
    /// The file is for `target`, which starts the engine.
    fn of(model: &str, engine: EngineSpec, target: &str) -> Option<Self> {
        let (read, told) = (zoo(model), twenty_gib());
        let resources = read.graph.clone().collect(&told.engine_context(&read.info, engine)).unwrap().resources;
        let plan = fitting(PlanRequest::of((read.info.clone(), resources.clone())).with_budget(told.clone()).plan())?;
        let serving = Serving { model: Some("MODEL".into()), ..Serving::default() };
        let export = plan.export(target.parse().unwrap(), Some(&engine.version_name()), &serving).ok()?;
        let lines = export.text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let file = lines.map(|line| format!("{line}\n")).collect();
        let said = export.not_expressed.iter().find_map(|said| said.split_once(" logs a concurrency of "));
        let logs = said.map(|(_, rest)| rest.split(' ').next().unwrap().parse().unwrap());
        let mut flagless = told;
        flagless.engine.prefix_caching = Some(false);
        let predicted =
            PlanRequest::of((read.info.clone(), resources.clone())).with_budget(flagless.clone()).predict(engine).ok();
        let divided = predicted.map(|it| [it.tokens, it.window_tokens, it.state_slots]).unwrap_or_default();
        let sequences = plan.capacity.sequences;
        Some(Self { model: model.to_owned(), sequences, admits: export.admits, logs, file, divided })
    }

    fn line(&self) -> String {
        json!({ "model": self.model, "sequences": self.sequences, "admits": self.admits, "file": self.file })
            .to_string()
    }
}

/// The budget of every plan whose export is asked about.
pub(super) fn twenty_gib() -> Budget {
    budget(&format!("max_seq_len = {LENGTH}\n[memory]\nbytes = \"20GiB\""))
}

/// None where not one sequence fits.
pub(super) fn fitting(planned: Result<CachePlan, PlanError>) -> Option<CachePlan> {
    match planned {
        Err(PlanError::DoesNotFit(_)) => None,
        planned => Some(planned.unwrap()),
    }
}

/// Defaults of a package's class, configs that were reconstructed with fewer keys than engines read, and DeepSeek-V4, whose file for
/// vLLM had another dtype when it was asked.
const NOT_ASKED: [&str; 6] = [
    "deepseek-ai__DeepSeek-V4",
    "sglang__",
    "thinkingmachines__Inkling",
    "transformers__",
    "vllm__",
    "zai-org__GLM-5.3-Flash",
];

pub(super) fn models() -> Vec<String> {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs");
    let paths = std::fs::read_dir(zoo).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = paths.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.retain(|name| !NOT_ASKED.iter().any(|not_asked| name.starts_with(not_asked)));
    names.sort();
    names
}

/// Models that the engine's package does not read from a config alone, whatever the file says: without code of their own
/// repositories, of a type that it does not have, or of a config in the zoo that is not whole.
const UNREAD: [&str; 12] = [
    "MiniMaxAI__MiniMax-M1-80k",
    "MiniMaxAI__MiniMax-M3",
    "MiniMaxAI__MiniMax-Text-01",
    "RWKV__rwkv-4-169m-pile",
    "Zyphra__Zamba2-7B",
    "google__recurrentgemma-2b",
    "ibm-fms__Bamba-9.8b-2.2T-hf",
    "microsoft__Phi-4-mini-flash-reasoning",
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1",
    "pfnet__plamo-2-8b",
    "state-spaces__mamba2-2.7b",
    "tencent__Hunyuan-A13B",
];

/// Configs in the zoo that are not whole, in whose place SGLang 0.5.23 takes numbers of its own.
const OTHERWISE_READ: [&str; 2] = ["ibm-granite__granite-4.0-h-350m", "nvidia__NVIDIA-Nemotron-3-Nano-4B"];

#[rstest]
#[case::vllm("vllm@0.33.0")]
#[case::sglang("sglang@0.5.23")]
fn every_export_of_the_zoo_is_admitted_by_its_engine_as_it_says(#[case] engine: EngineSpec) {
    let name = engine.engine.name();
    let questions = asked(engine, name);
    let answers: Vec<Answer> = fixture(&format!("{name}-{}.exports.txt", engine.version_name()))
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(questions.len(), answers.len());
    let wrong: Vec<String> =
        questions.iter().zip(&answers).filter_map(|(question, answer)| fault(question, answer)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), questions.len(), wrong.join("\n"));
    let refused = answers.iter().filter(|answer| matches!(answer, Answer::Refused(_))).count();
    assert!(refused <= UNREAD.len(), "{refused} refused");
}

/// Ray's own schemas of a deployment and of its models, and vLLM's of the arguments in it.
#[test]
fn every_file_of_the_zoo_for_ray_is_one_to_ray() {
    let questions = asked("vllm@0.33.0".parse().unwrap(), "ray");
    let answers = fixture("ray-2.60.0.exports.txt");
    assert_eq!(questions.len(), answers.lines().count());
    let refused: Vec<&str> = answers.lines().filter(|answer| *answer != "true").collect();
    assert!(questions.len() > 60 && refused.is_empty(), "{refused:#?}");
}

/// The questions to whom the files are for, which must be those that were asked.
fn asked(engine: EngineSpec, target: &str) -> Vec<Question> {
    let questions: Vec<Question> = models().iter().filter_map(|model| Question::of(model, engine, target)).collect();
    let lines: String = questions.iter().map(|question| question.line() + "\n").collect();
    let asked = format!("exports.{target}.jsonl");
    if std::env::var_os("ASK_ANEW").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/oracles").join(&asked);
        std::fs::write(path, &lines).unwrap();
    }
    assert!(fixture(&asked) == lines, "exports have changed; write {asked} with ASK_ANEW=1, and ask {target}");
    questions
}

/// Why an answer is not what the export says.
fn fault(question: &Question, answer: &Answer) -> Option<String> {
    let Question { model, sequences, admits, logs, divided, .. } = question;
    let admitted = match answer {
        Answer::Refused(why) => return (!UNREAD.contains(&model.as_str())).then(|| format!("{model}: {why}")),
        Answer::Admits(admitted) => *admitted,
        Answer::Divided(it) => {
            let same = [it.tokens, it.window, it.slots].iter().zip(divided).all(|(theirs, ours)| {
                theirs.is_none() || theirs == ours || it.slots.is_some() && *theirs == Some(LENGTH)
            });
            // Of what is read as another model, the plan's bytes hold fewer.
            if UNREAD.contains(&model.as_str()) || OTHERWISE_READ.contains(&model.as_str()) {
                return None;
            }
            if !same {
                return Some(format!("{model}: {:?} {:?} {:?}, ours {divided:?}", it.tokens, it.window, it.slots));
            }
            it.admits
        }
    };
    let said = admits.unwrap_or(*sequences).min(*sequences);
    let said = logs.map_or(said, |logs| logs as u64);
    (admitted * 100 < said * 99)
        .then(|| format!("{model}: {admitted} of {sequences}, said are {admits:?} and {logs:?}"))
}
