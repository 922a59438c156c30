//! Every resource is a member of one pool that can own it, and a pool is what its members make of it.

use std::collections::HashMap;

use cacheplan_handlers::{DType, Growth, Kind, Split};

use super::facts::Facts;
use super::shapes::{alignment, unit_bytes};
use super::{Findings, Rule};
use crate::plan::{CachePlan, Grouping, Owner, PlannedResource, Pool, Unit};

pub(super) fn check(facts: &Facts<'_>, plan: &CachePlan, findings: &mut Findings) {
    let by_name: HashMap<&str, &PlannedResource> =
        plan.resources.iter().map(|resource| (resource.name.as_str(), resource)).collect();
    let mut pools_of: HashMap<&str, Vec<&Pool>> = HashMap::new();
    let mut ids: HashMap<&str, usize> = HashMap::new();
    let mut sums = (0u128, 0u128);
    for pool in &plan.pools {
        *ids.entry(&pool.id).or_default() += 1;
        let bytes = u128::from(pool.unit_bytes) * u128::from(pool.units);
        findings.expect(Rule::Size, place(pool, "bytes"), pool.bytes.into(), bytes);
        let sum = if pool.owner.is_managed() { &mut sums.0 } else { &mut sums.1 };
        *sum += bytes;
        if let Some(origin) = &pool.checkpoints_of {
            checkpoints(plan, pool, origin, &by_name, findings);
            continue;
        }
        for member in &pool.members {
            pools_of.entry(&member.resource).or_default().push(pool);
        }
        let members: Vec<&PlannedResource> =
            pool.members.iter().filter_map(|member| by_name.get(member.resource.as_str()).copied()).collect();
        if members.len() != pool.members.len() || members.is_empty() {
            findings.add(Rule::Membership, place(pool, "members"), "empty or unknown", "resources of the model");
            continue;
        }
        compatible(&members, plan, pool, findings);
        owner(&members, plan.policy, pool, findings);
        layout(facts, &members, plan, pool, findings);
    }
    let stored: Vec<&str> = plan.pools.iter().filter_map(|pool| pool.checkpoints_of.as_deref()).collect();
    let held = plan.pools.iter().filter(|pool| pool.checkpoints_of.is_none());
    let held = held.filter(|pool| facts.apart && pool.unit == Unit::Slot && facts.is_parked(pool));
    let held: Vec<&str> = held.map(|pool| pool.id.as_str()).collect();
    findings.expect(Rule::Limits, "pools with checkpoints apart", stored, held);
    for (id, _) in ids.into_iter().filter(|(_, count)| *count > 1) {
        findings.add(Rule::Membership, format!("pools[{id}]"), "there twice", "a name of its own");
    }
    for planned in &plan.resources {
        let at = format!("resources[{}]", planned.name);
        match pools_of.get(planned.name.as_str()).map(Vec::as_slice) {
            Some([pool]) => {
                findings.expect(Rule::Membership, format!("{at}.pool"), &planned.pool, &pool.id);
                findings.expect(Rule::Owner, format!("{at}.owner"), planned.owner, pool.owner);
            }
            pools => {
                let count = pools.map_or(0, <[_]>::len);
                findings.add(Rule::Membership, at, format!("a member of {count} pools"), "a member of one");
            }
        }
    }
    findings.expect(Rule::Size, "totals.managed_bytes", plan.totals.managed_bytes.into(), sums.0);
    findings.expect(Rule::Size, "totals.unmanaged_bytes", plan.totals.unmanaged_bytes.into(), sums.1);
}

/// A pool of checkpoints has the members of the pool they are of, recurrent states in 8 bits where that is smaller.
fn checkpoints(
    plan: &CachePlan,
    pool: &Pool,
    origin: &str,
    by_name: &HashMap<&str, &PlannedResource>,
    findings: &mut Findings,
) {
    let origins = plan.pools.iter().find(|other| other.id == origin && other.checkpoints_of.is_none());
    let Some(origin) = origins else {
        findings.add(Rule::Membership, place(pool, "checkpoints_of"), origin, "a pool of slots");
        return;
    };
    let names = |pool: &Pool| pool.members.iter().map(|member| member.resource.clone()).collect::<Vec<_>>();
    findings.expect(Rule::Membership, place(pool, "members"), names(pool), names(origin));
    let same = |pool: &Pool| (pool.owner, pool.unit, pool.tokens_per_block, pool.window, pool.layers.clone());
    findings.expect(Rule::Compatibility, place(pool, "owner"), same(pool), same(origin));
    findings.expect(Rule::Limits, place(pool, "reserved"), pool.reserved, 0);
    findings.expect(Rule::Membership, place(pool, "id"), &pool.id, &format!("checkpoint.{}", origin.id));
    let (mut end, mut dtype) = (0u128, origin.dtype);
    for (member, whole) in pool.members.iter().zip(&origin.members) {
        let state = by_name.get(member.resource.as_str()).filter(|resource| *resource.handler.kind() == Kind::Ssm);
        let sizes = state.map(|resource| resource.handler.shape().iter().map(|dim| u128::from(dim.size)));
        let bytes = match sizes.map(Iterator::collect::<Vec<_>>).as_deref() {
            Some([heads, rows, channels]) if heads * channels * (rows + 4) < u128::from(whole.bytes) => {
                dtype = DType::Int8;
                heads * channels * (rows + 4)
            }
            _ => whole.bytes.into(),
        };
        let at = |key: &str| place(pool, &format!("members[{}].{key}", member.resource));
        findings.expect(Rule::Layout, at("offset"), member.offset.into(), end);
        findings.expect(Rule::Layout, at("bytes"), member.bytes.into(), bytes);
        end += bytes;
    }
    findings.expect(Rule::Size, place(pool, "unit_bytes"), pool.unit_bytes.into(), end);
    findings.expect(Rule::Compatibility, place(pool, "dtype"), pool.dtype, dtype);
}

