//! Every engine that is modelled: one file each.

pub(crate) mod llama_cpp;
pub(crate) mod sglang;
pub(crate) mod tensorrt_llm;
pub(crate) mod vllm;
