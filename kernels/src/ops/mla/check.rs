//! The operator's table of shapes and dtypes.

use super::{
    MlaCacheMode, MlaNorm, MlaPool, MlaPreprocess, MlaProjection, MlaQuantMode, MlaStep, OP, elements_of_32_bytes,
};
use crate::error::{KernelError, Result};
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Tensor};

/// Most tokens of one call.
const MAX_TOKENS: usize = 1024;
/// Most elements of a row: more products of 8 bits may be too large for the 32 bits of their sum.
const MAX_WIDTH: usize = (1 << 17) - 1;

/// What a step brings, and the caches that it writes.
pub(in crate::ops) fn check(mla: &MlaPreprocess, step: &MlaStep<'_>) -> Result<()> {
    let MlaStep { input, cos, sin, .. } = *step;
    let shape = &mla.shape;
    let dtype = input.dtype();
    let tokens = input.dim(0)?;
    let refuse = |reason: String| Err(KernelError::Argument { op: OP, reason });
    match (dtype, mla.quant_mode) {
        (DType::F16 | DType::BF16, _) | (DType::F32, MlaQuantMode::Unquantised) => {}
        (found, _) => {
            let expected = "f16 or bf16, or f32 if not quantised";
            return Err(KernelError::DType { op: OP, operand: "input", found, expected });
        }
    }
    if tokens > MAX_TOKENS {
        return refuse(format!("{tokens} tokens, at most {MAX_TOKENS} in one call"));
    }
    if mla.quant_mode == MlaQuantMode::Unquantised && mla.cache_mode == MlaCacheMode::Int8Nz {
        return refuse("an int8 cache needs a quantMode of 0 or 1".to_owned());
    }
    if !shape.rope.is_multiple_of(2) {
        return refuse(format!("rope is {}, expected an even number", shape.rope));
    }
    let sizes = [shape.hidden, shape.heads, shape.kv_lora, shape.nope, shape.rope, shape.q_lora.unwrap_or(1)];
    if sizes.contains(&0) {
        return refuse(format!("a size is 0: {shape:?}"));
    }
    let widest = shape.hidden.max(shape.q_lora.unwrap_or(0));
    if widest > MAX_WIDTH {
        return refuse(format!("rows of {widest} elements, at most {MAX_WIDTH}"));
    }
    exact("input", input, &[tokens, shape.hidden], dtype)?;
    exact("cos", cos, &[tokens, shape.rope], dtype)?;
    exact("sin", sin, &[tokens, shape.rope], dtype)?;
    norm(mla, &mla.norm0, ["gamma0", "beta0", "quantScale0", "quantOffset0"], shape.hidden, dtype)?;
    projection(mla, &mla.down, ["wdqkv", "deScale0", "bias0"], shape.down_rows(), shape.hidden, dtype)?;
    match (shape.q_lora, &mla.norm1, &mla.up) {
        (Some(q_lora), Some(norm1), Some(up)) => {
            norm(mla, norm1, ["gamma1", "beta1", "quantScale1", "quantOffset1"], q_lora, dtype)?;
            projection(mla, up, ["wuq", "deScale1", "bias1"], shape.query_rows(), q_lora, dtype)?;
        }
        (None, None, None) => {}
        _ => return refuse("norm1 and up go together with q_lora".to_owned()),
    }
    exact("gamma2", &mla.gamma2, &[shape.kv_lora], dtype)?;
    let c0 = elements_of_32_bytes(dtype);
    let plain = [shape.heads, shape.nope, shape.kv_lora];
    let nz = [shape.heads, shape.kv_lora / c0, shape.nope, c0];
    one_of("wuk", &mla.absorb, &[&plain, &nz], dtype)?;

    let int8 = mla.cache_mode == MlaCacheMode::Int8Nz;
    for (operand, scale, len) in [("ctkvScale", &mla.latent_scale, 1), ("qNopeScale", &mla.query_scale, shape.heads)] {
        match scale {
            Some(scale) if int8 => exact(operand, scale, &[len], dtype)?,
            None if !int8 => {}
            Some(_) => return refuse(format!("{operand} is given, but the cache is not int8")),
            None => return refuse(format!("{operand} is missing, but the cache is int8")),
        }
    }
    caches(mla, step)
}

fn caches(mla: &MlaPreprocess, step: &MlaStep<'_>) -> Result<()> {
    let (shape, dtype, tokens) = (&mla.shape, step.input.dtype(), step.input.dim(0)?);
    let refuse = |reason: &str| Err(KernelError::Argument { op: OP, reason: reason.to_owned() });
    let width = if mla.cache_mode == MlaCacheMode::KvCache { shape.kv_lora + shape.rope } else { shape.kv_lora };
    let latent_dtype = if mla.cache_mode == MlaCacheMode::Int8Nz { DType::U8 } else { dtype };
    cache(mla.cache_mode, "kvCache", &step.cache, width, latent_dtype, tokens)?;
    match (mla.cache_mode, &step.rope_cache) {
        (MlaCacheMode::KvCache, None) => Ok(()),
        (MlaCacheMode::KvCache, Some(_)) => refuse("cacheMode 0 has no kvCacheRope"),
        (mode, Some(rope_cache)) => cache(mode, "kvCacheRope", rope_cache, shape.rope, dtype, tokens),
        (_, None) => refuse("kvCacheRope is missing"),
    }
}

