//! Zamba2: Mamba-2 in every layer; in some of them a transformer block, shared between layers, feeds its input.

use cacheplan_kernels::{GateOrder, Rope};
use candle_core::Tensor;
use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{
    Activation, Attention, AttentionShape, Linear, Mamba2, Mamba2Shape, Mixer, Mlp, RmsNorm, RopeConfig,
};
use crate::step::Step;
use crate::weights::{Scope, Weights};

/// The gated norm has an epsilon of its own, whatever the config's `rms_norm_eps`.
const GATED_NORM_EPS: f32 = 1e-5;

/// The keys of a Zamba2 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    hidden_act: Activation,
    rms_norm_eps: f64,
    layers_block_type: Vec<String>,
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
    num_attention_heads: usize,
    num_key_value_heads: usize,
    attention_head_dim: usize,
    attention_hidden_size: usize,
    n_mamba_heads: usize,
    mamba_headdim: usize,
    mamba_d_state: usize,
    mamba_d_conv: usize,
    mamba_ngroups: usize,
    /// The time step is never below this, not only at initialisation.
    #[serde(default = "super::time_step_min")]
    time_step_min: f32,
    #[serde(default = "super::yes")]
    use_conv_bias: bool,
    #[serde(default = "super::yes")]
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
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor, RuntimeError> {
        let both = self.input_norm.forward(&Tensor::cat(&[x, step.embedded()], 1)?)?;
        let attended = self.feed_forward_norm.forward(&self.attention.forward(&both, step)?)?;
        let transformed = self.link.forward(&self.feed_forward.forward(&attended)?)?;
        self.mamba.forward(&self.mamba_norm.forward(&(x + transformed)?)?, step)
    }
}

