//! Linear attention, one token at a time.

use super::wide_rows;
use crate::error::Result;
use crate::ops::linear_attention::{LinearAttentionScan, StateDecay};
use crate::states::States;
use candle_core::{D, Tensor};

pub(crate) fn linear_attention(input: &LinearAttentionScan<'_>, states: &States<'_>) -> Result<Tensor> {
    let [heads, key_dim, value_dim] = states.view.shape;
    let tokens = input.v.dim(0)?;
    let per_head = |tensor: &Tensor| -> Result<Tensor> {
        let key_heads = tensor.dims()[1..].iter().product::<usize>() / key_dim;
        let mut rows = wide_rows(tensor)?.reshape((tokens, key_heads, key_dim))?;
        if input.l2_norm {
            let length = (rows.sqr()?.sum_keepdim(D::Minus1)? + 1e-6)?.sqrt()?;
            rows = rows.broadcast_div(&length)?;
        }
        Ok(rows
            .unsqueeze(2)?
            .broadcast_as((tokens, key_heads, heads / key_heads, key_dim))?
            .reshape((tokens, heads, key_dim))?)
    };
    let q = (per_head(input.q)? * f64::from(input.scale))?;
    let k = per_head(input.k)?;
    let v = wide_rows(input.v)?.reshape((tokens, heads, value_dim))?;
    let decay = match input.decay {
        StateDecay::Fixed(decay) => {
            Tensor::new(decay, v.device())?.reshape((1, heads, 1))?.broadcast_as((tokens, heads, 1))?.contiguous()?
        }
        StateDecay::PerHead(decay) => wide_rows(decay)?.reshape((tokens, heads, 1))?,
        StateDecay::PerChannel(decay) => wide_rows(decay)?.reshape((tokens, heads, key_dim))?,
    }
    .exp()?;
    let beta = input.beta.map(wide_rows).transpose()?;
    states
        .scan(heads * value_dim, |row, state| {
            let state = state.broadcast_mul(&decay.get(row)?.unsqueeze(2)?)?;
            let column = |rows: &Tensor| rows.get(row)?.unsqueeze(2);
            let mut v = v.get(row)?;
            if let Some(beta) = &beta {
                let held = state.broadcast_mul(&column(&k)?)?.sum(1)?;
                v = (v - held)?.broadcast_mul(&beta.get(row)?.unsqueeze(1)?)?;
            }
            let state = (state + column(&k)?.broadcast_mul(&v.unsqueeze(1)?)?)?;
            let out = state.broadcast_mul(&column(&q)?)?.sum(1)?;
            Ok((state, out))
        })?
        .to_dtype(input.v.dtype())
        .map_err(Into::into)
}
