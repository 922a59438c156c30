//! What engines logged of captured graphs and of the CUDA context, and what is assumed from that.
//!
//! `overheads.csv` has a row for each figure of a public log: GiB of one GPU, on a device and of a model as far as they are
//! said. `sizes` counts the batch sizes that were captured, `52+74` of two kinds of graphs, whose bytes are taken together.
//! A context is what the device lacks before a model is loaded, with what vLLM calls non-torch memory, of one rank, and
//! without what SGLang says that its groups of ranks took. The source is a thread, or the line itself as it was found in a
//! public repository, cut to the words that tell it and without commas.

use std::sync::LazyLock;

use crate::device::DeviceInfo;
use crate::plan::LedgerItem;
use crate::size::ByteSize;

/// What is assumed of the engine that is to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineAssumptions {
    /// Its name, by which its logs are known.
    pub(crate) name: &'static str,
    /// Whether what it captures of steps takes bytes beside those of a step.
    pub(crate) captures_apart: bool,
    /// Bytes of a logit while a token is chosen.
    pub(crate) logit_bytes: u64,
    /// Whether it measures a prompt's delta rules in kernels over chunks of tokens.
    pub(crate) chunks_delta_rules: bool,
    /// Longest sequences whose keys its buffer for an indexer holds.
    pub(crate) indexed_sequences: u64,
}

/// One figure of one log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overhead {
    pub(crate) item: LedgerItem,
    pub(crate) engine: &'static str,
    /// All memory of the device, where that is known.
    pub(crate) device_bytes: Option<u64>,
    /// Layers of the model.
    pub(crate) layers: u64,
    pub(crate) bytes: u64,
}

/// Every figure.
pub(crate) fn rows() -> &'static [Overhead] {
    static ROWS: LazyLock<Vec<Overhead>> = LazyLock::new(|| FILE.lines().skip(1).filter_map(Overhead::parse).collect());
    &ROWS
}

const FILE: &str = include_str!("overheads.csv");

impl Overhead {
    fn parse(line: &'static str) -> Option<Self> {
        let gib = |number: &str| format!("{number}GiB").parse().ok().map(|size: ByteSize| size.0);
        let [item, engine, _version, _device, device_gib, _model, layers, _tp, _sizes, of_gpu, _source] =
            line.split(',').collect::<Vec<_>>().try_into().ok()?;
        let item = match item {
            "graphs" => LedgerItem::Graphs,
            "context" => LedgerItem::Context,
            _ => return None,
        };
        let layers = layers.parse().ok().filter(|layers| *layers > 0)?;
        Some(Self { item, engine, device_bytes: gib(device_gib), layers, bytes: gib(of_gpu)? })
    }
}

/// The engine whose logs stand in for those of one that has none, and for an engine that nobody names.
pub(crate) const STAND_IN: &str = "vllm";
/// With fewer logs of devices of about the same memory all of an engine's count.
pub(crate) const FEWEST_ALIKE: usize = 3;

/// What is assumed from logs, and how it is known.
pub(crate) struct Estimate {
    /// The value in the middle.
    pub(crate) middle: u64,
    /// The largest.
    pub(crate) most: u64,
    pub(crate) note: String,
}

impl Estimate {
    /// Of `item` under `engine` on such a device, each figure seen by `value`.
    ///
    /// Devices alike have at least half and at most twice the memory: engines capture fewer batch sizes where there is less.
    pub(crate) fn of(
        item: &LedgerItem,
        engine: Option<&str>,
        device: Option<&DeviceInfo>,
        value: fn(&Overhead) -> u64,
    ) -> Option<Self> {
        let of = |name: &str| rows().iter().filter(|row| row.item == *item && row.engine == name).collect::<Vec<_>>();
        let own = engine.map(of).filter(|own| !own.is_empty());
        let (logged, why) = match (own, engine) {
            (Some(own), _) => (own, String::new()),
            (None, Some(engine)) => (of(STAND_IN), format!("; {engine} logs none apart")),
            (None, None) => (of(STAND_IN), "; no engine is named".to_owned()),
        };
        let memory = device.map_or(0, |device| device.total_bytes);
        let is_alike = |row: &&&Overhead| {
            row.device_bytes.is_some_and(|bytes| bytes / 2 <= memory && memory <= bytes.saturating_mul(2))
        };
        let alike: Vec<&Overhead> = logged.iter().filter(is_alike).copied().collect();
        let logged = if alike.len() < FEWEST_ALIKE { logged } else { alike };
        let mut values: Vec<u64> = logged.iter().map(|row| value(row)).collect();
        values.sort_unstable();
        let (middle, most) = (*values.get(values.len() / 2)?, *values.last()?);
        let name = logged.first()?.engine;
        let note = match values.len() {
            1 => format!("one log of {name}{why}"),
            count => format!("the middle of {count} logs of {name}{why}"),
        };
        Some(Self { middle, most, note })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::Engine;

    #[test]
    fn every_row_is_read_and_says_where_it_comes_from() {
        assert_eq!(rows().len(), FILE.lines().count() - 1);
        let is_source = |source: &str| {
            let thread = source
                .split_once('#')
                .is_some_and(|(name, number)| name.split('/').count() == 2 && number.parse::<u32>().is_ok());
            thread || source.starts_with("line: ") && source.len() >= 20
        };
        for line in FILE.lines().skip(1) {
            assert!(line.rsplit(',').next().is_some_and(is_source), "{line}");
        }
        let known: Vec<&str> = Engine::all().iter().map(|engine| engine.name()).collect();
        assert!(rows().iter().all(|row| known.contains(&row.engine)));
    }

    /// On devices of 80 and of 24 GiB.
    #[test]
    fn the_docs_say_what_is_assumed_of_each_engine() {
        let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/budget.md")).unwrap();
        for (name, title) in [("vllm", "vLLM"), ("sglang", "SGLang")] {
            let of = |item: LedgerItem, gib: u64, value: fn(&Overhead) -> u64| {
                let device = DeviceInfo::cuda("NVIDIA", gib << 30, gib << 30);
                let Estimate { middle, most, .. } = Estimate::of(&item, Some(name), Some(&device), value).unwrap();
                [middle, most].map(|bytes| format!("{:.2}", bytes as f64 / f64::from(1 << 20)))
            };
            let graphs = |gib: u64| of(LedgerItem::Graphs, gib, |row| row.bytes / row.layers).join(", ");
            let [context, _] = of(LedgerItem::Context, 80, |row| row.bytes);
            let rows = |item: LedgerItem| rows().iter().filter(|row| row.engine == name && row.item == item).count();
            let line = format!(
                "| {title} | {}, {} | {} MiB | {} MiB | {context} MiB |",
                rows(LedgerItem::Graphs),
                rows(LedgerItem::Context),
                graphs(80),
                graphs(24)
            );
            assert!(docs.contains(&line), "docs/budget.md does not say `{line}`");
        }
    }
}
