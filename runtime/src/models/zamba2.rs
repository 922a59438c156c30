//! Zamba2: Mamba-2 in every layer; in some of them a transformer block, shared between layers, feeds its input.

use cacheplan_kernels::{GateOrder, Rope, Run};
use cacheplan_managers::device::ReplayLayer;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{Attention as AttentionSpec, BlockSpec, Mamba2 as Mamba2Spec};
use candle_core::Tensor;
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use crate::block::Block;
use crate::cache_use::CacheUse;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::exported::{Writer, int};
use crate::layers::{
    Activation, Attention, AttentionShape, Linear, Mamba2, Mamba2Rules, Mixer, Mlp, RmsNorm, RopeConfig,
};
use crate::step::Step;
use crate::weights::{LowRank, Matrix, Scope, Weights};

/// The gated norm has an epsilon of its own, whatever the config's `rms_norm_eps`.
const GATED_NORM_EPS: f32 = 1e-5;

/// The keys of a Zamba2 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    intermediate_size: usize,
    hidden_act: Activation,
    rms_norm_eps: f64,
    num_mem_blocks: usize,
    adapter_rank: usize,
    #[serde(default)]
    add_bias_linear: bool,
    #[serde(default)]
    use_shared_attention_adapter: bool,
    #[serde(default)]
    use_mem_rope: bool,
    #[serde(default)]
    use_long_context: bool,
    attention_hidden_size: usize,
    /// The time step is never below this, not only at initialisation.
    #[serde(default = "super::time_step_min")]
    time_step_min: f32,
    #[serde(default = "super::default_true")]
    use_conv_bias: bool,
    #[serde(default = "super::default_true")]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// A transformer block that layers share, each with changes of its own.
#[derive(Clone)]
struct Transformer<'a> {
    /// Where the changes are, too.
    weights: Scope<'a>,
    shape: AttentionShape,
    input_norm: RmsNorm,
    inward: Linear,
    outward: Linear,
    feed_forward_norm: RmsNorm,
    gate_up: Linear,
    down: Linear,
}

/// To queries, keys and values, with their outputs.
fn projections(shape: &AttentionShape) -> [(&'static str, usize); 3] {
    [("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)]
        .map(|(name, heads)| (name, heads * shape.head_dim))
}

/// `mamba(norm(x + link(transformer(x, embeddings))))`.
#[derive(Debug)]
struct Hybrid {
    input_norm: RmsNorm,
    attention: Attention,
    feed_forward_norm: RmsNorm,
    feed_forward: Mlp,
    link: Linear,
    mamba_norm: RmsNorm,
    mamba: Mamba2,
}

impl Mixer for Hybrid {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let on = step.on();
        let both = self.input_norm.forward(on, &Tensor::cat(&[x, step.embedded()], 1)?)?;
        let attended = self.feed_forward_norm.forward(on, &self.attention.forward(&both, step)?)?;
        let transformed = self.link.forward(on, &self.feed_forward.forward(on, &attended)?)?;
        self.mamba.forward(&self.mamba_norm.forward(on, &(x + transformed)?)?, step)
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let embedded = writer.embedded().to_owned();
        let both = writer.node_with("Concat", &[x, &embedded], vec![int("axis", -1)]);
        let both = self.input_norm.trace(writer, &both)?;
        let attended = self.attention.trace(writer, &both)?;
        let attended = self.feed_forward_norm.trace(writer, &attended)?;
        let transformed = self.feed_forward.written(writer, &attended)?;
        let transformed = self.link.trace(writer, &transformed)?;
        let sum = writer.node("Add", &[x, &transformed]);
        let normed = self.mamba_norm.trace(writer, &sum)?;
        self.mamba.trace(writer, &normed)
    }

    fn replay(&self, on: &Run<'_>, kept: &ReplayLayer<'_>) -> Result<bool> {
        self.mamba.replay(on, kept)
    }

    fn caches(&self) -> Vec<CacheUse> {
        [self.attention.caches(), self.mamba.caches()].concat()
    }

    fn ropes(&self) -> Vec<&Rope> {
        self.attention.ropes()
    }
}

/// Builds a Zamba2 decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    if config.use_mem_rope && config.use_long_context {
        return Err(ConfigError::unsupported("use_long_context", "true", "false only").into());
    }
    if config.num_mem_blocks == 0 {
        return Err(ConfigError::unsupported("num_mem_blocks", "0", "1 and more").into());
    }
    let frame =
        TensorNames { norm: "final_layernorm", ..TensorNames::new(config.rms_norm_eps, config.tie_word_embeddings) };
    let mut shared: Vec<Transformer<'_>> = Vec::new();
    let mut hybrids = 0;
    decoder(model, weights, frame, |layer| {
        let block = match layer.blocks {
            [BlockSpec::Mamba2(dims)] => {
                Block::new(layer.norm("input_layernorm")?, layer.mamba2("mamba", dims, config.mamba2())?)
            }
            [BlockSpec::Attention(attention), BlockSpec::Mamba2(mamba)] => {
                // The first layers with a block own its weights; the later ones take turns with them, unless the
                // checkpoint gives them their own.
                let own = layer.enter("shared_transformer");
                let is_owner = shared.len() < config.num_mem_blocks;
                let transformer = if is_owner || own.enter("input_layernorm").stores("weight") {
                    config.transformer(layer, attention, own)?
                } else {
                    shared[hybrids % shared.len()].clone()
                };
                if is_owner {
                    shared.push(transformer.clone());
                }
                let hybrid = config.hybrid(layer, mamba, transformer, hybrids)?;
                hybrids += 1;
                Block::without_norm(hybrid)
            }
            _ => return Err(layer.refuse("mamba2, alone or behind attention")),
        };
        Ok(vec![block])
    })
}

