//! GGUF: header only. Its keys become a table that architecture descriptions read like a config.

mod reader;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use self::reader::Header;
use super::{FrontendError, ReadOptions, config};
use crate::model::{Fact, Model, WeightBytes};

/// Reads the header of a GGUF file, and those of the files that it was split into.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<Model, FrontendError> {
    let name = path.display().to_string();
    let header = read_header(path)?;
    if let Some(number) = header.number("split.no").filter(|&number| number > 0) {
        let expected = "the model is described in the first file of the split; give that one".to_owned();
        let (key, found) = ("split.no".to_owned(), number.to_string());
        return Err(FrontendError::BadValue { file: name, key, found, expected });
    }

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
    model.info.weights = weights(path, &header, &mut model.facts)?;
    model.info.fingerprint = header.fingerprint().to_owned();
    model.source = format!("{name} (GGUF)");
    Ok(model)
}

fn read_header(path: &Path) -> Result<Header, FrontendError> {
    let name = path.display().to_string();
    let io = |source| FrontendError::Io { file: name.clone(), source };
    let file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    Header::read(&name, BufReader::new(file), size)
}

/// Bytes of all weights, over all files of a split; none where one of them is absent.
fn weights(path: &Path, first: &Header, facts: &mut Vec<Fact>) -> Result<Option<WeightBytes>, FrontendError> {
    let mut bytes = first.weight_bytes();
    for number in 2..=first.number("split.count").unwrap_or(1).min(MAX_SPLIT) {
        let part = sibling(path, number).filter(|part| part.is_file());
        bytes = match &part {
            Some(part) => bytes.zip(read_header(part)?.weight_bytes()).and_then(|(sum, more)| sum.checked_add(more)),
            None => {
                let (what, from) = ("weights".to_owned(), "split.count".to_owned());
                facts.push(Fact { what, value: format!("file {number} is absent"), from, assumed: true });
                return Ok(None);
            }
        };
    }
    Ok(bytes.map(|bytes| WeightBytes { bytes, exact: true }))
}

/// No model is split into more files.
const MAX_SPLIT: u64 = 1_000;

/// Another file of a split: `model-00001-of-00003.gguf` becomes `model-00002-of-00003.gguf`.
fn sibling(path: &Path, number: u64) -> Option<PathBuf> {
    let (before, count) = path.file_name()?.to_str()?.rsplit_once("-of-")?;
    let stem = before.strip_suffix("-00001")?;
    Some(path.with_file_name(format!("{stem}-{number:05}-of-{count}")))
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
