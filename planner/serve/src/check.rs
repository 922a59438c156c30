//! What an engine logged beside what its command gives.

use std::collections::BTreeMap;

use cacheplan_planner::logs::{Drift, EngineLog, Fact, Logged, Unit};
use cacheplan_planner::{ByteSize, EngineSpec};
use serde::Serialize;

use crate::answer::Answer;
use crate::error::ServeError;
use crate::flags::parse::parse;
use crate::flags::table::flags;
use crate::found::{answer_alone, outcome, request};
use crate::launch::Launch;
use crate::program::Program;
use crate::question::{Models, Options};
use crate::remedy::Remedy;
use crate::search::prefix_switch;

/// The log of a start beside the command that it is of.
#[derive(Debug, Serialize)]
pub struct CommandCheck {
    /// The engine.
    pub engine: &'static str,
    /// The version whose rules were used: the one that is stated, else the log's, else the command's.
    pub version: String,
    /// The version that is stated or that the command's image has, where the log is of another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stated_version: Option<String>,
    /// The log's, where it says one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged_version: Option<String>,
    /// Whether the engine is not what the command gives.
    pub drifted: bool,
    /// Each number that both have.
    pub rows: Vec<Compared>,
    /// What to know of this.
    pub notes: Vec<String>,
    /// What it holds as it was started, with the bytes that were logged.
    #[serde(skip)]
    pub answer: Answer,
    /// What else was started, or the one change of the command with which all that follows is as logged, where there is one.
    #[serde(skip)]
    pub would_be: Option<String>,
    /// The bytes for caches that were logged and are not compared, and why: nothing says on which device.
    #[serde(skip)]
    pub uncompared: Option<(Logged, ServeError)>,
}

/// A number of a command beside its log's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// What it is.
    pub name: Fact,
    /// How it is counted.
    pub unit: Unit,
    /// What the command gives.
    pub planned: Logged,
    /// What the log says.
    pub logged: Logged,
    /// Whether they have a value in common, and what follows where they have none.
    pub drift: Drift,
    /// Why they have none, as far as both say; empty where they have one.
    pub reason: String,
}

