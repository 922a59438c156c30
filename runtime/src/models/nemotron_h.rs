//! Nemotron-H: each layer is one of Mamba-2 mixer, attention without rope, MLP or mixture of experts.

use cacheplan_kernels::{GateOrder, Routing};
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{Activation, Attention, Linear, Mamba2Rules, Mlp, MlpShape, Moe, size};
use crate::prediction::{PredictionNames, PredictionPart};
use crate::weights::{Scope, WeightError, Weights};

/// The keys of a Nemotron-H `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    layer_norm_epsilon: Option<f64>,
    /// The same by an older name; some configs state both.
    rms_norm_eps: Option<f64>,

    #[serde(default = "super::default_true")]
    use_conv_bias: bool,
    #[serde(default)]
    use_bias: bool,
    /// The time step is never below this, not only at initialisation; Hugging Face reads no other bound.
    #[serde(default = "super::time_step_min")]
    time_step_min: f32,
    #[serde(default = "super::silu")]
    mamba_hidden_act: Activation,

    #[serde(default)]
    attention_bias: bool,

    mlp_hidden_act: Activation,
    #[serde(default)]
    mlp_bias: bool,

    num_experts_per_tok: Option<usize>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f64>,

    #[serde(default)]
    tie_word_embeddings: bool,

    /// The layers of a prediction, by name or by a letter each.
    mtp_layers_block_type: Option<Vec<String>>,
    mtp_hybrid_override_pattern: Option<String>,
}

/// Builds a Nemotron-H decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let eps = need(config.layer_norm_epsilon.or(config.rms_norm_eps), "layer_norm_epsilon")?;
    let rules = Mamba2Rules {
        conv_bias: config.use_conv_bias,
        activation: config.mamba_hidden_act,
        in_bias: config.use_bias,
        out_bias: config.use_bias,
        norm_eps: eps as f32,
        gate: GateOrder::GateThenNorm,
        dt_limit: (config.time_step_min, f32::INFINITY),
    };
    let frame = TensorNames::backbone(eps, config.tie_word_embeddings);
    let prediction = weights.predicts().then(|| config.prediction()).transpose()?;
    decoder(model, weights, TensorNames { prediction, ..frame }, |layer| {
        let (norm, mixer) = (layer.norm("norm")?, layer.enter("mixer"));
        let block = match layer.blocks {
            [BlockSpec::Mamba2(dims)] => Block::new(norm, layer.mamba2("mixer", dims, rules)?),
            [BlockSpec::Attention(dims)] => {
                let shape = layer.attention(dims, config.attention_bias)?;
                Block::new(norm, Attention::load(&mixer, layer.index, shape, None)?)
            }
            [BlockSpec::FeedForward(FeedForward { matrices: 2, experts: 0, intermediate_size, .. })] => {
                Block::new(norm, Mlp::load_plain(&mixer, config.mlp(layer, *intermediate_size))?)
            }
            [BlockSpec::FeedForward(sizes @ FeedForward { matrices: 2, .. })] => {
                Block::new(norm, config.moe(&mixer, layer, sizes)?)
            }
            _ => return Err(layer.refuse("one of mamba2, attention and a feed-forward block without a gate")),
        };
        Ok(vec![block])
    })
}

impl Config {
    /// What the prediction's layers are called: attention, and experts behind it, which is how all that are published look.
    fn prediction(&self) -> Result<PredictionNames, ConfigError> {
        let stated = |pattern: &String| pattern == "*E";
        let listed = |kinds: &Vec<String>| matches!(kinds.as_slice(), [a, e] if a.ends_with("attention") && e == "moe");
        let known = match (&self.mtp_layers_block_type, &self.mtp_hybrid_override_pattern) {
            (Some(kinds), _) => listed(kinds),
            (None, pattern) => pattern.as_ref().is_none_or(stated),
        };
        if !known {
            let found = format!("{:?}", (&self.mtp_layers_block_type, &self.mtp_hybrid_override_pattern));
            let known = "a prediction of one attention layer and one of experts";
            return Err(ConfigError::unsupported("mtp_layers_block_type", found, known));
        }
        Ok(PredictionNames {
            root: Some("mtp"),
            token_norm: "layers.0.enorm",
            hidden_norm: "layers.0.hnorm",
            projection: "layers.0.eh_proj",
            norm: "layers.1.final_layernorm",
            parts: &[PredictionPart::Attention, PredictionPart::Experts],
            goes_on_normed: true,
        })
    }

    fn mlp(&self, layer: &Layer<'_>, intermediate: u64) -> MlpShape {
        MlpShape { bias: self.mlp_bias, ..layer.mlp(intermediate, self.mlp_hidden_act) }
    }

    fn moe(&self, weights: &Scope<'_>, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Moe> {
        let per_token = need(self.num_experts_per_tok, "num_experts_per_tok")?;
        let routing = Routing {
            groups: self.n_group.unwrap_or(1),
            top_groups: self.topk_group.unwrap_or(1),
            softmax: false,
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            ..Routing::softmax(size(sizes.experts), per_token, need(self.norm_topk_prob, "norm_topk_prob")?)
        };
        // The shared expert has the biases of an MLP, the routed ones have none.
        let expert = layer.mlp(sizes.intermediate_size, self.mlp_hidden_act);
        let expert = MlpShape { hidden: sizes.latent_size.map_or(layer.hidden, size), ..expert };
        let shared = match sizes.shared_size {
            0 => None,
            size => Some(Mlp::load_plain(&weights.enter("shared_experts"), self.mlp(layer, size))?),
        };
        let expert = |weights: &Scope<'_>| Ok(Mlp::load_plain(weights, expert)?);
        let moe = Moe::load_corrected(weights, layer.hidden, routing, expert, shared)?;
        let narrowing =
            |name: &str, from: usize, to: usize| Linear::load(&weights.enter(name), from, to, self.mlp_bias);
        let latent = sizes.latent_size.map(size).map(|latent| {
            let inward = narrowing("fc1_latent_proj", layer.hidden, latent)?;
            Ok::<_, WeightError>([inward, narrowing("fc2_latent_proj", latent, layer.hidden)?])
        });
        Ok(Moe { latent: latent.transpose()?, ..moe })
    }
}

fn need<T>(value: Option<T>, key: &'static str) -> Result<T, ConfigError> {
    value.ok_or(ConfigError::Missing { key })
}
