//! Goes through a log once, whatever its size, and keeps the numbers of its starts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, ErrorKind};

use aho_corasick::AhoCorasick;

use super::failures::{Failures, Found};
use super::utf16::Utf16;
use super::wording::{Fold, TooLarge, Wording};
use super::{EngineLog, Fact, LogDialect, LogError, Logged};
use crate::engines::{Engine, Version};

/// What is read of a line; the longest that engines write, their own arguments, have some 10 KiB.
const MAX_LINE: usize = 64 << 10;
/// Processes that are told apart; more are taken for one.
const MAX_RANKS: usize = 4096;

impl EngineLog {
    /// Reads the last complete start in a log.
    ///
    /// Memory is bounded whatever the log holds: of each line the first 64 KiB are looked at. Lines may end in CR or LF, be
    /// coloured, and be those of several ranks in any order. Where `asked` names an engine, only its lines count.
    ///
    /// # Errors
    /// A log without a complete start, of several engines, or with numbers that no device has.
    pub fn read(mut log: impl BufRead, asked: Option<Engine>) -> Result<Self, LogError> {
        match Utf16::of(&mut log) {
            Ok(mut log) => read_from(&mut log, asked),
            Err(log) => read_from(log, asked),
        }
    }
}

fn read_from(log: &mut dyn BufRead, asked: Option<Engine>) -> Result<EngineLog, LogError> {
    let engines = Engine::all().iter().copied().filter(|engine| asked.is_none_or(|asked| asked == *engine));
    let mut readers: Vec<(Engine, Reader)> = engines.map(|engine| (engine, Reader::of(engine))).collect();
    let mut beginnings = Beginnings::of(readers.iter().map(|(_, reader)| reader.words));
    let mut failures = Failures::default();
    let lines = each_line(log, |number, line| {
        failures.look(number, line);
        // Nearly all lines say nothing.
        if !beginnings.look(line) {
            return Ok(());
        }
        let line = &beginnings.text;
        for ((_, reader), has) in readers.iter_mut().zip(&beginnings.has).filter(|(_, has)| has.contains(&true)) {
            reader.line(number, line, has)?;
        }
        Ok(())
    })?;
    // A few words are common to several engines; the one with the most of them is meant.
    let torn = readers.iter().max_by_key(|(_, reader)| reader.numbers()).filter(|(_, reader)| reader.numbers() > 0);
    let failure = failures.first();
    let torn = torn.map(|(engine, _)| *engine).or(asked.filter(|_| failure.is_some()));
    let torn = torn.map(|engine| match failure {
        Some(Found { line, why, said }) => LogError::Failed { engine, line, why, said },
        None => LogError::Torn { engine, expected: engine.dialect().example },
    });
    let mut whole = readers.into_iter().filter_map(|(engine, reader)| reader.finish(engine));
    match (whole.next(), whole.next()) {
        (Some(log), None) => Ok(log),
        (Some(first), Some(second)) => Err(LogError::Mixed(first.engine, second.engine)),
        (None, _) => Err(torn.unwrap_or(LogError::Foreign { lines, asked })),
    }
}

/// Calls `each` with the number and the bytes of each line; gives their number.
fn each_line(log: &mut dyn BufRead, mut each: impl FnMut(u64, &[u8]) -> Result<(), LogError>) -> Result<u64, LogError> {
    let mut number = 1;
    let mut line = Vec::new();
    loop {
        let chunk = match log.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(source) => return Err(LogError::Io { line: number, source }),
        };
        if chunk.is_empty() {
            break;
        }
        let end = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let part = &chunk[..end.unwrap_or(chunk.len())];
        line.extend_from_slice(&part[..part.len().min(MAX_LINE - line.len())]);
        let ends = end.map(|end| chunk[end]);
        let used = part.len() + usize::from(end.is_some());
        log.consume(used);
        if let Some(byte) = ends {
            each(number, &line)?;
            line.clear();
            // Bars of progress are drawn over each other on one line.
            number += u64::from(byte == b'\n');
        }
    }
    if !line.is_empty() {
        each(number, &line)?;
        number += 1;
    }
    Ok(number - 1)
}

/// Makes `plain` the text of a line: without colours, and with one space where there are several or other control
/// characters.
fn plain(line: &[u8], plain: &mut String) {
    const ESCAPE: char = '\u{1b}';
    let text = String::from_utf8_lossy(line);
    plain.clear();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if char == ESCAPE && chars.next_if_eq(&'[').is_some() {
            // Parameters, then the letter that says what they are for.
            while chars.next_if(|char| !('@'..='~').contains(char)).is_some() {}
            chars.next();
        } else if char == ' ' || char.is_control() {
            if !plain.ends_with(' ') {
                plain.push(' ');
            }
        } else {
            plain.push(char);
        }
    }
}

