//! What an engine logged beside what its command gives.

use cacheplan_planner::logs::{EngineLog, Fact, Logged, Unit};
use serde::Serialize;

use crate::answer::Answer;
use crate::error::ServeError;
use crate::found::answer_alone;
use crate::launch::Launch;
use crate::question::{Models, Options};

/// The log of a start beside the command that it is of.
#[derive(Debug)]
pub struct CommandCheck {
    /// Each number that both have.
    pub rows: Vec<Compared>,
    /// What the command holds with the bytes that were logged.
    pub answer: Answer,
    /// Why the bytes for caches are not among the rows, if they are not.
    pub without_bytes: Option<ServeError>,
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
        let answer = answer_alone(launch, models, &with(log.get(Fact::CacheBytes).or(options.cache_bytes)))?;
        let alone = answer_alone(launch, models, &with(None));
        let bytes = alone.as_ref().ok().and_then(|alone| alone.facts.get(&Fact::CacheBytes)).copied();
        let of_bytes = bytes.map(|bytes| (Fact::CacheBytes, bytes));
        let others = answer.facts.iter().filter(|(fact, _)| **fact != Fact::CacheBytes);
        let facts = of_bytes.into_iter().chain(others.map(|(fact, value)| (*fact, *value)));
        // A draft's buffers are of another context.
        let drafts = answer.read.iter().any(|flag| flag.flag == "--spec-type");
        let compared = |(fact, predicted): (Fact, Logged)| {
            // Where the sum is left out, the parts stand for it.
            let parts = || log.get(Fact::KvBuffers).filter(|_| fact == Fact::KvBytes && !drafts);
            let logged = log.get(fact).or_else(parts)?;
            Some(Compared { fact, predicted, logged, equal: predicted.meets(logged) })
        };
        Ok(Self { rows: facts.filter_map(compared).collect(), answer, without_bytes: alone.err() })
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
        format!("{:18}  {said:>24}  {logged:>24}  {verdict}\n", self.fact.name())
    }
}
