//! Weights of a model: one safetensors file, an index and its shards, or GGUF. Tensors are read one at a time.

mod gguf;
mod gguf_names;
mod invented;
mod matrix;
mod nz;
mod safetensors_files;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cacheplan_files::{Shown, Source, SourceError};
use cacheplan_kernels::{Backend, MlaCacheMode, Products};
use cacheplan_transforms::{FrontendError, Model};
use candle_core::{DType, Device, Shape, Tensor};
use thiserror::Error;

use self::gguf::Gguf;
use self::invented::Invented;
pub(crate) use self::matrix::{LowRank, Matrix};
use self::safetensors_files::{Files, candle_dtype, of_rows};

pub(crate) const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
/// What quantising tools for Ascend call them.
const QUANTISED_FILES: [(&str, &str); 2] = [
    ("quant_model_weights.safetensors", "quant_model_weights.safetensors.index.json"),
    ("quant_model_weight_w8a8.safetensors", "quant_model_weight_w8a8.safetensors.index.json"),
];

/// How latents are kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LatentLayout {
    /// The cache mode that is asked for.
    pub(crate) mode: Option<MlaCacheMode>,
    /// What rope keys are stored in; none for what the operator does not write.
    pub(crate) dtype: Option<DType>,
}

/// The tensors of one model by their names on disk.
#[derive(Debug)]
pub struct Weights {
    kept: Kept,
    backend: Backend,
    device: Device,
    dtype: DType,
    loading: Arc<Loading>,
    /// Whether a prediction layer is read too.
    predicts: bool,
    latents: LatentLayout,
    products: Products,
}

/// How far the weights are read, for whoever shows it.
#[derive(Debug, Default)]
pub struct Loading {
    read: AtomicU64,
    all: AtomicU64,
}

