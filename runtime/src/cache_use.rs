//! The caches that a decoder keeps, held against those that are planned.

use std::fmt::{self, Display, Formatter};

use cacheplan_handlers::{Growth, Kind, ResourceHandler};
use cacheplan_transforms::{Resource, Resources};
use thiserror::Error;

/// A cache that a decoder keeps: what the plan must hold for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// The absolute layer.
    pub layer: u32,
    /// What it is.
    pub kind: Kind,
    /// Its dimensions, as the handler of that kind has them.
    pub shape: Vec<u64>,
    /// Tokens back that are read; `None` for all, or where nothing is kept per token.
    pub window: Option<u64>,
    /// Tokens for which there is one entry; 1 where nothing is kept per token.
    pub stride: u32,
}

impl CacheUse {
    pub(crate) fn new<const N: usize>(layer: u32, kind: Kind, shape: [usize; N]) -> Self {
        Self { layer, kind, shape: shape.map(|size| size as u64).to_vec(), window: None, stride: 1 }
    }

    /// That of a planned resource.
    fn of(resource: &Resource) -> Option<Self> {
        Self::of_handler(resource.layer?, &resource.handler)
    }

    /// That of a handler in a layer.
    pub(crate) fn of_handler(layer: u32, handler: &ResourceHandler) -> Option<Self> {
        let (stride, window) = match handler.growth() {
            Growth::Paged { stride, window } => (stride, window.map(u64::from)),
            _ => (1, None),
        };
        let shape = handler.shape().iter().map(|dim| dim.size).collect();
        Some(Self { layer, kind: handler.kind().clone(), shape, window, stride })
    }

    /// Checks that what is planned holds it: the same, or more tokens than are read.
    pub(crate) fn check(&self, resources: &Resources) -> Result<(), Box<Unplanned>> {
        // A layer may have several of a kind.
        let mut planned: Vec<Self> = resources.of_kind(&self.kind).filter_map(Self::of).collect();
        planned.retain(|planned| planned.layer == self.layer);
        let holds = planned.iter().any(|planned| {
            planned.shape == self.shape
                && planned.stride == self.stride
                && planned.window.is_none_or(|kept| self.window.is_some_and(|read| read <= kept))
        });
        if holds {
            Ok(())
        } else {
            Err(Box::new(Unplanned { needs: self.clone(), planned: planned.into_iter().next() }))
        }
    }
}

impl Display for CacheUse {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.shape)?;
        if self.stride > 1 {
            write!(f, " for every {} tokens", self.stride)?;
        }
        self.window.map_or(Ok(()), |window| write!(f, " of the last {window} tokens"))
    }
}

/// A cache that a decoder keeps and a plan does not have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("layer {} keeps {needs}, and planned is {}", needs.layer, planned.as_ref().map_or("none".to_owned(), ToString::to_string))]
pub struct Unplanned {
    /// What the decoder keeps.
    pub needs: CacheUse,
    /// What the plan has of that kind in that layer.
    pub planned: Option<CacheUse>,
}
