//! GLM-5.3-Flash: Kimi delta attention with a bounded decay, and latent attention without rope over tokens that an indexer
//! chooses, then a gated MLP or experts, all among several residual streams.

use cacheplan_kernels::Routing;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward, Mla as MlaSpec};
use serde::Deserialize;

use super::layer::{Ends, Layer, TensorNames, decoder};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{
    Activation, Chooser, ClampedSwiglu, GatedKeys, GatedKeysShape, Indexer, IndexerShape, Kda, KdaDecay, MixedShape,
    MixedStreams, Mla, MlaShape, Mlp, Moe, size,
};
use crate::weights::{Scope, Weights};

usual! {
    /// The keys of a GLM-5.3-Flash `config.json` that its decoder reads.
    pub(super) struct Config {
        num_experts_per_tok: usize,
        #[serde(default = "super::number::<1>")]
        n_group: usize,
        #[serde(default = "super::number::<1>")]
        topk_group: usize,
        #[serde(default = "super::default_true")]
        norm_topk_prob: bool,
        routed_scaling_factor: f64,
        swiglu_limit: f64,
        hc_mult: usize,
        hc_eps: f64,
        hc_sinkhorn_iters: usize,
        index_topk: usize,
        index_n_heads: usize,
        index_head_dim: usize,
        #[serde(default = "super::number::<16>")]
        index_kpool: usize,
        #[serde(default = "super::default_true")]
        index_kpool_always_select_tail: bool,
        #[serde(default = "lower_bound")]
        linear_lower_bound: Option<f64>,
        linear_attn_config: Option<OlderKda>,
    }
}

/// Where older configs have what belongs to delta attention.
#[derive(Debug, Deserialize)]
struct OlderKda {
    gate_lower_bound: Option<f64>,
    #[serde(default = "super::default_true")]
    safe_gate: bool,
}

fn lower_bound() -> Option<f64> {
    Some(-5.0)
}

/// Builds a GLM-5.3-Flash decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let unsupported = |key, found: &str, known| Err(ConfigError::unsupported(key, found, known).into());
    if config.hidden_act != Activation::Silu {
        return unsupported("hidden_act", &format!("{:?}", config.hidden_act), "silu, since experts have no other");
    }
    if !config.index_kpool_always_select_tail && config.index_kpool > 1 {
        return unsupported("index_kpool_always_select_tail", "false", "true, so that a token sees itself");
    }
    let ends = Ends::Mean { streams: config.hc_mult };
    let frame = TensorNames { ends, ..config.names() };
    let mut someone_chose = false;
    decoder(model, weights, frame, |layer| {
        let known = "mla behind an indexer of its own or of an earlier layer, or delta attention with a decay per channel, \
                     and a gated feed-forward block";
        let [mixer, own @ .., BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, latent_size: None, .. })] =
            layer.blocks
        else {
            return Err(layer.refuse(known));
        };
        let (before, weights) = (layer.norm("input_layernorm")?, layer.enter("self_attn"));
        let mixer = match *mixer {
            BlockSpec::Mla(ref dims) => {
                let chooses = own.iter().any(|block| block.name() == "indexer");
                if !chooses && !someone_chose {
                    return Err(layer.refuse(known));
                }
                someone_chose = true;
                Block::new(before, config.attention(&weights, layer, dims, chooses)?)
            }
            BlockSpec::LinearAttention(ref dims) => {
                let shape = layer.kda(dims, config.hidden_act, config.rms_norm_eps, config.decay());
                let shape = shape.ok_or_else(|| layer.refuse(known))?;
                let a_log = weights.float("A_log", shape.heads)?;
                Block::new(before, Kda::load(&weights, layer.index, shape, &a_log)?)
            }
            _ => return Err(layer.refuse(known)),
        };
        let feed_forward = config.feed_forward(layer, sizes)?;
        Ok(vec![mixer.among(config.streams(layer, "hc_attn")?), feed_forward.among(config.streams(layer, "hc_ffn")?)])
    })
}

/// No model has more heads, channels of one, streams or rounds.
const MOST: usize = 1 << 16;

impl Config {
    fn streams(&self, layer: &Layer<'_>, name: &str) -> Result<MixedStreams> {
        let shape = MixedShape {
            hidden: layer.hidden,
            streams: ConfigError::bounded("hc_mult", self.hc_mult, MOST)?,
            norm_eps: self.rms_norm_eps,
            eps: self.hc_eps,
            iterations: ConfigError::bounded("hc_sinkhorn_iters", self.hc_sinkhorn_iters, MOST)?,
        };
        MixedStreams::load(&layer.weights, name, shape)
    }

    fn decay(&self) -> KdaDecay {
        let stated = match &self.linear_attn_config {
            None => self.linear_lower_bound,
            Some(older) => {
                let safe = older.safe_gate.then(lower_bound).flatten();
                older.gate_lower_bound.or(self.linear_lower_bound).or(safe)
            }
        };
        stated.map_or(KdaDecay::Softplus, KdaDecay::Bounded)
    }

    fn attention(&self, weights: &Scope<'_>, layer: &Layer<'_>, dims: &MlaSpec, chooses: bool) -> Result<Mla> {
        let shape = MlaShape { norm_eps: self.rms_norm_eps, ..layer.mla(dims, self.attention_bias)? };
        let Some(rank) = shape.q_lora_rank.filter(|_| shape.rope == 0) else {
            return Err(layer.refuse("mla with a latent of queries and without rope"));
        };
        let chooser = if chooses {
            let keys = GatedKeysShape {
                hidden: layer.hidden,
                rank,
                heads: ConfigError::bounded("index_n_heads", self.index_n_heads, MOST)?,
                head_dim: ConfigError::bounded("index_head_dim", self.index_head_dim, MOST)?,
                stride: self.index_kpool,
            };
            let keys = GatedKeys::load(&weights.enter("indexer"), keys)?;
            let (head_dim, stride) = (self.index_head_dim, self.index_kpool);
            let shape = IndexerShape { head_dim, stride, budget: self.index_topk };
            Chooser::Own(Indexer::new(layer.index, shape, keys))
        } else {
            Chooser::Earlier
        };
        Ok(Mla::load(weights, layer.index, shape, None)?.choosing(chooser))
    }

    fn feed_forward(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Block> {
        let (before, weights) = (layer.norm("post_attention_layernorm")?, layer.enter("mlp"));
        let clamped = |weights: &Scope<'_>, size: u64| -> Result<Mlp> {
            let swiglu = ClampedSwiglu { alpha: 1.0, limit: self.swiglu_limit, lift: 0.0 };
            Ok(Mlp::load_gated(weights, layer.mlp(size, self.hidden_act))?.clamped(swiglu))
        };
        if sizes.experts == 0 {
            return Ok(Block::new(before, clamped(&weights, sizes.intermediate_size)?));
        }
        let routing = Routing {
            groups: self.n_group,
            top_groups: self.topk_group,
            softmax: false,
            scale: self.routed_scaling_factor,
            ..Routing::softmax(size(sizes.experts), self.num_experts_per_tok, self.norm_topk_prob)
        };
        let shared = match sizes.shared_size {
            0 => None,
            size => Some(clamped(&weights.enter("shared_experts"), size)?),
        };
        let expert = |weights: &Scope<'_>| clamped(weights, sizes.intermediate_size);
        Ok(Block::new(before, Moe::load_corrected(&weights, layer.hidden, routing, expert, shared)?))
    }
}
