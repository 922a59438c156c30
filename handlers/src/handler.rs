//! The handler itself: kind, growth, shape, dtype, layout.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{DType, Recurrence, Ring, UnknownDType};

/// The most bytes that one unit (token, sequence or fixed tensor) of a resource may take: 1 TiB.
///
/// It keeps every later product of units and bytes inside 128 bits, and turns an absurd dimension into an error here.
const MAX_UNIT_BYTES: u64 = 1 << 40;

/// Declares the kinds with their names in plans: each is stated once, here.
macro_rules! kinds {
    ($(#[doc = $doc:literal] $kind:ident = $name:literal,)*) => {
        /// Names what a resource is for. Only resources of one kind can share a pool.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub enum Kind {
            $(#[doc = $doc] $kind,)*
            /// A kind of a framework's own, named `namespace.name`.
            Custom(String),
        }

        impl Kind {
            /// The name used in plans: `kv_paged`, `ssm`, …, or the framework's own.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$kind => $name,)*
                    Self::Custom(name) => name,
                }
            }

            /// What it is, in one sentence; `None` of a framework's own.
            pub fn about(&self) -> Option<&'static str> {
                match self {
                    $(Self::$kind => Some($doc.trim_ascii()),)*
                    Self::Custom(_) => None,
                }
            }

            fn known(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Keys and values of attention, in pages.
    KvPaged = "kv_paged",
    /// The compressed latent and rope key of multi-head latent attention, in pages.
    MlaPaged = "mla_paged",
    /// The rope key of multi-head latent attention, where it is kept apart from the latent, in pages.
    MlaRope = "mla_rope",
    /// The recurrent state of a Mamba, delta-net or linear-attention layer.
    Ssm = "ssm",
    /// The last columns of a causal convolution's input.
    CausalConv = "causal_conv",
    /// Any other state with one fixed size per sequence.
    State = "state",
    /// Per-token data that is not paged: every sequence slot holds `max_seq_len` of it.
    Unpaged = "unpaged",
    /// The keys that an indexer of sparse attention chooses tokens by, in pages.
    IndexKey = "core.index_key",
    /// The latents of compressed attention, one for several tokens, in pages.
    CompressedLatent = "core.compressed_latent",
    /// The last rows of what an entry is formed of, in a ring.
    Ring = "core.ring",
    /// Recurrent states at each candidate position of a speculative step.
    IntermediateSsm = "intermediate_ssm",
    /// Convolution states at each candidate position of a speculative step.
    IntermediateCausalConv = "intermediate_causal_conv",
    /// Other states at each candidate position of a speculative step.
    IntermediateState = "intermediate_state",
}

/// The names of kinds that hold what one candidate feeds into a recurrence begin so.
pub(crate) const REPLAY: &str = "replay.";

impl Kind {
    /// Tells whether attention reads it: keys and values, latents and their rope keys.
    pub const fn is_kv(&self) -> bool {
        matches!(self, Self::KvPaged | Self::MlaPaged | Self::MlaRope)
    }

    /// Tells whether it holds what candidates of a speculative step feed into a recurrence, to be stepped over again.
    pub fn is_replay(&self) -> bool {
        matches!(self, Self::Custom(name) if name.starts_with(REPLAY))
    }

    /// The names of its dimensions, outermost first; `None` for a kind whose shape is the resource's own.
    const fn dims(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::KvPaged | Self::MlaPaged | Self::MlaRope => Some(&["kv_factor", "num_kv_heads", "head_dim"]),
            Self::Ssm | Self::IntermediateSsm => Some(&["num_heads", "head_dim", "d_state"]),
            Self::CausalConv | Self::IntermediateCausalConv => Some(&["conv_dim", OWN_COLUMNS]),
            Self::IndexKey | Self::CompressedLatent => Some(&["head_dim"]),
            Self::Ring => Some(&["rows", "width"]),
            Self::State | Self::Unpaged | Self::IntermediateState | Self::Custom(_) => None,
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
        if let Some(kind) = Self::known(&name) {
            return Ok(kind);
        }
        match name.split_once('.') {
            Some((namespace, rest)) if !namespace.is_empty() && !rest.is_empty() => Ok(Self::Custom(name)),
            _ => Err(HandlerError::KindName(name)),
        }
    }
}

/// The dimensions of a kind whose shape is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Keys and values, or the latent of MLA, of one token.
    Kv {
        /// 2 for keys and values apart, 1 for one tensor.
        kv_factor: u64,
        /// Heads of keys and values.
        num_kv_heads: u64,
        /// Elements of a head.
        head_dim: u64,
    },
    /// A recurrent state.
    Ssm {
        /// Heads.
        num_heads: u64,
        /// Rows of a head's state.
        head_dim: u64,
        /// Columns of a head's state.
        d_state: u64,
    },
    /// A convolution's state.
    CausalConv {
        /// Channels.
        conv_dim: u64,
        /// Columns: `d_conv - 1`, and those of candidates.
        columns: u64,
    },
    /// One vector: an index key or a compressed latent.
    Vector {
        /// Its elements.
        head_dim: u64,
    },
}

