//! Kimi Linear: Kimi delta attention and latent attention without rope, then a gated MLP or experts.

use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{Activation, Kda, KdaShape, Mla, MlaShape, Mlp, MlpShape, Moe, RmsNorm, Routing, Scoring};
use crate::weights::{Scope, Weights};

/// The keys of a Kimi Linear `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    hidden_act: Activation,
    rms_norm_eps: f64,
    num_hidden_layers: usize,
    layer_types: Option<Vec<String>>,
    mlp_layer_types: Option<Vec<String>>,
    /// How many layers are dense, in configs that do not list them.
    first_k_dense_replace: Option<usize>,
    num_attention_heads: usize,
    q_lora_rank: Option<usize>,
    kv_lora_rank: usize,
    qk_nope_head_dim: usize,
    qk_rope_head_dim: usize,
    v_head_dim: usize,
    #[serde(default)]
    attention_bias: bool,
    /// Whether latent attention goes without rotation.
    #[serde(default = "super::yes")]
    mla_use_nope: bool,
    linear_num_heads: Option<usize>,
    linear_head_dim: Option<usize>,
    linear_conv_kernel_dim: Option<usize>,
    linear_attn_config: Option<LinearAttention>,
    num_experts: usize,
    num_experts_per_token: usize,
    num_shared_experts: usize,
    moe_intermediate_size: usize,
    num_expert_group: usize,
    topk_group: usize,
    moe_renormalize: bool,
    routed_scaling_factor: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
}

/// The layers with delta attention as the published configs state them; these keys go before the later ones.
#[derive(Debug, Deserialize)]
struct LinearAttention {
    /// Counted from 1.
    full_attn_layers: Vec<usize>,
    head_dim: usize,
    num_heads: usize,
    short_conv_kernel_size: usize,
}

/// Builds a Kimi Linear decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let mla = MlaShape {
        hidden,
        heads: config.num_attention_heads,
        q_lora_rank: config.q_lora_rank,
        kv_lora_rank: config.kv_lora_rank,
        nope: config.qk_nope_head_dim,
        rope: config.qk_rope_head_dim,
        value: config.v_head_dim,
        bias: config.attention_bias,
        scale: 1.0 / ((config.qk_nope_head_dim + config.qk_rope_head_dim) as f64).sqrt(),
        interleaved: false,
    };
    let kda = config.kda()?;
    let unsupported = |key: &'static str, found: &str, known: &'static str| {
        RuntimeError::from(ConfigError::Unsupported { key, found: found.to_owned(), known })
    };
    if !config.mla_use_nope {
        return Err(unsupported("mla_use_nope", "false", "true only"));
    }
    let (mixers, feed_forwards) = (config.layer_types()?, config.mlp_layer_types()?);
    if mixers.len() != feed_forwards.len() {
        return Err(unsupported("mlp_layer_types", &format!("{} long", feed_forwards.len()), "one for each layer"));
    }
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for (layer, (mixer, feed_forward)) in (0..).zip(mixers.iter().zip(&feed_forwards)) {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let (before, self_attn) = (norm("input_layernorm")?, scope.enter("self_attn"));
        blocks.push(match mixer.as_str() {
            "linear_attention" => Block::new(before, Kda::load(&self_attn, layer, kda)?),
            "full_attention" => Block::new(before, Mla::load(&self_attn, layer, mla, None)?),
            other => return Err(unsupported("layer_types", other, "linear_attention and full_attention")),
        });
        let (before, mlp) = (norm("post_attention_layernorm")?, scope.enter("block_sparse_moe"));
        blocks.push(match feed_forward.as_str() {
            "dense" => Block::new(before, Mlp::load_gated(&mlp, config.mlp(config.intermediate_size))?),
            "sparse" => Block::new(before, config.moe(&mlp)?),
            other => return Err(unsupported("mlp_layer_types", other, "dense and sparse")),
        });
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("norm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}

impl Config {
    fn layer_types(&self) -> Result<Vec<String>, ConfigError> {
        if let Some(types) = &self.layer_types {
            return Ok(types.clone());
        }
        let linear = self.linear_attn_config.as_ref().ok_or(ConfigError::Missing { key: "layer_types" })?;
        let is_full = |layer| linear.full_attn_layers.contains(&(layer + 1));
        let name = |layer| if is_full(layer) { "full_attention" } else { "linear_attention" };
        Ok((0..self.num_hidden_layers).map(|layer| name(layer).to_owned()).collect())
    }

    fn mlp_layer_types(&self) -> Result<Vec<String>, ConfigError> {
        if let Some(types) = &self.mlp_layer_types {
            return Ok(types.clone());
        }
        let dense = self.first_k_dense_replace.ok_or(ConfigError::Missing { key: "mlp_layer_types" })?;
        let name = |layer| if layer < dense { "dense" } else { "sparse" };
        Ok((0..self.num_hidden_layers).map(|layer| name(layer).to_owned()).collect())
    }

    fn kda(&self) -> Result<KdaShape, ConfigError> {
        let need = |stated: fn(&LinearAttention) -> usize, later: Option<usize>, key: &'static str| {
            self.linear_attn_config.as_ref().map(stated).or(later).ok_or(ConfigError::Missing { key })
        };
        Ok(KdaShape {
            hidden: self.hidden_size,
            heads: need(|linear| linear.num_heads, self.linear_num_heads, "linear_num_heads")?,
            head_dim: need(|linear| linear.head_dim, self.linear_head_dim, "linear_head_dim")?,
            d_conv: need(
                |linear| linear.short_conv_kernel_size,
                self.linear_conv_kernel_dim,
                "linear_conv_kernel_dim",
            )?,
            activation: self.hidden_act,
            norm_eps: self.rms_norm_eps,
        })
    }

    fn mlp(&self, intermediate: usize) -> MlpShape {
        MlpShape { hidden: self.hidden_size, intermediate, bias: false, activation: self.hidden_act }
    }

    fn moe(&self, weights: &Scope<'_>) -> Result<Moe, RuntimeError> {
        let routing = Routing {
            experts: self.num_experts,
            experts_per_token: self.num_experts_per_token,
            groups: self.num_expert_group,
            top_groups: self.topk_group,
            scoring: Scoring::Sigmoid,
            normalise: self.moe_renormalize,
            scale: self.routed_scaling_factor,
        };
        let expert = self.mlp(self.moe_intermediate_size);
        let shared = self.mlp(self.moe_intermediate_size * self.num_shared_experts);
        let shared = Mlp::load_gated(&weights.enter("shared_experts"), shared)?;
        let expert = |weights: &Scope<'_>| Mlp::load_named(weights, ["w1", "w3", "w2"], expert);
        Moe::load_corrected(weights, self.hidden_size, routing, expert, Some(shared))
    }
}
