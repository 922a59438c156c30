//! A plan beside what an engine logged.

use std::fmt::Write;

use serde::Serialize;

use super::as_engine::{AsEngine, LoggedSettings};
use super::fact::Unit;
use super::rules::{Expected, explanation, memory, outcome, outcomes, really_told};
use super::{EngineLog, Fact, Logged};
use crate::engines::rules::Numbering;
use crate::engines::{Engine, EnginePrediction, EngineSpec, Version};
use crate::error::PlanError;
use crate::plan::{CachePlan, Certainty, LedgerItem};
use crate::render::{align, wrap};
use crate::size::ByteSize;

/// Half of the last digit of a size that was logged in GiB, which a plan made from measured lines has for each.
const HALF_DIGIT: u64 = (1 << 30) / 200;
/// A plan beside an engine's log, number by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogCheck {
    /// The engine.
    pub engine: String,
    /// The version whose rules were used.
    pub version: String,
    /// Whether the engine is not what the plan says.
    pub drifted: bool,
    /// What was compared: first what the engine was told, then what it made of it, then what the plan estimates.
    pub rows: Vec<Row>,
    /// What to know of the log.
    pub notes: Vec<String>,
}

/// One number of the plan, in the engine's terms, beside the log's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What it is.
    pub name: Fact,
    /// How it is counted.
    pub unit: Unit,
    /// What the plan gives in this engine.
    pub planned: u64,
    /// What the log says.
    pub logged: Logged,
    /// What follows.
    pub drift: Drift,
    /// Why they differ; empty where they do not.
    pub reason: String,
}

/// Whether a number is the plan's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Drift {
    /// It is, to the last digit that is printed.
    None,
    /// It is not, but follows by the engine's rules from a number above that differs.
    Follows,
    /// It is an estimate of the plan, for which the log has the measured number.
    Estimate,
    /// It is not.
    #[serde(rename = "drift")]
    Unexplained,
}

impl EngineLog {
    /// Sets `plan` beside the log, in the terms of the engine that wrote it.
    ///
    /// `version` is the engine's where the log does not say it; the newest that is modelled where absent too. Counts must be
    /// equal, sizes within the digits that are printed.
    ///
    /// # Errors
    /// A plan that holds nothing the engine can be asked about, or whose memory does not hold one sequence there.
    pub fn check(&self, plan: &CachePlan, version: Option<Version>) -> Result<LogCheck, PlanError> {
        self.check_planned(plan, None, version)
    }

