//! The tensors of one layer.

use super::architectures::{Feed, Linear};
use super::bytes::Kind;
use super::{EXPERTS, FEED, Skeleton, is_indexed};
use crate::layers::{Attention, BlockSpec, LayerSpec, LinearAttention, Mamba1, Mamba2, Mla};

impl Skeleton<'_> {
    /// What such a layer is made of, or the block that the architecture has none of.
    pub(super) fn layer(&mut self, index: usize, layer: &LayerSpec, feeds: bool) -> Result<(), String> {
        let hidden = self.hidden;
        let mut layer_file = Layer { file: self, prefix: format!("blk.{index}.") };
        let mixes = layer.blocks.iter().any(|block| !matches!(block, BlockSpec::FeedForward(_)));
        if mixes || layer_file.has_lone_norm() {
            layer_file.vector("attn_norm", hidden);
        }
        for block in &layer.blocks {
            match block {
                BlockSpec::Attention(attention) => layer_file.attention(attention),
                BlockSpec::Mla(mla) => layer_file.mla(mla),
                BlockSpec::CompressedAttention(compressed) => layer_file.compressed(compressed),
                BlockSpec::Mamba1(mamba) => layer_file.mamba1(mamba),
                BlockSpec::Mamba2(mamba) => layer_file.mamba2(mamba),
                BlockSpec::LinearAttention(linear) => layer_file.linear(linear),
                BlockSpec::ShortConv { channels, d_conv } => layer_file.short_conv(*channels, *d_conv),
                BlockSpec::Indexer { index_head_dim } => layer_file.indexer(*index_head_dim, layer),
                BlockSpec::FeedForward(_) => {}
                other => return Err(other.name().to_owned()),
            }
        }
        if layer_file.file.architecture.linear == Linear::GatedKda {
            layer_file.vector("attn_res_score", hidden);
            layer_file.vector("ffn_res_score", hidden);
        }
        if feeds {
            layer_file.feed(is_indexed(layer));
        }
        Ok(())
    }
}

/// A layer of a file.
pub(super) struct Layer<'a, 'b> {
    pub(super) file: &'a mut Skeleton<'b>,
    prefix: String,
}

impl Layer<'_, '_> {
    /// Nemotron-H has one norm in every layer, whatever that is.
    fn has_lone_norm(&self) -> bool {
        self.file.architecture.norms.is_empty()
    }

    pub(super) fn matrix(&mut self, name: &str, axes: &[u64]) {
        let name = format!("{}{name}.weight", self.prefix);
        self.file.tensor(&name, axes);
    }

    pub(super) fn vector(&mut self, name: &str, length: u64) {
        self.exact(&format!("{name}.weight"), &[length]);
    }

    /// Numbers in float32, by their whole name.
    pub(super) fn exact(&mut self, name: &str, axes: &[u64]) {
        self.file.header.tensor(&format!("{}{name}", self.prefix), axes, Kind::F32);
    }

    fn attention(&mut self, it: &Attention) {
        let (hidden, own) = (self.file.hidden, self.file.architecture);
        let queries = it.num_heads * it.head_dim;
        if own.name == "plamo2" {
            return self.joined_attention(it);
        }
        self.matrix("attn_q", &[hidden, if own.gated_queries { 2 * queries } else { queries }]);
        self.matrix("attn_k", &[hidden, it.num_kv_heads * it.head_dim]);
        self.matrix("attn_v", &[hidden, it.num_kv_heads * it.value_dim.unwrap_or(it.head_dim)]);
        self.matrix("attn_output", &[queries, hidden]);
        if own.head_norms {
            self.vector("attn_q_norm", it.head_dim);
            self.vector("attn_k_norm", it.head_dim);
        }
        if own.feed == Feed::Biased {
            self.exact("attn_output.bias", &[hidden]);
            self.vector("attn_sinks", it.num_heads);
        }
    }

