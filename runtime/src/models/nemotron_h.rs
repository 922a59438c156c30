//! Nemotron-H: each layer is one of Mamba-2 mixer, attention without rope, MLP or mixture of experts.

use cacheplan_kernels::GateOrder;
use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{
    Activation, Attention, AttentionShape, Linear, Mamba2, Mamba2Shape, Mlp, MlpShape, Moe, RmsNorm, Routing, Scoring,
};
use crate::weights::{Scope, WeightError, Weights};

/// The keys of a Nemotron-H `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    layers_block_type: Option<Vec<String>>,
    hybrid_override_pattern: Option<String>,
    layer_norm_epsilon: Option<f64>,
    /// The same by an older name; some configs state both.
    rms_norm_eps: Option<f64>,

    mamba_num_heads: usize,
    mamba_head_dim: usize,
    ssm_state_size: usize,
    n_groups: usize,
    conv_kernel: usize,
    #[serde(default = "super::yes")]
    use_conv_bias: bool,
    #[serde(default)]
    use_bias: bool,
    /// The time step is never below this, not only at initialisation; Hugging Face reads no other bound.
    #[serde(default = "super::time_step_min")]
    time_step_min: f32,
    #[serde(default = "super::silu")]
    mamba_hidden_act: Activation,

    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    attention_head_dim: Option<usize>,
    #[serde(default)]
    attention_bias: bool,

    intermediate_size: usize,
    mlp_hidden_act: Activation,
    #[serde(default)]
    mlp_bias: bool,

    n_routed_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    moe_shared_expert_intermediate_size: Option<usize>,
    moe_latent_size: Option<usize>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f64>,

    #[serde(default)]
    tie_word_embeddings: bool,
}

/// What one layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LayerKind {
    Mamba,
    Attention,
    Mlp,
    Moe,
}

/// Builds a Nemotron-H decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.norm_eps()?);
    let backbone = weights.scope("backbone");
    let blocks = (0..).zip(config.layers()?).map(|(layer, kind)| {
        let scope = backbone.enter("layers").enter(layer);
        let mixer = scope.enter("mixer");
        let norm = RmsNorm::load(&scope.enter("norm"), hidden, eps)?;
        Ok(match kind {
            LayerKind::Mamba => Block::new(norm, Mamba2::load(&mixer, layer, config.mamba2(eps))?),
            LayerKind::Attention => Block::new(norm, Attention::load(&mixer, layer, config.attention()?, None)?),
            LayerKind::Mlp => Block::new(norm, Mlp::load_plain(&mixer, config.mlp(config.intermediate_size))?),
            LayerKind::Moe => Block::new(norm, config.moe(&mixer)?),
        })
    });
    let blocks = blocks.collect::<Result<_, RuntimeError>>()?;
    let embedding = backbone.enter("embeddings").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&backbone.enter("norm_f"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}

impl Config {
    fn norm_eps(&self) -> Result<f64, ConfigError> {
        need(self.layer_norm_epsilon.or(self.rms_norm_eps), "layer_norm_epsilon")
    }

    fn layers(&self) -> Result<Vec<LayerKind>, ConfigError> {
        match (&self.layers_block_type, &self.hybrid_override_pattern) {
            (Some(names), _) => names.iter().map(|name| LayerKind::by_name(name)).collect(),
            (None, Some(pattern)) => pattern.chars().map(LayerKind::by_letter).collect(),
            (None, None) => Err(ConfigError::Missing { key: "layers_block_type" }),
        }
    }

    fn mamba2(&self, norm_eps: f64) -> Mamba2Shape {
        Mamba2Shape {
            hidden: self.hidden_size,
            heads: self.mamba_num_heads,
            head_dim: self.mamba_head_dim,
            d_state: self.ssm_state_size,
            n_groups: self.n_groups,
            d_conv: self.conv_kernel,
            conv_bias: self.use_conv_bias,
            activation: self.mamba_hidden_act,
            in_bias: self.use_bias,
            out_bias: self.use_bias,
            norm_eps: norm_eps as f32,
            gate: GateOrder::GateThenNorm,
            dt_limit: (self.time_step_min, f32::INFINITY),
        }
    }

    fn attention(&self) -> Result<AttentionShape, ConfigError> {
        Ok(AttentionShape {
            hidden: self.hidden_size,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: need(self.head_dim.or(self.attention_head_dim), "head_dim")?,
            bias: self.attention_bias,
        })
    }

    fn mlp(&self, intermediate: usize) -> MlpShape {
        MlpShape { hidden: self.hidden_size, intermediate, bias: self.mlp_bias, activation: self.mlp_hidden_act }
    }

    fn moe(&self, weights: &Scope<'_>) -> Result<Moe, RuntimeError> {
        let routing = Routing {
            experts: need(self.n_routed_experts, "n_routed_experts")?,
            experts_per_token: need(self.num_experts_per_tok, "num_experts_per_tok")?,
            groups: self.n_group.unwrap_or(1),
            top_groups: self.topk_group.unwrap_or(1),
            scoring: Scoring::Sigmoid,
            normalise: need(self.norm_topk_prob, "norm_topk_prob")?,
            scale: self.routed_scaling_factor.unwrap_or(1.0),
        };
        // The shared expert has the biases of an MLP, the routed ones have none.
        let expert = self.mlp(need(self.moe_intermediate_size, "moe_intermediate_size")?);
        let hidden = self.moe_latent_size.unwrap_or(self.hidden_size);
        let expert = MlpShape { hidden, bias: false, ..expert };
        let key = "moe_shared_expert_intermediate_size";
        let shared = self.mlp(need(self.moe_shared_expert_intermediate_size, key)?);
        let shared = Mlp::load_plain(&weights.enter("shared_experts"), shared)?;
        let expert = |weights: &Scope<'_>| Ok(Mlp::load_plain(weights, expert)?);
        let moe = Moe::load_corrected(weights, self.hidden_size, routing, expert, Some(shared))?;
        let narrowing =
            |name: &str, from: usize, to: usize| Linear::load(&weights.enter(name), from, to, self.mlp_bias);
        let latent = self.moe_latent_size.map(|latent| {
            let inward = narrowing("fc1_latent_proj", self.hidden_size, latent)?;
            Ok::<_, WeightError>([inward, narrowing("fc2_latent_proj", latent, self.hidden_size)?])
        });
        Ok(Moe { latent: latent.transpose()?, ..moe })
    }
}

fn need<T>(value: Option<T>, key: &'static str) -> Result<T, ConfigError> {
    value.ok_or(ConfigError::Missing { key })
}

impl LayerKind {
    fn by_name(name: &str) -> Result<Self, ConfigError> {
        match name {
            "linear_attention" | "mamba" => Ok(Self::Mamba),
            "full_attention" | "attention" => Ok(Self::Attention),
            "mlp" => Ok(Self::Mlp),
            "moe" => Ok(Self::Moe),
            other => Err(ConfigError::Unsupported {
                key: "layers_block_type",
                found: other.to_owned(),
                known: "linear_attention (mamba), full_attention (attention), mlp and moe",
            }),
        }
    }

    fn by_letter(letter: char) -> Result<Self, ConfigError> {
        match letter {
            'M' => Ok(Self::Mamba),
            '*' => Ok(Self::Attention),
            '-' => Ok(Self::Mlp),
            'E' => Ok(Self::Moe),
            other => Err(ConfigError::Unsupported {
                key: "hybrid_override_pattern",
                found: other.to_string(),
                known: "M, *, - and E",
            }),
        }
    }
}
