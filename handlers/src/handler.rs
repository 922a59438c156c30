//! The handler itself: kind, growth, shape, dtype, layout.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{DType, Recurrence};

/// The most bytes that one unit (token, sequence or fixed tensor) of a resource may take: 1 TiB.
///
/// It keeps every later product of units and bytes inside 128 bits, and turns an absurd dimension into an error here.
pub const MAX_UNIT_BYTES: u64 = 1 << 40;

/// What a resource is for. Only resources of one kind can share a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Kind {
    /// Keys and values of attention, in pages.
    KvPaged,
    /// The compressed latent and rope key of multi-head latent attention, in pages.
    MlaPaged,
    /// The recurrent state of a Mamba, delta-net or linear-attention layer.
    Ssm,
    /// The last columns of a causal convolution's input.
    CausalConv,
    /// Any other state with one fixed size per sequence.
    State,
    /// Per-token data that is not paged: every sequence slot holds `max_seq_len` of it.
    Unpaged,
    /// Recurrent states at each candidate position of a speculative step.
    IntermediateSsm,
    /// Convolution states at each candidate position of a speculative step.
    IntermediateCausalConv,
    /// Other states at each candidate position of a speculative step.
    IntermediateState,
    /// A kind of a framework's own, named `namespace.name`.
    Custom(String),
}

impl Kind {
    /// The name used in plans: `kv_paged`, `ssm`, …, or the framework's own.
    pub fn name(&self) -> &str {
        match self {
            Self::KvPaged => "kv_paged",
            Self::MlaPaged => "mla_paged",
            Self::Ssm => "ssm",
            Self::CausalConv => "causal_conv",
            Self::State => "state",
            Self::Unpaged => "unpaged",
            Self::IntermediateSsm => "intermediate_ssm",
            Self::IntermediateCausalConv => "intermediate_causal_conv",
            Self::IntermediateState => "intermediate_state",
            Self::Custom(name) => name,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> Self {
        kind.name().to_owned()
    }
}

impl TryFrom<String> for Kind {
    type Error = HandlerError;

    fn try_from(name: String) -> Result<Self, HandlerError> {
        let builtin = [
            Self::KvPaged,
            Self::MlaPaged,
            Self::Ssm,
            Self::CausalConv,
            Self::State,
            Self::Unpaged,
            Self::IntermediateSsm,
            Self::IntermediateCausalConv,
            Self::IntermediateState,
        ];
        if let Some(kind) = builtin.into_iter().find(|kind| kind.name() == name) {
            return Ok(kind);
        }
        match name.split_once('.') {
            Some((namespace, rest)) if !namespace.is_empty() && !rest.is_empty() => Ok(Self::Custom(name)),
            _ => Err(HandlerError::KindName(name)),
        }
    }
}

/// How a resource grows, hence what its unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// One entry for every `stride` tokens, in pages; with a window, the entries of the last `window` tokens only.
    Paged {
        /// Tokens per entry; 1 except for compressed resources.
        stride: u32,
        /// The sliding window in tokens; `None` keeps every token.
        window: Option<u32>,
    },
    /// One entry per token, `max_seq_len` of them held by each sequence slot.
    PerSlotToken,
    /// One entry per sequence slot.
    PerSequence,
    /// One entry per sequence slot and candidate position of a speculative step.
    PerDraftPosition,
    /// One entry in all.
    Fixed,
}

/// How ranks of a tensor-parallel group divide a dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Every rank holds the whole dimension.
    Whole,
    /// KV heads: divided, or replicated where there are fewer heads than ranks. May differ between layers of a pool.
    KvHeads,
    /// Heads of a recurrent state: divided; must divide evenly.
    Heads,
    /// Channels made of these consecutive sections, each of which is divided.
    Sections(Vec<u64>),
}

/// One named dimension of a resource's shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dim {
    /// The field's name for it: `num_kv_heads`, `head_dim`, `d_state`, ….
    pub name: Cow<'static, str>,
    /// Elements along it.
    pub size: u64,
    /// How ranks divide it.
    pub split: Split,
}

impl Dim {
    /// A dimension that every rank holds whole.
    pub fn whole(name: impl Into<Cow<'static, str>>, size: u64) -> Self {
        Self { name: name.into(), size, split: Split::Whole }
    }

    /// A dimension with the given division over ranks.
    pub fn split(name: impl Into<Cow<'static, str>>, size: u64, split: Split) -> Self {
        Self { name: name.into(), size, split }
    }
}

