//! The largest live set of a step: what lies in memory between and inside the layers, and where tokens are chosen.

use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward, LinearAttention};

/// Peak bytes of a step besides weights and caches, as they grow with what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBytes {
    /// Of each token, on every rank.
    pub whole: u64,
    /// Of each token, divided over tensor parallel ranks.
    pub divided: u64,
    /// Of each token beside a delta rule's kernels over chunks of tokens: on every rank, and divided over these.
    pub chunked: [u64; 2],
    /// Logits of each sequence whose next token is chosen, on every rank.
    pub vocab: u64,
    /// Of each key of an indexer with its scale, where there is one.
    pub index_key: u64,
}

/// What is in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepSize {
    /// Its tokens.
    pub(crate) tokens: u64,
    /// Those of them whose next token is chosen.
    pub(crate) logit_rows: u64,
}

/// Bytes of a logit where no engine is named: as the head gives it, and in float32 as it is and after the sampler's softmax.
pub(crate) const LOGIT_BYTES: u64 = 2 + 4 + 4;

/// Tokens of a chunk in the kernels for gated delta rules, each of which keeps a state.
const CHUNK: u64 = 64;

impl StepBytes {
    /// The largest live set of `model`; `None` where a block's sizes or the vocabulary are not known.
    pub(crate) fn of(model: &Model) -> Option<Self> {
        let element = model.info.dtype.row_bytes(1).unwrap_or(2);
        let hidden = model.hidden_size?;
        let blocks = model.layers.iter().flat_map(|layer| &layer.blocks);
        let inside: Option<Vec<[u64; 2]>> = blocks.map(|block| channels(block, hidden)).collect();
        let [whole, divided] = inside?.into_iter().max_by_key(|[whole, divided]| whole + divided)?;
        // The residual stream, its norm, and what the block before gave.
        let stream = hidden.checked_mul(3)?.checked_mul(element)?;
        let whole = whole.checked_mul(element)?.checked_add(stream)?;
        let blocks = model.layers.iter().flat_map(|layer| &layer.blocks);
        let keys = blocks.filter_map(|block| match block {
            // Keys in one byte each, and a scale in float32.
            BlockSpec::Indexer { index_head_dim } => index_head_dim.checked_add(4),
            _ => None,
        });
        let mut rules = model.layers.iter().flat_map(|layer| &layer.blocks).filter_map(|block| match block {
            BlockSpec::LinearAttention(dims) if dims.delta_rule => Some(delta_rule(dims)),
            _ => None,
        });
        let chunked = rules.try_fold(0u64, |most, channels| Some(most.max(channels?)))?.checked_mul(element)?;
        let chunked = if chunked == 0 { [0, 0] } else { [stream, chunked] };
        let divided = divided.checked_mul(element)?;
        Some(Self { whole, divided, chunked, vocab: model.vocab_size?, index_key: keys.max().unwrap_or(0) })
    }
}

/// Channels of a token that live at once inside a block besides the residual stream: whole, and divided over ranks.
fn channels(block: &BlockSpec, hidden: u64) -> Option<[u64; 2]> {
    let sum = |channels: &[Option<u64>]| channels.iter().try_fold(0u64, |sum, more| sum.checked_add((*more)?));
    let divided = match block {
        // Queries, keys and values, and what comes of them.
        BlockSpec::Attention(dims) => {
            let head = dims.head_dim.checked_add(dims.value_dim.unwrap_or(dims.head_dim))?;
            sum(&[dims.num_heads.checked_mul(head), dims.num_kv_heads.checked_mul(head)])
        }
        // In a prefill the latent is widened to keys and values of every head.
        BlockSpec::Mla(dims) => {
            let key = dims.qk_nope_head_dim.checked_add(dims.qk_rope_head_dim)?;
            let head = key.checked_add(dims.v_head_dim)?.checked_mul(2)?;
            dims.num_heads.checked_mul(head)
        }
        BlockSpec::CompressedAttention(dims) => dims.num_heads.checked_mul(dims.head_dim)?.checked_mul(2),
        BlockSpec::Indexer { index_head_dim } => Some(*index_head_dim),
        BlockSpec::Rwkv4 { width } | BlockSpec::RgLru { width, .. } => width.checked_mul(4),
        BlockSpec::ShortConv { channels, .. } => channels.checked_mul(4),
        // Both halves of the projection, the convolved one, and the output.
        BlockSpec::Mamba1(dims) => dims.d_inner.checked_mul(4),
        BlockSpec::Mamba2(dims) => {
            let inner = dims.num_heads.checked_mul(dims.head_dim)?;
            let groups = dims.n_groups.checked_mul(dims.d_state)?;
            sum(&[inner.checked_mul(4), groups.checked_mul(4), Some(dims.num_heads)])
        }
        BlockSpec::LinearAttention(dims) => {
            let keys = dims.num_k_heads.checked_mul(dims.head_k_dim)?;
            let values = dims.num_v_heads.checked_mul(dims.head_v_dim)?;
            sum(&[keys.checked_mul(4), values.checked_mul(4)])
        }
        BlockSpec::FeedForward(dims) => return feed_forward(dims, hidden),
        BlockSpec::Op(_) => None,
    };
    Some([0, divided?])
}