impl CommandCheck {
    /// Sets both beside each other. What follows from bytes is put to the engine's rules again with those that were logged, and
    /// with the flags that were.
    ///
    /// # Errors
    /// As [`answer`](crate::answer).
    pub fn of(launch: &Launch, models: &Models, options: &Options, log: &EngineLog) -> Result<Self, ServeError> {
        let version = options.version.clone().or_else(|| log.version.map(|version| version.to_string()));
        let stated_version = stated_version(launch, options, log)?;
        let with = |cache_bytes| Options { cache_bytes, version: version.clone(), ..options.clone() };
        let stated = options.cache_bytes;
        let (unlogged, of_bytes) = (with(stated), with(log.get(Fact::CacheBytes).or(stated)));
        let (own, launch) = (launch, &as_logged(launch, version.as_deref(), options, log)?);
        let answer = answer_alone(launch, models, &of_bytes)?;
        let alone = answer_alone(launch, models, &unlogged);
        let settings = settings(launch, models, &unlogged).or_else(|_| settings(launch, models, &of_bytes))?;
        let told = Told::of(launch, version.as_deref(), &settings, &answer, log)?;
        let of_told = told.options(&of_bytes);
        let flags = || told.flags.iter().map(|(_, flag)| *flag).collect::<Vec<_>>().join(" and ");
        let as_told = if told.flags.is_empty() { None } else { answer_alone(&told.launch, models, &of_told).ok() };

        // A draft's buffers are of another context.
        let drafts = answer.read.iter().any(|flag| flag.flag == "--spec-type");
        let compare = Compare { log, drafts };
        let told_row = |row: Compared| match told.flag(row.name) {
            Some(flag) => row.drifting(format!("it was started with another {flag}")),
            None if row.drift != Drift::None => {
                let said = format!("it was started with another {}", row.name.name());
                row.drifting(said)
            }
            None => row,
        };
        let mut rows: Vec<Compared> =
            settings.iter().filter_map(|(fact, value)| compare.row(*fact, *value)).map(told_row).collect();
        let bytes = |answer: &Answer| answer.facts.get(&Fact::CacheBytes).copied();
        if let Some(row) = alone.as_ref().ok().and_then(bytes).and_then(|bytes| compare.row(Fact::CacheBytes, bytes)) {
            let as_told = as_told.as_ref().and_then(|_| outcome(&told.launch, models, &told.options(&unlogged)).ok());
            rows.push(match as_told.as_ref().and_then(bytes) {
                _ if row.drift == Drift::None => row,
                Some(bytes) if bytes.meets(row.logged) => row.following(&flags()),
                Some(bytes) => row.with_bytes_apart(bytes),
                None => {
                    let planned = row.planned;
                    row.with_bytes_apart(planned)
                }
            });
        }
        let mut open = Vec::new();
        for (fact, value) in answer.facts.iter().filter(|(fact, _)| **fact != Fact::CacheBytes) {
            // Nobody says on which device the default would be another.
            if *fact == Fact::MaxNumTokens && own.words != launch.words {
                continue;
            }
            let planned = alone.as_ref().ok().and_then(|alone| alone.facts.get(fact)).unwrap_or(value);
            let Some(row) = compare.row(*fact, *planned) else { continue };
            let meets = |answer: &Answer| answer.facts.get(fact).is_some_and(|value| value.meets(row.logged));
            let by_flags = as_told.as_ref().is_some_and(meets);
            rows.push(match told.flag(*fact) {
                Some(_) if row.drift != Drift::None => told_row(row),
                // What the command's bytes may give, those of the log must.
                _ if row.drift == Drift::None && (meets(&answer) || by_flags) => row,
                None if meets(&answer) => row.following("cache_bytes"),
                None if by_flags => row.following(&flags()),
                _ => {
                    open.push(rows.len());
                    let planned = if row.drift == Drift::None { *value } else { row.planned };
                    Compared { planned, drift: Drift::Unexplained, ..row }
                }
            });
        }
        let is_as_logged = |changed: &Launch| {
            let answer = outcome(changed, models, &of_told);
            answer.is_ok_and(|answer| compare.is_as_logged(&answer))
        };
        let change = if open.is_empty() { None } else { explained(&told.launch, &of_told, is_as_logged) };
        for row in open {
            let none = match &stated_version {
                Some(_) => {
                    "the bytes that were logged do not give it by these rules, and the log is of another version"
                }
                None => "the bytes that were logged do not give it, nor does a usual change of the command",
            };
            rows[row].reason = change.clone().unwrap_or_else(|| none.to_owned());
        }
        let started = (!told.flags.is_empty()).then(|| format!("it was started with another {}", flags()));
        let would_be: Vec<String> = started.into_iter().chain(change).collect();
        let would_be = Some(would_be.join("; ")).filter(|would_be| !would_be.is_empty());
        let uncompared = alone.err().and_then(|why| Some((log.get(Fact::CacheBytes)?, why)));
        let without_bytes = uncompared.as_ref().map(|(_, why)| format!("the bytes for caches are not compared: {why}"));
        Ok(Self {
            engine: answer.engine,
            version: answer.version.clone(),
            drifted: stated_version.is_some() || rows.iter().any(|row| row.drift == Drift::Unexplained),
            logged_version: log.version.map(|version| EngineSpec { engine: log.engine, version }.version_name()),
            stated_version,
            rows,
            notes: without_bytes.into_iter().collect(),
            answer: as_told.unwrap_or(answer),
            would_be,
            uncompared,
        })
    }

    /// What is not as the command gives it.
    pub fn drifting(&self) -> Vec<&'static str> {
        let rows = self.rows.iter().filter(|row| row.drift == Drift::Unexplained).map(|row| row.name.name());
        self.stated_version.iter().map(|_| "version").chain(rows).collect()
    }

    /// As a table.
    pub fn table(&self) -> String {
        let mut table = format!("{:18}  {:>24}  {:>24}\n", "", "the command gives", "logged");
        if let (Some(stated), Some(logged)) = (&self.stated_version, &self.logged_version) {
            let rules = format!("the numbers below are by the rules of {}", self.version);
            table += &format!("{:18}  {stated:>24}  {logged:>24}  DRIFT\n  {rules}\n", "version");
        }
        table.extend(self.rows.iter().map(Compared::line));
        if let Some((bytes, _)) = &self.uncompared {
            let (name, logged) = (Fact::CacheBytes.name(), shown(Unit::Bytes, *bytes));
            table += &format!("{name:18}  {:>24}  {logged:>24}  NOT COMPARED\n", "not known");
        }
        table.extend(self.notes.iter().map(|note| format!("{note}\n")));
        table
    }
}

