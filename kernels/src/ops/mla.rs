//! Multi-head latent attention in the layouts of Ascend's operator, and that operator itself.

mod check;
mod nz;
mod preprocess;

use crate::error::{KernelError, Result};

pub(super) use check::check;
pub(crate) use nz::elements_of_32_bytes;
pub(crate) use nz::{nz_decode, nz_encode};
pub use preprocess::{MlaEpsilon, MlaNorm, MlaPool, MlaPreprocess, MlaProjection, MlaQuantMode, MlaShape, MlaStep};

const OP: &str = "mla_preprocess";

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
