//! Mamba: the first generation's mixer in every layer, nothing else.

use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::RuntimeError;
use crate::layers::{Activation, Mamba1, Mamba1Shape, RmsNorm};
use crate::weights::Weights;

/// The keys of a Mamba `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: u32,
    intermediate_size: usize,
    state_size: usize,
    conv_kernel: usize,
    time_step_rank: usize,
    layer_norm_epsilon: f64,
    #[serde(default = "super::silu")]
    hidden_act: Activation,
    #[serde(default)]
    use_bias: bool,
    #[serde(default = "super::yes")]
    use_conv_bias: bool,
    #[serde(default = "super::yes")]
    tie_word_embeddings: bool,
}

/// Builds a Mamba decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.layer_norm_epsilon);
    let shape = Mamba1Shape {
        hidden,
        d_inner: config.intermediate_size,
        d_state: config.state_size,
        d_conv: config.conv_kernel,
        dt_rank: config.time_step_rank,
        conv_bias: config.use_conv_bias,
        proj_bias: config.use_bias,
        activation: config.hidden_act,
    };
    let backbone = weights.scope("backbone");
    let blocks = (0..config.num_hidden_layers).map(|layer| {
        let scope = backbone.enter("layers").enter(layer);
        let mixer = Mamba1::load(&scope.enter("mixer"), layer, shape)?;
        Ok(Block::new(RmsNorm::load(&scope.enter("norm"), hidden, eps)?, mixer))
    });
    let blocks = blocks.collect::<Result<_, RuntimeError>>()?;
    let embedding = backbone.enter("embeddings").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&backbone.enter("norm_f"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}
