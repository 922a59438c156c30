//! What the cache achieved, and why it did not achieve more.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::book::Exposition;

use super::config::TreeConfig;
use super::evict::Evicted;
use super::key::Key;
use super::lookup::Match;
use super::tree::Tree;

/// Counters since the cache was made. Lengths are in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Requests admitted.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Tokens that did not have to be computed.
    pub hit_tokens: u64,
    /// Tokens whose KV was resident.
    pub kv_hit_tokens: u64,
    /// Tokens computed again although their KV was resident, because no state was there to continue from.
    pub recomputed_for_state: u64,
    /// Requests without a hit, by reason.
    pub misses: Misses,
    /// States that the tree kept.
    pub states_stored: u64,
    /// States released because the tree had one there.
    pub states_duplicate: u64,
    /// States released because their length is not a multiple of the page.
    pub states_unaligned: u64,
    /// States evicted.
    pub states_evicted: u64,
    /// KV tokens evicted.
    pub tokens_evicted: u64,
    /// Nodes that evictions looked at.
    pub nodes_examined: u64,
}

/// Requests without a hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Misses {
    /// Nothing of the prompt was resident.
    pub cold: u64,
    /// KV was resident, but no state on its path.
    pub no_state: u64,
    /// KV was resident, but the window before every usable position had gaps.
    pub no_window: u64,
    /// The only state is at the very end of the prompt, where it leaves no token to compute.
    pub only_at_end: u64,
}

impl Metrics {
    /// Families of metrics of the same.
    pub fn expose(&self, out: &mut Exposition) {
        let counters = [
            ("requests", "Requests admitted.", self.requests),
            ("prompt_tokens", "Tokens of their prompts.", self.prompt_tokens),
            ("hit_tokens", "Tokens that did not have to be computed.", self.hit_tokens),
            ("kv_hit_tokens", "Tokens whose KV was resident.", self.kv_hit_tokens),
            (
                "recomputed_for_state_tokens",
                "Tokens computed again although their KV was resident, for want of a state.",
                self.recomputed_for_state,
            ),
            ("states_stored", "States that were kept.", self.states_stored),
            ("states_evicted", "States that made way.", self.states_evicted),
            ("evicted_tokens", "Tokens whose KV made way.", self.tokens_evicted),
        ];
        for (name, help, value) in counters {
            out.family(&format!("prefix_{name}_total"), "counter", help).sample(&[], value as f64);
        }
        let released = [("duplicate", self.states_duplicate), ("unaligned", self.states_unaligned)];
        out.family("prefix_states_released_total", "counter", "States that were not kept, by reason.");
        for (reason, count) in released {
            out.sample(&[("reason", reason)], count as f64);
        }
        let Misses { cold, no_state, no_window, only_at_end } = self.misses;
        out.family("prefix_misses_total", "counter", "Requests without a hit, by reason.");
        let misses = [("cold", cold), ("no_state", no_state), ("no_window", no_window), ("only_at_end", only_at_end)];
        for (reason, count) in misses {
            out.sample(&[("reason", reason)], count as f64);
        }
    }

    /// Hit tokens over prompt tokens.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hit_tokens, self.prompt_tokens)
    }

    /// The hit rate that the resident KV would allow if states were everywhere.
    #[must_use]
    pub fn kv_hit_rate(&self) -> f64 {
        ratio(self.kv_hit_tokens, self.prompt_tokens)
    }

    pub(super) fn admitted(&mut self, tree: &Tree, prompt: Key<'_>, found: &Match) {
        self.requests += 1;
        self.prompt_tokens += prompt.tokens.len() as u64;
        self.hit_tokens += found.hit as u64;
        self.kv_hit_tokens += found.kv_hit as u64;
        self.recomputed_for_state += (found.window_hit.max(found.hit) - found.hit) as u64;
        if found.hit > 0 {
            return;
        }
        let misses = &mut self.misses;
        // Of a prompt of one page, nothing but the whole could be hit.
        let reason = if !prompt.tokens.is_empty() && tree.match_prefix(prompt).hit == prompt.tokens.len() {
            &mut misses.only_at_end
        } else if found.kv_hit == 0 {
            &mut misses.cold
        } else if found.window_hit == 0 {
            &mut misses.no_window
        } else {
            &mut misses.no_state
        };
        *reason += 1;
    }

    pub(super) fn stored(&mut self, given: bool, fits: bool, kept: bool) {
        let counter = match (given, fits, kept) {
            (false, ..) => return,
            (_, false, _) => &mut self.states_unaligned,
            (.., true) => &mut self.states_stored,
            _ => &mut self.states_duplicate,
        };
        *counter += 1;
    }

    pub(super) fn evicted(&mut self, evicted: Evicted) {
        self.states_evicted += evicted.states as u64;
        self.tokens_evicted += evicted.tokens as u64;
        self.nodes_examined += evicted.examined as u64;
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Tells whether prefix reuse can work, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reuse")]
pub enum Reuse {
    /// It can.
    On,
    /// The plan has no slots for checkpoints, so that no state survives its request.
    NoCheckpointSlots,
    /// Typical prompts end before the first position at which a state can be kept.
    PromptsBelowGrid {
        /// The first position, in tokens.
        grid: usize,
        /// The typical prompt, in tokens.
        prompt: usize,
    },
}

impl fmt::Display for Reuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => write!(f, "prefixes can be reused"),
            Self::NoCheckpointSlots => {
                write!(f, "no state outlives its sequence; state `workload.checkpoints_per_sequence`")
            }
            Self::PromptsBelowGrid { grid, prompt } => {
                write!(
                    f,
                    "prompts of {prompt} tokens end before token {grid}, the first that a state can be kept after"
                )
            }
        }
    }
}

impl Reuse {
    /// Tells whether prefixes can be reused at all.
    pub fn is_on(self) -> bool {
        self == Self::On
    }

    pub(super) fn judge(config: &TreeConfig, checkpoint_slots: usize, typical_prompt: usize) -> Self {
        let grid = if config.states { config.grid() } else { config.page };
        if config.states && checkpoint_slots == 0 {
            Self::NoCheckpointSlots
        } else if typical_prompt <= grid {
            Self::PromptsBelowGrid { grid, prompt: typical_prompt }
        } else {
            Self::On
        }
    }
}
