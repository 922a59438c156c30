//! What other engines would allocate for the same model and bytes.
//!
//! Each engine is one file of rules over our resources: how it groups layers, what a page is, how it divides bytes. Which
//! version a rule was read from, or which logged sizes it reproduces, stands beside the rule. `registry` alone knows all of
//! them.

mod caches;
mod context;
mod expanded;
pub(crate) mod flags;
pub(crate) mod known;
mod layout;
mod predict;
mod prediction;
mod registry;
pub(crate) mod rules;
mod situation;
mod stored;
mod tier_flags;
mod transfer_flags;
pub(crate) mod version;

pub use crate::export::FlagMeaning;
pub use layout::{Layout, LayoutFlag};
pub(crate) use predict::{available_bytes, bytes_per_sequence};
pub use prediction::{EnginePlan, EnginePrediction, OfLayer};
pub use registry::{Engine, EngineSpec, UnknownEngine};
pub use stored::{OfAttention, Stored};
pub use tier_flags::{LowerTiers, TierFlags};
pub use transfer_flags::{Handing, TransferFlags};
pub use version::Version;

/// What commands of vLLM are read by as well as its plans.
pub mod vllm {
    pub use super::known::vllm::{
        HOLDS_AN_ITEM, HYBRIDS_KEEP_PREFIXES, REPORTS_CONCURRENCY, dense_block, items, other_float, reads_latents,
        run_in,
    };
}

/// What commands of SGLang are read by as well as its plans.
pub mod sglang {
    pub use super::known::sglang::{EXTRA_BUFFER, RUNNING_WITH_DRAFTS, SIZES_WINDOWS_BY_REQUESTS, SLOTS_WITH_RADIX};
}

/// What commands of llama.cpp are read by as well as its plans.
pub mod llama_cpp {
    pub use super::known::llama_cpp::{CELLS, DEFAULT_BATCH, DEFAULT_UBATCH, KV_DTYPES, MOST_SEQUENCES, refuses_head};
}

/// What commands of TensorRT-LLM are read by as well as its plans.
pub mod tensorrt_llm {
    pub use super::known::tensorrt_llm::{knows_windows, refuses_block, refuses_device};
}