impl Loading {
    /// Bytes of tensors that are read, and of all that there are; 0 of 0 until the files are open.
    pub fn bytes(&self) -> (u64, u64) {
        (self.read.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
enum Kept {
    Files(Files),
    Gguf(Gguf),
    /// Every tensor exists; its values follow from a seed, its name and its shape.
    Invented(Invented),
}

/// Weights that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The folder has neither a single file nor an index.
    #[error("{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}", folder = Shown(.folder.display()))]
    NoFile {
        /// The model's folder.
        folder: PathBuf,
    },
    /// Weights in a format that only the description is read of.
    #[error("the weights in {file} cannot be loaded yet; give a folder with config.json and {SINGLE_FILE}", file = Shown(.file.display()))]
    Format {
        /// The model's file.
        file: PathBuf,
    },
    /// A file cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A file is not what its name says.
    #[error("{file}: {reason}", file = Shown(.file), reason = Shown(.reason))]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A GGUF file whose header is not one.
    #[error(transparent)]
    Header(Box<FrontendError>),
    /// A file that the system does not map into memory.
    #[error("{file} cannot be mapped into memory: {source}", file = Shown(.file))]
    Map {
        /// The file.
        file: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A tensor in blocks that nothing multiplies with.
    #[error("{file}: tensor `{name}` is {found}, which the runtime cannot compute with; it runs F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K and MXFP4", file = Shown(.file), name = Shown(.name))]
    Blocks {
        /// The file.
        file: String,
        /// The tensor's name in it.
        name: String,
        /// The name of its type.
        found: String,
    },
    /// A tensor with numbers that are none.
    #[error("{file}: tensor `{name}` has numbers that are infinite or none (NaN); the file is damaged, or was written by a run that failed", file = Shown(.file), name = Shown(.name))]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor's name in it.
        name: String,
    },
    /// A tensor that the model needs is not there.
    #[error("tensor `{name}` of shape {expected:?} is missing; {near}", name = Shown(.name), near = Shown(.near))]
    Missing {
        /// The tensor's name on disk.
        name: String,
        /// The shape that the config asks for.
        expected: Vec<usize>,
        /// What is there instead.
        near: String,
    },
    /// A tensor has another shape than the config asks for.
    #[error("{file}: tensor `{name}` has shape {found:?}, the config asks for {expected:?}", file = Shown(.file), name = Shown(.name))]
    Shape {
        /// The file.
        file: String,
        /// The tensor's name on disk.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the config asks for.
        expected: Vec<usize>,
    },
    /// A tensor's element type cannot be computed with.
    #[error("tensor `{name}` has dtype {dtype}, which the runtime cannot compute with; convert it to bf16 or f32", name = Shown(.name), dtype = Shown(.dtype))]
    DType {
        /// The tensor's name on disk.
        name: String,
        /// Its element type.
        dtype: String,
    },
    /// Rounded products of what no product rounds.
    #[error(
        "only products of a GGUF file's blocks on the CPU are rounded, and {found}; leave `products` (--products) exact"
    )]
    Rounded {
        /// What is there.
        found: &'static str,
    },
    /// What int8 weights or their products are multiplied by, and is no such number.
    #[error("tensor `{name}` is {found}; it must be {expected}", name = Shown(.name))]
    Scale {
        /// The tensor's name on disk.
        name: String,
        /// What it is.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// Projections of the same rows that quantise them by different numbers, where one operator takes both.
    #[error("tensors `{one}` and `{other}` differ; the operator quantises the rows of both projections once", one = Shown(.one), other = Shown(.other))]
    Scales {
        /// That of one projection.
        one: String,
        /// That of the other.
        other: String,
    },
    /// A bias that is there although the config speaks of none; numbers would be wrong without it.
    #[error("tensor `{name}` is there, but the config states no such bias", name = Shown(.name))]
    Unstated {
        /// The tensor's name on disk.
        name: String,
    },
    /// A file of invented weights that cannot be written.
    #[error(transparent)]
    Replace(#[from] cacheplan_files::ReplaceError),
    /// Candle failed to build the tensor.
    #[error("tensor `{name}`: {source}", name = Shown(.name), source = Shown(.source))]
    Candle {
        /// The tensor's name on disk.
        name: String,
        /// Why.
        source: Box<candle_core::Error>,
    },
}

impl From<FrontendError> for WeightError {
    fn from(error: FrontendError) -> Self {
        Self::Header(Box::new(error))
    }
}

impl WeightError {
    fn candle(name: &str, source: candle_core::Error) -> Self {
        Self::Candle { name: name.to_owned(), source: Box::new(source) }
    }
}

type Result<T> = std::result::Result<T, WeightError>;

impl Weights {
    /// Reads the headers in `folder`; tensors become `dtype` on the device of `on` when they are asked for.
    ///
    /// # Errors
    /// No weights in the folder, an unreadable, truncated or malformed file.
    pub fn open(folder: &Path, dtype: DType, on: impl Into<Backend>) -> Result<Self> {
        for (single, index) in [(SINGLE_FILE, INDEX_FILE)].into_iter().chain(QUANTISED_FILES) {
            for name in [single, index] {
                if let Some(found) = Source::beside(folder, name)? {
                    return Self::in_files(found, folder, dtype, on.into());
                }
            }
        }
        Err(WeightError::NoFile { folder: folder.to_owned() })
    }

    /// Those of one safetensors file, or of the shards in `folder` that an index names.
    fn in_files(named: Source, folder: &Path, dtype: DType, on: Backend) -> Result<Self> {
        let mut files = Files::default();
        if named.name().ends_with(".json") {
            for shard in Model::shards(&named)? {
                files.add(Source::open(&folder.join(shard))?)?;
            }
        } else {
            files.add(named)?;
        }
        let bytes = files.tensors.values().map(|stored| stored.bytes as u64).sum();
        Ok(Self::new(Kept::Files(files), bytes, dtype, on))
    }

    /// The GGUF file at `path`, and those that it was split into, mapped into memory.
    fn open_gguf(path: &Path, dtype: DType, on: Backend) -> Result<Self> {
        let gguf = Gguf::open(path)?;
        let bytes = gguf.mapped_bytes();
        Ok(Self::new(Kept::Gguf(gguf), bytes, dtype, on))
    }

    fn new(kept: Kept, bytes: u64, dtype: DType, backend: Backend) -> Self {
        let loading = Loading { read: 0.into(), all: bytes.into() };
        Self {
            kept,
            device: backend.device(),
            backend,
            dtype,
            loading: Arc::new(loading),
            predicts: false,
            products: Products::default(),
            latents: LatentLayout::default(),
        }
    }

    /// The weights of the model at `path`: a folder, a file with weights or the index of some, which are then those that are
    /// read, or another file of a folder.
    ///
    /// # Errors
    /// As [`Weights::open`], and what is wrong with a GGUF file; an ONNX file, whose weights cannot be loaded yet.
    pub fn of_model(path: &Path, dtype: DType, on: impl Into<Backend>) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => Self::open(path, dtype, on),
            Some("gguf") => Self::open_gguf(path, dtype, on.into()),
            Some("onnx") => Err(WeightError::Format { file: path.to_owned() }),
            _ => {
                let folder = path.parent().unwrap_or(Path::new(""));
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                match [".safetensors", ".safetensors.index.json"].iter().any(|end| name.ends_with(end)) {
                    true => Self::in_files(Source::open(path)?, folder, dtype, on.into()),
                    false => Self::open(folder, dtype, on),
                }
            }
        }
    }

