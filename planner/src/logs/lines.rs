//! The lines in which an engine says what it made of its memory, written.

use std::collections::{BTreeMap, BTreeSet};

use cacheplan_handlers::DType;

use super::fact::Fact;
use super::line::Line;
use super::wording::Logged;
use crate::engines::EngineSpec;

impl EngineSpec {
    /// The lines in which its start says `facts` of caches in `dtype`; one that says something else besides is left out.
    ///
    /// A number that is only known to lie between two is written as both, `40.10..45.20 GiB`.
    pub fn start_lines(self, facts: &BTreeMap<Fact, Logged>, dtype: Option<DType>) -> Vec<String> {
        let dialect = self.engine.dialect();
        // Of lines that begin alike it writes the first of which all is known.
        let mut begun = BTreeSet::new();
        let speaks =
            |line: &&Line| line.since <= self.version && line.before.is_none_or(|before| self.version < before);
        let written = dialect.writes.iter().filter(speaks).filter_map(|line| {
            let written = line.written(facts, dtype, dialect.size_unit)?;
            begun.insert((line.beginning(), line.drafts)).then_some(written)
        });
        written.collect()
    }
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
                let lines = EngineSpec { engine, version }.start_lines(&said(), Some(DType::Bf16));
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
        assert_eq!(vllm.start_lines(&between, None), ["Available KV cache memory: 3.00..3.50 GiB"]);
    }
}
