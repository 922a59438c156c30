//! The preprocessing of multi-head latent attention: its modes, sizes, weights and what a step brings.

use super::{MlaCacheMode, OP, elements_of_32_bytes, nz_decode};
use crate::error::{KernelError, Result};
use crate::numbers::Numbers;
use crate::ops::kv_cache::KvWrite;
use crate::ops::quant::{KvQuant, KvScales};
use crate::view::KvLayerView;
use candle_core::{DType, Tensor};

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

/// What each norm adds to the mean square. By default all add 1e-5, as the operator declares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaEpsilon {
    /// The norm in front of the layer.
    pub input: f64,
    /// That of the compressed query.
    pub query: f64,
    /// That of the latent.
    pub latent: f64,
}

impl From<f64> for MlaEpsilon {
    fn from(all: f64) -> Self {
        Self { input: all, query: all, latent: all }
    }
}

impl Default for MlaEpsilon {
    fn default() -> Self {
        Self::from(1e-5)
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
    /// Added to the mean squares of the three norms; a model has its own.
    pub epsilon: MlaEpsilon,
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

impl MlaProjection {
    /// The weight `[rows, columns]`, whatever its order.
    pub(crate) fn rows(&self, rows: usize, columns: usize) -> Result<Tensor> {
        match self.weight.rank() {
            2 => Ok(self.weight.contiguous()?),
            // A single product comes as a batch of one.
            _ => Ok(nz_decode(&self.weight)?.reshape((rows, columns))?),
        }
    }

    /// What the integer product is multiplied by, as f32; i64 entries carry the bits of one in their low half.
    pub(crate) fn factors(&self) -> Result<Option<Tensor>> {
        let Some(factors) = &self.descale else { return Ok(None) };
        if factors.dtype() != DType::I64 {
            return Ok(Some(factors.to_dtype(DType::F32)?));
        }
        let bits = factors.to_vec1::<i64>()?;
        let floats: Vec<f32> = bits.into_iter().map(|bits| f32::from_bits(bits as u32)).collect();
        Ok(Some(Tensor::from_vec(floats, factors.elem_count(), factors.device())?))
    }
}

impl MlaPreprocess {
    /// The absorbing weights `[heads, nope, kv_lora]`, whatever their order.
    pub(crate) fn absorbing_rows(&self) -> Result<Tensor> {
        match self.absorb.rank() {
            3 => Ok(self.absorb.contiguous()?),
            _ => nz_decode(&self.absorb),
        }
    }

    /// Writes latents and rope keys `[tokens, width]` into a step's caches, each by a `write` of rows.
    pub(crate) fn write(
        &self,
        step: &MlaStep<'_>,
        [latents, keys]: [&Tensor; 2],
        write: impl Fn(&KvWrite<'_>, &Tensor, &KvLayerView) -> Result<()>,
    ) -> Result<()> {
        let into = |pool: &MlaPool<'_>, k: &Tensor, quant: Option<KvQuant<'_>>| {
            write(&KvWrite { k, v: None, slot_mapping: pool.slot_mapping, quant }, pool.tensor, pool.view)
        };
        let Some(rope_cache) = &step.rope_cache else {
            return into(&step.cache, &Tensor::cat(&[latents, keys], 1)?, None);
        };
        let scale = self.latent_scale.as_ref().map(|scale| scale.to_dtype(DType::F32)?.get(0)?.to_scalar::<f32>());
        let quant = scale.transpose()?.map(|scale| KvScales { k: scale, v: scale }.into());
        into(&step.cache, latents, quant)?;
        into(rope_cache, keys, None)
    }
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
    pub cache: MlaPool<'a>,
    /// The rope key's cache, in all modes but the first.
    pub rope_cache: Option<MlaPool<'a>>,
}

/// A cache where it lies: one layer of a pool, or all of a tensor of the operator's own shape.
#[derive(Clone, Copy, Debug)]
pub struct MlaPool<'a> {
    /// `[blocks, block_elems]`.
    pub tensor: &'a Tensor,
    /// One head as wide as a row, or in NZ order a head for each column, each stored for all tokens of a block.
    pub view: &'a KvLayerView,
    /// `[tokens]` slots; -1 is skipped.
    pub slot_mapping: Numbers<'a, i64>,
}

impl MlaCacheMode {
    /// Rows of `width` elements in this mode: columns, and elements of each.
    pub(crate) fn columns(self, width: usize, dtype: DType) -> [usize; 2] {
        match self {
            Self::KvCache | Self::KropeCtkv => [1, width],
            Self::Int8Nz | Self::Nz => {
                let column = elements_of_32_bytes(dtype);
                [width / column, column]
            }
        }
    }
}
