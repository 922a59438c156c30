//! Groups of layers that share one pool: by what a layer needs pages for, and of equal size.

use std::collections::{BTreeMap, BTreeSet};

use cacheplan_handlers::{Growth, ResourceHandler, Shape};

use super::RULES;
use super::beside::windows;
use super::spec::{Entry, Spec};
use super::states::{exported, state_page};
use crate::engines::situation::Situation;
use crate::engines::version::Version;
use crate::error::{EngineRefusal, PlanError};

/// Read in 0.9.1, and not in 0.9.0: layers of several kinds are several groups; before windows beside full attention kept every
/// token.
pub(super) const GROUPS_KINDS: Version = Version(0, 9, 1);
/// From here on a group is as large as the most layers of a kind where those are close to the fewest (change 29303).
pub(super) const PADS_CLOSE_KINDS: Version = Version(0, 12, 0);
/// From here on close is below 1.5 times, before below 1.25 times (change 36684, March 2026).
pub(super) const PADS_MORE: Version = Version(0, 18, 0);

/// The layers of one spec, divided into groups.
pub(super) struct Bucket {
    pub(super) spec: Spec,
    /// How many there are on each pipeline stage.
    pub(super) on_stages: Vec<u64>,
    pub(super) groups: u64,
    /// Tokens in a block.
    pub(super) block: u64,
}

impl Bucket {
    pub(super) fn layers(&self) -> u64 {
        self.on_stages.iter().sum()
    }
}

/// How layers are divided into groups.
pub(super) struct Division {
    /// Layers in a group, where all have as many.
    pub(super) group_size: Option<u64>,
    /// Bytes of the largest page.
    pub(super) page: u64,
    pub(super) buckets: Vec<Bucket>,
    /// Of each stage.
    pub(super) bytes_per_block: Vec<u128>,
    /// Of one rank that held all stages.
    pub(super) all_stages: u128,
    /// Where the blocks of a sequence are counted by their bytes: those of each bucket, that of full attention first.
    pub(super) bucket_bytes: Option<Vec<u128>>,
}

/// Groups of pages of one size, or one group of layers of one kind.
pub(super) fn divide(situation: &Situation<'_>, block: u64) -> Result<Division, PlanError> {
    let specs = specs(situation)?;
    let bytes_of = |spec: &Spec| match *spec {
        Spec::Full(entry) => entry.bytes * block,
        Spec::Window { entry, block: own, .. } => entry.bytes * own.unwrap_or(block),
        Spec::State { bytes, .. } => bytes,
        Spec::Ring => 0,
    };
    // All pages are padded to the largest; smaller attention pages that divide it hold more tokens instead.
    let page = specs.keys().map(bytes_of).max().unwrap_or(0);
    let first = specs.keys().next().map(|spec| spec.kind());
    let stages = 0..situation.stages.len();
    if let Some((spec, _)) = specs.iter().next_back().filter(|_| specs.keys().all(|spec| Some(spec.kind()) == first)) {
        // One kind of layer: one group, each layer with its own page.
        let pages =
            |stage: usize| specs.iter().map(move |(spec, on)| u128::from(bytes_of(spec)) * u128::from(on[stage])).sum();
        let bytes_per_block: Vec<u128> = stages.clone().map(pages).collect();
        let on_stages: Vec<u64> = stages.map(|stage| specs.values().map(|on| on[stage]).sum()).collect();
        return Ok(Division {
            group_size: Some(on_stages.iter().sum()),
            page,
            all_stages: bytes_per_block.iter().sum(),
            bytes_per_block,
            buckets: vec![Bucket { spec: *spec, on_stages, groups: 1, block }],
            bucket_bytes: None,
        });
    }
    let group_size = group_size(specs.values().map(|on_stages| on_stages.iter().sum()), situation.version);
    let buckets = specs.into_iter().map(|(spec, on_stages)| Bucket {
        groups: on_stages.iter().sum::<u64>().div_ceil(group_size),
        block: match spec {
            Spec::Full(entry) | Spec::Window { entry, .. } if page.is_multiple_of(bytes_of(&spec)) => {
                page / entry.bytes
            }
            _ => block,
        },
        spec,
        on_stages,
    });
    let buckets: Vec<Bucket> = buckets.collect();
    // Layers are dealt out to the groups of their kind in turns, so that a stage has about as many of each.
    let most = |stage: usize| buckets.iter().map(|bucket| bucket.on_stages[stage].div_ceil(bucket.groups)).max();
    Ok(Division {
        bytes_per_block: stages.map(|stage| u128::from(page) * u128::from(most(stage).unwrap_or(0))).collect(),
        group_size: Some(group_size),
        page,
        buckets,
        all_stages: u128::from(page) * u128::from(group_size),
        bucket_bytes: None,
    })
}

