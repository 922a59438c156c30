//! vLLM: every layer's page has the same bytes; layers of one kind form groups of equal size that share one pool.
//!
//! Rules: read in the 0.17.1 and 0.33.0 sources, a fork of 0.23.0 and the merged changes between. The logged sizes under
//! `tests/fixtures/groundtruth` agree, and so do the answers of the planners of 0.32.0 and 0.33.0 under
//! `tests/fixtures/oracles`.

mod flags;
mod log;

use std::collections::BTreeMap;

use cacheplan_handlers::{DType, DecayKind, Growth, Kind, Recurrence, ResourceHandler, Shape};
use cacheplan_transforms::CacheDTypes;

use crate::PlanError;
use crate::demand::Demand;
use crate::engines::caches::{Attention, State, Storage};
use crate::engines::description::{Description, Numbering};
use crate::engines::expanded;
use crate::engines::{EnginePrediction, MambaCacheMode, Situation, Version};
use crate::solve::last;

pub(crate) use flags::DIALECT;

pub(super) static ENGINE: Description = Description {
    name: "vllm",
    numbering: Numbering::Releases,
    read: &[Version(0, 17, 1), Version(0, 33, 0)],
    dtypes: |model, version| {
        // A model in float32 is run in bfloat16; `auto` follows that (logged: Qwen3-Next bf16 in 0.10 to 0.13).
        let run_in = if model.dtype == DType::F32 { DType::Bf16 } else { model.dtype };
        let cast = (run_in != model.dtype).then_some(run_in);
        // Kimi's delta attention; Nemotron-H in the newest versions, where its config says nothing.
        let float32 = model.model_type.starts_with("kimi")
            || (model.model_type == "nemotron_h" && version >= STATES_OF_NEMOTRON_IN_FLOAT32);
        let state = if float32 { DType::F32 } else { run_in };
        CacheDTypes { kv: cast, conv: cast, state: Some(state), ..CacheDTypes::default() }
    },
    descriptors: |model| match model.model_type.as_str() {
        // Values are as wide as keys.
        "minicpm3" => Some(expanded::latents(|key, _| key)),
        "zamba2" => Some(expanded::heads()),
        _ => None,
    },
    compresses: false,
    captures_apart: true,
    storage: Storage {
        quantises_index: true,
        packs_sparse_latents: true,
        keeps_long_windows: true,
        ..Storage::AS_MODELLED
    },
    predict,
    target: Some(&flags::TARGET),
    arguments: None,
    log: &log::WORDS,
};

/// The reported number of tokens changed its meaning here.
const REPORTS_CONCURRENCY: Version = Version(0, 21, 0);
/// From here on the alignment of a latent's block is that of the kernel that is chosen (change 37467, April 2026), and a
/// stated block is an alignment of a hybrid's block instead of its least size.
const ASKS_THE_KERNEL: Version = Version(0, 21, 0);
/// From here on a group is as large as the most layers of a kind where those are close to the fewest (change 29303).
const PADS_CLOSE_KINDS: Version = Version(0, 12, 0);
/// From here on close is below 1.5 times, before below 1.25 times (change 36684, March 2026).
const PADS_MORE: Version = Version(0, 18, 0);
/// Seen in the answers of 0.32.0 and 0.33.0 alone, so that it holds from there on: steps overlap, of which each may hold a
/// whole batch of tokens.
const OVERLAPS_STEPS: Version = Version(0, 32, 0);
/// Likewise: a state at a block's end is written inside a prefill, into a block of its own.
const EXPORTS_CHECKPOINTS: Version = Version(0, 32, 0);
/// The same of gated delta layers, as 0.33.0 answers and 0.32.0 does not.
const EXPORTS_GATED_DELTA: Version = Version(0, 33, 0);
/// Seen in 0.32.0 and 0.33.0: on Hopper a latent's kernel reads blocks of 16, on Blackwell of 32.
const SMALL_BLOCKS_OF_LATENTS: Version = Version(0, 32, 0);
/// Likewise.
const STATES_OF_NEMOTRON_IN_FLOAT32: Version = Version(0, 32, 0);

/// What a layer needs pages for; layers that are alike in it can share a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spec {
    Full(Entry),
    Window { window: u32, entry: Entry },
    State { bytes: u64, exported: u64 },
}

/// What attention keeps of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    bytes: u64,
    /// Layers of the same bytes and another shape have a group of their own.
    heads: u64,
    head_dim: u64,
}

impl Spec {
    /// Layers of one kind are one group, whatever the bytes of their pages; states only where those are equal.
    const fn kind(self) -> (u8, u64) {
        match self {
            Self::Full(_) => (0, 0),
            Self::Window { window, .. } => (1, window as u64),
            Self::State { bytes, .. } => (2, bytes),
        }
    }
}

