//! One pool for each compatibility class.

use std::collections::HashMap;

use cacheplan_handlers::{CompatKey, Growth};
use cacheplan_transforms::Resources;

use super::{Group, manager_of, unmanaged_reason};
use crate::plan::Owner;

/// Of so many pools the newest are looked at before a key is hashed: most models have no more.
const FEW: usize = 4;

pub(super) fn group(resources: &Resources, max_seq_len: u64) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut group_of: HashMap<CompatKey<'_>, usize> = HashMap::new();
    let mut keys: Vec<(CompatKey<'_>, usize)> = Vec::new();
    for resource in resources {
        let key = resource.handler.compat_key(max_seq_len);
        if key.growth == Growth::Fixed {
            groups.push(Group::local(resource, key.growth, unmanaged_reason(key.growth).into()));
            continue;
        }
        // No manager pages the tokens of slots; those alike lie together in a slot all the same.
        let owner = manager_of(key.growth).unwrap_or(Owner::Local);
        let newest = keys.iter().rev().take(FEW).find(|(known, _)| *known == key).map(|(_, index)| *index);
        let index = newest.unwrap_or_else(|| {
            *group_of.entry(key).or_insert_with(|| {
                keys.push((key, groups.len()));
                groups.push(Group::empty(owner, key, String::new()));
                groups.len() - 1
            })
        });
        groups[index].members.push(resource);
    }
    for (key, index) in keys {
        let alike = reason(&key, groups[index].members.len());
        groups[index].reason = match groups[index].owner {
            Owner::Local => format!("{}; {alike}", unmanaged_reason(key.growth)),
            _ => alike,
        };
    }
    groups
}

fn reason(key: &CompatKey<'_>, count: usize) -> String {
    let dims: Vec<String> = key.dims().map(|dim| format!("{} {}", dim.name, dim.size)).collect();
    let window = match key.growth {
        Growth::Paged { window: Some(window), .. } => format!(", window {window}"),
        _ => String::new(),
    };
    let alike = format!("{}, {}{window}", dims.join(", "), key.dtype);
    match count {
        1 => format!("the only {} with {alike}", key.kind),
        count => format!("one of {count} {} alike in {alike}", key.kind),
    }
}
