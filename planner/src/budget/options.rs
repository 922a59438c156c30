//! What an engine is told.

use cacheplan_handlers::DType;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::key::{SEQUENCES, TOKENS, Values, section};
use super::values::{Fraction, Ratio, kv_dtype, tokens};
use crate::mla_cache::{MLA_CACHES, MlaCache};
use crate::size::ByteSize;

const MAMBA_CACHE_MODE_NAMES: Values = Values::Choice(&[
    ("none", "the running state alone"),
    ("align", "the running state and the last one at a block's end"),
    ("all", "one at the end of every block"),
]);

section! {
    /// What an engine is told besides the budget's limits; its own defaults where absent.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct EngineOptions under "engine." {
        /// Bytes for its caches, as it logs them.
        key("--cache-bytes", Values::Bytes, "the plan's own cache bytes", "'24GiB'")
        pub cache_bytes: Option<ByteSize>,
        /// Tokens in a block or page.
        key("--block-size", TOKENS, "--tokens-per-block if stated, else its own", "16")
        #[serde(deserialize_with = "tokens")]
        pub block_size: Option<u64>,
        /// Blocks whatever the bytes: vLLM's num_gpu_blocks_override.
        key("--num-blocks", SEQUENCES, "what the bytes give", "1000")
        pub num_blocks: Option<u64>,
        /// The most tokens whatever the bytes: SGLang's max_total_tokens, TensorRT-LLM's max_tokens.
        key("--max-total-tokens", TOKENS, "what the bytes give", "100000")
        #[serde(deserialize_with = "tokens")]
        pub max_total_tokens: Option<u64>,
        /// The compute capability of the GPU times ten, by which engines choose kernels.
        key("--compute-capability", Values::Count(70, 129), "90", "90")
        pub compute_capability: Option<u32>,
        /// The number of an AMD GPU, 942 of gfx942, which its name tells.
        #[serde(skip)]
        pub gfx: Option<u32>,
        /// Whether prefixes are kept for reuse.
        key("--prefix-caching", Values::Switch, "false", "false")
        pub prefix_caching: Option<bool>,
        /// How vLLM keeps states.
        key("--mamba-cache-mode", MAMBA_CACHE_MODE_NAMES, "align with prefix caching, none without", "'align'")
        pub mamba_cache_mode: Option<MambaCacheMode>,
        /// SGLang's max_mamba_cache_size; parallel sequences of TensorRT-LLM and llama.cpp.
        key("--state-slots", SEQUENCES, "the engine's own", "64")
        pub state_slots: Option<u64>,
        /// SGLang's mamba_full_memory_ratio.
        key("--state-ratio", Values::Ratio, "0.9", "0.9")
        pub state_ratio: Option<Ratio>,
        /// Slots for states of a running request of SGLang, by its mamba_radix_cache_strategy.
        key("--slots-per-request", SEQUENCES, "the engine's own", "5")
        pub slots_per_request: Option<u64>,
        /// SGLang's swa_full_tokens_ratio.
        key("--window-ratio", Values::Fraction, "0.8", "0.8")
        pub window_ratio: Option<Fraction>,
        /// How an engine on Ascend stores latents.
        key("--mla-cache", MLA_CACHES, "mla_cache_mode", "'int8_nz'")
        pub mla_cache: Option<MlaCache>,
        /// llama.cpp's -c: cells for all sequences together.
        key("--context", TOKENS, "the engine's own", "4096")
        #[serde(deserialize_with = "tokens")]
        pub context: Option<u64>,
        /// llama.cpp's -ub.
        key("--ubatch", TOKENS, "512", "512")
        #[serde(deserialize_with = "tokens")]
        pub ubatch: Option<u64>,
        /// llama.cpp's -ctk: the dtype of keys.
        key("--cache-type-k", Values::DType, "that of keys and values", "'q8_0'")
        #[serde(deserialize_with = "kv_dtype")]
        pub cache_type_k: Option<DType>,
        /// llama.cpp's -ctv: the dtype of values.
        key("--cache-type-v", Values::DType, "that of keys and values", "'q8_0'")
        #[serde(deserialize_with = "kv_dtype")]
        pub cache_type_v: Option<DType>,
        /// Windows own as much as full attention: llama.cpp's --swa-full, TensorRT-LLM untold.
        key("--swa-full", Values::Switch, "false", "false")
        pub swa_full: Option<bool>,
        /// vLLM's --async-scheduling: a step is prepared while others run, and holds its tokens.
        key("--async-scheduling", Values::Switch, "true", "false")
        pub async_scheduling: Option<bool>,
        /// Whether windows lie apart: false is vLLM's --disable-hybrid-kv-cache-manager, SGLang's --disable-hybrid-swa-memory.
        key("--hybrid-kv-cache", Values::Switch, "true", "false")
        pub hybrid_kv_cache: Option<bool>,
    }
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
        let only: Self = serde_json::from_value(Value::Object(stated)).unwrap_or_default();
        Self { gfx: self.gfx, ..only }
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
