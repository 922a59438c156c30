//! Weights of a model: one safetensors file, an index and its shards, or GGUF. Tensors are read one at a time.

mod gguf;
mod gguf_names;
mod matrix;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cacheplan_files::Shown;
use cacheplan_files::{Limit, Source, SourceError};
use cacheplan_kernels::{MlaCacheMode, StoredMatrix};
use cacheplan_transforms::{FrontendError, Model};
use candle_core::{DType, Device, Shape, Tensor};
use safetensors::tensor::Metadata;
use thiserror::Error;

use self::gguf::Gguf;
pub(crate) use self::matrix::{Matrix, row_numbers};

const SINGLE_FILE: &str = "model.safetensors";
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
    device: Device,
    dtype: DType,
    loading: Arc<Loading>,
    /// Whether a prediction layer is read too.
    predicts: bool,
    latents: LatentLayout,
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
    /// Every tensor exists, stored in this dtype; its values follow from its name and shape.
    Invented(DType),
}

/// The names of what an int8 weight is multiplied by.
enum Scales {
    OfWeight { scale: String, offset: Option<String> },
    OfProduct { product: String, input: String },
}

/// Open files and where each tensor lies in them.
#[derive(Debug, Default)]
struct Files {
    tensors: HashMap<String, Stored>,
    files: Vec<Source>,
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
    /// Reads the headers in `folder`; tensors become `dtype` on `device` when they are asked for.
    ///
    /// # Errors
    /// No weights in the folder, an unreadable, truncated or malformed file.
    pub fn open(folder: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let mut files = Files::default();
        for (single, index) in [(SINGLE_FILE, INDEX_FILE)].into_iter().chain(QUANTISED_FILES) {
            if let Some(single) = Source::beside(folder, single)? {
                files.add(single)?;
                break;
            }
            if let Some(index) = Source::beside(folder, index)? {
                for shard in Model::shards(&index)? {
                    files.add(Source::open(&folder.join(shard))?)?;
                }
                break;
            }
        }
        if files.files.is_empty() {
            return Err(WeightError::NoFile { folder: folder.to_owned() });
        }
        let bytes = files.tensors.values().map(|stored| stored.bytes as u64).sum();
        Ok(Self::new(Kept::Files(files), bytes, dtype, device))
    }

    /// The GGUF file at `path`, and those that it was split into, mapped into memory.
    fn open_gguf(path: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let gguf = Gguf::open(path)?;
        let bytes = gguf.mapped_bytes();
        Ok(Self::new(Kept::Gguf(gguf), bytes, dtype, device))
    }

    fn new(kept: Kept, bytes: u64, dtype: DType, device: &Device) -> Self {
        let loading = Loading { read: 0.into(), all: bytes.into() };
        Self {
            kept,
            device: device.clone(),
            dtype,
            loading: Arc::new(loading),
            predicts: false,
            latents: LatentLayout::default(),
        }
    }

