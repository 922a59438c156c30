//! Every engine that is modelled: one file each, listed once.

mod llama_cpp;
pub(crate) mod sglang;
pub(crate) mod tensorrt_llm;
pub(crate) mod vllm;

use super::Engine;

/// The engines, in the order in which they are shown.
pub(super) static ENGINES: [Engine; 4] = [
    Engine::new(&vllm::ENGINE),
    Engine::new(&sglang::ENGINE),
    Engine::new(&tensorrt_llm::ENGINE),
    Engine::new(&llama_cpp::ENGINE),
];
