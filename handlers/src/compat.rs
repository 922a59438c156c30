//! When two resources may share a pool, and if not, why.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{DType, Growth, Kind, KvLayout, ResourceHandler, Split};

/// What resources must have in common to share a pool.
///
/// Kind (hence attention type), growth (hence window), every dimension but `num_kv_heads`, dtype and layout.
/// The number of KV heads may differ: a pool's blocks hold each layer's own heads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CompatKey {
    /// What the resource is for.
    pub kind: Kind,
    /// How it grows, window included.
    pub growth: Growth,
    /// Sizes of the dimensions that must agree.
    pub dims: Vec<u64>,
    /// Element type.
    pub dtype: DType,
    /// Memory order, for KV resources.
    pub layout: Option<KvLayout>,
}

/// Why two resources cannot share a pool: the first difference, in the order the fields are compared.
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
    /// The key of the pool that this resource belongs in.
    pub fn compat_key(&self) -> CompatKey {
        CompatKey {
            kind: self.kind.clone(),
            growth: self.growth,
            dims: self.shape.iter().filter(|dim| dim.split != Split::KvHeads).map(|dim| dim.size).collect(),
            dtype: self.dtype,
            layout: self.layout,
        }
    }

    /// Why this resource cannot share a pool with `reference`; `None` if it can.
    pub fn mismatch(&self, reference: &Self) -> Option<Mismatch> {
        if self.kind != reference.kind {
            return Some(Mismatch::Kind { reference: reference.kind.clone(), found: self.kind.clone() });
        }
        if self.growth != reference.growth {
            return Some(Mismatch::Growth { reference: reference.growth, found: self.growth });
        }
        if self.shape.len() != reference.shape.len() {
            return Some(Mismatch::Rank { reference: reference.shape.len(), found: self.shape.len() });
        }
        let differing = self
            .shape
            .iter()
            .zip(&reference.shape)
            .find(|(mine, theirs)| mine.split != Split::KvHeads && mine.size != theirs.size);
        if let Some((mine, theirs)) = differing {
            return Some(Mismatch::Dim { dim: mine.name.to_string(), reference: theirs.size, found: mine.size });
        }
        if self.dtype != reference.dtype {
            return Some(Mismatch::DType { reference: reference.dtype, found: self.dtype });
        }
        if self.layout != reference.layout {
            return Some(Mismatch::Layout { reference: reference.layout, found: self.layout });
        }
        None
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
