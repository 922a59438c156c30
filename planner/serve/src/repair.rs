//! Changes to a command by which it starts or holds more, each of them asked anew.

use crate::answer::Answer;
use crate::error::ServeError;
use crate::flags::meaning::{Meaning, meaning};
use crate::flags::parse::parse;
use crate::flags::table::flags;
use crate::found::{answer_alone, outcome};
use crate::launch::Launch;
use crate::program::Program;
use crate::question::{Models, Options, Question};
use crate::remedy::Remedy;
use crate::search::Search;

/// The most changed commands that are tried.
const MOST_TRIES: usize = 60;
/// The most changes in one of them.
const DEEPEST: usize = 4;

/// What a command would do with its models.
///
/// # Errors
/// What the engine's parser or the engine refuses, what nobody read, and a model that the planner refuses.
pub fn answer(launch: &Launch, models: impl Into<Models>, options: &Options) -> Result<Answer, ServeError> {
    let models = models.into();
    let mut answer = answer_alone(launch, &models, options)?;
    answer.changes = Search { answer: &answer, launch, models: &models, options }.changes();
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
                match outcome(&changed, models, options) {
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
            let Ok(Program { engine, start, .. }) = program(&launch, options) else { continue };
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
    let Ok(Program { engine, start, .. }) = program(launch, options) else { return Vec::new() };
    let remedies = match answer_alone(launch, models, options) {
        Ok(answer) => Search { answer: &answer, launch, models, options }
            .helpful()
            .into_iter()
            .flat_map(|(remedies, _)| remedies)
            .collect(),
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
    let Ok(Program { engine, start, .. }) = program(launch, options) else { return Vec::new() };
    let Ok(parsed) = parse(engine, &launch.words, start, &launch.env) else { return Vec::new() };
    let says = |name: &&&str| {
        let flag = parsed.settings[**name].flag;
        !matches!(meaning(engine.engine, flag), Meaning::None | Meaning::Model | Meaning::Revision)
    };
    parsed.settings.keys().filter(says).map(|name| Remedy::Remove(name)).collect()
}
