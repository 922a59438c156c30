//! Tensors in safetensors files: where each lies, and its numbers, which int8 ones have scales beside them for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use cacheplan_files::{Limit, Source};
use cacheplan_kernels::StoredMatrix;
use candle_core::{DType, Device, Shape, Tensor};
use safetensors::tensor::Metadata;

use super::nz::{in_rows, is_nz};
use super::{Result, WeightError};

/// The names of what an int8 weight is multiplied by.
enum Scales {
    OfWeight { scale: String, offset: Option<String> },
    OfProduct { product: String, input: String },
}

/// Open files and where each tensor lies in them.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) tensors: HashMap<String, Stored>,
    pub(super) files: Vec<Source>,
}

#[derive(Debug)]
pub(super) struct Stored {
    file: usize,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    offset: u64,
    pub(super) bytes: usize,
    /// Whether anybody has asked for it.
    is_read: AtomicBool,
}

/// A tensor as it is asked for.
#[derive(Debug)]
pub(super) struct Found<'a> {
    stored: &'a Stored,
    pub(super) dtype: safetensors::Dtype,
    pub(super) shape: Vec<usize>,
}

impl Files {
    pub(super) fn get(&self, name: &str, shape: Shape, device: &Device) -> Result<candle_core::Result<Tensor>> {
        let found = self.find(name, shape)?;
        if let Some(scales) = (found.dtype == safetensors::Dtype::I8).then(|| self.scales(name)).flatten() {
            return self.dequantised(name, &found, scales, device);
        }
        let unusable = || WeightError::DType { name: name.to_owned(), dtype: format!("{:?}", found.dtype) };
        // Narrower numbers mean nothing without the scales that lie beside them.
        let dtype = DType::try_from(found.dtype).ok();
        let wide = dtype.filter(|dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64));
        let dtype = wide.ok_or_else(unusable)?;
        let raw = self.read(&found)?;
        let tensor = Tensor::from_raw_buffer(&raw, dtype, &found.shape, device);
        if !are_finite(raw, dtype) {
            let (file, name) = (self.files[found.stored.file].name().to_owned(), name.to_owned());
            return Err(WeightError::NotFinite { file, name });
        }
        Ok(tensor)
    }

    /// The tensor called `name`, if it has `shape`, or is a matrix of that shape in NZ order.
    pub(super) fn find(&self, name: &str, shape: Shape) -> Result<Found<'_>> {
        let expected = shape.into_dims();
        let Some(stored) = self.tensors.get(name) else {
            return Err(WeightError::Missing { name: name.to_owned(), expected, near: self.near(name) });
        };
        if stored.shape != expected && !is_nz(&stored.shape, &expected, stored.element_bytes()) {
            let (file, name) = (self.files[stored.file].name().to_owned(), name.to_owned());
            return Err(WeightError::Shape { file, name, found: stored.shape.clone(), expected });
        }
        Ok(Found { stored, dtype: stored.dtype, shape: expected })
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
        found: &Found<'_>,
        scales: Scales,
        device: &Device,
    ) -> Result<candle_core::Result<Tensor>> {
        let rows = found.shape.first().copied().unwrap_or(0);
        let factors = match scales {
            Scales::OfWeight { scale, offset } => {
                if let Some(offset) = offset
                    && self.floats(&offset)?.iter().any(|&offset| offset != 0.0)
                {
                    let dtype = format!("I8 with offsets (`{offset}`)");
                    return Err(WeightError::DType { name: name.to_owned(), dtype });
                }
                of_rows(&scale, self.floats(&scale)?, rows)?
            }
            Scales::OfProduct { product, input } => {
                let of_input = match self.floats(&input)?[..] {
                    [scale] if scale > 0.0 => scale,
                    ref found => {
                        let expected = "one number above 0";
                        return Err(WeightError::Scale { name: input, found: shown(found), expected: expected.into() });
                    }
                };
                let of_product = of_rows(&product, self.product_scales(&product)?, rows)?;
                of_product.into_iter().map(|product| product / of_input).collect()
            }
        };
        let raw = self.read(found)?;
        let columns = raw.len() / rows.max(1);
        let values = raw.iter().enumerate().map(|(at, &bits)| f32::from(bits as i8) * factors[at / columns]);
        Ok(Tensor::from_vec(values.collect::<Vec<f32>>(), found.shape.as_slice(), device))
    }

    /// What integer products of each row are multiplied by: floats, or their bits in int64.
    pub(super) fn product_scales(&self, name: &str) -> Result<Vec<f32>> {
        match self.tensors.get(name) {
            Some(stored) if stored.dtype == safetensors::Dtype::I64 => {
                let raw = self.raw(stored)?;
                Ok(raw.as_chunks().0.iter().map(|bits| f32::from_bits(i64::from_le_bytes(*bits) as u32)).collect())
            }
            _ => self.floats(name),
        }
    }

    /// All numbers of a tensor of any shape.
    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let shape = self.tensors.get(name).map_or_else(Vec::new, |stored| stored.shape.clone());
        let numbers = self.get(name, shape.into(), &Device::Cpu)?;
        let floats = numbers.and_then(|numbers| numbers.to_dtype(DType::F32)?.flatten_all()?.to_vec1());
        floats.map_err(|source| WeightError::candle(name, source))
    }

    pub(super) fn add(&mut self, file: Source) -> Result<()> {
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
            let (file, bytes, is_read) = (self.files.len(), end - begin, AtomicBool::default());
            self.tensors.insert(name, Stored { file, dtype, shape, offset, bytes, is_read });
        }
        self.files.push(file);
        Ok(())
    }

    /// The bytes of a tensor, row after row.
    pub(super) fn read(&self, found: &Found<'_>) -> Result<Vec<u8>> {
        let raw = self.raw(found.stored)?;
        Ok(match (found.stored.shape.as_slice(), found.shape.as_slice()) {
            (&[1, _, tall, _], &[rows, columns]) => in_rows(&raw, tall, rows, columns * found.stored.element_bytes()),
            _ => raw,
        })
    }

    fn raw(&self, stored: &Stored) -> Result<Vec<u8>> {
        stored.is_read.store(true, Ordering::Relaxed);
        let mut raw = vec![0; stored.bytes];
        self.files[stored.file].read_exact_at(&mut raw, stored.offset)?;
        Ok(raw)
    }

    /// What nobody has asked for, in words; `None` where all was read.
    pub(super) fn unread(&self) -> Option<String> {
        let unread = self.tensors.iter().filter(|(_, stored)| !stored.is_read.load(Ordering::Relaxed));
        let count = unread.clone().count();
        let (name, stored) = unread.min_by_key(|(name, _)| *name)?;
        let (file, all) = (self.files[stored.file].name(), self.tensors.len());
        Some(format!(
            "{file}: {count} of {all} tensors are no part of the model that runs, `{name}` is the first of them"
        ))
    }

    /// What stands where `name` was looked for, for the error that says it is not there.
    pub(super) fn near(&self, name: &str) -> String {
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

impl Stored {
    fn element_bytes(&self) -> usize {
        let elements = self.shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
        elements.and_then(|elements| self.bytes.checked_div(elements)).unwrap_or(0)
    }
}

/// Scales, if there is a finite one for each row.
pub(super) fn of_rows(name: &str, scales: Vec<f32>, rows: usize) -> Result<Vec<f32>> {
    if scales.len() == rows && scales.iter().all(|scale| scale.is_finite()) {
        return Ok(scales);
    }
    let expected = format!("a finite number for each of {rows} rows");
    Err(WeightError::Scale { name: name.to_owned(), found: shown(&scales), expected })
}

/// What scales are that will not do.
fn shown(scales: &[f32]) -> String {
    match scales {
        [scale] => scale.to_string(),
        _ => match scales.iter().find(|scale| !scale.is_finite()) {
            Some(scale) => format!("{} numbers, of which one is {scale}", scales.len()),
            None => format!("{} numbers", scales.len()),
        },
    }
}

/// Candle's dtype for whole numbers; it has none for int8, whose bits are in U8.
pub(super) fn candle_dtype(dtype: safetensors::Dtype) -> Option<DType> {
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