    /// Weights for a model that nobody trained: each tensor's values follow from its name and shape alone.
    pub fn invented(dtype: DType, on: impl Into<Backend>) -> Self {
        Self::invented_as(DType::F32, dtype, on)
    }

    /// The same as if they were stored in another dtype.
    pub fn invented_as(stored: DType, dtype: DType, on: impl Into<Backend>) -> Self {
        Self::random(0, stored, dtype, on)
    }

    /// The same of another seed; with 0 they are those of [`Weights::invented`].
    pub fn random(seed: u64, stored: DType, dtype: DType, on: impl Into<Backend>) -> Self {
        Self::new(Kept::Invented(Invented::new(seed, stored)), 0, dtype, on.into())
    }

    /// Whether nobody trained them.
    pub(crate) fn are_invented(&self) -> bool {
        matches!(self.kept, Kept::Invented(_))
    }

    /// Writes the tensors that were asked for so far to a safetensors file, as they are stored; nothing of weights that
    /// were read.
    ///
    /// # Errors
    /// A file that cannot be written, a tensor that cannot be made.
    pub fn save_invented(&self, file: &Path) -> Result<()> {
        match &self.kept {
            Kept::Invented(invented) => invented.save(file),
            Kept::Files(_) | Kept::Gguf(_) => Ok(()),
        }
    }

    /// The same weights, whose reading shows in `loading`.
    #[must_use]
    pub fn shown_in(self, loading: Arc<Loading>) -> Self {
        let (read, all) = self.loading.bytes();
        loading.read.store(read, Ordering::Relaxed);
        loading.all.store(all, Ordering::Relaxed);
        Self { loading, ..self }
    }

    /// The same weights, of which a decoder reads the prediction layer too, if `predicts`.
    pub(crate) fn predicting(self, predicts: bool) -> Self {
        Self { predicts, ..self }
    }

    /// The same weights, of which a decoder of latent attention is made for these caches.
    pub(crate) fn with_latents(self, latents: LatentLayout) -> Self {
        Self { latents, ..self }
    }

    /// The same weights, whose blocks are multiplied this way.
    ///
    /// # Errors
    /// Rounded products of weights that are not in the blocks of a GGUF file, or not multiplied on the CPU.
    pub fn with_products(self, products: Products) -> Result<Self> {
        let read = match &self.kept {
            _ if products == Products::Exact => None,
            Kept::Gguf(_) if self.device.is_cpu() => None,
            Kept::Gguf(_) => Some("this model runs on a device"),
            Kept::Files(_) => Some("this model's weights are safetensors"),
            Kept::Invented(_) => Some("these weights are invented"),
        };
        read.map_or(Ok(Self { products, ..self }), |found| Err(WeightError::Rounded { found }))
    }

    /// Where the model runs.
    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Whether a prediction layer is asked for.
    pub(crate) fn predicts(&self) -> bool {
        self.predicts
    }

    /// The tensors in safetensors files that nobody has asked for, in words, if there are any.
    pub fn unread(&self) -> Option<String> {
        match &self.kept {
            Kept::Files(files) => files.unread(),
            Kept::Gguf(_) | Kept::Invented(_) => None,
        }
    }

