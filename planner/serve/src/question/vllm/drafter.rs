//! Drafters by DFlash, whose windows vLLM learned to keep (`_resolve_layer_attention`).

use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use cacheplan_transforms::{Model, ReadOptions};
use serde_json::{Map, Value};

use super::super::Question;
use crate::error::ServeError;
use crate::remedy::Remedy;

const FLAG: &str = "--speculative-config";
/// Read in 0.25.0, and not in 0.24.0; before, each layer kept every token.
const HAS_WINDOWS: Version = Version(0, 25, 0);
/// Read in 0.26.0, and not in 0.25.0, which refuses both kinds of layers in one.
const MIXES_WINDOWS: Version = Version(0, 26, 0);
/// Where a config states windows.
const WINDOWS: [&str; 2] = ["layer_types", "use_sliding_window"];
const OF_ALL: [&str; 2] = ["use_swa", "swa_window_size"];

/// A drafter as this version runs it.
pub(super) fn as_run(question: &Question, draft: &ModelCaches) -> Result<ModelCaches, ServeError> {
    let version = question.engine.version;
    let model = draft.model().filter(|model| model.config.contains_key("dflash_config"));
    let Some(model) = model.filter(|_| version < MIXES_WINDOWS) else { return Ok(draft.clone()) };
    if version < HAS_WINDOWS {
        return without_windows(model);
    }
    let kinds = model.config.get("layer_types").and_then(Value::as_array);
    let windows = kinds.map_or(0, |kinds| kinds.iter().filter(|kind| *kind == "sliding_attention").count());
    if windows > 0 && kinds.is_some_and(|kinds| windows < kinds.len()) {
        let said = "DFlash does not yet support mixed sliding/full attention via layer_types; see https://github.com/vllm-project/vllm/issues/40898.";
        return Err(question.refused(said, [Remedy::Remove(FLAG)]));
    }
    Ok(draft.clone())
}

fn without_windows(model: &Model) -> Result<ModelCaches, ServeError> {
    let mut config: Map<String, Value> = model.config.clone();
    config.retain(|key, _| !WINDOWS.contains(&&**key));
    if let Some(Value::Object(own)) = config.get_mut("dflash_config") {
        own.retain(|key, _| !OF_ALL.contains(&&**key));
    }
    let read = Model::read_config("the drafter", &Value::Object(config).to_string(), &ReadOptions::default());
    let unread = |error| ServeError::NotHandled {
        flag: FLAG.into(),
        why: format!("the drafter without its windows: {error}"),
        remedies: vec![Remedy::Remove(FLAG)],
    };
    let mut read = read.map_err(unread)?;
    // Its weights are what they were.
    read.info.clone_from(&model.info);
    Ok(read.into())
}
