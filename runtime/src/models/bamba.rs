//! Bamba: Mamba-2 or attention with rope, then a gated MLP, in every layer.

use cacheplan_kernels::GateOrder;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{TensorNames, decoder};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::layers::{Attention, Mamba2Config, Mlp, MlpShape, RopeConfig};
use crate::weights::Weights;

usual! {
    /// The keys of a Bamba `config.json` that its decoder reads.
    pub(super) struct Config {
        #[serde(default)]
        mlp_bias: bool,
        #[serde(flatten)]
        mamba: Mamba2Config,
        #[serde(flatten)]
        rope: RopeConfig,
    }
}

/// Builds a Bamba decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let mamba = config.mamba.rules(config.hidden_act, config.rms_norm_eps, GateOrder::GateThenNorm);
    let frame = TensorNames { norm: "final_layernorm", ..config.names() };
    decoder(model, weights, frame, |layer| {
        let [mixer, BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, experts: 0, .. })] = layer.blocks else {
            return Err(layer.refuse("attention or mamba2, and a gated feed-forward block without experts"));
        };
        let before = layer.norm("input_layernorm")?;
        let mixer = match mixer {
            BlockSpec::Attention(dims) => {
                let shape = layer.attention(dims, config.attention_bias)?;
                let rope = config.rope.with_share(0.5).partial_rope(shape.head_dim)?;
                Block::new(before, Attention::load(&layer.enter("self_attn"), layer.index, shape, Some(rope))?)
            }
            BlockSpec::Mamba2(dims) => Block::new(before, layer.mamba2("mamba", dims, mamba)?),
            _ => return Err(layer.refuse("attention or mamba2, and a feed-forward block")),
        };
        let mlp = MlpShape { bias: config.mlp_bias, ..layer.mlp(sizes.intermediate_size, config.hidden_act) };
        let mlp = Mlp::load_gated(&layer.enter("feed_forward"), mlp)?;
        Ok(vec![mixer, Block::new(layer.norm("pre_ff_layernorm")?, mlp)])
    })
}
