//! Writes the graphs of a model, one for each number of tokens that a call takes.

use std::io::Write;
use std::path::{Path, PathBuf};

use cacheplan_files::replace;
use cacheplan_handlers::DType as Stored;
use cacheplan_transforms::onnx::{KeyValue, ModelProto};
use cacheplan_transforms::{Model, ReadOptions};
use candle_core::{DType, Device};
use prost::Message;
use prost::bytes::Bytes;

use super::random;
use super::write::{GraphDType, GraphForm};
use crate::decoder::Decoder;
use crate::error::{Result, RuntimeError};
use crate::weights::{WeightError, Weights};

/// Weights of at most so many bytes lie in the graph's own file, which cannot be larger than 2 GiB.
const INSIDE: usize = 1 << 30;
/// The longest cache: a mask of so many tokens is within the graph.
const MAX_CACHE_LEN: u64 = 1 << 20;
/// The most sequences of a call.
const MAX_BATCH_SIZE: u64 = 1 << 12;

/// What to export of a model.
#[derive(Clone, Debug)]
pub struct GraphExport {
    /// Tokens of a call, one graph for each; `None` for one that takes any number.
    pub buckets: Vec<Option<u64>>,
    /// Tokens that the caches hold.
    pub max_cache_len: u64,
    /// Sequences of a call. Of more than one each has its own positions.
    pub max_batch_size: u64,
    /// What weights, activations and caches are; where it is not said f16 of models whose own are 16 bits wide, else f32.
    pub dtype: Option<GraphDType>,
    /// The seed of weights that are invented, also where the model has some; those of a model without any are invented
    /// from 0.
    pub random: Option<u64>,
    /// Assumptions and descriptions for the front-end.
    pub read: ReadOptions,
}

impl GraphExport {
    /// Writes the graphs of the model in `path` to the folder `out`, which is made; returns their files.
    ///
    /// Invented weights are written there too, with what else makes that folder a model of its own.
    ///
    /// # Errors
    /// A model that cannot be loaded, a layer that cannot be exported, a weight beyond f16, a bucket beyond the cache, a
    /// file that cannot be written.
    pub fn write(&self, path: &Path, out: &Path) -> Result<Vec<PathBuf>> {
        let within = |what, found, unit, most, bound| match found {
            found if (1..=most).contains(&found) => Ok(()),
            found => Err(RuntimeError::OutOfRange { what, found, unit, most, bound }),
        };
        let tokens = |what, found, most, bound| within(what, found, "tokens", most, bound);
        tokens("a cache", self.max_cache_len, MAX_CACHE_LEN, "the longest one")?;
        within("a batch", self.max_batch_size, "sequences", MAX_BATCH_SIZE, "the largest one")?;
        let mut sizes = self.buckets.iter().flatten();
        sizes.try_for_each(|&size| tokens("a bucket", size, self.max_cache_len, "what the cache holds"))?;
        self.refuse_stale(out)?;
        let model = Model::read(path, &self.read)?;
        let weights = match self.random {
            Some(seed) => random::weights(seed, &model),
            None => match Weights::of_model(path, DType::F32, &Device::Cpu) {
                Err(WeightError::NoFile { .. }) => random::weights(0, &model),
                read => read?,
            },
        };
        if weights.are_invented() {
            random::check(path, out)?;
        } else {
            random::refuse_others(path, out)?;
        }
        let decoder = Decoder::load(&model, &weights)?;
        let dtype = self.dtype.unwrap_or(match model.info.dtype {
            Stored::F16 | Stored::Bf16 => GraphDType::F16,
            _ => GraphDType::F32,
        });
        let (max_cache_len, batch) = (self.max_cache_len as usize, self.max_batch_size as usize);
        let failed = |error: std::io::Error| RuntimeError::Output { path: out.to_owned(), reason: error.to_string() };
        let mut files = Vec::new();
        for bucket in &self.buckets {
            let name = name_of(*bucket);
            let tokens = bucket.map(|size| size as usize);
            let graph = decoder.to_graph(GraphForm { tokens, batch, max_cache_len, dtype })?;
            std::fs::create_dir_all(out).map_err(failed)?;
            files.push(save(graph, out, &name, INSIDE)?);
        }
        if weights.are_invented() {
            files.extend(random::save(path, out, &weights)?);
        }
        Ok(files)
    }

