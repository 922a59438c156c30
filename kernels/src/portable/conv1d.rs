//! The convolution as shifted products.

use super::{load_state, silu, store_state};
use crate::batch::StateBatch;
use crate::conv1d::Activation;
use crate::error::Result;
use crate::view::StateLayerView;
use candle_core::{DType, Tensor};

pub(crate) fn causal_conv1d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    pool: &Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'_>,
) -> Result<Tensor> {
    let (_, conv_dim) = x.dims2()?;
    let keep = view.shape[0];
    let weight = weight.to_dtype(DType::F32)?;
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
        let padded = Tensor::cat(&[&state, &new], 0)?;
        let mut y = match bias {
            Some(bias) => bias.to_dtype(DType::F32)?.broadcast_as((rows.len(), conv_dim))?.contiguous()?,
            None => new.zeros_like()?,
        };
        for tap in 0..=keep {
            let shifted = padded.narrow(0, tap, rows.len())?;
            y = (y + shifted.broadcast_mul(&weight.narrow(0, tap, 1)?)?)?;
        }
        store_state(pool, view, slot, &padded.narrow(0, rows.len(), keep)?)?;
        outputs.push(match activation {
            Activation::None => y,
            Activation::Silu => silu(&y)?,
        });
    }
    Ok(Tensor::cat(&outputs, 0)?.to_dtype(x.dtype())?)
}
