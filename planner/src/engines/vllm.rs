//! vLLM: every layer's page has the same bytes; layers of one kind form groups of equal size that share one pool.
//!
//! Rules: read in the 0.17.1 and 0.33.0 sources, a fork of 0.23.0 and the merged changes between; the logged sizes under
//! `tests/fixtures/groundtruth` agree.

use std::collections::BTreeMap;

use cacheplan_handlers::{Growth, Kind};

use super::caches::Attention;
use super::{EnginePrediction, Setting, Version};
use crate::PlanError;
use crate::demand::Demand;
use crate::solve::last;

/// The reported number of tokens changed its meaning here.
const REPORTS_CONCURRENCY: Version = Version(0, 21, 0);
/// From here on the alignment of a latent's block is that of the kernel that is chosen (change 37467, April 2026).
const ASKS_THE_KERNEL: Version = Version(0, 21, 0);
/// From here on a group is as large as the most layers of a kind where those are close to the fewest (change 29303).
const PADS_CLOSE_KINDS: Version = Version(0, 12, 0);
/// From here on close is below 1.5 times, before below 1.25 times (change 36684, March 2026).
const PADS_MORE: Version = Version(0, 18, 0);

/// What a layer needs pages for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spec {
    Full { bytes: u64 },
    Window { bytes: u64, window: u32 },
    State { bytes: u64 },
}

pub(super) fn predict(setting: &Setting<'_>) -> Result<EnginePrediction, PlanError> {
    let bytes = setting.bytes()?;
    let block = block_size(setting);
    let specs = specs(setting);
    if specs.is_empty() {
        return Ok(EnginePrediction { num_blocks: Some(1), ..EnginePrediction::default() });
    }
    let page = |spec: &Spec| match *spec {
        Spec::Full { bytes } | Spec::Window { bytes, .. } => bytes * block,
        Spec::State { bytes } => bytes,
    };
    // All pages are padded to the largest; smaller attention pages that divide it hold more tokens instead.
    let target = specs.keys().map(page).max().unwrap_or(0);
    let kind = |spec: &Spec| match spec {
        Spec::Full { .. } => (0, 0),
        Spec::Window { window, .. } => (1, *window),
        Spec::State { .. } => (2, 0),
    };
    let first = specs.keys().next().map(kind);
    let uniform = specs.keys().all(|spec| Some(kind(spec)) == first);
    let block_of = |spec: &Spec| match *spec {
        Spec::Full { bytes } | Spec::Window { bytes, .. } if !uniform && target.is_multiple_of(bytes * block) => {
            target / bytes
        }
        _ => block,
    };
    let (group_size, groups, bytes_per_block) = if uniform {
        // One kind of layer: one group, each layer with its own page.
        let layers = specs.values().sum::<u64>();
        (layers, 1, specs.iter().map(|(spec, layers)| u128::from(page(spec)) * u128::from(*layers)).sum())
    } else {
        let group_size = group_size(specs.values().copied(), setting.version);
        let groups = specs.values().map(|layers| layers.div_ceil(group_size)).sum::<u64>();
        (group_size, groups, u128::from(target) * u128::from(group_size))
    };
    let num_blocks = u64::try_from(u128::from(bytes) / bytes_per_block.max(1)).unwrap_or(u64::MAX);

    let state_blocks = setting.draft_tokens + if setting.prefix_caching() { 2 } else { 1 };
    let groups_of = |spec: &Spec| if groups == 1 { 1 } else { specs[spec].div_ceil(group_size) };
    let first = specs.keys().next().copied();
    let counted: Vec<(Spec, u64)> =
        specs.keys().filter(|spec| groups > 1 || Some(**spec) == first).map(|spec| (*spec, groups_of(spec))).collect();
    let length = setting.load.max_seq_len;
    // Context-parallel ranks divide a sequence's tokens, so that each block counts for all of them.
    let ranks = setting.load.context_ranks;
    let step = setting.load.max_num_tokens;
    let blocks_per_request: u64 = counted
        .iter()
        .map(|(spec, groups)| {
            groups
                * match *spec {
                    Spec::Full { .. } => length.div_ceil(block_of(spec) * ranks),
                    Spec::Window { window, .. } => {
                        (u64::from(window) - 1 + step).min(length).div_ceil(block_of(spec)) + 1
                    }
                    Spec::State { .. } => state_blocks,
                }
        })
        .sum();
    let tokens = if setting.version >= REPORTS_CONCURRENCY {
        u128::from(num_blocks) * u128::from(length) / u128::from(blocks_per_request.max(1))
    } else {
        let smallest = counted.iter().filter(|(spec, _)| !matches!(spec, Spec::State { .. }));
        let smallest = smallest.map(|(spec, _)| block_of(spec)).min().unwrap_or(block);
        u128::from(num_blocks / groups) * u128::from(smallest * ranks)
    };

    let demands: Vec<(Demand, u64)> = counted
        .iter()
        .filter_map(|(spec, groups)| {
            let window = match *spec {
                Spec::Full { .. } => None,
                Spec::Window { window, .. } => Some(window),
                Spec::State { .. } => return None,
            };
            Some((Demand::new(Growth::Paged { stride: 1, window }, 1, block_of(spec), &setting.load), *groups))
        })
        .collect();
    let state_groups: u64 =
        counted.iter().filter(|(spec, _)| matches!(spec, Spec::State { .. })).map(|(_, groups)| groups).sum();
    // Block 0 is the null block: counted, never used.
    let usable = num_blocks.saturating_sub(1);
    let sequences = last(usable.min(1 << 20), |sequences| {
        let paged: u64 =
            demands.iter().map(|(demand, groups)| groups * (demand.units(&setting.load, sequences) - 1)).sum();
        paged + state_groups * state_blocks * sequences <= usable
    });
    if sequences == 0 {
        return Err(setting.does_not_fit(u128::from(blocks_per_request + 1) * bytes_per_block, "num_blocks"));
    }
    Ok(EnginePrediction {
        block_size: Some(block),
        page_bytes: Some(target),
        groups: Some(groups),
        group_size: Some(group_size),
        num_blocks: Some(num_blocks),
        blocks_per_request: Some(blocks_per_request),
        tokens: u64::try_from(tokens).ok(),
        kv_bytes: u64::try_from(u128::from(num_blocks) * bytes_per_block).ok(),
        sequences: setting.budget.max_batch_size.map_or(sequences, |cap| cap.min(sequences)),
        notes: notes(setting, &specs, group_size, groups, target),
        ..EnginePrediction::default()
    })
}

