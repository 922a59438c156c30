//! The flags that an engine's own parser takes, as `cargo xtask flags` reads them in its sources.

use std::sync::LazyLock;

use cacheplan_planner::engines::Version;
use cacheplan_planner::{Engine, EngineSpec};

/// A flag of an engine's parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    /// Its long name, `--max-model-len`.
    pub(crate) name: &'static str,
    /// Its other names.
    pub(crate) aliases: Vec<&'static str>,
    /// Names that say the opposite.
    pub(crate) negated: Vec<&'static str>,
    pub(crate) values: Arity,
    pub(crate) kind: Kind,
    /// What it is where nobody states it, as it would be written.
    pub(crate) default: Option<&'static str>,
    /// What it takes alone; empty where it takes anything of its kind.
    pub(crate) choices: Vec<&'static str>,
    /// Where the engine's help shows it.
    pub(crate) group: &'static str,
    /// The variable that states it too.
    pub(crate) env: Option<&'static str>,
}

/// How many values a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arity {
    Exactly(usize),
    Optional,
    AtLeast(usize),
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Switch,
    Text,
    Int,
    /// As C++ reads it, in 32 bits.
    CInt,
    /// `32k` is 32,000, `32K` is 32,768.
    HumanInt,
    /// The same, or `auto`.
    HumanIntOrAuto,
    /// `32k` is 32,000, `32Ki` is 32,768.
    SiInt,
    Float,
    Json,
}

/// All flags of one engine, of several versions.
struct Table {
    engine: &'static str,
    /// The versions whose parsers were read, oldest first.
    read: Vec<Version>,
    /// By name, and of one name the oldest first.
    rows: Vec<Row>,
}

struct Row {
    /// The places among [`Table::read`] of the first and the last version that has it.
    since: usize,
    until: usize,
    flag: Flag,
}

const FILES: [(&str, &str); 4] = [
    ("vllm", include_str!("vllm.tsv")),
    ("sglang", include_str!("sglang.tsv")),
    ("tensorrt-llm", include_str!("tensorrt-llm.tsv")),
    ("llama.cpp", include_str!("llama.cpp.tsv")),
];

static TABLES: LazyLock<Vec<Table>> =
    LazyLock::new(|| FILES.into_iter().map(|(engine, text)| Table::parse(engine, text)).collect());

/// The flags of an engine's version; of one that was not read those of both its neighbours.
pub(crate) fn flags(engine: Engine, version: Version) -> Vec<&'static Flag> {
    let Some(table) = TABLES.iter().find(|table| table.engine == engine.name()) else { return Vec::new() };
    let after = |at: usize| at == 0 || table.read.get(at - 1).is_none_or(|before| version > *before);
    let until = |at: usize| at + 1 >= table.read.len() || table.read.get(at + 1).is_none_or(|next| version < *next);
    let mut found: Vec<&Row> = table.rows.iter().filter(|row| after(row.since) && until(row.until)).collect();
    // Of two forms the one that came first is kept, unless the other takes all that it takes.
    found.dedup_by(|later, first| {
        let is_same = later.flag.name == first.flag.name;
        if is_same && later.flag.extends(&first.flag) {
            *first = *later;
        }
        is_same
    });
    found.into_iter().map(|row| &row.flag).collect()
}

/// The flags of all versions of an engine.
pub(crate) fn all_flags(engine: Engine) -> impl Iterator<Item = &'static Flag> {
    TABLES.iter().filter(move |table| table.engine == engine.name()).flat_map(|table| &table.rows).map(|row| &row.flag)
}

/// Whether an older version's flag of that name took a value: llama.cpp keeps the names of flags that it no longer has, without one.
pub(crate) fn took_value(engine: EngineSpec, name: &str) -> bool {
    let Some(table) = TABLES.iter().find(|table| table.engine == engine.engine.name()) else { return false };
    let is_older = |row: &&Row| table.read.get(row.until).is_some_and(|last| *last < engine.version);
    let named = table.rows.iter().filter(|row| row.flag.name == name && row.flag.values != Arity::Exactly(0));
    named.filter(is_older).count() > 0
}

/// The newest version whose parser has a flag of that name.
pub(crate) fn newest_with(engine: Engine, name: &str) -> Option<Version> {
    let table = TABLES.iter().find(|table| table.engine == engine.name())?;
    let rows = table.rows.iter().filter(|row| row.flag.names().any(|known| known == name));
    table.read.get(rows.map(|row| row.until).max()?).copied()
}

/// All versions whose parsers were read.
#[cfg(test)]
pub(crate) fn read_versions() -> impl Iterator<Item = EngineSpec> {
    let engine = |table: &Table| Engine::all().iter().copied().find(|engine| engine.name() == table.engine);
    TABLES
        .iter()
        .filter_map(move |table| Some((engine(table)?, table)))
        .flat_map(|(engine, table)| table.read.iter().map(move |&version| EngineSpec { engine, version }))
}

/// Whether the version's own parser was read.
pub(crate) fn is_read(engine: Engine, version: Version) -> bool {
    TABLES.iter().any(|table| table.engine == engine.name() && table.read.contains(&version))
}

