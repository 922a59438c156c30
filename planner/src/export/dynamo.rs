//! Dynamo's `DynamoGraphDeployment`: a worker with the engine's own arguments, for each engine that Dynamo wraps.

use serde_json::{Value, json};

use super::Serving;
use super::file::{File, flags, nested};
use super::target::Deployment;
use crate::engines::known::{sglang, tensorrt_llm, vllm};

pub(super) static VLLM: Deployment = Deployment {
    name: "dynamo",
    dialect: &vllm::DIALECT,
    releases: &[("1.3.0", "0.24.0"), ("1.5.1", "0.28.0")],
    write: |file| deployment(file, "vllm", "dynamo.vllm", "--model", flags(file.settings).collect()),
    ..COMMON
};

pub(super) static SGLANG: Deployment = Deployment {
    name: "dynamo-sglang",
    dialect: &sglang::DIALECT,
    releases: &[("1.3.0", "0.5.16"), ("1.5.1", "0.5.18")],
    write: |file| deployment(file, "sglang", "dynamo.sglang", "--model-path", flags(file.settings).collect()),
    ..COMMON
};

/// TensorRT-LLM's worker takes the engine's arguments as one object.
pub(super) static TENSORRT_LLM: Deployment = Deployment {
    name: "dynamo-tensorrt-llm",
    dialect: &tensorrt_llm::DIALECT,
    releases: &[("1.3.0", "1.3.0rc23"), ("1.5.1", "1.3.0rc25")],
    write: |file| {
        deployment(
            file,
            "trtllm",
            "dynamo.trtllm",
            "--model",
            vec![format!("--override-engine-args={}", nested(file.settings))],
        )
    },
    ..COMMON
};

/// What the three have in common. The releases: the first from AIConfigurator's matrix, the second from the package's own
/// requirements.
const COMMON: Deployment = Deployment {
    name: "",
    file_name: "dynamo.yaml",
    names_model: true,
    dialect: &vllm::DIALECT,
    releases: &[],
    write: |_| String::new(),
    gaps,
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
