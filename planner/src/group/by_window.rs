//! AutoDeploy's later rule: every KV cache is managed, one pool per window, and a mix inside one is an error.

use std::collections::HashMap;

use cacheplan_handlers::{Growth, Kind};
use cacheplan_transforms::Resources;

use super::first_reference::{self, is_kv};
use super::{Group, effective_growth};
use crate::{Owner, PlanError};

pub(super) fn group(resources: &Resources, max_seq_len: u64) -> Result<Vec<Group<'_>>, PlanError> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut pool_of_window: HashMap<Option<u32>, usize> = HashMap::new();
    let mut attention: Option<(&str, &Kind)> = None;
    for resource in resources.iter().filter(|resource| is_kv(resource)) {
        let handler = &resource.handler;
        let (kind, dtype) = (handler.kind(), handler.dtype());
        let (first_name, first_kind) = *attention.get_or_insert((&resource.name, kind));
        if kind != first_kind {
            return Err(PlanError::Grouping(format!(
                "by-window: `{}` is {kind} and `{first_name}` is {first_kind}; one model cannot mix attention types \
                 (use --grouping by-key)",
                resource.name
            )));
        }
        let growth = effective_growth(handler.growth(), max_seq_len);
        let window = if let Growth::Paged { window, .. } = growth { window } else { None };
        let index = *pool_of_window.entry(window).or_insert_with(|| {
            let owner = Owner::KvCacheManager;
            let reason = match window {
                Some(window) => format!("window {window} has one pool"),
                None => "full attention has one pool".into(),
            };
            groups.push(Group { owner, kind, growth, dtype, members: Vec::new(), reason });
            groups.len() - 1
        });
        let pool = &mut groups[index];
        if let Some(first) = pool.members.first() {
            let (mine, theirs) = (handler.dim("head_dim"), first.handler.dim("head_dim"));
            if mine != theirs || dtype != pool.dtype {
                return Err(PlanError::Grouping(format!(
                    "by-window: `{}` (head_dim {}, {dtype}) and `{}` (head_dim {}, {}) have the same window but not the \
                     same head_dim and dtype (use --grouping by-key)",
                    resource.name,
                    mine.unwrap_or_default(),
                    first.name,
                    theirs.unwrap_or_default(),
                    pool.dtype,
                )));
            }
        }
        pool.members.push(resource);
    }
    groups.extend(first_reference::group_rest(resources));
    Ok(groups)
}