    /// The same of a plan that says itself what the engine allocates; that is what is planned then, whatever the log says.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_planned(
        &self,
        plan: &CachePlan,
        said_of_engine: Option<&EnginePrediction>,
        version: Option<Version>,
    ) -> Result<LogCheck, PlanError> {
        let newest = self.engine.newest();
        let of_plan = said_of_engine.filter(|said| said.name == self.engine.name());
        let made_for = of_plan.and_then(|said| format!("{}@{}", said.name, said.version).parse().ok());
        let said = self.version.or(version).or(made_for.map(|engine: EngineSpec| engine.version));
        let engine = EngineSpec { engine: self.engine, version: modelled(self.engine, said.unwrap_or(newest)) };
        let caches = AsEngine::of(plan)?;
        let mut told = caches.settings(self.dialect())?;
        let own_block = plan.pools.iter().find_map(|pool| pool.tokens_per_block);
        told.tokens_per_block = self.count(Fact::TokensPerBlock).filter(|block| Some(*block) == own_block);
        if self.get(Fact::MaxTotalTokens).is_some() {
            // As exports say it: what the plan's pages hold, or less where the engine divides the bytes so.
            let divided = caches.predict(engine, &told)?.tokens;
            told.max_total_tokens = caches.own_tokens().into_iter().chain(divided).min();
        }
        let planned = caches.predict(engine, &told)?;
        // Told the tokens of the plan's own pages, it divides other than it would by itself.
        let of_plan = of_plan.filter(|_| told.max_total_tokens.is_none());
        // What a plan does not say, the engine was told by whoever started it.
        let started =
            LoggedSettings { prefix_caching: self.prefix_caching(), ubatch: self.count(Fact::Ubatch), ..told };
        let as_started = caches.predict(engine, &started)?;
        let by_others = [
            (started.prefix_caching.is_some(), "prefix caching"),
            (started.ubatch.is_some(), "ubatch"),
            (of_plan.is_some_and(|said| said.version != engine.version_name()), "the version"),
        ];
        let by_others = by_others.into_iter().filter_map(|(is_said, name)| is_said.then_some(name));

        // With states vLLM makes its block as large as they are; else it is told, or chosen with the kernel.
        let makes_block = self.dialect().block_follows_states && caches.has_states();
        let mut rows = told_rows(plan, self, &told, &planned, makes_block);
        let other = rows.iter().filter(|row| matches!(row.drift, Drift::Unexplained | Drift::Estimate));
        let other: Vec<&str> = other.map(|row| row.name.name()).collect();
        let really = really_told(self, &started, &planned, makes_block);
        let expected = Expected::of(&caches, engine, really.as_ref());
        let explained = outcomes(self, makes_block)
            .any(|(fact, logged)| !expected.as_ref().is_some_and(|expected| expected.meets(fact, logged)))
            .then(|| explanation(&caches, self, engine, said, makes_block, really.as_ref()))
            .flatten();
        for (fact, logged) in outcomes(self, makes_block) {
            let of_rules = outcome(&planned, fact, told.max_seq_len);
            let of_plan = of_plan.and_then(|said| outcome(said, fact, told.max_seq_len));
            let Some(value) = of_plan.or(of_rules) else { continue };
            let is_moved = outcome(&as_started, fact, told.max_seq_len) != Some(value);
            let causes: Vec<&str> = other.iter().copied().chain(by_others.clone().filter(|_| is_moved)).collect();
            let follows = if causes.is_empty() { "the rounding of cache_bytes".into() } else { causes.join(", ") };
            let follows_from_told = expected.as_ref().is_some_and(|expected| expected.meets(fact, logged));
            let (drift, reason) = if logged.meets(Logged::exact(value)) {
                (Drift::None, String::new())
            } else if follows_from_told {
                (Drift::Follows, format!("follows from {follows}"))
            } else {
                let unexplained = || "neither the plan nor the engine's rules give it".to_owned();
                (Drift::Unexplained, explained.clone().unwrap_or_else(unexplained))
            };
            rows.push(Row { name: fact, unit: fact.unit(), planned: value, logged, drift, reason });
        }
        rows.extend(estimates(plan, self));
        let drifted = rows.iter().any(|row| row.drift == Drift::Unexplained);
        let notes = notes(self, engine, said);
        Ok(LogCheck { engine: self.engine.to_string(), version: engine.version_name(), drifted, rows, notes })
    }

    /// Sets what the engine's model predicts beside the log of one that was told the same, for sequences of `max_seq_len`.
    pub fn beside(&self, predicted: &EnginePrediction, max_seq_len: u64) -> LogCheck {
        const ALL: [Fact; 5] = [Fact::Tokens, Fact::KvBytes, Fact::StateSlots, Fact::ConvBytes, Fact::SsmBytes];
        let row = |name: Fact| {
            let planned = outcome(predicted, name, max_seq_len);
            let logged = outcomes(self, false).find(|(fact, _)| *fact == name).map(|(_, logged)| logged);
            if planned.is_none() && logged.is_none() {
                return None;
            }
            // What only one of them knows of is nothing to the other.
            let (planned, logged) = (planned.unwrap_or(0), logged.unwrap_or(Logged::exact(0)));
            let (drift, reason) = match logged.meets(Logged::exact(planned)) {
                true => (Drift::None, ""),
                false => (Drift::Unexplained, "the engine's model does not give it"),
            };
            Some(Row { name, unit: name.unit(), planned, logged, drift, reason: reason.into() })
        };
        let rows: Vec<Row> = ALL.into_iter().filter_map(row).collect();
        let drifted = rows.iter().any(|row| row.drift == Drift::Unexplained);
        let (engine, version) = (self.engine.to_string(), predicted.version.clone());
        LogCheck { engine, version, drifted, rows, notes: Vec::new() }
    }
}

/// The version, or the newest that is modelled where it is newer.
fn modelled(engine: Engine, version: Version) -> Version {
    if engine.rules().numbering == Numbering::Builds { version } else { version.min(engine.newest()) }
}