/// The version that is stated, or that the command's image has, where the log says another.
fn stated_version(launch: &Launch, options: &Options, log: &EngineLog) -> Result<Option<String>, ServeError> {
    if options.version.is_none() && launch.version.is_none() {
        return Ok(None);
    }
    let engine = Program::of(launch, options.version.as_deref())?.engine;
    let is_another = engine.engine == log.engine && log.version.is_some_and(|logged| logged != engine.version);
    Ok(is_another.then(|| engine.version_name()))
}

/// The flags that were started with other values than the command's, by the numbers that a log says of them.
struct Told {
    flags: Vec<(Fact, &'static str)>,
    /// The command with what was logged.
    launch: Launch,
    /// The devices of its ranks, where they are others.
    ranks: Option<u32>,
}

/// The flag that says vLLM's share of a device.
const SHARE: &str = "--gpu-memory-utilization";

/// The flag for the tokens of a step.
fn step_flag(engine: &str) -> Option<&'static str> {
    match engine {
        "vllm" => Some("--max-num-batched-tokens"),
        "sglang" => Some("--chunked-prefill-size"),
        "tensorrt-llm" => Some("--max_num_tokens"),
        "llama.cpp" => Some("--batch-size"),
        _ => None,
    }
}

impl Told {
    fn of(
        launch: &Launch,
        version: Option<&str>,
        settings: &BTreeMap<Fact, Logged>,
        answer: &Answer,
        log: &EngineLog,
    ) -> Result<Self, ServeError> {
        let Program { engine, start, .. } = Program::of(launch, version)?;
        let known = flags(engine.engine, engine.version);
        let name = engine.engine.name();
        let said = parse(engine, &launch.words, start, &launch.env)?;
        // SGLang makes a number of them itself where none is stated, and llama.cpp is told the cells of all.
        let sequences = engine.engine.sequences_flag();
        let sequences = Some(sequences).filter(|flag| name != "sglang" || said.settings.contains_key(flag));
        let length = if name == "llama.cpp" { Fact::Tokens } else { Fact::MaxSeqLen };
        let prefixes = prefix_switch(engine.engine);
        let told = [
            (Fact::MemoryShare, Some(SHARE)),
            (Fact::Tp, engine.engine.ranks_flag()),
            (Fact::Pp, engine.engine.stages_flag()),
            (Fact::PrefixCaching, prefixes.as_ref().map(|(flag, ..)| *flag)),
            (length, Some(engine.engine.length_flag())),
            (Fact::MaxBatchSize, sequences),
            (Fact::MaxNumTokens, step_flag(name)),
        ];
        let (mut flags, mut words) = (Vec::new(), launch.words.clone());
        for (fact, flag) in told {
            let planned = settings.get(&fact).or_else(|| answer.facts.get(&fact)).copied();
            let (Some(flag), Some(planned), Some(logged)) = (flag, planned, logged(log, fact)) else { continue };
            if planned.meets(logged) || logged.low != logged.high {
                continue;
            }
            let value = match fact.unit() {
                Unit::Hundredths => format!("{:.2}", logged.low as f64 / 100.0),
                _ => logged.low.to_string(),
            };
            let remedy = match prefixes.as_ref().filter(|_| fact == Fact::PrefixCaching) {
                Some((_, on, _)) if logged.low == 1 => on.clone(),
                Some((.., off)) => off.clone(),
                None => Remedy::Set(flag, value),
            };
            let Some(changed) = remedy.applied(&words, start, &known).into_iter().next() else {
                continue;
            };
            words = changed;
            flags.push((fact, flag));
        }
        let size = |fact: Fact| logged(log, fact).or_else(|| settings.get(&fact).copied()).map_or(1, |size| size.low);
        let is_told = |fact: Fact| flags.iter().any(|(told, _)| *told == fact);
        let ranks = size(Fact::Tp).saturating_mul(size(Fact::Pp));
        let ranks = u32::try_from(ranks).ok().filter(|_| is_told(Fact::Tp) || is_told(Fact::Pp));
        let mut launch = Launch { words, ..launch.clone() };
        if ranks.is_some() {
            // Those that it was started on were others.
            (launch.gpus, launch.nodes, launch.group_gpus) = (None, None, None);
        }
        Ok(Self { flags, launch, ranks })
    }

