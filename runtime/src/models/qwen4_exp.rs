//! Qwen4-Exp: gated delta nets, and gated attention over tokens that an indexer chooses, then experts, all among several
//! residual streams, to which some layers add what a table of n-grams says.

use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{Attention as AttentionSpec, BlockSpec, FeedForward, LinearAttention};
use serde::Deserialize;

use super::experts::Experts;
use super::layer::{Ends, Layer, TensorNames, decoder};
use super::qwen3_next::{gated_attention, plain_projections, shared_experts};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{
    Activation, Attention, Chooser, GatedDelta, GatedDeltaRest, GatedDeltaShape, GatedShape, GatedStreams, HashRules,
    Indexer, IndexerShape, MeanKeys, MeanKeysShape, NGramShape, NGrams, OutputGate, RmsNorm, RopeConfig,
};
use crate::weights::Weights;

usual! {
    /// The keys of a Qwen4-Exp `config.json` that its decoder reads.
    pub(super) struct Config {
        #[serde(flatten)]
        experts: Experts,
        output_gate_type: Option<OutputGate>,
        #[serde(flatten)]
        rope: RopeConfig,
        hc_count: usize,
        hc_lowrank: usize,
        indexer_n_heads: Option<usize>,
        indexer_head_dim: Option<usize>,
        indexer_budget: Option<usize>,
        indexer_compress_ratio: Option<usize>,
        #[serde(flatten)]
        ngrams: NGramConfig,
    }
}

/// What a config says of n-grams.
#[derive(Debug, Deserialize)]
struct NGramConfig {
    /// The layers that have them, from one on.
    #[serde(default)]
    ple_layer_ids: Option<Vec<u32>>,
    ple_embed_dim: Option<usize>,
    #[serde(default = "super::number::<4>")]
    ple_conv_kernel_size: usize,
    #[serde(default = "super::number::<3>")]
    ngram_size: usize,
    #[serde(default = "super::number::<8>")]
    heads_per_ngram: usize,
    #[serde(default = "least_prime")]
    ngram_vocab_size_base: u64,
    #[serde(default = "super::number::<128>")]
    make_ngram_vocab_size_divisible_by: usize,
    #[serde(default = "seed")]
    seed: u64,
    #[serde(default = "super::number::<512>")]
    split_ngram_parts: usize,
    eos_token_id: Option<EndTokens>,
}

/// One token that ends texts, or several, of which the first ends n-grams.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum EndTokens {
    One(u32),
    Several(Vec<u32>),
}

fn least_prime() -> u64 {
    20_000_000
}

fn seed() -> u64 {
    1234
}

/// Builds a Qwen4-Exp decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let frame = TensorNames {
        load_norm: RmsNorm::load_from_one,
        norm: "hyper_connection_mixer",
        ends: Ends::Gated { streams: config.hc_count, rank: config.hc_lowrank },
        ..config.names()
    };
    decoder(model, weights, frame, |layer| {
        let known = "attention behind an indexer, or linear attention by the delta rule with a decay per head and a \
                     convolution, and experts";
        let [mixer, own @ .., BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, latent_size: None, .. })] =
            layer.blocks
        else {
            return Err(layer.refuse(known));
        };
        let mut blocks = config.ngrams(layer, model)?;
        let mixer = match *mixer {
            BlockSpec::LinearAttention(ref dims) => {
                let delta = config.delta(layer, dims)?.ok_or_else(|| layer.refuse(known))?;
                Block::without_norm(delta)
            }
            BlockSpec::Attention(ref dims) if own.iter().any(|block| block.name() == "indexer") => {
                Block::without_norm(config.attention(layer, dims)?)
            }
            _ => return Err(layer.refuse(known)),
        };
        blocks.push(mixer.among(config.streams(layer, "attn_hyper_connection")?));
        let experts = shared_experts(&config.experts, layer, sizes, config.hidden_act)?;
        blocks.push(Block::without_norm(experts).among(config.streams(layer, "mlp_hyper_connection")?));
        Ok(blocks)
    })
}

/// No model has more heads, or channels of one.
const MOST: usize = 1 << 16;
/// Nor longer n-grams, or more hashes of one: each has a prime that is searched for.
const MOST_HASHES: usize = 64;

