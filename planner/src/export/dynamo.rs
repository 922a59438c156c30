//! Dynamo's `DynamoGraphDeployment`: a worker with the engine's own arguments, for each engine that Dynamo wraps.

use serde_json::{Value, json};

use super::Serving;
use super::file::{File, flags, nested};
use super::target::Deployment;
use crate::engines::known::{sglang, tensorrt_llm, vllm};

// The releases: the first from AIConfigurator's matrix, the second from the package's own requirements.

pub(super) static VLLM: Deployment = Deployment {
    releases: &[("1.3.0", "0.24.0"), ("1.5.1", "0.28.0")],
    gaps,
    ..Deployment::new("dynamo", "dynamo.yaml", &vllm::DIALECT, |file| {
        deployment(file, "vllm", "dynamo.vllm", "--model", flags(file.settings).collect())
    })
};

pub(super) static SGLANG: Deployment = Deployment {
    releases: &[("1.3.0", "0.5.16"), ("1.5.1", "0.5.18")],
    gaps,
    ..Deployment::new("dynamo-sglang", "dynamo.yaml", &sglang::DIALECT, |file| {
        deployment(file, "sglang", "dynamo.sglang", "--model-path", flags(file.settings).collect())
    })
};

/// TensorRT-LLM's worker takes the engine's arguments as one object.
pub(super) static TENSORRT_LLM: Deployment = Deployment {
    releases: &[("1.3.0", "1.3.0rc23"), ("1.5.1", "1.3.0rc25")],
    gaps,
    ..Deployment::new("dynamo-tensorrt-llm", "dynamo.yaml", &tensorrt_llm::DIALECT, |file| {
        let arguments = format!("--override-engine-args={}", nested(file.settings));
        deployment(file, "trtllm", "dynamo.trtllm", "--model", vec![arguments])
    })
};

fn gaps(serving: &Serving) -> Vec<String> {
    let image = "each container's image: that of the Dynamo release for this engine".into();
    std::iter::once(image).chain(serving.pod_memory()).collect()
}

fn deployment(file: &File<'_>, framework: &str, module: &str, model_flag: &str, arguments: Vec<String>) -> String {
    let mut args = vec![format!("{model_flag}={}", file.model)];
    args.extend(arguments);
    let gpus = u64::from(file.parallel.tp) * u64::from(file.parallel.pp);
    let component = |name: &str, kind: &str, container: Value| {
        json!({
            "name": name,
            "type": kind,
            "replicas": 1,
            "podTemplate": { "spec": { "containers": [container] } },
        })
    };
    let frontend = json!({ "name": "main", "command": ["python3", "-m", "dynamo.frontend"] });
    let worker = json!({
        "name": "main",
        "command": ["python3", "-m", module],
        "args": args,
        "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } },
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
    file.yaml("kubectl apply -f FILE, once each container has its image", &deployment)
}
