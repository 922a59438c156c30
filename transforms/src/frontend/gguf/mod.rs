//! GGUF: header only. Its keys become a table that architecture descriptions read like a config.

mod reader;
mod skeleton;
mod tokenizer;

use std::path::Path;

use cacheplan_files::Source;
use serde_json::{Map, Value};

use self::reader::Header;
pub use self::skeleton::GgufSkeleton;
pub use self::tokenizer::GgufTokenizer;
use super::files::Files;
use super::{FrontendError, ReadOptions, config};
use crate::model::{Fact, Model};
use crate::weights::WeightBytes;

/// Architectures of which llama.cpp keeps a key and a value for every head where a key is not there, with what such files are
/// described as: latents all the same, which other engines keep.
const KEEP_HEADS: [(&str, &str, &str); 1] = [("deepseek2", "attention.key_length_mla", "deepseek2-whole")];

/// Reads the header of a GGUF file, and those of the files that it was split into.
pub(super) fn read(source: &Source, beside: &Files<'_>, options: &ReadOptions) -> Result<Model, FrontendError> {
    let name = source.name().to_owned();
    let header = Header::read(source)?;
    if let Some(number) = header.number("split.no").filter(|&number| number > 0) {
        let expected = "the model is described in the first file of the split; give that one".to_owned();
        let (key, found) = ("split.no".to_owned(), number.to_string());
        return Err(FrontendError::BadValue { file: name, key, found, expected });
    }

    let architecture = header.text("general.architecture").ok_or_else(|| FrontendError::Missing {
        file: name.as_str().into(),
        model_type: "gguf".to_owned(),
        what: "the architecture".into(),
        keys: "`general.architecture`".into(),
        unsaid: Box::default(),
        near: Box::default(),
    })?;
    let mut table = nested(&header, architecture);
    // llama.cpp computes in the dtype of the embeddings where they are not quantised, and in half precision otherwise.
    table.insert("dtype".to_owned(), header.embedding_dtype().unwrap_or("f16").into());
    if let Some(vocabulary) = header.vocabulary() {
        table.insert("vocab_size".to_owned(), vocabulary.into());
    }
    if !header.ends().is_empty() {
        table.insert("eos_token_id".to_owned(), header.ends().into());
    }
    // What a file has is what its decoder needs: biases, norms.
    let kinds = header.tensor_kinds().map(|kind| (kind.replace('.', "_"), true.into()));
    table.insert(config::TENSORS.to_owned(), Value::Object(kinds.collect()));
    let keeps_heads = |(known, key, _): &&(&str, &str, &str)| {
        *known == architecture && header.value(&format!("{known}.{key}")).is_none()
    };
    let described = KEEP_HEADS.iter().find(keeps_heads).map_or(architecture, |&(_, _, described)| described);
    let mut model = config::read_table(&name, table, format!("gguf:{described}"), options)?;
    let weights = weights(source, beside, &header, &mut model.facts)?;
    model.prediction.weights = None;
    if weights.is_none() {
        model
            .weights_unknown
            .get_or_insert_with(|| "the file does not tell the bytes of all of its tensors".to_owned());
    }
    model.info.weights = weights.map(|weights| weights.in_proportion_to(model.info.weights));
    model.info.fingerprint = header.fingerprint().to_owned();
    model.source = format!("{name} (GGUF)");
    Ok(model)
}

/// Where the tensors of a model in GGUF lie.
#[derive(Debug)]
pub struct GgufFiles {
    /// The architecture that the first file states; empty where it states none.
    pub architecture: String,
    /// The files that it was split into, or the one.
    pub files: Vec<GgufFile>,
}

/// A file of a model and the tensors in it.
#[derive(Debug)]
pub struct GgufFile {
    /// The file.
    pub source: Source,
    /// Its tensors.
    pub tensors: Vec<GgufTensor>,
}

/// Where a tensor lies in a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// Its axes, the slowest first.
    pub shape: Vec<u64>,
    /// The number of its ggml type.
    pub kind: u32,
    /// Its first byte in the file.
    pub offset: u64,
}

