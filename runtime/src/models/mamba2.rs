//! Mamba-2: the mixer in every layer, nothing else.

use cacheplan_kernels::GateOrder;
use cacheplan_transforms::{Model, layers::BlockSpec};
use serde::Deserialize;
use serde_json::Value;

use super::layer::{TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::layers::{Activation, Mamba2Rules, dt_limit};
use crate::weights::Weights;

/// The keys of a Mamba-2 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    layer_norm_epsilon: f64,
    #[serde(default = "super::silu")]
    hidden_act: Activation,
    #[serde(default)]
    use_bias: bool,
    #[serde(default = "super::default_true")]
    use_conv_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    time_step_limit: Option<(Value, Value)>,
}

/// Builds a Mamba-2 decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let rules = Mamba2Rules {
        conv_bias: config.use_conv_bias,
        activation: config.hidden_act,
        in_bias: config.use_bias,
        out_bias: config.use_bias,
        norm_eps: config.layer_norm_epsilon as f32,
        gate: GateOrder::GateThenNorm,
        dt_limit: dt_limit(config.time_step_limit.as_ref()),
    };
    let frame = TensorNames::backbone(config.layer_norm_epsilon, config.tie_word_embeddings);
    decoder(model, weights, frame, |layer| {
        let [BlockSpec::Mamba2(dims)] = layer.blocks else { return Err(layer.refuse("one mamba2")) };
        Ok(vec![Block::new(layer.norm("norm")?, layer.mamba2("mixer", dims, rules)?)])
    })
}
