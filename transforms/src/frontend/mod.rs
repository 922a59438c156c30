//! From what people have on disk to a [`Model`]: one front-end per format.

mod config;
mod error;

use std::path::Path;

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

/// Reads a model: a folder with `config.json`, or the file itself.
///
/// # Errors
/// See [`FrontendError`]; each names the file and the key.
pub fn read_model(path: &Path, options: &ReadOptions) -> Result<Model, FrontendError> {
    let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let name = path.display().to_string();
    let bytes = std::fs::read(&path).map_err(|source| FrontendError::Io { file: name.clone(), source })?;
    let text = String::from_utf8(bytes).map_err(|_| FrontendError::NotText { file: name.clone() })?;
    config::read(&name, &text, options)
}

/// Reads the text of a `config.json`; `name` stands for the file in errors.
///
/// # Errors
/// See [`FrontendError`].
pub fn read_config_str(name: &str, text: &str, options: &ReadOptions) -> Result<Model, FrontendError> {
    config::read(name, text, options)
}
