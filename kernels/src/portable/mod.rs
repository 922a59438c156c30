//! The same ops written with candle's own ops only, for devices without a kernel of ours.
//!
//! They are slower (they gather what a kernel reads in place) but run wherever candle runs. Operands are checked
//! by the public ops before they come here.

pub(crate) mod attention;
pub(crate) mod conv1d;
pub(crate) mod kv_cache;
pub(crate) mod mamba2;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod rope;

use crate::error::Result;
use crate::view::StateLayerView;
use candle_core::{D, Tensor};

/// The layer's state of one slot, as f32 in the view's shape.
fn load_state(pool: &Tensor, view: &StateLayerView, slot: usize) -> Result<Tensor> {
    let start = slot * view.slot_elems + view.layer_offset;
    // A copy, never a view: the pool is written again before the state is done with.
    let state = pool.flatten_all()?.narrow(0, start, view.elems())?.copy()?;
    Ok(state
        .to_dtype(candle_core::DType::F32)?
        .reshape(view.shape.as_slice())?)
}

/// Writes back what [`load_state`] read.
fn store_state(pool: &Tensor, view: &StateLayerView, slot: usize, state: &Tensor) -> Result<()> {
    let start = slot * view.slot_elems + view.layer_offset;
    let state = state.flatten_all()?.to_dtype(pool.dtype())?.contiguous()?;
    Ok(pool.flatten_all()?.slice_set(&state, 0, start)?)
}

fn silu(x: &Tensor) -> candle_core::Result<Tensor> {
    x / ((x.neg()?.exp()? + 1.0)?)
}

/// `ln(1 + e^x)` without overflow and without losing small results.
fn softplus(x: &Tensor) -> candle_core::Result<Tensor> {
    // max(x, 0) + ln(1 + e^-|x|), the logarithm by its series where 1 + e^-|x| would round.
    let e = x.abs()?.neg()?.exp()?;
    let series = (&e - (e.sqr()? * 0.5)?)?;
    let log = e.lt(1e-3)?.where_cond(&series, &(&e + 1.0)?.log()?)?;
    x.relu()? + log
}

/// Softmax over the last dimension; rows that see nothing must not occur.
fn softmax(x: &Tensor) -> candle_core::Result<Tensor> {
    let shifted = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?;
    let e = shifted.exp()?;
    e.broadcast_div(&e.sum_keepdim(D::Minus1)?)
}