    /// Bytes of files that stay mapped into memory.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        match &self.kept {
            Kept::Gguf(gguf) if self.device.is_cpu() => gguf.mapped_bytes(),
            _ => 0,
        }
    }

    /// The tensor called `name`, which must have `shape`.
    ///
    /// # Errors
    /// A missing or mis-shaped tensor, an element type that cannot be computed with, a failed read.
    pub fn get(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        self.stored(name, shape)?.to_dtype(self.dtype).map_err(|source| WeightError::candle(name, source))
    }

    /// As [`get`](Self::get), in f32 whatever the rest is computed in: what decays or choices follow from.
    fn float(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        self.stored(name, shape)?.to_dtype(DType::F32).map_err(|source| WeightError::candle(name, source))
    }

    /// As [`get`](Self::get), for a weight that a product reads: on the CPU 16-bit floats stay as they are stored, since
    /// products widen them on the way and reading them is what takes time.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn matrix(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        let tensor = self.stored(name, shape)?;
        match tensor.dtype() {
            DType::F16 | DType::BF16 if self.device.is_cpu() => Ok(tensor),
            _ => tensor.to_dtype(self.dtype).map_err(|source| WeightError::candle(name, source)),
        }
    }

    /// As [`matrix`](Self::matrix), in the blocks of its file where that is GGUF and products run on the CPU.
    pub(crate) fn product(&self, name: &str, [rows, columns]: [usize; 2]) -> Result<Matrix> {
        match &self.kept {
            Kept::Gguf(gguf) if self.device.is_cpu() => {
                let matrix = gguf.matrix(name, rows, columns)?;
                self.count(matrix.as_bytes().len());
                Ok(Matrix::Stored(vec![matrix.with_products(self.products)]))
            }
            _ => Ok(Matrix::Dense(self.matrix(name, (rows, columns))?)),
        }
    }

    /// As [`get`](Self::get), as it is stored: whole numbers, int8 as their bits in U8.
    fn stored_as(&self, dtype: DType, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        let Kept::Files(files) = &self.kept else { return self.get(name, shape) };
        let found = files.find(name, shape.into())?;
        if candle_dtype(found.dtype) != Some(dtype) {
            return Err(WeightError::DType { name: name.to_owned(), dtype: format!("{:?}", found.dtype) });
        }
        let raw = files.read(&found)?;
        self.count(raw.len());
        Tensor::from_raw_buffer(&raw, dtype, &found.shape, &self.device)
            .map_err(|source| WeightError::candle(name, source))
    }

    fn stores(&self, name: &str) -> bool {
        match &self.kept {
            Kept::Files(files) => files.tensors.contains_key(name),
            Kept::Gguf(gguf) => gguf.stores(name),
            Kept::Invented(_) => false,
        }
    }

    fn stored(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        let tensor = match &self.kept {
            Kept::Files(files) => files.get(name, shape, &self.device)?,
            Kept::Gguf(gguf) => gguf.numbers(name, shape.dims())?.to_device(&self.device),
            Kept::Invented(invented) => invented.get(name, shape, &self.device),
        };
        let tensor = tensor.map_err(|source| WeightError::candle(name, source))?;
        self.count(tensor.elem_count() * tensor.dtype().size_in_bytes());
        Ok(tensor)
    }

    fn count(&self, bytes: usize) {
        self.loading.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The tensors whose names begin with `prefix` and a dot; the empty prefix names all of them.
    pub fn scope(&self, prefix: &str) -> Scope<'_> {
        Scope { weights: self, prefix: prefix.to_owned() }
    }
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

    /// The same in f32, whatever the rest is computed in: what decays or choices follow from.
    ///
    /// # Errors
    /// As [`Weights::get`].
    pub(crate) fn float(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        self.weights.float(&self.full_name(name), shape)
    }

    /// The weight called `name` in this scope, which must have `shape`, for a product to read.
    ///
    /// # Errors
    /// As [`Weights::get`].
    pub fn matrix(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        self.weights.matrix(&self.full_name(name), shape)
    }

    /// As [`matrix`](Self::matrix), for a product that takes the blocks of its file.
    pub(crate) fn product(&self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        self.weights.product(&self.full_name(name), shape)
    }

    /// Whole numbers called `name` in this scope, as they are stored, int8 as their bits in U8.
    pub(crate) fn stored_as(&self, dtype: DType, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        self.weights.stored_as(dtype, &self.full_name(name), shape)
    }

    /// What integer products of so many rows are multiplied by, called `name` in this scope.
    pub(crate) fn product_scales(&self, name: &str, rows: usize) -> Result<Vec<f32>> {
        let name = &self.full_name(name);
        let scales = match &self.weights.kept {
            Kept::Files(files) => files.product_scales(name)?,
            _ => self.weights.get(name, rows)?.to_vec1().map_err(|source| WeightError::candle(name, source))?,
        };
        of_rows(name, scales, rows)
    }

    /// How latents are kept.
    pub(crate) fn latents(&self) -> LatentLayout {
        self.weights.latents
    }

    /// Ones, as if they were read.
    pub(crate) fn ones(&self, len: usize) -> candle_core::Result<Tensor> {
        Tensor::ones(len, self.weights.dtype, self.device())
    }

    /// Where the model runs.
    pub(crate) fn backend(&self) -> &'a Backend {
        &self.weights.backend
    }

    /// Where its tensors are made.
    pub(crate) fn device(&self) -> &'a Device {
        &self.weights.device
    }

    /// Whether the files have a tensor called `name` in this scope.
    pub(crate) fn stores(&self, name: &str) -> bool {
        self.weights.stores(&self.full_name(name))
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

    pub(crate) fn full_name(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }
}
