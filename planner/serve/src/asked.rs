//! A command before its models are read, and why one has no answer.

use cacheplan_files::Shown;
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::answer::Change;
use crate::error::ServeError;
use crate::launch::Launch;
use crate::question::{Models, Options, Question};
use crate::repair::{nearest, repaired};
use crate::words::{counted, line, wrapped};

/// What the words of a command ask, by which its models are named.
#[derive(Debug)]
pub enum Asked {
    /// The engine's parser takes them.
    Taken(Box<Question>),
    /// It refuses them, whatever the models are.
    Refused {
        /// The reason.
        error: ServeError,
        /// The question of the nearest words that it takes: they still name the models, mostly.
        nearest: Option<Box<Question>>,
    },
}

/// Why a command has no answer.
#[derive(Debug)]
pub struct Refusal {
    /// The reason.
    pub error: ServeError,
    /// The nearest command that starts, where one was found.
    pub change: Option<Change>,
    /// What that leaves out of what was said.
    without: Option<String>,
}

impl Asked {
    /// Reads the words of a command.
    pub fn of(launch: &Launch, options: &Options) -> Self {
        match Question::of(launch, options) {
            Ok(question) => Self::Taken(question.into()),
            Err(error) => Self::Refused { error, nearest: nearest(launch, options).map(Box::new) },
        }
    }
}

/// The words that the changed command leaves out, if it has fewer.
fn without(launch: &Launch, changed: &Launch) -> Option<String> {
    let (words, left) = (launch.shown(), changed.shown());
    let lost: Vec<String> = words.iter().filter(|word| !left.contains(word)).cloned().collect();
    (!lost.is_empty() && left.len() < words.len()).then(|| format!("without {}", line(&lost)))
}

impl Refusal {
    /// Looks for the nearest command that starts, where the models are known.
    pub fn of(error: ServeError, launch: &Launch, models: Option<&Models>, options: &Options) -> Self {
        let found = models.and_then(|models| repaired(launch, models, options));
        let without = found.as_ref().and_then(|(changed, _)| without(launch, changed));
        let nearest = ["the nearest command that starts"].into_iter().chain(without.as_deref());
        let nearest = nearest.collect::<Vec<_>>().join(", ");
        let change = found.map(|(_, answer)| Change {
            change: nearest,
            tokens_each: Some(answer.length()),
            command: answer.command,
            starts: answer.starts,
            saves: None,
            sequences: answer.sequences,
        });
        Self { error, change, without }
    }

    /// Says why, and what to try.
    pub fn text(&self) -> String {
        let tried = self.change.as_ref().map(|change| format!("\ntry {}", line(&change.command)));
        let without = self.without.as_ref().map(|without| format!("\n({without})"));
        format!("{}{}{}", self.error, tried.unwrap_or_default(), without.unwrap_or_default())
    }
}

impl Refusal {
    /// The same as the text of an answer that does not start; none where nobody knows, or it is no command at all.
    pub fn report(&self) -> Option<String> {
        let ServeError::Engine { engine, said, .. } = &self.error else { return None };
        let mut report = format!("{engine}: would not start\n\nREASON\n");
        wrapped(&Shown(said).to_string()).iter().for_each(|part| report.push_str(&format!("  {part}\n")));
        if let Some(Change { change, command, sequences, .. }) = &self.change {
            let number = sequences.map_or(String::new(), |all| format!(": {}", counted(all, "sequence")));
            report.push_str(&format!("\nCHANGES\n  {change}{number}\n    {}\n", line(command)));
        }
        Some(report)
    }

    /// Why it is no command to start, in one line, where [`Refusal::report`] says the rest.
    pub fn failure(&self) -> String {
        match &self.error {
            ServeError::Engine { engine, .. } => format!("{engine} would not start; REASON says why"),
            _ => self.text(),
        }
    }
}

/// Writes it as an answer that does not start, or of which nobody knows.
impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("starts", if self.error.is_refusal() { "no" } else { "unknown" })?;
        map.serialize_entry("reason", &self.error.to_string())?;
        map.serialize_entry("changes", self.change.as_slice())?;
        map.end()
    }
}
