//! What Qwen and Mixtral configs say of a router.

use cacheplan_kernels::Routing;
use cacheplan_transforms::layers::FeedForward;
use serde::Deserialize;

use super::layer::Layer;
use crate::error::{ConfigError, Result};
use crate::layers::{Activation, Mlp, Moe, size};
use crate::weights::Scope;

/// The keys of a `config.json` that say it.
#[derive(Debug, Deserialize)]
pub(super) struct Experts {
    num_experts_per_tok: Option<usize>,
    norm_topk_prob: Option<bool>,
}

impl Experts {
    /// How their router chooses.
    pub(super) fn routing(&self, sizes: &FeedForward, normalise: bool) -> Result<Routing, ConfigError> {
        let per_token = self.num_experts_per_tok.ok_or(ConfigError::Missing { key: "num_experts_per_tok" })?;
        Ok(Routing::softmax(size(sizes.experts), per_token, normalise))
    }

    /// Reads the experts of a layer that has them.
    pub(super) fn load(
        &self,
        weights: &Scope<'_>,
        layer: &Layer<'_>,
        sizes: &FeedForward,
        activation: Activation,
    ) -> Result<Moe> {
        let normalise = self.norm_topk_prob.ok_or(ConfigError::Missing { key: "norm_topk_prob" })?;
        let expert = layer.mlp(sizes.intermediate_size, activation);
        Moe::load(weights, self.routing(sizes, normalise)?, Mlp::NAMES, expert)
    }
}