/// Builds a Zamba2 decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    if config.use_mem_rope && config.use_long_context {
        let (found, known) = ("true".to_owned(), "false only");
        return Err(ConfigError::Unsupported { key: "use_long_context", found, known }.into());
    }
    if config.num_mem_blocks == 0 {
        let (found, known) = ("0".to_owned(), "1 and more");
        return Err(ConfigError::Unsupported { key: "num_mem_blocks", found, known }.into());
    }
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let rope = config.use_mem_rope.then(|| config.rope.rope(config.attention_head_dim)).transpose()?;
    let model = weights.scope("model");
    let mut shared = Vec::new();
    let mut hybrids = 0;
    let mut blocks = Vec::new();
    for (layer, kind) in (0..).zip(&config.layers_block_type) {
        let scope = model.enter("layers").enter(layer);
        blocks.push(match kind.as_str() {
            "linear_attention" | "mamba" => {
                let mamba = Mamba2::load(&scope.enter("mamba"), layer, config.mamba2())?;
                Block::new(RmsNorm::load(&scope.enter("input_layernorm"), hidden, eps)?, mamba)
            }
            "hybrid" => {
                // The first layers with a block own its weights; the later ones take turns with them, unless the
                // checkpoint gives them their own.
                let own = scope.enter("shared_transformer");
                if shared.len() < config.num_mem_blocks {
                    shared.push(own.clone());
                }
                let is_own = own.enter("input_layernorm").stores("weight");
                let transformer = if is_own { &own } else { &shared[hybrids % shared.len()] };
                let hybrid = config.hybrid(&scope, transformer, (layer, hybrids), rope.clone())?;
                hybrids += 1;
                Block::without_norm(hybrid)
            }
            other => {
                let (found, known) = (other.to_owned(), "linear_attention (mamba) and hybrid");
                return Err(ConfigError::Unsupported { key: "layers_block_type", found, known }.into());
            }
        });
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("final_layernorm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}

impl Config {
    fn mamba2(&self) -> Mamba2Shape {
        Mamba2Shape {
            hidden: self.hidden_size,
            heads: self.n_mamba_heads,
            head_dim: self.mamba_headdim,
            d_state: self.mamba_d_state,
            n_groups: self.mamba_ngroups,
            d_conv: self.mamba_d_conv,
            conv_bias: self.use_conv_bias,
            activation: Activation::Silu,
            in_bias: self.add_bias_linear,
            out_bias: self.add_bias_linear,
            norm_eps: GATED_NORM_EPS,
            gate: GateOrder::GateThenNorm,
            dt_limit: (self.time_step_min, f32::INFINITY),
        }
    }

    /// `place` is the layer's absolute index and its index among those with a transformer block.
    fn hybrid(
        &self,
        scope: &Scope<'_>,
        transformer: &Scope<'_>,
        place: (u32, usize),
        rope: Option<Rope>,
    ) -> Result<Hybrid, RuntimeError> {
        let (hidden, both, eps) = (self.hidden_size, self.attention_hidden_size, self.rms_norm_eps);
        let shape = AttentionShape {
            hidden: both,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.attention_head_dim,
            bias: false,
        };
        let self_attn = transformer.enter("self_attn");
        let inward = |name: &str, heads: usize| -> Result<Linear, RuntimeError> {
            let outputs = heads * shape.head_dim;
            let linear = Linear::load(&self_attn.enter(format!("{name}_proj")), both, outputs, false)?;
            if !self.use_shared_attention_adapter {
                return Ok(linear);
            }
            let adapter = self_attn.enter(format!("linear_{name}_adapter_list")).enter(place.1);
            Ok(linear.plus(&self.adapter(&adapter, both, outputs)?)?)
        };
        let outward = Linear::load(&self_attn.enter("o_proj"), shape.heads * shape.head_dim, hidden, false)?;
        let projections =
            [inward("q", shape.heads)?, inward("k", shape.kv_heads)?, inward("v", shape.kv_heads)?, outward];
        let decoder = scope.enter("mamba_decoder");
        Ok(Hybrid {
            input_norm: RmsNorm::load(&transformer.enter("input_layernorm"), both, eps)?,
            attention: Attention::new(place.0, projections, shape, rope)?
                .with_scale((shape.head_dim as f64 / 2.0).sqrt().recip()),
            feed_forward_norm: RmsNorm::load(&transformer.enter("pre_ff_layernorm"), hidden, eps)?,
            feed_forward: self.feed_forward(&transformer.enter("feed_forward"), place.1)?,
            link: Linear::load(&scope.enter("linear"), hidden, hidden, false)?,
            mamba_norm: RmsNorm::load(&decoder.enter("input_layernorm"), hidden, eps)?,
            mamba: Mamba2::load(&decoder.enter("mamba"), place.0, self.mamba2())?,
        })
    }

    /// A layer's own change of a shared weight `[outputs, inputs]`, a matrix of low rank.
    fn adapter(&self, weights: &Scope<'_>, inputs: usize, outputs: usize) -> Result<Tensor, RuntimeError> {
        let down = weights.enter(0).get("weight", (self.adapter_rank, inputs))?;
        let up = weights.enter(1).get("weight", (outputs, self.adapter_rank))?;
        Ok(up.matmul(&down)?)
    }

    /// The shared gated MLP with the layer's own adapter added to its inward weight.
    fn feed_forward(&self, weights: &Scope<'_>, hybrid: usize) -> Result<Mlp, RuntimeError> {
        let (hidden, size) = (self.hidden_size, self.intermediate_size);
        let bias = self.add_bias_linear;
        let gate_up = Linear::load(&weights.enter("gate_up_proj"), hidden, 2 * size, bias)?;
        let adapter = weights.enter("gate_up_proj_adapter_list").enter(hybrid);
        let gate_up = gate_up.plus(&self.adapter(&adapter, hidden, 2 * size)?)?;
        Ok(Mlp::fused(gate_up, Linear::load(&weights.enter("down_proj"), size, hidden, bias)?, self.hidden_act))
    }
}
