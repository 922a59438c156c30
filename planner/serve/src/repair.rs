//! Changes to a command by which it starts or holds more, each of them asked anew.

use cacheplan_planner::logs::Fact;

use crate::answer::{Answer, Change, Starts};
use crate::error::ServeError;
use crate::flags::meaning::{Meaning, meaning};
use crate::flags::parse::parse;
use crate::flags::table::flags;
use crate::found::{answer_alone, longest};
use crate::launch::Launch;
use crate::program::Program;
use crate::question::{Models, Options, Question};
use crate::remedy::Remedy;

/// The most changed commands that are tried.
const MOST_TRIES: usize = 60;
/// The most changes in one of them.
const DEEPEST: usize = 4;
const SHOWN: usize = 3;

/// What a command would do with its models.
///
/// # Errors
/// What the engine's parser or the engine refuses, what nobody read, and a model that the planner refuses.
pub fn answer(launch: &Launch, models: impl Into<Models>, options: &Options) -> Result<Answer, ServeError> {
    let models = models.into();
    let mut answer = answer_alone(launch, &models, options)?;
    answer.changes = changes(&answer, launch, &models, options);
    Ok(answer)
}

/// The nearest command to one that has no answer, or would not start, that starts; none where nothing that was tried does.
pub fn repaired(launch: &Launch, models: &Models, options: &Options) -> Option<(Launch, Answer)> {
    let mut tried = 0;
    let mut front = vec![launch.clone()];
    for _ in 0..DEEPEST {
        let mut next = Vec::new();
        for launch in front {
            for changed in remedied(&launch, models, options) {
                tried += 1;
                if tried > MOST_TRIES {
                    return None;
                }
                match answer_alone(&changed, models, options) {
                    Ok(answer) if answer.admits() => return Some((changed, answer)),
                    _ if !next.contains(&changed) => next.push(changed),
                    _ => {}
                }
            }
        }
        front = next;
    }
    None
}

/// The question of the nearest command that the engine's parser takes; none where nothing that was tried is one.
pub fn nearest(launch: &Launch, options: &Options) -> Option<Question> {
    let mut front = vec![launch.clone()];
    for _ in 0..DEEPEST {
        let mut next: Vec<Launch> = Vec::new();
        for launch in front {
            let remedies = match Question::of(&launch, options) {
                Ok(question) => return Some(question),
                Err(error) => error.remedies().to_vec(),
            };
            let Ok(Program { engine, start }) = program(&launch, options) else { continue };
            let known = flags(engine.engine, engine.version);
            let words = remedies.iter().flat_map(|remedy| remedy.applied(&launch.words, start, &known));
            next.extend(
                words.map(|words| Launch { words, ..launch.clone() }).take(MOST_TRIES.saturating_sub(next.len())),
            );
        }
        front = next;
    }
    None
}

/// The commands that one change each makes of one that has no answer or does not start.
fn remedied(launch: &Launch, models: &Models, options: &Options) -> Vec<Launch> {
    let Ok(Program { engine, start }) = program(launch, options) else { return Vec::new() };
    let remedies = match answer_alone(launch, models, options) {
        Ok(answer) => larger(&answer, launch, models, options).into_iter().map(|(remedy, _)| remedy).collect(),
        Err(error) if error.remedies().is_empty() => every_flag_less(launch, options),
        Err(error) => error.remedies().to_vec(),
    };
    let known = flags(engine.engine, engine.version);
    let words = remedies.iter().flat_map(|remedy| remedy.applied(&launch.words, start, &known));
    words.map(|words| Launch { words, ..launch.clone() }).collect()
}

fn program(launch: &Launch, options: &Options) -> Result<Program, ServeError> {
    Program::of(launch, options.version.as_deref())
}

/// One flag less that says something of caches, whichever it is: what the planner refuses names no flag of the engine.
fn every_flag_less(launch: &Launch, options: &Options) -> Vec<Remedy> {
    let Ok(Program { engine, start }) = program(launch, options) else { return Vec::new() };
    let Ok(parsed) = parse(engine, &launch.words, start, &launch.env) else { return Vec::new() };
    let says = |name: &&&str| {
        let flag = parsed.settings[**name].flag;
        !matches!(meaning(engine.engine, flag), Meaning::None | Meaning::Model | Meaning::Revision)
    };
    parsed.settings.keys().filter(says).map(|name| Remedy::Remove(name)).collect()
}

