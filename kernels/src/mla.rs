//! The preprocessing of multi-head latent attention: from hidden states to queries and a written cache.
//!
//! This is Ascend's `MlaPreprocess` operator step by step: RMSNorm and quantise, one product down to
//! `[latent | rope key | compressed query]`, dequantise, second norm and quantise, product up to the queries,
//! absorption of the key projection, rotation, and the write of latent and rope key into the cache. Sizes are
//! parameters, and a model without a compressed query skips the second half of the query's way. It is made of
//! candle ops, with integer products in f64, which holds them exactly; its cost is that of its matrix products.
//! Decode and prefill then attend with [`crate::paged_attention`] over the latent (`kv_factor` 1).
//!
//! candle has no signed 8-bit type: int8 tensors are U8 tensors that hold the same bits.

mod check;
mod layout;

use crate::error::{KernelError, Result};
use crate::int8;
use candle_core::{D, DType, Tensor};

pub use layout::{nz_decode, nz_encode};

pub(crate) const OP: &str = "mla_preprocess";

/// The layouts of the cache and of the queries (the operator's `cacheMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlaCacheMode {
    /// 0: one cache `[blocks, block_size, 1, latent + rope]`; one query of that width.
    KvCache,
    /// 1: latent and rope key in caches of their own.
    KropeCtkv,
    /// 2: as 1, both in NZ order; the latent and its query in int8.
    Int8Nz,
    /// 3: as 1, both in NZ order.
    Nz,
}

impl TryFrom<u8> for MlaCacheMode {
    type Error = KernelError;

    fn try_from(mode: u8) -> Result<Self> {
        match mode {
            0 => Ok(Self::KvCache),
            1 => Ok(Self::KropeCtkv),
            2 => Ok(Self::Int8Nz),
            3 => Ok(Self::Nz),
            _ => Err(KernelError::Argument { op: OP, reason: format!("cacheMode {mode} is not 0, 1, 2 or 3") }),
        }
    }
}

/// How activations are quantised before the two products (the operator's `quantMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlaQuantMode {
    /// 0: one scale and offset for all.
    PerTensorAsymmetric,
    /// 1: one scale per token, made from its largest magnitude.
    PerTokenSymmetric,
    /// 3: not at all.
    Unquantised,
}

impl TryFrom<u16> for MlaQuantMode {
    type Error = KernelError;

    fn try_from(mode: u16) -> Result<Self> {
        match mode {
            0 => Ok(Self::PerTensorAsymmetric),
            1 => Ok(Self::PerTokenSymmetric),
            3 => Ok(Self::Unquantised),
            2 => Err(KernelError::Argument {
                op: OP,
                reason: "quantMode 2 (per token, asymmetric) is defined but the operator refuses it; use 0, 1 or 3"
                    .to_owned(),
            }),
            _ => Err(KernelError::Argument { op: OP, reason: format!("quantMode {mode} is not 0, 1 or 3") }),
        }
    }
}

/// The sizes of an MLA layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlaShape {
    /// Width of the hidden states; 7168 in the operator's own table.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the compressed query; None where queries are made from hidden states directly.
    pub q_lora: Option<usize>,
    /// Width of the latent; 512 in the operator's table.
    pub kv_lora: usize,
    /// Query and key elements without position; 128 in the operator's table.
    pub nope: usize,
    /// Query and key elements with position; 64 in the operator's table.
    pub rope: usize,
}

impl MlaShape {
    /// Rows of the down projection: `[latent | rope key | compressed query or queries]`.
    pub fn down_rows(&self) -> usize {
        self.kv_lora + self.rope + self.q_lora.unwrap_or_else(|| self.query_rows())
    }

    /// Rows of the up projection: per head `[nope | rope]`.
    pub fn query_rows(&self) -> usize {
        self.heads * (self.nope + self.rope)
    }
}

/// An RMSNorm and what quantises its output.
#[derive(Clone, Debug)]
pub struct MlaNorm {
    /// Weight, in the dtype of the input.
    pub gamma: Tensor,
    /// Added after the weight, in the dtype of the input.
    pub beta: Option<Tensor>,
    /// `[1]` scale, in the dtype of the input; with the per-tensor mode only.
    pub quant_scale: Option<Tensor>,
    /// `[1]` int8 offset; with the per-tensor mode only.
    pub quant_offset: Option<Tensor>,
}

