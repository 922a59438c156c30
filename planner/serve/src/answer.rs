//! What a command would do: the lines of its start, what caps it, and what would change that.

use std::collections::BTreeMap;

use cacheplan_planner::ByteSize;
use cacheplan_planner::logs::{Fact, Logged};
use serde::Serialize;

use crate::cap::Cap;
use crate::question::{Limits, ReadFlag};
use crate::words::{counted, line, range, wrapped};

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
    /// Sequences of the longest length that run at once, on each replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<Logged>,
    /// Replicas that share nothing of their caches, where they are several.
    #[serde(skip_serializing_if = "is_one")]
    pub replicas: u64,
    /// What the answer hangs on that the command leaves open, or says otherwise than it may be meant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cautions: Vec<String>,
    /// Tokens of each of them, where it is stated that they are no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_each: Option<u64>,
    /// Slots that share its tokens, where they do.
    #[serde(skip)]
    pub(crate) sharing: Option<u64>,
    /// The lines of its start.
    pub lines: Vec<String>,
    /// Whether it leaves on the host what its devices do not hold.
    #[serde(skip)]
    pub(crate) offloads: bool,
    /// Whether the size of a file is taken from a config that is of other weights, as its name says.
    #[serde(skip)]
    pub(crate) doubts_weights: bool,
    /// What would state that which is assumed of what lies beside its cells.
    #[serde(skip)]
    pub(crate) stated_by: &'static str,
    /// Whether it takes cells of devices that nobody names.
    #[serde(skip)]
    pub(crate) lacks_devices: bool,
    /// What keeps it from holding more, in the engine's words.
    pub capped_by: String,
    /// The same, as what may be changed.
    #[serde(skip)]
    pub(crate) caps: Vec<Cap>,
    /// Changes, each by itself, that let it start or hold more; those that help most first.
    pub changes: Vec<Change>,
    /// What to know of this.
    pub notes: Vec<String>,
}

