//! One pool for each compatibility class.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use cacheplan_handlers::{Growth, ResourceHandler, Split};
use cacheplan_transforms::Resources;

use super::{Group, effective_growth, manager_of, unmanaged_reason};

pub(super) fn group(resources: &Resources, max_seq_len: u64) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut group_of: HashMap<Class<'_>, usize> = HashMap::new();
    for resource in resources {
        let growth = effective_growth(resource.handler.growth(), max_seq_len);
        let Some(owner) = manager_of(growth) else {
            groups.push(Group::local(resource, growth, unmanaged_reason(growth).into()));
            continue;
        };
        let class = Class { handler: &resource.handler, growth };
        let index = *group_of.entry(class).or_insert_with(|| {
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

/// The compatibility class of a resource, with the growth that its pool sees; borrowed, because there is one per resource.
struct Class<'a> {
    handler: &'a ResourceHandler,
    growth: Growth,
}

impl Class<'_> {
    fn dims(&self) -> impl Iterator<Item = u64> {
        self.handler.shape().iter().filter(|dim| dim.split != Split::KvHeads).map(|dim| dim.size)
    }
}

impl PartialEq for Class<'_> {
    fn eq(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.handler, other.handler);
        (self.growth, mine.kind(), mine.dtype(), mine.layout())
            == (other.growth, theirs.kind(), theirs.dtype(), theirs.layout())
            && self.dims().eq(other.dims())
    }
}

impl Eq for Class<'_> {}

impl Hash for Class<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.growth, self.handler.kind(), self.handler.dtype()).hash(state);
        self.dims().for_each(|size| size.hash(state));
    }
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