impl Config {
    fn mamba2(&self) -> Mamba2Rules {
        Mamba2Rules {
            conv_bias: self.use_conv_bias,
            activation: Activation::Silu,
            in_bias: self.add_bias_linear,
            out_bias: self.add_bias_linear,
            norm_eps: GATED_NORM_EPS,
            gate: GateOrder::GateThenNorm,
            dt_limit: (self.time_step_min, f32::INFINITY),
        }
    }

    /// What layers share.
    fn transformer<'a>(&self, layer: &Layer<'_>, dims: &AttentionSpec, weights: Scope<'a>) -> Result<Transformer<'a>> {
        let (hidden, both) = (layer.hidden, self.attention_hidden_size);
        let (size, bias) = (self.intermediate_size, self.add_bias_linear);
        let shape = AttentionShape { hidden: both, ..layer.attention(dims, false)? };
        let (self_attn, feed_forward) = (weights.enter("self_attn"), weights.enter("feed_forward"));
        let inward = projections(&shape)
            .map(|(name, outputs)| Linear::load(&self_attn.enter(format!("{name}_proj")), both, outputs, false));
        let inward = inward.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(Transformer {
            shape,
            input_norm: layer.norm_of(&weights.enter("input_layernorm"), both)?,
            inward: Linear::stacked(&inward)?,
            outward: Linear::load(&self_attn.enter("o_proj"), shape.heads * shape.head_dim, hidden, false)?,
            feed_forward_norm: layer.norm_of(&weights.enter("pre_ff_layernorm"), hidden)?,
            gate_up: Linear::load(&feed_forward.enter("gate_up_proj"), hidden, 2 * size, bias)?,
            down: Linear::load(&feed_forward.enter("down_proj"), size, hidden, bias)?,
            weights,
        })
    }

    /// A layer with a transformer block, the one of number `place` among them.
    fn hybrid(
        &self,
        layer: &Layer<'_>,
        mamba: &Mamba2Spec,
        transformer: Transformer<'_>,
        place: usize,
    ) -> Result<Hybrid> {
        let Transformer { weights, shape, mut inward, outward, gate_up, down, .. } = transformer;
        let (hidden, self_attn) = (layer.hidden, weights.enter("self_attn"));
        let rope = self.use_mem_rope.then(|| self.rope.rope(shape.head_dim)).transpose()?;
        if self.use_shared_attention_adapter {
            let changes = projections(&shape).map(|(name, outputs)| {
                let adapter = self_attn.enter(format!("linear_{name}_adapter_list")).enter(place);
                self.adapter(&adapter, shape.hidden, outputs)
            });
            inward = inward.plus(LowRank(changes.into_iter().collect::<Result<_>>()?));
        }
        let adapter = weights.enter("feed_forward").enter("gate_up_proj_adapter_list").enter(place);
        let gate_up = gate_up.plus(LowRank(vec![self.adapter(&adapter, hidden, 2 * self.intermediate_size)?]));
        Ok(Hybrid {
            input_norm: transformer.input_norm,
            attention: Attention::new(layer.index, &[inward], outward, shape, rope)?
                .with_scale((shape.head_dim as f64 / 2.0).sqrt().recip()),
            feed_forward_norm: transformer.feed_forward_norm,
            feed_forward: Mlp::fused(gate_up, down, self.hidden_act),
            link: Linear::load(&layer.enter("linear"), hidden, hidden, false)?,
            mamba_norm: layer.norm_of(&layer.enter("mamba_decoder").enter("input_layernorm"), hidden)?,
            mamba: layer.mamba2("mamba_decoder.mamba", mamba, self.mamba2())?,
        })
    }

    /// A layer's own change of a shared weight `[outputs, inputs]`.
    fn adapter(&self, weights: &Scope<'_>, inputs: usize, outputs: usize) -> Result<[Matrix; 2]> {
        let down = weights.enter(0).product("weight", [self.adapter_rank, inputs])?;
        Ok([down, weights.enter(1).product("weight", [outputs, self.adapter_rank])?])
    }
}