/// Finds in one go all that a line may begin to say to any engine's reader.
struct Beginnings {
    automaton: AhoCorasick,
    /// Whose each is: the reader, and its place among that reader's.
    of: Vec<(usize, usize)>,
    /// What the shortest has.
    least_bytes: usize,
    /// The last line that was looked at.
    text: String,
    /// Which of them it has, for each reader.
    has: Vec<Vec<bool>>,
}

impl Beginnings {
    fn of(readers: impl Iterator<Item = &'static LogDialect>) -> Self {
        let texts: Vec<Vec<&str>> = readers.map(LogDialect::beginnings).collect();
        let of =
            texts.iter().enumerate().flat_map(|(reader, texts)| (0..texts.len()).map(move |i| (reader, i))).collect();
        let has = texts.iter().map(|texts| vec![false; texts.len()]).collect();
        let texts = texts.concat();
        let least_bytes = texts.iter().map(|text| text.len()).min().unwrap_or_default();
        // A few dozen short texts are always few enough for an automaton.
        let automaton = AhoCorasick::new(texts).expect("few and short texts");
        Self { automaton, of, least_bytes, text: String::new(), has }
    }

    /// Notes what a line has, if anything.
    fn look(&mut self, line: &[u8]) -> bool {
        if line.len() < self.least_bytes {
            return false;
        }
        plain(line, &mut self.text);
        let mut found = self.automaton.find_overlapping_iter(&self.text).peekable();
        if found.peek().is_none() {
            return false;
        }
        self.has.iter_mut().for_each(|has| has.fill(false));
        for found in found {
            let (reader, place) = self.of[found.pattern()];
            self.has[reader][place] = true;
        }
        true
    }
}

impl LogDialect {
    /// What a line may begin to say: starts, drafts, tries and lines, in this order.
    fn beginnings(&self) -> Vec<&'static str> {
        let fixed = self.starts.iter().chain(self.drafts).copied().chain(self.tries.iter().map(|(text, _)| *text));
        fixed.chain(self.lines.iter().map(Wording::beginning)).collect()
    }
}

/// What one engine's words say of a log.
struct Reader {
    words: &'static LogDialect,
    starts: u64,
    /// The last complete start before the current one.
    complete: Option<Start>,
    current: Start,
}

/// What is known of one start.
#[derive(Default)]
struct Start {
    version: Option<Version>,
    /// Which first lines were seen, and of which rank.
    begun: BTreeSet<(usize, String)>,
    ranks: BTreeMap<String, BTreeMap<Fact, Logged>>,
    drafts: bool,
}

impl Reader {
    fn of(engine: Engine) -> Self {
        Self { words: engine.dialect(), starts: 0, complete: None, current: Start::default() }
    }

    /// A line that `has` some of the beginnings.
    fn line(&mut self, number: u64, line: &str, has: &[bool]) -> Result<(), LogError> {
        let words = self.words;
        let (starts, has) = has.split_at(words.starts.len());
        let (drafts, has) = has.split_at(words.drafts.len());
        let (tries, lines) = has.split_at(words.tries.len());
        for (index, start) in words.starts.iter().enumerate().filter(|(index, _)| starts[*index]) {
            if let Some((before, version)) = line.split_once(start) {
                self.begin(index, rank(before), version);
            }
        }
        let current = &mut self.current;
        current.drafts |= drafts.contains(&true);
        if current.drafts {
            return Ok(());
        }
        for ((_, facts), _) in words.tries.iter().zip(tries).filter(|(_, has)| **has) {
            current.ranks.values_mut().for_each(|known| known.retain(|fact, _| !facts.contains(fact)));
        }
        for (wording, _) in words.lines.iter().zip(lines).filter(|(_, has)| **has) {
            let found = wording.find(line).map_err(|TooLarge| LogError::TooLarge { line: number })?;
            let Some(found) = found else { continue };
            let before = &line[..found.at];
            // The fullest of several devices counts, as with ranks.
            let holder = match wording.fold {
                Fold::SumOnDevice => device(before),
                _ => Some(rank(before)),
            };
            let Some(holder) = holder else { continue };
            // Two numbers of one line that are parts of one thing, such as keys and values.
            let mut said: BTreeMap<Fact, Logged> = BTreeMap::new();
            for (fact, value) in wording.facts.iter().zip(found.values) {
                if let Some(fact) = *fact {
                    said.entry(fact).and_modify(|sum| *sum = sum.plus(value)).or_insert(value);
                }
            }
            let known = current.of_rank(holder);
            for (fact, value) in said {
                known.entry(fact).and_modify(|known| *known = wording.fold.of(*known, value)).or_insert(value);
            }
        }
        Ok(())
    }