/// The order of heads and tokens inside a KV block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum KvLayout {
    /// `[kv_factor, heads, tokens, head_dim]`.
    #[default]
    Hnd,
    /// `[kv_factor, tokens, heads, head_dim]`.
    Nhd,
}

impl KvLayout {
    /// `HND` or `NHD`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hnd => "HND",
            Self::Nhd => "NHD",
        }
    }
}

impl fmt::Display for KvLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The description of one cache resource.
///
/// Build one with a constructor ([`ResourceHandler::kv_paged`], [`ResourceHandler::ssm`], …); all of them check the
/// dimensions, so that a handler's byte counts never overflow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct ResourceHandler {
    pub(crate) kind: Kind,
    pub(crate) growth: Growth,
    pub(crate) shape: Vec<Dim>,
    pub(crate) dtype: DType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layout: Option<KvLayout>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recurrence: Option<Recurrence>,
}

/// A handler as read from a file, before its dimensions are checked.
#[derive(Deserialize)]
struct Unchecked {
    kind: Kind,
    growth: Growth,
    shape: Vec<Dim>,
    dtype: DType,
    #[serde(default)]
    layout: Option<KvLayout>,
    #[serde(default)]
    recurrence: Option<Recurrence>,
}

impl TryFrom<Unchecked> for ResourceHandler {
    type Error = HandlerError;

    fn try_from(raw: Unchecked) -> Result<Self, HandlerError> {
        let handler = Self::new(raw.kind, raw.growth, raw.shape, raw.dtype, raw.layout)?;
        Ok(Self { recurrence: raw.recurrence, ..handler })
    }
}

/// A resource that cannot be described.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// A dimension of size zero.
    #[error("{kind} resource: dimension `{dim}` is 0; it must be at least 1")]
    ZeroDim {
        /// The resource's kind.
        kind: Kind,
        /// The dimension's name.
        dim: String,
    },
    /// One unit is larger than [`MAX_UNIT_BYTES`].
    #[error(
        "{kind} resource: shape {shape} at {dtype} takes more than {MAX_UNIT_BYTES} bytes per unit; check the model's dimensions"
    )]
    TooLarge {
        /// The resource's kind.
        kind: Kind,
        /// `name=size` of every dimension.
        shape: String,
        /// The dtype asked for.
        dtype: DType,
    },
    /// `kv_factor` must be 1 (one tensor) or 2 (keys and values).
    #[error("kv_paged resource: kv_factor is {0}; it must be 1 or 2")]
    KvFactor(u64),
    /// Sections that do not add up to their dimension.
    #[error("{kind} resource: sections {sections:?} of `{dim}` add up to {sum}, not to {size}")]
    Sections {
        /// The resource's kind.
        kind: Kind,
        /// The dimension's name.
        dim: String,
        /// The sections given.
        sections: Vec<u64>,
        /// Their sum.
        sum: u64,
        /// The dimension's size.
        size: u64,
    },
    /// A paged growth with stride or window 0.
    #[error("{kind} resource: {what} is 0; it must be at least 1 token")]
    ZeroGrowth {
        /// The resource's kind.
        kind: Kind,
        /// `stride` or `window`.
        what: &'static str,
    },
    /// A custom kind's name without a namespace.
    #[error("unknown kind `{0}`; a kind of a framework's own is named `namespace.name`")]
    KindName(String),
}

/// What an allocation outside a manager's pool depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationDims {
    /// Blocks of the paged pools.
    pub num_blocks: u64,
    /// Tokens in a block.
    pub tokens_per_block: u64,
    /// Sequence slots, padding included.
    pub num_slots: u64,
    /// The longest sequence in tokens.
    pub max_seq_len: u64,
    /// Candidate positions of a speculative step, the committed one included; 1 without speculation.
    pub draft_positions: u64,
}

impl ResourceHandler {
    /// A handler of any kind; the constructors of the known kinds call this.
    ///
    /// # Errors
    /// A zero dimension, a unit above [`MAX_UNIT_BYTES`], sections that do not add up, a zero window or stride.
    pub fn new(
        kind: Kind,
        growth: Growth,
        shape: Vec<Dim>,
        dtype: DType,
        layout: Option<KvLayout>,
    ) -> Result<Self, HandlerError> {
        if let Growth::Paged { stride, window } = growth {
            let zero = if stride == 0 { Some("stride") } else { (window == Some(0)).then_some("window") };
            if let Some(what) = zero {
                return Err(HandlerError::ZeroGrowth { kind, what });
            }
        }
        for dim in &shape {
            if dim.size == 0 {
                return Err(HandlerError::ZeroDim { kind, dim: dim.name.to_string() });
            }
            if let Split::Sections(sections) = &dim.split {
                let sum = sections.iter().fold(0u64, |sum, &section| sum.saturating_add(section));
                if sum != dim.size {
                    let (dim_name, size) = (dim.name.to_string(), dim.size);
                    return Err(HandlerError::Sections { kind, dim: dim_name, sections: sections.clone(), sum, size });
                }
            }
        }
        match shape_bytes(&shape, dtype) {
            Some(bytes) if bytes <= MAX_UNIT_BYTES => Ok(Self { kind, growth, shape, dtype, layout, recurrence: None }),
            _ => Err(HandlerError::TooLarge { kind, shape: describe(&shape), dtype }),
        }
    }

