//! RMS normalisation, of rows and gated over groups.

use crate::check;
use crate::elementwise::by_rows;
use crate::error::{KernelError, Result};
use crate::portable;
use crate::simd::{silu, sum_of_squares, vectorized};
use crate::storage::{Input, Output};
use candle_core::{D, Tensor};
use rayon::prelude::*;

const OP: &str = "gated_rms_norm";

/// Where the gate `silu(z)` stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// `rms(x * silu(z)) * w`: Mamba-2 and its hybrids.
    GateThenNorm,
    /// `rms(x) * w * silu(z)`: gated delta nets, Falcon-H1 with `mamba_norm_before_gate`.
    NormThenGate,
    /// `x * silu(z)`: Falcon-H1 without `mamba_rms_norm`; the weight is not used.
    GateOnly,
}

/// `x / rms(x) * weight` over the last dimension of `x`, whose size `weight` has. Sums are in f32.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    const OP: &str = "rms_norm";
    let width = x.dim(D::Minus1)?;
    check::vector(OP, "weight", Some(weight), width)?;
    if !x.device().is_cpu() {
        return portable::norm::rms_norm(x, weight, eps);
    }
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

/// Normalises `x` `[rows, width]` over consecutive groups of `group_size` and gates it with `z` of the same shape.
///
/// `weight` is `[width]`, or `[group_size]` and shared by the groups. Sums and gates are in f32.
pub fn gated_rms_norm(
    x: &Tensor,
    z: &Tensor,
    weight: &Tensor,
    eps: f32,
    group_size: usize,
    order: GateOrder,
) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let expected = |operand, found: &Tensor, expected: String| {
        Err(KernelError::Shape { op: OP, operand, found: found.dims().to_vec(), expected })
    };
    if z.dims() != x.dims() {
        return expected("z", z, format!("[{rows}, {width}]"));
    }
    if weight.elem_count() != width && weight.elem_count() != group_size {
        return expected("weight", weight, format!("[{width}] or [{group_size}]"));
    }
    if group_size == 0 || !width.is_multiple_of(group_size) {
        return Err(KernelError::Argument {
            op: OP,
            reason: format!("rows of {width} cannot be cut into groups of {group_size}"),
        });
    }
    if !x.device().is_cpu() {
        return portable::norm::gated_rms_norm(x, z, weight, eps, group_size, order);
    }
    let (x_in, z_in, w_in) = (Input::new(x)?, Input::new(z)?, Input::flat(weight)?);
    let (x_rows, z_rows, w) = (x_in.rows(), z_in.rows(), w_in.rows().row(0));
    let target = Output::new(rows * width);
    (0..rows).into_par_iter().with_min_len(8).for_each(|row| {
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