fn is_one(replicas: &u64) -> bool {
    *replicas == 1
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
    /// Tokens of each of them at most, where they are others than now.
    #[serde(skip)]
    pub tokens_each: Option<Logged>,
    /// Bytes that the caches take less, where it holds as much.
    #[serde(skip)]
    pub(crate) saves: Option<ByteSize>,
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
            let found = [found.low, found.high].map(|of_replica| of_replica.saturating_mul(self.replicas));
            let found = Logged { low: found[0], high: found[1] };
            let (are, what) = if expected == 1 { ("is", what.trim_end_matches('s')) } else { ("are", what) };
            (found.low < expected).then(|| format!("{expected} {what} {are} expected, and it holds {}", range(found)))
        })
    }

    /// Tokens of each sequence at most.
    pub(crate) fn length(&self) -> Logged {
        let length = self.facts.get(&Fact::MaxSeqLen).map_or(Logged::exact(0), |length| *length);
        self.tokens_each.map_or(length, Logged::exact)
    }

    /// Sequences that all replicas hold whatever they find.
    pub(crate) fn least(&self) -> u64 {
        self.sequences.map_or(0, |all| all.low.saturating_mul(self.replicas))
    }

    /// Whether the engine starts, in words.
    fn verdict(&self) -> String {
        let said = match self.starts {
            Starts::No if self.doubts_weights => "would not start, were the file's weights those of the config",
            Starts::Yes if self.lacks_devices => "starts where its devices hold it; --device says which these are",
            Starts::Yes => "starts",
            Starts::Maybe if self.facts.contains_key(&Fact::CacheBytes) => {
                "may start: the bytes for caches are not known exactly"
            }
            Starts::Maybe if self.offloads => {
                return format!(
                    "may start, and not with all of it on the devices: the CPU runs the rest, slowly; {}",
                    self.stated_by
                );
            }
            Starts::Maybe => return format!("may start: {}", self.stated_by),
            Starts::No if self.sequences.is_some() => "holds no sequence of its longest length",
            Starts::No => "would not start",
        };
        said.to_owned()
    }

    /// Why it is no command to start, in one line; none where it starts or may.
    pub fn failure(&self) -> Option<String> {
        let failed = self.starts == Starts::No;
        failed.then(|| format!("{} {}; REASON says why", self.engine, self.verdict()))
    }

    /// What it holds, in words: `1 sequence of 32768 tokens`; none where it starts no sequences.
    pub fn holds(&self) -> Option<String> {
        let length = self.length();
        let replicas =
            if self.replicas > 1 { format!(" on each of {} replicas", self.replicas) } else { String::new() };
        let tokens = self.facts.get(&Fact::Tokens).filter(|_| self.starts != Starts::No);
        self.sequences.map(|all| match self.sharing.zip(tokens) {
            Some((slots, tokens)) => {
                format!("{slots} slots share {} tokens, at most {} each", range(*tokens), range(length))
            }
            None => format!("{} of {} tokens{replicas}", counted(all, "sequence"), range(length)),
        })
    }

    /// What each change comes to, beside what the command holds now.
    pub fn changes_said(&self) -> Vec<String> {
        self.changes.iter().map(|change| change.said(self)).collect()
    }

    /// As text: whether it starts, the lines of its start, what caps it and what would change that.
    pub fn text(&self) -> String {
        let mut text = format!("{} {}, {}: {starts}\n", self.engine, self.version, self.model, starts = self.verdict());
        let mut section = |name: &str, lines: &[String]| {
            if !lines.is_empty() {
                text.push_str(&format!("\n{name}\n"));
                lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
            }
        };
        section("CAUTION", &self.cautions.iter().flat_map(|caution| wrapped(caution)).collect::<Vec<_>>());
        section("REASON", &self.reason.iter().flat_map(|reason| wrapped(reason)).collect::<Vec<_>>());
        section("READ", &self.read_lines());
        section("LOG", &self.lines);
        let holds = self.holds().map(|held| format!("{held}; capped by {}", self.capped_by));
        section("HOLDS", holds.as_slice());
        let changes: Vec<String> = self.changes.iter().map(|change| change.text(self)).collect();
        section("CHANGES", &changes);
        section("NOTES", &self.notes.iter().flat_map(|note| wrapped(note)).collect::<Vec<_>>());
        text
    }

    /// What flags were read as; those of which the same is said stand on one line.
    fn read_lines(&self) -> Vec<String> {
        let mut said: Vec<(&str, Vec<String>)> = Vec::new();
        for ReadFlag { flag, value, says } in &self.read {
            let flag = format!("{flag} {value}").trim_end().to_owned();
            match said.iter_mut().find(|(known, _)| known == says) {
                Some((_, flags)) => flags.push(flag),
                None => said.push((says, vec![flag])),
            }
        }
        said.into_iter().flat_map(|(says, flags)| wrapped(&format!("{}: {says}", flags.join(", ")))).collect()
    }
}

impl Change {
    /// With its command.
    fn text(&self, now: &Answer) -> String {
        format!("{}\n    {}", self.said(now), line(&self.command))
    }

    /// What it comes to, beside what the command holds now.
    fn said(&self, now: &Answer) -> String {
        // What holds no more helps by its start.
        let starts = match self.starts {
            _ if self.sequences != now.sequences || self.starts == now.starts => "",
            Starts::Yes => ", and it starts surely",
            Starts::Maybe => ", and it may start",
            Starts::No => "",
        };
        let now = now.sequences.map_or(String::new(), |now| format!(", now {}", range(now)));
        let each = self.tokens_each.map_or(String::new(), |each| format!(" of {} tokens", range(each)));
        let number = match (self.saves, self.sequences) {
            (Some(bytes), _) => format!(": as much in {bytes} less"),
            (None, Some(all)) => format!(": {}{each}{now}", counted(all, "sequence")),
            (None, None) => String::new(),
        };
        format!("{}{number}{starts}", self.change)
    }
}
