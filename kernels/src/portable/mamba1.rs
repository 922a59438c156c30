//! The selective scan, one token at a time.

use super::{silu, time_step, wide_rows};
use crate::error::Result;
use crate::ops::mamba1::Mamba1Scan;
use crate::ops::mamba2::ScanInput;
use crate::states::States;
use candle_core::{D, DType, Tensor};

pub(crate) fn mamba1_scan(input: &ScanInput<'_>, layer: &Mamba1Scan<'_>, states: &States<'_>) -> Result<Tensor> {
    let [outer, inner, d_state] = states.view.shape;
    let d_inner = outer * inner;
    let x = wide_rows(input.x)?;
    let dt = time_step(&wide_rows(input.dt)?, &layer.time_step)?;
    let (b, c) = (wide_rows(input.b)?, wide_rows(input.c)?);
    let a = layer.a.to_dtype(DType::F32)?;
    let mut y = states.scan(d_inner, |row, state| {
        let dt = dt.get(row)?.unsqueeze(1)?;
        let x = x.get(row)?.unsqueeze(1)?;
        let input = (&dt * &x)?.broadcast_mul(&b.narrow(0, row, 1)?)?;
        let state = ((state.reshape((d_inner, d_state))? * a.broadcast_mul(&dt)?.exp()?)? + input)?;
        let y = state.broadcast_mul(&c.narrow(0, row, 1)?)?.sum(D::Minus1)?;
        Ok((state, y))
    })?;
    if let Some(d) = layer.d {
        y = (y + states.live(&x.broadcast_mul(&d.to_dtype(DType::F32)?.flatten_all()?)?)?)?;
    }
    if let Some(z) = input.z {
        y = (y * states.live(&silu(&wide_rows(z)?)?)?)?;
    }
    Ok(y.to_dtype(input.x.dtype())?)
}