/// How many layers there are of each spec on each stage.
fn specs(situation: &Situation<'_>) -> Result<BTreeMap<Spec, Vec<u64>>, PlanError> {
    let stages = situation.stages.len();
    let mut specs: BTreeMap<Spec, Vec<u64>> = BTreeMap::new();
    for (at, stage) in situation.stages.iter().enumerate() {
        let attention = stage.caches.attention.iter().map(|cache| {
            let (heads, head_dim) = shape(cache.handler);
            let entry = Entry { bytes: cache.bytes.div_ceil(cache.stride), heads, head_dim };
            match cache.handler.growth() {
                Growth::Paged { window: Some(window), .. } => Spec::Window { window, block: None, entry },
                _ => Spec::Full(entry),
            }
        });
        let states = stage.caches.states.iter();
        let states = states
            .map(|state| Spec::State { bytes: state_page(situation, state), exported: exported(situation, state) });
        for spec in attention.chain(states).chain(windows(situation, &stage.caches)) {
            specs.entry(spec).or_insert_with(|| vec![0; stages])[at] += 1;
        }
    }
    let in_one = situation.options.hybrid_kv_cache == Some(false) || situation.version < GROUPS_KINDS;
    if in_one { promoted(specs) } else { Ok(specs) }
}

/// What `--disable-hybrid-kv-cache-manager` makes of them: beside full attention, windows keep every token.
fn promoted(specs: BTreeMap<Spec, Vec<u64>>) -> Result<BTreeMap<Spec, Vec<u64>>, PlanError> {
    let has_full = specs.keys().any(|spec| matches!(spec, Spec::Full(_)));
    let mut promoted: BTreeMap<Spec, Vec<u64>> = BTreeMap::new();
    for (spec, on_stages) in specs {
        let spec = match spec {
            Spec::Window { entry, .. } if has_full => Spec::Full(entry),
            other => other,
        };
        match promoted.get_mut(&spec) {
            Some(known) => known.iter_mut().zip(on_stages).for_each(|(known, more)| *known += more),
            None => drop(promoted.insert(spec, on_stages)),
        }
    }
    let kinds: BTreeSet<_> = promoted.keys().map(|spec| spec.kind()).collect();
    if kinds.len() > 1 {
        return Err(EngineRefusal::SeveralKinds { engine: RULES.name }.into());
    }
    Ok(promoted)
}

pub(super) fn shape(handler: &ResourceHandler) -> (u64, u64) {
    match handler.known_shape() {
        Some(Shape::Kv { num_kv_heads, head_dim, .. }) => (num_kv_heads, head_dim),
        Some(Shape::Vector { head_dim }) => (1, head_dim),
        _ => (0, 0),
    }
}

/// The fewest layers of a kind, or the most where that is not much more.
fn group_size(layers: impl Iterator<Item = u64> + Clone, version: Version) -> u64 {
    let (least, most) = (layers.clone().min().unwrap_or(1), layers.max().unwrap_or(1));
    let close =
        if version >= PADS_MORE { 2 * most < 3 * least } else { version >= PADS_CLOSE_KINDS && 4 * most < 5 * least };
    if close { most } else { least }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(&[12, 36], 12)]
    #[case(&[6, 23], 6)]
    #[case(&[13, 12], 13)]
    #[case(&[6, 5], 6)]
    #[case(&[3, 7], 3)]
    #[case(&[10, 14], 14)]
    #[case(&[10, 15], 10)]
    #[case(&[20, 30], 20)]
    #[case(&[48, 1], 1)]
    #[case(&[4, 8, 12], 4)]
    fn groups_are_as_large_as_the_planner_of_0_33_makes_them(#[case] layers: &[u64], #[case] size: u64) {
        assert_eq!(group_size(layers.iter().copied(), Version(0, 33, 0)), size);
    }

    #[test]
    fn older_versions_take_the_larger_group_less_often() {
        assert_eq!(group_size([10, 13].into_iter(), Version(0, 17, 1)), 10);
        assert_eq!(group_size([10, 12].into_iter(), Version(0, 17, 1)), 12);
        assert_eq!(group_size([10, 12].into_iter(), Version(0, 11, 2)), 10);
        assert_eq!(group_size([10, 13].into_iter(), Version(0, 18, 0)), 13);
    }
}