fn notes(log: &EngineLog, engine: EngineSpec, said: Option<Version>) -> Vec<String> {
    let mut notes = Vec::new();
    if log.starts > 1 {
        notes.push(format!("the log has {} starts; the last complete one was read", log.starts));
    }
    if log.is_cut {
        notes.push("the last start in the log is not complete; the one before it was read".into());
    }
    match said {
        None => notes.push(format!(
            "the log does not say the engine's version; the rules are those of {}, unless --as names another",
            engine.version_name()
        )),
        Some(version) if version != engine.version => {
            notes.push(format!("{version} is newer than the newest version that is modelled"));
        }
        Some(_) => {}
    }
    notes
}

/// What the plan assumes that the engine was told, beside what it says of that.
fn told_rows(
    plan: &CachePlan,
    log: &EngineLog,
    told: &LoggedSettings,
    planned: &EnginePrediction,
    makes_block: bool,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |name: Fact, planned: u64, logged: Logged, differs: bool, reason: String| {
        let drift = if differs { Drift::Unexplained } else { Drift::None };
        let reason = if differs { reason } else { String::new() };
        rows.push(Row { name, unit: name.unit(), planned, logged, drift, reason });
    };
    let another = || "the engine was started with another than the plan was made for".to_owned();
    let exactly = [
        (Fact::MaxSeqLen, plan.limits.max_seq_len),
        (Fact::MaxNumTokens, plan.limits.max_num_tokens),
        (Fact::Tp, plan.parallel.tp.into()),
        (Fact::Pp, plan.parallel.pp.into()),
        (Fact::DraftTokens, told.draft_tokens),
    ];
    for (fact, value) in exactly {
        // llama.cpp's lengths are cells and its steps batches of prompts; both follow.
        let applies = !log.dialect().divides_cells;
        if let Some(logged) = log.get(fact).filter(|_| applies) {
            row(fact, value, logged, !logged.meets(Logged::exact(value)), another());
        }
    }
    if let Some(logged) = log.get(Fact::MaxBatchSize) {
        let fewer = logged.high < plan.limits.max_batch_size;
        row(Fact::MaxBatchSize, plan.limits.max_batch_size, logged, fewer, "the engine admits fewer sequences".into());
    }
    if let (Some(value), Some(logged)) = (told.state_slots, log.get(Fact::StateSlots)) {
        row(
            Fact::StateSlots,
            value,
            logged,
            !logged.meets(Logged::exact(value)),
            "the engine was not told the plan's slots".into(),
        );
    }
    if let (Some(value), Some(logged)) = (told.max_total_tokens, log.get(Fact::MaxTotalTokens)) {
        row(Fact::MaxTotalTokens, value, logged, !logged.meets(Logged::exact(value)), another());
    }
    let block = log.get(Fact::TokensPerBlock).filter(|_| !makes_block);
    if let (Some(value), Some(logged)) = (planned.block_size, block) {
        let differs = !logged.meets(Logged::exact(value));
        row(Fact::TokensPerBlock, value, logged, differs, "the engine was told another, or took its kernel's".into());
    }
    if let Some(logged) = memory(log, planned) {
        let value = if log.get(Fact::CacheBytes).is_some() { told.bytes.unwrap_or(0) } else { allocated(planned) };
        let near = |by: u64| logged.meets(Logged { low: value.saturating_sub(by), high: value.saturating_add(by) });
        let measured = plan.ledger.iter().filter(|line| line.source == Certainty::Measured).count() as u64;
        let slack = measured.saturating_mul(HALF_DIGIT);
        // Of a device; bytes that are stated without one depend on no other line.
        let is_derived = plan.ledger.iter().any(|line| line.name == LedgerItem::Context);
        let lines = plan.ledger.iter().filter(|_| is_derived);
        let uncertain = lines.fold(slack, |sum, line| sum.saturating_add(line.uncertain_bytes));
        let drift = match (near(slack), near(uncertain)) {
            (true, _) => Drift::None,
            // Bytes that follow from assumed ones are assumed.
            (false, true) => Drift::Estimate,
            (false, false) => Drift::Unexplained,
        };
        let reason = if drift == Drift::None { String::new() } else { memory_reason(plan, log, value, logged) };
        rows.push(Row { name: Fact::CacheBytes, unit: Fact::CacheBytes.unit(), planned: value, logged, drift, reason });
    }
    rows
}

/// Bytes of everything that the engine would allocate for caches.
fn allocated(planned: &EnginePrediction) -> u64 {
    let parts = [planned.kv_bytes, planned.draft_share_bytes, planned.state_bytes, planned.speculation_bytes];
    parts.into_iter().flatten().fold(0, u64::saturating_add)
}