fn place(pool: &Pool, key: &str) -> String {
    format!("pools[{}].{key}", pool.id)
}

/// The growth as the pool sees it: `first-reference` knows no windows, and one that never binds is none.
pub(super) fn growth_in(plan: &CachePlan, resource: &PlannedResource) -> Growth {
    let kv = matches!(resource.handler.kind(), Kind::KvPaged | Kind::MlaPaged | Kind::MlaRope);
    match resource.handler.growth() {
        Growth::Paged { stride, window: Some(window) }
            if u64::from(window) >= plan.limits.max_seq_len || (kv && plan.policy == Grouping::FirstReference) =>
        {
            Growth::Paged { stride, window: None }
        }
        other => other,
    }
}

fn compatible(members: &[&PlannedResource], plan: &CachePlan, pool: &Pool, findings: &mut Findings) {
    let class = |resource: &PlannedResource| {
        let handler = &resource.handler;
        let dims = handler.shape().iter().filter(|dim| dim.split != Split::KvHeads);
        let sizes: Vec<u64> = dims.map(|dim| dim.size).collect();
        (handler.dtype(), handler.layout(), growth_in(plan, resource), sizes)
    };
    let reference = class(members[0]);
    findings.expect(Rule::Compatibility, place(pool, "dtype"), pool.dtype, reference.0);
    for member in &members[1..] {
        findings.expect(Rule::Compatibility, place(pool, &member.name), class(member), reference.clone());
    }
}

fn owner(members: &[&PlannedResource], policy: Grouping, pool: &Pool, findings: &mut Findings) {
    let growth = members[0].handler.growth();
    let manager = match growth {
        Growth::Paged { .. } => Some(Owner::KvCacheManager),
        Growth::PerSequence | Growth::PerDraftPosition => Some(Owner::MambaCacheManager),
        Growth::PerSlotToken | Growth::Fixed => None,
    };
    let unit = match growth {
        Growth::Paged { .. } => Unit::Block,
        Growth::Fixed => Unit::Fixed,
        _ => Unit::Slot,
    };
    findings.expect(Rule::Owner, place(pool, "unit"), pool.unit, unit);
    let able = if policy == Grouping::ByKey { pool.owner == manager.unwrap_or(Owner::Local) } else { true };
    if !able || (pool.owner != Owner::Local && Some(pool.owner) != manager) {
        let expected = format!("{:?}", manager.unwrap_or(Owner::Local));
        findings.add(Rule::Owner, place(pool, "owner"), format!("{:?}", pool.owner), expected);
    }
    let shares = policy == Grouping::ByKey && growth == Growth::PerSlotToken;
    match members {
        [alone] if pool.owner == Owner::Local => {
            findings.expect(Rule::Owner, place(pool, "id"), &pool.id, &alone.name);
        }
        // The tokens of slots lie together where they are alike.
        [_, ..] if pool.owner == Owner::Local && !shares => {
            findings.add(Rule::Owner, place(pool, "members"), "a shared local pool", "one resource, by its name");
        }
        _ => {}
    }
}

fn layout(facts: &Facts<'_>, members: &[&PlannedResource], plan: &CachePlan, pool: &Pool, findings: &mut Findings) {
    let growth = growth_in(plan, members[0]);
    let (tokens, window, entries, reserved) = match growth {
        Growth::Paged { stride, window } => {
            // Whole entries: the budget's block, rounded up to one.
            let entries = facts.tokens_per_block.div_ceil(stride.into());
            (Some(entries.saturating_mul(stride.into())), window, entries, 1)
        }
        Growth::PerSlotToken => (None, None, plan.limits.max_seq_len, 1),
        Growth::PerSequence => (None, None, 1, 1),
        Growth::PerDraftPosition => (None, None, plan.limits.draft_positions, 1),
        Growth::Fixed => (None, None, 1, 0),
    };
    findings.expect(Rule::Layout, place(pool, "tokens_per_block"), pool.tokens_per_block, tokens);
    findings.expect(Rule::Layout, place(pool, "window"), pool.window, window);
    findings.expect(Rule::Limits, place(pool, "reserved"), pool.reserved, reserved);
    let mut layers: Vec<u32> = members.iter().filter_map(|member| member.layer).collect();
    layers.sort_unstable();
    layers.dedup();
    findings.expect(Rule::Coverage, place(pool, "layers"), &pool.layers, &layers);
    let mut end = 0u128;
    for (resource, member) in members.iter().zip(&pool.members) {
        let at = |key: &str| place(pool, &format!("members[{}].{key}", member.resource));
        let bytes = unit_bytes(&resource.handler) * u128::from(entries);
        findings.expect(Rule::Layout, at("offset"), member.offset.into(), end);
        findings.expect(Rule::Layout, at("bytes"), member.bytes.into(), bytes);
        if !u128::from(member.offset).is_multiple_of(alignment(resource.handler.dtype())) {
            findings.add(Rule::Layout, at("offset"), member.offset.to_string(), "a whole number of elements");
        }
        end += bytes;
    }
    findings.expect(Rule::Size, place(pool, "unit_bytes"), pool.unit_bytes.into(), end);
}
