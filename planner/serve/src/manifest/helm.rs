//! Values of charts: vLLM's production stack, and llm-d's model service. The charts' templates make the commands.

use super::command;
use super::config::truth;
use super::error::ManifestError;
use super::kinds::in_group;
use super::kserve;
use super::kubernetes::{self, Objects};
use super::origin::{Origin, launch};
use super::reading::Spot;
use super::unknown;
use super::variables::Variables;
use crate::Launch;

/// The models of `servingEngineSpec`.
pub(super) fn production_stack(root: &Spot<'_>) -> Result<Vec<Launch>, ManifestError> {
    let Some(spec) = root.get("servingEngineSpec").filter(|spec| !says(spec, "enableEngine", false)) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for model in spec.list("modelSpec")? {
        let url = model.get("modelURL").ok_or_else(|| model.refuse("a model without `modelURL`", "state it"))?;
        let mut words = vec!["vllm".to_owned(), "serve".to_owned(), url.text()?];
        if says(&model, "enableLoRA", true) {
            words.push("--enable-lora".to_owned());
        }
        if let Some(config) = model.get("vllmConfig") {
            stack_flags(&config, &mut words)?;
        }
        if let Some(revision) = model.get("modelRevision") {
            words.extend(["--revision".to_owned(), revision.text()?]);
        }
        if let Some(cache) = model.get("lmcacheConfig").filter(|cache| says(cache, "enabled", true)) {
            let role = cache.known_text("kvRole")?.unwrap_or_else(|| "kv_both".to_owned());
            let transfer = serde_json::json!({ "kv_connector": "LMCacheConnectorV1", "kv_role": role });
            words.extend(["--kv-transfer-config".to_owned(), transfer.to_string()]);
        }
        let mut variables = Variables::default();
        kubernetes::environment(&spec, "env", &mut variables)?;
        kubernetes::environment(&model, "env", &mut variables)?;
        kubernetes::environment_of_secret(&model, &mut variables);
        let name = model.get("name").and_then(|name| name.raw()).unwrap_or("");
        let mut origin = Origin::new(root.reading, model.place(), format!("modelSpec {name:.200}"));
        origin.image = match (model.get("repository"), model.get("tag")) {
            (Some(image), Some(tag)) => Some(format!("{}:{}", image.text()?, tag.text()?)),
            (image, _) => image.map(|image| image.text()).transpose()?,
        };
        origin.gpus = match model.get("requestGPU") {
            // The chart asks for no GPU where a part of one is stated.
            Some(count) if count.raw().is_some_and(|text| text.starts_with("0.")) => None,
            count => count.map(|count| count.count()).transpose()?.filter(|count| *count > 0),
        };
        origin.device = match model.known_text("requestGPUType")?.filter(|kind| kind.contains("/mig-")) {
            Some(part) => Some(part),
            None => kubernetes::device(&model)?,
        };
        found.push(launch(&words, &variables, &origin)?);
    }
    Ok(found)
}

/// `vllmConfig`, as the chart's template reads it; it takes no other keys.
fn stack_flags(config: &Spot<'_>, words: &mut Vec<String>) -> Result<(), ManifestError> {
    if let Some(chunked) = config.get("enableChunkedPrefill") {
        let flag =
            if chunked.raw() == Some("true") { "--enable-chunked-prefill" } else { "--no-enable-chunked-prefill" };
        words.push(flag.to_owned());
    }
    let caching = says(config, "enablePrefixCaching", true);
    words.push(if caching { "--enable-prefix-caching" } else { "--no-enable-prefix-caching" }.to_owned());
    const FLAGS: [(&str, &str); 9] = [
        ("maxModelLen", "--max-model-len"),
        ("dtype", "--dtype"),
        ("tensorParallelSize", "--tensor-parallel-size"),
        ("pipelineParallelSize", "--pipeline-parallel-size"),
        ("maxNumSeqs", "--max-num-seqs"),
        ("gpuMemoryUtilization", "--gpu-memory-utilization"),
        ("maxLoras", "--max-loras"),
        ("runner", "--runner"),
        ("convert", "--convert"),
    ];
    for (key, flag) in FLAGS {
        if let Some(value) = config.get(key) {
            words.extend([flag.to_owned(), value.text()?]);
        }
    }
    words.extend(config.get("extraArgs").map(|arguments| arguments.texts()).transpose()?.unwrap_or_default());
    Ok(())
}

/// Tells whether a key says true or false.
fn says(spot: &Spot<'_>, key: &str, expected: bool) -> bool {
    spot.get(key).and_then(|value| value.raw()).and_then(truth) == Some(expected)
}

