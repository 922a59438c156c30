//! From what people have on disk to a [`Model`]: one front-end per format.

mod config;
mod error;
mod gguf;
mod onnx;
mod safetensors;

use std::path::Path;

use self::safetensors::Weights;
use crate::model::Model;

pub use config::Assumption;
pub use error::FrontendError;

/// What the caller adds to a model's own description.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Facts that are used instead of what the files say or leave out.
    pub assume: Vec<Assumption>,
    /// Architecture descriptions (TOML text) that come before the built-in ones.
    pub descriptions: Vec<String>,
}

/// Reads a model: a folder with `config.json` and perhaps weights, or one file of a known format.
///
/// Of weights only the headers are read; they check the config and give its exact size.
///
/// # Errors
/// See [`FrontendError`]; each names the file and the key.
pub fn read_model(path: &Path, options: &ReadOptions) -> Result<Model, FrontendError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        _ if path.is_dir() => read_folder(path, options),
        Some("safetensors") => read_beside_config(path, options),
        Some("gguf") => gguf::read(path, options),
        Some("onnx") => onnx::read(path, options),
        _ => read_config(path, options),
    }
}

fn read_config(path: &Path, options: &ReadOptions) -> Result<Model, FrontendError> {
    let text = read_text(path)?;
    // ModelOpt writes what it calibrated into a file of its own.
    let beside = path.with_file_name("hf_quant_config.json");
    let calibration = if beside.is_file() { Some((beside.display().to_string(), read_text(&beside)?)) } else { None };
    let calibration = calibration.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
    config::read(&path.display().to_string(), &text, calibration, options)
}

fn read_text(path: &Path) -> Result<String, FrontendError> {
    let name = || path.display().to_string();
    let bytes = std::fs::read(path).map_err(|source| FrontendError::Io { file: name(), source })?;
    let text = String::from_utf8(bytes).map_err(|_| FrontendError::NotText { file: name() })?;
    // Editors on Windows put a byte order mark in front.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

fn read_folder(folder: &Path, options: &ReadOptions) -> Result<Model, FrontendError> {
    let weights = Weights::in_folder(folder)?;
    let config = folder.join("config.json");
    match weights {
        Some(weights) if !config.is_file() => Err(weights.missing_dimension()),
        Some(weights) => {
            let mut model = read_config(&config, options)?;
            weights.verify(&mut model)?;
            Ok(model)
        }
        None if std::fs::symlink_metadata(&config).is_err() => Err(no_model(folder)),
        None => read_config(&config, options),
    }
}

/// A folder that may hold models of other formats, one of which must then be named.
fn no_model(folder: &Path) -> FrontendError {
    let known = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("gguf" | "onnx" | "safetensors" | "json"))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<String> =
        entries.filter(|path| known(path)).filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    names.sort();
    let more = if names.len() > 3 { ", …" } else { "" };
    names.truncate(3);
    let instead = match names.as_slice() {
        [] => "name one with a config.json, or a .gguf, .onnx or .safetensors file".to_owned(),
        names => format!("name one of its files instead: {}{more}", names.join(", ")),
    };
    FrontendError::NoModel { folder: folder.display().to_string(), instead }
}

fn read_beside_config(path: &Path, options: &ReadOptions) -> Result<Model, FrontendError> {
    let weights = Weights::single(path)?;
    let config = path.with_file_name("config.json");
    if !config.is_file() {
        return Err(weights.missing_dimension());
    }
    let mut model = read_config(&config, options)?;
    weights.verify(&mut model)?;
    Ok(model)
}

/// Reads the text of a `config.json`; `name` stands for the file in errors.
///
/// # Errors
/// See [`FrontendError`].
pub fn read_config_str(name: &str, text: &str, options: &ReadOptions) -> Result<Model, FrontendError> {
    config::read(name, text, None, options)
}