/// Rows of `width` elements of `dtype` for so many tokens.
fn cache(
    mode: MlaCacheMode,
    operand: &'static str,
    cache: &MlaPool<'_>,
    width: usize,
    dtype: DType,
    tokens: usize,
) -> Result<()> {
    let MlaPool { tensor, view, slot_mapping } = *cache;
    let refuse = |reason: String| Err(KernelError::Argument { op: OP, reason });
    let (block_size, nz) = (view.tokens_per_block, matches!(mode, MlaCacheMode::Int8Nz | MlaCacheMode::Nz));
    if !(1..=128).contains(&block_size) && block_size != 256 {
        return refuse(format!("block size {block_size}, expected 1 to 128 or 256"));
    }
    if nz && block_size != 128 {
        return refuse(format!("block size {block_size}, expected 128 with an NZ cache"));
    }
    let [columns, column] = mode.columns(width, dtype);
    if columns * column != width {
        return refuse(format!("{operand}: rows of {width} elements are no whole columns of {column}"));
    }
    let (found, expected) = ([view.num_kv_heads, view.head_dim], [columns, column]);
    if view.kv_factor != 1 || found != expected || (nz && view.order != KvLayout::Hnd) {
        let expected = format!("{columns} columns of {column} elements, each for all tokens of a block");
        return Err(KernelError::Shape { op: OP, operand, found: found.to_vec(), expected });
    }
    is_of(operand, tensor, dtype)?;
    let slots = (view.check(OP, tensor)? * block_size) as i64;
    if slot_mapping.len() != tokens {
        return refuse(format!("{} slots for {tokens} tokens", slot_mapping.len()));
    }
    match slot_mapping.iter().position(|&slot| slot < -1 || slot >= slots) {
        None => Ok(()),
        Some(at) => Err(KernelError::index(
            OP,
            "slotmapping",
            at,
            slot_mapping[at],
            format!("expected -1 or less than {slots}"),
        )),
    }
}

fn norm(mla: &MlaPreprocess, norm: &MlaNorm, names: [&'static str; 4], width: usize, dtype: DType) -> Result<()> {
    exact(names[0], &norm.gamma, &[width], dtype)?;
    if let Some(beta) = &norm.beta {
        exact(names[1], beta, &[width], dtype)?;
    }
    let per_tensor = mla.quant_mode == MlaQuantMode::PerTensorAsymmetric;
    for (operand, tensor, dtype) in [(names[2], &norm.quant_scale, dtype), (names[3], &norm.quant_offset, DType::U8)] {
        given_only_if(per_tensor, "quantMode 0", operand, tensor.as_ref())?;
        if let Some(tensor) = tensor {
            exact(operand, tensor, &[1], dtype)?;
        }
    }
    Ok(())
}

fn projection(
    mla: &MlaPreprocess,
    projection: &MlaProjection,
    names: [&'static str; 3],
    rows: usize,
    columns: usize,
    dtype: DType,
) -> Result<()> {
    let quantised = mla.quant_mode != MlaQuantMode::Unquantised;
    let weight_dtype = if quantised { DType::U8 } else { dtype };
    let c0 = elements_of_32_bytes(weight_dtype);
    let nz = [1, columns / c0, rows, c0];
    one_of(names[0], &projection.weight, &[&[rows, columns], &nz], weight_dtype)?;
    given_only_if(quantised, "quantMode 0 or 1", names[1], projection.descale.as_ref())?;
    if let Some(descale) = &projection.descale {
        let descale_dtype = if dtype == DType::F16 { DType::I64 } else { DType::F32 };
        exact(names[1], descale, &[rows], descale_dtype)?;
    }
    match &projection.bias {
        Some(bias) if mla.quant_mode == MlaQuantMode::PerTensorAsymmetric => exact(names[2], bias, &[rows], DType::I32),
        Some(_) => given_only_if(false, "quantMode 0", names[2], projection.bias.as_ref()),
        None => Ok(()),
    }
}

fn given_only_if(needed: bool, when: &str, operand: &str, tensor: Option<&Tensor>) -> Result<()> {
    let reason = match (needed, tensor) {
        (true, None) => format!("{operand} is missing: {when} needs it"),
        (false, Some(_)) => format!("{operand} is given: only {when} takes it"),
        _ => return Ok(()),
    };
    Err(KernelError::Argument { op: OP, reason })
}

fn exact(operand: &'static str, tensor: &Tensor, dims: &[usize], dtype: DType) -> Result<()> {
    one_of(operand, tensor, &[dims], dtype)
}

fn one_of(operand: &'static str, tensor: &Tensor, allowed: &[&[usize]], dtype: DType) -> Result<()> {
    if !allowed.contains(&tensor.dims()) {
        return Err(KernelError::shape(
            OP,
            operand,
            tensor,
            allowed.iter().map(|dims| format!("{dims:?}")).collect::<Vec<_>>().join(" or "),
        ));
    }
    is_of(operand, tensor, dtype)
}

fn is_of(operand: &'static str, tensor: &Tensor, dtype: DType) -> Result<()> {
    if tensor.dtype() != dtype {
        let expected = match dtype {
            DType::U8 => "int8 (bits in u8)",
            DType::I32 => "i32",
            DType::I64 => "i64 (bits of an f32)",
            DType::F32 => "f32",
            _ => "the dtype of the input",
        };
        return Err(KernelError::DType { op: OP, operand, found: tensor.dtype(), expected });
    }
    Ok(())
}
