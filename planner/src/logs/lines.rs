//! The lines in which an engine says what it made of its memory, written: the other way of [`super::wording`].

use std::collections::BTreeMap;
use std::fmt::Write;

use super::fact::{Fact, Unit};
use super::wording::Logged;
use crate::engines::{EngineSpec, Version};

/// A line as an engine writes it: `{}` stands where a number does, `{,}` where it has thousands separators.
pub(crate) struct Line {
    /// The first version that writes it so.
    pub(crate) since: Version,
    /// The first that does not any more.
    pub(crate) before: Option<Version>,
    pub(crate) text: &'static str,
    /// What each number is the sum of.
    pub(crate) facts: &'static [&'static [Fact]],
}

/// How an engine prints sizes: the unit, and how many bits it has.
#[derive(Clone, Copy)]
pub(crate) struct SizeUnit(pub(crate) &'static str, pub(crate) u32);

impl EngineSpec {
    /// The lines in which its start says `facts`; one that says something else besides is left out.
    ///
    /// A number that is only known to lie between two is written as both, `40.10..45.20 GiB`.
    pub fn start_lines(self, facts: &BTreeMap<Fact, Logged>) -> Vec<String> {
        let dialect = self.engine.dialect();
        let speaks =
            |line: &&Line| line.since <= self.version && line.before.is_none_or(|before| self.version < before);
        dialect.writes.iter().filter(speaks).filter_map(|line| line.written(facts, dialect.size_unit)).collect()
    }
}

impl Line {
    fn written(&self, facts: &BTreeMap<Fact, Logged>, size: SizeUnit) -> Option<String> {
        let mut parts = self.text.split('{');
        let mut line = parts.next().unwrap_or_default().to_owned();
        for (part, of) in parts.zip(self.facts) {
            let (how, behind) = part.split_once('}')?;
            let known: Option<Vec<Logged>> = of.iter().map(|fact| facts.get(fact).copied()).collect();
            let sum = known?.into_iter().fold(Logged::exact(0), Logged::plus);
            line += &number(sum, of.first()?.unit(), how == ",", size);
            line += behind;
        }
        Some(line)
    }
}

fn number(value: Logged, unit: Unit, thousands: bool, SizeUnit(name, bits): SizeUnit) -> String {
    let one = |value: u64| match unit {
        Unit::Count if thousands => separated(value),
        Unit::Count => value.to_string(),
        Unit::Switch => if value == 1 { "True" } else { "False" }.into(),
        Unit::Hundredths => format!("{}.{:02}", value / 100, value % 100),
        Unit::Bytes => format!("{:.2}", value as f64 / (1u64 << bits) as f64),
    };
    let (low, high) = (one(value.low), one(value.high));
    let mut text = if low == high { low } else { format!("{low}..{high}") };
    if unit == Unit::Bytes {
        let _ = write!(text, " {name}");
    }
    text
}

/// `1,234,567`.
fn separated(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::Engine;
    use crate::logs::EngineLog;

    const BYTES: [Fact; 7] = [
        Fact::CacheBytes,
        Fact::KvBytes,
        Fact::KvBuffers,
        Fact::SsmBytes,
        Fact::ConvBytes,
        Fact::Weights,
        Fact::SpeculationBytes,
    ];

    fn said() -> BTreeMap<Fact, Logged> {
        let counts = [Fact::MaxSeqLen, Fact::MaxBatchSize, Fact::MaxNumTokens, Fact::TokensPerBlock, Fact::NumBlocks];
        let counts = counts.into_iter().chain([Fact::Tokens, Fact::WindowTokens, Fact::StateSlots, Fact::Ubatch]);
        let counts = counts.zip([32_768, 256, 8192, 16, 900, 1_234_567, 99_840, 12, 512]);
        // Whole units of every engine, so that nothing is rounded.
        let bytes = BYTES.into_iter().zip([3 << 30, 2 << 30, 2 << 30, 1 << 30, 1 << 30, 5 << 30, 1 << 30]);
        let all = counts.chain(bytes).chain([(Fact::Concurrency, 3767)]);
        all.map(|(fact, value)| (fact, Logged::exact(value))).collect()
    }

    #[test]
    fn what_is_written_reads_back() {
        for engine in Engine::all().iter().copied() {
            for version in engine.rules().read.iter().copied() {
                let lines = EngineSpec { engine, version }.start_lines(&said());
                assert!(lines.len() >= 2, "{engine}");
                let log = EngineLog::read(lines.join("\n").as_bytes(), Some(engine)).unwrap();
                for (fact, logged) in log.facts().filter(|(fact, _)| said().contains_key(fact)) {
                    assert!(logged.meets(said()[&fact]), "{engine} {version}: {fact:?} {logged:?}\n{lines:#?}");
                }
                assert!(log.facts().count() >= 2, "{engine} {version}: {lines:#?}");
            }
        }
    }

    #[test]
    fn a_number_between_two_is_written_as_both() {
        let between = BTreeMap::from([(Fact::CacheBytes, Logged { low: 3 << 30, high: 7 << 29 })]);
        let vllm: EngineSpec = "vllm".parse().unwrap();
        assert_eq!(vllm.start_lines(&between), ["Available KV cache memory: 3.00..3.50 GiB"]);
    }
}
