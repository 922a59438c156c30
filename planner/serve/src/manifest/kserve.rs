//! KServe: `InferenceService` and `LLMInferenceService`, whose commands are made of what they state of a model.

use super::error::ManifestError;
use super::kubernetes::{self, Objects};
use super::origin::{Origin, launch};
use super::reading::Spot;
use super::variables::Variables;
use crate::Launch;

/// The model that a URI of storage names, and its revision.
pub(super) fn model(uri: &str) -> Vec<String> {
    match uri.strip_prefix("hf://") {
        None => vec![uri.to_owned()],
        Some(name) => match name.split_once(':') {
            Some((name, revision)) => vec![name.to_owned(), "--revision".to_owned(), revision.to_owned()],
            None => vec![name.to_owned()],
        },
    }
}

/// An `InferenceService`: containers of its own, or a model for the runtime of Hugging Face, which runs vLLM.
pub(super) fn inference_service(object: &Spot<'_>, objects: &Objects<'_>) -> Result<Vec<Launch>, ManifestError> {
    let title = kubernetes::title(object);
    let Some(predictor) = object.dig(&["spec", "predictor"]) else { return Ok(Vec::new()) };
    let mut found = kubernetes::pod_launches(&predictor, &title, objects, &Variables::default())?;
    let Some(model) = predictor.get("model") else { return Ok(found) };
    let format = model.dig(&["modelFormat", "name"]).and_then(|name| name.raw()).unwrap_or("").to_lowercase();
    if format == "huggingface" || format == "vllm" {
        let container = kubernetes::container_of(&model, Variables::default())?;
        let mut words = runtime_words(&model, &container.arguments)?;
        let mut nodes = 1;
        if let Some(worker) = predictor.get("workerSpec") {
            let Some(stages) = worker.get("pipelineParallelSize") else {
                return Err(worker.refuse("a number of nodes that is not stated", "state `pipelineParallelSize`"));
            };
            // The head is one of them.
            nodes = stages.count()?;
            words.extend(["--pipeline-parallel-size".to_owned(), nodes.to_string()]);
            if let Some(size) = worker.get("tensorParallelSize") {
                words.extend(["--tensor-parallel-size".to_owned(), size.text()?]);
            }
        }
        // The words are not those of `args`.
        let origin = Origin { items: Vec::new(), ..kubernetes::origin(&model, &predictor, &title, objects)? };
        found.push(launch(&words, &container.variables, &origin)?.on_nodes(nodes));
    }
    Ok(found)
}

/// The words of vLLM for those of the runtime.
fn runtime_words(spot: &Spot<'_>, arguments: &[String]) -> Result<Vec<String>, ManifestError> {
    let mut words = Vec::new();
    let mut named = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let (flag, inline) = match argument.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_owned())),
            _ => (argument.as_str(), None),
        };
        let name = flag.replace('_', "-");
        let flag = match name.as_str() {
            "--model-id" | "--model-dir" | "--backend" | "--model-name" | "--model-revision" | "--max-length" => name,
            _ => {
                words.push(argument.clone());
                continue;
            }
        };
        let value = inline.or_else(|| arguments.next().cloned()).unwrap_or_default();
        match flag.as_str() {
            "--model-id" => named = Some(value),
            // Where the runtime puts what `storageUri` names.
            "--model-dir" => {}
            "--backend" if value == "huggingface" => {
                return Err(
                    spot.refuse("`--backend=huggingface`, which runs no engine,", "leave it out, so that vLLM runs")
                );
            }
            "--backend" => {}
            "--model-name" => words.extend(["--served-model-name".to_owned(), value]),
            "--model-revision" => words.extend(["--revision".to_owned(), value]),
            _ => words.extend(["--max-model-len".to_owned(), value]),
        }
    }
    let uri = match spot.get("storageUri").or_else(|| spot.dig(&["storage", "uri"])) {
        Some(uri) => Some(uri.text()?),
        None => None,
    };
    let Some(model) = named.map(|name| vec![name]).or_else(|| uri.map(|uri| model(&uri))) else {
        return Err(spot.refuse("a model that is named nowhere", "state `storageUri` or `--model_id`"));
    };
    Ok([vec!["vllm".to_owned(), "serve".to_owned()], model, words].concat())
}

