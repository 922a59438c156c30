//! The recurrence, one token at a time.

use super::{softplus, wide_rows};
use crate::error::Result;
use crate::ops::rg_lru::{RgLruScan, SHARPNESS};
use crate::states::States;
use candle_core::{DType, Tensor};

pub(crate) fn rg_lru(input: &RgLruScan<'_>, states: &States<'_>) -> Result<Tensor> {
    let sigmoid = |x: &Tensor| -> candle_core::Result<Tensor> { (x.neg()?.exp()? + 1.0)?.recip() };
    let rates = (softplus(&input.a_param.to_dtype(DType::F32)?.flatten_all()?)? * f64::from(-SHARPNESS))?;
    let log_a = sigmoid(&wide_rows(input.recurrence_gate)?)?.broadcast_mul(&rates)?;
    let gated = (wide_rows(input.x)? * sigmoid(&wide_rows(input.input_gate)?)?)?;
    let scaled = (&gated * (1.0 - (&log_a * 2.0)?.exp()?)?.sqrt()?)?;
    let a = log_a.exp()?;
    states
        .scan(states.view.elems(), |row, state| {
            let state = if input.positions[row] == 0 {
                gated.get(row)?
            } else {
                ((state.flatten_all()? * a.get(row)?)? + scaled.get(row)?)?
            };
            Ok((state.clone(), state))
        })?
        .to_dtype(input.x.dtype())
        .map_err(Into::into)
}
