//! AutoDeploy's later rule: every KV cache is managed, one pool per window, and a mix inside one is an error.

use std::collections::HashMap;

use cacheplan_handlers::{Growth, Kind};
use cacheplan_transforms::Resources;

use super::Group;
use super::first_reference::{self, kv_mismatch};
use crate::error::PlanError;
use crate::plan::Owner;

pub(super) fn group(resources: &Resources, max_seq_len: u64) -> Result<Vec<Group<'_>>, PlanError> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut pool_of_window: HashMap<Option<u32>, usize> = HashMap::new();
    let mut attention: Option<(&str, &Kind)> = None;
    for resource in resources.iter().filter(|resource| resource.handler.kind().is_kv()) {
        let key = resource.handler.compat_key(max_seq_len);
        let (first_name, first_kind) = *attention.get_or_insert((&resource.name, key.kind));
        if key.kind != first_kind {
            return Err(PlanError::Grouping(format!(
                "by-window: `{}` is {} and `{first_name}` is {first_kind}; one model cannot mix attention types \
                 (use --grouping by-key)",
                resource.name, key.kind
            )));
        }
        let window = if let Growth::Paged { window, .. } = key.growth { window } else { None };
        let index = *pool_of_window.entry(window).or_insert_with(|| {
            let reason = match window {
                Some(window) => format!("window {window} has one pool"),
                None => "full attention has one pool".into(),
            };
            groups.push(Group::empty(Owner::KvCacheManager, key, reason));
            groups.len() - 1
        });
        let pool = &mut groups[index];
        if let Some(first) = pool.members.first()
            && let Some(why) = kv_mismatch(&key, &first.handler.compat_key(max_seq_len))
        {
            return Err(PlanError::Grouping(format!(
                "by-window: `{}` and `{}` have the same window, but {why} (use --grouping by-key)",
                resource.name, first.name,
            )));
        }
        pool.members.push(resource);
    }
    groups.extend(first_reference::group_rest(resources, max_seq_len));
    Ok(groups)
}