/// The layers of one spec, divided into groups.
struct Bucket {
    spec: Spec,
    layers: u64,
    groups: u64,
    /// Tokens in a block.
    block: u64,
}

fn predict(situation: &Situation<'_>) -> Result<EnginePrediction, PlanError> {
    let block = block_size(situation);
    let specs = specs(situation);
    if specs.is_empty() {
        return Ok(EnginePrediction { num_blocks: Some(1), ..EnginePrediction::default() });
    }
    let page = |spec: &Spec| match *spec {
        Spec::Full(entry) | Spec::Window { entry, .. } => entry.bytes * block,
        Spec::State { bytes, .. } => bytes,
    };
    // All pages are padded to the largest; smaller attention pages that divide it hold more tokens instead.
    let target = specs.keys().map(page).max().unwrap_or(0);
    let first = specs.keys().next().map(|spec| spec.kind());
    let uniform = specs.keys().all(|spec| Some(spec.kind()) == first);
    let (group_size, buckets, bytes_per_block) = if uniform {
        // One kind of layer: one group, each layer with its own page.
        let layers = specs.values().sum::<u64>();
        let bytes = specs.iter().map(|(spec, layers)| u128::from(page(spec)) * u128::from(*layers)).sum();
        let spec = *specs.keys().next_back().unwrap_or(&Spec::State { bytes: 0, exported: 0 });
        (layers, vec![Bucket { spec, layers, groups: 1, block }], bytes)
    } else {
        let group_size = group_size(specs.values().copied(), situation.version);
        let buckets = specs.iter().map(|(spec, layers)| Bucket {
            spec: *spec,
            layers: *layers,
            groups: layers.div_ceil(group_size),
            block: match *spec {
                Spec::Full(entry) | Spec::Window { entry, .. } if target.is_multiple_of(page(spec)) => {
                    target / entry.bytes
                }
                _ => block,
            },
        });
        (group_size, buckets.collect(), u128::from(target) * u128::from(group_size))
    };
    let groups: u64 = buckets.iter().map(|bucket| bucket.groups).sum();
    let num_blocks = match situation.options.num_blocks {
        Some(blocks) => blocks,
        None => u64::try_from(u128::from(situation.bytes()?) / bytes_per_block.max(1)).unwrap_or(u64::MAX),
    };
    let blocks_per_request = blocks_per_request(situation, &buckets);
    let concurrency = num_blocks as f64 / blocks_per_request.max(1) as f64;
    let sequences = sequences(situation, &buckets, num_blocks);
    if sequences == 0 {
        return Err(situation.does_not_fit("num_blocks"));
    }
    Ok(EnginePrediction {
        block_size: Some(block),
        page_bytes: Some(target),
        groups: Some(groups),
        group_size: Some(group_size),
        num_blocks: Some(num_blocks),
        padding_layers: Some(buckets.iter().map(|bucket| bucket.groups * group_size - bucket.layers).sum()),
        state_page_bytes: state_pages(situation).max(),
        blocks_per_request: Some(blocks_per_request),
        concurrency: Some((concurrency * 100.0).round() / 100.0),
        tokens: u64::try_from(tokens(situation, &buckets, num_blocks, blocks_per_request)).ok(),
        kv_bytes: u64::try_from(u128::from(num_blocks) * bytes_per_block).ok(),
        sequences: situation.budget.max_batch_size.map_or(sequences, |cap| cap.min(sequences)),
        notes: notes(situation, group_size, groups, target),
        ..EnginePrediction::default()
    })
}

/// Blocks that one sequence of `max_seq_len` tokens needs over all groups.
fn blocks_per_request(situation: &Situation<'_>, buckets: &[Bucket]) -> u64 {
    let length = situation.load.max_seq_len;
    // Context-parallel ranks divide a sequence's tokens, so that each block counts for all of them.
    let ranks = situation.load.context_ranks;
    let in_flight = concurrent_steps(situation) * situation.load.max_num_tokens;
    let chunked = situation.model.model_type.starts_with("llama4");
    let blocks = |bucket: &Bucket| match bucket.spec {
        Spec::Full(_) => length.div_ceil(bucket.block * ranks),
        // A chunk begins with a block, so that one more than it fills is never touched.
        Spec::Window { window, .. } if chunked => (u64::from(window) + in_flight).min(length).div_ceil(bucket.block),
        Spec::Window { window, .. } => (u64::from(window) - 1 + in_flight).min(length).div_ceil(bucket.block) + 1,
        Spec::State { exported, .. } => state_blocks(situation, exported, bucket.block),
    };
    buckets.iter().map(|bucket| bucket.groups * blocks(bucket)).sum()
}

