//! Names and keys that vLLM's configuration looks at behind its parser, as 0.33.0 has them; older versions know others.

use cacheplan_planner::engines::Version;
use serde_json::{Map, Value};

use super::super::Question;
use super::attention;
use crate::error::ServeError;
use crate::remedy::Remedy;

/// The version of these lists.
const READ: Version = Version(0, 33, 0);

/// `AttentionBackendEnum`.
const BACKENDS: &str = "FLASH_ATTN FLASH_ATTN_DIFFKV TRITON_ATTN TRITON_ATTN_DIFFKV TRITON_FLASH_ATTN ROCM_ATTN ROCM_SEGMENTED_ATTN \
    ROCM_AITER_MLA ROCM_AITER_TRITON_MLA ROCM_AITER_FA ROCM_AITER_MLA_SPARSE XPU_MLA_SPARSE TORCH_SDPA FLASHINFER TRITON_FLASHINFER \
    FLASHINFER_MLA TOKENSPEED_MLA FLASHINFER_MLA_SPARSE FLASHINFER_MLA_SPARSE_SM120 FLASHINFER_MLA_SPARSE_SM90 TRITON_MLA CUTLASS_MLA \
    FLASHMLA FLASHMLA_SPARSE FLASHMLA_SPARSE_DSV4 FLASHINFER_MLA_SPARSE_DSV4 ROCM_FLASHMLA_SPARSE_DSV4 FLASHMLA_SPARSE_DSV41 \
    FLASHINFER_MLA_SPARSE_DSV41 ROCM_FLASHMLA_SPARSE_DSV41 FLASHMLA_MEGA_ATTN_DSV41 B12X FLASH_ATTN_MLA FLASH_ATTN_MLA_SPARSE \
    FLASH_ATTN_MLA_SPARSE_FA4 MINIMAX_M3_SPARSE CUTLASS_MSA TRITON_MSA STEP5_DSA NO_ATTENTION FLEX_ATTENTION HPC_ATTN \
    ROCM_AITER_UNIFIED_ATTN CPU_ATTN CPU_MLA AMX_MLA TURBOQUANT ROCM_OCTAVE ULTRAQUANT CUSTOM";

fn lists(all: &str, word: &str) -> bool {
    all.split_whitespace().any(|known| known == word)
}

/// Kernels that it does not know; those of a plugin go by the names that it has for them.
pub(super) fn backend(question: &Question) -> Result<(), ServeError> {
    const FLAG: &str = "--attention-backend";
    let by_flag = question.value(FLAG).map(|word| (word.to_uppercase(), FLAG));
    let stated = by_flag.or_else(|| Some((attention::backend(question)?, attention::FLAG)));
    let unknown = |(word, _): &(String, _)| question.engine.version >= READ && word != "AUTO" && !lists(BACKENDS, word);
    let Some((word, flag)) = stated.filter(unknown) else { return Ok(()) };
    let known: Vec<&str> = BACKENDS.split_whitespace().collect();
    let said = format!("Unknown attention backend: '{word}'. Valid options are: {}", known.join(", "));
    Err(question.refused(said, [Remedy::Remove(flag)]))
}

/// Keys of a speculative config that it does not know, and ranks over which it divides no draft model.
pub(in super::super) fn speculative(question: &Question, config: &Map<String, Value>) -> Result<(), ServeError> {
    const FLAG: &str = "--speculative-config";
    const RANKS: &str = "draft_tensor_parallel_size";
    let ranks = config.get(RANKS).and_then(whole);
    let own = question.count("--tensor-parallel-size").unwrap_or(1);
    match ranks.filter(|ranks| *ranks != 1 && *ranks != own) {
        Some(ranks) => {
            let said = format!(
                "speculative_{RANKS}={ranks} cannot be other value than 1 or target model tensor_parallel_size"
            );
            Err(question.refused(said, [Remedy::Remove(FLAG)]))
        }
        None => Ok(()),
    }
}

/// A whole number as its configuration takes one, also as a text.
pub(in super::super) fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}