/// A product `x w^T` and what dequantises it.
#[derive(Clone, Debug)]
pub struct MlaProjection {
    /// `[rows, columns]`, or the same in NZ order `[1, columns / C0, rows, C0]`; int8, or the input's dtype if not
    /// quantised.
    pub weight: Tensor,
    /// `[rows]` factor on the integer product: f32, or with f16 inputs i64 whose low 32 bits are that f32.
    pub descale: Option<Tensor>,
    /// `[rows]` i32 added to the integer product; with the per-tensor mode only.
    pub bias: Option<Tensor>,
}

/// The operator with its weights.
#[derive(Clone, Debug)]
pub struct MlaPreprocess {
    /// Sizes.
    pub shape: MlaShape,
    /// Cache and query layouts.
    pub cache_mode: MlaCacheMode,
    /// Quantisation of activations.
    pub quant_mode: MlaQuantMode,
    /// Added to the mean square in all three norms. The operator documents 1e-5 but computes with 1e-6.
    pub epsilon: f64,
    /// First norm.
    pub norm0: MlaNorm,
    /// Down projection.
    pub down: MlaProjection,
    /// Second norm; none without a compressed query.
    pub norm1: Option<MlaNorm>,
    /// Up projection of the query, its rope rows reordered to halves; none without a compressed query.
    pub up: Option<MlaProjection>,
    /// `[kv_lora]` weight of the latent's norm.
    pub gamma2: Tensor,
    /// `[heads, nope, kv_lora]`, or the same in NZ order `[heads, kv_lora / 16, nope, 16]`.
    pub absorb: Tensor,
    /// `[1]` divisor of the latent, with the int8 cache only.
    pub latent_scale: Option<Tensor>,
    /// `[heads]` factor on the query, with the int8 cache only.
    pub query_scale: Option<Tensor>,
}

/// The activations and caches of one step.
#[derive(Clone, Copy, Debug)]
pub struct MlaStep<'a> {
    /// `[tokens, hidden]`, at most 1024 tokens.
    pub input: &'a Tensor,
    /// `[tokens, rope]`.
    pub cos: &'a Tensor,
    /// `[tokens, rope]`.
    pub sin: &'a Tensor,
    /// The cache, or the latent's part of it, written in place.
    pub cache: &'a Tensor,
    /// The rope key's cache, in all modes but the first.
    pub rope_cache: Option<&'a Tensor>,
    /// `[tokens]` slots; -1 is skipped.
    pub slot_mapping: &'a [i64],
}

/// The queries of one step.
#[derive(Clone, Debug)]
pub struct MlaQueries {
    /// `[tokens, heads, kv_lora]`, with the rope part behind it in the first cache mode; int8 with the int8 cache.
    pub latent: Tensor,
    /// `[tokens, heads, rope]`, in all modes but the first.
    pub rope: Option<Tensor>,
}

impl MlaPreprocess {
    /// Makes the queries of a step and writes its latents and rope keys into the cache.
    pub fn run(&self, step: &MlaStep<'_>) -> Result<MlaQueries> {
        check::check(self, step)?;
        let MlaShape { heads, kv_lora, nope, rope, .. } = self.shape;
        let tokens = step.input.dim(0)?;
        let dtype = step.input.dtype();

        let down = self.project(step.input, &self.norm0, &self.down, self.shape.down_rows())?;
        let latent = self.normalise(&down.narrow(1, 0, kv_lora)?, &self.gamma2, None)?;
        let key = rotate(&down.narrow(1, kv_lora, rope)?.unsqueeze(1)?, step)?;
        let rest = down.narrow(1, kv_lora + rope, self.shape.down_rows() - kv_lora - rope)?;
        let query = match (&self.norm1, &self.up) {
            (Some(norm), Some(up)) => self.project(&rest, norm, up, self.shape.query_rows())?,
            _ => rest,
        };
        let query = query.reshape((tokens, heads, nope + rope))?;
        let absorb = layout::plain(&self.absorb, nope, kv_lora)?.to_dtype(DType::F32)?;
        let absorbed = query
            .narrow(2, 0, nope)?
            .to_dtype(DType::F32)?
            .transpose(0, 1)?
            .contiguous()?
            .matmul(&absorb)?
            .transpose(0, 1)?
            .to_dtype(dtype)?;
        let rotated = rotate(&query.narrow(2, nope, rope)?, step)?;

        self.write(step, &latent, &key.squeeze(1)?)?;
        match (self.cache_mode, &self.query_scale) {
            (MlaCacheMode::KvCache, _) => {
                Ok(MlaQueries { latent: Tensor::cat(&[&absorbed, &rotated], D::Minus1)?, rope: None })
            }
            (MlaCacheMode::Int8Nz, Some(scale)) => {
                let scale = scale.to_dtype(DType::F32)?.reshape((heads, 1))?;
                let scaled = absorbed.to_dtype(DType::F32)?.broadcast_mul(&scale)?;
                Ok(MlaQueries { latent: int8::encode(&scaled)?, rope: Some(rotated) })
            }
            _ => Ok(MlaQueries { latent: absorbed.contiguous()?, rope: Some(rotated) }),
        }
    }