/// What the kernels of a gated delta rule hold at once (`chunk_gated_delta_rule_fwd`): queries, keys and values as projected,
/// convolved and normed, the gate, what each chunk's tokens give each other, new values, the output and its buffer, and the
/// state before every chunk.
fn delta_rule(dims: &LinearAttention) -> Option<u64> {
    let keys = dims.num_k_heads.checked_mul(dims.head_k_dim)?;
    let values = dims.num_v_heads.checked_mul(dims.head_v_dim)?;
    let widened = dims.num_v_heads.checked_mul(dims.head_k_dim)?;
    let (within, states) = (dims.num_v_heads.checked_mul(CHUNK)?, values.checked_mul(dims.head_k_dim)? / CHUNK);
    let parts = [keys.checked_mul(6)?, values.checked_mul(8)?, widened, within, states];
    parts.into_iter().try_fold(0u64, u64::checked_add)
}

/// A gate and what it is multiplied with, and the product; with experts for each that a token goes to, whose outputs stand
/// side by side before they are added.
fn feed_forward(dims: &FeedForward, hidden: u64) -> Option<[u64; 2]> {
    let inside = |channels: u64| channels.checked_mul(dims.matrices);
    if dims.experts == 0 {
        return Some([0, inside(dims.intermediate_size)?]);
    }
    let routed = dims.experts_per_token;
    let outputs = routed.checked_mul(dims.latent_size.unwrap_or(hidden))?;
    let experts = routed.checked_mul(inside(dims.intermediate_size)?)?;
    Some([outputs, experts.checked_add(inside(dims.shared_size)?)?])
}

#[cfg(test)]
mod tests {
    use cacheplan_transforms::ReadOptions;

    use super::*;

    fn read(config: &str) -> StepBytes {
        let path = format!("{}/../tests/fixtures/configs/{config}.json", env!("CARGO_MANIFEST_DIR"));
        StepBytes::of(&Model::read(path.as_ref(), &ReadOptions::default()).unwrap()).unwrap()
    }

    /// Three times 4,096 channels of the stream, three times 14,336 inside the widest block, two bytes each.
    #[test]
    fn the_widest_block_of_llama_is_its_feed_forward_block() {
        let step = read("meta-llama__Llama-3.1-8B-Instruct");
        assert_eq!(
            step,
            StepBytes { whole: 3 * 4096 * 2, divided: 3 * 14_336 * 2, chunked: [0, 0], vocab: 128_256, index_key: 0 }
        );
    }

    /// 16 key and 48 value heads of 128 channels: the kernels over its chunks hold more than the feed-forward block does.
    #[test]
    fn the_kernels_of_a_delta_rule_are_wider_than_its_layers() {
        let (keys, values) = (16 * 128, 48 * 128);
        let kernels = 6 * keys + 8 * values + values + 48 * 64 + values * 128 / 64;
        let step = read("Qwen__Qwen3.5-27B");
        assert_eq!(step.chunked, [3 * 5120 * 2, kernels * 2]);
        assert!(kernels * 2 > step.divided);
    }

    /// Eight experts' outputs of 7,168 channels lie side by side.
    #[test]
    fn experts_outputs_are_whole_on_every_rank() {
        let step = read("deepseek-ai__DeepSeek-V3");
        assert_eq!(step.whole, (3 + 8) * 7168 * 2);
        assert_eq!(step.divided, (8 + 1) * 3 * 2048 * 2);
    }
}
