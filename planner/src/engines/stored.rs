//! How latents are stored, which a dtype alone does not say.

use cacheplan_handlers::DType;
use cacheplan_transforms::{ModelInfo, Resources};

use super::version::Version;

/// What an engine is told of how it stores a model's latents.
pub(crate) struct Telling<'a> {
    pub(crate) model: &'a ModelInfo,
    pub(crate) caches: &'a Resources,
    pub(crate) version: Version,
    /// Compute capability, times ten.
    pub(crate) capability: u32,
    /// AMD's number of the GPU, of one of theirs.
    pub(crate) gfx: Option<u32>,
    /// What the budget says that caches are kept in.
    pub(crate) stated: Option<DType>,
    /// Whether ranks divide a sequence's tokens.
    pub(crate) dcp: bool,
    pub(crate) told: OfAttention<'a>,
}

/// What a command says of attention beside the budget.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfAttention<'a> {
    /// What its flag for the dtype of caches says; where it is absent the budget does.
    pub word: Option<&'a str>,
    /// The kernels that it is told to take.
    pub backend: Option<&'a str>,
    /// Tokens of a block, where they are stated.
    pub block: Option<u64>,
    /// What the model is run in.
    pub run_in: Option<DType>,
    /// Heads of queries that a rank has.
    pub queries: Option<u64>,
    /// Whether AMD's own kernels are turned on.
    pub aiter: bool,
}

/// How entries are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stored {
    /// In the dtype that the model is run in.
    Own,
    /// In 8 bits.
    Narrow,
    /// In 8 bits beside their scales, with a rope key of 16 bits: `fp8_ds_mla`.
    Packed,
    /// Windows in 8 bits and entries beyond them in 4, beside their scales: `nvfp4_ds_mla`.
    Mixed,
}

impl Stored {
    /// vLLM's name of it, where that is no dtype.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Own | Self::Narrow => None,
            Self::Packed => Some("fp8_ds_mla"),
            Self::Mixed => Some("nvfp4_ds_mla"),
        }
    }
}
