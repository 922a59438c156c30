//! Mamba-2: the mixer in every layer, nothing else.

use cacheplan_kernels::GateOrder;
use serde::Deserialize;
use serde_json::Value;

use crate::decoder::{Block, Decoder};
use crate::error::RuntimeError;
use crate::layers::{Activation, Mamba2, Mamba2Shape, RmsNorm, dt_limit};
use crate::weights::Weights;

/// The keys of a Mamba-2 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: u32,
    num_heads: usize,
    head_dim: usize,
    state_size: usize,
    n_groups: usize,
    conv_kernel: usize,
    layer_norm_epsilon: f64,
    #[serde(default = "super::silu")]
    hidden_act: Activation,
    #[serde(default)]
    use_bias: bool,
    #[serde(default = "super::yes")]
    use_conv_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    time_step_limit: Option<(Value, Value)>,
}

/// Builds a Mamba-2 decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.layer_norm_epsilon);
    let shape = Mamba2Shape {
        hidden,
        heads: config.num_heads,
        head_dim: config.head_dim,
        d_state: config.state_size,
        n_groups: config.n_groups,
        d_conv: config.conv_kernel,
        conv_bias: config.use_conv_bias,
        activation: config.hidden_act,
        in_bias: config.use_bias,
        out_bias: config.use_bias,
        norm_eps: eps as f32,
        gate: GateOrder::GateThenNorm,
        dt_limit: dt_limit(config.time_step_limit.as_ref()),
    };
    let backbone = weights.scope("backbone");
    let blocks = (0..config.num_hidden_layers).map(|layer| {
        let scope = backbone.enter("layers").enter(layer);
        let mixer = Mamba2::load(&scope.enter("mixer"), layer, shape)?;
        Ok(Block::new(RmsNorm::load(&scope.enter("norm"), hidden, eps)?, mixer))
    });
    let blocks = blocks.collect::<Result<_, RuntimeError>>()?;
    let embedding = backbone.enter("embeddings").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&backbone.enter("norm_f"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}
