//! The same ops written with candle's own ops only, for devices without a kernel of ours.
//!
//! They are slower (they gather what a kernel reads in place) but run wherever candle runs. Operands are checked
//! before they come here.

pub(crate) mod attention;
pub(crate) mod conv1d;
pub(crate) mod elementwise;
pub(crate) mod experts;
mod int8;
pub(crate) mod kv_cache;
pub(crate) mod linear;
pub(crate) mod linear_attention;
pub(crate) mod mamba1;
pub(crate) mod mamba2;
pub(crate) mod mla;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod rg_lru;
pub(crate) mod rope;
pub(crate) mod routing;

use crate::batch::StateWrites;
use crate::error::{KernelError, Result};
use crate::ops::mamba2::TimeStep;
use crate::ops::quant::KvQuant;
use crate::states::States;
use crate::view::{KvLayerView, StateLayerView};
use candle_core::{D, DType, Device, Tensor};

impl States<'_> {
    /// Runs `step(row, state) -> (state, output)` over all rows of all active sequences.
    ///
    /// Returns `[total_tokens, width]` in f32, with zeros in the rows of padding sequences.
    fn scan(
        &self,
        width: usize,
        step: impl Fn(usize, &Tensor) -> candle_core::Result<(Tensor, Tensor)>,
    ) -> Result<Tensor> {
        let device = self.pool.device();
        let mut outputs = vec![Tensor::zeros((0, width), DType::F32, device)?];
        for (sequence, &slot) in self.batch.slots.iter().enumerate() {
            let rows = self.batch.rows(sequence);
            if rows.is_empty() {
                continue;
            }
            let Ok(slot) = usize::try_from(slot) else {
                outputs.push(Tensor::zeros((rows.len(), width), DType::F32, device)?);
                continue;
            };
            // Of a tree every state may have a token behind it; elsewhere none but the last has.
            let is_tree = matches!(self.batch.writes, StateWrites::Tree { .. });
            let mut states: Vec<Tensor> = Vec::new();
            for row in rows.clone() {
                let state = match self.batch.parent(rows.start, row) {
                    None => &load_state(self.pool, self.view, slot)?,
                    Some(parent) => &states[if is_tree { parent - rows.start } else { 0 }],
                };
                let (next, output) = step(row, state)?;
                let mut next = next.reshape(self.view.shape.as_slice())?;
                if self.batch.rounds_each_token() {
                    next = next.to_dtype(self.pool.dtype())?.to_dtype(DType::F32)?;
                }
                if let Some(snapshot) = self.batch.snapshot(row) {
                    store_state(self.pool, self.view, snapshot, &next)?;
                }
                if !is_tree {
                    states.clear();
                }
                states.push(next);
                outputs.push(output.reshape((1, width))?);
            }
            if let (true, Some(state)) = (self.batch.writes_final(), states.last()) {
                store_state(self.pool, self.view, slot, state)?;
            }
        }
        Ok(Tensor::cat(&outputs, 0)?)
    }

    /// `rows` with those of padding sequences replaced by zeros.
    fn live(&self, rows: &Tensor) -> Result<Tensor> {
        let mut live = vec![0u8; rows.dim(0)?];
        for (rows, _) in self.batch.active() {
            live[rows].fill(1);
        }
        let live = Tensor::new(live, rows.device())?.unsqueeze(1)?.broadcast_as(rows.shape())?;
        Ok(live.where_cond(rows, &rows.zeros_like()?)?)
    }
}

/// Numbers of rows, for candle's ops.
fn row_index(rows: impl Iterator<Item = usize>, device: &Device) -> Result<Tensor> {
    let index = rows.map(|row| {
        let reason = || format!("row {row} of a pool is beyond the 32 bits that its device counts rows with");
        u32::try_from(row).map_err(|_| KernelError::Argument { op: "row_index", reason: reason() })
    });
    let index = index.collect::<Result<Vec<u32>>>()?;
    Ok(Tensor::new(index, device)?)
}