    /// The weights of the model at `path`: a folder, or a file in one.
    ///
    /// # Errors
    /// As [`Weights::open`], and what is wrong with a GGUF file; an ONNX file, whose weights cannot be loaded yet.
    pub fn of_model(path: &Path, dtype: DType, device: &Device) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => Self::open(path, dtype, device),
            Some("gguf") => Self::open_gguf(path, dtype, device),
            Some("onnx") => Err(WeightError::Format { file: path.to_owned() }),
            _ => Self::open(path.parent().unwrap_or(Path::new("")), dtype, device),
        }
    }

    /// Weights for a model that nobody trained: each tensor's values follow from its name and shape alone.
    pub fn invented(dtype: DType, device: &Device) -> Self {
        Self::invented_as(DType::F32, dtype, device)
    }

    /// The same as if they were stored in another dtype.
    pub fn invented_as(stored: DType, dtype: DType, device: &Device) -> Self {
        Self::new(Kept::Invented(stored), 0, dtype, device)
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

    /// Whether a prediction layer is asked for.
    pub(crate) fn predicts(&self) -> bool {
        self.predicts
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
                Ok(Matrix::Stored(vec![matrix]))
            }
            _ => Ok(Matrix::Dense(self.matrix(name, (rows, columns))?)),
        }
    }

    /// As [`get`](Self::get), as it is stored: whole numbers, int8 as their bits in U8.
    fn stored_as(&self, dtype: DType, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        let Kept::Files(files) = &self.kept else { return self.get(name, shape) };
        let stored = files.find(name, shape.into())?;
        if candle_dtype(stored.dtype) != Some(dtype) {
            return Err(WeightError::DType { name: name.to_owned(), dtype: format!("{:?}", stored.dtype) });
        }
        let raw = files.read(stored)?;
        self.count(raw.len());
        Tensor::from_raw_buffer(&raw, dtype, &stored.shape, &self.device)
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
            Kept::Invented(stored) => invent(name, shape, &self.device).and_then(|tensor| tensor.to_dtype(*stored)),
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

impl Files {
    fn get(&self, name: &str, shape: Shape, device: &Device) -> Result<candle_core::Result<Tensor>> {
        let stored = self.find(name, shape)?;
        if let Some(scales) = (stored.dtype == safetensors::Dtype::I8).then(|| self.scales(name)).flatten() {
            return self.dequantised(name, stored, scales, device);
        }
        let expected = stored.shape.as_slice();
        let unusable = || WeightError::DType { name: name.to_owned(), dtype: format!("{:?}", stored.dtype) };
        // Narrower numbers mean nothing without the scales that lie beside them.
        let dtype = DType::try_from(stored.dtype).ok();
        let wide = dtype.filter(|dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64));
        let dtype = wide.ok_or_else(unusable)?;
        let raw = self.read(stored)?;
        let tensor = Tensor::from_raw_buffer(&raw, dtype, expected, device);
        if !are_finite(raw, dtype) {
            let (file, name) = (self.files[stored.file].name().to_owned(), name.to_owned());
            return Err(WeightError::NotFinite { file, name });
        }
        Ok(tensor)
    }

    /// The tensor called `name`, if it has `shape`.
    fn find(&self, name: &str, shape: Shape) -> Result<&Stored> {
        let expected = shape.into_dims();
        let Some(stored) = self.tensors.get(name) else {
            return Err(WeightError::Missing { name: name.to_owned(), expected, near: self.near(name) });
        };
        if stored.shape != expected {
            let (file, name) = (self.files[stored.file].name().to_owned(), name.to_owned());
            return Err(WeightError::Shape { file, name, found: stored.shape.clone(), expected });
        }
        Ok(stored)
    }

    /// What the rows of an int8 weight are multiplied by, as quantising tools for Ascend name it: a scale for each row, or
    /// that of the product and that of its input.
    fn scales(&self, name: &str) -> Option<Scales> {
        let of = |part: &str| Some(format!("{}.{part}", name.strip_suffix(".weight")?));
        let stored = |name: &String| self.tensors.contains_key(name);
        match (of("weight_scale").filter(stored), of("deq_scale").filter(stored), of("input_scale").filter(stored)) {
            (Some(weight), ..) => Some(Scales::OfWeight { scale: weight, offset: of("weight_offset").filter(stored) }),
            (None, Some(product), Some(input)) => Some(Scales::OfProduct { product, input }),
            _ => None,
        }
    }

    /// An int8 weight as the numbers that it stands for.
    fn dequantised(
        &self,
        name: &str,
        stored: &Stored,
        scales: Scales,
        device: &Device,
    ) -> Result<candle_core::Result<Tensor>> {
        let numbers = |name: &str| -> Result<Vec<f32>> {
            let len = self.tensors.get(name).map_or(0, |stored| stored.shape.iter().product());
            let failed = |source| WeightError::candle(name, source);
            let stored = &self.tensors[name];
            if stored.dtype == safetensors::Dtype::I64 {
                let raw = self.read(stored)?;
                return Ok(raw
                    .as_chunks()
                    .0
                    .iter()
                    .map(|bits| f32::from_bits(i64::from_le_bytes(*bits) as u32))
                    .collect());
            }
            let read = self.get(name, stored.shape.clone().into(), &Device::Cpu)?.map_err(failed)?;
            read.to_dtype(DType::F32).and_then(|read| read.reshape(len)?.to_vec1()).map_err(failed)
        };
        let unusable = |dtype: String| WeightError::DType { name: name.to_owned(), dtype };
        let factors = match scales {
            Scales::OfWeight { scale, offset } => {
                if let Some(offset) = offset
                    && numbers(&offset)?.iter().any(|&offset| offset != 0.0)
                {
                    return Err(unusable(format!("I8 with offsets (`{offset}`)")));
                }
                numbers(&scale)?
            }
            Scales::OfProduct { product, input } => {
                let input = numbers(&input)?.first().copied().unwrap_or(1.0);
                numbers(&product)?.into_iter().map(|product| product / input).collect()
            }
        };
        let rows = stored.shape.first().copied().unwrap_or(0);
        if factors.len() != rows || !factors.iter().all(|factor| factor.is_finite()) {
            return Err(unusable(format!("I8 with {} scales for {rows} rows", factors.len())));
        }
        let raw = self.read(stored)?;
        let columns = raw.len() / rows.max(1);
        let values = raw.iter().enumerate().map(|(at, &bits)| f32::from(bits as i8) * factors[at / columns]);
        Ok(Tensor::from_vec(values.collect::<Vec<f32>>(), stored.shape.as_slice(), device))
    }

    fn add(&mut self, file: Source) -> Result<()> {
        let malformed = |reason: String| WeightError::Malformed { file: file.name().to_owned(), reason };
        let file_bytes = file.len();
        if file_bytes < 8 {
            return Err(malformed(format!("{file_bytes} bytes are too few for a safetensors file")));
        }
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0)?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > Limit::SAFETENSORS.bytes.min(file_bytes - 8) {
            return Err(malformed(format!("a header of {header_bytes} bytes does not fit a file of {file_bytes}")));
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact_at(&mut header, 8)?;
        let metadata: Metadata =
            Limit::SAFETENSORS.parse_json(&header).map_err(|e| malformed(format!("its header: {e}")))?;
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
        self.files.push(file);
        Ok(())
    }

    fn read(&self, stored: &Stored) -> Result<Vec<u8>> {
        let mut raw = vec![0; stored.bytes];
        self.files[stored.file].read_exact_at(&mut raw, stored.offset)?;
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

/// Candle's dtype for whole numbers; it has none for int8, whose bits are in U8.
fn candle_dtype(dtype: safetensors::Dtype) -> Option<DType> {
    match dtype {
        safetensors::Dtype::I8 => Some(DType::U8),
        safetensors::Dtype::I32 => Some(DType::I32),
        safetensors::Dtype::I64 => Some(DType::I64),
        _ => None,
    }
}

/// Whether all numbers of a tensor's bytes are finite.
fn are_finite(raw: Vec<u8>, dtype: DType) -> bool {
    let format = match dtype {
        DType::F32 => StoredMatrix::format_of_ggml(0),
        DType::F16 => StoredMatrix::format_of_ggml(1),
        DType::BF16 => StoredMatrix::format_of_ggml(30),
        _ => return raw.as_chunks().0.iter().all(|bytes| f64::from_le_bytes(*bytes).is_finite()),
    };
    let numbers = raw.len() / dtype.size_in_bytes();
    let matrix = format.and_then(|format| StoredMatrix::new(raw.into(), format, 1, numbers).ok());
    matrix.map_or(numbers == 0, |matrix| matrix.is_finite())
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

    /// Whether the files have whole numbers of that dtype called `name` in this scope.
    pub(crate) fn stores_as(&self, dtype: DType, name: &str) -> bool {
        let Kept::Files(files) = &self.weights.kept else { return false };
        let stored = files.tensors.get(&self.full_name(name));
        stored.is_some_and(|stored| candle_dtype(stored.dtype) == Some(dtype))
    }

    /// How latents are kept.
    pub(crate) fn latents(&self) -> LatentLayout {
        self.weights.latents
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