    /// The options of a command for as many devices as were its ranks.
    fn options(&self, options: &Options) -> Options {
        let devices =
            options.devices.as_ref().map(|devices| self.ranks.map_or(devices.clone(), |ranks| devices.times(ranks)));
        Options { devices, ..options.clone() }
    }

    /// The flag that says the fact, where it was another.
    fn flag(&self, fact: Fact) -> Option<&'static str> {
        self.flags.iter().find(|(told, _)| *told == fact).map(|(_, flag)| *flag)
    }
}

/// What a command tells its engine and its log says, besides what the engine makes of it.
fn settings(launch: &Launch, models: &Models, options: &Options) -> Result<BTreeMap<Fact, Logged>, ServeError> {
    let (engine, request) = request(launch, models, options)?;
    let Program { start, .. } = Program::of(launch, options.version.as_deref())?;
    let said = parse(engine, &launch.words, start, &launch.env)?;
    let budget = &request.config().budget;
    let size = |flag: &str| said.settings.get(flag).map_or(Some(1), |size| u64::try_from(size.whole()?).ok());
    let share = budget.memory.as_ref().and_then(|memory| memory.fraction);
    let drafts = budget.speculation.as_ref().map_or(0, |speculation| speculation.draft_tokens.into());
    let found = [
        (Fact::MemoryShare, share.map(|share| (f64::from(share) * 100.0).round() as u64)),
        (Fact::Tp, engine.engine.ranks_flag().and_then(size)),
        (Fact::Pp, engine.engine.stages_flag().and_then(size)),
        (Fact::DraftTokens, Some(drafts)),
        (Fact::PrefixCaching, budget.engine.prefix_caching.map(u64::from)),
    ];
    Ok(found.into_iter().filter_map(|(fact, value)| Some((fact, Logged::exact(value?)))).collect())
}

/// What a log says of a fact.
fn logged(log: &EngineLog, fact: Fact) -> Option<Logged> {
    match fact {
        Fact::PrefixCaching => log.prefix_caching().map(|on| Logged::exact(on.into())),
        fact => log.get(fact),
    }
}

/// Numbers beside a log's.
struct Compare<'a> {
    log: &'a EngineLog,
    /// Whether a draft is there, whose buffers a log lists with the model's.
    drafts: bool,
}

impl Compare<'_> {
    fn logged(&self, fact: Fact) -> Option<Logged> {
        // Where the sum is left out, the parts stand for it.
        let parts = || self.log.get(Fact::KvBuffers).filter(|_| fact == Fact::KvBytes && !self.drafts);
        logged(self.log, fact).or_else(parts)
    }

    /// The row of a fact that the log has too.
    fn row(&self, name: Fact, planned: Logged) -> Option<Compared> {
        let logged = self.logged(name)?;
        let drift = if planned.meets(logged) { Drift::None } else { Drift::Unexplained };
        Some(Compared { name, unit: name.unit(), planned, logged, drift, reason: String::new() })
    }

    /// Whether all that follows from bytes is as it was logged.
    fn is_as_logged(&self, answer: &Answer) -> bool {
        let others = answer.facts.iter().filter(|(fact, _)| **fact != Fact::CacheBytes);
        others.into_iter().all(|(fact, value)| self.logged(*fact).is_none_or(|logged| value.meets(logged)))
    }
}

