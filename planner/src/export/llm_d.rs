//! llm-d: a kustomize patch of its `decode` deployment, which runs vLLM.

use serde_json::json;

use super::file::{File, arguments};
use super::target_file::TargetFile;
use crate::engines::flags;

pub(super) static LLM_D: TargetFile = TargetFile {
    gaps: |serving| {
        let replaced =
            "other arguments of the container: this list takes the place of that in its base, the port included";
        std::iter::once(replaced.to_owned()).chain(serving.pod_memory()).collect()
    },
    ..TargetFile::new("llm-d", "llm-d-decode.yaml", &flags::VLLM, patch)
};

fn patch(file: &File<'_>) -> String {
    let args: Vec<String> = std::iter::once(file.model.to_owned()).chain(arguments(file.settings)).collect();
    let container = json!({
        "name": "modelserver",
        "command": ["vllm", "serve"],
        "args": args,
        // Both, since a base that states another request would be left with two numbers.
        "resources": { "limits": file.gpus(), "requests": file.gpus() },
    });
    let patch = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "decode" },
        "spec": { "template": { "spec": { "containers": [container] } } },
    });
    file.yaml("a kustomize patch of the Deployment `decode`", &patch)
}
