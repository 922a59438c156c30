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
use crate::weights::{Scope, Weights};

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
    let mut shared = Vec::new();
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
                if shared.len() < config.num_mem_blocks {
                    shared.push(own.clone());
                }
                let is_own = own.enter("input_layernorm").stores("weight");
                let transformer = if is_own { &own } else { &shared[hybrids % shared.len()] };
                let hybrid = config.hybrid(layer, (attention, mamba), transformer, hybrids)?;
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

    /// A layer with a transformer block, the one of number `place` among them.
    fn hybrid(
        &self,
        layer: &Layer<'_>,
        (attention, mamba): (&AttentionSpec, &Mamba2Spec),
        transformer: &Scope<'_>,
        place: usize,
    ) -> Result<Hybrid> {
        let (hidden, both) = (layer.hidden, self.attention_hidden_size);
        let shape = AttentionShape { hidden: both, ..layer.attention(attention, false)? };
        let rope = self.use_mem_rope.then(|| self.rope.rope(shape.head_dim)).transpose()?;
        let self_attn = transformer.enter("self_attn");
        let inward = |name: &str, heads: usize| -> Result<Linear> {
            let outputs = heads * shape.head_dim;
            let linear = Linear::load(&self_attn.enter(format!("{name}_proj")), both, outputs, false)?;
            if !self.use_shared_attention_adapter {
                return Ok(linear);
            }
            let adapter = self_attn.enter(format!("linear_{name}_adapter_list")).enter(place);
            Ok(linear.plus(&self.adapter(&adapter, both, outputs)?)?)
        };
        let outward = Linear::load(&self_attn.enter("o_proj"), shape.heads * shape.head_dim, hidden, false)?;
        let inward = [inward("q", shape.heads)?, inward("k", shape.kv_heads)?, inward("v", shape.kv_heads)?];
        Ok(Hybrid {
            input_norm: layer.norm_of(&transformer.enter("input_layernorm"), both)?,
            attention: Attention::new(layer.index, &inward, outward, shape, rope)?
                .with_scale((shape.head_dim as f64 / 2.0).sqrt().recip()),
            feed_forward_norm: layer.norm_of(&transformer.enter("pre_ff_layernorm"), hidden)?,
            feed_forward: self.feed_forward(&transformer.enter("feed_forward"), hidden, place)?,
            link: Linear::load(&layer.enter("linear"), hidden, hidden, false)?,
            mamba_norm: layer.norm_of(&layer.enter("mamba_decoder").enter("input_layernorm"), hidden)?,
            mamba: layer.mamba2("mamba_decoder.mamba", mamba, self.mamba2())?,
        })
    }

    /// A layer's own change of a shared weight `[outputs, inputs]`, a matrix of low rank.
    fn adapter(&self, weights: &Scope<'_>, inputs: usize, outputs: usize) -> Result<Tensor> {
        let down = weights.enter(0).get("weight", (self.adapter_rank, inputs))?;
        let up = weights.enter(1).get("weight", (outputs, self.adapter_rank))?;
        Ok(up.matmul(&down)?)
    }

    /// The shared gated MLP with the layer's own adapter added to its inward weight.
    fn feed_forward(&self, weights: &Scope<'_>, hidden: usize, hybrid: usize) -> Result<Mlp> {
        let (size, bias) = (self.intermediate_size, self.add_bias_linear);
        let gate_up = Linear::load(&weights.enter("gate_up_proj"), hidden, 2 * size, bias)?;
        let adapter = weights.enter("gate_up_proj_adapter_list").enter(hybrid);
        let gate_up = gate_up.plus(&self.adapter(&adapter, hidden, 2 * size)?)?;
        Ok(Mlp::fused(gate_up, Linear::load(&weights.enter("down_proj"), size, hidden, bias)?, self.hidden_act))
    }
}
