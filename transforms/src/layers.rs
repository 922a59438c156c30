//! What a model's layers are made of: stated once, by whoever read or described the model.
//!
//! The builder writes a block down as it adds it to the graph, so that decoders, which start from here, and passes, which
//! start from the graph, see the same model.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use cacheplan_handlers::{DType, DecayKind};

use crate::fact::Fact;

/// One decoder layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerSpec {
    /// What the model's description calls such a layer, `mamba`.
    pub kind: String,
    /// Its blocks, in the order in which they run.
    pub blocks: Vec<BlockSpec>,
    /// How the blocks' dimensions are known, with the values of the first layer of this kind.
    pub known: Arc<[Fact]>,
}

/// One block of a layer, with its dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSpec {
    /// Attention over keys and values.
    Attention(Attention),
    /// Multi-head latent attention.
    Mla(Mla),
    /// The keys by which sparse attention chooses its tokens.
    Indexer {
        /// Channels of such a key.
        index_head_dim: u64,
    },
    /// Attention over a short window and over compressed entries.
    CompressedAttention(CompressedAttention),
    /// RWKV-4's time and channel mixing.
    Rwkv4 {
        /// Channels of the time mixing.
        width: u64,
    },
    /// A Mamba-1 mixer.
    Mamba1(Mamba1),
    /// A Mamba-2 mixer.
    Mamba2(Mamba2),
    /// A recurrence with one matrix per value head.
    LinearAttention(LinearAttention),
    /// A gated short convolution.
    ShortConv {
        /// Channels of the convolution.
        channels: u64,
        /// Its width.
        d_conv: u64,
    },
    /// An RG-LRU recurrence behind a convolution.
    RgLru {
        /// Channels of the recurrence.
        width: u64,
        /// Width of the convolution.
        d_conv: u64,
        /// The element type that the model states for its state.
        state_dtype: Option<DType>,
    },
    /// A feed-forward block, dense or with experts.
    FeedForward(FeedForward),
    /// An op that only the graph tells more of, by its kind: a framework's own, or one of an export.
    Op(String),
}

impl BlockSpec {
    /// What descriptions call such a block.
    pub fn name(&self) -> &str {
        match self {
            Self::Attention(_) => "attention",
            Self::Mla(_) => "mla",
            Self::Indexer { .. } => "indexer",
            Self::CompressedAttention(_) => "compressed_attention",
            Self::Rwkv4 { .. } => "rwkv4",
            Self::Mamba1(_) => "mamba1",
            Self::Mamba2(_) => "mamba2",
            Self::LinearAttention(_) => "linear_attention",
            Self::ShortConv { .. } => "short_conv",
            Self::RgLru { .. } => "rg_lru",
            Self::FeedForward(_) => "feed_forward",
            Self::Op(kind) => kind,
        }
    }
}

/// `mamba (mamba2, feed_forward)`.
impl Display for LayerSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let blocks: Vec<&str> = self.blocks.iter().map(BlockSpec::name).collect();
        write!(f, "{} ({})", self.kind, if blocks.is_empty() { "no blocks".to_owned() } else { blocks.join(", ") })
    }
}

/// Attention over keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Query heads.
    pub num_heads: u64,
    /// Key and value heads.
    pub num_kv_heads: u64,
    /// Channels of a query or key head.
    pub head_dim: u64,
    /// Channels of a value head; `None` for as many as a key head has.
    pub value_dim: Option<u64>,
    /// Tokens back that it sees; `None` for all.
    pub window: Option<u64>,
    /// The element type that the model states for its keys and values.
    pub cache_dtype: Option<DType>,
    /// An earlier layer whose keys and values it reads instead of making its own.
    pub shares_layer: Option<u32>,
}

/// Multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mla {
    /// Query heads.
    pub num_heads: u64,
    /// Channels of the compressed query; `None` where queries are not compressed.
    pub q_lora_rank: Option<u64>,
    /// Channels of the latent.
    pub kv_lora_rank: u64,
    /// Channels of a key head outside rope.
    pub qk_nope_head_dim: u64,
    /// Channels of the rope key that all heads share; 0 where the layer has no rope.
    pub qk_rope_head_dim: u64,
    /// Channels of a value head.
    pub v_head_dim: u64,
    /// Tokens back that it sees; `None` for all.
    pub window: Option<u64>,
    /// The element type that the model states for its latents.
    pub cache_dtype: Option<DType>,
    /// An earlier layer whose latents it reads instead of making its own.
    pub shares_layer: Option<u32>,
}

/// Attention over a short window and over entries that each stand for several tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedAttention {
    /// Query heads.
    pub num_heads: u64,
    /// Channels of the one key, which is the value too.
    pub head_dim: u64,
    /// Tokens back that are seen uncompressed.
    pub window: u64,
    /// Tokens per compressed entry; 0 for a layer that has only the window.
    pub ratio: u64,
    /// Channels of the key that chooses among entries; used where the ratio leaves so many that some must be chosen.
    pub index_head_dim: Option<u64>,
    /// The element type that the model states for its keys.
    pub cache_dtype: Option<DType>,
}

/// A Mamba-1 mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba1 {
    /// Channels of the recurrence.
    pub d_inner: u64,
    /// Numbers kept per channel.
    pub d_state: u64,
    /// Width of the convolution.
    pub d_conv: u64,
    /// Rank of the time step's projection.
    pub dt_rank: u64,
    /// The element type that the model states for its state.
    pub state_dtype: Option<DType>,
}

/// A Mamba-2 mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba2 {
    /// State heads.
    pub num_heads: u64,
    /// Channels of a head.
    pub head_dim: u64,
    /// Numbers kept per channel.
    pub d_state: u64,
    /// Groups of heads that share B and C; 0 where B and C do not pass the convolution.
    pub n_groups: u64,
    /// Width of the convolution.
    pub d_conv: u64,
    /// The element type that the model states for its state.
    pub state_dtype: Option<DType>,
}

/// A recurrence with one matrix per value head: gated delta net, KDA, lightning attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttention {
    /// Key heads.
    pub num_k_heads: u64,
    /// Value heads, each with its own state.
    pub num_v_heads: u64,
    /// Channels of a key head.
    pub head_k_dim: u64,
    /// Channels of a value head.
    pub head_v_dim: u64,
    /// Whether values are replaced by what their keys do not hold yet: gated delta net, KDA.
    pub delta_rule: bool,
    /// What the decay depends on.
    pub decay: DecayKind,
    /// Width of the convolution over queries, keys and values; `None` without one.
    pub d_conv: Option<u64>,
    /// The element type that the model states for its state.
    pub state_dtype: Option<DType>,
}

/// A feed-forward block, dense or with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedForward {
    /// Channels inside; of one expert where there are experts.
    pub intermediate_size: u64,
    /// Weight matrices: 3 with a gate, 2 without.
    pub matrices: u64,
    /// Routed experts; 0 for a dense block.
    pub experts: u64,
    /// Routed experts that a token goes to; 0 for a dense block.
    pub experts_per_token: u64,
    /// Channels of the expert that every token passes; 0 without.
    pub shared_size: u64,
    /// Channels that the routed experts see, where the residual stream is narrowed for them.
    pub latent_size: Option<u64>,
}

impl Attention {
    /// Full attention with `num_kv_heads` key and value heads.
    pub const fn grouped(num_heads: u64, num_kv_heads: u64, head_dim: u64) -> Self {
        Self { num_heads, num_kv_heads, head_dim, value_dim: None, window: None, cache_dtype: None, shares_layer: None }
    }
}
