//! What an engine logged beside what its command gives.

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
        let share = share(launch, models, &unlogged);
        let told = Told::of(launch, version.as_deref(), share, &answer, log)?;
        let flags = || told.flags.iter().map(|(_, flag)| *flag).collect::<Vec<_>>().join(" and ");
        let as_told = if told.flags.is_empty() { None } else { answer_alone(&told.launch, models, &of_bytes).ok() };

        // A draft's buffers are of another context.
        let drafts = answer.read.iter().any(|flag| flag.flag == "--spec-type");
        let compare = Compare { log, drafts };
        let told_row = |row: Compared| match told.flag(row.name) {
            Some(flag) => row.drifting(format!("it was started with another {flag}")),
            None => row,
        };
        let mut rows: Vec<Compared> =
            share.into_iter().filter_map(|share| compare.row(Fact::MemoryShare, share)).map(told_row).collect();
        let bytes = |answer: &Answer| answer.facts.get(&Fact::CacheBytes).copied();
        if let Some(row) = alone.as_ref().ok().and_then(bytes).and_then(|bytes| compare.row(Fact::CacheBytes, bytes)) {
            let as_told = as_told.as_ref().and_then(|_| outcome(&told.launch, models, &unlogged).ok());
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
            let answer = outcome(changed, models, &of_bytes);
            answer.is_ok_and(|answer| compare.is_as_logged(&answer))
        };
        let change = if open.is_empty() { None } else { explained(&told.launch, &of_bytes, is_as_logged) };
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
        let without_bytes = alone.err().map(|why| format!("the bytes for caches are not compared: {why}"));
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
        share: Option<Logged>,
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
        let told = [
            (Fact::MemoryShare, Some(SHARE)),
            (length, Some(engine.engine.length_flag())),
            (Fact::MaxBatchSize, sequences),
            (Fact::MaxNumTokens, step_flag(name)),
        ];
        let (mut flags, mut words) = (Vec::new(), launch.words.clone());
        for (fact, flag) in told {
            let planned = if fact == Fact::MemoryShare { share } else { answer.facts.get(&fact).copied() };
            let (Some(flag), Some(planned), Some(logged)) = (flag, planned, log.get(fact)) else { continue };
            if planned.meets(logged) || logged.low != logged.high {
                continue;
            }
            let value = match fact.unit() {
                Unit::Hundredths => format!("{:.2}", logged.low as f64 / 100.0),
                _ => logged.low.to_string(),
            };
            let Some(changed) = Remedy::Set(flag, value).applied(&words, start, &known).into_iter().next() else {
                continue;
            };
            words = changed;
            flags.push((fact, flag));
        }
        Ok(Self { flags, launch: Launch { words, ..launch.clone() } })
    }

    /// The flag that says the fact, where it was another.
    fn flag(&self, fact: Fact) -> Option<&'static str> {
        self.flags.iter().find(|(told, _)| *told == fact).map(|(_, flag)| *flag)
    }
}

/// The share of a device that a command takes, where it says or leaves one.
fn share(launch: &Launch, models: &Models, options: &Options) -> Option<Logged> {
    let (_, request) = request(launch, models, options).ok()?;
    let fraction = request.config().budget.memory.as_ref()?.fraction?;
    Some(Logged::exact((f64::from(fraction) * 100.0).round() as u64))
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
        self.log.get(fact).or_else(parts)
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
    let Program { engine, start, .. } = Program::of(launch, options.version.as_deref()).ok()?;
    let known = flags(engine.engine, engine.version);
    let values = |flag: &'static str, values: &[&str]| -> Vec<Vec<Remedy>> {
        values.iter().map(|value| vec![Remedy::Set(flag, (*value).to_owned())]).collect()
    };
    let guesses = match engine.engine.name() {
        "vllm" => [
            values("--kv-cache-dtype", &["auto", "fp8"]),
            values("--enable-prefix-caching", &[""]),
            vec![vec![Remedy::Remove("--enable-prefix-caching")]],
            values("--mamba-ssm-cache-dtype", &["float32", "auto"]),
        ]
        .concat(),
        "sglang" => [
            values("--kv-cache-dtype", &["auto", "fp8_e4m3"]),
            values("--disable-radix-cache", &[""]),
            vec![vec![Remedy::Remove("--disable-radix-cache")]],
        ]
        .concat(),
        "llama.cpp" => ["f16", "q8_0", "q4_0"]
            .map(|dtype| ["--cache-type-k", "--cache-type-v"].map(|flag| Remedy::Set(flag, dtype.into())).to_vec())
            .to_vec(),
        _ => Vec::new(),
    };
    let found = guesses.into_iter().find(|remedies| {
        let apply = |words: Vec<String>, remedy: &Remedy| remedy.applied(&words, start, &known).into_iter().next();
        let words = remedies.iter().try_fold(launch.words.clone(), apply);
        words.is_some_and(|words| words != launch.words && is_as_logged(&Launch { words, ..launch.clone() }))
    })?;
    let said = found.iter().map(|remedy| match remedy {
        Remedy::Set(flag, value) => format!("{flag} {value}").trim_end().to_owned(),
        remedy => format!("without {}", remedy.flag()),
    });
    let said: Vec<String> = said.collect();
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
        let number = |value: u64| match self.unit {
            Unit::Bytes => format!("{:.2} GiB", value as f64 / (1u64 << 30) as f64),
            Unit::Hundredths => format!("{:.2}", value as f64 / 100.0),
            _ => value.to_string(),
        };
        let [said, logged] = [self.planned, self.logged].map(|of| {
            let [low, high] = [of.low, of.high].map(number);
            if low == high { low } else { format!("{low}..{high}") }
        });
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