    /// PLaMo 2's, whose norms differ from head to head.
    fn joined_attention(&mut self, it: &Attention) {
        let hidden = self.file.hidden;
        self.matrix("attn_qkv", &[hidden, (it.num_heads + 2 * it.num_kv_heads) * it.head_dim]);
        self.matrix("attn_output", &[it.num_heads * it.head_dim, hidden]);
        self.exact("attn_q_norm.weight", &[it.head_dim, it.num_heads]);
        self.exact("attn_k_norm.weight", &[it.head_dim, it.num_kv_heads]);
    }

    /// With one head, since its keys are as many as with more.
    fn indexer(&mut self, head_dim: u64, layer: &LayerSpec) {
        let hidden = self.file.hidden;
        let queries =
            layer.blocks.iter().find_map(|block| if let BlockSpec::Mla(mla) = block { mla.q_lora_rank } else { None });
        match queries {
            Some(rank) => {
                self.vector("indexer.k_norm", head_dim);
                self.exact("indexer.k_norm.bias", &[head_dim]);
                self.matrix("indexer.proj", &[hidden, 1]);
                self.matrix("indexer.attn_k", &[hidden, head_dim]);
                self.matrix("indexer.attn_q_b", &[rank, head_dim]);
            }
            None => {
                for part in ["q", "k"] {
                    self.matrix(&format!("indexer.{part}_proj"), &[hidden, head_dim]);
                    self.vector(&format!("indexer.{part}_norm"), head_dim);
                }
            }
        }
    }

    fn mla(&mut self, it: &Mla) {
        let hidden = self.file.hidden;
        let key = it.qk_nope_head_dim + it.qk_rope_head_dim;
        match it.q_lora_rank {
            Some(rank) => {
                self.matrix("attn_q_a", &[hidden, rank]);
                self.vector("attn_q_a_norm", rank);
                self.matrix("attn_q_b", &[rank, it.num_heads * key]);
            }
            None => self.matrix("attn_q", &[hidden, it.num_heads * key]),
        }
        self.matrix("attn_kv_a_mqa", &[hidden, it.kv_lora_rank + it.qk_rope_head_dim]);
        self.vector("attn_kv_a_norm", it.kv_lora_rank);
        if self.file.architecture.expands_latents {
            self.matrix("attn_kv_b", &[it.kv_lora_rank, it.num_heads * (it.qk_nope_head_dim + it.v_head_dim)]);
        } else {
            self.matrix("attn_k_b", &[it.qk_nope_head_dim, it.kv_lora_rank, it.num_heads]);
            self.matrix("attn_v_b", &[it.kv_lora_rank, it.v_head_dim, it.num_heads]);
        }
        self.matrix("attn_output", &[it.num_heads * it.v_head_dim, hidden]);
    }

    fn mamba1(&mut self, it: &Mamba1) {
        let hidden = self.file.hidden;
        self.matrix("ssm_in", &[hidden, 2 * it.d_inner]);
        self.exact("ssm_conv1d.weight", &[it.d_conv, it.d_inner]);
        self.exact("ssm_conv1d.bias", &[it.d_inner]);
        self.matrix("ssm_x", &[it.d_inner, it.dt_rank + 2 * it.d_state]);
        self.matrix("ssm_dt", &[it.dt_rank, it.d_inner]);
        self.exact("ssm_dt.bias", &[it.d_inner]);
        self.exact("ssm_a", &[it.d_state, it.d_inner]);
        self.exact("ssm_d", &[it.d_inner]);
        self.matrix("ssm_out", &[it.d_inner, hidden]);
        if self.file.architecture.mamba_norms {
            self.vector("ssm_dt_norm", it.dt_rank);
            self.vector("ssm_b_norm", it.d_state);
            self.vector("ssm_c_norm", it.d_state);
        }
    }

