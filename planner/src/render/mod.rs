//! Plans for people.

mod columns;
mod disaggregation;
mod engines;
mod fit;
mod markdown;
mod ranks;
mod table;
mod words;
pub(crate) mod yaml;

use std::collections::BTreeSet;

use cacheplan_handlers::DType;

pub(crate) use columns::{align, broken, columns, wrap};
pub(crate) use table::source_name;
pub(crate) use yaml::yaml;

use crate::plan::{CachePlan, Owner, PlannedResource};

/// Resources that differ in nothing but their layer.
pub(crate) struct Line<'a> {
    pub(crate) first: &'a PlannedResource,
    pub(crate) layers: Vec<u32>,
    pub(crate) count: u64,
}

impl Line<'_> {
    /// `layers 0-3`, and whether they are those that draft.
    pub(crate) fn place(&self) -> String {
        let layers =
            if self.layers.is_empty() { "whole model".into() } else { format!("layers {}", ranges(&self.layers)) };
        if self.first.drafts { format!("drafting, {layers}") } else { layers }
    }
}

/// All resources, those alike collapsed into one line, in order of first appearance.
pub(crate) fn lines(plan: &CachePlan) -> Vec<Line<'_>> {
    type Key<'a> = (bool, &'a str, Owner, &'a str, DType, u64, u64, u64, &'a str);
    let mut lines: Vec<(Key<'_>, Line<'_>)> = Vec::new();
    for resource in &plan.resources {
        // Local allocations are pools of their own, and alike all the same.
        let pool = if resource.owner == Owner::Local { "" } else { &resource.pool };
        let key = (
            resource.drafts,
            resource.kind.as_str(),
            resource.owner,
            pool,
            resource.dtype,
            resource.bytes_per_token,
            resource.bytes_per_sequence,
            resource.bytes_fixed,
            resource.reason.as_str(),
        );
        let index = lines.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
            lines.push((key, Line { first: resource, layers: Vec::new(), count: 0 }));
            lines.len() - 1
        });
        let line = &mut lines[index].1;
        line.count += 1;
        line.layers.extend(resource.layer);
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

/// `0-3,5,7-9`; empty for none.
pub(crate) fn ranges(layers: &[u32]) -> String {
    // A layer may have several caches of one kind.
    let mut seen = BTreeSet::new();
    let layers: Vec<u32> = layers.iter().copied().filter(|layer| seen.insert(*layer)).collect();
    let (mut text, mut rest) = (String::new(), layers.as_slice());
    while let [start, ..] = rest {
        let length = rest.iter().zip(*start..=u32::MAX).take_while(|(layer, expected)| *layer == expected).count();
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&start.to_string());
        if length > 1 {
            text.push_str(&format!("-{}", rest[length - 1]));
        }
        rest = &rest[length..];
    }
    text
}

/// The name of an owner in plans.
pub(crate) const fn owner_name(owner: Owner) -> &'static str {
    match owner {
        Owner::KvCacheManager => "kv_cache_manager",
        Owner::MambaCacheManager => "mamba_cache_manager",
        Owner::Local => "local",
        Owner::Unaccounted => "unaccounted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(&[], "")]
    #[case(&[4], "4")]
    #[case(&[0, 1, 2, 5, 7, 8], "0-2,5,7-8")]
    #[case(&[1, 2, 1, 2, 0], "1-2,0")]
    #[case(&[u32::MAX - 1, u32::MAX, 0], "4294967294-4294967295,0")]
    fn layers_collapse_into_ranges(#[case] layers: &[u32], #[case] text: &str) {
        assert_eq!(ranges(layers), text);
    }
}
