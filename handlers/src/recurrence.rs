//! How recurrent states move on, hence what must be kept of a token so that its step can be repeated.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The recurrence of a state, as far as its inputs are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Recurrence {
    /// Mamba-1's selective scan: `s = exp(dt * a) * s + dt * x * B`, one time step for each channel.
    SelectiveScan,
    /// Mamba-2's state space duality: `S = exp(dt * a) * S + dt * x (x) B`, one time step for each head.
    Ssd {
        /// Groups of heads that share `B`.
        n_groups: u64,
    },
    /// A matrix for each value head: `S = decay * S + k (x) v`.
    ///
    /// Gated delta nets have the delta rule and a decay per head, Kimi delta attention the delta rule and a decay per
    /// channel, lightning attention neither.
    LinearAttention {
        /// Heads of the keys; consecutive value heads share one.
        num_k_heads: u64,
        /// Whether `v` is first replaced by `beta * (v - k . S)`.
        delta_rule: bool,
        /// What the decay depends on.
        decay: DecayKind,
    },
    /// The real-gated linear recurrent unit: `h = a * h + sqrt(1 - a^2) * sigmoid(input_gate) * x`, where `a` follows
    /// from the recurrence gate.
    RgLru,
}

/// Tells what the decay of linear attention depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayKind {
    /// The head alone; the layer knows it.
    Fixed,
    /// Token and head.
    PerHead,
    /// Token, head and key channel.
    PerChannel,
}

impl fmt::Display for Recurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SelectiveScan => "selective scan",
            Self::Ssd { .. } => "state space duality",
            Self::LinearAttention { delta_rule: true, decay: DecayKind::PerHead, .. } => "gated delta rule",
            Self::LinearAttention { delta_rule: true, decay: DecayKind::PerChannel, .. } => "Kimi delta attention",
            Self::LinearAttention { delta_rule: true, decay: DecayKind::Fixed, .. } => "delta rule",
            Self::LinearAttention { decay: DecayKind::Fixed, .. } => "lightning attention",
            Self::LinearAttention { .. } => "gated linear attention",
            Self::RgLru => "RG-LRU",
        })
    }
}

impl Recurrence {
    /// The recurrence of one of `ranks` that divide the heads among them.
    #[must_use]
    pub fn of_rank(mut self, ranks: u64) -> Self {
        if let Self::Ssd { n_groups: shared } | Self::LinearAttention { num_k_heads: shared, .. } = &mut self {
            *shared = shared.div_ceil(ranks.max(1));
        }
        self
    }
}
