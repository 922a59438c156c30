//! Multi-head latent attention's preprocessing, step by step as Ascend's operator: RMSNorm and quantise, one product down
//! to `[latent | rope key | compressed query]`, dequantise, second norm and quantise, product up to the queries,
//! absorption of the key projection, rotation, and the write of latent and rope key into the cache.
//!
//! Integer products are in f64, which holds them exactly; its cost is that of its matrix products.

use super::{int8, kv_cache};
use crate::error::Result;
use crate::ops::mla::{MlaCacheMode, MlaNorm, MlaPreprocess, MlaProjection, MlaQuantMode, MlaShape, MlaStep};
use candle_core::{D, DType, Tensor};

pub(crate) fn preprocess(mla: &MlaPreprocess, step: &MlaStep<'_>) -> Result<(Tensor, Option<Tensor>)> {
    let [[absorbed, rotated], [latent, key]] = rows(mla, step.input, [step.cos, step.sin])?;
    mla.write(step, [&latent, &key], |write, pool, view| kv_cache::write(write, None, pool, view))?;
    match mla.cache_mode {
        MlaCacheMode::KvCache => Ok((Tensor::cat(&[&absorbed, &rotated], D::Minus1)?, None)),
        _ => Ok((absorbed, Some(rotated))),
    }
}

/// Queries and keys, the latent's and the rotated ones of each.
fn rows(mla: &MlaPreprocess, input: &Tensor, turns: [&Tensor; 2]) -> Result<[[Tensor; 2]; 2]> {
    let MlaShape { heads, kv_lora, nope, rope, .. } = mla.shape;
    let tokens = input.dim(0)?;
    let dtype = input.dtype();

    let normed = normalise(input, &mla.norm0.gamma, mla.norm0.beta.as_ref(), mla.epsilon.input)?;
    let down = project(mla, &normed, &mla.norm0, &mla.down, mla.shape.down_rows())?;
    let latent = normalise(&down.narrow(1, 0, kv_lora)?, &mla.gamma2, None, mla.epsilon.latent)?;
    let key = rotate(&down.narrow(1, kv_lora, rope)?.unsqueeze(1)?, turns)?.squeeze(1)?;
    let rest = down.narrow(1, kv_lora + rope, mla.shape.down_rows() - kv_lora - rope)?;
    let query = match (&mla.norm1, &mla.up) {
        (Some(norm), Some(up)) => {
            let normed = normalise(&rest, &norm.gamma, norm.beta.as_ref(), mla.epsilon.query)?;
            project(mla, &normed, norm, up, mla.shape.query_rows())?
        }
        _ => rest,
    };
    let query = query.reshape((tokens, heads, nope + rope))?;
    let absorb = mla.absorbing_rows()?.to_dtype(DType::F32)?;
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
    let absorbed = match &mla.query_scale {
        Some(scale) => {
            let scale = scale.to_dtype(DType::F32)?.reshape((heads, 1))?;
            int8::encode(&absorbed.to_dtype(DType::F32)?.broadcast_mul(&scale)?)?
        }
        None => absorbed,
    };
    Ok([[absorbed, rotated], [latent, key]])
}

/// RMSNorm in f32, rounded to the input's dtype.
fn normalise(x: &Tensor, gamma: &Tensor, beta: Option<&Tensor>, epsilon: f64) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let scale = (wide.sqr()?.mean_keepdim(D::Minus1)? + epsilon)?.sqrt()?;
    let mut out = wide.broadcast_div(&scale)?.broadcast_mul(&gamma.to_dtype(DType::F32)?)?;
    if let Some(beta) = beta {
        out = out.broadcast_add(&beta.to_dtype(DType::F32)?)?;
    }
    Ok(out.to_dtype(x.dtype())?)
}

/// Quantise, multiply, dequantise: `[tokens, rows]` in the dtype of `x`, which `norm` made.
fn project(mla: &MlaPreprocess, x: &Tensor, norm: &MlaNorm, projection: &MlaProjection, rows: usize) -> Result<Tensor> {
    let normed = x.to_dtype(DType::F32)?;
    let weight = projection.rows(rows, x.dim(1)?)?;
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
    if let Some(factors) = projection.factors()? {
        out = out.broadcast_mul(&factors)?;
    }
    if let Some(scale) = row_scale {
        out = out.broadcast_mul(&scale)?;
    }
    Ok(out.to_dtype(x.dtype())?)
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
