//! Layers whose pages differ in size, which vLLM lays side by side in a block: compressed attention and what it is formed of.
//!
//! Rules: `group_and_unify_kv_cache_specs`, later `_get_packed_kv_cache_groups`, of 0.21.0 to 0.33.0, and the specs of
//! `models/deepseek_v4`, `deepseek_v41`, `glm5next` and `qwen4_exp`.

use std::collections::BTreeMap;

use cacheplan_handlers::{Growth, Kind, ResourceHandler, Shape};

use super::beside;
use super::groups::{Bucket, Division};
use super::lcm;
use super::spec::{Entry, Spec};
use super::states::{exported, state_page};
use super::{capability, is_blackwell};
use crate::engines::caches::{Attention, Forming, State, index_bytes};
use crate::engines::situation::{Situation, Stage};
use crate::engines::stored::Stored;
use crate::engines::version::Version;
use crate::error::EngineRefusal;

/// Read in 0.23.0, and not in 0.22.0: a block has as many pages of a size as the group with the most of them.
pub(super) const COUNTS_PAGES_BY_SIZE: Version = Version(0, 23, 0);
/// Read in 0.27.0, and not in 0.26.0: a group fills a block alone, so that it is as large as the largest; and a sequence's
/// blocks are counted, not their bytes.
pub(super) const LAYS_GROUPS_OVER_EACH_OTHER: Version = Version(0, 27, 0);
/// Read in 0.29.0, and not in 0.28.0: states and rings are groups too.
pub(super) const PACKS_ANY: Version = Version(0, 28, 1);

/// Read in 0.30.0, and not in 0.29.0: records are packed where nobody says; before, 8 bits had to be asked for.
pub(super) const PACKS_UNSTATED: Version = Version(0, 29, 1);
/// Read in 0.31.0, and not in 0.30.0: on Blackwell V4.1's entries have 4 bits.
pub(super) const MIXES_RECORDS: Version = Version(0, 31, 0);

/// A model whose rules were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V41,
    Glm5Next,
    Qwen4,
}

impl Family {
    pub(super) fn of(model_type: &str) -> Option<Self> {
        match model_type {
            "deepseek_v4" => Some(Self::V4),
            "deepseek_v41" | "deepseek_v41_text" => Some(Self::V41),
            "glm5_next" | "glm5_next_text" => Some(Self::Glm5Next),
            "qwen4_exp" | "qwen4_exp_text" => Some(Self::Qwen4),
            _ => None,
        }
    }

    /// The first version that has it.
    pub(super) const fn since(self) -> Version {
        match self {
            Self::V4 => Version(0, 20, 0),
            Self::V41 | Self::Glm5Next => PACKS_ANY,
            Self::Qwen4 => beside::READ,
        }
    }

    /// The refusal of a version that lacks it.
    pub(super) fn unknown(model_type: &str, version: Version) -> EngineRefusal {
        EngineRefusal::Architecture {
            engine: super::RULES.name,
            version: version.to_string(),
            model: model_type.to_owned(),
        }
    }

    /// Whether its records are of its own.
    pub(super) const fn packs(self) -> bool {
        matches!(self, Self::V4 | Self::V41)
    }