/// `[total_tokens, width]` in f32.
fn wide_rows(tensor: &Tensor) -> Result<Tensor> {
    let width = tensor.dims()[1..].iter().product::<usize>();
    Ok(tensor.to_dtype(DType::F32)?.reshape((tensor.dim(0)?, width))?)
}

fn time_step(dt: &Tensor, time_step: &TimeStep<'_>) -> Result<Tensor> {
    let mut dt = dt.clone();
    if let Some(bias) = time_step.bias {
        dt = dt.broadcast_add(&bias.to_dtype(DType::F32)?.flatten_all()?)?;
    }
    if time_step.softplus {
        dt = softplus(&dt)?;
    }
    dt = dt.maximum(f64::from(time_step.limit.0))?;
    if time_step.limit.1.is_finite() {
        dt = dt.minimum(f64::from(time_step.limit.1))?;
    }
    Ok(dt)
}

/// The layer's state of one slot, as f32 in the view's shape.
fn load_state(pool: &Tensor, view: &StateLayerView, slot: usize) -> Result<Tensor> {
    let start = slot * view.slot_elems + view.layer_offset;
    // A copy, never a view: the pool is written again before the state is done with.
    let state = pool.flatten_all()?.narrow(0, start, view.elems())?.copy()?;
    Ok(state.to_dtype(DType::F32)?.reshape(view.shape.as_slice())?)
}

/// Writes back what [`load_state`] read.
fn store_state(pool: &Tensor, view: &StateLayerView, slot: usize, state: &Tensor) -> Result<()> {
    let start = slot * view.slot_elems + view.layer_offset;
    let state = state.flatten_all()?.to_dtype(pool.dtype())?.contiguous()?;
    Ok(pool.flatten_all()?.slice_set(&state, 0, start)?)
}

/// `x` `[tokens, heads, width]` as a pool stores it, and the scale of each row where it has one of its own.
fn narrow(
    x: &Tensor,
    dtype: DType,
    view: &KvLayerView,
    kv: usize,
    quant: Option<&KvQuant<'_>>,
) -> Result<(Tensor, Option<Tensor>)> {
    let Some(quant) = quant else { return Ok((x.to_dtype(dtype)?, None)) };
    if let KvQuant::Grouped(format) = quant {
        let (tokens, heads, width) = x.dims3()?;
        return Ok((format.quantize(&x.reshape((tokens * heads, width))?)?, None));
    }
    let largest = if dtype == DType::U8 { 127.0 } else { 448.0 };
    let wide = x.to_dtype(DType::F32)?;
    let own_scales = match quant {
        KvQuant::PerToken(_) => {
            let fitting = (wide.abs()?.max_keepdim(D::Minus1)? / largest)?;
            // Below the normal numbers a reciprocal can be infinite.
            Some(fitting.lt(f64::from(f32::MIN_POSITIVE))?.where_cond(&fitting.zeros_like()?, &fitting)?)
        }
        _ => None,
    };
    let scales = match &own_scales {
        // What is 0 throughout, or as good as that, becomes 0 with any scale.
        Some(scales) => scales.eq(0.0)?.where_cond(&scales.ones_like()?, scales)?,
        None => head_factors(view, kv, quant, x.device())?.unsqueeze(0)?,
    };
    let scaled = wide.broadcast_mul(&scales.recip()?)?;
    let stored = match dtype {
        DType::U8 => int8::encode(&scaled)?,
        _ => scaled.clamp(-largest, largest)?.to_dtype(dtype)?,
    };
    Ok((stored, own_scales))
}

/// `[heads, 1]` factors of stored keys or values.
fn head_factors(view: &KvLayerView, kv: usize, quant: &KvQuant<'_>, device: &Device) -> Result<Tensor> {
    let factors: Vec<f32> = (0..view.num_kv_heads).map(|head| quant.factor(view, kv, head)).collect();
    Ok(Tensor::from_vec(factors, (view.num_kv_heads, 1), device)?)
}

/// What [`narrow`] stored, without its scales.
fn widen(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::U8 => Ok(int8::decode(x)?.to_dtype(DType::F32)?),
        _ => Ok(x.to_dtype(DType::F32)?),
    }
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
