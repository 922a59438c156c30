//! RMS normalisation on the CPU.

use super::elementwise::by_rows;
use super::output::Output;
use super::simd::{silu, sum_of_squares, vectorized};
use super::storage::Input;
use super::tasks::for_each;
use crate::error::Result;
use crate::ops::norm::GateOrder;
use candle_core::{D, Tensor};
use rayon::prelude::*;

pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    let rows = x.elem_count() / width.max(1);
    let flat = x.reshape((rows, width))?;
    let (x_in, w_in) = (Input::new(&flat)?, Input::flat(weight)?);
    let (x_rows, w) = (x_in.rows(), w_in.rows().row(0));
    by_rows(
        x.dims(),
        rows,
        x,
        #[inline(always)]
        |row, out| {
            let x = x_rows.row(row);
            let scale = 1.0 / (sum_of_squares(x) / width as f32 + eps).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(w) {
                *out = x * scale * weight;
            }
        },
    )
}

pub(crate) fn gated_rms_norm(
    x: &Tensor,
    z: &Tensor,
    weight: &Tensor,
    eps: f32,
    group_size: usize,
    order: GateOrder,
) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let (x_in, z_in, w_in) = (Input::new(x)?, Input::new(z)?, Input::flat(weight)?);
    let (x_rows, z_rows, w) = (x_in.rows(), z_in.rows(), w_in.rows().row(0));
    let target = Output::new(rows * width);
    for_each((0..rows).into_par_iter().with_min_len(8), |row| {
        // SAFETY: tasks have distinct rows.
        let out = unsafe { target.piece(row * width..(row + 1) * width) };
        vectorized(
            #[inline(always)]
            || normalise(x_rows.row(row), z_rows.row(row), w, eps, group_size, order, out),
        );
    });
    // SAFETY: all rows.
    unsafe { target.into_tensor((rows, width), x) }
}

#[inline(always)]
fn normalise(x: &[f32], z: &[f32], weight: &[f32], eps: f32, group_size: usize, order: GateOrder, out: &mut [f32]) {
    match order {
        GateOrder::NormThenGate => out.copy_from_slice(x),
        GateOrder::GateThenNorm | GateOrder::GateOnly => {
            for ((out, &x), &z) in out.iter_mut().zip(x).zip(z) {
                *out = x * silu(z);
            }
        }
    }
    if order == GateOrder::GateOnly {
        return;
    }
    let weights = weight.chunks_exact(group_size).cycle();
    for (group, weight) in out.chunks_exact_mut(group_size).zip(weights) {
        let scale = 1.0 / (sum_of_squares(group) / group_size as f32 + eps).sqrt();
        for (out, weight) in group.iter_mut().zip(weight) {
            *out *= scale * weight;
        }
    }
    if order == GateOrder::NormThenGate {
        for (out, &z) in out.iter_mut().zip(z) {
            *out *= silu(z);
        }
    }
}