    /// What the resource is for.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// How it grows.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// The logical shape of one unit: per token, per sequence or whole, as [`ResourceHandler::growth`] says.
    pub fn shape(&self) -> &[Dim] {
        &self.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The order of heads and tokens in a block, for KV resources.
    pub fn layout(&self) -> Option<KvLayout> {
        self.layout
    }

    /// The size of the dimension called `name`.
    pub fn dim(&self, name: &str) -> Option<u64> {
        self.shape.iter().find(|dim| dim.name == name).map(|dim| dim.size)
    }

    /// Whether it lives in pages.
    pub fn is_paged(&self) -> bool {
        matches!(self.growth, Growth::Paged { .. })
    }

    /// Whether it has one fixed size per sequence slot.
    pub fn is_state(&self) -> bool {
        matches!(self.growth, Growth::PerSequence)
    }

    /// Whether it is needed only while speculation is on.
    pub fn is_speculative(&self) -> bool {
        matches!(self.growth, Growth::PerDraftPosition)
    }

    /// Bytes of one unit: one paged entry, one token of a slot, one sequence, one draft position, or the whole.
    pub fn unit_bytes(&self) -> u64 {
        // Every constructor checked that this is at most `MAX_UNIT_BYTES`.
        shape_bytes(&self.shape, self.dtype).unwrap_or(MAX_UNIT_BYTES)
    }

    /// Bytes that one more token costs, before any window stops the growth; `None` if the resource does not grow.
    ///
    /// For a stride above 1 this is the exact quotient as (numerator, denominator).
    pub fn bytes_per_token(&self) -> Option<(u64, u64)> {
        match self.growth {
            Growth::Paged { stride, .. } => Some((self.unit_bytes(), u64::from(stride))),
            Growth::PerSlotToken => Some((self.unit_bytes(), 1)),
            Growth::PerSequence | Growth::PerDraftPosition | Growth::Fixed => None,
        }
    }

    /// The logical tensor shape of an allocation that no pool shares.
    ///
    /// Paged: `(num_blocks, kv_factor, heads, tokens, head_dim)` in HND order and
    /// `(num_blocks, kv_factor, tokens, heads, head_dim)` in NHD order, `(num_blocks, tokens, …)` without a layout.
    pub fn allocation_shape(&self, dims: &AllocationDims) -> Vec<u64> {
        let unit = self.shape.iter().map(|dim| dim.size);
        match self.growth {
            Growth::Paged { .. } => {
                // The token axis stands after `kv_factor` (NHD) or after the heads (HND).
                let position = match self.layout {
                    None => 1,
                    Some(KvLayout::Nhd) => 2,
                    Some(KvLayout::Hnd) => 3,
                };
                let mut shape: Vec<u64> = std::iter::once(dims.num_blocks).chain(unit).collect();
                shape.insert(position.min(shape.len()), dims.tokens_per_block);
                shape
            }
            Growth::PerSlotToken => [dims.num_slots, dims.max_seq_len].into_iter().chain(unit).collect(),
            Growth::PerSequence => std::iter::once(dims.num_slots).chain(unit).collect(),
            Growth::PerDraftPosition => [dims.num_slots, dims.draft_positions].into_iter().chain(unit).collect(),
            Growth::Fixed => unit.collect(),
        }
    }
}

fn shape_bytes(shape: &[Dim], dtype: DType) -> Option<u64> {
    let (row, outer) = match shape.split_last() {
        Some((last, outer)) => (last.size, outer),
        None => (1, shape),
    };
    outer.iter().try_fold(dtype.row_bytes(row)?, |bytes, dim| bytes.checked_mul(dim.size))
}

fn describe(shape: &[Dim]) -> String {
    shape.iter().map(|dim| format!("{}={}", dim.name, dim.size)).collect::<Vec<_>>().join(", ")
}