    /// A process begins. Where one like it had begun and said something, that is another start.
    fn begin(&mut self, index: usize, rank: String, version: &str) {
        let process = (index, rank);
        self.starts = self.starts.max(1);
        // Every process of TensorRT-LLM says its version before anything else, so that saying it again is no start.
        if self.current.begun.contains(&process) && !self.current.ranks.is_empty() {
            self.starts += 1;
            let ended = std::mem::take(&mut self.current);
            if ended.is_complete(self.words) {
                self.complete = Some(ended);
            }
        }
        if self.current.begun.len() < MAX_RANKS {
            self.current.begun.insert(process);
        }
        self.current.version = version_of(version).or(self.current.version);
    }

    /// Numbers that are known of the start that the log ends in.
    fn numbers(&self) -> usize {
        self.current.ranks.values().map(BTreeMap::len).sum()
    }

    /// The last complete start.
    fn finish(self, engine: Engine) -> Option<EngineLog> {
        let is_cut = !self.current.is_complete(self.words);
        let start = if is_cut { self.complete? } else { self.current };
        Some(EngineLog { engine, version: start.version, starts: self.starts.max(1), is_cut, facts: start.folded() })
    }
}

impl Start {
    fn of_rank(&mut self, rank: String) -> &mut BTreeMap<Fact, Logged> {
        let rank = if self.ranks.len() < MAX_RANKS || self.ranks.contains_key(&rank) { rank } else { String::new() };
        self.ranks.entry(rank).or_default()
    }

    fn is_complete(&self, words: &LogDialect) -> bool {
        self.ranks.values().any(|known| words.complete.iter().any(|fact| known.contains_key(fact)))
    }

    /// What holds for all ranks: the least that one can serve, the most that one needs.
    fn folded(&self) -> BTreeMap<Fact, Logged> {
        let mut folded: BTreeMap<Fact, Logged> = BTreeMap::new();
        for (fact, value) in self.ranks.values().flatten() {
            let more = |known: &mut Logged| {
                let (least, most) = if known.low <= value.low { (*known, *value) } else { (*value, *known) };
                *known = if fact.is_capacity() { least } else { most };
            };
            folded.entry(*fact).and_modify(more).or_insert(*value);
        }
        folded
    }
}

impl Fold {
    fn of(self, known: Logged, new: Logged) -> Logged {
        match self {
            Self::First => known,
            Self::Last => new,
            Self::Least => {
                if new.low < known.low {
                    new
                } else {
                    known
                }
            }
            Self::Sum | Self::SumOnDevice => known.plus(new),
        }
    }
}

/// The rank that a line is of, by what stands before its text: `Worker_TP0_EP0`, `DP0 TP1`; empty where it says none.
fn rank(before: &str) -> String {
    const GROUPS: [&str; 7] = ["TP", "DP", "PP", "EP", "CP", "rank", "RANK"];
    let is_rank = |word: &&str| {
        let numbered = |group: &str| {
            word.match_indices(group).any(|(at, _)| {
                word[at + group.len()..].trim_start_matches('=').starts_with(|char: char| char.is_ascii_digit())
            })
        };
        word.len() <= 32 && GROUPS.iter().any(|group| numbered(group))
    };
    // `[RANK 3]` is one word.
    let before = before.replace("RANK ", "RANK");
    let words: Vec<&str> = before
        .split(|char: char| !char.is_ascii_alphanumeric() && char != '_' && char != '=')
        .filter(is_rank)
        .collect();
    words[words.len().saturating_sub(4)..].join(" ")
}

/// The device that the last word names; `None` for memory of the host.
fn device(before: &str) -> Option<String> {
    let name = before.split(' ').next_back().unwrap_or_default();
    let is_host = name.starts_with("CPU") || name.ends_with("_Host");
    (!is_host).then(|| name.chars().take(32).collect())
}

fn version_of(text: &str) -> Option<Version> {
    let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '.').unwrap_or(text.len());
    text[..end].starts_with(|char: char| char.is_ascii_digit()).then(|| text[..end].parse().ok()).flatten()
}