/// The first of usual changes with which a command is as logged.
fn explained(launch: &Launch, options: &Options, is_as_logged: impl Fn(&Launch) -> bool) -> Option<String> {
    let version = options.version.as_deref();
    let Program { engine, .. } = Program::of(launch, version).ok()?;
    let values = |flag: &'static str, values: &[&str]| -> Vec<Vec<Remedy>> {
        values.iter().map(|value| vec![Remedy::Set(flag, (*value).to_owned())]).collect()
    };
    let prefixes = prefix_switch(engine.engine);
    let prefixes = prefixes.map_or(Vec::new(), |(_, on, off)| vec![vec![on], vec![off]]);
    let guesses = match engine.engine.name() {
        "vllm" => [
            values("--kv-cache-dtype", &["auto", "fp8"]),
            prefixes,
            values("--mamba-ssm-cache-dtype", &["float32", "auto"]),
        ]
        .concat(),
        "sglang" => [values("--kv-cache-dtype", &["auto", "fp8_e4m3"]), prefixes].concat(),
        "llama.cpp" => ["f16", "q8_0", "q4_0"]
            .map(|dtype| ["--cache-type-k", "--cache-type-v"].map(|flag| Remedy::Set(flag, dtype.into())).to_vec())
            .to_vec(),
        _ => Vec::new(),
    };
    let found = guesses.into_iter().find(|remedies| {
        let changed = launch.changed(remedies, version);
        changed.is_some_and(|changed| changed.words != launch.words && is_as_logged(&changed))
    })?;
    let said: Vec<String> = found.iter().map(Remedy::written).collect();
    Some(format!(
        "it would be as logged {}{}",
        if said[0].starts_with("without") { "" } else { "with " },
        said.join(" ")
    ))
}

/// The command with the steps that were logged, where nobody names the device that its own default of them depends on.
fn as_logged(launch: &Launch, version: Option<&str>, options: &Options, log: &EngineLog) -> Result<Launch, ServeError> {
    let Program { engine, start, .. } = Program::of(launch, version)?;
    // Of these two the default depends on the device.
    let flag = step_flag(engine.engine.name()).filter(|_| matches!(engine.engine.name(), "vllm" | "sglang"));
    let Some(flag) = flag else { return Ok(launch.clone()) };
    let is_known = options.devices.is_some() || launch.device.is_some();
    let known = flags(engine.engine, engine.version);
    let is_stated = parse(engine, &launch.words, start, &launch.env).is_ok_and(|said| said.settings.contains_key(flag));
    let logged = log.get(Fact::MaxNumTokens).filter(|_| !is_known && !is_stated);
    let Some(logged) = logged.filter(|logged| logged.low == logged.high) else { return Ok(launch.clone()) };
    let changed = Remedy::Set(flag, logged.low.to_string()).applied(&launch.words, start, &known);
    Ok(Launch { words: changed.into_iter().next().unwrap_or_else(|| launch.words.clone()), ..launch.clone() })
}

impl Compared {
    fn drifting(self, reason: String) -> Self {
        Self { drift: Drift::Unexplained, reason, ..self }
    }

    /// It is what the engine's rules give for what differs.
    fn following(self, what: &str) -> Self {
        Self { drift: Drift::Follows, reason: format!("it follows from {what}"), ..self }
    }

    /// How far the bytes are from what the command gives as it was started.
    fn with_bytes_apart(self, planned: Logged) -> Self {
        let less = self.logged.high < planned.low;
        let apart = if less { planned.low - self.logged.high } else { self.logged.low.saturating_sub(planned.high) };
        let why =
            if less { "less: others were on its device, or it took more itself" } else { "more: it took less itself" };
        self.drifting(format!("it had {} {why}", ByteSize(apart)))
    }

    fn line(&self) -> String {
        let [said, logged] = [self.planned, self.logged].map(|of| shown(self.unit, of));
        let verdict = match self.drift {
            Drift::None => "equal",
            Drift::Follows => "follows",
            Drift::Estimate => "estimate",
            Drift::Unexplained => "DRIFT",
        };
        let reason = if self.reason.is_empty() { String::new() } else { format!("  {}\n", self.reason) };
        format!("{:18}  {said:>24}  {logged:>24}  {verdict}\n{reason}", self.name.name())
    }
}

/// A number, or from which to which.
fn shown(unit: Unit, of: Logged) -> String {
    let number = |value: u64| match unit {
        Unit::Bytes => format!("{:.2} GiB", value as f64 / (1u64 << 30) as f64),
        Unit::Hundredths => format!("{:.2}", value as f64 / 100.0),
        _ => value.to_string(),
    };
    let [low, high] = [of.low, of.high].map(number);
    if low == high { low } else { format!("{low}..{high}") }
}