    /// Refuses a folder with graphs that this export does not replace: whoever runs the folder would compute with them too.
    fn refuse_stale(&self, out: &Path) -> Result<()> {
        let Ok(entries) = std::fs::read_dir(out) else { return Ok(()) };
        let written: Vec<String> = self.buckets.iter().map(|bucket| format!("{}.onnx", name_of(*bucket))).collect();
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let stale = names.filter(|name| name.ends_with(".onnx") && !written.contains(name)).min();
        match stale {
            None => Ok(()),
            Some(name) => Err(RuntimeError::Output {
                path: out.join(name),
                reason:
                    "it is of another export, and `run --static` would compute with it too; remove it, or name another folder"
                        .to_owned(),
            }),
        }
    }
}

/// What the graph of a bucket is called.
fn name_of(bucket: Option<u64>) -> String {
    match bucket {
        None => "prefill".to_owned(),
        Some(1) => "decode".to_owned(),
        Some(size) => format!("prefill_{size}"),
    }
}

/// Writes a graph; where its weights are more than `inside` bytes, they lie in a file beside it.
fn save(mut model: ModelProto, folder: &Path, name: &str, inside: usize) -> Result<PathBuf> {
    let tensors = model.graph.iter_mut().flat_map(|graph| &mut graph.initializer);
    let tensors: Vec<_> = tensors.filter(|tensor| tensor.raw_data.len() > 64).collect();
    if tensors.iter().map(|tensor| tensor.raw_data.len()).sum::<usize>() > inside {
        let location = format!("{name}.weights");
        let mut data: Vec<u8> = Vec::new();
        for tensor in tensors {
            let pair = |key: &str, value: String| KeyValue { key: key.to_owned(), value };
            tensor.external_data = vec![
                pair("location", location.clone()),
                pair("offset", data.len().to_string()),
                pair("length", tensor.raw_data.len().to_string()),
            ];
            tensor.data_location = 1;
            data.extend_from_slice(&std::mem::take::<Bytes>(&mut tensor.raw_data));
        }
        replace(&folder.join(&location), |out| out.write_all(&data))?;
    }
    let file = folder.join(format!("{name}.onnx"));
    replace(&file, |out| out.write_all(&model.encode_to_vec()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cacheplan_graphs::{GraphEngine, Runner};

    #[test]
    fn weights_beside_the_graph_are_read_from_there() {
        let folder = tempfile::tempdir().unwrap();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/static_cache/qwen3");
        let read = Model::read(&model, &ReadOptions::default()).unwrap();
        let weights = Weights::open(&model, DType::F32, &Device::Cpu).unwrap();
        let form = GraphForm { tokens: Some(1), batch: 1, max_cache_len: 32, dtype: GraphDType::F32 };
        let graph = || Decoder::load(&read, &weights).unwrap().to_graph(form).unwrap();
        let inside = save(graph(), folder.path(), "inside", INSIDE).unwrap();
        let beside = save(graph(), folder.path(), "beside", 0).unwrap();
        let size = |file: &Path| std::fs::metadata(file).unwrap().len();
        assert!(size(&beside) < size(&inside) / 4);
        let open = |file: &Path| Runner::open(file, &GraphEngine::Interpreter);
        assert_eq!(open(&inside).unwrap().inputs(), open(&beside).unwrap().inputs());
        std::fs::write(folder.path().join("beside.weights"), [0; 8]).unwrap();
        let error = open(&beside).unwrap_err();
        assert!(error.to_string().contains("are not in `beside.weights`, which has 8"), "{error}");
    }
}