    /// PLaMo 2's: B, C and the step come from what passed the convolution, as in a Mamba-1.
    fn plamo2(&mut self, it: &Mamba2) {
        let hidden = self.file.hidden;
        let (inner, step) = (it.num_heads * it.head_dim, (hidden / 16).max(64));
        self.matrix("ssm_in", &[hidden, 2 * inner]);
        self.exact("ssm_conv1d.weight", &[it.d_conv, inner]);
        self.matrix("ssm_x", &[inner, step + 2 * it.d_state]);
        self.matrix("ssm_dt", &[step, it.num_heads]);
        for name in ["ssm_dt.bias", "ssm_a", "ssm_d"] {
            self.exact(name, &[it.num_heads]);
        }
        self.matrix("ssm_out", &[inner, hidden]);
        self.exact("ssm_dt_norm", &[step]);
        self.exact("ssm_b_norm", &[it.d_state]);
        self.exact("ssm_c_norm", &[it.d_state]);
    }

    fn mamba2(&mut self, it: &Mamba2) {
        if self.file.architecture.name == "plamo2" {
            return self.plamo2(it);
        }
        let hidden = self.file.hidden;
        let (inner, shared) = (it.num_heads * it.head_dim, 2 * it.n_groups * it.d_state);
        self.matrix("ssm_in", &[hidden, 2 * inner + shared + it.num_heads]);
        self.exact("ssm_conv1d.weight", &[it.d_conv, inner + shared]);
        self.exact("ssm_conv1d.bias", &[inner + shared]);
        self.exact("ssm_dt.bias", &[it.num_heads]);
        self.exact("ssm_a", &[1, it.num_heads]);
        self.exact("ssm_d", &[1, it.num_heads]);
        self.exact("ssm_norm.weight", &[inner / it.n_groups.max(1), it.n_groups]);
        self.matrix("ssm_out", &[inner, hidden]);
    }

    fn linear(&mut self, it: &LinearAttention) {
        match self.file.architecture.linear {
            Linear::Delta | Linear::JoinedDelta => self.delta(it),
            Linear::Kda | Linear::GatedKda => self.kda(it),
            Linear::Lightning => self.lightning(it),
        }
    }

    fn lightning(&mut self, it: &LinearAttention) {
        let (hidden, values) = (self.file.hidden, it.num_v_heads * it.head_v_dim);
        self.vector("attn_norm_2", values);
        self.matrix("attn_qkv", &[hidden, 3 * values]);
        self.matrix("attn_gate", &[hidden, values]);
        self.matrix("attn_output", &[values, hidden]);
    }

    fn kda(&mut self, it: &LinearAttention) {
        let (hidden, heads, head) = (self.file.hidden, it.num_v_heads, it.head_v_dim);
        let values = heads * head;
        for part in ["q", "k", "v"] {
            self.exact(&format!("ssm_conv1d_{part}.weight"), &[it.d_conv.unwrap_or(0), 1, values]);
            self.matrix(&format!("attn_{part}"), &[hidden, values]);
        }
        self.matrix("ssm_f_a", &[hidden, head]);
        self.matrix("ssm_f_b", &[head, values]);
        self.matrix("ssm_beta", &[hidden, heads]);
        self.exact("ssm_dt.bias", &[values]);
        if self.file.architecture.linear == Linear::Kda {
            self.exact("ssm_a", &[1, heads]);
            self.matrix("ssm_g_a", &[hidden, head]);
            self.matrix("ssm_g_b", &[head, values]);
        } else {
            self.exact("ssm_a", &[heads]);
            self.matrix("ssm_g", &[hidden, values]);
        }
        self.vector("ssm_norm", head);
        self.matrix("attn_output", &[values, hidden]);
    }

