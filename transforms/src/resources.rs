//! What the passes collect: named resources in registration order, with where each came from.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use cacheplan_files::Shown;
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Resource>", into = "Vec<Resource>")]
pub struct Resources {
    list: Vec<Resource>,
    /// Position by name.
    index: HashMap<String, usize>,
}

impl PartialEq for Resources {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Eq for Resources {}

impl Hash for Resources {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.list.hash(state);
    }
}

impl From<Resources> for Vec<Resource> {
    fn from(resources: Resources) -> Self {
        resources.list
    }
}

impl TryFrom<Vec<Resource>> for Resources {
    type Error = ResourceError;

    fn try_from(list: Vec<Resource>) -> Result<Self, ResourceError> {
        let mut resources = Self::default();
        list.into_iter().try_for_each(|resource| resources.push(resource))?;
        Ok(resources)
    }
}

/// A resource that cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResourceError {
    /// Two resources of one name.
    #[error("resource `{shown}` is registered twice", shown = Shown(.0))]
    Duplicate(String),
}

impl Resources {
    /// Registers a resource after those already there.
    ///
    /// # Errors
    /// A name that is already taken.
    pub fn push(&mut self, resource: Resource) -> Result<(), ResourceError> {
        if self.index.contains_key(&resource.name) {
            return Err(ResourceError::Duplicate(resource.name));
        }
        self.index.insert(resource.name.clone(), self.list.len());
        self.list.push(resource);
        Ok(())
    }

    /// The position of the resource called `name`.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// The resource called `name`.
    pub fn get(&self, name: &str) -> Option<&Resource> {
        self.index.get(name).map(|&position| &self.list[position])
    }

    /// Notes that `layer` reads the resource called `name` without owning one.
    pub(crate) fn share(&mut self, name: &str, layer: u32) {
        if let Some(&position) = self.index.get(name) {
            self.list[position].shared_by.push(layer);
        }
    }

    /// All resources, in registration order.
    pub fn iter(&self) -> std::slice::Iter<'_, Resource> {
        self.list.iter()
    }

    /// The resources of one kind, in registration order.
    pub fn of_kind<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = &'a Resource> {
        self.list.iter().filter(move |resource| resource.handler.kind() == kind)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl<'a> IntoIterator for &'a Resources {
    type Item = &'a Resource;
    type IntoIter = std::slice::Iter<'a, Resource>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