/// `A * ceil(state page / (A * bytes per token))` where there are states, `A` being the kernel's alignment.
fn block_size(setting: &Setting<'_>) -> u64 {
    let attention: Vec<&Attention<'_>> = setting.caches.attention.iter().filter(|cache| !cache.draft).collect();
    let latent = attention.iter().any(|cache| *cache.handler.kind() == Kind::MlaPaged);
    let state = state_page(setting).max().unwrap_or(0);
    let stated = setting.options.block_size;
    if state == 0 {
        return stated.unwrap_or(if latent { 64 } else { 16 });
    }
    let alignment = match (latent, setting.version >= ASKS_THE_KERNEL) {
        (true, true) => 128,
        (true, false) => 64,
        (false, _) => 16,
    };
    let Some(per_token) = attention.iter().map(|cache| cache.bytes.div_ceil(cache.stride)).max() else {
        return stated.unwrap_or(16);
    };
    (alignment * state.div_ceil(alignment * per_token)).max(stated.unwrap_or(0))
}

/// The state page of each layer; speculation widens the convolution by the drafted columns.
fn state_page(setting: &Setting<'_>) -> impl Iterator<Item = u64> {
    setting.caches.states.iter().map(|state| state.bytes() + setting.draft_tokens * state.conv_column)
}

/// How many layers there are of each spec.
fn specs(setting: &Setting<'_>) -> BTreeMap<Spec, u64> {
    let mut specs = BTreeMap::new();
    for cache in &setting.caches.attention {
        let bytes = cache.bytes.div_ceil(cache.stride);
        let spec = match cache.window {
            Some(window) => Spec::Window { bytes, window },
            None => Spec::Full { bytes },
        };
        *specs.entry(spec).or_default() += 1;
    }
    for bytes in state_page(setting) {
        *specs.entry(Spec::State { bytes }).or_default() += 1;
    }
    specs
}

/// The fewest layers of a kind, or the most where that is not much more.
fn group_size(layers: impl Iterator<Item = u64> + Clone, version: Version) -> u64 {
    let (least, most) = (layers.clone().min().unwrap_or(1), layers.max().unwrap_or(1));
    let close =
        if version >= PADS_MORE { 2 * most < 3 * least } else { version >= PADS_CLOSE_KINDS && 4 * most < 5 * least };
    if close { most } else { least }
}

fn notes(setting: &Setting<'_>, specs: &BTreeMap<Spec, u64>, size: u64, groups: u64, page: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(state) = state_page(setting).max() {
        notes.push(format!("the attention block is as large as the state page of {state} bytes, padded to {page}"));
    }
    if groups > 1 {
        let padding: u64 = specs.values().map(|layers| layers.div_ceil(size) * size - layers).sum();
        notes.push(format!("{groups} groups of {size} layers, {padding} of them padding"));
    }
    notes.push("one pool for all groups; block 0 is the null block".into());
    notes
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