/// How many more or fewer bytes the engine has, and which lines make them: what the log says of each, and the rest.
fn memory_reason(plan: &CachePlan, log: &EngineLog, planned: u64, logged: Logged) -> String {
    let signed = |bytes: i128| {
        let size = ByteSize(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
        format!("{}{size}", if bytes < 0 { '-' } else { '+' })
    };
    let found = i128::from(logged.middle()) - i128::from(planned);
    let lines: Vec<(&str, i128)> = estimates(plan, log)
        .filter(|row| row.drift == Drift::Estimate)
        .map(|row| (row.name.name(), i128::from(row.logged.middle()) - i128::from(row.planned)))
        .collect();
    let (size, word) = (ByteSize(logged.middle().abs_diff(planned)), if found < 0 { "less" } else { "more" });
    let mut reason = format!("the engine has {size} {word} than planned");
    if lines.is_empty() {
        return reason;
    }
    // What a line takes more, caches have less.
    let rest = -found - lines.iter().map(|(_, more)| more).sum::<i128>();
    let parts = lines.iter().map(|(name, more)| format!("{name} {}", signed(*more)));
    let rest = (rest != 0).then(|| format!("what it does not log {}", signed(rest)));
    let _ = write!(reason, ": {}", parts.chain(rest).collect::<Vec<_>>().join(", "));
    reason
}

/// The plan's lines besides caches, for which the log has measured numbers.
fn estimates(plan: &CachePlan, log: &EngineLog) -> impl Iterator<Item = Row> {
    let facts = [Fact::Weights, Fact::Activations, Fact::Graphs, Fact::Context, Fact::Nccl];
    facts.into_iter().filter_map(|fact| {
        let logged = log.get(fact)?;
        let line = plan.ledger.iter().find(|line| line.name.name() == fact.name());
        let planned = line.map_or(0, |line| line.bytes);
        let (drift, reason) = match line {
            _ if logged.meets(Logged::exact(planned)) => (Drift::None, ""),
            None => (Drift::Estimate, "the plan leaves it out"),
            Some(line) => match line.source {
                Certainty::Exact => (Drift::Estimate, "the engine keeps more or less than the tensors of the files"),
                Certainty::Measured => (Drift::Estimate, "measured at another start"),
                Certainty::Assumed => (Drift::Estimate, "assumed in the plan"),
            },
        };
        Some(Row { name: fact, unit: Unit::Bytes, planned, logged, drift, reason: reason.into() })
    })
}

impl LogCheck {
    /// The names of the numbers in which the engine is not what the plan says.
    pub fn drifting(&self) -> Vec<&'static str> {
        self.rows.iter().filter(|row| row.drift == Drift::Unexplained).map(|row| row.name.name()).collect()
    }

    /// As a text table, at most 100 columns wide.
    pub fn table(&self) -> String {
        self.table_of("logged")
    }

    /// The same, where the numbers were not read from a log.
    pub(super) fn table_of(&self, found: &str) -> String {
        let mut text = format!("{} {}\n", self.engine, self.version);
        let header = ["", "planned", found, ""].map(str::to_owned).to_vec();
        let rows = self.rows.iter().map(|row| {
            let logged = if row.unit == Unit::Bytes { row.logged.middle() } else { row.logged.low };
            let verdict = match row.drift {
                Drift::None if row.logged.low == row.logged.high => "equal",
                Drift::None => "equal as printed",
                Drift::Follows => "follows",
                Drift::Estimate => "estimate",
                Drift::Unexplained => "DRIFT",
            };
            vec![row.name.name().to_owned(), shown(row.unit, row.planned), shown(row.unit, logged), verdict.to_owned()]
        });
        let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
        for (index, line) in align(&rows, &[1, 2]).into_iter().enumerate() {
            text.push_str(&line);
            text.push('\n');
            if let Some(row) =
                index.checked_sub(1).and_then(|row| self.rows.get(row)).filter(|row| !row.reason.is_empty())
            {
                text.push_str(&wrap(&row.reason, 4));
            }
        }
        self.notes.iter().for_each(|note| text.push_str(&wrap(note, 2)));
        text
    }
}

fn shown(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Bytes => ByteSize(value).to_string(),
        Unit::Hundredths => format!("{}.{:02}x", value / 100, value % 100),
        Unit::Count | Unit::Switch => value.to_string(),
    }
}
