//! What changed between two plans: bytes, owners, pools, limits and capacity.

use std::collections::HashMap;
use std::fmt::{self, Display};

use serde::Serialize;

use crate::plan::{CachePlan, PlannedResource, Pool};
use crate::render::{align, owner_name, ranges, wrap};
use crate::size::ByteSize;

/// The differences between two plans; empty where they allocate and admit the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlanDiff {
    /// Each number or name that differs, in the order of the plan's own keys.
    pub changes: Vec<Change>,
}

/// One number or name that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The part of the plan: `limits`, `resources`, `pools`, ….
    pub section: &'static str,
    /// The resource, pool or ledger line; empty where the section has one of each key.
    pub name: String,
    /// The key within it: `owner`, `units`, ….
    pub key: &'static str,
    /// The layer, for a resource of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<u32>,
    /// What the first plan says; absent where it has no such thing.
    pub before: Option<Side>,
    /// What the second plan says.
    pub after: Option<Side>,
}

/// A side of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Side {
    /// A number of bytes, told apart so that tables can print it in GiB.
    Bytes(u64),
    /// Any other number.
    Count(u64),
    /// A name.
    Name(String),
}

impl Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) if *bytes < 1024 => write!(f, "{bytes} B"),
            Self::Bytes(bytes) => write!(f, "{bytes} ({})", ByteSize(*bytes)),
            Self::Count(count) => write!(f, "{count}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl CachePlan {
    /// What changed from this plan to `after`.
    pub fn diff(&self, after: &Self) -> PlanDiff {
        let mut changes = Vec::new();
        for (section, facts) in SECTIONS {
            changes.extend(compare(section, &facts(self), &facts(after)));
        }
        PlanDiff { changes }
    }
}

impl PlanDiff {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes as a text table, at most 100 columns wide; resources that change alike share a line.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut rest = self.changes.as_slice();
        while let [first, ..] = rest {
            let length = rest.iter().take_while(|change| change.section == first.section).count();
            let (section, others) = rest.split_at(length);
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("{}\n", first.section.to_uppercase()));
            text.push_str(&table(section));
            rest = others;
        }
        text
    }
}

/// One comparable value of a plan.
struct Fact<'a> {
    name: &'a str,
    key: &'static str,
    layer: Option<u32>,
    value: Side,
}

type Facts = fn(&CachePlan) -> Vec<Fact<'_>>;

const SECTIONS: [(&str, Facts); 8] = [
    ("plan", plan_facts),
    ("limits", limit_facts),
    ("resources", |plan| plan.resources.iter().flat_map(resource_facts).collect()),
    ("pools", |plan| plan.pools.iter().filter(|pool| pool.owner.is_managed()).flat_map(pool_facts).collect()),
    ("capacity", capacity_facts),
    ("totals", total_facts),
    ("ledger", |plan| {
        plan.ledger.iter().map(|line| named(line.name.name(), "bytes", Side::Bytes(line.bytes))).collect()
    }),
    ("host", host_facts),
];

fn fact(key: &'static str, value: Side) -> Fact<'static> {
    Fact { name: "", key, layer: None, value }
}

fn named<'a>(name: &'a str, key: &'static str, value: Side) -> Fact<'a> {
    Fact { name, key, layer: None, value }
}

fn plan_facts(plan: &CachePlan) -> Vec<Fact<'_>> {
    let manager = match plan.manager {
        crate::plan::ManagerKind::KvCacheManager => "kv_cache_manager",
        crate::plan::ManagerKind::MambaHybridCacheManager => "mamba_hybrid_cache_manager",
    };
    let rollback = plan.rollback.map(|scheme| fact("rollback", Side::Name(scheme.name().into())));
    let facts = [
        fact("model", Side::Name(plan.model.title())),
        fact("policy", Side::Name(plan.policy.to_string())),
        fact("manager", Side::Name(manager.into())),
    ];
    facts.into_iter().chain(rollback).collect()
}

