//! What stands above a command: keys of the budget that no command line says, and what was measured.

use cacheplan_planner::engines::FlagMeaning;
use cacheplan_planner::{Config, Memory, Override};

use super::Question;
use crate::error::ServeError;
use crate::flags::meaning::{Meaning, meaning};
use crate::flags::table::{Flag, flags};

/// What is beside caches on a device, which all engines leave room for.
const BESIDE_CACHES: [&str; 5] =
    ["memory.weights", "memory.activations", "memory.context", "memory.graphs", "memory.reserve"];
/// What else a command line does not say: how long sequences really are, and what its engine finds out.
const OTHERS: [&str; 5] = [
    "workload.prompt",
    "workload.output",
    "speculation.draft_weights",
    "engine.cache_bytes",
    "engine.compute_capability",
];

/// Refuses what stands above a command and nothing would consume, by its flag.
///
/// # Errors
/// The first such key, with the flag of the engine that says the same where there is one.
pub(super) fn refuse_unconsumed(question: &Question) -> Result<(), ServeError> {
    let engine = question.engine.engine;
    for stated in &question.above {
        let why = match &*stated.key {
            key if BESIDE_CACHES.contains(&key) => nothing_depends(question),
            "speculation.draft_weights" => {
                (!question.stated.iter().any(|stated| stated.key == "speculation.draft_tokens"))
                    .then(|| "the command drafts nothing".to_owned())
            }
            "engine.cache_bytes" if engine.name() == "llama.cpp" => {
                Some("llama.cpp allocates the cells that it is told".to_owned())
            }
            "engine.compute_capability" if engine.name() != "vllm" => Some(format!("no rule of {engine} asks for it")),
            "memory.fraction" | "memory.of" if engine.name() == "llama.cpp" => {
                Some("llama.cpp asks for no share of a device; name what is free of it with --device".to_owned())
            }
            key if OTHERS.contains(&key) => None,
            key => Some(match said_by(question, key) {
                Some(flag) => format!("the command says that itself: {}", flag.name),
                None => "it is about a plan of our own, and a command has no such setting".to_owned(),
            }),
        };
        if let Some(why) = why {
            return Err(ServeError::Unconsumed { flag: flag_of(stated), why });
        }
    }
    match question.measured.as_ref().and_then(|_| nothing_depends(question)) {
        Some(why) => Err(ServeError::Unconsumed { flag: "--measured".into(), why }),
        None => Ok(()),
    }
}

/// Lines of a device stand beside what they are taken from, also where the command states what caches take of it.
pub(super) fn beside_stated_bytes(question: &mut Question) {
    let states_lines = question.above.iter().any(|stated| BESIDE_CACHES.contains(&&*stated.key));
    if states_lines && question.is_stated("engine.cache_bytes") && !question.is_stated("memory.fraction") {
        question.share_of_device(1.0);
        question.default_of("memory.of", "total");
    }
}

/// Takes what stands above a command of these keys of memory out of its question.
pub(super) fn taken(question: &mut Question, takes: impl Fn(&str) -> bool) -> Result<Memory, ServeError> {
    let (taken, above): (Vec<Override>, Vec<Override>) =
        std::mem::take(&mut question.above).into_iter().partition(|stated| takes(&stated.key));
    question.above = above;
    if taken.is_empty() {
        return Ok(Memory::default());
    }
    // Lines stand beside what they are taken from.
    let whole = [("memory.fraction", "1"), ("memory.of", "total")];
    let whole = whole.map(|(key, value)| Override::by_argument(key, value, key));
    Ok(Config::resolve(None, &whole, &taken)?.budget.memory.unwrap_or_default())
}

fn flag_of(stated: &Override) -> String {
    stated.stated_by().unwrap_or(&stated.key).to_owned()
}

/// Nothing depends on what is beside caches whose bytes whoever asks knows, or no device has; those that a command takes of a device must
/// be left there.
fn nothing_depends(question: &Question) -> Option<String> {
    if question.engine.engine.name() == "llama.cpp" && question.devices.is_none() {
        return Some("no device is named that it would be on; name it with --device".to_owned());
    }
    let own = question.stated.iter().filter(|_| question.device().is_none());
    let stated = own.chain(&question.above).find(|stated| stated.key == "engine.cache_bytes")?;
    Some(format!("{} states the bytes for caches, and nothing else depends on it", flag_of(stated)))
}

/// The flag of the engine that says this key.
fn said_by(question: &Question, key: &str) -> Option<&'static Flag> {
    let engine = question.engine;
    let says = |flag: &&Flag| {
        let of_plans = |name: &str| engine.engine.meaning_of(name.trim_start_matches('-'));
        let is = |said: FlagMeaning| match said {
            FlagMeaning::Key(path) | FlagMeaning::NotKey(path) | FlagMeaning::DType { path, .. } => path == key,
            _ => false,
        };
        match meaning(engine.engine, flag) {
            Meaning::Key(path) => path == key,
            Meaning::Planner(said) => is(said),
            _ => flag.names().filter_map(of_plans).any(is),
        }
    };
    flags(engine.engine, engine.version).into_iter().find(says)
}
