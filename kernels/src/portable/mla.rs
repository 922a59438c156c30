//! Multi-head latent attention's preprocessing, step by step as Ascend's operator: RMSNorm and quantise, one product down
//! to `[latent | rope key | compressed query]`, dequantise, second norm and quantise, product up to the queries,
//! absorption of the key projection, rotation, and the write of latent and rope key into the cache.
//!
//! Integer products are in f64, which holds them exactly; its cost is that of its matrix products.

use super::{int8, mla_layout as layout};
use crate::error::{KernelError, Result};
use crate::ops::mla::{MlaCacheMode, MlaNorm, MlaPreprocess, MlaProjection, MlaQuantMode, MlaShape, MlaStep};
use candle_core::{D, DType, Tensor};

const OP: &str = "mla_preprocess";

pub(crate) fn run(mla: &MlaPreprocess, step: &MlaStep<'_>) -> Result<(Tensor, Option<Tensor>)> {
    let [[absorbed, rotated], [latent, key]] = rows(mla, step.input, [step.cos, step.sin])?;
    write(mla, step, &latent, &key)?;
    match mla.cache_mode {
        MlaCacheMode::KvCache => Ok((Tensor::cat(&[&absorbed, &rotated], D::Minus1)?, None)),
        _ => Ok((absorbed, Some(rotated))),
    }
}

/// Queries and keys, the latent's and the rotated ones of each.
pub(crate) fn rows(mla: &MlaPreprocess, input: &Tensor, turns: [&Tensor; 2]) -> Result<[[Tensor; 2]; 2]> {
    let MlaShape { heads, kv_lora, nope, rope, .. } = mla.shape;
    let tokens = input.dim(0)?;
    let dtype = input.dtype();

    let down = project(mla, input, &mla.norm0, &mla.down, mla.shape.down_rows())?;
    let latent = normalise(mla, &down.narrow(1, 0, kv_lora)?, &mla.gamma2, None)?;
    let key = rotate(&down.narrow(1, kv_lora, rope)?.unsqueeze(1)?, turns)?.squeeze(1)?;
    let rest = down.narrow(1, kv_lora + rope, mla.shape.down_rows() - kv_lora - rope)?;
    let query = match (&mla.norm1, &mla.up) {
        (Some(norm), Some(up)) => project(mla, &rest, norm, up, mla.shape.query_rows())?,
        _ => rest,
    };
    let query = query.reshape((tokens, heads, nope + rope))?;
    let absorb = layout::plain(&mla.absorb, nope, kv_lora)?.to_dtype(DType::F32)?;
    let absorbed = query
        .narrow(2, 0, nope)?
        .to_dtype(DType::F32)?
        .transpose(0, 1)?
        .contiguous()?
        .matmul(&absorb)?
        .transpose(0, 1)?
        .to_dtype(dtype)?
        .contiguous()?;
    let rotated = rotate(&query.narrow(2, nope, rope)?, turns)?;
    let (Some(query_scale), Some(latent_scale)) = (&mla.query_scale, &mla.latent_scale) else {
        return Ok([[absorbed, rotated], [latent, key]]);
    };
    let scale = query_scale.to_dtype(DType::F32)?.reshape((heads, 1))?;
    let absorbed = int8::encode(&absorbed.to_dtype(DType::F32)?.broadcast_mul(&scale)?)?;
    let latent = latent.to_dtype(DType::F32)?.broadcast_div(&latent_scale.to_dtype(DType::F32)?)?;
    Ok([[absorbed, rotated], [int8::encode(&latent)?, key]])
}

/// RMSNorm in f32, rounded to the input's dtype.
fn normalise(mla: &MlaPreprocess, x: &Tensor, gamma: &Tensor, beta: Option<&Tensor>) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let scale = (wide.sqr()?.mean_keepdim(D::Minus1)? + mla.epsilon)?.sqrt()?;
    let mut out = wide.broadcast_div(&scale)?.broadcast_mul(&gamma.to_dtype(DType::F32)?)?;
    if let Some(beta) = beta {
        out = out.broadcast_add(&beta.to_dtype(DType::F32)?)?;
    }
    Ok(out.to_dtype(x.dtype())?)
}

