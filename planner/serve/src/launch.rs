//! A command that starts an engine, before any engine's parser has read it.

use std::collections::BTreeMap;

/// The words of a command, with the environment in which they run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// The program and its arguments, as a shell would hand them over.
    pub words: Vec<String>,
    /// The variables that are stated beside it.
    pub env: BTreeMap<String, String>,
    /// Where it stands, such as `deployment.yaml: Deployment qwen, container vllm`.
    pub place: String,
    /// GPUs that its container asks for.
    pub gpus: Option<u32>,
    /// The GPU that its node has, as the manifest names it.
    pub device: Option<String>,
}
