//! Which resources share a pool, who owns it, and why.

mod by_key;
mod by_window;
mod first_reference;

use cacheplan_handlers::{CompatKey, DType, Growth, Kind};
use cacheplan_transforms::{Resource, Resources};

use crate::error::PlanError;
use crate::plan::{Grouping, Owner};

/// Resources that share one allocation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group<'a> {
    pub(crate) owner: Owner,
    pub(crate) kind: &'a Kind,
    /// The members' growth, with a window that never binds taken away.
    pub(crate) growth: Growth,
    pub(crate) dtype: DType,
    /// Members in registration order.
    pub(crate) members: Vec<&'a Resource>,
    /// Why the members have this owner, in one sentence.
    pub(crate) reason: String,
}

impl<'a> Group<'a> {
    /// A group that will hold the resources of a key.
    fn empty(owner: Owner, key: CompatKey<'a>, reason: String) -> Self {
        Self { owner, kind: key.kind, growth: key.growth, dtype: key.dtype, members: Vec::new(), reason }
    }

    /// A resource that nobody manages, allocated by itself.
    fn local(resource: &'a Resource, growth: Growth, reason: String) -> Self {
        let (kind, dtype) = (resource.handler.kind(), resource.handler.dtype());
        Self { owner: Owner::Local, kind, growth, dtype, members: vec![resource], reason }
    }
}

/// Groups all resources; every resource is a member of exactly one group.
pub(crate) fn group(policy: Grouping, resources: &Resources, max_seq_len: u64) -> Result<Vec<Group<'_>>, PlanError> {
    match policy {
        Grouping::FirstReference => Ok(first_reference::group(resources, max_seq_len)),
        Grouping::ByWindow => by_window::group(resources, max_seq_len),
        Grouping::ByKey => Ok(by_key::group(resources, max_seq_len)),
    }
}

/// The manager that owns resources of this growth once they share a pool; `None` if none can.
fn manager_of(growth: Growth) -> Option<Owner> {
    match growth {
        Growth::Paged { .. } => Some(Owner::KvCacheManager),
        Growth::PerSequence | Growth::PerDraftPosition => Some(Owner::MambaCacheManager),
        Growth::PerSlotToken | Growth::Fixed => None,
    }
}

fn unmanaged_reason(growth: Growth) -> &'static str {
    match growth {
        Growth::PerSlotToken => "per-token data that is not paged; every slot holds max_seq_len of it",
        _ => "one tensor for the whole model; nothing to share out",
    }
}
