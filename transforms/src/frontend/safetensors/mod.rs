//! Safetensors: headers only. They give the exact bytes of the weights, and check the config's dimensions.

mod header;
mod rules;

use std::path::{Path, PathBuf};

use serde::Deserialize;

use self::header::TensorHeader;
use super::FrontendError;
use crate::model::{Fact, Model, WeightBytes};

pub(super) use header::read_header;

/// The weights of one model.
pub(super) struct Weights {
    /// What was read: the file, or the index.
    file: String,
    tensors: Vec<TensorHeader>,
    bytes: Option<u64>,
    /// Shards that the index names and that are not there.
    absent: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    metadata: IndexMetadata,
    weight_map: std::collections::BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct IndexMetadata {
    #[serde(default)]
    total_size: Option<serde_json::Number>,
}

impl Weights {
    /// The weights in a folder; `None` if there are none in this format.
    pub(super) fn in_folder(folder: &Path) -> Result<Option<Self>, FrontendError> {
        let index = folder.join("model.safetensors.index.json");
        if index.is_file() {
            return Self::sharded(&index).map(Some);
        }
        let single = folder.join("model.safetensors");
        if single.is_file() { Self::single(&single).map(Some) } else { Ok(None) }
    }

    /// The weights in one file.
    pub(super) fn single(path: &Path) -> Result<Self, FrontendError> {
        let tensors = read_header(path)?;
        let bytes = sum(&tensors);
        Ok(Self { file: path.display().to_string(), tensors, bytes, absent: Vec::new() })
    }

    fn sharded(path: &Path) -> Result<Self, FrontendError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| FrontendError::Io { file: file.clone(), source })?;
        let index: Index =
            serde_json::from_str(&text).map_err(|source| FrontendError::Json { file: file.clone(), source })?;
        let mut shards: Vec<&String> = index.weight_map.values().collect();
        shards.sort();
        shards.dedup();
        let folder = path.parent().unwrap_or(Path::new("."));
        let (mut tensors, mut absent) = (Vec::new(), Vec::new());
        for shard in shards {
            match inside(folder, shard) {
                Some(path) if path.is_file() => tensors.extend(read_header(&path)?),
                Some(_) => absent.push(shard.clone()),
                None => {
                    let expected = "a file name inside the folder was expected".to_owned();
                    return Err(FrontendError::BadValue {
                        file,
                        key: "weight_map".to_owned(),
                        found: shard.clone(),
                        expected,
                    });
                }
            }
        }
        // Only the index knows the size of what is not there.
        let stated = index.metadata.total_size.and_then(|size| size.as_u64());
        let bytes = if absent.is_empty() { sum(&tensors) } else { stated };
        Ok(Self { file, tensors, bytes, absent })
    }

    /// Checks a model's dimensions against the tensors, and gives it the exact size of its weights.
    pub(super) fn verify(&self, model: &mut Model) -> Result<(), FrontendError> {
        let checked = rules::check(&self.file, &self.tensors, &model.graph)?;
        // One shard of several, or a file of something else, does not tell the size of the whole.
        let without =
            if self.absent.is_empty() { rules::layers_without(&self.tensors, &model.graph) } else { Vec::new() };
        if let (Some(bytes), []) = (self.bytes, &*without) {
            model.info.weights = Some(WeightBytes { bytes, exact: true });
        }
        let mut note = |what: &str, value: String, assumed: bool| {
            model.facts.push(Fact { what: what.to_owned(), value, from: self.file.clone(), assumed });
        };
        note("dimensions checked", checked.to_string(), false);
        if let Some(layer) = without.first() {
            let count = without.len();
            note("weights not counted", format!("{count} layers have no tensor here, layer {layer} the first"), true);
        }
        for shard in &self.absent {
            note("not checked", format!("shard {shard} is absent"), true);
        }
        Ok(())
    }

    /// Without a config some dimension is missing; this names it.
    pub(super) fn missing_dimension(&self) -> FrontendError {
        rules::missing_dimension(&self.file, &self.tensors)
    }
}

fn sum(tensors: &[TensorHeader]) -> Option<u64> {
    tensors.iter().try_fold(0u64, |sum, tensor| sum.checked_add(tensor.bytes))
}

/// The path of a shard, unless its name leaves the folder.
fn inside(folder: &Path, shard: &str) -> Option<PathBuf> {
    let plain = !shard.is_empty() && !shard.contains(['/', '\\']) && shard != "..";
    plain.then(|| folder.join(shard))
}
