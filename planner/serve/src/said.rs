//! What a command says as its engine takes it: by its flags, and by its file of options where that is no file of flags.

use cacheplan_planner::Override;

use crate::dynamo::{self, Rewritten};
use crate::error::ServeError;
use crate::flags::parse::{Parsed, parse};
use crate::flags::table::Flag;
use crate::launch::Launch;
use crate::program::Program;
use crate::question::tensorrt_llm;

/// The words with those of the file among them, read.
pub(crate) struct Said {
    pub(crate) words: Vec<String>,
    pub(crate) parsed: Parsed,
    /// Options that stand above flags and the file.
    pub(crate) above: Vec<(String, String)>,
    /// What the options say that no flag does.
    pub(crate) stated: Vec<Override>,
    /// What the file says otherwise than a flag beside it.
    pub(crate) beside: Vec<String>,
}

impl Said {
    pub(crate) fn of(launch: &Launch, program: &Program, known: &[&'static Flag]) -> Result<Self, ServeError> {
        let Program { engine, start, .. } = *program;
        let Rewritten { mut words, options: above } = dynamo::rewritten(&launch.words, start, known)?;
        let (config, mut stated) = tensorrt_llm::settings(&launch.config, engine.engine, known)?;
        let beside = match config.is_empty() {
            true => Vec::new(),
            false => tensorrt_llm::beside(launch, program, &words, known)?,
        };
        // What comes last wins.
        let at = if tensorrt_llm::file_wins(launch, program) { words.len() } else { start };
        words.splice(at..at, config);
        let (config, more) = tensorrt_llm::settings(&above, engine.engine, known)?;
        words.extend(config);
        stated.extend(more);
        let parsed = parse(engine, &words, start, &launch.env)?;
        Ok(Self { words, parsed, above, stated, beside })
    }
}
