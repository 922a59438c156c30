//! What the passes collect: named resources in registration order, with where each came from.

use cacheplan_handlers::{Kind, ResourceHandler};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One collected resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resource {
    /// Unique name, `kv_cache_5`: the descriptor's suffix and the layer.
    pub name: String,
    /// The absolute layer that owns it; `None` for a whole-model resource.
    pub layer: Option<u32>,
    /// What it is.
    pub handler: ResourceHandler,
    /// The node it was derived from, `layers.5.attention`.
    pub node: String,
    /// How each of its dimensions came about, for `plan explain`: `num_kv_heads = 8 (tensor layers.5.key, axis 2)`.
    pub provenance: Vec<String>,
    /// Layers that read this resource without owning one of their own (shared KV).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_by: Vec<u32>,
}

/// All resources of one model, in registration order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources(Vec<Resource>);

/// A resource that cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResourceError {
    /// Two resources of one name.
    #[error("resource `{0}` is registered twice")]
    Duplicate(String),
}

impl Resources {
    /// Registers a resource after those already there.
    ///
    /// # Errors
    /// A name that is already taken.
    pub fn push(&mut self, resource: Resource) -> Result<(), ResourceError> {
        if self.get(&resource.name).is_some() {
            return Err(ResourceError::Duplicate(resource.name));
        }
        self.0.push(resource);
        Ok(())
    }

    /// The resource called `name`.
    pub fn get(&self, name: &str) -> Option<&Resource> {
        self.0.iter().find(|resource| resource.name == name)
    }

    /// All resources, in registration order.
    pub fn iter(&self) -> std::slice::Iter<'_, Resource> {
        self.0.iter()
    }

    /// The resources of one kind, in registration order.
    pub fn of_kind<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = &'a Resource> {
        self.0.iter().filter(move |resource| resource.handler.kind() == kind)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a Resources {
    type Item = &'a Resource;
    type IntoIter = std::slice::Iter<'a, Resource>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
