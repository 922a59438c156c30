//! What a simulation found.

use serde::Serialize;

use super::scenario::{Policy, Scenario};
use crate::prefix::{Metrics, Reuse};

/// The state of a simulation after some requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Requests so far.
    pub requests: usize,
    /// Hit tokens over prompt tokens so far.
    pub hit_rate: f64,
    /// States in the tree.
    pub checkpoints: usize,
}

/// The most that was there at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// States in the tree.
    pub checkpoints: usize,
    /// KV tokens of running requests and the tree, in whole blocks.
    pub kv_tokens: usize,
    /// KV tokens on the host.
    pub host_kv_tokens: usize,
    /// States on the host.
    pub host_checkpoints: usize,
}

/// The outcome of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was simulated.
    pub scenario: Scenario,
    /// Hit tokens over prompt tokens.
    pub hit_rate: f64,
    /// The hit rate that the resident KV would have allowed.
    pub kv_hit_rate: f64,
    /// Prompt tokens that had to be computed.
    pub computed_tokens: u64,
    /// The most states that were in the tree at a time.
    pub peak_checkpoints: usize,
    /// The most of everything.
    pub peak: Peak,
    /// All counters of the cache.
    pub metrics: Metrics,
    /// Whether reuse could work for prompts of their mean length.
    pub reuse: Reuse,
    /// The course of it.
    pub course: Vec<Point>,
}

impl Report {
    /// The policy it is about.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.scenario.policy
    }

    /// One row of a table; [`Report::HEADER`] names the columns.
    #[must_use]
    pub fn row(&self) -> String {
        let cap = self.scenario.checkpoints.map_or_else(|| "unlimited".to_owned(), |cap| cap.to_string());
        format!(
            "{:<15} {:>11} {:>8.4} {:>7.4} {:>9} {:>10} {:>7} {:>7} {:>5} {:>5} {:>6}",
            self.scenario.policy.name(),
            cap,
            self.hit_rate,
            self.kv_hit_rate,
            self.computed_tokens,
            self.metrics.recomputed_for_state,
            self.metrics.states_stored,
            self.metrics.states_evicted,
            self.metrics.misses.cold,
            self.metrics.misses.no_state,
            self.peak_checkpoints,
        )
    }

    /// The columns of [`Report::row`].
    pub const HEADER: &str =
        "policy          checkpoints hit rate kv rate  computed for states  stored evicted  cold state   peak";
}