    /// How they are stored where `--kv-cache-dtype` is `word`, by the kernel of that name or the usual one; else what vLLM says
    /// (`_resolve_dsv4_kv_cache_dtype`).
    pub(super) fn stored(
        self,
        word: &str,
        backend: Option<&str>,
        version: Version,
        capability: u32,
    ) -> Result<Stored, String> {
        let blackwell = is_blackwell(capability);
        // Rows of FlashInfer are plain on data center Blackwell.
        if blackwell && backend.is_some_and(|name| name.starts_with("FLASHINFER_MLA_SPARSE_DSV4")) {
            return match word {
                "auto" | "bfloat16" => Ok(Stored::Own),
                _ if word.starts_with("fp8") && word != "fp8_ds_mla" => Ok(Stored::Narrow),
                _ => Err(format!(
                    "{word} is a packed FlashMLA DeepSeek KV cache format; the selected backend stores plain KV rows."
                )),
            };
        }
        let own = self == Self::V41 && version >= MIXES_RECORDS;
        match word {
            "auto" if version < PACKS_UNSTATED => {}
            "auto" | "fp8" if own && blackwell => return Ok(Stored::Mixed),
            "auto" | "fp8" | "fp8_ds_mla" => return Ok(Stored::Packed),
            "nvfp4_ds_mla" if own && blackwell => return Ok(Stored::Mixed),
            "nvfp4_ds_mla" if own => {
                return Err("nvfp4_ds_mla needs the V4.1 KV records, which FlashMLA decodes only on SM100.".to_owned());
            }
            _ if word.starts_with("fp8") && !own => return Ok(Stored::Packed),
            _ => {}
        }
        let what = if own { "packed KV layouts only support fp8" } else { "fp8_ds_mla layout only supports fp8" };
        Err(format!(
            "DeepseekV4 {what} kv-cache, got {word}. Please set `--kv-cache-dtype fp8` or select a backend that supports bfloat16 KV cache."
        ))
    }

    /// Tokens in a block that all of its kernels read; of none where states decide.
    pub(super) fn block(self, capability: u32) -> Option<u64> {
        match self {
            Self::V4 => Some(256),
            Self::V41 if capability / 10 == 9 => Some(64),
            Self::V41 => Some(128),
            Self::Glm5Next | Self::Qwen4 => None,
        }
    }
}

/// How a DeepSeek record is packed: bytes of a token in a window, of an entry, what pages are multiples of, and what blocks are.
struct Record {
    window: u64,
    entry: u64,
    page: u64,
    block: u64,
}

/// 448 elements of 8 bits, a rope key of 64 in 16 bits, and scales; rows of FlashMLA are 576 bytes apart.
const RECORD: Record = Record { window: 584, entry: 584, page: 576, block: 1 };

/// On Blackwell V4.1's windows are MXFP8, and its entries NVFP4 where its kernel can serve the ranks' heads.
fn record(family: Family, situation: &Situation<'_>) -> Record {
    if family != Family::V41 || !is_blackwell(capability(situation)) {
        return RECORD;
    }
    const MXFP8: u64 = 528;
    // 64 heads in 8 groups, of which a rank needs whole ones.
    let mixes = situation.version >= MIXES_RECORDS && situation.budget.parallel.tp <= 8;
    let entry = if mixes { 288 } else { MXFP8 };
    Record { window: MXFP8, entry, page: 512, block: lcm(MXFP8, entry) }
}

/// The layers of a bucket: alike in what they hold and how many tokens a block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    All,
    Window(u32),
    Ring,
    State { bytes: u64, exported: u64 },
}

/// How many layers of each stage have pages of a size.
type Pages = BTreeMap<u64, Vec<u64>>;

