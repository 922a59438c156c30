//! The fractal NZ order.
//!
//! A matrix `[n, k]` in NZ order is cut into columns of `C0` elements, 32 bytes wide; each column is stored whole
//! before the next: element `(i, j)` lies at `(j / C0) * n * C0 + i * C0 + j % C0`.

use crate::error::{KernelError, Result};
use candle_core::{DType, Tensor};

/// Elements of 32 bytes.
pub(crate) fn elements_of_32_bytes(dtype: DType) -> usize {
    32 / dtype.size_in_bytes().max(1)
}

/// `[.., n, k]` to `[.., k / C0, n, C0]`.
pub(crate) fn nz_encode(x: &Tensor) -> Result<Tensor> {
    let (n, k) = (x.dim(candle_core::D::Minus2)?, x.dim(candle_core::D::Minus1)?);
    let c0 = elements_of_32_bytes(x.dtype());
    if !k.is_multiple_of(c0) {
        let reason = format!("rows of {k} {:?} elements cannot be cut into columns of {c0}", x.dtype());
        return Err(KernelError::Argument { op: "nz_encode", reason });
    }
    let outer = &x.dims()[..x.rank() - 2];
    let flat = x.contiguous()?.reshape(((), n, k / c0, c0))?.transpose(1, 2)?.contiguous()?;
    Ok(flat.reshape([outer, &[k / c0, n, c0]].concat())?)
}

/// `[.., k / C0, n, C0]` to `[.., n, k]`.
pub(crate) fn nz_decode(x: &Tensor) -> Result<Tensor> {
    let dims = x.dims();
    let &[ref outer @ .., columns, n, c0] = dims else {
        return Err(KernelError::Shape {
            op: "nz_decode",
            operand: "x",
            found: dims.to_vec(),
            expected: "[.., k / C0, n, C0]".to_owned(),
        });
    };
    let flat = x.contiguous()?.reshape(((), columns, n, c0))?.transpose(1, 2)?.contiguous()?;
    Ok(flat.reshape([outer, &[n, columns * c0]].concat())?)
}
