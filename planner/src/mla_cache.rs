//! The cache modes of Ascend's fused MLA preprocessing, and the caches that a plan has in each.

use cacheplan_handlers::{DType, Growth, Kind, ResourceHandler};
use cacheplan_transforms::registry::{Cache, DescribeError, Descriptor, OpView};
use cacheplan_transforms::{Attribute, Op, Resources};
use serde::{Deserialize, Serialize};

use crate::budget::key::Values;

/// The cache modes of Ascend's fused MLA preprocessing, each with its own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlaCache {
    /// Latent and rope key in one tensor.
    Kvcache,
    /// The same in two tensors.
    KropeCtkv,
    /// An int8 latent and a 16-bit rope key, in the NZ layout: rows of 32 and 16 elements.
    Int8Nz,
    /// Both at 16 bits in the NZ layout: rows of 16 elements.
    Nz,
}

/// The names of the modes.
pub(crate) const MLA_CACHES: Values = Values::Choice(&[
    ("kvcache", "latent and rope key in one tensor"),
    ("krope_ctkv", "the same in two tensors"),
    ("int8_nz", "an int8 latent in rows of 32 elements, a 16-bit rope key"),
    ("nz", "both at 16 bits, in rows of 16 elements"),
]);

/// Tokens in a block of the NZ order.
pub(crate) const NZ_BLOCK: u64 = 128;

/// Bytes of a column of the NZ order.
const COLUMN_BYTES: u64 = 32;

impl MlaCache {
    /// The operator's `cacheMode`.
    pub const fn number(self) -> u8 {
        match self {
            Self::Kvcache => 0,
            Self::KropeCtkv => 1,
            Self::Int8Nz => 2,
            Self::Nz => 3,
        }
    }

    /// Its name in budgets.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kvcache => "kvcache",
            Self::KropeCtkv => "krope_ctkv",
            Self::Int8Nz => "int8_nz",
            Self::Nz => "nz",
        }
    }

    /// Whether its blocks are in columns of 32 bytes.
    pub(crate) const fn is_nz(self) -> bool {
        matches!(self, Self::Int8Nz | Self::Nz)
    }

    /// Whether its operator writes blocks of so many tokens.
    pub(crate) fn takes_blocks_of(self, tokens: u64) -> bool {
        if self.is_nz() { tokens == NZ_BLOCK } else { (1..=NZ_BLOCK).contains(&tokens) || tokens == 2 * NZ_BLOCK }
    }

    /// Whether a model's caches have latents, which a mode is about.
    pub(crate) fn is_for(caches: &Resources) -> bool {
        caches.iter().any(|cache| matches!(cache.handler.kind(), Kind::MlaPaged | Kind::MlaRope))
    }

    /// What latent attention keeps in this mode of sequences of at most so many tokens.
    pub(crate) fn descriptor(self, max_seq_len: u64) -> Descriptor {
        Descriptor::new(Op::MLA, move |op| self.caches(op, max_seq_len))
    }

    fn caches(self, op: &mut OpView<'_>, max_seq_len: u64) -> Result<Vec<Cache>, DescribeError> {
        let rank = op.dim("kv_lora_rank", "latent", 2)?;
        let rope = op.dim("qk_rope_head_dim", "rope_key", 2)?;
        let dtype = op.kv_dtype("latent")?;
        op.note(format!("mla_cache_mode = {} (the budget)", self.name()));
        let refuse = |reason: String| Err(DescribeError::Inconsistent(format!("`{}`: {reason}", self.name())));
        if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) {
            return refuse(format!(
                "rope keys are stored in {dtype}; the operator writes f16, bf16 and, unquantised, f32"
            ));
        }
        let window = op.op().number(Attribute::WINDOW);
        if let Some(window) = window.filter(|window| Growth::window_binds(*window, max_seq_len)) {
            return refuse(format!("the layer sees a window of {window} tokens; the operator's attention sees all"));
        }
        let columns = |width: u64, dtype: DType| match dtype.row_bytes(width) {
            Some(bytes) if bytes % COLUMN_BYTES == 0 => Ok((bytes / COLUMN_BYTES, width * COLUMN_BYTES / bytes.max(1))),
            _ => Err(DescribeError::Inconsistent(format!(
                "`{}`: {width} elements of {dtype} are no whole columns of {COLUMN_BYTES} bytes",
                self.name()
            ))),
        };
        let cache = |suffix: &'static str, handler| Cache { suffix: suffix.into(), handler };
        let latents = if self == Self::Int8Nz { DType::Int8 } else { dtype };
        let ((latent_columns, latent), (rope_columns, rope)) = match self {
            Self::Kvcache => return Ok(vec![cache("ckv_cache", ResourceHandler::mla_paged(rank, rope, dtype)?)]),
            Self::KropeCtkv => ((1, rank), (1, rope)),
            Self::Int8Nz | Self::Nz => (columns(rank, latents)?, columns(rope, dtype)?),
        };
        Ok(vec![
            cache("ckv_cache", ResourceHandler::mla_latent(latent_columns, latent, latents)?),
            cache("krope_cache", ResourceHandler::mla_rope(rope_columns, rope, dtype)?),
        ])
    }
}
