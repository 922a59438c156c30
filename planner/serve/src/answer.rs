//! What a command would do: the lines of its start, what caps it, and what would change that.

use std::collections::BTreeMap;

use cacheplan_planner::logs::{Fact, Logged};
use serde::Serialize;

use crate::question::{Limits, ReadFlag};
use crate::words::line;

/// Whether the engine would start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Starts {
    /// Not even with the most bytes that it may find.
    No,
    /// With the most, and not with the least.
    Maybe,
    /// Also with the least.
    Yes,
}

/// What a command would do. A number that is only known to lie between two has them as `low` and `high`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The engine's name.
    pub engine: &'static str,
    /// The version whose parser and rules were used.
    pub version: String,
    /// The model as the command names it.
    pub model: String,
    /// The command, without secrets.
    pub command: Vec<String>,
    /// What its flags were read as.
    pub read: Vec<ReadFlag>,
    /// The limits that it starts with.
    pub limits: Limits,
    /// Whether it starts.
    pub starts: Starts,
    /// Why not, in the engine's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the engine's log would say, by the name of the fact; sizes in bytes, concurrency in hundredths.
    pub facts: BTreeMap<Fact, Logged>,
    /// Sequences of the longest length that run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<Logged>,
    /// The lines of its start.
    pub lines: Vec<String>,
    /// What keeps it from holding more, in the engine's words.
    pub capped_by: String,
    /// Changes, each by itself, that let it start or hold more; those that help most first.
    pub changes: Vec<Change>,
    /// What to know of this.
    pub notes: Vec<String>,
}

/// A changed command, and what it would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What was changed.
    pub change: String,
    /// The words of the changed command, without secrets.
    pub command: Vec<String>,
    /// Whether it starts.
    pub starts: Starts,
    /// Sequences of its longest length that run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<Logged>,
}

impl Answer {
    /// Whether the engine may start, and then holds a sequence.
    pub fn admits(&self) -> bool {
        self.starts != Starts::No && self.sequences.is_none_or(|sequences| sequences.high >= 1)
    }

    /// Why it does not hold as many sequences of the longest length, or as many tokens, as are expected: the least that it may hold counts.
    pub fn short_of(&self, sequences: Option<u64>, tokens: Option<u64>) -> Option<String> {
        let found =
            [("sequences", sequences, self.sequences), ("tokens", tokens, self.facts.get(&Fact::Tokens).copied())];
        found.into_iter().find_map(|(what, expected, found)| {
            let (expected, found) = (expected?, found.unwrap_or(Logged::exact(0)));
            let number = if found.low == found.high {
                found.low.to_string()
            } else {
                format!("{} to {}", found.low, found.high)
            };
            (found.low < expected).then(|| format!("{expected} {what} are expected, and it holds {number}"))
        })
    }

    /// As text: whether it starts, the lines of its start, what caps it and what would change that.
    pub fn text(&self) -> String {
        let starts = match self.starts {
            Starts::Yes => "starts",
            Starts::Maybe if self.facts.contains_key(&Fact::CacheBytes) => {
                "may start: the bytes for caches are not known exactly"
            }
            Starts::Maybe => "may start, and not with all of it on the devices",
            Starts::No => "would not start",
        };
        let mut text = format!("{} {}, {}: {starts}\n", self.engine, self.version, self.model);
        let mut section = |name: &str, lines: &[String]| {
            if !lines.is_empty() {
                text.push_str(&format!("\n{name}\n"));
                lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
            }
        };
        section("REASON", self.reason.as_slice());
        let read: Vec<String> =
            self.read.iter().map(|flag| format!("{} {}: {}", flag.flag, flag.value, flag.says)).collect();
        section("READ", &read);
        section("LOG", &self.lines);
        let holds = self.sequences.map(|all| {
            let number = if all.low == all.high { all.low.to_string() } else { format!("{}..{}", all.low, all.high) };
            format!(
                "{number} sequences of {} tokens; capped by {}",
                self.facts.get(&Fact::MaxSeqLen).map_or(0, |length| length.high),
                self.capped_by
            )
        });
        section("HOLDS", holds.as_slice());
        let changes: Vec<String> = self.changes.iter().map(Change::text).collect();
        section("CHANGES", &changes);
        section("NOTES", &self.notes);
        text
    }
}

impl Change {
    fn text(&self) -> String {
        let number = self.sequences.map_or(String::new(), |all| {
            let number = if all.low == all.high { all.low.to_string() } else { format!("{}..{}", all.low, all.high) };
            format!(": {number} sequences")
        });
        format!("{}{number}\n    {}", self.change, line(&self.command))
    }
}