    /// RMSNorm in f32, rounded to the input's dtype.
    fn normalise(&self, x: &Tensor, gamma: &Tensor, beta: Option<&Tensor>) -> Result<Tensor> {
        let wide = x.to_dtype(DType::F32)?;
        let scale = (wide.sqr()?.mean_keepdim(D::Minus1)? + self.epsilon)?.sqrt()?;
        let mut out = wide.broadcast_div(&scale)?.broadcast_mul(&gamma.to_dtype(DType::F32)?)?;
        if let Some(beta) = beta {
            out = out.broadcast_add(&beta.to_dtype(DType::F32)?)?;
        }
        Ok(out.to_dtype(x.dtype())?)
    }

    /// Norm, quantise, multiply, dequantise: `[tokens, rows]` in the dtype of `x`.
    fn project(&self, x: &Tensor, norm: &MlaNorm, projection: &MlaProjection, rows: usize) -> Result<Tensor> {
        let normed = self.normalise(x, &norm.gamma, norm.beta.as_ref())?.to_dtype(DType::F32)?;
        let weight = layout::plain(&projection.weight, rows, x.dim(1)?)?;
        if self.quant_mode == MlaQuantMode::Unquantised {
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

    fn write(&self, step: &MlaStep<'_>, latent: &Tensor, key: &Tensor) -> Result<()> {
        let slots = step.slot_mapping;
        match (self.cache_mode, step.rope_cache) {
            (MlaCacheMode::KvCache, _) => layout::write_rows(step.cache, &Tensor::cat(&[latent, key], 1)?, slots),
            (MlaCacheMode::KropeCtkv, Some(rope_cache)) => {
                layout::write_rows(step.cache, latent, slots)?;
                layout::write_rows(rope_cache, key, slots)
            }
            (MlaCacheMode::Int8Nz, Some(rope_cache)) => {
                let scaled = match &self.latent_scale {
                    Some(scale) => latent.to_dtype(DType::F32)?.broadcast_div(&scale.to_dtype(DType::F32)?)?,
                    None => latent.clone(),
                };
                layout::write_nz(step.cache, &int8::encode(&scaled)?, slots)?;
                layout::write_nz(rope_cache, key, slots)
            }
            (MlaCacheMode::Nz, Some(rope_cache)) => {
                layout::write_nz(step.cache, latent, slots)?;
                layout::write_nz(rope_cache, key, slots)
            }
            (_, None) => Err(KernelError::Argument { op: OP, reason: "the rope cache is missing".to_owned() }),
        }
    }
}

/// Rotates `[tokens, heads, rope]`, whose pairs are `(i, i + rope / 2)`.
fn rotate(x: &Tensor, step: &MlaStep<'_>) -> Result<Tensor> {
    let rope = x.dim(2)?;
    let wide = x.to_dtype(DType::F32)?;
    let (first, second) = (wide.narrow(2, 0, rope / 2)?, wide.narrow(2, rope / 2, rope / 2)?);
    let turned = Tensor::cat(&[second.neg()?, first], 2)?;
    let per_token = |table: &Tensor| table.to_dtype(DType::F32)?.unsqueeze(1);
    let out = (wide.broadcast_mul(&per_token(step.cos)?)? + turned.broadcast_mul(&per_token(step.sin)?)?)?;
    Ok(out.to_dtype(x.dtype())?)
}