/// Steps that may hold a batch of tokens each. Drafts that come from no model, but from the text, keep them apart.
fn concurrent_steps(situation: &Situation<'_>) -> u64 {
    let drafted_from_text = situation.draft_tokens > 0 && !situation.caches.attention.iter().any(|cache| cache.draft);
    let stages = u64::from(situation.budget.parallel.pp);
    if situation.version >= OVERLAPS_STEPS && !drafted_from_text { stages.max(2) } else { 1 }
}

/// Tokens as this version reports them.
fn tokens(situation: &Situation<'_>, buckets: &[Bucket], num_blocks: u64, blocks_per_request: u64) -> u128 {
    let length = situation.load.max_seq_len;
    if situation.version >= REPORTS_CONCURRENCY {
        return u128::from(num_blocks) * u128::from(length) / u128::from(blocks_per_request.max(1));
    }
    // The block of a group of states is a whole sequence where prefixes are not kept.
    let block = |bucket: &Bucket| match bucket.spec {
        Spec::State { .. } if cache_mode(situation) == MambaCacheMode::None => length,
        _ => bucket.block,
    };
    let smallest = buckets.iter().map(block).min().unwrap_or(1);
    let groups: u64 = buckets.iter().map(|bucket| bucket.groups).sum();
    u128::from(num_blocks / groups) * u128::from(smallest * situation.load.context_ranks)
}

/// Sequences of the workload that run at once.
fn sequences(situation: &Situation<'_>, buckets: &[Bucket], num_blocks: u64) -> u64 {
    let demand = |bucket: &Bucket| {
        let window = match bucket.spec {
            Spec::Full(_) => None,
            Spec::Window { window, .. } => {
                Some(window).filter(|window| u64::from(*window) < situation.load.max_seq_len)
            }
            Spec::State { .. } => return None,
        };
        let growth = Growth::Paged { stride: 1, window };
        Some((Demand::new(growth, 1, bucket.block, &situation.load), bucket.groups))
    };
    let demands: Vec<(Demand, u64)> = buckets.iter().filter_map(demand).collect();
    let states = |bucket: &Bucket| match bucket.spec {
        Spec::State { exported, .. } => bucket.groups * state_blocks(situation, exported, bucket.block),
        Spec::Full(_) | Spec::Window { .. } => 0,
    };
    let states: u64 = buckets.iter().map(states).sum();
    // Block 0 is the null block: counted, never used.
    let usable = num_blocks.saturating_sub(1);
    last(usable.min(1 << 20), |sequences| {
        let paged: u64 =
            demands.iter().map(|(demand, groups)| groups * (demand.units(&situation.load, sequences) - 1)).sum();
        paged + states * sequences <= usable
    })
}

/// How states are kept.
fn cache_mode(situation: &Situation<'_>) -> MambaCacheMode {
    match situation.options.mamba_cache_mode {
        // Without prefix caching any other mode is ignored.
        Some(mode) if situation.prefix_caching() => mode,
        None if situation.prefix_caching() => MambaCacheMode::Align,
        _ => MambaCacheMode::None,
    }
}

/// Blocks of states that one sequence holds in each group.
fn state_blocks(situation: &Situation<'_>, exported: u64, block: u64) -> u64 {
    let drafts = situation.draft_tokens;
    match cache_mode(situation) {
        MambaCacheMode::None => 1 + drafts,
        MambaCacheMode::Align => 2 + drafts + exported,
        MambaCacheMode::All => situation.load.max_seq_len.div_ceil(block) + drafts,
    }
}

/// `A * ceil(state page / (A * bytes per token))` where there are states, `A` being the kernel's alignment.
fn block_size(situation: &Situation<'_>) -> u64 {
    let attention: Vec<&Attention<'_>> = situation.caches.attention.iter().filter(|cache| !cache.draft).collect();
    let latent = attention.iter().any(|cache| *cache.handler.kind() == Kind::MlaPaged);
    let stated = situation.options.block_size;
    let kernel = kernel_block(situation, latent);
    let state = situation.caches.states.iter().map(|state| aligned_state(situation, state)).max().unwrap_or(0);
    let per_token = attention.iter().map(|cache| cache.bytes.div_ceil(cache.stride)).max();
    let (Some(per_token), true) = (per_token, state > 0) else { return stated.unwrap_or(kernel) };
    if situation.version < ASKS_THE_KERNEL {
        let alignment = if latent { 64 } else { 16 };
        return (alignment * state.div_ceil(alignment * per_token)).max(stated.unwrap_or(0));
    }
    let alignment = kernel.max(stated.unwrap_or(0)).max(if latent { 128 } else { 0 });
    let alignment = lcm(alignment, chunk(situation));
    (alignment * state.div_ceil(alignment * per_token)).next_multiple_of(kernel)
}

