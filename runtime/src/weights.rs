//! Weights of a model folder: one safetensors file, or an index and its shards. Tensors are read one at a time.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Shape, Tensor};
use safetensors::tensor::Metadata;
use serde::Deserialize;
use thiserror::Error;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
/// The safetensors format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The tensors of one model by their names on disk.
#[derive(Debug)]
pub struct Weights {
    source: Source,
    device: Device,
    dtype: DType,
}

#[derive(Debug)]
enum Source {
    Files(Files),
    /// Every tensor exists; its values follow from its name and shape.
    Invented,
}

/// Open files and where each tensor lies in them.
#[derive(Debug, Default)]
struct Files {
    tensors: HashMap<String, Stored>,
    files: Vec<(PathBuf, File)>,
}

#[derive(Debug)]
struct Stored {
    file: usize,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    offset: u64,
    bytes: usize,
}

/// Weights that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The folder has neither a single file nor an index.
    #[error("{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")]
    NoFile {
        /// The model's folder.
        folder: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {file}: {source}")]
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what its name says.
    #[error("{file}: {reason}")]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that the model needs is not there.
    #[error("tensor `{name}` of shape {expected:?} is missing; {near}")]
    Missing {
        /// The tensor's name on disk.
        name: String,
        /// The shape that the config asks for.
        expected: Vec<usize>,
        /// What is there instead.
        near: String,
    },
    /// A tensor has another shape than the config asks for.
    #[error("tensor `{name}` has shape {found:?}, the config asks for {expected:?}")]
    Shape {
        /// The tensor's name on disk.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the config asks for.
        expected: Vec<usize>,
    },
    /// A tensor's element type cannot be computed with.
    #[error("tensor `{name}` has dtype {dtype}, which the runtime cannot compute with; convert it to bf16 or f32")]
    DType {
        /// The tensor's name on disk.
        name: String,
        /// Its element type.
        dtype: String,
    },
    /// A bias that is there although the config speaks of none; numbers would be wrong without it.
    #[error("tensor `{name}` is there, but the config states no such bias")]
    Unstated {
        /// The tensor's name on disk.
        name: String,
    },
    /// Candle failed to build the tensor.
    #[error("tensor `{name}`: {source}")]
    Candle {
        /// The tensor's name on disk.
        name: String,
        /// Why.
        source: Box<candle_core::Error>,
    },
}

type Result<T> = std::result::Result<T, WeightError>;

impl Weights {
    /// Reads the headers in `folder`; tensors become `dtype` on `device` when they are asked for.
    ///
    /// # Errors
    /// No weights in the folder, an unreadable, truncated or malformed file.
    pub fn open(folder: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let mut files = Files::default();
        let (single, index) = (folder.join(SINGLE_FILE), folder.join(INDEX_FILE));
        if single.exists() {
            files.add(single)?;
        } else if index.exists() {
            for shard in shards(&index)? {
                files.add(folder.join(shard))?;
            }
        } else {
            return Err(WeightError::NoFile { folder: folder.to_owned() });
        }
        Ok(Self { source: Source::Files(files), device: device.clone(), dtype })
    }

    /// Weights for a model that nobody trained: each tensor's values follow from its name and shape alone.
    pub fn invented(dtype: DType, device: &Device) -> Self {
        Self { source: Source::Invented, device: device.clone(), dtype }
    }

    /// The tensor called `name`, which must have `shape`.
    ///
    /// # Errors
    /// A missing or mis-shaped tensor, an element type that cannot be computed with, a failed read.
    pub fn get(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        let tensor = match &self.source {
            Source::Files(files) => files.get(name, shape, &self.device)?,
            Source::Invented => invent(name, shape, &self.device),
        };
        tensor
            .and_then(|tensor| tensor.to_dtype(self.dtype))
            .map_err(|source| WeightError::Candle { name: name.to_owned(), source: Box::new(source) })
    }

    /// The tensors whose names begin with `prefix` and a dot; the empty prefix names all of them.
    pub fn scope(&self, prefix: &str) -> Scope<'_> {
        Scope { weights: self, prefix: prefix.to_owned() }
    }
}

