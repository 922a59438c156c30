//! Prefixes that outlive the process: whose they are, and when they are kept and found.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use cacheplan_files::{Source, SourceError};
use cacheplan_transforms::ReadOptions;

use crate::error::ConfigError;

/// What names end in that hold weights or say how to compute with them.
const WEIGHTS: [&str; 6] = ["safetensors", "gguf", "onnx", "data", "bin", "json"];
/// Bytes of each end of a file that are read.
const END: u64 = 1 << 16;

/// Stands for what caches are computed with: the files of the models by their names, lengths, times of change and both ends,
/// and what was assumed of them. Weights that were copied elsewhere count as others, as does anything that is no longer the same.
pub(crate) fn identity<'a>(
    models: impl IntoIterator<Item = &'a Path>,
    read: &ReadOptions,
) -> Result<[u8; 32], ConfigError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{read:?}").as_bytes());
    for model in models {
        // Of several files with weights in a folder the one that is named is computed with.
        if model.is_file() {
            hasher.update(format!("{:?}", model.file_name()).as_bytes());
        }
        for path in files_of(model)? {
            let failed = |source| SourceError::Io { name: path.display().to_string(), source };
            let metadata = fs::metadata(&path).map_err(failed)?;
            let changed = metadata.modified().map_err(failed)?.duration_since(UNIX_EPOCH).unwrap_or_default();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            hasher.update(format!("{name:?} {} {}", metadata.len(), changed.as_nanos()).as_bytes());
            let source = Source::open(&path)?;
            let mut end = vec![0; source.len().min(END) as usize];
            for offset in [0, source.len() - end.len() as u64] {
                source.read_exact_at(&mut end, offset)?;
                hasher.update(&end);
            }
        }
    }
    Ok(*hasher.finalize().as_bytes())
}

/// The files of a model: of a GGUF file its parts, else all of its folder that may be weights.
fn files_of(model: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let is_file = model.is_file();
    let folder = if is_file { model.parent().filter(|folder| *folder != Path::new("")) } else { Some(model) };
    let folder = folder.unwrap_or(Path::new("."));
    let failed = |source| SourceError::Io { name: folder.display().to_string(), source };
    let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let alone = is_file && name.ends_with(".gguf");
    let front = name.trim_end_matches(".gguf").split("-00001-of-").next().unwrap_or_default().to_owned();
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let known = path.extension().is_some_and(|found| WEIGHTS.iter().any(|known| found == *known));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let of_it = if alone { name.ends_with(".gguf") && name.starts_with(&front) } else { known };
        if of_it && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
