//! A model of random weights: what lies beside its graphs, so that the same folder runs without them.

use std::io::Write;
use std::path::{Path, PathBuf};

use cacheplan_files::{Limit, Source, replace};
use cacheplan_transforms::Model;
use candle_core::{DType, Device};

use super::write::refuse;
use crate::device::stored_dtype;
use crate::error::{ConfigError, Result, RuntimeError};
use crate::weights::{SINGLE_FILE, Weights};

const CONFIG: &str = "config.json";

/// What else a run reads, where it is there.
const BESIDE: [(&str, Limit); 4] = [
    ("generation_config.json", Limit::CONFIG),
    ("tokenizer.json", Limit::TOKENIZER),
    ("tokenizer_config.json", Limit::CONFIG),
    ("chat_template.jinja", Limit::TEMPLATE),
];

/// Weights in the dtype that the model's config states, so that a run reads what was exported.
pub(super) fn weights(seed: u64, model: &Model) -> Weights {
    Weights::random(seed, stored_dtype(model.info.dtype).unwrap_or(DType::F32), DType::F32, &Device::Cpu)
}

/// Refuses what no folder could be made a model of, before anything is written.
pub(super) fn check(model: &Path, out: &Path) -> Result<()> {
    config(model)?;
    if is_same(&folder(model), out) && out.join(SINGLE_FILE).exists() {
        let reason = "random weights would take the place of the model's own; name another folder";
        return Err(RuntimeError::InPlace { path: out.join(SINGLE_FILE), reason });
    }
    Ok(())
}

/// Refuses a folder with another model's weights, before graphs are written that a run would join to them.
pub(super) fn refuse_others(model: &Path, out: &Path) -> Result<()> {
    let path = out.join(SINGLE_FILE);
    if is_same(&folder(model), out) || !path.exists() {
        return Ok(());
    }
    let reason = "it is of another export or model, and `run` would take these graphs for its layers; remove it, or name another folder";
    Err(RuntimeError::Output { path, reason: reason.to_owned() })
}

/// Writes what was invented for a model, and what describes it, to the folder of its graphs.
pub(super) fn save(model: &Path, out: &Path, weights: &Weights) -> Result<Vec<PathBuf>> {
    let mut files = vec![out.join(SINGLE_FILE)];
    weights.save_invented(&files[0])?;
    let folder = folder(model);
    if is_same(&folder, out) && model.is_dir() {
        return Ok(files);
    }
    let mut copies = vec![(CONFIG, config(model)?, Limit::CONFIG)];
    for (name, limit) in BESIDE {
        copies.extend(Source::beside(&folder, name).map_err(ConfigError::from)?.map(|found| (name, found, limit)));
    }
    for (name, found, limit) in copies {
        let bytes = found.bytes(limit).map_err(ConfigError::from)?;
        let file = out.join(name);
        replace(&file, |out| out.write_all(&bytes))?;
        files.push(file);
    }
    Ok(files)
}

fn config(model: &Path) -> Result<Source> {
    let file = if model.is_dir() { model.join(CONFIG) } else { model.to_owned() };
    if file.extension().is_none_or(|extension| extension != "json") {
        let reason = "random weights need a config.json, which says what they are for";
        return Err(refuse(&file.display().to_string(), reason.to_owned()));
    }
    Ok(Source::open(&file).map_err(ConfigError::from)?)
}

fn folder(model: &Path) -> PathBuf {
    if model.is_dir() { model.to_owned() } else { model.parent().unwrap_or(Path::new("")).to_owned() }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| std::path::absolute(path).and_then(std::fs::canonicalize).ok();
    of(one).is_some_and(|found| of(other) == Some(found))
}
