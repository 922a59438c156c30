//! Ray Serve: an application that runs vLLM, whose arguments have underscores there.

use serde_json::{Map, Value, json};

use super::file::File;
use super::target_file::TargetFile;
use crate::engines::flags;

pub(super) static RAY: TargetFile = TargetFile::new("ray", "ray-serve.yaml", &flags::VLLM, application);

fn application(file: &File<'_>) -> String {
    let arguments: Map<String, Value> = file
        .settings
        .iter()
        .map(|setting| {
            // A switch is turned off by its value, not by another name.
            let (key, value) = match setting.key.strip_prefix("no-") {
                Some(on) => (on, Value::Bool(false)),
                None => (setting.key.as_str(), setting.value.clone()),
            };
            (key.replace('-', "_"), value)
        })
        .collect();
    let config = json!({
        "model_loading_config": { "model_id": file.model, "model_source": file.model },
        "engine_kwargs": arguments,
    });
    let application = json!({
        "name": "llms",
        "import_path": "ray.serve.llm:build_openai_app",
        "route_prefix": "/",
        "args": { "llm_configs": [config] },
    });
    file.yaml("serve deploy FILE", &json!({ "applications": [application] }))
}