impl Config {
    fn streams(&self, layer: &Layer<'_>, name: &str) -> Result<GatedStreams> {
        let (streams, rank) = (self.hc_count, self.hc_lowrank);
        let shape = GatedShape { hidden: layer.hidden, streams, rank, norm_eps: self.rms_norm_eps };
        GatedStreams::load(&layer.enter(name), shape, true)
    }

    fn delta(&self, layer: &Layer<'_>, dims: &LinearAttention) -> Result<Option<GatedDelta>> {
        let Some(shape) = layer.gated_delta(dims, self.hidden_act, self.rms_norm_eps) else { return Ok(None) };
        let gate = match self.output_gate_type {
            Some(gate) => gate,
            None if self.hidden_act == Activation::Silu => OutputGate::Silu,
            None => {
                return Err(ConfigError::unsupported(
                    "hidden_act",
                    format!("{:?}", self.hidden_act),
                    "silu where `output_gate_type` says nothing",
                )
                .into());
            }
        };
        let (shape, weights) = (GatedDeltaShape { gate, ..shape }, layer.enter("linear_attn"));
        let rest = GatedDeltaRest::load(&weights, &shape)?;
        Ok(Some(GatedDelta::load(&weights, layer.index, shape, plain_projections(&weights, shape)?, rest)?))
    }

    fn attention(&self, layer: &Layer<'_>, dims: &AttentionSpec) -> Result<Attention> {
        let missing = |key| ConfigError::Missing { key };
        let bounded = |key, size: Option<usize>| ConfigError::bounded(key, size.ok_or(missing(key))?, MOST);
        let heads = bounded("indexer_n_heads", self.indexer_n_heads)?;
        let head_dim = bounded("indexer_head_dim", self.indexer_head_dim)?;
        let budget = self.indexer_budget.ok_or(missing("indexer_budget"))?;
        let stride = self.indexer_compress_ratio.filter(|stride| *stride > 0);
        let stride = stride.ok_or(missing("indexer_compress_ratio"))?;
        let shape = layer.attention(dims, self.attention_bias)?;
        let rope = self.rope.partial_rope(shape.head_dim)?;
        let keys = MeanKeysShape { hidden: layer.hidden, heads, head_dim, norm_eps: self.rms_norm_eps };
        let keys = MeanKeys::load(&layer.enter("self_attn").enter("indexer"), keys, rope.clone())?;
        let indexer = Indexer::new(layer.index, IndexerShape { head_dim, stride, budget }, keys);
        Ok(gated_attention(layer, shape, rope)?.choosing(Chooser::Own(indexer)))
    }

    /// What stands before a layer that has n-grams.
    fn ngrams(&self, layer: &Layer<'_>, model: &Model) -> Result<Vec<Block>> {
        let of = &self.ngrams;
        let mut layers = of.ple_layer_ids.clone().unwrap_or_default();
        layers.sort_unstable();
        layers.dedup();
        let Some(nth) = layers.iter().position(|number| *number == layer.index + 1) else { return Ok(Vec::new()) };
        let end = match &of.eos_token_id {
            Some(EndTokens::One(end)) => Some(*end),
            Some(EndTokens::Several(ends)) => ends.first().copied(),
            None => None,
        };
        let rules = HashRules {
            vocab_size: model.vocab_size.ok_or(ConfigError::Missing { key: "vocab_size" })?,
            ngram: ConfigError::bounded("ngram_size", of.ngram_size, MOST_HASHES)?,
            heads_per_ngram: ConfigError::bounded("heads_per_ngram", of.heads_per_ngram, MOST_HASHES)?,
            least_prime: of.ngram_vocab_size_base,
            seed: of.seed,
            end: end.ok_or(ConfigError::Missing { key: "eos_token_id" })?,
            nth,
        };
        let shape = NGramShape {
            hidden: layer.hidden,
            streams: self.hc_count,
            embedding: of.ple_embed_dim.unwrap_or(layer.hidden),
            d_conv: of.ple_conv_kernel_size,
            norm_eps: self.rms_norm_eps,
            multiple: of.make_ngram_vocab_size_divisible_by,
            parts: of.split_ngram_parts,
        };
        Ok(vec![Block::without_norm(NGrams::load(&layer.enter("ple"), layer.index, shape, rules)?)])
    }
}
