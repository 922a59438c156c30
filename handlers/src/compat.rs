//! When two resources may share a pool, and if not, why.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{DType, Dim, Growth, Kind, KvLayout, ResourceHandler, Split};

/// What resources must have in common to share a pool.
///
/// Kind (hence attention type), growth (hence window), every dimension but `num_kv_heads`, dtype and layout.
/// The number of KV heads may differ: a pool's blocks hold each layer's own heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompatKey<'a> {
    /// What the resource is for.
    pub kind: &'a Kind,
    /// How it grows; a window that no sequence outgrows is none.
    pub growth: Growth,
    dims: Alike<'a>,
    /// Element type.
    pub dtype: DType,
    /// Memory order, for KV resources.
    pub layout: Option<KvLayout>,
}

/// Dimensions, compared by the sizes that must agree; borrowed, because there is a key for each resource.
#[derive(Clone, Copy, Debug)]
struct Alike<'a>(&'a [Dim]);

impl Alike<'_> {
    /// The size of each dimension; `None` for one that may differ.
    fn sizes(&self) -> impl Iterator<Item = Option<u64>> {
        self.0.iter().map(|dim| (dim.split != Split::KvHeads).then_some(dim.size))
    }
}

impl PartialEq for Alike<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.sizes().eq(other.sizes())
    }
}

impl Eq for Alike<'_> {}

impl Hash for Alike<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sizes().flatten().for_each(|size| size.hash(state));
    }
}

/// One thing in which two keys differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "snake_case")]
pub enum Mismatch {
    /// Different kinds.
    #[error("kind {found} differs from {reference}")]
    Kind {
        /// The reference's kind.
        reference: Kind,
        /// This resource's kind.
        found: Kind,
    },
    /// Different windows, strides or units.
    #[error("{} differs from {}", growth_text(*found), growth_text(*reference))]
    Growth {
        /// The reference's growth.
        reference: Growth,
        /// This resource's growth.
        found: Growth,
    },
    /// A dimension of another size.
    #[error("{dim} {found} differs from {reference}")]
    Dim {
        /// The dimension's name.
        dim: String,
        /// The reference's size.
        reference: u64,
        /// This resource's size.
        found: u64,
    },
    /// Another number of dimensions.
    #[error("{found} dimensions differ from {reference}")]
    Rank {
        /// The reference's number of dimensions.
        reference: usize,
        /// This resource's number of dimensions.
        found: usize,
    },
    /// A dimension that must agree in one of them only.
    #[error("{dim} is divided over ranks in another way")]
    Split {
        /// The dimension's name.
        dim: String,
    },
    /// Different dtypes.
    #[error("dtype {found} differs from {reference}")]
    DType {
        /// The reference's dtype.
        reference: DType,
        /// This resource's dtype.
        found: DType,
    },
    /// Different memory orders.
    #[error("layout {} differs from {}", layout_text(*found), layout_text(*reference))]
    Layout {
        /// The reference's layout.
        reference: Option<KvLayout>,
        /// This resource's layout.
        found: Option<KvLayout>,
    },
}

impl ResourceHandler {
    /// The key of the pool that this resource belongs in, where no sequence is longer than `max_seq_len` tokens.
    pub fn compat_key(&self, max_seq_len: u64) -> CompatKey<'_> {
        CompatKey {
            kind: &self.kind,
            growth: self.growth.within(max_seq_len),
            dims: Alike(&self.shape),
            dtype: self.dtype,
            layout: self.layout,
        }
    }
}

impl<'a> CompatKey<'a> {
    /// The dimensions that must agree.
    pub fn dims(&self) -> impl Iterator<Item = &'a Dim> {
        self.dims.0.iter().filter(|dim| dim.split != Split::KvHeads)
    }

    /// Everything in which this key differs from `reference`; nothing exactly where they are equal.
    ///
    /// A policy whose rule is looser than the key looks at some of it only.
    pub fn mismatches(&self, reference: &Self) -> impl Iterator<Item = Mismatch> {
        let (mine, theirs) = (*self, *reference);
        let kind = (mine.kind != theirs.kind)
            .then(|| Mismatch::Kind { reference: theirs.kind.clone(), found: mine.kind.clone() });
        let growth =
            (mine.growth != theirs.growth).then_some(Mismatch::Growth { reference: theirs.growth, found: mine.growth });
        let ranks = (theirs.dims.0.len(), mine.dims.0.len());
        let rank = (ranks.0 != ranks.1).then_some(Mismatch::Rank { reference: ranks.0, found: ranks.1 });
        let dims = mine.dims.0.iter().zip(theirs.dims.0).filter_map(|(mine, theirs)| {
            let dim = || mine.name.to_string();
            match [mine, theirs].map(|dim| dim.split == Split::KvHeads) {
                [false, false] if mine.size != theirs.size => {
                    Some(Mismatch::Dim { dim: dim(), reference: theirs.size, found: mine.size })
                }
                [true, false] | [false, true] => Some(Mismatch::Split { dim: dim() }),
                _ => None,
            }
        });
        let dtype =
            (mine.dtype != theirs.dtype).then_some(Mismatch::DType { reference: theirs.dtype, found: mine.dtype });
        let layout =
            (mine.layout != theirs.layout).then_some(Mismatch::Layout { reference: theirs.layout, found: mine.layout });
        kind.into_iter().chain(growth).chain(rank).chain(dims).chain(dtype).chain(layout)
    }
}

fn growth_text(growth: Growth) -> String {
    match growth {
        Growth::Paged { stride: 1, window: None } => "full attention".into(),
        Growth::Paged { stride: 1, window: Some(window) } => format!("window {window}"),
        Growth::Paged { stride, window: None } => format!("one entry per {stride} tokens"),
        Growth::Paged { stride, window: Some(window) } => format!("one entry per {stride} tokens, window {window}"),
        Growth::PerSlotToken => "unpaged per-token growth".into(),
        Growth::PerSequence => "per-sequence growth".into(),
        Growth::PerDraftPosition => "growth per draft position".into(),
        Growth::Fixed => "fixed size".into(),
    }
}

fn layout_text(layout: Option<KvLayout>) -> &'static str {
    layout.map_or("none", KvLayout::name)
}
