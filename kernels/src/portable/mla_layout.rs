//! Weights from their NZ order, and writes into caches that have it or not.

use super::row_index;
use crate::error::{KernelError, Result};
use crate::ops::mla::nz_decode;
use candle_core::{DType, Tensor};

const OP: &str = "mla_preprocess";

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
