//! What a run gave, as data and as a table.

use std::fmt;

use cacheplan_managers::book::Stats;
use cacheplan_planner::{ByteSize, Owner};
use serde::Serialize;

use crate::generation::Generation;
use crate::profile::MemoryProfile;
use crate::request::{Finish, Request};
use crate::speed::Speed;

/// The result of a run; its JSON is a contract.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The tokens generated for each request.
    pub tokens: Vec<Vec<u32>>,
    /// One entry per request.
    pub requests: Vec<RequestReport>,
    /// The generated texts, in the order of the requests, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub texts: Option<Vec<Option<String>>>,
    /// How fast it went.
    pub speed: Speed,
    /// What prompts took over of what was cached; absent where they may not.
    pub reuse: Option<Reuse>,
    /// How full the pools were.
    pub stats: Stats,
    /// Why no prompt takes over what is cached of another; absent where they may.
    pub no_reuse: Option<String>,
    /// Planned beside actual.
    pub report: MemoryReport,
}

/// What prompts took over of what was cached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reuse {
    /// Tokens that did not have to be computed.
    pub hit_tokens: u64,
    /// Their share of the tokens of all prompts.
    pub hit_rate: f64,
    /// Tokens, besides, that sequences which had made way did not have to compute again.
    pub returned_tokens: u64,
}

impl Reuse {
    /// That of a run, as far as its requests have begun.
    pub(crate) fn of(requests: &[Request], generation: &Generation) -> Self {
        let begun = requests.iter().zip(&generation.outputs).filter(|(_, output)| output.times.queued.is_some());
        let (mut hit_tokens, mut prompt_tokens) = (0, 0);
        for (request, output) in begun {
            hit_tokens += output.cached_tokens as u64;
            prompt_tokens += request.prompt.len() as u64;
        }
        let hit_rate = if prompt_tokens == 0 { 0.0 } else { hit_tokens as f64 / prompt_tokens as f64 };
        Self { hit_tokens, hit_rate, returned_tokens: generation.speed.returned_tokens }
    }
}

/// What one request took.
#[derive(Clone, Debug, Serialize)]
pub struct RequestReport {
    /// Whether any of it was computed.
    #[serde(skip)]
    pub begun: bool,
    /// Tokens in its prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt whose caches were already there.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Times that it gave up its caches because the pools ran out.
    pub preemptions: u32,
    /// Why it ended.
    pub finish_reason: Finish,
    /// Why it could not go on, where that is why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What was planned beside what was allocated and measured.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    /// Every pool, in the plan's order.
    pub pools: Vec<PoolReport>,
    /// The most bytes on the device while generating, weights and caches included; absent if nobody counts.
    pub peak_bytes: Option<u64>,
    /// The measurement that the pools were sized by, if there was one.
    pub profile: Option<MemoryProfile>,
    /// How many times the pools were allocated anew.
    pub generation: u32,
}

/// One pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolReport {
    /// The pool.
    pub id: String,
    /// Who allocated it.
    pub owner: Option<Owner>,
    /// Bytes that the plan gives it.
    pub planned_bytes: u64,
    /// Bytes that the allocator or the device counted; absent if nobody counts.
    pub actual_bytes: Option<u64>,
}

impl RunReport {
    pub(crate) fn new(
        requests: &[Request],
        generation: &Generation,
        pools: Vec<PoolReport>,
        profile: Option<MemoryProfile>,
        generation_number: u32,
        stats: Stats,
        reuse: Result<Reuse, String>,
    ) -> Self {
        let (reuse, no_reuse) = match reuse {
            Ok(reuse) => (Some(reuse), None),
            Err(reason) => (None, Some(reason)),
        };
        let of_request = requests.iter().zip(&generation.outputs).map(|(request, output)| RequestReport {
            begun: output.times.queued.is_some(),
            prompt_tokens: request.prompt.len(),
            cached_tokens: output.cached_tokens,
            generated_tokens: output.tokens.len(),
            preemptions: output.preemptions,
            finish_reason: output.finish,
            error: output.error.as_ref().map(ToString::to_string),
        });
        Self {
            tokens: generation.outputs.iter().map(|output| output.tokens.clone()).collect(),
            requests: of_request.collect(),
            texts: None,
            speed: generation.speed.clone(),
            reuse,
            stats,
            no_reuse,
            report: MemoryReport { pools, peak_bytes: generation.peak_bytes, profile, generation: generation_number },
        }
    }
}

impl fmt::Display for MemoryReport {
    /// A table at most 100 columns wide, planned beside actual bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<40} {:>16} {:>16}  same", "pool", "planned bytes", "actual bytes")?;
        let mut planned_sum = 0u64;
        let mut actual_sum = Some(0u64);
        for pool in &self.pools {
            line(f, &pool.id, pool.planned_bytes, pool.actual_bytes)?;
            planned_sum += pool.planned_bytes;
            actual_sum = actual_sum.zip(pool.actual_bytes).map(|(sum, bytes)| sum + bytes);
        }
        line(f, "all pools", planned_sum, actual_sum)?;
        if let Some(profile) = &self.profile {
            let (forward, tokens, method) = (ByteSize(profile.forward_bytes), profile.tokens, profile.method);
            writeln!(f, "one forward of {tokens} tokens needs {forward} more ({method})")?;
        }
        match self.peak_bytes {
            Some(peak) => writeln!(f, "peak while generating: {peak} bytes ({})", ByteSize(peak)),
            None => writeln!(f, "peak while generating: not counted"),
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, planned: u64, actual: Option<u64>) -> fmt::Result {
    let (actual_text, same) = match actual {
        Some(bytes) => (bytes.to_string(), if bytes == planned { "yes" } else { "NO" }),
        None => ("not counted".to_owned(), "?"),
    };
    let name: String = name.chars().take(40).collect();
    writeln!(f, "{name:<40} {planned:>16} {actual_text:>16}  {same}")
}