fn limit_facts(plan: &CachePlan) -> Vec<Fact<'_>> {
    let (limits, slots) = (&plan.limits, plan.slots);
    vec![
        fact("max_seq_len", Side::Count(limits.max_seq_len)),
        fact("max_batch_size", Side::Count(limits.max_batch_size)),
        fact("max_num_tokens", Side::Count(limits.max_num_tokens)),
        fact("draft_positions", Side::Count(limits.draft_positions)),
        fact("padding slots", Side::Count(slots.padding)),
        fact("live slots", Side::Count(slots.live)),
        fact("checkpoints", Side::Count(plan.checkpoints())),
    ]
}

fn resource_facts(resource: &PlannedResource) -> Vec<Fact<'_>> {
    // A local resource is its own pool, which its owner says already.
    let own = resource.pool == resource.name;
    let pool = if own { "own tensor" } else { resource.pool.as_str() };
    let facts = [
        ("kind", Side::Name(resource.kind.clone())),
        ("owner", Side::Name(owner_name(resource.owner).into())),
        ("pool", Side::Name(pool.into())),
        ("dtype", Side::Name(resource.dtype.to_string())),
        ("bytes_per_token", Side::Bytes(resource.bytes_per_token)),
        ("bytes_per_sequence", Side::Bytes(resource.bytes_per_sequence)),
        ("bytes_fixed", Side::Bytes(resource.bytes_fixed)),
    ];
    facts.into_iter().map(|(key, value)| Fact { name: &resource.name, key, layer: resource.layer, value }).collect()
}

fn pool_facts(pool: &Pool) -> Vec<Fact<'_>> {
    let mut facts = vec![
        named(&pool.id, "owner", Side::Name(owner_name(pool.owner).into())),
        named(&pool.id, "units", Side::Count(pool.units)),
        named(&pool.id, "unit_bytes", Side::Bytes(pool.unit_bytes)),
        named(&pool.id, "bytes", Side::Bytes(pool.bytes)),
        named(&pool.id, "layers", Side::Name(ranges(&pool.layers))),
        named(&pool.id, "dtype", Side::Name(pool.dtype.to_string())),
    ];
    facts.extend(pool.tokens_per_block.map(|tokens| named(&pool.id, "tokens_per_block", Side::Count(tokens))));
    facts.extend(pool.window.map(|window| named(&pool.id, "window", Side::Count(window.into()))));
    facts
}

fn capacity_facts(plan: &CachePlan) -> Vec<Fact<'_>> {
    let capacity = &plan.capacity;
    let mut facts: Vec<_> = capacity.tokens.map(|tokens| fact("tokens", Side::Count(tokens))).into_iter().collect();
    facts.extend([
        fact("sequences", Side::Count(capacity.sequences)),
        fact("tokens_per_sequence", Side::Count(capacity.tokens_per_sequence)),
        fact("spare_tokens", Side::Count(capacity.spare_tokens)),
        fact("capped_by", Side::Name(capacity.capped_by.to_string())),
    ]);
    facts
}

fn total_facts(plan: &CachePlan) -> Vec<Fact<'_>> {
    let totals = &plan.totals;
    vec![
        fact("kv_bytes_per_token", Side::Bytes(totals.kv_bytes_per_token)),
        fact("state_bytes_per_sequence", Side::Bytes(totals.state_bytes_per_sequence)),
        fact("managed_bytes", Side::Bytes(totals.managed_bytes)),
        fact("unmanaged_bytes", Side::Bytes(totals.unmanaged_bytes)),
    ]
}

fn host_facts(plan: &CachePlan) -> Vec<Fact<'_>> {
    let Some(host) = &plan.host else { return Vec::new() };
    let mut facts = vec![
        fact("bytes", Side::Bytes(host.bytes)),
        fact("sequences", Side::Count(host.sequences)),
        fact("unused_bytes", Side::Bytes(host.unused_bytes)),
    ];
    facts.extend(host.pools.iter().map(|pool| named(&pool.pool, "units", Side::Count(pool.units))));
    facts
}

