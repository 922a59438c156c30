//! What an engine logged beside what its command gives.

use cacheplan_planner::ByteSize;
use cacheplan_planner::logs::{EngineLog, Fact, Logged, Unit};
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
#[derive(Debug)]
pub struct CommandCheck {
    /// Each number that both have.
    pub rows: Vec<Compared>,
    /// What the command holds with the bytes that were logged.
    pub answer: Answer,
    /// Why the bytes for caches are not among the rows, if they are not.
    pub without_bytes: Option<ServeError>,
    /// The one change of the command with which all that follows from bytes is as logged, where there is one.
    pub would_be: Option<String>,
}

/// A number of a command beside its log's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// What it is.
    pub fact: Fact,
    /// What the command gives.
    pub predicted: Logged,
    /// What the log says.
    pub logged: Logged,
    /// Whether they have a value in common.
    pub equal: bool,
    /// Why they have none, as far as both say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl CommandCheck {
    /// Sets both beside each other: what follows from bytes for those that were logged, and these beside what the command gives
    /// alone.
    ///
    /// # Errors
    /// As [`answer`](crate::answer).
    pub fn of(launch: &Launch, models: &Models, options: &Options, log: &EngineLog) -> Result<Self, ServeError> {
        let version = options.version.clone().or_else(|| log.version.map(|version| version.to_string()));
        let with = |cache_bytes| Options { cache_bytes, version: version.clone(), ..options.clone() };
        let logged = as_logged(launch, version.as_deref(), options, log)?;
        let (own, launch) = (launch, &logged);
        let answer = answer_alone(launch, models, &with(log.get(Fact::CacheBytes).or(options.cache_bytes)))?;
        let alone = answer_alone(launch, models, &with(None));
        let bytes = alone.as_ref().ok().and_then(|alone| alone.facts.get(&Fact::CacheBytes)).copied();
        let share = share(launch, models, &with(None)).map(|share| (Fact::MemoryShare, share));
        let of_bytes = bytes.map(|bytes| (Fact::CacheBytes, bytes));
        // A draft's buffers are of another context.
        let drafts = answer.read.iter().any(|flag| flag.flag == "--spec-type");
        let own_rows = share.into_iter().chain(of_bytes).filter_map(|row| compared(row, log, drafts));
        let mut rows: Vec<Compared> = own_rows.collect();
        of_bytes_reason(&mut rows, launch, models, &with(None));
        let mut follow = following(&answer, log, drafts);
        // Nobody says on which device the default would be another.
        follow.retain(|row| own.words == launch.words || row.fact != Fact::MaxNumTokens);
        let differs = follow.iter().any(|row| !row.equal);
        let bytes = with(log.get(Fact::CacheBytes).or(options.cache_bytes));
        let is_as_logged = |changed: &Launch| {
            let answer = outcome(changed, models, &bytes);
            answer.is_ok_and(|answer| following(&answer, log, drafts).iter().all(|row| row.equal))
        };
        let would_be = if differs { explained(launch, &bytes, is_as_logged) } else { None };
        for row in follow.iter_mut().filter(|row| !row.equal) {
            let none = "the bytes that were logged do not give it, nor does a usual change of the command";
            row.reason = Some(would_be.clone().unwrap_or_else(|| none.to_owned()));
        }
        rows.extend(follow);
        Ok(Self { rows, answer, without_bytes: alone.err(), would_be })
    }

    /// What is not as the command gives it.
    pub fn drifting(&self) -> Vec<&'static str> {
        self.rows.iter().filter(|row| !row.equal).map(|row| row.fact.name()).collect()
    }

    /// As a table.
    pub fn table(&self) -> String {
        let head = format!("{:18}  {:>24}  {:>24}\n", "", "the command gives", "logged");
        head + &self.rows.iter().map(Compared::line).collect::<String>()
    }
}

/// The flag that says vLLM's share of a device.
const SHARE: &str = "--gpu-memory-utilization";

/// The share of a device that a command takes, where it says or leaves one.
fn share(launch: &Launch, models: &Models, options: &Options) -> Option<Logged> {
    let (_, request) = request(launch, models, options).ok()?;
    let fraction = request.config().budget.memory.as_ref()?.fraction?;
    Some(Logged::exact((f64::from(fraction) * 100.0).round() as u64))
}