/// Norm, quantise, multiply, dequantise: `[tokens, rows]` in the dtype of `x`.
fn project(mla: &MlaPreprocess, x: &Tensor, norm: &MlaNorm, projection: &MlaProjection, rows: usize) -> Result<Tensor> {
    let normed = normalise(mla, x, &norm.gamma, norm.beta.as_ref())?.to_dtype(DType::F32)?;
    let weight = layout::plain(&projection.weight, rows, x.dim(1)?)?;
    if mla.quant_mode == MlaQuantMode::Unquantised {
        let out = normed.matmul(&weight.to_dtype(DType::F32)?.t()?)?;
        return Ok(out.to_dtype(x.dtype())?);
    }
    let weight = int8::decode(&weight)?;
    let (quantised, row_scale) = match (&norm.quant_scale, &norm.quant_offset) {
        (Some(scale), Some(offset)) => {
            let offset = int8::decode(offset)?.to_dtype(DType::F32)?;
            let scaled = normed.broadcast_div(&scale.to_dtype(DType::F32)?)?;
            (int8::round(&scaled.broadcast_add(&offset)?)?, None)
        }
        _ => {
            let scale = (normed.abs()?.max_keepdim(D::Minus1)? / 127.0)?;
            // A row of zeros has no scale; any would do.
            let safe = scale.eq(0.0)?.where_cond(&scale.ones_like()?, &scale)?;
            (int8::round(&normed.broadcast_div(&safe)?)?, Some(scale))
        }
    };
    let mut product = quantised.to_dtype(DType::F64)?.matmul(&weight.t()?)?;
    if let Some(bias) = &projection.bias {
        product = product.broadcast_add(&bias.to_dtype(DType::F64)?)?;
    }
    let mut out = product.to_dtype(DType::F32)?;
    if let Some(descale) = &projection.descale {
        out = out.broadcast_mul(&layout::descale(descale)?)?;
    }
    if let Some(scale) = row_scale {
        out = out.broadcast_mul(&scale)?;
    }
    Ok(out.to_dtype(x.dtype())?)
}

fn write(mla: &MlaPreprocess, step: &MlaStep<'_>, latent: &Tensor, key: &Tensor) -> Result<()> {
    let slots = step.slot_mapping;
    match (mla.cache_mode, step.rope_cache) {
        (MlaCacheMode::KvCache, _) => layout::write_rows(step.cache, &Tensor::cat(&[latent, key], 1)?, slots),
        (MlaCacheMode::KropeCtkv, Some(rope_cache)) => {
            layout::write_rows(step.cache, latent, slots)?;
            layout::write_rows(rope_cache, key, slots)
        }
        (MlaCacheMode::Int8Nz | MlaCacheMode::Nz, Some(rope_cache)) => {
            layout::write_nz(step.cache, latent, slots)?;
            layout::write_nz(rope_cache, key, slots)
        }
        (_, None) => Err(KernelError::Argument { op: OP, reason: "the rope cache is missing".to_owned() }),
    }
}

/// Rotates `[tokens, heads, rope]`, whose pairs are `(i, i + rope / 2)`.
fn rotate(x: &Tensor, [cos, sin]: [&Tensor; 2]) -> Result<Tensor> {
    let rope = x.dim(2)?;
    let wide = x.to_dtype(DType::F32)?;
    let (first, second) = (wide.narrow(2, 0, rope / 2)?, wide.narrow(2, rope / 2, rope / 2)?);
    let turned = Tensor::cat(&[second.neg()?, first], 2)?;
    let per_token = |table: &Tensor| table.to_dtype(DType::F32)?.unsqueeze(1);
    let out = (wide.broadcast_mul(&per_token(cos)?)? + turned.broadcast_mul(&per_token(sin)?)?)?;
    Ok(out.to_dtype(x.dtype())?)
}
