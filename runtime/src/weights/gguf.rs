//! Weights of a GGUF file, or of those that it was split into: mapped, and found by the names of checkpoints.

use std::collections::HashMap;
use std::path::Path;

use cacheplan_kernels::StoredMatrix;
use cacheplan_transforms::Model;
use candle_core::Tensor;

use super::gguf_names::{GgufTensor, Undo, place};
use super::{Result, WeightError};

/// The tensors of a model.
#[derive(Debug)]
pub(super) struct Gguf {
    architecture: String,
    /// The names of the files.
    files: Vec<String>,
    mapped_bytes: u64,
    tensors: HashMap<String, Stored>,
}

#[derive(Debug)]
struct Stored {
    file: usize,
    /// The slowest axis first, axes of one element left out.
    shape: Vec<usize>,
    /// All axes but the fastest are rows; the name of its type where nothing multiplies with it.
    matrix: std::result::Result<StoredMatrix, String>,
}

/// A checkpoint's tensor in a file.
struct Found<'a> {
    stored: &'a Stored,
    place: GgufTensor,
    name: &'a str,
}

impl Gguf {
    /// Maps the files and finds the tensors in them.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let found = Model::gguf_files(path)?;
        let (files, mapped_bytes, tensors) = Default::default();
        let mut gguf = Self { architecture: found.architecture, files, mapped_bytes, tensors };
        for file in found.files {
            let name = file.source.name().to_owned();
            let mapped = file.source.file().map(StoredMatrix::map).transpose();
            let mapped = mapped.map_err(|source| WeightError::Map { file: name.clone(), source })?;
            let bytes = match mapped {
                Some(bytes) => bytes,
                None => {
                    let mut bytes = vec![0; usize::try_from(file.source.len()).unwrap_or(usize::MAX)];
                    file.source.read_exact_at(&mut bytes, 0)?;
                    bytes.into()
                }
            };
            let malformed = |reason: String| WeightError::Malformed { file: name.clone(), reason };
            for tensor in file.tensors {
                let name = &tensor.name;
                let axis = |axis: &u64| usize::try_from(*axis).ok();
                let shape: Option<Vec<usize>> = tensor.shape.iter().map(axis).collect();
                let unheld = || malformed(format!("its tensor `{name}` has a shape that no memory holds"));
                let mut shape = shape.ok_or_else(unheld)?;
                let columns = shape.last().copied().unwrap_or(1);
                let rows = shape.iter().rev().skip(1).try_fold(1usize, |rows, &axis| rows.checked_mul(axis));
                let rows = rows.ok_or_else(unheld)?;
                let matrix = match StoredMatrix::format_of_ggml(tensor.kind) {
                    None => Err(type_name(tensor.kind)),
                    Some(format) => {
                        let len = format.matrix_bytes(rows, columns).ok_or_else(|| {
                            let elements = format.elements();
                            malformed(format!(
                                "its tensor `{name}` has rows of {columns}, blocks of {format:?} have {elements}"
                            ))
                        })?;
                        let start = usize::try_from(tensor.offset).unwrap_or(usize::MAX);
                        let end = start.saturating_add(len);
                        let bytes = bytes.slice(start..end).ok_or_else(|| {
                            malformed(format!(
                                "the file ends at byte {}, its tensor `{name}` at byte {end}",
                                bytes.len()
                            ))
                        })?;
                        Ok(StoredMatrix::new(bytes, format, rows, columns)
                            .map_err(|e| malformed(format!("`{name}`: {e}")))?)
                    }
                };
                shape.retain(|&axis| axis != 1);
                let stored = Stored { file: gguf.files.len(), shape, matrix };
                if gguf.tensors.insert(tensor.name.clone(), stored).is_some() {
                    return Err(malformed(format!("its tensor `{name}` is there twice")));
                }
            }
            gguf.mapped_bytes += bytes.len() as u64;
            gguf.files.push(name);
        }
        Ok(gguf)
    }

    /// Bytes of all files.
    pub(super) fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes
    }

    /// Whether there is a tensor that checkpoints call `name`.
    pub(super) fn stores(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<Found<'_>> {
        let place = place(&self.architecture, name)?;
        let (name, stored) = place.names.iter().find_map(|name| self.tensors.get_key_value(name))?;
        Some(Found { stored, place, name })
    }

    /// The matrix that checkpoints call `name`, as it is stored.
    pub(super) fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<StoredMatrix> {
        let (_, matrix) = self.read(name, &[rows, columns])?;
        Ok(matrix)
    }

    /// The numbers of the tensor that checkpoints call `name`, as those have them.
    pub(super) fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let (undo, matrix) = self.read(name, shape)?;
        let change = || -> candle_core::Result<Tensor> {
            let numbers = matrix.numbers()?.reshape(shape)?;
            match undo {
                Undo::Nothing => Ok(numbers),
                Undo::MinusOne => numbers - 1.0,
                Undo::LogOfNegative => numbers.neg()?.log(),
            }
        };
        change().map_err(|source| WeightError::candle(name, source))
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<(Undo, StoredMatrix)> {
        let Some(Found { stored, place, name: in_file }) = self.find(name) else {
            return Err(self.missing(name, shape));
        };
        let (file, in_file) = (self.files[stored.file].clone(), in_file.to_owned());
        let matrix = match &stored.matrix {
            Ok(matrix) => matrix,
            Err(found) => return Err(WeightError::Blocks { file, name: in_file, found: found.clone() }),
        };
        // The experts of a layer are one tensor.
        let (of_one, expert) = match (place.expert, &stored.shape[..]) {
            (Some(expert), [_, inner @ ..]) => (inner, expert),
            (Some(_), []) => (&[][..], 1),
            (None, shape) => (shape, 0),
        };
        let wanted: Vec<usize> = shape.iter().copied().filter(|&axis| axis != 1).collect();
        // The norm of a state space mixer is written in groups.
        let regrouped = in_file.ends_with("ssm_norm.weight") && elements(of_one) == elements(&wanted);
        let rows = elements(shape) / matrix.columns();
        let part = matrix.part(expert * rows..(expert + 1) * rows).filter(|_| of_one == wanted || regrouped);
        let Some(part) = part else {
            let (found, expected) = (stored.shape.clone(), shape.to_vec());
            return Err(WeightError::Shape { file, name: in_file, found, expected });
        };
        if part.is_finite() { Ok((place.undo, part)) } else { Err(WeightError::NotFinite { file, name: in_file }) }
    }

    fn missing(&self, name: &str, shape: &[usize]) -> WeightError {
        let near = match place(&self.architecture, name) {
            Some(place) => format!("{} has no `{}`", self.files[0], place.names.join("` or `")),
            None => format!("no GGUF file of `{}` has one", self.architecture),
        };
        WeightError::Missing { name: name.to_owned(), expected: shape.to_vec(), near }
    }
}

fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The name of a ggml type that has no format of ours.
fn type_name(kind: u32) -> String {
    const NAMES: [(u32, &str); 14] = [
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (17, "IQ2_XS"),
        (18, "IQ3_XXS"),
        (19, "IQ1_S"),
        (20, "IQ4_NL"),
        (21, "IQ3_S"),
        (22, "IQ2_S"),
        (23, "IQ4_XS"),
        (28, "F64"),
        (29, "IQ1_M"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
        (40, "NVFP4"),
    ];
    let known = NAMES.iter().find(|(known, _)| *known == kind);
    known.map_or_else(|| format!("type {kind}"), |(_, name)| (*name).to_owned())
}