/// Says why another share was logged than the command's, and other bytes.
fn of_bytes_reason(rows: &mut [Compared], launch: &Launch, models: &Models, options: &Options) {
    let with_share = |share: u64| {
        let Program { engine, start } = Program::of(launch, options.version.as_deref()).ok()?;
        let set = Remedy::Set(SHARE, format!("{:.2}", share as f64 / 100.0));
        let words = set.applied(&launch.words, start, &flags(engine.engine, engine.version)).into_iter().next()?;
        let changed = outcome(&Launch { words, ..launch.clone() }, models, options).ok()?;
        changed.facts.get(&Fact::CacheBytes).copied()
    };
    let mut told = None;
    for row in rows.iter_mut().filter(|row| !row.equal) {
        if row.fact == Fact::MemoryShare {
            told = Some(row.logged.low);
            row.reason = Some(format!("it was started with another {SHARE}"));
            continue;
        }
        let follows = told.and_then(with_share).is_some_and(|bytes| bytes.meets(row.logged));
        row.reason = Some(if follows {
            format!("it follows from {SHARE}")
        } else {
            let less = row.logged.high < row.predicted.low;
            let apart = if less { row.predicted.low - row.logged.high } else { row.logged.low - row.predicted.high };
            let why = if less {
                "less: others were on its device, or it took more itself"
            } else {
                "more: it took less itself"
            };
            format!("it had {} {why}", ByteSize(apart))
        });
    }
}

/// What follows from bytes, as the command gives it and as it was logged.
fn following(answer: &Answer, log: &EngineLog, drafts: bool) -> Vec<Compared> {
    let others = answer.facts.iter().filter(|(fact, _)| **fact != Fact::CacheBytes);
    others.filter_map(|(fact, value)| compared((*fact, *value), log, drafts)).collect()
}

fn compared((fact, predicted): (Fact, Logged), log: &EngineLog, drafts: bool) -> Option<Compared> {
    // Where the sum is left out, the parts stand for it.
    let parts = || log.get(Fact::KvBuffers).filter(|_| fact == Fact::KvBytes && !drafts);
    let logged = log.get(fact).or_else(parts)?;
    Some(Compared { fact, predicted, logged, equal: predicted.meets(logged), reason: None })
}

/// The first of usual changes with which a command is as logged.
fn explained(launch: &Launch, options: &Options, is_as_logged: impl Fn(&Launch) -> bool) -> Option<String> {
    let Program { engine, start } = Program::of(launch, options.version.as_deref()).ok()?;
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
    let Program { engine, start } = Program::of(launch, version)?;
    let flag = match engine.engine.name() {
        "vllm" => "--max-num-batched-tokens",
        "sglang" => "--chunked-prefill-size",
        _ => return Ok(launch.clone()),
    };
    let is_known = options.devices.is_some() || launch.device.is_some();
    let known = flags(engine.engine, engine.version);
    let is_stated = parse(engine, &launch.words, start, &launch.env).is_ok_and(|said| said.settings.contains_key(flag));
    let logged = log.get(Fact::MaxNumTokens).filter(|_| !is_known && !is_stated);
    let Some(logged) = logged.filter(|logged| logged.low == logged.high) else { return Ok(launch.clone()) };
    let changed = Remedy::Set(flag, logged.low.to_string()).applied(&launch.words, start, &known);
    Ok(Launch { words: changed.into_iter().next().unwrap_or_else(|| launch.words.clone()), ..launch.clone() })
}

impl Compared {
    fn line(&self) -> String {
        let number = |value: u64| match self.fact.unit() {
            Unit::Bytes => format!("{:.2} GiB", value as f64 / (1u64 << 30) as f64),
            Unit::Hundredths => format!("{:.2}", value as f64 / 100.0),
            _ => value.to_string(),
        };
        let [said, logged] = [self.predicted, self.logged].map(|of| {
            let [low, high] = [of.low, of.high].map(number);
            if low == high { low } else { format!("{low}..{high}") }
        });
        let verdict = if self.equal { "equal" } else { "DRIFT" };
        let reason = self.reason.iter().map(|reason| format!("  {reason}\n")).collect::<String>();
        format!("{:18}  {said:>24}  {logged:>24}  {verdict}\n{reason}", self.fact.name())
    }
}
