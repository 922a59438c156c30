//! What an engine is told.

use cacheplan_handlers::DType;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::values::{Fraction, kv_dtype, tokens};
use crate::mla_cache::MlaCache;
use crate::size::ByteSize;

/// What an engine is told besides the budget's limits; its own defaults where absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineOptions {
    /// Bytes for its caches, as it logs them; the plan's own cache bytes where absent.
    pub cache_bytes: Option<ByteSize>,
    /// Tokens in a block or page.
    #[serde(deserialize_with = "tokens")]
    pub block_size: Option<u64>,
    /// vLLM's `num_gpu_blocks_override`: blocks, whatever the bytes.
    pub num_blocks: Option<u64>,
    /// SGLang's `max_total_tokens`: the most tokens, whatever the bytes.
    #[serde(deserialize_with = "tokens")]
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
    #[serde(deserialize_with = "tokens")]
    pub context: Option<u64>,
    /// llama.cpp's `-ub`, 512 where absent.
    #[serde(deserialize_with = "tokens")]
    pub ubatch: Option<u64>,
    /// llama.cpp's `-ctk`: the dtype of keys, that of keys and values where absent.
    #[serde(deserialize_with = "kv_dtype")]
    pub cache_type_k: Option<DType>,
    /// llama.cpp's `-ctv`: the dtype of values, likewise.
    #[serde(deserialize_with = "kv_dtype")]
    pub cache_type_v: Option<DType>,
    /// llama.cpp's `--swa-full`: windows own as many cells as full attention; off where absent.
    pub swa_full: Option<bool>,
    /// vLLM's `--async-scheduling`: a step is prepared while others run; on where absent.
    pub async_scheduling: Option<bool>,
    /// The opposite of vLLM's `--disable-hybrid-kv-cache-manager`: layers of several kinds are groups; on where absent.
    pub hybrid_kv_cache: Option<bool>,
}

/// What every engine goes by: bytes, and what describes the device rather than the engine.
const OF_ALL: [&str; 3] = ["cache_bytes", "compute_capability", "mla_cache"];

impl EngineOptions {
    /// The keys that are stated and that an engine which consumes `consumed` does not go by.
    pub(crate) fn unconsumed(&self, consumed: &[&str]) -> Vec<String> {
        let stated = self.as_json().into_iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key);
        stated.filter(|key| !OF_ALL.contains(&key.as_str()) && !consumed.contains(&key.as_str())).collect()
    }

    /// Without those.
    pub(crate) fn only(&self, consumed: &[&str]) -> Self {
        let (unconsumed, mut stated) = (self.unconsumed(consumed), self.as_json());
        stated.retain(|key, _| !unconsumed.contains(key));
        // What was written here is read back.
        serde_json::from_value(Value::Object(stated)).unwrap_or_default()
    }

    fn as_json(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(keys)) => keys,
            _ => Map::new(),
        }
    }
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