impl Model {
    /// The tensors of the GGUF file at `path`, and of those that it was split into.
    ///
    /// # Errors
    /// A file of the split that is absent, a malformed header, more tensors than are kept.
    pub fn gguf_files(path: &Path) -> Result<GgufFiles, FrontendError> {
        let source = Source::open(path)?;
        let beside = Files::Folder(path.parent().unwrap_or(Path::new("")));
        let (mut architecture, mut files, mut count) = (String::new(), Vec::<GgufFile>::new(), 1);
        let mut next = Some(source);
        while let Some(source) = next.take() {
            let mut tensors = Vec::new();
            let mut kept = 0;
            let header = Header::read_tensors(&source, |tensor| {
                kept += size_of::<GgufTensor>() + 8 * tensor.shape.len() + tensor.name.len();
                if kept > MAX_TENSORS_KEPT {
                    let (key, found) = ("tensor count".to_owned(), "far too many".to_owned());
                    let expected = format!("at most {MAX_TENSORS_KEPT} bytes of tensor names and shapes are kept");
                    return Err(FrontendError::BadValue { file: source.name().to_owned(), key, found, expected });
                }
                let reader::TensorInfo { name, mut shape, kind, offset } = tensor;
                shape.reverse();
                tensors.push(GgufTensor { name, shape, kind, offset });
                Ok(())
            })?;
            for tensor in &mut tensors {
                tensor.offset = tensor.offset.saturating_add(header.data());
            }
            if files.is_empty() {
                count = header.number("split.count").unwrap_or(1).min(MAX_SPLIT);
                header.text("general.architecture").unwrap_or_default().clone_into(&mut architecture);
            }
            files.push(GgufFile { source, tensors });
            let number = files.len() as u64 + 1;
            if number <= count {
                let name = sibling(files[0].source.name(), number);
                let found = name.as_deref().map(|name| beside.open(name)).transpose()?.flatten();
                next = Some(found.ok_or_else(|| FrontendError::BadValue {
                    file: files[0].source.name().to_owned(),
                    key: "split.count".to_owned(),
                    found: format!("file {number} of {count} is absent"),
                    expected: format!(
                        "{} beside the first",
                        name.as_deref().unwrap_or("a file named -0000N-of-0000M.gguf")
                    ),
                })?);
            }
        }
        Ok(GgufFiles { architecture, files })
    }
}

/// Bytes that the names and shapes of a file's tensors may take in memory.
const MAX_TENSORS_KEPT: usize = 48 << 20;

/// Bytes of all weights, over all files of a split; none where one of them is absent.
fn weights(
    source: &Source,
    beside: &Files<'_>,
    first: &Header,
    facts: &mut Vec<Fact>,
) -> Result<Option<WeightBytes>, FrontendError> {
    let mut bytes = first.weight_bytes();
    for number in 2..=first.number("split.count").unwrap_or(1).min(MAX_SPLIT) {
        let part = sibling(source.name(), number).map(|name| beside.open(&name)).transpose()?.flatten();
        bytes = match &part {
            Some(part) => bytes.zip(Header::read(part)?.weight_bytes()).and_then(|(sum, more)| sum.checked_add(more)),
            None => {
                let (what, from) = ("weights".to_owned(), "split.count".to_owned());
                facts.push(Fact { what, value: format!("file {number} is absent"), from, assumed: true });
                return Ok(None);
            }
        };
    }
    Ok(bytes.map(|bytes| WeightBytes::new(bytes, true)))
}

/// No model is split into more files.
const MAX_SPLIT: u64 = 1_000;

/// Another file of a split: `model-00001-of-00003.gguf` becomes `model-00002-of-00003.gguf`.
fn sibling(name: &str, number: u64) -> Option<String> {
    let (before, count) = Path::new(name).file_name()?.to_str()?.rsplit_once("-of-")?;
    let stem = before.strip_suffix("-00001")?;
    Some(format!("{stem}-{number:05}-of-{count}"))
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
