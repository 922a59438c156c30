//! The vocabulary of ops that front-ends emit and the built-in descriptors understand.
//!
//! A framework's own ops carry its own namespace, `acme.retention`, and need a descriptor of its own.
//! Shapes are written with B for the batch and S for the new tokens of a sequence.

use crate::graph::{Attribute, Op};

/// Kinds of ops.
impl Op {
    /// Attention over keys and values: `query` [B, S, heads, head_dim], `key` [B, S, kv_heads, head_dim],
    /// `value` [B, S, kv_heads, value_dim].
    ///
    /// Attributes: [`Attribute::WINDOW`], [`Attribute::CACHE_DTYPE`]. An op that reads the key tensor of an earlier one shares its cache; one that
    /// reads a `mask` [B, S, tokens] sees other tokens than causality and the window let it.
    pub const ATTENTION: &str = "core.attention";

    /// Multi-head latent attention: `latent` [B, S, kv_lora_rank], `rope_key` [B, S, qk_rope_head_dim].
    ///
    /// Attributes: [`Attribute::WINDOW`], [`Attribute::CACHE_DTYPE`].
    pub const MLA: &str = "core.mla";

    /// The keys by which sparse attention chooses its tokens: `index_key` [B, S, index_head_dim], one for
    /// [`Attribute::RATIO`] tokens where that is there.
    ///
    /// Attributes: [`Attribute::RATIO`], [`Attribute::STORED_DTYPE`].
    pub const INDEXER: &str = "core.indexer";

    /// Entries that attention reads, one for [`Attribute::RATIO`] tokens where that is there: `entry` [B, S, width].
    ///
    /// Attributes: [`Attribute::RATIO`], [`Attribute::WINDOW`], [`Attribute::CACHE_DTYPE`].
    pub const ENTRIES: &str = "core.entries";

    /// The last rows of something, by position: `row` [B, S, width].
    ///
    /// Attributes: [`Attribute::RING`].
    pub const RING: &str = "core.ring";

    /// Attention over a window of tokens and over entries that stand for [`Attribute::RATIO`] tokens each: `latent` [B, S, head_dim],
    /// `index_key` [B, S, index_head_dim] where entries are chosen.
    ///
    /// Attributes: [`Attribute::WINDOW`], [`Attribute::RATIO`], [`Attribute::CACHE_DTYPE`].
    pub const COMPRESSED_ATTENTION: &str = "core.compressed_attention";

    /// RWKV-4's time and channel mixing: `x` [B, S, hidden], `key` [B, S, width].
    pub const RWKV4: &str = "core.rwkv4";

    /// Mamba-2's scan: `x` [B, S, heads, head_dim], `b` and `c` [B, S, groups, d_state].
    ///
    /// Attributes: [`Attribute::STATE_DTYPE`].
    pub const SSD: &str = "core.ssd";

    /// Mamba-1's scan: `x` [B, S, d_inner], `b` and `c` [B, S, d_state].
    ///
    /// Attributes: [`Attribute::STATE_DTYPE`].
    pub const SELECTIVE_SCAN: &str = "core.selective_scan";

    /// A recurrence that keeps one matrix per value head (gated delta net, KDA, lightning attention):
    /// `key` [B, S, k_heads, k_dim], `value` [B, S, v_heads, v_dim]; `beta` [B, S, v_heads] with the delta rule; `decay`
    /// [B, S, v_heads] or [B, S, v_heads, k_dim] where it depends on the token.
    ///
    /// Attributes: [`Attribute::STATE_DTYPE`].
    pub const LINEAR_ATTENTION: &str = "core.linear_attention";

    /// The recurrence of RG-LRU, one number per channel: `x` [B, S, width].
    ///
    /// Attributes: [`Attribute::STATE_DTYPE`].
    pub const RG_LRU: &str = "core.rg_lru";

    /// A causal convolution over each channel: `x` [B, S, channels], `weight` [channels, d_conv].
    ///
    /// Attributes: [`Attribute::SECTIONS`] or [`Attribute::KEY_HEADS`], [`Attribute::DILATION`],
    /// [`Attribute::STORED_DTYPE`].
    pub const CAUSAL_CONV: &str = "core.causal_conv1d";

    /// A state whose use is not known: `state` [B, …], every axis behind the batch known.
    pub const STATE: &str = "core.state";

    /// The keys, the values or the latents of an attention over a cache of a fixed number of tokens, as exported graphs
    /// have them: `cache` [B, heads, tokens, head_dim]. Its cache is called as the op is.
    pub const STATIC_CACHE: &str = "core.static_cache";

    /// Which tokens see which, beside causality: those of an image see each other.
    pub const MASK: &str = "core.mask";

    /// A cache, put there by `initialize_caches`.
    pub const CACHE: &str = "core.cache";

    /// Multiplication by a weight.
    pub const LINEAR: &str = "core.linear";
    /// The same numbers in another shape.
    pub const VIEW: &str = "core.view";
    /// Division of channels into several tensors.
    pub const SPLIT: &str = "core.split";
    /// Lookup of token embeddings.
    pub const EMBEDDING: &str = "core.embedding";
    /// A feed-forward block.
    pub const MLP: &str = "core.mlp";
    /// A mixture of experts.
    pub const MOE: &str = "core.moe";
}

impl Op {
    /// The ports at which ops of a kind read what they cache: one that reads there what an earlier one does shares its
    /// caches.
    pub(crate) fn kept_ports(kind: &str) -> &'static [&'static str] {
        match kind {
            Self::ATTENTION => &["key", "value"],
            Self::MLA => &["latent", "rope_key"],
            Self::INDEXER => &["index_key"],
            Self::ENTRIES => &["entry"],
            Self::RING => &["row"],
            Self::STATE => &["state"],
            _ => &[],
        }
    }
}

/// Names of attributes.
impl Attribute {
    /// Number: tokens back that attention sees, the current one included.
    pub const WINDOW: &str = "window";
    /// Number: the layer whose cache this one means to read; the tensors it really reads must be that layer's.
    pub const SHARES_LAYER: &str = "shares_layer";
    /// Number: tokens that one compressed entry stands for; 0 for none.
    pub const RATIO: &str = "ratio";
    /// DType: the element type that the model states for its recurrent state.
    pub const STATE_DTYPE: &str = "state_dtype";
    /// DType: the element type that the model states for its keys and values.
    pub const CACHE_DTYPE: &str = "cache_dtype";
    /// DType: the element type that a cache has whatever budgets and models state of others.
    pub const STORED_DTYPE: &str = "stored_dtype";
    /// Number: which run of its layer in a step the op is of, where that is not the first.
    pub const RUN: &str = "run";
    /// Numbers: rows of a ring that are still read, of how many rows its unit is, and 1 where units double.
    pub const RING: &str = "ring";
    /// Numbers: consecutive channel groups that ranks divide one by one.
    pub const SECTIONS: &str = "sections";
    /// Number: the key heads whose channels these are, which ranks divide as keys; 0 for channels that each rank has whole.
    pub const KEY_HEADS: &str = "key_heads";
    /// Number: tokens from one column of a convolution's kernel to the next.
    pub const DILATION: &str = "dilation";
    /// Flag: the op keeps state between steps, so that it must have a descriptor.
    pub const STATEFUL: &str = "stateful";
}
