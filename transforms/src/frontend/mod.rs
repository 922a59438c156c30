//! From what people have on disk to a [`Model`]: one front-end per format.

mod config;
mod error;
mod files;
pub mod gguf;
mod onnx;
mod pt2;
mod safetensors;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use cacheplan_files::{Limit, Shown, Source, SourceError, remember_model};

use self::files::Files;
use self::safetensors::Weights;
use crate::model::Model;

pub use config::{Assumption, is_built_in};
pub use error::{DescriptionPlace, FrontendError};

/// What the caller adds to a model's own description.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Facts that are used instead of what the files say or leave out.
    pub assume: Vec<Assumption>,
    /// Architecture descriptions (TOML text) that come before the built-in ones.
    pub descriptions: Vec<String>,
}

impl Model {
    /// Reads a model: a folder with `config.json` and perhaps weights, or one file of a known format.
    ///
    /// Of weights only the headers are read; they check the config and give its exact size.
    ///
    /// # Errors
    /// See [`FrontendError`]; each names the file and the key.
    pub fn read(path: &Path, options: &ReadOptions) -> Result<Self, FrontendError> {
        let _span = tracing::debug_span!("import", model = %path.display()).entered();
        let is_folder = path.is_dir();
        let folder = if is_folder { path } else { path.parent().unwrap_or(Path::new("")) };
        remember_model(folder);
        let mut model = if is_folder {
            read_folder(&Files::Folder(path), options)?
        } else {
            read_file(&Source::open(path)?, &Files::Folder(folder), options)?
        };
        model.info.name = std::path::absolute(path).ok().and_then(|path| name(&path, is_folder));
        Ok(model)
    }

    /// Reads a model from anywhere: `model` as one file of a known format, which the end of its name tells, and `beside` as
    /// the files that lie beside it.
    ///
    /// # Errors
    /// See [`FrontendError`]; each names the source and the key.
    pub fn read_source(model: &Source, beside: &[Source], options: &ReadOptions) -> Result<Self, FrontendError> {
        let _span = tracing::debug_span!("import", model = model.name()).entered();
        let mut read = read_file(model, &Files::Given(beside), options)?;
        read.info.name = name(Path::new(model.name()), false);
        Ok(read)
    }

    /// Reads the files of a folder from anywhere, with `config.json` and perhaps weights among them.
    ///
    /// # Errors
    /// See [`FrontendError`]; each names the source and the key.
    pub fn read_sources(files: &[Source], options: &ReadOptions) -> Result<Self, FrontendError> {
        let _span = tracing::debug_span!("import", files = files.len()).entered();
        read_folder(&Files::Given(files), options)
    }

    /// Reads the text of a `config.json`; `name` stands for the file in errors.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn read_config(name: &str, text: &str, options: &ReadOptions) -> Result<Self, FrontendError> {
        config::read(name, text, None, options)
    }

    /// The files beside an index of shards that hold a model's weights, as it names them.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn shards(index: &Source) -> Result<BTreeSet<String>, FrontendError> {
        safetensors::shards(index)
    }
}

/// What names of files that describe a model end in.
const ENDINGS: [&str; 5] = ["json", "gguf", "onnx", "pt2", "safetensors"];

/// What a model is called by where it lies: its folder, or its file where that says more than `config.json` does.
fn name(path: &Path, is_folder: bool) -> Option<String> {
    let said = |name: &OsStr| name.to_str().map(|name| Shown(name).to_string());
    if is_folder {
        return said(path.file_name()?);
    }
    // What is no file's name says nothing by its end: `Qwen2.5-7B`.
    path.extension().filter(|end| ENDINGS.iter().any(|known| end == known))?;
    match path.file_stem()?.to_str()? {
        // Such as `model.safetensors.index.json` and `model-00001-of-00002.safetensors`.
        "config" | "model" => said(path.parent()?.file_name()?),
        stem if stem.starts_with("model.") || stem.starts_with("model-0") => said(path.parent()?.file_name()?),
        stem => said(stem.as_ref()),
    }
}

