//! From resources and a budget to a [`CachePlan`]: pure, no device, no IO.
#![forbid(unsafe_code)]

mod plan;

pub use plan::{
    CachePlan, Capacity, Fingerprint, LedgerLine, Limits, ManagerKind, Member, Owner, PlannedResource, Policy, Pool,
    SCHEMA_VERSION, SlotDomain, Source, Totals, Unit,
};
