//! Mamba: the first generation's mixer in every layer, nothing else.

use cacheplan_transforms::{Model, layers::BlockSpec};
use serde::Deserialize;

use super::layer::{TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::layers::{Activation, Mamba1, Mamba1Shape};
use crate::weights::Weights;

/// The keys of a Mamba `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    layer_norm_epsilon: f64,
    #[serde(default = "super::silu")]
    hidden_act: Activation,
    #[serde(default)]
    use_bias: bool,
    #[serde(default = "super::default_true")]
    use_conv_bias: bool,
    #[serde(default = "super::default_true")]
    tie_word_embeddings: bool,
}

/// Builds a Mamba decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let frame = TensorNames::backbone(config.layer_norm_epsilon, config.tie_word_embeddings);
    decoder(model, weights, frame, |layer| {
        let [BlockSpec::Mamba1(dims)] = layer.blocks else { return Err(layer.refuse("one mamba1")) };
        let biases = [config.use_conv_bias, config.use_bias];
        let shape = Mamba1Shape::new(layer.hidden, dims, config.hidden_act, biases);
        let mixer = Mamba1::load(&layer.enter("mixer"), layer.index, shape)?;
        Ok(vec![Block::new(layer.norm("norm")?, mixer)])
    })
}
