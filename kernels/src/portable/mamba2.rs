//! The recurrence, one token at a time.

use super::{silu, time_step, wide_rows};
use crate::error::Result;
use crate::ops::mamba2::{Mamba2Scan, ScanInput};
use crate::states::States;
use candle_core::{D, DType, Tensor};

pub(crate) fn mamba2_scan(input: &ScanInput<'_>, layer: &Mamba2Scan<'_>, states: &States<'_>) -> Result<Tensor> {
    let [heads, head_dim, d_state] = states.view.shape;
    let total_tokens = input.x.dim(0)?;
    let x = wide_rows(input.x)?.reshape((total_tokens, heads, head_dim))?;
    let per_head = |tensor: &Tensor| -> Result<Tensor> {
        let groups = tensor.dims()[1..].iter().product::<usize>() / d_state;
        Ok(wide_rows(tensor)?
            .reshape((total_tokens, groups, 1, d_state))?
            .broadcast_as((total_tokens, groups, heads / groups, d_state))?
            .reshape((total_tokens, heads, d_state))?)
    };
    let (b, c) = (per_head(input.b)?, per_head(input.c)?);
    let dt = time_step(&wide_rows(input.dt)?, &layer.time_step)?;
    let decay = dt.broadcast_mul(&layer.a.to_dtype(DType::F32)?.flatten_all()?)?.exp()?;
    let dtx = x.broadcast_mul(&dt.unsqueeze(2)?)?;
    let mut y = states.scan(heads * head_dim, |row, state| {
        let decay = decay.get(row)?.reshape((heads, 1, 1))?;
        let input = dtx.get(row)?.unsqueeze(2)?.broadcast_mul(&b.get(row)?.unsqueeze(1)?)?;
        let state = (state.broadcast_mul(&decay)? + input)?;
        let y = state.broadcast_mul(&c.get(row)?.unsqueeze(1)?)?.sum(D::Minus1)?;
        Ok((state, y))
    })?;
    if let Some(d) = layer.d {
        let direct = x.broadcast_mul(&d.to_dtype(DType::F32)?.reshape((heads, 1))?)?;
        y = (y + states.live(&direct.reshape((total_tokens, heads * head_dim))?)?)?;
    }
    if let Some(z) = input.z {
        y = (y * states.live(&silu(&wide_rows(z)?)?)?)?;
    }
    Ok(y.to_dtype(input.x.dtype())?)
}
