//! What this machine can do.

use super::{Bound, Stopwatch, Time};
use crate::cpu::simd::{multiply_adds, streamed_sum};
use crate::error::Result;
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use std::cell::RefCell;
use std::hint::black_box;

/// Elements of a buffer: 128 MiB, several times a last-level cache.
const ELEMS: usize = 1 << 25;
const PIECE: usize = 1 << 16;
/// Rows of the square matrices whose product gives the rate of arithmetic.
const SIDE: usize = 1024;

/// Buffers that the machine's own rates are taken with.
pub(super) struct Machine {
    source: Vec<f32>,
    target: RefCell<Vec<f32>>,
    matrix: Tensor,
}

impl Machine {
    /// Allocates the buffers.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            source: vec![1.0; ELEMS],
            target: RefCell::new(vec![0.0; ELEMS]),
            matrix: Tensor::ones((SIDE, SIDE), DType::F32, &Device::Cpu)?,
        })
    }

    /// Time of one byte or operation, now.
    pub(super) fn seconds_per_unit(&self, bound: Bound) -> Result<Time> {
        let bytes = (ELEMS * size_of::<f32>()) as f64;
        let watch = Stopwatch::start();
        let work = match bound {
            Bound::Copy => {
                let mut target = self.target.borrow_mut();
                target
                    .par_chunks_mut(PIECE)
                    .zip(self.source.par_chunks(PIECE))
                    .for_each(|(target, source)| target.copy_from_slice(source));
                black_box(&*target);
                2.0 * bytes
            }
            Bound::Read => {
                read(&self.source);
                bytes
            }
            Bound::Compute => {
                black_box(self.matrix.matmul(&self.matrix)?);
                2.0 * (SIDE as f64).powi(3)
            }
        };
        Ok(watch.stop().times(1.0 / work))
    }
}

/// Operations per second that the vector units of all threads do on registers: the width of a vector times the clock of
/// this moment times the multiply-adds of a cycle.
pub(super) fn peak() -> f64 {
    const ROUNDS: usize = 1 << 20;
    let best = (0..5).map(|_| {
        let watch = Stopwatch::start();
        let operations: usize = rayon::broadcast(|_| multiply_adds(ROUNDS)).into_iter().sum();
        operations as f64 / watch.stop().wall
    });
    best.fold(0.0, f64::max)
}

/// Reads all of `source`.
pub(super) fn read(source: &[f32]) {
    let sum: f32 = source.par_chunks(PIECE).map(streamed_sum).sum();
    black_box(sum);
}