/// The columns of a convolution's state, alone or with those of candidates behind them.
pub(crate) const OWN_COLUMNS: &str = "d_conv - 1";
pub(crate) const WITH_CANDIDATES: &str = "d_conv - 1 + candidates";

/// Tells how a resource grows, hence what its unit is.
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

impl Growth {
    /// Tells whether sequences of at most `max_seq_len` tokens outgrow a window; one that never binds is full attention.
    pub const fn window_binds(window: u64, max_seq_len: u64) -> bool {
        window < max_seq_len
    }

    /// The growth as sequences of at most `max_seq_len` tokens see it, without a window that never binds.
    #[must_use]
    pub const fn within(self, max_seq_len: u64) -> Self {
        match self {
            Self::Paged { stride, window: Some(window) } if !Self::window_binds(window as u64, max_seq_len) => {
                Self::Paged { stride, window: None }
            }
            other => other,
        }
    }
}

/// Tells how ranks of a tensor-parallel group divide a dimension.
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
    /// The channels of so many KV heads, which go with their heads: divided, or replicated.
    KvChannels(u64),
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
        if let Some(Recurrence::Ring(ring)) = raw.recurrence {
            refuse_empty(ring)?;
        }
        Ok(Self { recurrence: raw.recurrence, ..handler })
    }
}

