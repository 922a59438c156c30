//! How recurrent states move on, hence what must be kept of a token so that its step can be repeated.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::handler::REPLAY;
use crate::{DType, Dim, Growth, HandlerError, Kind, ResourceHandler, Shape, Split};

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

/// What the decay of linear attention depends on.
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

impl ResourceHandler {
    /// The same recurrent state, with how it moves on.
    #[must_use]
    pub fn with_recurrence(self, recurrence: Recurrence) -> Self {
        Self { recurrence: Some(recurrence), ..self }
    }

    /// How a recurrent state moves on; `None` where nobody said.
    pub fn recurrence(&self) -> Option<Recurrence> {
        self.recurrence
    }

    /// What one candidate of a speculative step feeds into the recurrence, as kinds `replay.…` of their own.
    ///
    /// The tensors are those that the layer's kernel takes, before it normalises keys or makes time steps:
    /// activations in `activations`, gates and time steps in float32, so that stepping over them again gives the same
    /// bits. `None` where the recurrence is not known.
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn replay_inputs(&self, activations: DType) -> Result<Option<Vec<Self>>, HandlerError> {
        let (Some(recurrence), Some(Shape::Ssm { num_heads: heads, head_dim: rows, d_state: columns })) =
            (self.recurrence, self.known_shape())
        else {
            return Ok(None);
        };
        let heads = Dim::split("num_heads", heads, Split::Heads);
        let of_heads = |dim, size| vec![heads.clone(), Dim::whole(dim, size)];
        let each_head = || vec![heads.clone()];
        let inputs = match recurrence {
            // One head is one channel, and `B` is the same for all of them.
            Recurrence::SelectiveScan => vec![
                ("x", of_heads("head_dim", rows), activations),
                ("b", vec![Dim::whole("d_state", columns)], activations),
                ("dt", of_heads("head_dim", rows), DType::F32),
            ],
            Recurrence::Ssd { n_groups } => {
                let groups = Dim::split("n_groups", n_groups, Split::Heads);
                vec![
                    ("x", of_heads("head_dim", rows), activations),
                    ("b", vec![groups, Dim::whole("d_state", columns)], activations),
                    ("dt", each_head(), DType::F32),
                    ("decay", each_head(), DType::F32),
                ]
            }
            Recurrence::LinearAttention { num_k_heads, delta_rule, decay } => {
                let key_heads = Dim::split("num_k_heads", num_k_heads, Split::Heads);
                let mut inputs = vec![
                    ("k", vec![key_heads, Dim::whole("head_k_dim", rows)], activations),
                    ("v", of_heads("head_v_dim", columns), activations),
                ];
                if delta_rule {
                    inputs.push(("beta", each_head(), DType::F32));
                }
                match decay {
                    DecayKind::Fixed => {}
                    DecayKind::PerHead => inputs.push(("g", each_head(), DType::F32)),
                    DecayKind::PerChannel => inputs.push(("g", of_heads("head_k_dim", rows), DType::F32)),
                }
                inputs
            }
            Recurrence::RgLru => {
                ["x", "input_gate", "recurrence_gate"].map(|input| (input, each_head(), activations)).into()
            }
        };
        let made = inputs.into_iter().map(|(input, shape, dtype)| {
            Self::new(Kind::Custom(format!("{REPLAY}{input}")), Growth::PerDraftPosition, shape, dtype, None)
        });
        made.collect::<Result<_, _>>().map(Some)
    }
}