/// The same without states that are pages of what entries are formed of.
pub(super) fn without_forming(mut situation: Situation<'_>) -> Situation<'_> {
    if Family::of(&situation.model.model_type).is_some() {
        situation.caches.states.retain(State::is_recurrent);
        situation.stages.iter_mut().for_each(|stage| stage.caches.states.retain(State::is_recurrent));
    }
    situation
}

pub(super) fn divide(family: Family, situation: &Situation<'_>, block: u64) -> Division {
    let mut buckets = pages(family, situation, block);
    let version = situation.version;
    if version < LAYS_GROUPS_OVER_EACH_OTHER {
        pad_windows(&mut buckets);
    }
    let groups = groups(&buckets, version);
    let counted: Vec<(&Pages, u64)> = buckets.values().zip(groups.iter().copied()).collect();
    let multiple = u128::from(record(family, situation).block);
    let of_stage = |stage: usize| bytes_per_block(&counted, stage, version).next_multiple_of(multiple);
    let bytes_per_block: Vec<u128> = (0..situation.stages.len()).map(of_stage).collect();
    let bytes_of = |pages: &Pages| pages.iter().map(|(page, on)| u128::from(*page) * u128::from(sum(on))).sum();
    let bucket = |(((holds, block), pages), groups): ((&(Holds, u64), &Pages), u64)| {
        let on = |stage: usize| pages.values().map(|on| on[stage]).sum();
        Bucket { spec: spec(*holds), on_stages: (0..situation.stages.len()).map(on).collect(), groups, block: *block }
    };
    Division {
        group_size: None,
        page: buckets.values().filter_map(|pages| pages.keys().max()).max().copied().unwrap_or(0),
        all_stages: bytes_per_block.iter().sum(),
        bytes_per_block,
        bucket_bytes: (version < LAYS_GROUPS_OVER_EACH_OTHER).then(|| buckets.values().map(bytes_of).collect()),
        buckets: buckets.iter().zip(groups.iter().copied()).map(bucket).collect(),
    }
}

/// Blocks of a sequence as older versions counted them: all bytes of its pages, in blocks of full attention's.
pub(super) fn blocks_by_bytes(buckets: &[Bucket], bytes: &[u128], blocks: impl Fn(&Bucket) -> u64) -> u64 {
    let all: u128 = buckets.iter().zip(bytes).map(|(bucket, bytes)| u128::from(blocks(bucket)) * bytes).sum();
    let first = bytes.first().copied().unwrap_or(1).max(1);
    u64::try_from(all.div_ceil(first)).unwrap_or(u64::MAX)
}

const fn spec(holds: Holds) -> Spec {
    let entry = Entry { bytes: 0, heads: 0, head_dim: 0 };
    match holds {
        Holds::All => Spec::Full(entry),
        Holds::Window(window) => Spec::Window { window, block: None, entry },
        Holds::Ring => Spec::Ring,
        Holds::State { bytes, exported } => Spec::State { bytes, exported },
    }
}

fn sum(on_stages: &[u64]) -> u64 {
    on_stages.iter().sum()
}

/// The pages of all layers, full attention first.
fn pages(family: Family, situation: &Situation<'_>, block: u64) -> BTreeMap<(Holds, u64), Pages> {
    let mut buckets: BTreeMap<(Holds, u64), Pages> = BTreeMap::new();
    let record = record(family, situation);
    for (at, Stage { caches, .. }) in situation.stages.iter().enumerate() {
        let mut add = |holds: Holds, block: u64, bytes: u64| {
            let of_bucket = buckets.entry((holds, block)).or_default();
            of_bucket.entry(bytes).or_insert_with(|| vec![0; situation.stages.len()])[at] += 1;
        };
        for cache in &caches.attention {
            let (holds, block, bytes) = page(family, &record, cache, block);
            add(holds, block, bytes);
        }
        for Forming { handler, row_bytes, .. } in &caches.forming {
            let (holds, block, multiple) = forming(family, &record, handler, situation.draft_tokens);
            add(holds, block, (block * row_bytes).next_multiple_of(multiple));
        }
        for state in &caches.states {
            let exported = exported(situation, state);
            let bytes = state_page(situation, state);
            add(Holds::State { bytes, exported }, 0, bytes);
        }
    }
    // A state's page is padded to attention's largest.
    let largest =
        buckets.iter().filter(|((holds, _), _)| *holds == Holds::All).filter_map(|(_, pages)| pages.keys().max());
    let Some(largest) = largest.max().copied() else { return buckets };
    for ((holds, _), pages) in &mut buckets {
        if matches!(holds, Holds::State { .. }) {
            *pages = std::mem::take(pages).into_iter().map(|(page, on)| (page.max(largest), on)).collect();
        }
    }
    buckets
}

/// What a paged cache's layer holds, in blocks of how many tokens, and its page.
fn page(family: Family, record: &Record, cache: &Attention<'_>, block: u64) -> (Holds, u64, u64) {
    let entries = block / cache.stride.max(1);
    let width = match cache.handler.known_shape() {
        Some(Shape::Vector { head_dim }) => head_dim,
        _ => 0,
    };
    let is_index = *cache.handler.kind() == Kind::IndexKey;
    if let Growth::Paged { window: Some(window), .. } = cache.handler.growth() {
        let block = if family == Family::V41 { 32 } else { 64 };
        return (Holds::Window(window), block, (block * record.window).next_multiple_of(record.page));
    }
    let bytes = match family {
        Family::Glm5Next if is_index => entries * index_bytes(width),
        Family::Glm5Next | Family::Qwen4 => entries * cache.bytes,
        Family::V4 | Family::V41 if is_index => (entries * index_bytes(width)).next_multiple_of(record.page),
        Family::V4 | Family::V41 => (entries * record.entry).next_multiple_of(record.page),
    };
    (Holds::All, block, bytes)
}

/// The same of what entries are formed of, whose page is a multiple of the third.
fn forming(family: Family, record: &Record, handler: &ResourceHandler, drafted: u64) -> (Holds, u64, u64) {
    if let Some(ring) = handler.as_ring() {
        return (Holds::Ring, ring.rows(drafted), 1);
    }
    let rows = handler.shape().get(1).map_or(1, |rows| rows.size);
    debug_assert!(family == Family::V4);
    // So that its page is about as large as one of entries (`CompressorStateCache`).
    let block = if rows <= 8 { 4 } else { 8 };
    (Holds::Window(u32::try_from(rows).unwrap_or(u32::MAX)), block, record.page)
}

/// Pages beside full attention's are as large as one of its own.
fn pad_windows(buckets: &mut BTreeMap<(Holds, u64), Pages>) {
    let sizes: Vec<u64> = buckets
        .iter()
        .filter(|((holds, _), _)| *holds == Holds::All)
        .flat_map(|(_, pages)| pages.keys().copied())
        .collect();
    for ((holds, _), pages) in buckets {
        if *holds != Holds::All {
            let padded = |page: u64| sizes.iter().copied().filter(|size| *size >= page).min().unwrap_or(page);
            *pages = std::mem::take(pages).into_iter().map(|(page, on)| (padded(page), on)).collect();
        }
    }
}

/// How many groups each bucket has.
fn groups(buckets: &BTreeMap<(Holds, u64), Pages>, version: Version) -> Vec<u64> {
    let repeats = |pages: &Pages| pages.values().map(|on| sum(on)).max().unwrap_or(0);
    if version < PACKS_ANY {
        let all: Vec<u64> = buckets.values().map(repeats).collect();
        let size = least_padding(&all, all.first().copied().unwrap_or(1));
        let count = |(place, repeats): (usize, &u64)| if place == 0 { 1 } else { repeats.div_ceil(size) };
        return all.iter().enumerate().map(count).collect();
    }
    // As many layers of each page size repeat as a pattern, and only that is divided.
    let balanced = |pages: &Pages| pages.values().all(|on| sum(on) == repeats(pages));
    let least = buckets.values().filter(|pages| balanced(pages) && pages.len() > 1).map(repeats).max();
    let size = least.map(|least| {
        let all: Vec<u64> = buckets.values().filter(|pages| balanced(pages)).map(repeats).collect();
        least_padding(&all, least)
    });
    let by_pattern = |pages: &Pages| size.filter(|_| balanced(pages)).map_or(1, |size| repeats(pages).div_ceil(size));
    // What has one page for a sequence, or is no part of a pattern, does not make the block larger.
    let is_state = |holds: Holds| match holds {
        Holds::All => false,
        Holds::Ring | Holds::State { .. } => true,
        Holds::Window(_) => size.is_none(),
    };
    let widest =
        |pages: &Pages, groups: u64| -> u64 { pages.iter().map(|(page, on)| sum(on).div_ceil(groups) * page).sum() };
    let layers = |pages: &Pages| pages.values().map(|on| sum(on)).sum::<u64>();
    let anchor = buckets.iter().map(|((holds, _), pages)| {
        widest(pages, if is_state(*holds) { layers(pages) } else { by_pattern(pages) }.max(1))
    });
    let anchor = anchor.max().unwrap_or(0);
    let count = |((holds, _), pages): (&(Holds, u64), &Pages)| {
        let page = pages.keys().next().copied().unwrap_or(1).max(1);
        let fitting = if is_state(*holds) { layers(pages).div_ceil((anchor / page).max(1)) } else { 1 };
        by_pattern(pages).max(fitting)
    };
    buckets.iter().map(count).collect()
}

/// The size that adds the fewest layers where each is rounded up to a multiple of it, the largest of several.
fn least_padding(layers: &[u64], at_least: u64) -> u64 {
    let at_least = at_least.max(1);
    let most = layers.iter().copied().max().unwrap_or(at_least);
    let added = |size: u64| layers.iter().map(|layers| layers.next_multiple_of(size) - layers).sum::<u64>();
    (at_least..=most).rev().min_by_key(|size| added(*size)).unwrap_or(at_least)
}

/// Bytes of a block on a stage.
fn bytes_per_block(buckets: &[(&Pages, u64)], stage: usize, version: Version) -> u128 {
    let in_group = |on: &[u64], groups: u64| u128::from(on[stage].div_ceil(groups.max(1)));
    if version >= LAYS_GROUPS_OVER_EACH_OTHER {
        let of_group = |(pages, groups): &(&Pages, u64)| {
            pages.iter().map(|(page, on)| u128::from(*page) * in_group(on, *groups)).sum::<u128>()
        };
        return buckets.iter().map(of_group).max().unwrap_or(0);
    }
    let mut most: BTreeMap<u64, u128> = BTreeMap::new();
    for (pages, groups) in buckets {
        for (page, on) in *pages {
            let known = most.entry(*page).or_default();
            *known = in_group(on, *groups).max(*known);
        }
    }
    if version >= COUNTS_PAGES_BY_SIZE {
        return most.into_iter().map(|(page, count)| u128::from(page) * count).sum();
    }
    // As many pages of every size as of the most frequent.
    let tuples = most.values().copied().max().unwrap_or(0);
    most.keys().map(|page| u128::from(*page)).sum::<u128>() * tuples
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn holds(layers: &Value) -> (Holds, u64) {
        let at = layers[1].as_u64().unwrap();
        match layers[0].as_str().unwrap() {
            "all" => (Holds::All, 256),
            "ring" => (Holds::Ring, at),
            _ => (Holds::Window(at as u32), 64),
        }
    }

    /// What 0.33.0's own `_get_packed_kv_cache_groups` answers about random layers.
    #[test]
    fn layers_with_pages_of_several_sizes_are_grouped_as_by_the_engine() {
        let rows = include_str!("../../../../../tests/fixtures/oracles/vllm-0.33.0.packed.jsonl");
        let newest = Version(0, 33, 0);
        for row in rows.lines() {
            let row: Value = serde_json::from_str(row).unwrap();
            let mut buckets: BTreeMap<(Holds, u64), Pages> = BTreeMap::new();
            for layers in row["layers"].as_array().unwrap() {
                let pages = buckets.entry(holds(layers)).or_default();
                pages.insert(layers[2].as_u64().unwrap(), vec![layers[3].as_u64().unwrap()]);
            }
            let groups = groups(&buckets, newest);
            let engines =
                row["groups"].as_array().unwrap().iter().map(|group| (holds(group), group[2].as_u64().unwrap()));
            let engines: BTreeMap<(Holds, u64), u64> = engines.collect();
            let ours: BTreeMap<(Holds, u64), u64> = buckets.keys().copied().zip(groups.iter().copied()).collect();
            assert_eq!(ours, engines, "{row}");
            let counted: Vec<(&Pages, u64)> = buckets.values().zip(groups).collect();
            assert_eq!(u64::try_from(bytes_per_block(&counted, 0, newest)).ok(), row["bytes"].as_u64(), "{row}");
        }
    }
}
