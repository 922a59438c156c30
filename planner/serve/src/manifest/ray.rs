//! Configs of Ray Serve, whose builders take LLM configs: a model and keyword arguments of vLLM.

use cacheplan_planner::Engine;

use super::config;
use super::error::ManifestError;
use super::origin::{Origin, launch};
use super::reading::{Reading, Spot};
use super::variables::Variables;
use super::{unknown, yaml};
use crate::Launch;
use crate::flags::fields;
use crate::flags::table::{Flag, all_flags};

/// Tells whether a document is one.
pub(super) fn is(root: &Spot<'_>) -> bool {
    ["applications", "llm_configs", "model_loading_config"].iter().any(|key| root.has(key))
}

/// The engines of a config.
pub(super) fn launches(root: &Spot<'_>) -> Result<Vec<Launch>, ManifestError> {
    let mut found = Vec::new();
    if root.has("model_loading_config") {
        found.push(engine(root, "")?);
    }
    for config in root.list("llm_configs")? {
        found.push(engine(&config, "")?);
    }
    for application in root.list("applications")? {
        let name = application.get("name").and_then(|name| name.raw()).unwrap_or("");
        let title = format!("application {name:.200}");
        let Some(arguments) = application.get("args") else { continue };
        for config in arguments.list("llm_configs")? {
            found.push(engine(&config, &title)?);
        }
        for key in ["prefill_config", "decode_config"] {
            if let Some(config) = arguments.get(key) {
                found.push(engine(&config, &title)?);
            }
        }
    }
    Ok(found)
}

/// A `RayService`, which has such a config as a text.
pub(super) fn service(object: &Spot<'_>) -> Result<Vec<Launch>, ManifestError> {
    let Some(config) = object.dig(&["spec", "serveConfigV2"]) else { return Ok(Vec::new()) };
    let Some(text) = config.raw() else { return Err(config.shape("a text")) };
    let name = format!("{}: {}", object.reading.file, super::kubernetes::title(object));
    config.reading.charge(text.len(), &config.place())?;
    let documents = yaml::documents(&name, text)?;
    let reading = Reading::new(&name);
    let mut found = Vec::new();
    for root in &documents {
        found.extend(launches(&reading.root(root))?);
    }
    Ok(found)
}

/// Refuses what Ray, or a field of `AsyncEngineArgs`, refuses: no parser of flags reads these (`vllm_models.py`).
fn argument(key: &str, value: &Spot<'_>) -> Result<(), ManifestError> {
    /// Flags of `vllm serve` that are fields of nothing.
    const OF_THE_COMMAND: [&str; 5] = ["config", "headless", "api_server_count", "grpc", "device_memory_utilization"];
    let refused = |said: String| Err(ManifestError::Refused { at: value.place(), engine: "ray", said });
    if matches!(key, "model" | "served_model_name") {
        let said = "model or served_model_name is not allowed in engine_kwargs when using Ray Serve LLM. Please use \
                    `model_loading_config` in LLMConfig instead.";
        return refused(said.to_owned());
    }
    let name = format!("--{}", key.replace('_', "-"));
    let of_key = |flag: &&Flag| flag.name == name && !key.contains('-') && !OF_THE_COMMAND.contains(&key);
    let Some(flag) = Engine::all()
        .iter()
        .filter(|engine| engine.name() == "vllm")
        .flat_map(|engine| all_flags(*engine))
        .filter(of_key)
        .last()
    else {
        return refused(format!("Unknown engine argument: {:.100}", unknown::written(key)));
    };
    if key == "distributed_executor_backend" && value.raw().is_some_and(|backend| backend != "ray") {
        let said =
            "distributed_executor_backend != 'ray' is not allowed in engine_kwargs when using Ray Serve LLM Configs.";
        return refused(said.to_owned());
    }
    // What is stated as nothing is as if it were not.
    if value.node.is_null() {
        return Ok(());
    }
    let stated = config::json(value.node, &value.place())?;
    match fields::refuses_field(flag, &stated) {
        Some(said) => refused(said),
        None => Ok(()),
    }
}

fn engine(config: &Spot<'_>, title: &str) -> Result<Launch, ManifestError> {
    if config.raw().is_some() {
        return Err(
            config.refuse("a file that is named in place of a config", "write out the config, or read that file")
        );
    }
    if let Some(engine) =
        config.get("llm_engine").filter(|engine| engine.raw().is_some_and(|name| name.to_lowercase() != "vllm"))
    {
        return Err(engine.refuse("an engine but vLLM", "leave `llm_engine` out"));
    }
    let loading = config.get("model_loading_config").ok_or_else(|| {
        config.refuse("an LLM config without a model", "state `model_loading_config` with `model_id`")
    })?;
    let id = loading.get("model_id").map(|id| id.text()).transpose()?;
    let source = match loading.get("model_source") {
        Some(source) if source.raw().is_none() => source.get("bucket_uri").map(|uri| uri.text()).transpose()?,
        source => source.map(|source| source.text()).transpose()?,
    };
    let Some(model) = source.or_else(|| id.clone()) else {
        return Err(loading.refuse("a model that is named nowhere", "state `model_id` or `model_source`"));
    };
    let mut words = vec!["vllm".to_owned(), "serve".to_owned(), model];
    if let Some(id) = id {
        words.extend(["--served-model-name".to_owned(), id]);
    }
    if let Some(arguments) = config.get("engine_kwargs") {
        let by_cpu = config.get("use_cpu").and_then(|uses| config::truth(uses.raw()?)) == Some(true);
        if by_cpu {
            return Err(config.refuse("an engine on the processor (`use_cpu`)", "leave `use_cpu` out"));
        }
        for (key, value) in arguments.all_entries()? {
            argument(key, &value)?;
            if !value.node.is_null() {
                config::keyword(&key.replace('_', "-"), &value, &mut words)?;
            }
        }
    }
    let mut variables = Variables::default();
    if let Some(environment) = config.get("runtime_env") {
        for (name, value) in environment.map("env_vars")? {
            variables.set(name, vec![value.text()?], true);
        }
    }
    let at = config.place();
    let object = if title.is_empty() { at.path.clone() } else { format!("{title}, {}", at.path) };
    let mut origin = Origin::new(config.reading, at, object);
    origin.device = config.known_text("accelerator_type")?;
    if let Some(group) = config.get("placement_group_config") {
        for bundle in group.list("bundles")? {
            if let Some(count) = bundle.get("GPU") {
                origin.gpus = Some(origin.gpus.unwrap_or(0).saturating_add(count.count()?));
            }
        }
    }
    launch(&words, &variables, &origin)
}