/// The changes by which the command starts, or holds more.
fn changes(answer: &Answer, launch: &Launch, models: &Models, options: &Options) -> Vec<Change> {
    let mut found: Vec<(Remedy, Answer)> = larger(answer, launch, models, options);
    found.sort_by_key(|(_, answer)| {
        std::cmp::Reverse((answer.starts, answer.sequences.map(|sequences| (sequences.low, sequences.high))))
    });
    let shown_of = |(remedy, answer): (Remedy, Answer)| Change {
        change: match remedy {
            Remedy::Set(flag, value) => format!("{flag} {value}"),
            Remedy::Remove(flag) => format!("without {flag}"),
            Remedy::Rename(from, to) => format!("{to}, not {from}"),
            Remedy::Drop(word) => format!("without {word}"),
        },
        command: answer.command,
        starts: answer.starts,
        sequences: answer.sequences,
    };
    found.into_iter().take(SHOWN).map(shown_of).collect()
}

/// The changes that help, with what they come to.
fn larger(answer: &Answer, launch: &Launch, models: &Models, options: &Options) -> Vec<(Remedy, Answer)> {
    let Ok(Program { engine, start }) = program(launch, options) else { return Vec::new() };
    let known = flags(engine.engine, engine.version);
    let helps = |other: &Answer| {
        (other.starts, other.sequences.map_or(0, |all| all.low))
            > (answer.starts, answer.sequences.map_or(0, |all| all.low))
    };
    let tries = tries(answer, launch, models, options);
    let mut seen = Vec::new();
    let changed = tries.into_iter().filter_map(|remedy| {
        if seen.contains(&remedy) {
            return None;
        }
        seen.push(remedy.clone());
        let words = remedy.applied(&launch.words, start, &known).into_iter().next()?;
        let changed = answer_alone(&Launch { words, ..launch.clone() }, models, options).ok()?;
        Some((remedy, changed))
    });
    changed.filter(|(_, changed)| helps(changed)).collect()
}

fn tries(answer: &Answer, launch: &Launch, models: &Models, options: &Options) -> Vec<Remedy> {
    let Ok(Program { engine, start }) = program(launch, options) else { return Vec::new() };
    let (length, tp, batch) = match engine.engine.name() {
        "vllm" => ("--max-model-len", "--tensor-parallel-size", "--max-num-seqs"),
        "sglang" => ("--context-length", "--tp-size", "--max-running-requests"),
        "tensorrt-llm" => ("--max_seq_len", "--tensor_parallel_size", "--max_batch_size"),
        _ => return Vec::new(),
    };
    let parsed = parse(engine, &launch.words, start, &launch.env).ok();
    let number = |name: &str| parsed.as_ref().and_then(|parsed| parsed.settings.get(name)?.value().parse::<u64>().ok());
    let ranks = number(tp).unwrap_or(1);
    let mut tries = vec![Remedy::Set(tp, (2 * ranks).to_string()), Remedy::Set(tp, (4 * ranks).to_string())];
    let limits = answer.limits;
    match answer.starts {
        Starts::Yes => tries.push(Remedy::Set(length, (limits.max_seq_len / 2).max(1).to_string())),
        _ => {
            let question = Question::of(launch, options)
                .and_then(|question| question.settled(models.model.clone(), models.draft.clone()));
            // A block for the state of each sequence.
            let blocks = answer.facts.get(&Fact::NumBlocks).filter(|blocks| blocks.low > 0);
            let fewer = blocks.filter(|blocks| limits.max_batch_size.is_some_and(|most| most > blocks.low));
            tries.extend(fewer.map(|blocks| Remedy::Set(batch, blocks.low.to_string())));
            let bytes = answer.facts.get(&Fact::CacheBytes).copied();
            if let (Ok((_, settled)), Some(bytes)) = (question, bytes) {
                let ends =
                    [bytes.low, bytes.high].map(|bytes| longest(&settled.request, engine, bytes, limits.max_seq_len));
                tries.extend(ends.into_iter().flatten().map(|fits| Remedy::Set(length, fits.to_string())));
            }
        }
    }
    if answer.sequences.is_some_and(|found| limits.max_batch_size.is_some_and(|most| found.low >= most)) {
        tries.push(Remedy::Set(batch, (2 * limits.max_batch_size.unwrap_or(1)).to_string()));
    }
    match engine.engine.name() {
        "vllm" => tries.extend([
            Remedy::Set("--kv-cache-dtype", "fp8".into()),
            Remedy::Set("--gpu-memory-utilization", "0.95".into()),
            Remedy::Set("--max-num-batched-tokens", (limits.max_num_tokens / 2).max(1).to_string()),
            Remedy::Remove("--kv-cache-memory-bytes"),
        ]),
        "sglang" => tries.extend([
            Remedy::Set("--kv-cache-dtype", "fp8_e4m3".into()),
            Remedy::Set("--mem-fraction-static", "0.9".into()),
        ]),
        _ => {}
    }
    tries
}
