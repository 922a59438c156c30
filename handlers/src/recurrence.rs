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
    /// Rows by position, the newest in the place of the oldest: what rejected candidates wrote is written again, so that
    /// nothing need be kept to put it back.
    Ring(Ring),
}

/// How many rows a ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ring {
    /// Rows that are still read when the next token comes, its own included; drafted tokens come on top.
    pub behind: u64,
    /// Rows come in multiples of this.
    pub unit: u64,
    /// Whether the multiple is a power of two.
    pub doubles: bool,
}

impl Ring {
    /// Names what of it is 0, so that it would hold nothing.
    pub(crate) fn zero(&self) -> Option<&'static str> {
        let sizes = [("behind", self.behind), ("unit", self.unit)];
        sizes.into_iter().find(|(_, size)| *size == 0).map(|(name, _)| name)
    }

    /// Rows where so many tokens are drafted in a step.
    pub fn rows(&self, drafted: u64) -> u64 {
        let units = self.behind.saturating_add(drafted).div_ceil(self.unit.max(1));
        let units = if self.doubles { units.checked_next_power_of_two().unwrap_or(u64::MAX) } else { units };
        units.saturating_mul(self.unit.max(1))
    }
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
            Self::Ring(_) => "ring",
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(Ring { behind: 2, unit: 8, doubles: true }, 0, 8)]
    #[case(Ring { behind: 2, unit: 8, doubles: true }, 6, 8)]
    #[case(Ring { behind: 2, unit: 8, doubles: true }, 7, 16)]
    #[case(Ring { behind: 2, unit: 8, doubles: true }, 15, 32)]
    #[case(Ring { behind: 4, unit: 4, doubles: false }, 5, 12)]
    #[case(Ring { behind: 16, unit: 16, doubles: true }, 17, 64)]
    #[case(Ring { behind: 7, unit: 1, doubles: false }, 3, 10)]
    fn a_ring_has_rows_for_what_is_read_and_what_is_drafted(
        #[case] ring: Ring,
        #[case] drafted: u64,
        #[case] rows: u64,
    ) {
        assert_eq!(ring.rows(drafted), rows);
    }
}