/// Heads of so many channels have a kernel of their own where their cache is 8 bits wide, which reads blocks of 64.
const WIDE_HEAD: u64 = 512;
/// Seen in 0.32.0 and 0.33.0, of Gemma 4.
const WIDE_HEADS_IN_LARGE_BLOCKS: Version = Version(0, 32, 0);

/// Tokens that a block of attention has unless something else asks for more.
fn kernel_block(situation: &Situation<'_>, latent: bool) -> u64 {
    let small = match situation.options.compute_capability.unwrap_or(90) {
        90..100 => 16,
        100..110 => 32,
        _ => 64,
    };
    let wide = situation.caches.attention.iter().all(|cache| cache.handler.dtype().row_bytes(2) >= Some(4));
    let narrow_and_long = |cache: &Attention<'_>| {
        let (_, head_dim) = shape(cache.handler);
        head_dim >= WIDE_HEAD && cache.handler.dtype().row_bytes(1) == Some(1)
    };
    match latent {
        false if situation.version < WIDE_HEADS_IN_LARGE_BLOCKS => 16,
        false if situation.caches.attention.iter().any(narrow_and_long) => 64,
        false => 16,
        true if situation.version >= SMALL_BLOCKS_OF_LATENTS && wide && !situation.caches.sparse => small,
        true => 64,
    }
}

/// The chunk of the scan that blocks must be multiples of: where it writes states inside a prefill, all layers alike.
fn chunk(situation: &Situation<'_>) -> u64 {
    const GATED_DELTA_CHUNK: u64 = 64;
    let states = &situation.caches.states;
    let exported = situation.version >= EXPORTS_GATED_DELTA && cache_mode(situation) == MambaCacheMode::Align;
    if exported && !states.is_empty() && states.iter().all(is_gated_delta) { GATED_DELTA_CHUNK } else { 1 }
}

fn is_gated_delta(state: &State) -> bool {
    matches!(state.recurrence, Some(Recurrence::LinearAttention { delta_rule: true, decay: DecayKind::PerHead, .. }))
}

/// Blocks more that a layer needs to write a state inside a prefill.
fn exported(situation: &Situation<'_>, state: &State) -> u64 {
    let exports = match state.recurrence {
        Some(Recurrence::Ssd { .. }) => true,
        // Kimi-K3 has kernels of its own for the delta rule of its linear layers.
        Some(Recurrence::LinearAttention { delta_rule: true, .. }) if situation.model.model_type == "kimi_k3" => true,
        _ => chunk(situation) > 1,
    };
    u64::from(exports && situation.version >= EXPORTS_CHECKPOINTS)
}

const fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// The state page of each layer; speculation widens the convolution by the drafted columns.
fn state_pages(situation: &Situation<'_>) -> impl Iterator<Item = u64> {
    situation.caches.states.iter().map(|state| state_page(situation, state))
}

fn state_page(situation: &Situation<'_>, state: &State) -> u64 {
    // Mamba-1 has no kernel that verifies several tokens at once.
    let drafts = if state.recurrence == Some(Recurrence::SelectiveScan) { 0 } else { situation.draft_tokens };
    state.bytes() + drafts * state.conv_column
}

/// What of a state the block is aligned to. A model of short convolutions does not say that drafts widen them, though its
/// layers do.
fn aligned_state(situation: &Situation<'_>, state: &State) -> u64 {
    if state.ssm == 0 { state.bytes() } else { state_page(situation, state) }
}

/// How many layers there are of each spec.
fn specs(situation: &Situation<'_>) -> BTreeMap<Spec, u64> {
    let mut specs = BTreeMap::new();
    for cache in &situation.caches.attention {
        let (heads, head_dim) = shape(cache.handler);
        let entry = Entry { bytes: cache.bytes.div_ceil(cache.stride), heads, head_dim };
        let spec = match cache.handler.growth() {
            Growth::Paged { window: Some(window), .. } => Spec::Window { window, entry },
            _ => Spec::Full(entry),
        };
        *specs.entry(spec).or_default() += 1;
    }
    for state in &situation.caches.states {
        let spec = Spec::State { bytes: state_page(situation, state), exported: exported(situation, state) };
        *specs.entry(spec).or_default() += 1;
    }
    specs
}

fn shape(handler: &ResourceHandler) -> (u64, u64) {
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

fn notes(situation: &Situation<'_>, size: u64, groups: u64, page: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(state) = state_pages(situation).max() {
        notes.push(format!("the attention block is as large as the state page of {state} bytes, padded to {page}"));
    }
    if groups > 1 {
        let layers = situation.caches.attention.len() + situation.caches.states.len();
        notes.push(format!("{groups} groups of {size} layers, {} of them padding", groups * size - layers as u64));
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
