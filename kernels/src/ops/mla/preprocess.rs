//! The preprocessing of multi-head latent attention: its modes, sizes, weights and what a step brings.

use super::{MlaCacheMode, OP};
use crate::error::{KernelError, Result};
use candle_core::Tensor;

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
