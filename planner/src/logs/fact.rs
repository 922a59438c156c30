//! What engines write about themselves when they start.

use serde::{Deserialize, Serialize};

/// One thing that an engine logs, with the name of the limit, of the prediction's quantity or of the ledger's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The longest sequence.
    MaxSeqLen,
    /// The most sequences in a step.
    MaxBatchSize,
    /// The most tokens in a step.
    MaxNumTokens,
    /// Tensor-parallel ranks.
    Tp,
    /// Pipeline stages.
    Pp,
    /// Tokens drafted in a step.
    DraftTokens,
    /// Whether prefixes are kept for reuse.
    PrefixCaching,
    /// The opposite, as SGLang says it.
    NoPrefixCaching,
    /// llama.cpp: tokens of one pass over the graph.
    Ubatch,
    /// llama.cpp: whether sequences share their cells.
    SharedCells,
    /// vLLM: the share of a device that it was told to take.
    MemoryShare,
    /// Bytes that were left for caches.
    CacheBytes,
    /// SGLang: the most tokens whatever the bytes; no log says it by itself.
    MaxTotalTokens,
    /// Tokens in a block or page.
    TokensPerBlock,
    /// Blocks of the longest sequence.
    BlocksPerSequence,
    /// Groups of layers that share a block table; no log says them.
    Groups,
    /// Blocks.
    NumBlocks,
    /// Tokens in this engine's and version's sense.
    Tokens,
    /// Tokens of the pool for sliding windows.
    WindowTokens,
    /// Longest sequences that run at once.
    Concurrency,
    /// Slots for states.
    StateSlots,
    /// Bytes of keys and values.
    KvBytes,
    /// Of these the keys', where they lie apart from the values.
    KeyBytes,
    /// And the values'.
    ValueBytes,
    /// Bytes of the pool of what drafts, where it is one of its own.
    DraftKvBytes,
    /// Of these the keys'.
    DraftKeyBytes,
    /// And the values'.
    DraftValueBytes,
    /// llama.cpp: the bytes of keys and values by device, for logs that leave out the sum.
    KvBuffers,
    /// Bytes of recurrent states.
    SsmBytes,
    /// Bytes of convolution states.
    ConvBytes,
    /// Bytes of states that speculation needs besides.
    SpeculationBytes,
    /// Bytes of weights on one device.
    Weights,
    /// Weights and context together.
    Resident,
    /// Peak bytes of one step.
    Activations,
    /// Bytes of captured CUDA graphs.
    Graphs,
    /// Bytes of the CUDA context and of libraries.
    Context,
    /// Bytes of NCCL's buffers.
    Nccl,
}

/// How a fact is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Whole numbers.
    Count,
    /// Bytes. What engines print as GB is GiB.
    Bytes,
    /// Hundredths, of numbers printed with two decimals.
    Hundredths,
    /// 1 where it is on, 0 where it is off.
    Switch,
}

impl Fact {
    /// How it is counted.
    pub const fn unit(self) -> Unit {
        match self {
            Self::CacheBytes
            | Self::KvBytes
            | Self::KeyBytes
            | Self::ValueBytes
            | Self::DraftKvBytes
            | Self::DraftKeyBytes
            | Self::DraftValueBytes
            | Self::KvBuffers
            | Self::SsmBytes
            | Self::ConvBytes
            | Self::SpeculationBytes
            | Self::Weights
            | Self::Resident
            | Self::Activations
            | Self::Graphs
            | Self::Context
            | Self::Nccl => Unit::Bytes,
            Self::Concurrency | Self::MemoryShare => Unit::Hundredths,
            Self::PrefixCaching | Self::NoPrefixCaching | Self::SharedCells => Unit::Switch,
            _ => Unit::Count,
        }
    }

    /// Whether ranks share the least of it, rather than each needing the most.
    pub(super) const fn is_capacity(self) -> bool {
        matches!(self, Self::CacheBytes | Self::NumBlocks | Self::Tokens | Self::WindowTokens | Self::Concurrency)
    }

    /// Its name in tables and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxSeqLen => "max_seq_len",
            Self::MaxBatchSize => "max_batch_size",
            Self::MaxNumTokens => "max_num_tokens",
            Self::Tp => "tp",
            Self::Pp => "pp",
            Self::DraftTokens => "draft_tokens",
            Self::PrefixCaching => "prefix_caching",
            Self::NoPrefixCaching => "no_prefix_caching",
            Self::Ubatch => "ubatch",
            Self::SharedCells => "shared_cells",
            Self::MemoryShare => "memory_share",
            Self::CacheBytes => "cache_bytes",
            Self::MaxTotalTokens => "max_total_tokens",
            Self::TokensPerBlock => "tokens_per_block",
            Self::BlocksPerSequence => "blocks_per_sequence",
            Self::Groups => "groups",
            Self::NumBlocks => "num_blocks",
            Self::Tokens => "tokens",
            Self::WindowTokens => "window_tokens",
            Self::Concurrency => "concurrency",
            Self::StateSlots => "state_slots",
            Self::KvBytes => "kv_bytes",
            Self::KeyBytes => "key_bytes",
            Self::ValueBytes => "value_bytes",
            Self::DraftKvBytes => "draft_kv_bytes",
            Self::DraftKeyBytes => "draft_key_bytes",
            Self::DraftValueBytes => "draft_value_bytes",
            Self::KvBuffers => "kv_buffers",
            Self::SsmBytes => "ssm_bytes",
            Self::ConvBytes => "conv_bytes",
            Self::SpeculationBytes => "speculation_bytes",
            Self::Weights => "weights",
            Self::Resident => "resident",
            Self::Activations => "activations",
            Self::Graphs => "graphs",
            Self::Context => "context",
            Self::Nccl => "nccl",
        }
    }
}