impl Table {
    fn parse(engine: &'static str, text: &'static str) -> Self {
        let mut lines = text.lines();
        let versions = lines.next().and_then(|line| line.split_once(": ")).map_or("", |(_, versions)| versions);
        let read: Vec<Version> = versions.split(' ').filter_map(|version| version.parse().ok()).collect();
        let mut rows: Vec<Row> = lines.skip(1).filter_map(|line| Row::parse(engine, line, &read)).collect();
        rows.sort_by_key(|row| (row.flag.name, row.since));
        Self { engine, read, rows }
    }
}

impl Row {
    fn parse(engine: &str, line: &'static str, read: &[Version]) -> Option<Self> {
        let [since, until, name, aliases, values, negated, kind, default, choices, group, env] =
            line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        let list = |text: &'static str| text.split(',').filter(|part| !part.is_empty()).collect::<Vec<_>>();
        let place = |text: &str| read.iter().position(|version| Ok(*version) == text.parse());
        let stated = |text: &'static str| (!text.is_empty()).then_some(text);
        let flag = Flag {
            name,
            aliases: list(aliases),
            negated: list(negated),
            values: Arity::parse(values),
            kind: Kind::parse(engine, kind),
            default: stated(default),
            choices: list(choices),
            group,
            env: stated(env),
        };
        let last = read.len().saturating_sub(1);
        Some(Self { since: place(since).unwrap_or(0), until: place(until).unwrap_or(last), flag })
    }
}

impl Arity {
    fn parse(text: &str) -> Self {
        match text {
            "?" => Self::Optional,
            "*" => Self::AtLeast(0),
            "+" => Self::AtLeast(1),
            count => Self::Exactly(count.parse().unwrap_or(1)),
        }
    }
}

impl Kind {
    fn parse(engine: &str, text: &str) -> Self {
        match text {
            "bool" => Self::Switch,
            "int" if engine == "llama.cpp" => Self::CInt,
            "int" => Self::Int,
            "human_int" => Self::HumanInt,
            "human_int_or_auto" => Self::HumanIntOrAuto,
            "si_int" => Self::SiInt,
            "float" => Self::Float,
            "json" => Self::Json,
            _ => Self::Text,
        }
    }
}

impl Flag {
    /// Whether it is the other, but for more choices.
    fn extends(&self, other: &Self) -> bool {
        let chooses = !other.choices.is_empty() && other.choices.iter().all(|choice| self.choices.contains(choice));
        chooses && self.values == other.values && self.kind == other.kind && self.default == other.default
    }

    /// Every way to write it.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied()).chain(self.negated.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn names(spec: &str) -> Vec<&'static str> {
        let spec: cacheplan_planner::EngineSpec = spec.parse().unwrap();
        flags(spec.engine, spec.version).into_iter().map(|flag| flag.name).collect()
    }

    #[rstest]
    #[case("vllm@0.33.0", "--prefix-match-unit", true)]
    #[case("vllm@0.24.0", "--prefix-match-unit", false)]
    #[case("vllm@0.11.0", "--swap-space", true)]
    #[case("vllm@0.33.0", "--swap-space", false)]
    #[case("vllm@0.8.5", "--tensor-parallel-size", true)]
    #[case("vllm@0.8.5", "--num-scheduler-steps", true)]
    #[case("vllm@0.11.0", "--num-scheduler-steps", false)]
    #[case("sglang@0.4.6", "--enable-ep-moe", true)]
    #[case("vllm@0.30.0", "--prefix-match-unit", true)]
    #[case("sglang@0.5.23", "--enable-unified-memory", true)]
    #[case("sglang@0.5.10", "--disable-piecewise-cuda-graph", true)]
    #[case("llama.cpp", "--ctx-size", true)]
    #[case("llama.cpp@b11549", "--mmap", false)]
    #[case("llama.cpp@b7000", "--mmap", true)]
    #[case("sglang@0.5.6", "--dp-size", true)]
    #[case("sglang@0.5.6", "--data-parallel-size", false)]
    // Of 0.5.6.post2.
    #[case("sglang@0.5.6", "--fp8-gemm-backend", true)]
    #[case("sglang@0.5.5", "--fp8-gemm-backend", false)]
    #[case("tensorrt-llm", "--kv_cache_free_gpu_memory_fraction", false)]
    fn a_version_has_the_flags_of_its_parser(#[case] spec: &str, #[case] flag: &str, #[case] has: bool) {
        assert_eq!(names(spec).contains(&flag), has);
    }

    /// So that whoever names no version is answered by one: rules and parser are of the same.
    #[test]
    fn the_newest_rules_are_those_of_the_newest_parser() {
        for engine in Engine::all() {
            let newest = read_versions().filter(|spec| spec.engine == *engine).map(|spec| spec.version).max();
            assert_eq!(newest, Some(engine.newest()), "{engine}");
        }
    }

    #[test]
    fn every_row_of_every_table_reads() {
        for ((_, text), table) in FILES.iter().zip(TABLES.iter()) {
            assert_eq!(table.rows.len(), text.lines().count() - 2, "{}", table.engine);
            let plain = |choice: &&str| choice.chars().all(|char| !"[]'\"".contains(char));
            assert!(table.rows.iter().all(|row| row.flag.choices.iter().all(plain)), "{}", table.engine);
            assert!(!table.read.is_empty() && table.rows.iter().all(|row| row.flag.name.starts_with("--")));
        }
    }
}
