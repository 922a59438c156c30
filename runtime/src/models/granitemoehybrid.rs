//! Granite 4 hybrid: Mamba-2 or attention, then experts beside a shared MLP, in every layer; scaled everywhere.

use cacheplan_kernels::{GateOrder, Routing};
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{
    Attention, ExpertMlps, Linear, Mamba2Config, Mixer, Mlp, Moe, RopeConfig, SharedExpert, checked_routing, size,
};
use crate::weights::Weights;

usual! {
    /// The keys of a Granite hybrid `config.json` that its decoder reads.
    pub(super) struct Config {
        position_embedding_type: Option<String>,
        /// The same in GGUF.
        #[serde(default)]
        rotated: bool,
        num_experts_per_tok: Option<usize>,
        embedding_multiplier: f64,
        attention_multiplier: f64,
        residual_multiplier: f64,
        logits_scaling: f64,
        #[serde(flatten)]
        mamba: Mamba2Config,
        #[serde(flatten)]
        rope: RopeConfig,
    }
}

/// Builds a Granite hybrid decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let mamba = config.mamba.rules(config.hidden_act, config.rms_norm_eps, GateOrder::GateThenNorm);
    let rotated = config.rotated || config.position_embedding_type.as_deref() == Some("rope");
    let frame = TensorNames {
        embedding_scale: config.embedding_multiplier,
        logit_scale: 1.0 / config.logits_scaling,
        ..config.names()
    };
    decoder(model, weights, frame, |layer| {
        let [mixer, BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, latent_size: None, .. })] = layer.blocks
        else {
            return Err(layer.refuse("attention or mamba2, and a gated feed-forward block"));
        };
        let before = layer.norm("input_layernorm")?;
        let mixer = match mixer {
            BlockSpec::Attention(dims) => {
                let shape = layer.attention(dims, config.attention_bias)?;
                let rope = rotated.then(|| config.rope.rope(shape.head_dim)).transpose()?;
                let attention = Attention::load(&layer.enter("self_attn"), layer.index, shape, rope)?;
                Block::new(before, attention.with_scale(config.attention_multiplier))
            }
            BlockSpec::Mamba2(dims) => Block::new(before, layer.mamba2("mamba", dims, mamba)?),
            _ => return Err(layer.refuse("attention or mamba2, and a gated feed-forward block")),
        };
        let feed_forward = config.feed_forward(layer, sizes)?;
        let feed_forward = Block::boxed(layer.norm("post_attention_layernorm")?, feed_forward);
        Ok([mixer, feed_forward].map(|block| Block { output_scale: config.residual_multiplier, ..block }).into())
    })
}

impl Config {
    /// The shared MLP, beside experts if the layer has any.
    fn feed_forward(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Box<dyn Mixer>> {
        let (hidden, activation, experts) = (layer.hidden, self.hidden_act, size(sizes.experts));
        let shared = layer.enter("shared_mlp");
        let width = size(if experts == 0 { sizes.intermediate_size } else { sizes.shared_size });
        // GGUF files have gate and up apart, here and in the experts.
        let apart = shared.enter("gate_proj").stores("weight");
        let shared = if apart {
            Mlp::load_gated(&shared, layer.mlp(width as u64, activation))?
        } else {
            let gate_up = Linear::load(&shared.enter("input_linear"), hidden, 2 * width, false)?;
            let down = Linear::load(&shared.enter("output_linear"), width, hidden, false)?;
            Mlp::fused(gate_up, down, activation)
        };
        if experts == 0 {
            return Ok(Box::new(shared));
        }
        let per_token = self.num_experts_per_tok.ok_or(ConfigError::Missing { key: "num_experts_per_tok" })?;
        let moe = layer.enter("block_sparse_moe");
        let of_each = if apart {
            let (expert, inner) = (layer.mlp(sizes.intermediate_size, activation), moe.enter("experts"));
            ExpertMlps::load(moe.backend(), experts, |i| Mlp::load_gated(&inner.enter(i), expert))?
        } else {
            let width = size(sizes.intermediate_size);
            let gate_up = moe.enter("input_linear").matrix("weight", (experts, 2 * width, hidden))?;
            let down = moe.enter("output_linear").matrix("weight", (experts, hidden, width))?;
            ExpertMlps::fused(moe.backend(), gate_up, down, activation)?
        };
        let routing = checked_routing(Routing::softmax(experts, per_token, true))?;
        let router = Linear::load(&moe.enter("router").enter("layer"), hidden, experts, false)?;
        let shared = Some(SharedExpert { mlp: shared, gate: None });
        Ok(Box::new(Moe { shared, ..Moe::new(routing, router, of_each) }))
    }
}