/// A ring has rows, in units of some.
pub(crate) fn refuse_empty(ring: Ring) -> Result<(), HandlerError> {
    ring.zero().map_or(Ok(()), |dim| Err(HandlerError::ZeroDim { kind: Kind::Ring, dim: dim.into() }))
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
    /// One unit is larger than 1 TiB.
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
    /// Channels that are no whole number for each KV head.
    #[error("{kind} resource: the {size} channels of `{dim}` are not those of {heads} heads")]
    Channels {
        /// The resource's kind.
        kind: Kind,
        /// The dimension's name.
        dim: String,
        /// The heads given.
        heads: u64,
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
    /// Dimensions that a kind does not have.
    #[error("{kind} resource: its dimensions are [{found}]; they must be [{expected}]")]
    Dims {
        /// The resource's kind.
        kind: Kind,
        /// `name=size` of every dimension.
        found: String,
        /// The names that they must have.
        expected: String,
    },
    /// A custom kind's name without a namespace.
    #[error("unknown kind `{0}`; a kind of a framework's own is named `namespace.name`")]
    KindName(String),
    /// A dtype name that is not known.
    #[error(transparent)]
    UnknownDType(#[from] UnknownDType),
}

impl ResourceHandler {
    /// A handler of any kind; the constructors of the known kinds call this.
    ///
    /// # Errors
    /// Dimensions that the kind does not have, a zero dimension, a unit above 1 TiB, sections that do not add up, a zero
    /// window or stride.
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
        if let Some(expected) = kind.dims().filter(|expected| !named(&shape, expected)) {
            return Err(HandlerError::Dims { kind, found: describe(&shape), expected: expected.join(", ") });
        }
        for dim in &shape {
            if dim.size == 0 {
                return Err(HandlerError::ZeroDim { kind, dim: dim.name.to_string() });
            }
            if let Split::KvChannels(heads) = dim.split
                && (heads == 0 || !dim.size.is_multiple_of(heads))
            {
                return Err(HandlerError::Channels { kind, dim: dim.name.to_string(), heads, size: dim.size });
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

    /// Returns what the resource is for.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Returns how the resource grows.
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

    /// The same shape by what each dimension is; `None` for a kind whose shape is the resource's own.
    pub fn known_shape(&self) -> Option<Shape> {
        let size = |axis: usize| self.shape.get(axis).map(|dim| dim.size);
        Some(match self.kind {
            Kind::KvPaged | Kind::MlaPaged | Kind::MlaRope => {
                Shape::Kv { kv_factor: size(0)?, num_kv_heads: size(1)?, head_dim: size(2)? }
            }
            Kind::Ssm | Kind::IntermediateSsm => {
                Shape::Ssm { num_heads: size(0)?, head_dim: size(1)?, d_state: size(2)? }
            }
            Kind::CausalConv | Kind::IntermediateCausalConv => {
                Shape::CausalConv { conv_dim: size(0)?, columns: size(1)? }
            }
            Kind::IndexKey | Kind::CompressedLatent => Shape::Vector { head_dim: size(0)? },
            Kind::Ring | Kind::State | Kind::Unpaged | Kind::IntermediateState | Kind::Custom(_) => return None,
        })
    }

    /// The size of the dimension called `name`; `None` if it has none of that name.
    pub fn dim(&self, name: &str) -> Option<u64> {
        self.shape.iter().find(|dim| dim.name == name).map(|dim| dim.size)
    }

    /// Tells whether it lives in pages.
    pub fn is_paged(&self) -> bool {
        matches!(self.growth, Growth::Paged { .. })
    }

    /// Tells whether it has one fixed size per sequence slot.
    pub fn is_state(&self) -> bool {
        matches!(self.growth, Growth::PerSequence)
    }

    /// Tells whether it is needed only while speculation is on.
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
    /// Unpaged: `(slots, tokens, …)`, or `(slots, heads, tokens, head_dim)` in HND order.
    ///
    /// `units` are blocks of paged growth and slots of every other; `rows` the tokens in a block, the tokens of the
    /// longest sequence or the candidate positions of a step, whichever a unit grows with.
    pub fn allocation_shape(&self, units: u64, rows: u64) -> Vec<u64> {
        let unit = self.shape.iter().map(|dim| dim.size);
        match self.growth {
            Growth::Paged { .. } => {
                // The token axis stands after `kv_factor` (NHD) or after the heads (HND).
                let position = match self.layout {
                    None => 1,
                    Some(KvLayout::Nhd) => 2,
                    Some(KvLayout::Hnd) => 3,
                };
                let mut shape: Vec<u64> = std::iter::once(units).chain(unit).collect();
                shape.insert(position.min(shape.len()), rows);
                shape
            }
            Growth::PerSlotToken if self.layout == Some(KvLayout::Hnd) => {
                let mut shape: Vec<u64> = std::iter::once(units).chain(unit).collect();
                shape.insert(2.min(shape.len()), rows);
                shape
            }
            Growth::PerSlotToken | Growth::PerDraftPosition => [units, rows].into_iter().chain(unit).collect(),
            Growth::PerSequence => std::iter::once(units).chain(unit).collect(),
            Growth::Fixed => unit.collect(),
        }
    }
}

/// Whether the dimensions have these names; a convolution's last may have columns of candidates behind its own.
fn named(shape: &[Dim], expected: &[&str]) -> bool {
    let is = |dim: &Dim, name: &&str| dim.name == *name || (*name == OWN_COLUMNS && dim.name == WITH_CANDIDATES);
    shape.len() == expected.len() && shape.iter().zip(expected).all(|(dim, name)| is(dim, name))
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