fn read_file(source: &Source, beside: &Files<'_>, options: &ReadOptions) -> Result<Model, FrontendError> {
    match Path::new(source.name()).extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => read_beside_config(&Weights::single(source)?, beside, options),
        Some("gguf") => gguf::read(source, beside, options),
        Some("onnx") => onnx::read(source, options),
        Some("pt2") => pt2::read(source, options),
        Some("pte") => Err(FrontendError::Program {
            file: source.name().to_owned(),
            at: "the program".to_owned(),
            reason: "programs of ExecuTorch are compiled for its own runtime, and do not say which of their memory is \
                     a cache; plan the .pt2 of torch.export that it was lowered from, or an ONNX export"
                .to_owned(),
        }),
        // Weights in several files are named by their index.
        _ if safetensors::is_index(source) => read_beside_config(&Weights::sharded(source, beside)?, beside, options),
        _ => read_config(source, beside, options),
    }
}

fn read_config(source: &Source, beside: &Files<'_>, options: &ReadOptions) -> Result<Model, FrontendError> {
    let text = source.text(Limit::CONFIG)?;
    // ModelOpt writes what it calibrated into a file of its own.
    let calibration = beside.open("hf_quant_config.json")?;
    let calibration = calibration.map(|file| Ok::<_, SourceError>((file.name().to_owned(), file.text(Limit::CONFIG)?)));
    let calibration = calibration.transpose()?;
    let calibration = calibration.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
    config::read(source.name(), &text, calibration, options)
}

fn read_folder(folder: &Files<'_>, options: &ReadOptions) -> Result<Model, FrontendError> {
    match Weights::in_folder(folder)? {
        Some(weights) => read_beside_config(&weights, folder, options),
        None => match folder.open("config.json")? {
            Some(config) => read_config(&config, folder, options),
            None => Err(no_model(folder)),
        },
    }
}

fn read_beside_config(weights: &Weights, beside: &Files<'_>, options: &ReadOptions) -> Result<Model, FrontendError> {
    let config = beside.open("config.json")?.ok_or_else(|| weights.missing_dimension())?;
    let mut model = read_config(&config, beside, options)?;
    weights.verify(&mut model)?;
    model.doubts.clear();
    Ok(model)
}

/// A folder that may hold models of other formats, one of which must then be named.
fn no_model(folder: &Files<'_>) -> FrontendError {
    let known = |name: &String| {
        let end = Path::new(name).extension();
        end.is_some_and(|end| ENDINGS.iter().any(|known| end == *known))
    };
    let mut names: Vec<String> = folder.names().into_iter().filter(known).collect();
    names.sort();
    let more = if names.len() > 3 { ", …" } else { "" };
    names.truncate(3);
    let instead = match names.as_slice() {
        [] => "name one with a config.json, or a .gguf, .onnx, .pt2 or .safetensors file".to_owned(),
        names => format!("name one of its files instead: {}{more}", names.join(", ")),
    };
    FrontendError::NoModel { folder: folder.to_string(), instead }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("/m/granite-4.0-h-small", true, Some("granite-4.0-h-small"))]
    #[case("/m/granite-4.0-h-small/config.json", false, Some("granite-4.0-h-small"))]
    #[case("/m/jamba/model.safetensors.index.json", false, Some("jamba"))]
    #[case("/m/jamba/model-00001-of-00002.safetensors", false, Some("jamba"))]
    #[case("/m/Qwen3-8B-Q4_K_M.gguf", false, Some("Qwen3-8B-Q4_K_M"))]
    #[case("config.json", false, None)]
    #[case("Qwen/Qwen2.5-7B", false, None)]
    #[case("-", false, None)]
    fn a_model_is_called_as_its_folder_or_file_is(
        #[case] path: &str,
        #[case] is_folder: bool,
        #[case] called: Option<&str>,
    ) {
        assert_eq!(name(Path::new(path), is_folder).as_deref(), called);
    }
}
