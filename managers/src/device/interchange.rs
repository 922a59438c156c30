//! Caches in the layouts of other systems, and back.
//!
//! Only the last `d_conv - 1` columns of a convolution's input matter, but some systems keep `d_conv` of them, channels
//! first. An MLA cache comes in four modes: with rope keys beside the latents or apart, in rows or in NZ order, and
//! with latents in 8 bits.

use cacheplan_kernels::MlaCacheMode;
use candle_core::{D, DType, Tensor};

use super::manager::{CacheManager, Route};
use crate::ManagerError;
use crate::device::error::Result;

impl CacheManager {
    /// A state of `d_conv - 1` columns, `[d_conv - 1, conv_dim]`, as one of `d_conv`, `[conv_dim, d_conv]`.
    ///
    /// `oldest` `[conv_dim]` is the column that goes in front; without it that column is zero, which changes no output.
    ///
    /// # Errors
    /// Shapes that do not fit each other.
    pub fn widen_conv_state(state: &Tensor, oldest: Option<&Tensor>) -> Result<Tensor> {
        let (_, conv_dim) = state.dims2()?;
        let oldest = match oldest {
            Some(column) => column.reshape((1, conv_dim))?,
            None => Tensor::zeros((1, conv_dim), state.dtype(), state.device())?,
        };
        Ok(Tensor::cat(&[&oldest, state], 0)?.t()?.contiguous()?)
    }

    /// A state `[conv_dim, d_conv]` as our `[d_conv - 1, conv_dim]`, and the oldest column `[conv_dim]` that it leaves out.
    ///
    /// # Errors
    /// A state without columns.
    pub fn narrow_conv_state(state: &Tensor) -> Result<(Tensor, Tensor)> {
        let columns = state.t()?.contiguous()?;
        let (d_conv, _) = columns.dims2()?;
        let kept = columns.narrow(0, 1, d_conv.saturating_sub(1))?.copy()?;
        Ok((kept, columns.get(0)?.copy()?))
    }
}

/// Locates a layer's MLA cache, and names its mode of the four.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaCache {
    /// The mode that the pools have.
    pub mode: MlaCacheMode,
    pub(super) latent: Route,
    pub(super) rope: Option<Route>,
    /// Elements of the latent.
    pub kv_lora_rank: usize,
    /// What int8 latents are multiplied with; 1 in other modes.
    pub scale: f32,
}

/// Blocks of an MLA cache in one of the four modes of Ascend's operator.
#[derive(Clone, Debug)]
pub struct MlaBlocks {
    /// The mode.
    pub mode: MlaCacheMode,
    /// Mode 0: `[blocks, block_size, 1, kv_lora_rank + rope]`. Mode 1: `[blocks, block_size, 1, kv_lora_rank]`.
    /// Modes 2 and 3: `[blocks, kv_lora_rank / C0, block_size, C0]`, in mode 2 int8 bits in a U8 tensor.
    pub latent: Tensor,
    /// The rope keys in the same order with their own width; absent in mode 0.
    pub rope: Option<Tensor>,
    /// What int8 latents are multiplied with; 1 in other modes.
    pub scale: f32,
    /// Elements of the latent.
    pub kv_lora_rank: usize,
}

impl MlaBlocks {
    /// The blocks in the order of mode 0, `[blocks, block_size, kv_lora_rank + rope]`; int8 latents in the rope's dtype.
    ///
    /// # Errors
    /// Tensors that do not have their mode's shapes, or a scale that is none.
    pub fn to_rows(&self) -> Result<Tensor> {
        let (latent, rope) = self.parts()?;
        Ok(Tensor::cat(&[latent, rope], D::Minus1)?)
    }

    /// The same blocks in another mode. Only mode 2 loses anything: it rounds latents to multiples of `scale`.
    ///
    /// # Errors
    /// Widths that the NZ order cannot cut into columns of 32 bytes, or a scale that is none.
    pub fn to_mode(&self, mode: MlaCacheMode, scale: f32) -> Result<Self> {
        if mode == self.mode && (mode != MlaCacheMode::Int8Nz || scale == self.scale) {
            return Ok(self.clone());
        }
        let (latent, rope) = self.parts()?;
        let (latent, rope) = match mode {
            MlaCacheMode::KvCache => (Tensor::cat(&[latent, rope], D::Minus1)?.unsqueeze(2)?, None),
            MlaCacheMode::KropeCtkv => (latent.unsqueeze(2)?, Some(rope.unsqueeze(2)?)),
            MlaCacheMode::Int8Nz => {
                (MlaCacheMode::to_nz(&quantise(&latent, scale)?)?, Some(MlaCacheMode::to_nz(&rope)?))
            }
            MlaCacheMode::Nz => (MlaCacheMode::to_nz(&latent)?, Some(MlaCacheMode::to_nz(&rope)?)),
        };
        let scale = if mode == MlaCacheMode::Int8Nz { scale } else { 1.0 };
        Ok(Self { mode, latent, rope, scale, kv_lora_rank: self.kv_lora_rank })
    }

    /// Latent and rope keys `[blocks, block_size, width]`.
    fn parts(&self) -> Result<(Tensor, Tensor)> {
        let Some(rope) = &self.rope else {
            let rows = self.latent.squeeze(2)?;
            let rope = rows.dim(D::Minus1)?.saturating_sub(self.kv_lora_rank);
            let latent = rows.narrow(D::Minus1, 0, self.kv_lora_rank)?.contiguous()?;
            return Ok((latent, rows.narrow(D::Minus1, self.kv_lora_rank, rope)?.contiguous()?));
        };
        Ok(match self.mode {
            MlaCacheMode::KvCache | MlaCacheMode::KropeCtkv => (self.latent.squeeze(2)?, rope.squeeze(2)?),
            MlaCacheMode::Nz => (MlaCacheMode::from_nz(&self.latent)?, MlaCacheMode::from_nz(rope)?),
            MlaCacheMode::Int8Nz => (
                dequantise(&MlaCacheMode::from_nz(&self.latent)?, self.scale)?.to_dtype(rope.dtype())?,
                MlaCacheMode::from_nz(rope)?,
            ),
        })
    }
}

/// What int8 latents are multiplied with.
pub(super) fn check_scale(scale: f32) -> Result<()> {
    if scale.is_finite() && scale > 0.0 {
        return Ok(());
    }
    Err(ManagerError::ForeignState(format!("the scale of int8 latents is {scale}; it must be positive and finite")))
}

/// Int8 bits of `values / scale`, rounded to the nearest even and clamped.
fn quantise(values: &Tensor, scale: f32) -> Result<Tensor> {
    check_scale(scale)?;
    let flat = values.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    let bits = flat.into_iter().map(|value| (value / scale).round_ties_even().clamp(-128.0, 127.0) as i8 as u8);
    Ok(Tensor::from_vec(bits.collect(), values.shape(), values.device())?)
}

fn dequantise(bits: &Tensor, scale: f32) -> Result<Tensor> {
    check_scale(scale)?;
    let flat = bits.flatten_all()?.to_vec1::<u8>()?;
    let values: Vec<f32> = flat.into_iter().map(|bits| f32::from(bits as i8) * scale).collect();
    Ok(Tensor::from_vec(values, bits.shape(), bits.device())?)
}
