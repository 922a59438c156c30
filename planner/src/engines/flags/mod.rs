//! What engines are told: each flag with the key of the budget that it is, and how the plan's value is said.

mod llama_cpp;
mod sglang;
mod tensorrt_llm;
mod vllm;

use cacheplan_handlers::DType;
use serde_json::{Value, json};

use crate::devices::Devices;
use crate::engines::version::Version;
use crate::export::input::{DTypeName, Input, Sourced};
use crate::plan::Pool;

pub(crate) use llama_cpp::LLAMA_CPP_FILE;
pub(crate) use sglang::{SGLANG, SGLANG_FILE};
pub(crate) use tensorrt_llm::{TENSORRT_LLM, TENSORRT_LLM_FILE};
pub(super) use vllm::vllm_kv_dtypes;
pub(crate) use vllm::{VLLM, VLLM_FILE};

const EVER: Version = Version::EVER;
/// States of SGLang and TensorRT-LLM.
const STATES: &[DTypeName] =
    &[(DType::F32, "float32", EVER), (DType::Bf16, "bfloat16", EVER), (DType::F16, "float16", EVER)];

/// A number of the plan's as the engine takes it, which may be another.
fn taken((value, source): (Value, String), to: impl Fn(u64) -> Option<u64>, why: &str) -> Sourced {
    let planned = value.as_u64()?;
    match to(planned).filter(|number| *number != planned) {
        Some(number) => Some((json!(number), format!("{source} {planned}, {why}"))),
        None => Some((value, source)),
    }
}

/// What an engine must be told where its ranks are more than one node has GPUs.
fn nodes(input: &Input<'_>, how: &str) -> Option<String> {
    let ranks = input.parallel().world_size();
    (ranks > Devices::USUAL_NODE.into()).then(|| {
        let node = Devices::USUAL_NODE;
        format!("the nodes: {ranks} ranks are more than the {node} GPUs of a usual one; start it on each with {how}")
    })
}

/// Whether nothing has room for the states that reuse would keep.
fn has_no_checkpoints(input: &Input<'_>) -> bool {
    input.has_states() && input.plan.checkpoints() == 0
}

fn full<'a>(input: &Input<'a>) -> impl Iterator<Item = &'a Pool> {
    input.paged().filter(|pool| pool.window.is_none())
}

fn windows<'a>(input: &Input<'a>) -> impl Iterator<Item = &'a Pool> {
    input.paged().filter(|pool| pool.window.is_some())
}

/// Tokens that a pool holds beside its padding.
fn tokens(pool: &Pool) -> u64 {
    (pool.units - pool.reserved) * pool.tokens_per_block.unwrap_or(0)
}
