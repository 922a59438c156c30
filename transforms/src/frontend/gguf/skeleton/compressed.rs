//! DeepSeek-V4: attention over a window and compressed entries, and hidden rows in several streams.

use super::architectures::STREAMS;
use super::bytes::{Kind, Value};
use super::layer::Layer;
use super::{Skeleton, blocks};
use crate::descriptors::OVERLAPPING_RATIO;
use crate::layers::{BlockSpec, CompressedAttention};
use crate::model::Model;

/// The narrowest projections that no cache depends on.
const RANK: u64 = 32;

const fn in_streams(channels: u64) -> u64 {
    channels * STREAMS as u64
}

fn of_block(block: &BlockSpec) -> Option<&CompressedAttention> {
    if let BlockSpec::CompressedAttention(found) = block { Some(found) } else { None }
}

impl Skeleton<'_> {
    /// What such attention is told; nothing where the model has none.
    pub(super) fn compressed_keys(&mut self, model: &Model) {
        let Some(first) = blocks(model).find_map(of_block) else { return };
        self.number("attention.head_count", first.num_heads);
        self.number("attention.head_count_kv", 1);
        self.number("attention.key_length", first.head_dim);
        self.number("attention.value_length", first.head_dim);
        self.number("attention.sliding_window", first.window);
        self.number("attention.q_lora_rank", RANK);
        self.number("attention.output_lora_rank", RANK);
        self.number("attention.output_group_count", 1);
        self.number("rope.dimension_count", RANK);
        let ratio = |block| of_block(block).and_then(|found| u32::try_from(found.ratio).ok());
        let ratios = blocks(model).filter_map(ratio).collect();
        self.header.key(&format!("{}.attention.compress_ratios", self.architecture.name), Value::Numbers(ratios));
        self.header.key(&format!("{}.expert_weights_norm", self.architecture.name), Value::Flag(false));
    }

    /// How the streams become one again behind the last layer.
    pub(super) fn stream_ends(&mut self) {
        let streams = u64::from(STREAMS);
        self.header.tensor("output_hc_fn.weight", &[in_streams(self.hidden), streams], Kind::F32);
        self.vector("output_hc_base", streams);
        self.vector("output_hc_scale", 1);
    }
}

impl Layer<'_, '_> {
    pub(super) fn compressed(&mut self, it: &CompressedAttention) {
        let hidden = self.file.hidden;
        let queries = it.num_heads * it.head_dim;
        self.vector("attn_sinks", it.num_heads);
        self.matrix("attn_q_a", &[hidden, RANK]);
        self.vector("attn_q_a_norm", RANK);
        self.matrix("attn_q_b", &[RANK, queries]);
        self.matrix("attn_kv", &[hidden, it.head_dim]);
        self.vector("attn_kv_a_norm", it.head_dim);
        self.matrix("attn_output_a", &[queries, RANK]);
        self.matrix("attn_output_b", &[RANK, hidden]);
        for block in ["attn", "ffn"] {
            let mixes = in_streams(2 + u64::from(STREAMS));
            self.exact(&format!("hc_{block}_fn.weight"), &[in_streams(hidden), mixes]);
            self.vector(&format!("hc_{block}_base"), mixes);
            self.vector(&format!("hc_{block}_scale"), 3);
        }
        if (1..=OVERLAPPING_RATIO).contains(&it.ratio) {
            self.compressor("attn_compressor", it.ratio, 2 * it.head_dim, it.head_dim);
            // With one head, since its keys are as many as with more.
            if let Some(head_dim) = it.index_head_dim {
                self.matrix("indexer.proj", &[hidden, 1]);
                self.matrix("indexer.attn_q_b", &[RANK, head_dim]);
                self.compressor("indexer_compressor", it.ratio, 2 * head_dim, head_dim);
            }
        } else if it.ratio > 0 {
            self.compressor("attn_compressor", it.ratio, it.head_dim, it.head_dim);
        }
    }

    /// What makes an entry of `ratio` tokens, each as wide as two of them where they overlap.
    fn compressor(&mut self, name: &str, ratio: u64, width: u64, head_dim: u64) {
        let hidden = self.file.hidden;
        self.matrix(&format!("{name}_kv"), &[hidden, width]);
        self.matrix(&format!("{name}_gate"), &[hidden, width]);
        self.exact(&format!("{name}_ape.weight"), &[width, ratio]);
        self.vector(&format!("{name}_norm"), head_dim);
    }
}
