//! Weights for a model that nobody trained, which a file can keep.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use cacheplan_files::replace;
use candle_core::{DType, Device, Shape, Tensor};

use super::{Result, WeightError};

/// Tensors of any name and shape.
#[derive(Debug)]
pub(super) struct Invented {
    seed: u64,
    stored: DType,
    /// What was asked for, so that it can be written.
    asked: Mutex<BTreeMap<String, Shape>>,
}

impl Invented {
    pub(super) fn new(seed: u64, stored: DType) -> Self {
        Self { seed, stored, asked: Mutex::default() }
    }

    pub(super) fn get(&self, name: &str, shape: Shape, device: &Device) -> candle_core::Result<Tensor> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), shape.clone());
        self.invent(name, shape, device)
    }

    /// Values as a trained model's are in kind: vectors around one, matrices that keep the size of what they multiply.
    fn invent(&self, name: &str, shape: Shape, device: &Device) -> candle_core::Result<Tensor> {
        let (centre, spread) = match shape.dims() {
            [] | [_] => (1.0, 0.5),
            [.., inputs] => (0.0, (3.0 / *inputs as f32).sqrt()),
        };
        // FNV-1a of the name seeds splitmix64.
        let hash = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash) ^ self.seed.wrapping_mul(0xd134_2543_de82_ef95);
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
        Tensor::from_vec(values, shape, device)?.to_dtype(self.stored)
    }

    /// Writes what was asked for, made anew a tensor at a time.
    pub(super) fn save(&self, file: &Path) -> Result<()> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (width, mut end) = (self.stored.size_in_bytes(), 0);
        let mut header = serde_json::Map::new();
        for (name, shape) in asked.iter() {
            let start = end;
            end += shape.elem_count() * width;
            let dtype = self.stored.as_str().to_uppercase();
            let entry = serde_json::json!({ "dtype": dtype, "shape": shape.dims(), "data_offsets": [start, end] });
            header.insert(name.clone(), entry);
        }
        let mut header = serde_json::Value::Object(header).to_string().into_bytes();
        // As the format asks, so that what follows is aligned.
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut failed = None;
        let written = replace(file, |out| {
            out.write_all(&(header.len() as u64).to_le_bytes())?;
            out.write_all(&header)?;
            for (name, shape) in asked.iter() {
                let tensor = self.invent(name, shape.clone(), &Device::Cpu);
                let written = tensor.and_then(|tensor| tensor.write_bytes(out));
                match written {
                    Ok(()) => {}
                    Err(candle_core::Error::Io(full)) => return Err(full),
                    Err(source) => {
                        failed = Some(WeightError::candle(name, source));
                        return Err(std::io::ErrorKind::Other.into());
                    }
                }
            }
            Ok(())
        });
        match failed {
            Some(failed) => Err(failed),
            None => Ok(written?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Weights;

    #[rstest::rstest]
    #[case(DType::F32)]
    #[case(DType::BF16)]
    fn what_is_written_is_read_as_it_was_invented(#[case] stored: DType) {
        let folder = tempfile::tempdir().unwrap();
        let weights = Weights::random(7, stored, DType::F32, &Device::Cpu);
        let names = [("b", vec![3, 5]), ("a.weight", vec![7]), ("c", vec![2, 1, 4])];
        let values = |weights: &Weights| -> Vec<Vec<f32>> {
            let of = |(name, shape): &(&str, Vec<usize>)| weights.get(name, shape.clone()).unwrap();
            names.iter().map(|tensor| of(tensor).flatten_all().unwrap().to_vec1().unwrap()).collect()
        };
        let invented = values(&weights);
        weights.save_invented(&folder.path().join("model.safetensors")).unwrap();
        let read = Weights::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(values(&read), invented);
        assert_ne!(values(&Weights::random(8, stored, DType::F32, &Device::Cpu)), invented);
    }
}
