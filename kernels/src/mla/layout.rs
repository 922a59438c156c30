//! The fractal NZ order, and writes into caches that have it or not.
//!
//! A matrix `[n, k]` in NZ order is cut into columns of `C0` elements, 32 bytes wide; each column is stored whole
//! before the next: element `(i, j)` lies at `(j / C0) * n * C0 + i * C0 + j % C0`.

use super::OP;
use crate::error::{KernelError, Result};
use crate::portable::row_index;
use candle_core::{DType, Tensor};

/// Elements of 32 bytes.
pub(super) fn c0(dtype: DType) -> usize {
    32 / dtype.size_in_bytes().max(1)
}

/// `[.., n, k]` to `[.., k / C0, n, C0]`.
pub fn nz_encode(x: &Tensor) -> Result<Tensor> {
    let (n, k) = (x.dim(candle_core::D::Minus2)?, x.dim(candle_core::D::Minus1)?);
    let c0 = c0(x.dtype());
    if !k.is_multiple_of(c0) {
        let reason = format!("rows of {k} {:?} elements cannot be cut into columns of {c0}", x.dtype());
        return Err(KernelError::Argument { op: "nz_encode", reason });
    }
    let outer = &x.dims()[..x.rank() - 2];
    let flat = x.contiguous()?.reshape(((), n, k / c0, c0))?.transpose(1, 2)?.contiguous()?;
    Ok(flat.reshape([outer, &[k / c0, n, c0]].concat())?)
}

/// `[.., k / C0, n, C0]` to `[.., n, k]`.
pub fn nz_decode(x: &Tensor) -> Result<Tensor> {
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

/// A weight `[.., rows, columns]` from that or from its NZ order.
pub(super) fn plain(weight: &Tensor, rows: usize, columns: usize) -> Result<Tensor> {
    if weight.dims().ends_with(&[rows, columns]) {
        return Ok(weight.clone());
    }
    let plain = nz_decode(weight)?;
    // A single product comes as a batch of one.
    Ok(if plain.rank() == 3 && plain.dim(0)? == 1 { plain.squeeze(0)? } else { plain })
}

/// Dequantisation factors as f32; i64 entries carry the bits of one in their low half.
pub(super) fn descale(descale: &Tensor) -> Result<Tensor> {
    if descale.dtype() != DType::I64 {
        return Ok(descale.to_dtype(DType::F32)?);
    }
    let factors: Vec<f32> =
        descale.flatten_all()?.to_vec1::<i64>()?.into_iter().map(|bits| f32::from_bits(bits as u32)).collect();
    Ok(Tensor::from_vec(factors, descale.elem_count(), descale.device())?)
}

/// Writes `[tokens, width]` into a cache `[blocks, block_size, 1, width]`.
pub(super) fn write_rows(cache: &Tensor, values: &Tensor, slots: &[i64]) -> Result<()> {
    let width = values.dim(1)?;
    scatter(cache, values, slots, width, |slot, _| slot)
}

/// Writes `[tokens, width]` into a cache `[blocks, width / C0, block_size, C0]`.
pub(super) fn write_nz(cache: &Tensor, values: &Tensor, slots: &[i64]) -> Result<()> {
    let (_, columns, block_size, c0) = cache.dims4()?;
    scatter(cache, values, slots, c0, |slot, column| {
        (slot / block_size * columns + column) * block_size + slot % block_size
    })
}

/// Cuts the row of each token with a slot into pieces of `width` and writes piece `i` to cache row `row_of(slot, i)`.
fn scatter(
    cache: &Tensor,
    values: &Tensor,
    slots: &[i64],
    width: usize,
    row_of: impl Fn(usize, usize) -> usize,
) -> Result<()> {
    if !cache.is_contiguous() {
        return Err(KernelError::Argument { op: OP, reason: "the cache is not contiguous".to_owned() });
    }
    let pieces = values.dim(1)? / width;
    let live: Vec<(u32, usize)> = slots
        .iter()
        .enumerate()
        .filter_map(|(token, &slot)| Some((token as u32, usize::try_from(slot).ok()?)))
        .collect();
    if live.is_empty() {
        return Ok(());
    }
    let tokens = Tensor::from_iter(live.iter().map(|(token, _)| *token), cache.device())?;
    let source = values.contiguous()?.index_select(&tokens, 0)?.reshape(((), width))?.to_dtype(cache.dtype())?;
    let places = live.iter().flat_map(|&(_, slot)| (0..pieces).map(move |piece| (slot, piece)));
    let index = row_index(places.map(|(slot, piece)| row_of(slot, piece)), cache.device())?;
    let index = index.unsqueeze(1)?.broadcast_as(source.shape())?.contiguous()?;
    Ok(cache.reshape(((), width))?.scatter_set(&index, &source, 0)?)
}