impl Files {
    fn get(&self, name: &str, shape: Shape, device: &Device) -> Result<candle_core::Result<Tensor>> {
        let expected = shape.into_dims();
        let Some(stored) = self.tensors.get(name) else {
            return Err(WeightError::Missing { name: name.to_owned(), expected, near: self.near(name) });
        };
        if stored.shape != expected {
            return Err(WeightError::Shape { name: name.to_owned(), found: stored.shape.clone(), expected });
        }
        let unusable = || WeightError::DType { name: name.to_owned(), dtype: format!("{:?}", stored.dtype) };
        // Narrower numbers mean nothing without the scales that lie beside them.
        let dtype = DType::try_from(stored.dtype).ok();
        let wide = dtype.filter(|dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64));
        let dtype = wide.ok_or_else(unusable)?;
        let raw = self.read(stored)?;
        Ok(Tensor::from_raw_buffer(&raw, dtype, &expected, device))
    }

    fn add(&mut self, path: PathBuf) -> Result<()> {
        let io = |source| WeightError::Io { file: path.clone(), source };
        let malformed = |reason: String| WeightError::Malformed { file: path.clone(), reason };
        let mut file = File::open(&path).map_err(io)?;
        let file_bytes = file.metadata().map_err(io)?.len();
        if file_bytes < 8 {
            return Err(malformed(format!("{file_bytes} bytes are too few for a safetensors file")));
        }
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(io)?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > MAX_HEADER_BYTES.min(file_bytes - 8) {
            return Err(malformed(format!("a header of {header_bytes} bytes does not fit a file of {file_bytes}")));
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| malformed(format!("its header: {e}")))?;
        let data = 8 + header_bytes;
        for (name, info) in metadata.tensors() {
            let (begin, end) = info.data_offsets;
            let (offset, past) = (data + begin as u64, data + end as u64);
            if past > file_bytes {
                let reason = format!("the file ends at byte {file_bytes}, its tensor `{name}` at byte {past}");
                return Err(malformed(reason));
            }
            let (dtype, shape) = (info.dtype, info.shape.clone());
            self.tensors.insert(name, Stored { file: self.files.len(), dtype, shape, offset, bytes: end - begin });
        }
        self.files.push((path, file));
        Ok(())
    }

    fn read(&self, stored: &Stored) -> Result<Vec<u8>> {
        let (path, file) = &self.files[stored.file];
        let mut raw = vec![0; stored.bytes];
        let mut file = file;
        file.seek(SeekFrom::Start(stored.offset))
            .and_then(|_| file.read_exact(&mut raw))
            .map_err(|source| WeightError::Io { file: path.clone(), source })?;
        Ok(raw)
    }

    /// What stands where `name` was looked for, for the error that says it is not there.
    fn near(&self, name: &str) -> String {
        let above = |name: &str| name.rsplit_once('.').map_or(String::new(), |(above, _)| above.to_owned());
        let parent = above(&above(name));
        let mut siblings: Vec<&str> =
            self.tensors.keys().map(String::as_str).filter(|other| other.starts_with(&parent)).collect();
        siblings.sort_unstable();
        siblings.truncate(4);
        match siblings[..] {
            [] => format!("none of the {} tensors begins with `{parent}`", self.tensors.len()),
            _ => format!("near it there are {}", siblings.join(", ")),
        }
    }
}

/// Values as a trained model's are in kind: vectors around one, matrices that keep the size of what they multiply.
fn invent(name: &str, shape: Shape, device: &Device) -> candle_core::Result<Tensor> {
    let (centre, spread) = match shape.dims() {
        [] | [_] => (1.0, 0.5),
        [.., inputs] => (0.0, (3.0 / *inputs as f32).sqrt()),
    };
    // FNV-1a of the name seeds splitmix64.
    let hash = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    let values: Vec<f32> = (0..shape.elem_count())
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32;
            centre + spread * (2.0 * unit - 1.0)
        })
        .collect();
    Tensor::from_vec(values, shape, device)
}

/// The part of the weights under one prefix.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    weights: &'a Weights,
    prefix: String,
}

impl<'a> Scope<'a> {
    /// The scope `name` inside this one.
    pub fn enter(&self, name: impl std::fmt::Display) -> Scope<'a> {
        Scope { weights: self.weights, prefix: self.full_name(name) }
    }

    /// The tensor called `name` in this scope, which must have `shape`.
    ///
    /// # Errors
    /// As [`Weights::get`].
    pub fn get(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        self.weights.get(&self.full_name(name), shape)
    }

    /// Whether the files have a tensor called `name` in this scope.
    pub(crate) fn stores(&self, name: &str) -> bool {
        match &self.weights.source {
            Source::Files(files) => files.tensors.contains_key(&self.full_name(name)),
            Source::Invented => false,
        }
    }

    /// The tensor called `bias`, which must be `len` long, if the config states one.
    ///
    /// # Errors
    /// As [`Weights::get`]; [`WeightError::Unstated`].
    pub(crate) fn bias(&self, stated: bool, len: usize) -> Result<Option<Tensor>> {
        if !stated && self.stores("bias") {
            return Err(WeightError::Unstated { name: self.full_name("bias") });
        }
        stated.then(|| self.get("bias", len)).transpose()
    }

    fn full_name(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }
}

/// The shard files that an index names, each once.
fn shards(index: &Path) -> Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let text = std::fs::read(index).map_err(|source| WeightError::Io { file: index.to_owned(), source })?;
    let malformed = |reason: String| WeightError::Malformed { file: index.to_owned(), reason };
    let index: Index = serde_json::from_slice(&text).map_err(|e| malformed(e.to_string()))?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|shard| Path::new(shard).file_name() != Some(shard.as_ref())) {
        Some(outside) => Err(malformed(format!("shard `{outside}` is not a plain file name"))),
        None => Ok(shards),
    }
}
