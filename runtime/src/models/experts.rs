//! What Qwen and Mixtral configs say of experts: how many, in which layers, of what size.

use serde::Deserialize;

use crate::error::{ConfigError, RuntimeError};
use crate::layers::{Activation, MlpShape, Moe, Routing};
use crate::weights::Scope;

/// The keys of a `config.json` that say it.
#[derive(Debug, Deserialize)]
pub(super) struct Experts {
    num_experts: Option<usize>,
    /// The same by the name that later configs have.
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<u32>,
    mlp_only_layers: Option<Vec<u32>>,
}

impl Experts {
    fn count(&self) -> usize {
        self.num_experts.or(self.num_local_experts).unwrap_or(0)
    }

    /// Whether a layer has experts in place of one MLP.
    pub(super) fn are_in(&self, layer: u32) -> bool {
        let step = self.decoder_sparse_step.unwrap_or(1);
        let dense = self.mlp_only_layers.as_ref().is_some_and(|layers| layers.contains(&layer));
        self.count() > 0 && !dense && (layer + 1).checked_rem(step) == Some(0)
    }

    /// How their router chooses.
    pub(super) fn routing(&self, normalise: bool) -> Result<Routing, ConfigError> {
        let per_token = self.num_experts_per_tok.ok_or(ConfigError::Missing { key: "num_experts_per_tok" })?;
        match self.count() {
            0 => Err(ConfigError::Missing { key: "num_local_experts" }),
            count => Ok(Routing::softmax(count, per_token, normalise)),
        }
    }

    /// Reads the experts of a layer that has them.
    pub(super) fn load(&self, weights: &Scope<'_>, hidden: usize, activation: Activation) -> Result<Moe, RuntimeError> {
        let intermediate = self.moe_intermediate_size.ok_or(ConfigError::Missing { key: "moe_intermediate_size" })?;
        let normalise = self.norm_topk_prob.ok_or(ConfigError::Missing { key: "norm_topk_prob" })?;
        let expert = MlpShape { hidden, intermediate, bias: false, activation };
        Moe::load(weights, self.routing(normalise)?, ["gate_proj", "up_proj", "down_proj"], expert)
    }
}
