//! GGUF: header only. Its keys become a table that architecture descriptions read like a config.

mod reader;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde_json::{Map, Value};

use self::reader::Header;
use super::{FrontendError, ReadOptions, config};
use crate::model::{Model, WeightBytes};

/// Reads the header of a GGUF file.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<Model, FrontendError> {
    let name = path.display().to_string();
    let io = |source| FrontendError::Io { file: name.clone(), source };
    let file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let header = Header::read(&name, BufReader::new(file), size)?;

    let architecture = header.text("general.architecture").ok_or_else(|| FrontendError::Missing {
        file: name.clone(),
        model_type: "gguf".to_owned(),
        what: "the architecture".to_owned(),
        keys: "`general.architecture`".to_owned(),
    })?;
    let mut table = nested(&header, architecture);
    // llama.cpp computes in the dtype of the embeddings where they are not quantised, and in half precision otherwise.
    table.insert("dtype".to_owned(), header.embedding_dtype().unwrap_or("f16").into());
    if let Some(vocabulary) = header.vocabulary() {
        table.insert("vocab_size".to_owned(), vocabulary.into());
    }
    let mut model = config::read_table(&name, table, format!("gguf:{architecture}"), options)?;
    model.info.weights = header.weight_bytes().map(|bytes| WeightBytes { bytes, exact: true });
    model.info.fingerprint = header.fingerprint().to_owned();
    model.source = format!("{name} (GGUF)");
    Ok(model)
}

/// The architecture's keys without its name, dots turned into nested objects.
fn nested(header: &Header, architecture: &str) -> Map<String, Value> {
    let mut table = Map::new();
    for (key, value) in header.values() {
        let Some(key) = key.strip_prefix(architecture).and_then(|key| key.strip_prefix('.')) else { continue };
        let mut level = &mut table;
        let mut parts = key.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                level.entry(part).or_insert_with(|| value.clone());
                break;
            }
            let Value::Object(next) = level.entry(part).or_insert_with(|| Value::Object(Map::new())) else { break };
            level = next;
        }
    }
    table
}
