//! What an engine is told.

use cacheplan_handlers::DType;
use serde::{Deserialize, Serialize};

use crate::mla_cache::MlaCache;
use crate::{ByteSize, Fraction};

/// What an engine is told besides the budget's limits; its own defaults where absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineOptions {
    /// Bytes for its caches, as it logs them; the plan's own cache bytes where absent.
    pub cache_bytes: Option<ByteSize>,
    /// Tokens in a block or page.
    pub block_size: Option<u64>,
    /// vLLM's `num_gpu_blocks_override`: blocks, whatever the bytes.
    pub num_blocks: Option<u64>,
    /// SGLang's `max_total_tokens`: the most tokens, whatever the bytes.
    pub max_total_tokens: Option<u64>,
    /// The compute capability of the GPU times ten, 90 for Hopper where absent; engines choose kernels by it.
    pub compute_capability: Option<u32>,
    /// Whether prefixes are kept for reuse; off where absent, for every engine alike.
    pub prefix_caching: Option<bool>,
    /// How vLLM keeps states; `align` with prefix caching and `none` without where absent.
    pub mamba_cache_mode: Option<MambaCacheMode>,
    /// SGLang's `max_mamba_cache_size`, TensorRT-LLM's and llama.cpp's parallel sequences.
    pub state_slots: Option<u64>,
    /// SGLang's `mamba_full_memory_ratio`, 0.9 where absent.
    pub state_ratio: Option<Fraction>,
    /// SGLang's `swa_full_tokens_ratio`, 0.8 where absent.
    pub window_ratio: Option<Fraction>,
    /// How an engine on Ascend stores latents; as the plan does where absent.
    pub mla_cache: Option<MlaCache>,
    /// llama.cpp's `-c`: cells for all sequences together.
    pub context: Option<u64>,
    /// llama.cpp's `-ub`, 512 where absent.
    pub ubatch: Option<u64>,
    /// llama.cpp's `-ctk`: the dtype of keys, that of keys and values where absent.
    #[serde(deserialize_with = "crate::budget::dtype")]
    pub cache_type_k: Option<DType>,
    /// llama.cpp's `-ctv`: the dtype of values, likewise.
    #[serde(deserialize_with = "crate::budget::dtype")]
    pub cache_type_v: Option<DType>,
    /// llama.cpp's `--swa-full`: windows own as many cells as full attention; off where absent.
    pub swa_full: Option<bool>,
}

/// How vLLM keeps the states of hybrids (`--mamba-cache-mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MambaCacheMode {
    /// The running state alone.
    None,
    /// The running state and the last one at a block's end.
    Align,
    /// One at the end of every block.
    All,
}
