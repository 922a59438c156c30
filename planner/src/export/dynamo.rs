//! Dynamo's `DynamoGraphDeployment`: a worker with the engine's own arguments, for each engine that Dynamo wraps.

use serde_json::{Value, json};

use super::file::{File, arguments, nested};
use super::serving::Serving;
use super::target_file::TargetFile;
use crate::engines::flags;

/// Its own package requires the engines in its images at the versions below.
const RELEASE: &str = "1.5.1";
const FILE: &str = "dynamo.yaml";

pub(super) static VLLM: TargetFile = TargetFile {
    releases: &[(RELEASE, "0.28.0")],
    gaps,
    ..TargetFile::new("dynamo", FILE, &flags::VLLM, |file| {
        deployment(file, "vllm", "vllm", "--model", arguments(file.settings).collect())
    })
};

pub(super) static SGLANG: TargetFile = TargetFile {
    releases: &[(RELEASE, "0.5.18")],
    gaps,
    ..TargetFile::new("dynamo-sglang", FILE, &flags::SGLANG, |file| {
        deployment(file, "sglang", "sglang", "--model-path", arguments(file.settings).collect())
    })
};

/// TensorRT-LLM's worker takes the engine's arguments as one object.
pub(super) static TENSORRT_LLM: TargetFile = TargetFile {
    releases: &[(RELEASE, "1.3.0rc25")],
    gaps,
    ..TargetFile::new("dynamo-tensorrt-llm", FILE, &flags::TENSORRT_LLM, |file| {
        let arguments = format!("--override-engine-args={}", nested(file.settings));
        deployment(file, "trtllm", "tensorrtllm", "--model", vec![arguments])
    })
};

fn gaps(serving: &Serving) -> Vec<String> {
    serving.pod_memory().into_iter().collect()
}

/// `framework` is the engine's name in the deployment and its module's, `image` that of the image with it.
fn deployment(file: &File<'_>, framework: &str, image: &str, model_flag: &str, arguments: Vec<String>) -> String {
    let mut args = vec![format!("{model_flag}={}", file.model)];
    args.extend(arguments);
    let image = format!("nvcr.io/nvidia/ai-dynamo/{image}-runtime:{RELEASE}");
    let component = |name: &str, kind: &str, container: Value| {
        json!({
            "name": name,
            "type": kind,
            "replicas": 1,
            "podTemplate": { "spec": { "containers": [container] } },
        })
    };
    let frontend = json!({ "name": "main", "image": image, "command": ["python3", "-m", "dynamo.frontend"] });
    let worker = json!({
        "name": "main",
        "image": image,
        "command": ["python3", "-m", format!("dynamo.{framework}")],
        "args": args,
        "resources": { "limits": file.gpus() },
    });
    let deployment = json!({
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": { "name": "cacheplan" },
        "spec": {
            "backendFramework": framework,
            "components": [component("Frontend", "frontend", frontend), component("Worker", "worker", worker)],
        },
    });
    file.yaml("kubectl apply -f FILE", &deployment)
}