/// The pools of llm-d's model service.
pub(super) fn model_service(root: &Spot<'_>, objects: &Objects<'_>) -> Result<Vec<Launch>, ManifestError> {
    let mut found = Vec::new();
    for role in ["decode", "prefill"] {
        let Some(pool) = root.get(role).filter(|pool| !says(pool, "create", false)) else { continue };
        for container in pool.list("containers")? {
            let mut origin = kubernetes::origin(&container, &pool, role, objects)?;
            if let (None, Some(types)) = (&origin.device, pool.get("acceleratorTypes")) {
                origin.device = match &*types.list("labelValues")? {
                    [label] => Some(label.known()?),
                    _ => None,
                };
            }
            let parallelism = Parallelism::of(&pool)?;
            let accelerator = [&pool, root].iter().find_map(|spot| spot.dig(&["accelerator", "type"]));
            let accelerator = accelerator.and_then(|kind| kind.raw()).unwrap_or("nvidia");
            if origin.gpus.is_none() && matches!(accelerator, "nvidia" | "amd") {
                origin.gpus = Some(parallelism.tensor.saturating_mul(parallelism.data_local));
            }
            // The chart makes a group of it, whose pods are alike.
            let size = if says(root, "multinode", true) { parallelism.workers } else { 1 };
            let variables = if size > 1 { in_group(size, "0") } else { Variables::default() };
            let group_gpus = origin.gpus.and_then(|gpus| gpus.checked_mul(size)).filter(|_| size > 1);
            let mut words = kubernetes::container_of(&container, variables)?;
            let command = container.get("modelCommand").and_then(|command| command.raw()).unwrap_or("custom");
            if command == "vllmServe" || command == "imageDefault" {
                let mut arguments = model(root)?;
                if command == "vllmServe" {
                    words.entrypoint = Some(vec!["vllm".to_owned(), "serve".to_owned()]);
                } else {
                    arguments.insert(0, "--model".to_owned());
                }
                arguments.extend(parallelism.words());
                arguments.append(&mut words.arguments);
                words.arguments = arguments;
            }
            let launches = command::of_container(words, &origin)?;
            found.extend(launches.into_iter().map(|launch| Launch { group_gpus, ..launch }));
        }
    }
    Ok(found)
}

/// The model of `modelArtifacts`: as a path where it is a volume's.
fn model(root: &Spot<'_>) -> Result<Vec<String>, ManifestError> {
    let missing = || root.refuse("a model service without a model", "state `modelArtifacts.uri`");
    let artifacts = root.get("modelArtifacts").ok_or_else(missing)?;
    let uri = artifacts.get("uri").ok_or_else(missing)?;
    let raw = uri.raw().ok_or_else(|| uri.shape("a text"))?;
    // The chart itself writes the URI with the name.
    let name = artifacts.known_text("name")?.unwrap_or_default();
    let text = ["{{ .Values.modelArtifacts.name }}", "{{.Values.modelArtifacts.name}}"]
        .iter()
        .fold(raw.to_owned(), |text, template| text.replace(template, &name))
        .replace('"', "");
    super::variables::bounded(text.len(), &uri.place())?;
    let text = unknown::known(&unknown::mark_templates(&text), &uri.place())?;
    let mut model = match (text.strip_prefix("pvc://"), text.strip_prefix("pvc+hf://")) {
        (Some(path), _) => {
            let folder = artifacts.known_text("mountPath")?.unwrap_or_else(|| "/model-cache".to_owned());
            vec![format!("{folder}/{}", path.split_once('/').map_or("", |(_, path)| path))]
        }
        (_, Some(path)) => {
            let parts: Vec<&str> = path.rsplit('/').take(2).collect();
            vec![parts.into_iter().rev().collect::<Vec<_>>().join("/")]
        }
        _ => kserve::model(&text),
    };
    model.extend(["--served-model-name".to_owned(), name]);
    Ok(model)
}

/// Ranks, as the chart completes what is stated of them.
struct Parallelism {
    tensor: u32,
    data: u32,
    data_local: u32,
    /// Pods that one replica is, where they are several.
    workers: u32,
}

impl Parallelism {
    fn of(pool: &Spot<'_>) -> Result<Self, ManifestError> {
        let stated = |key: &str| -> Result<Option<u32>, ManifestError> {
            let value = pool.dig(&["parallelism", key]).map(|value| value.count()).transpose()?;
            Ok(value.filter(|value| *value > 0))
        };
        let (data, local, workers) = (stated("data")?, stated("dataLocal")?, stated("workers")?);
        let data_local = local.unwrap_or_else(|| data.unwrap_or(1) / data.and(workers).unwrap_or(1));
        Ok(Self {
            tensor: stated("tensor")?.unwrap_or(1),
            data: data.unwrap_or_else(|| local.unwrap_or(1).saturating_mul(local.and(workers).unwrap_or(1))),
            data_local,
            workers: workers.unwrap_or_else(|| data.and(local).map_or(1, |local| data.unwrap_or(1) / local)).max(1),
        })
    }

    fn words(&self) -> Vec<String> {
        let sizes = [
            ("--tensor-parallel-size", self.tensor),
            ("--data-parallel-size", self.data),
            ("--data-parallel-size-local", self.data_local),
        ];
        sizes
            .iter()
            .filter(|(_, size)| *size > 1)
            .flat_map(|(flag, size)| [(*flag).to_owned(), size.to_string()])
            .collect()
    }
}
