//! Tests of the ops against their references, and of the two paths against each other.

mod anchor;
mod attention;
mod cases;
mod cuda;
mod elementwise;
mod experts;
mod index_scores;
mod invariance;
mod linear;
mod mla;
mod portable;
mod quant;
mod recurrent;
mod replay;
mod speculative;
mod step;
mod stored;
mod subnormal;

use crate::{Backend, Run, StateBatch, StateLayerView};
use candle_core::{DType, Device, Tensor};
use std::ops::Range;

/// Begins a step on the CPU.
pub(crate) fn on_cpu() -> Run<'static> {
    Backend::Cpu.run()
}

/// A small generator of repeatable test data.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Uniform in `-1..1`.
    pub(crate) fn unit(&mut self) -> f32 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40;
        bits as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }

    pub(crate) fn tensor(&mut self, shape: &[usize]) -> Tensor {
        let data = self.vec(shape.iter().product());
        Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
    }
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Asserts that the two point the same way.
#[track_caller]
pub(crate) fn assert_aligned(found: &[f32], expected: &[f32]) {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = dot(found, expected) / (dot(found, found) * dot(expected, expected)).sqrt();
    assert!(cosine >= 0.99999, "cosine {cosine}");
}

/// Offsets of consecutive sequences.
pub(crate) fn cu_seqlens(lens: &[usize]) -> Vec<u32> {
    std::iter::once(0)
        .chain(lens.iter().scan(0, |sum, len| {
            *sum += *len as u32;
            Some(*sum)
        }))
        .collect()
}

/// Asserts that the largest difference is at most `tolerance` times the largest magnitude, and no value is NaN.
#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    let magnitude = expected.iter().fold(1e-6f32, |max, value| max.max(value.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / magnitude;
        assert!(error <= tolerance, "[{at}] {found} instead of {expected}: off by {error:e}");
    }
}

/// A ragged batch whose third sequence is padding and whose slots are out of order.
pub(crate) struct Ragged {
    pub(crate) total: usize,
    pub(crate) cu_seqlens: Vec<u32>,
    pub(crate) slots: Vec<i32>,
}

impl Ragged {
    pub(crate) fn new(lens: &[usize]) -> Self {
        let mut lens = lens.to_vec();
        lens.insert(2.min(lens.len()), 3);
        let slots = (0..lens.len()).map(|i| if i == 2 { -1 } else { (lens.len() - i) as i32 }).collect();
        Self { total: lens.iter().sum(), cu_seqlens: cu_seqlens(&lens), slots }
    }

    /// `tensor` with NaN and 1e3 in the rows of the padding sequence.
    pub(crate) fn poison(&self, tensor: &Tensor) -> Tensor {
        let width = tensor.elem_count() / self.total;
        let mut data = values(tensor);
        let padding = self.rows(2);
        for (at, value) in data[padding.start * width..padding.end * width].iter_mut().enumerate() {
            *value = if at % 2 == 0 { f32::NAN } else { 1e3 };
        }
        Tensor::from_vec(data, tensor.dims(), &Device::Cpu).unwrap()
    }

    pub(crate) fn rows(&self, sequence: usize) -> Range<usize> {
        self.cu_seqlens[sequence] as usize..self.cu_seqlens[sequence + 1] as usize
    }

    pub(crate) fn batch(&self) -> StateBatch<'_> {
        StateBatch::new(&self.cu_seqlens, &self.slots)
    }

    /// A pool with a few slots more than the batch needs, NaN in every element that no sequence owns.
    pub(crate) fn state_pool(&self, view: &StateLayerView, dtype: DType) -> Tensor {
        let slots = self.slots.len() + 2;
        let mut random = Random::new(99);
        let mut data = vec![f32::NAN; slots * view.slot_elems];
        for slot in self.slots.iter().filter_map(|&slot| usize::try_from(slot).ok()) {
            for value in &mut data[slot * view.slot_elems + view.layer_offset..][..view.elems()] {
                *value = random.unit();
            }
        }
        Tensor::from_vec(data, (slots, view.slot_elems), &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    }
}
