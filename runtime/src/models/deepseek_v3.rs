//! DeepSeek-V2 and V3: latent attention, then a gated MLP or a mixture of experts.

use cacheplan_kernels::Routing;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{Mla, MlaShape, Mlp, Moe, PreprocessedMla, RopeConfig, SharedExpert, size};
use crate::prediction::{PredictionNames, PredictionPart};
use crate::weights::{Scope, Weights};

usual! {
    /// The keys of a `config.json` of either that its decoder reads.
    pub(super) struct Config {
        #[serde(default = "super::default_true")]
        rope_interleave: bool,
        num_experts_per_tok: usize,
        n_group: Option<usize>,
        topk_group: Option<usize>,
        /// DeepSeek-V2's way to choose: among all experts, or among those of the best groups.
        topk_method: Option<String>,
        norm_topk_prob: bool,
        routed_scaling_factor: f64,
        #[serde(flatten)]
        rope: RopeConfig,
    }
}

type LoadExperts = fn(&Config, &Scope<'_>, &Layer<'_>, &FeedForward) -> Result<Moe>;

/// Builds a DeepSeek-V3 decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let names = PredictionNames {
        root: None,
        token_norm: "enorm",
        hidden_norm: "hnorm",
        projection: "eh_proj",
        norm: "shared_head.norm",
        parts: &[PredictionPart::Attention],
        goes_on_normed: false,
    };
    build(config, model, weights, Some(names), Config::corrected_experts)
}

/// Builds a DeepSeek-V2 decoder.
pub(super) fn load_v2(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    build(config, model, weights, None, Config::experts)
}

fn build(
    config: &Config,
    model: &Model,
    weights: &Weights,
    prediction: Option<PredictionNames>,
    load_experts: LoadExperts,
) -> Result<Decoder> {
    let frame = config.names();
    decoder(model, weights, TensorNames { prediction, ..frame }, |layer| {
        let [BlockSpec::Mla(dims), BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, latent_size: None, .. })] =
            layer.blocks
        else {
            return Err(layer.refuse("mla and a gated feed-forward block"));
        };
        let shape = layer.mla(dims, config.attention_bias)?;
        let scale = config.rope.yarn_score_factor() / ((shape.nope + shape.rope) as f64).sqrt();
        let shape = MlaShape { scale, interleaved: config.rope_interleave, ..shape };
        let rope = config.rope.rope(shape.rope)?;
        let eps = config.rms_norm_eps;
        let attention = match PreprocessedMla::load_if_asked(&layer.weights, layer.index, shape, &rope, eps)? {
            Some(with_norm) => Block::without_norm(with_norm),
            None => {
                let mla = Mla::load(&layer.enter("self_attn"), layer.index, shape, Some(rope))?;
                Block::new(layer.norm("input_layernorm")?, mla)
            }
        };
        let (before, mlp) = (layer.norm("post_attention_layernorm")?, layer.enter("mlp"));
        let feed_forward = if sizes.experts == 0 {
            Block::new(before, Mlp::load_gated(&mlp, layer.mlp(sizes.intermediate_size, config.hidden_act))?)
        } else {
            Block::new(before, load_experts(config, &mlp, layer, sizes)?)
        };
        Ok(vec![attention, feed_forward])
    })
}

impl Config {
    /// DeepSeek-V3's: sigmoids, corrected for the choice alone.
    fn corrected_experts(&self, weights: &Scope<'_>, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Moe> {
        let [groups, top_groups] = self.groups()?;
        let routing = Routing { groups, top_groups, softmax: false, ..self.routing(sizes) };
        let gated = |weights: &Scope<'_>| Mlp::load_gated(weights, layer.mlp(sizes.intermediate_size, self.hidden_act));
        Moe::load_corrected(weights, layer.hidden, routing, gated, self.shared_experts(weights, layer, sizes)?)
    }

    /// DeepSeek-V2's: shares of one.
    fn experts(&self, weights: &Scope<'_>, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Moe> {
        if self.norm_topk_prob {
            // Implementations differ in what becomes of the factor then.
            return Err(ConfigError::unsupported("norm_topk_prob", "true", "false for this architecture").into());
        }
        let [groups, top_groups] = match self.topk_method.as_deref() {
            None | Some("greedy") => [1, 1],
            Some("group_limited_greedy") => self.groups()?,
            Some(other) => {
                return Err(ConfigError::unsupported("topk_method", other, "greedy and group_limited_greedy").into());
            }
        };
        let routing = Routing { groups, top_groups, best_of_group: 1, ..self.routing(sizes) };
        let expert = layer.mlp(sizes.intermediate_size, self.hidden_act);
        let shared = self.shared_experts(weights, layer, sizes)?.map(|mlp| SharedExpert { mlp, gate: None });
        Ok(Moe { shared, ..Moe::load(weights, routing, Mlp::NAMES, expert)? })
    }

    fn groups(&self) -> Result<[usize; 2], ConfigError> {
        let groups = self.n_group.ok_or(ConfigError::Missing { key: "n_group" })?;
        Ok([groups, self.topk_group.ok_or(ConfigError::Missing { key: "topk_group" })?])
    }

    fn routing(&self, sizes: &FeedForward) -> Routing {
        let routing = Routing::softmax(size(sizes.experts), self.num_experts_per_tok, self.norm_topk_prob);
        Routing { scale: self.routed_scaling_factor, ..routing }
    }

    fn shared_experts(&self, weights: &Scope<'_>, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Option<Mlp>> {
        let shape = match sizes.shared_size {
            0 => return Ok(None),
            size => layer.mlp(size, self.hidden_act),
        };
        Ok(Some(Mlp::load_gated(&weights.enter("shared_experts"), shape)?))
    }
}
