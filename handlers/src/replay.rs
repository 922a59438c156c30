//! How a recurrent state moves on, and what of it a speculative step keeps to step over again.

use crate::handler::REPLAY;
use crate::{DType, DecayKind, Dim, Growth, HandlerError, Kind, Recurrence, ResourceHandler, Shape, Split};

impl ResourceHandler {
    /// The same recurrent state, with how it moves on.
    #[must_use]
    pub fn with_recurrence(self, recurrence: Recurrence) -> Self {
        Self { recurrence: Some(recurrence), ..self }
    }

    /// Returns how a recurrent state moves on; `None` where nobody said.
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
            Recurrence::Ring(_) => return Ok(None),
        };
        let made = inputs.into_iter().map(|(input, shape, dtype)| {
            Self::new(Kind::Custom(format!("{REPLAY}{input}")), Growth::PerDraftPosition, shape, dtype, None)
        });
        made.collect::<Result<_, _>>().map(Some)
    }
}
