//! Falcon-H1: Mamba-2 and attention side by side, then a gated MLP, in every layer; scaled everywhere.

use cacheplan_kernels::GateOrder;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::layers::{Attention, Branch, Linear, Mamba2Config, Mamba2Rules, Mlp, Parallel, RopeConfig, size};
use crate::weights::Weights;

usual! {
    /// The keys of a Falcon-H1 `config.json` that its decoder reads.
    pub(super) struct Config {
        #[serde(default)]
        mlp_bias: bool,
        mamba_rms_norm: bool,
        mamba_norm_before_gate: bool,
        /// Whether the mixer's outward projection has a bias; the inward one has its own key.
        #[serde(default)]
        projectors_bias: bool,
        embedding_multiplier: f64,
        lm_head_multiplier: f64,
        mlp_multipliers: (f64, f64),
        ssm_in_multiplier: f64,
        ssm_out_multiplier: f64,
        ssm_multipliers: [f64; 5],
        attention_in_multiplier: f64,
        attention_out_multiplier: f64,
        key_multiplier: f64,
        #[serde(flatten)]
        mamba: Mamba2Config,
        #[serde(flatten)]
        rope: RopeConfig,
    }
}

/// Builds a Falcon-H1 decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let gate = match (config.mamba_rms_norm, config.mamba_norm_before_gate) {
        (false, _) => GateOrder::GateOnly,
        (true, true) => GateOrder::NormThenGate,
        (true, false) => GateOrder::GateThenNorm,
    };
    let rules = config.mamba.rules(config.hidden_act, config.rms_norm_eps, gate);
    let rules = Mamba2Rules { out_bias: config.projectors_bias, ..rules };
    let frame = TensorNames {
        norm: "final_layernorm",
        embedding_scale: config.embedding_multiplier,
        logit_scale: config.lm_head_multiplier,
        ..config.names()
    };
    decoder(model, weights, frame, |layer| {
        let [
            BlockSpec::Attention(attention),
            BlockSpec::Mamba2(mamba),
            BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, experts: 0, .. }),
        ] = layer.blocks
        else {
            return Err(layer.refuse("attention beside mamba2, and a gated feed-forward block without experts"));
        };
        let mamba = layer.mamba2("mamba", mamba, rules)?;
        let shape = layer.attention(attention, config.attention_bias)?;
        let rope = Some(config.rope.rope(shape.head_dim)?);
        let attention = Attention::load(&layer.enter("self_attn"), layer.index, shape, rope)?;
        let branches = vec![
            Branch {
                input_scale: config.ssm_in_multiplier,
                output_scale: config.ssm_out_multiplier,
                ..Branch::new(mamba.with_projection_scales(config.ssm_multipliers)?)
            },
            Branch {
                input_scale: config.attention_in_multiplier,
                output_scale: config.attention_out_multiplier,
                ..Branch::new(attention.with_key_scale(config.key_multiplier)?)
            },
        ];
        Ok(vec![
            Block::new(layer.norm("input_layernorm")?, Parallel(branches)),
            Block::new(layer.norm("pre_ff_layernorm")?, config.mlp(layer, sizes)?),
        ])
    })
}

impl Config {
    fn mlp(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Mlp> {
        let weights = layer.enter("feed_forward");
        let (hidden, size, bias) = (layer.hidden, size(sizes.intermediate_size), self.mlp_bias);
        let (gate_scale, down_scale) = self.mlp_multipliers;
        let gate = Linear::load(&weights.enter("gate_proj"), hidden, size, bias)?.scaled(gate_scale)?;
        let up = Linear::load(&weights.enter("up_proj"), hidden, size, bias)?;
        let down = Linear::load(&weights.enter("down_proj"), size, hidden, bias)?.scaled(down_scale)?;
        Ok(Mlp::gated(gate, up, down, self.hidden_act)?)
    }
}