/// Facts of both sides, joined by name and key; those only in `after` come last.
fn compare(section: &'static str, before: &[Fact<'_>], after: &[Fact<'_>]) -> Vec<Change> {
    let index = |facts: &[Fact<'_>]| -> HashMap<(String, &'static str), usize> {
        facts.iter().enumerate().map(|(at, fact)| ((fact.name.to_owned(), fact.key), at)).collect()
    };
    let (old, new) = (index(before), index(after));
    let key = |fact: &Fact<'_>| (fact.name.to_owned(), fact.key);
    let change = |fact: &Fact<'_>, before: Option<&Fact<'_>>, after: Option<&Fact<'_>>| Change {
        section,
        name: fact.name.to_owned(),
        key: fact.key,
        layer: fact.layer,
        before: before.map(|fact| fact.value.clone()),
        after: after.map(|fact| fact.value.clone()),
    };
    let changed = before.iter().filter_map(|fact| {
        let other = new.get(&key(fact)).map(|&at| &after[at]);
        other.is_none_or(|other| other.value != fact.value).then(|| change(fact, Some(fact), other))
    });
    let added = after.iter().filter(|fact| !old.contains_key(&key(fact)));
    changed.chain(added.map(|fact| change(fact, None, Some(fact)))).collect()
}

/// Changes of one section, those of several resources that are alike in one row.
fn table(changes: &[Change]) -> String {
    let mut alike: Vec<(&Change, Vec<&Change>)> = Vec::new();
    for change in changes {
        let same = |first: &Change| {
            change.layer.is_some()
                && first.layer.is_some()
                && (first.key, &first.before, &first.after) == (change.key, &change.before, &change.after)
        };
        match alike.iter_mut().find(|(first, _)| same(first)) {
            Some((_, group)) => group.push(change),
            None => alike.push((change, vec![change])),
        }
    }
    let side = |value: Option<&Side>| value.map_or_else(|| "-".to_owned(), short);
    let rows: Vec<Vec<String>> = alike
        .iter()
        .map(|(first, group)| {
            let name = match group.len() {
                1 => first.name.clone(),
                count => format!("{count} resources"),
            };
            let mut row =
                vec![name, first.key.to_owned(), side(first.before.as_ref()), "->".into(), side(first.after.as_ref())];
            row.extend(growth(first));
            row
        })
        .collect();
    let mut text = String::new();
    for (line, (_, group)) in align(&rows, &[]).iter().zip(&alike) {
        text.push_str(&format!("  {line}\n"));
        if group.len() > 1 {
            let layers: Vec<u32> = group.iter().filter_map(|change| change.layer).collect();
            text.push_str(&wrap(&format!("layers {}", ranges(&layers)), 6));
        }
    }
    text
}

/// A value in a table's column: a long name is cut, the data has it whole.
fn short(value: &Side) -> String {
    const WIDEST: usize = 30;
    let text = value.to_string();
    if text.chars().count() <= WIDEST { text } else { text.chars().take(WIDEST - 3).chain("...".chars()).collect() }
}

/// `+12.00 GiB` for bytes, `+3` for counts.
fn growth(change: &Change) -> Option<String> {
    let signed = |before: u64, after: u64, text: fn(u64) -> String| {
        let sign = if after < before { '-' } else { '+' };
        format!("{sign}{}", text(after.abs_diff(before)))
    };
    match (change.before.as_ref()?, change.after.as_ref()?) {
        (Side::Bytes(before), Side::Bytes(after)) => Some(signed(*before, *after, |bytes| ByteSize(bytes).to_string())),
        (Side::Count(before), Side::Count(after)) => Some(signed(*before, *after, |count| count.to_string())),
        _ => None,
    }
}
