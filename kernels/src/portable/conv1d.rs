//! The convolution as shifted products.

use super::{load_state, silu, store_state};
use crate::error::Result;
use crate::ops::conv1d::CausalConv1d;
use crate::states::States;
use candle_core::{DType, Tensor};

pub(crate) fn causal_conv1d(conv: &CausalConv1d<'_>, x: &Tensor, states: &States<'_>) -> Result<Tensor> {
    let States { pool, view, batch } = *states;
    let (_, conv_dim) = x.dims2()?;
    let keep = view.shape[0];
    let weight = conv.weight.to_dtype(DType::F32)?;
    let mut outputs = vec![x.narrow(0, 0, 0)?.to_dtype(DType::F32)?];
    for (sequence, &slot) in batch.slots.iter().enumerate() {
        let rows = batch.rows(sequence);
        if rows.is_empty() {
            continue;
        }
        let Ok(slot) = usize::try_from(slot) else {
            outputs.push(Tensor::zeros((rows.len(), conv_dim), DType::F32, x.device())?);
            continue;
        };
        let new = x.narrow(0, rows.start, rows.len())?.to_dtype(DType::F32)?;
        let state = load_state(pool, view, slot)?.reshape((keep, conv_dim))?;
        // For each token and tap the row of `[state | new]` that it meets.
        let padded = Tensor::cat(&[&state, &new], 0)?;
        let met = |row: usize, back: usize| match batch.behind(rows.start, row, back) {
            Ok(row) => (keep + row - rows.start) as u32,
            Err(back) => (keep - back) as u32,
        };
        let mut y = match conv.bias {
            Some(bias) => bias.to_dtype(DType::F32)?.broadcast_as((rows.len(), conv_dim))?.contiguous()?,
            None => new.zeros_like()?,
        };
        for tap in 0..=keep {
            let index = Tensor::from_iter(rows.clone().map(|row| met(row, keep - tap)), x.device())?;
            y = (y + padded.index_select(&index, 0)?.broadcast_mul(&weight.narrow(0, tap, 1)?)?)?;
        }
        let after = |row: usize| -> Result<Tensor> {
            let index = Tensor::from_iter((0..keep).rev().map(|back| met(row, back)), x.device())?;
            Ok(padded.index_select(&index, 0)?)
        };
        for row in rows.clone() {
            if let Some(snapshot) = batch.snapshot(row) {
                store_state(pool, view, snapshot, &after(row)?)?;
            }
        }
        if batch.writes_final() {
            store_state(pool, view, slot, &after(rows.end - 1)?)?;
        }
        outputs.push(if conv.silu { silu(&y)? } else { y });
    }
    Ok(Tensor::cat(&outputs, 0)?.to_dtype(x.dtype())?)
}