    fn delta(&mut self, it: &LinearAttention) {
        let hidden = self.file.hidden;
        let (keys, values) = (it.num_k_heads * it.head_k_dim, it.num_v_heads * it.head_v_dim);
        self.matrix("attn_qkv", &[hidden, 2 * keys + values]);
        self.matrix("attn_gate", &[hidden, values]);
        self.exact("ssm_conv1d.weight", &[it.d_conv.unwrap_or(0), 2 * keys + values]);
        self.exact("ssm_dt.bias", &[it.num_v_heads]);
        self.exact("ssm_a", &[it.num_v_heads]);
        if self.file.architecture.linear == Linear::JoinedDelta {
            self.matrix("ssm_ba", &[hidden, 2 * it.num_v_heads]);
        } else {
            self.matrix("ssm_beta", &[hidden, it.num_v_heads]);
            self.matrix("ssm_alpha", &[hidden, it.num_v_heads]);
        }
        self.vector("ssm_norm", it.head_v_dim);
        self.matrix("ssm_out", &[values, hidden]);
    }

    fn short_conv(&mut self, channels: u64, d_conv: u64) {
        let hidden = self.file.hidden;
        self.exact("shortconv.conv.weight", &[d_conv, channels]);
        self.matrix("shortconv.in_proj", &[hidden, 3 * channels]);
        self.matrix("shortconv.out_proj", &[channels, hidden]);
    }

    fn feed(&mut self, is_indexed: bool) {
        let (hidden, own) = (self.file.hidden, self.file.architecture);
        for norm in own.norms {
            // Falcon-H1's has a name without an end, and so have some of PLaMo 2's.
            let is_bare = own.name == "falcon-h1" || own.name == "plamo2" && *norm != "ffn_norm";
            let end = if is_bare { "" } else { ".weight" };
            self.exact(&format!("{norm}{end}"), &[hidden]);
        }
        match own.feed {
            Feed::None => {}
            Feed::SharedWhereIndexed if is_indexed => self.experts(Feed::SharedBiased),
            Feed::Dense | Feed::SharedWhereIndexed => {
                self.matrix("ffn_gate", &[hidden, FEED]);
                self.matrix("ffn_up", &[hidden, FEED]);
                self.matrix("ffn_down", &[FEED, hidden]);
            }
            Feed::Ungated => {
                self.matrix("ffn_up", &[hidden, FEED]);
                self.matrix("ffn_down", &[FEED, hidden]);
            }
            Feed::Joined => {
                self.matrix("ffn_up", &[hidden, 2 * FEED]);
                self.matrix("ffn_down", &[FEED, hidden]);
            }
            Feed::Experts | Feed::Shared | Feed::SharedBiased | Feed::GatedShared | Feed::Biased => {
                self.experts(own.feed);
            }
        }
    }

    fn experts(&mut self, feed: Feed) {
        let hidden = self.file.hidden;
        self.exact("ffn_gate_inp.weight", &[hidden, EXPERTS]);
        self.matrix("ffn_gate_exps", &[hidden, FEED, EXPERTS]);
        self.matrix("ffn_up_exps", &[hidden, FEED, EXPERTS]);
        self.matrix("ffn_down_exps", &[FEED, hidden, EXPERTS]);
        if feed == Feed::SharedBiased {
            self.exact("exp_probs_b.bias", &[EXPERTS]);
        }
        if matches!(feed, Feed::Shared | Feed::SharedBiased | Feed::GatedShared) {
            self.matrix("ffn_gate_shexp", &[hidden, FEED]);
            self.matrix("ffn_up_shexp", &[hidden, FEED]);
            self.matrix("ffn_down_shexp", &[FEED, hidden]);
        }
        if feed == Feed::GatedShared {
            self.vector("ffn_gate_inp_shexp", hidden);
        }
        if feed == Feed::Biased {
            self.exact("ffn_gate_inp.bias", &[EXPERTS]);
            self.exact("ffn_gate_exps.bias", &[FEED, EXPERTS]);
            self.exact("ffn_up_exps.bias", &[FEED, EXPERTS]);
            self.exact("ffn_down_exps.bias", &[hidden, EXPERTS]);
        }
    }
}
