//! One pool for each compatibility class.

use std::collections::HashMap;

use cacheplan_handlers::{CompatKey, Growth, Split};
use cacheplan_transforms::Resources;

use super::{Group, effective_growth, manager_of, unmanaged_reason};

pub(super) fn group(resources: &Resources, max_seq_len: u64) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut class_of: HashMap<CompatKey, usize> = HashMap::new();
    for resource in resources {
        let growth = effective_growth(resource.handler.growth(), max_seq_len);
        let Some(owner) = manager_of(growth) else {
            groups.push(Group::local(resource, growth, unmanaged_reason(growth).into()));
            continue;
        };
        let key = CompatKey { growth, ..resource.handler.compat_key() };
        let index = *class_of.entry(key).or_insert_with(|| {
            let (kind, dtype) = (resource.handler.kind(), resource.handler.dtype());
            groups.push(Group { owner, kind, growth, dtype, members: Vec::new(), reason: String::new() });
            groups.len() - 1
        });
        groups[index].members.push(resource);
    }
    for group in groups.iter_mut().filter(|group| group.owner.is_managed()) {
        group.reason = reason(group);
    }
    groups
}

fn reason(group: &Group<'_>) -> String {
    let handler = &group.members[0].handler;
    let dims = handler.shape().iter().filter(|dim| dim.split != Split::KvHeads);
    let dims: Vec<String> = dims.map(|dim| format!("{} {}", dim.name, dim.size)).collect();
    let alike = format!("{}, {}{}", dims.join(", "), group.dtype, window_text(group.growth));
    match group.members.len() {
        1 => format!("the only {} with {alike}", group.kind),
        count => format!("one of {count} {} alike in {alike}", group.kind),
    }
}

fn window_text(growth: Growth) -> String {
    match growth {
        Growth::Paged { window: Some(window), .. } => format!(", window {window}"),
        _ => String::new(),
    }
}
