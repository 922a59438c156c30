//! The recurrence, one token at a time.

use super::{load_state, softplus, store_state};
use crate::batch::StateBatch;
use crate::error::Result;
use crate::mamba2::Mamba2;
use crate::view::StateLayerView;
use candle_core::{D, DType, Tensor};

#[allow(
    clippy::too_many_arguments,
    reason = "the signature of the op it stands in for"
)]
pub(crate) fn mamba2_scan(
    x: &Tensor,
    dt: &Tensor,
    b: &Tensor,
    c: &Tensor,
    layer: &Mamba2<'_>,
    pool: &Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'_>,
) -> Result<Tensor> {
    let [heads, head_dim, d_state] = view.shape;
    let total_tokens = x.dim(0)?;
    let wide = |tensor: &Tensor| -> candle_core::Result<Tensor> {
        tensor.to_dtype(DType::F32)?.reshape((total_tokens, ()))
    };
    let mut outputs = vec![Tensor::zeros(
        (0, heads * head_dim),
        DType::F32,
        x.device(),
    )?];
    if total_tokens > 0 {
        let x = wide(x)?.reshape((total_tokens, heads, head_dim))?;
        let per_head = |tensor: &Tensor| -> candle_core::Result<Tensor> {
            let grouped = wide(tensor)?.reshape((total_tokens, (), 1, d_state))?;
            let groups = grouped.dim(1)?;
            grouped
                .broadcast_as((total_tokens, groups, heads / groups, d_state))?
                .reshape((total_tokens, heads, d_state))
        };
        let (b, c) = (per_head(b)?, per_head(c)?);
        let mut dt = wide(dt)?;
        if let Some(bias) = layer.dt_bias {
            dt = dt.broadcast_add(&bias.to_dtype(DType::F32)?.flatten_all()?)?;
        }
        if layer.dt_softplus {
            dt = softplus(&dt)?;
        }
        dt = dt.maximum(f64::from(layer.dt_limit.0))?;
        if layer.dt_limit.1.is_finite() {
            dt = dt.minimum(f64::from(layer.dt_limit.1))?;
        }
        let decay = dt
            .broadcast_mul(&layer.a.to_dtype(DType::F32)?.flatten_all()?)?
            .exp()?;
        let dtx = x.broadcast_mul(&dt.unsqueeze(2)?)?;
        for (sequence, &slot) in batch.slots.iter().enumerate() {
            let rows = batch.rows(sequence);
            let Ok(slot) = usize::try_from(slot) else {
                outputs.push(Tensor::zeros(
                    (rows.len(), heads * head_dim),
                    DType::F32,
                    x.device(),
                )?);
                continue;
            };
            if rows.is_empty() {
                continue;
            }
            let mut state = load_state(pool, view, slot)?;
            for row in rows {
                let decay = decay.get(row)?.reshape((heads, 1, 1))?;
                let input = dtx
                    .get(row)?
                    .unsqueeze(2)?
                    .broadcast_mul(&b.get(row)?.unsqueeze(1)?)?;
                state = (state.broadcast_mul(&decay)? + input)?;
                let mut y = state
                    .broadcast_mul(&c.get(row)?.unsqueeze(1)?)?
                    .sum(D::Minus1)?;
                if let Some(d) = layer.d {
                    let d = d.to_dtype(DType::F32)?.reshape((heads, 1))?;
                    y = (y + x.get(row)?.broadcast_mul(&d)?)?;
                }
                outputs.push(y.reshape((1, heads * head_dim))?);
            }
            store_state(pool, view, slot, &state)?;
        }
    }
    Ok(Tensor::cat(&outputs, 0)?.to_dtype(x.dtype())?)
}