/// An `LLMInferenceService`: its own pool, which decodes where there is one for prefill too.
pub(super) fn llm_inference_service(object: &Spot<'_>, objects: &Objects<'_>) -> Result<Vec<Launch>, ManifestError> {
    let title = kubernetes::title(object);
    let Some(spec) = object.get("spec") else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for (pool, name) in [(Some(spec.clone()), ""), (spec.get("prefill"), ", prefill")] {
        if let Some(pool) = pool {
            found.extend(pool_launch(&spec, &pool, &format!("{title}{name}"), objects)?);
        }
    }
    Ok(found)
}

fn pool_launch(
    spec: &Spot<'_>,
    pool: &Spot<'_>,
    title: &str,
    objects: &Objects<'_>,
) -> Result<Vec<Launch>, ManifestError> {
    let pod = pool.get("template");
    let containers = pod.as_ref().map_or_else(|| Ok(Vec::new()), |pod| pod.list("containers"))?;
    let main = containers.iter().find(|container| container.get("name").and_then(|name| name.raw()) == Some("main"));
    let main = main.or_else(|| containers.first());
    if let (Some(pod), Some(_)) = (&pod, main.filter(|container| container.has("command"))) {
        return kubernetes::pod_launches(pod, title, objects, &Variables::default());
    }
    if let Some(bases) = spec.get("baseRefs") {
        return Err(bases.refuse("what another object states", "write out the command of the container `main`"));
    }
    let Some(uri) = spec.dig(&["model", "uri"]) else { return Ok(Vec::new()) };
    let mut words = vec!["vllm".to_owned(), "serve".to_owned()];
    words.extend(model(&uri.text()?));
    if let Some(name) = spec.dig(&["model", "name"]) {
        words.extend(["--served-model-name".to_owned(), name.text()?]);
    }
    // What the templates of KServe make of it.
    const PARALLELISM: [(&str, &str); 4] = [
        ("tensor", "--tensor-parallel-size"),
        ("pipeline", "--pipeline-parallel-size"),
        ("data", "--data-parallel-size"),
        ("dataLocal", "--data-parallel-size-local"),
    ];
    if let Some(parallelism) = pool.get("parallelism") {
        for (key, flag) in PARALLELISM {
            if let Some(size) = parallelism.get(key) {
                words.extend([flag.to_owned(), size.text()?]);
            }
        }
        if parallelism.get("expert").and_then(|expert| expert.raw()) == Some("true") {
            words.push("--enable-expert-parallel".to_owned());
        }
    }
    // Stages are on a node each; replicas are on the nodes that their flags say.
    let stages = pool.dig(&["parallelism", "pipeline"]).filter(|_| pool.has("worker"));
    let nodes = stages.map_or(Ok(1), |stages| stages.count())?;
    let mut variables = Variables::default();
    let mut origin = Origin::new(pool.reading, pool.place(), title.to_owned());
    if let (Some(pod), Some(main)) = (&pod, main) {
        origin = kubernetes::origin(main, pod, title, objects)?;
        origin.gpus = origin.gpus.filter(|_| !pool.has("worker") || nodes > 1);
        let container = kubernetes::container_of(main, Variables::default())?;
        for name in ["KV_TRANSFER_ARGS", "VLLM_ADDITIONAL_ARGS"] {
            let text = container.variables.get(name).unwrap_or_default().concat();
            let Some(more) = shlex::split(&text) else {
                return Err(main.refuse(format!("a quote without an end in `{name}`"), "close it"));
            };
            words.extend(more);
        }
        words.extend(container.arguments);
        variables = container.variables;
    }
    Ok(vec![launch(&words, &variables, &origin)?.on_nodes(nodes)])
}
