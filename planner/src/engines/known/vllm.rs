//! vLLM: every layer's page has the same bytes; layers of one kind form groups of equal size that share one pool.
//!
//! Rules: read in the 0.17.1 and 0.33.0 sources, a fork of 0.23.0 and the merged changes between. The logged sizes under
//! `tests/fixtures/groundtruth` agree, and so do the answers of the planners of 0.32.0 and 0.33.0 under
//! `tests/fixtures/oracles`.

mod log;
mod packed;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cacheplan_handlers::{DType, DecayKind, Growth, Kind, Recurrence, ResourceHandler, Shape};
use cacheplan_transforms::CacheDTypes;

use crate::budget::MambaCacheMode;
use crate::engines::caches::{Attention, HOPPER, State, Storage};
use crate::engines::expanded;
use crate::engines::prediction::EnginePrediction;
use crate::engines::rules::{EngineRules, Numbering};
use crate::engines::situation::Situation;
use crate::engines::version::Version;
use crate::error::{EngineRefusal, PlanError};
use crate::solver::demand::Demand;
use crate::solver::solve::last;

use packed::Family;

pub(crate) use log::WORDS;

pub(crate) static RULES: EngineRules = EngineRules {
    name: "vllm",
    numbering: Numbering::Releases,
    read: &[Version(0, 17, 1), Version(0, 33, 0)],
    oldest: Version(0, 7, 2),
    dtypes: |model, version, capability| {
        // A model in float32 is run in bfloat16; `auto` follows that (logged: Qwen3-Next bf16 in 0.10 to 0.13).
        let run_in = if model.dtype == DType::F32 { DType::Bf16 } else { model.dtype };
        let cast = (run_in != model.dtype).then_some(run_in);
        // Kimi's delta attention; Nemotron-H in the newest versions, where its config says nothing.
        let float32 = model.model_type.starts_with("kimi")
            || model.model_type.starts_with("glm5_next")
            || (model.model_type == "nemotron_h" && version >= STATES_OF_NEMOTRON_IN_FLOAT32);
        let state = if float32 { DType::F32 } else { run_in };
        let narrow = NARROW_ON_BLACKWELL.contains(&&*model.model_type)
            && version >= SMALL_BLOCKS_OF_LATENTS
            && is_blackwell(capability);
        let narrow = narrow || (model.model_type == "deepseek_v32" && NARROWS_SPARSE.contains(&version));
        let kv = if narrow { Some(DType::F8E4m3) } else { cast };
        CacheDTypes { kv, conv: cast, state: Some(state), ..CacheDTypes::default() }
    },
    // Those of the zoo that `model_executor/models/registry.py` of 0.33.0 does not name.
    lacks: &["rwkv", "recurrent_gemma", "inkling2", "inkling2_text"],
    descriptors: |model| match model.model_type.as_str() {
        // Values are as wide as keys.
        "minicpm3" => Some(expanded::latents(|key, _| key)),
        "zamba2" => Some(expanded::heads()),
        _ => None,
    },
    compresses: true,
    forms_entries: true,
    consumes: &[
        "block_size",
        "num_blocks",
        "prefix_caching",
        "mamba_cache_mode",
        "async_scheduling",
        "hybrid_kv_cache",
    ],
    captures_apart: true,
    logit_bytes: |version| if version < SAMPLES_UNSORTED { SORTED_LOGIT } else { UNSORTED_LOGIT },
    chunks_delta_rules: true,
    // `get_max_prefill_buffer_size` of its sparse attention, measured with the step.
    indexed_sequences: 40,
    storage: Storage {
        quantises_index: true,
        packs_sparse_latents: true,
        plain_sparse_latents_on: BLACKWELL,
        keeps_long_windows: true,
        ..Storage::AS_MODELLED
    },
    refuses,
    predict,
    arguments: None,
};

/// The first version that picks the most likely tokens of eight sequences and more without sorting their logits
/// (vllm-project/vllm#33538).
const SAMPLES_UNSORTED: Version = Version(0, 17, 0);
/// With the sort: 1.25 GiB for 256 sequences of 131,072 logits (measured in vllm-project/vllm#32558).
const SORTED_LOGIT: u64 = 40;
/// As the head gives it, and in float32 as it is, after the softmax, and the noise that it is divided by.
const UNSORTED_LOGIT: u64 = 2 + 4 + 4 + 4;
/// The reported number of tokens changed its meaning here: 0.20.0 logged the old one, a build towards 0.20.1 and 0.20.2 the new.
const REPORTS_CONCURRENCY: Version = Version(0, 20, 1);
/// From here on the alignment of a latent's block is that of the kernel that is chosen (change 37467, April 2026), and a
/// stated block is an alignment of a hybrid's block instead of its least size.
const ASKS_THE_KERNEL: Version = Version(0, 21, 0);
/// Read in 0.12.0 to 0.17.1, and not in 0.11.2 and 0.18.0: a hybrid's heads of 256 on Blackwell have blocks of 32, as FlashInfer
/// reads none of 16.
const WIDE_ON_BLACKWELL: Range<Version> = Version(0, 12, 0)..Version(0, 18, 0);
/// Read in 0.9.1, and not in 0.9.0: layers of several kinds are several groups; before windows beside full attention kept every
/// token.
const GROUPS_KINDS: Version = Version(0, 9, 1);
/// From here on a group is as large as the most layers of a kind where those are close to the fewest (change 29303).
const PADS_CLOSE_KINDS: Version = Version(0, 12, 0);
/// From here on close is below 1.5 times, before below 1.25 times (change 36684, March 2026).
const PADS_MORE: Version = Version(0, 18, 0);
/// Read in 0.26.0, and not in 0.25.0: steps overlap, of which each may hold a whole batch of tokens.
const OVERLAPS_STEPS: Version = Version(0, 26, 0);
/// Also with drafts that come from the text, not from a model, as 0.33.0 answers and 0.32.0 does not.
const OVERLAPS_DRAFTS_FROM_TEXT: Version = Version(0, 33, 0);
/// Read in 0.29.0, and not in 0.28.0: it starts only where the bytes beside the null block hold a sequence of `max_seq_len` tokens.
/// Before, all bytes had to, so that it may start and never end such a sequence.
const RESERVES_THE_NULL_BLOCK: Version = Version(0, 29, 0);
/// Read in 0.14.0 to 0.16.0, not in 0.13.0 and 0.17.1: a sequence in all stages had to fit the poorest one (#34076).
const COUNTS_ALL_STAGES: Range<Version> = Version(0, 14, 0)..Version(0, 17, 0);
/// Read in 0.32.0 and 0.33.0 alone, so that it holds from there on: `--mamba-cache-mode all` is gone.
const WITHOUT_MODE_ALL: Version = Version(0, 32, 0);
/// Likewise: a state at a block's end is written inside a prefill, into a block of its own.
const EXPORTS_CHECKPOINTS: Version = Version(0, 32, 0);
/// The same of gated delta layers, as 0.33.0 answers and 0.32.0 does not.
const EXPORTS_GATED_DELTA: Version = Version(0, 33, 0);
/// Seen in 0.32.0 and 0.33.0: on Hopper a latent's kernel reads blocks of 16, on Blackwell of 32.
const SMALL_BLOCKS_OF_LATENTS: Version = Version(0, 32, 0);
/// Likewise.
const STATES_OF_NEMOTRON_IN_FLOAT32: Version = Version(0, 32, 0);

/// Compute capabilities, times ten, for which FlashInfer's kernels are chosen.
const BLACKWELL: (u32, u32) = (100, 110);

const fn is_blackwell(capability: u32) -> bool {
    BLACKWELL.0 <= capability && capability < BLACKWELL.1
}

/// Merged before 0.11.0 (vllm-project/vllm#25988), and gone later: DeepSeek-V3.2's latents are 8 bits wide where nobody says.
const NARROWS_SPARSE: Range<Version> = Version(0, 11, 0)..Version(0, 11, 1);
/// Model types whose latents are 8 bits wide there where nobody says.
const NARROW_ON_BLACKWELL: [&str; 1] = ["glm_moe_dsa"];
/// Model types that it does not divide into pipeline stages.
const WITHOUT_STAGES: [&str; 4] = ["gemma3n", "gemma3n_text", "mamba2", "zamba2"];

/// What a layer needs pages for; layers that are alike in it can share a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spec {
    Full(Entry),
    Window {
        window: u32,
        entry: Entry,
    },
    State {
        bytes: u64,
        exported: u64,
    },
    /// A block for each sequence.
    Ring,
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
            Self::Ring => (3, 0),
        }
    }
}

/// The layers of one spec, divided into groups.
struct Bucket {
    spec: Spec,
    /// How many there are on each pipeline stage.
    on_stages: Vec<u64>,
    groups: u64,
    /// Tokens in a block.
    block: u64,
}

impl Bucket {
    fn layers(&self) -> u64 {
        self.on_stages.iter().sum()
    }
}

fn refuses(situation: &Situation<'_>) -> Option<EngineRefusal> {
    let (engine, model) = (RULES.name, situation.model.model_type.as_str());
    if situation.stages.len() > 1 && WITHOUT_STAGES.contains(&model) {
        return Some(EngineRefusal::Stages { engine, model: model.to_owned() });
    }
    if situation.options.mamba_cache_mode == Some(MambaCacheMode::All) && situation.version >= WITHOUT_MODE_ALL {
        let version = situation.version.to_string();
        let (path, value) = ("engine.mamba_cache_mode", "all");
        return Some(EngineRefusal::Gone { engine, version, path, value, instead: "\"align\" is what it does" });
    }
    let compressed = situation.caches.attention.iter().find(|cache| cache.stride > 1);
    match (compressed, Family::of(model)) {
        // Ranks that divide a sequence's tokens keep windows whole, which was not read.
        (Some(cache), Some(_)) if situation.load.context_ranks > 1 => {
            return Some(EngineRefusal::Unread { engine, cache: cache.name.to_owned() });
        }
        (Some(_), Some(family)) if situation.version < family.since() => {
            let (model, version) = (model.to_owned(), situation.version.to_string());
            return Some(EngineRefusal::Architecture { engine, version, model });
        }
        (Some(cache), None) => return Some(EngineRefusal::Unread { engine, cache: cache.name.to_owned() }),
        _ => {}
    }
    let latents = situation.caches.attention.iter().find(|cache| *cache.handler.kind() == Kind::MlaPaged);
    let multiple = sparse_block(situation);
    match (latents.filter(|_| situation.caches.sparse), situation.options.block_size) {
        (Some(latent), Some(block)) if !block.is_multiple_of(multiple) => {
            Some(EngineRefusal::Block { engine, cache: latent.name.to_owned(), block, multiple })
        }
        _ => None,
    }
}

/// What blocks of sparse latents are multiples of.
fn sparse_block(situation: &Situation<'_>) -> u64 {
    if is_blackwell(capability(situation)) { 32 } else { 64 }
}

fn capability(situation: &Situation<'_>) -> u32 {
    situation.options.compute_capability.unwrap_or(HOPPER)
}

fn predict(situation: &Situation<'_>) -> Result<EnginePrediction, PlanError> {
    // Layers are grouped before they are divided over stages, and the config is one for all.
    let situation = &packed::without_forming(situation.of_all_stages());
    let block = block_size(situation);
    let division = match Family::of(&situation.model.model_type) {
        Some(family) => packed::divide(family, situation, block),
        None => divide(situation, block)?,
    };
    let Division { group_size, page: target, buckets, bytes_per_block, all_stages, bucket_bytes } = division;
    if buckets.is_empty() {
        return Ok(EnginePrediction { num_blocks: Some(1), ..EnginePrediction::default() });
    }
    let groups: u64 = buckets.iter().map(|bucket| bucket.groups).sum();
    // The poorest stage decides for all.
    let num_blocks = match situation.options.num_blocks {
        Some(blocks) => blocks,
        None => {
            situation.bytes()?;
            let of_stages = situation.stages.iter().zip(&bytes_per_block).filter(|(_, each)| **each > 0);
            let blocks = of_stages.map(|(stage, each)| u128::from(stage.bytes.unwrap_or(0)) / each);
            u64::try_from(blocks.min().unwrap_or(1)).unwrap_or(u64::MAX)
        }
    };
    let length = situation.load.max_seq_len;
    let blocks_of = |length: u64| blocks_per_request(situation, &buckets, length);
    let blocks_per_request = blocks_of(length);
    let counted = match &bucket_bytes {
        Some(bytes) => packed::blocks_by_bytes(&buckets, bytes, |bucket| blocks_of_group(situation, bucket, length)),
        None => blocks_per_request,
    };
    let concurrency = num_blocks as f64 / counted.max(1) as f64;
    let sequences = sequences(situation, &buckets, num_blocks);
    let own_block = bytes_per_block.get(situation.stage).copied().unwrap_or(0);
    let least = situation.stages.iter().filter_map(|stage| stage.bytes).min();
    let (checked, checked_block) = match least.filter(|_| COUNTS_ALL_STAGES.contains(&situation.version)) {
        Some(bytes) => (u64::try_from(u128::from(bytes) / all_stages.max(1)).unwrap_or(u64::MAX), all_stages),
        None => (num_blocks - u64::from(situation.version >= RESERVES_THE_NULL_BLOCK).min(num_blocks), own_block),
    };
    if blocks_per_request > checked {
        let longest = last(length, |length| blocks_of(length) <= checked);
        return Err(situation.too_long("num_blocks", checked_block * u128::from(blocks_per_request), longest));
    }
    let mut notes = notes(situation, group_size, groups, target);
    if sequences == 0 {
        notes.push(format!("it starts, and the null block is one that a sequence of {length} tokens lacks: none ends"));
    }
    Ok(EnginePrediction {
        block_size: Some(block),
        page_bytes: Some(target),
        groups: Some(groups),
        group_size,
        num_blocks: Some(num_blocks),
        padding_layers: group_size
            .map(|size| buckets.iter().map(|bucket| bucket.groups * size - bucket.layers()).sum()),
        state_page_bytes: state_pages(situation).max(),
        blocks_per_request: Some(blocks_per_request),
        concurrency: Some((concurrency * 100.0).round() / 100.0),
        tokens: u64::try_from(tokens(situation, &buckets, num_blocks, counted)).ok(),
        kv_bytes: u64::try_from(u128::from(num_blocks) * own_block).ok(),
        sequences: situation.budget.max_batch_size.map_or(sequences, |cap| cap.min(sequences)),
        notes,
        ..EnginePrediction::default()
    })
}

/// Blocks that one sequence of so many tokens needs over all groups.
fn blocks_per_request(situation: &Situation<'_>, buckets: &[Bucket], length: u64) -> u64 {
    buckets.iter().map(|bucket| bucket.groups * blocks_of_group(situation, bucket, length)).sum()
}

/// The same in one group of a bucket.
fn blocks_of_group(situation: &Situation<'_>, bucket: &Bucket, length: u64) -> u64 {
    // Context-parallel ranks divide a sequence's tokens, so that each block counts for all of them.
    let ranks = situation.load.context_ranks;
    let in_flight = concurrent_steps(situation) * situation.load.max_num_tokens;
    let chunked = situation.model.model_type.starts_with("llama4");
    match bucket.spec {
        Spec::Full(_) => length.div_ceil(bucket.block * ranks),
        // A chunk begins with a block, so that one more than it fills is never touched.
        Spec::Window { window, .. } if chunked => (u64::from(window) + in_flight).min(length).div_ceil(bucket.block),
        Spec::Window { window, .. } => (u64::from(window) - 1 + in_flight).min(length).div_ceil(bucket.block) + 1,
        Spec::State { exported, .. } => state_blocks(situation, exported, bucket.block),
        Spec::Ring => 1,
    }
}

/// How layers are divided into groups.
struct Division {
    /// Layers in a group, where all have as many.
    group_size: Option<u64>,
    /// Bytes of the largest page.
    page: u64,
    buckets: Vec<Bucket>,
    /// Of each stage.
    bytes_per_block: Vec<u128>,
    /// Of one rank that held all stages.
    all_stages: u128,
    /// Where the blocks of a sequence are counted by their bytes: those of each bucket, that of full attention first.
    bucket_bytes: Option<Vec<u128>>,
}

/// Groups of pages of one size, or one group of layers of one kind.
fn divide(situation: &Situation<'_>, block: u64) -> Result<Division, PlanError> {
    let specs = specs(situation)?;
    let bytes_of = |spec: &Spec| match *spec {
        Spec::Full(entry) | Spec::Window { entry, .. } => entry.bytes * block,
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

/// Steps under way, each of which may hold a batch of tokens: one for each stage, and one that is being prepared.
fn concurrent_steps(situation: &Situation<'_>) -> u64 {
    if situation.version < OVERLAPS_STEPS {
        return 1;
    }
    let drafted_from_text = situation.draft_tokens > 0 && !situation.caches.attention.iter().any(|cache| cache.draft);
    let overlaps = situation.version >= OVERLAPS_DRAFTS_FROM_TEXT || !drafted_from_text;
    situation.stages.len() as u64 + u64::from(overlaps && situation.options.async_scheduling.unwrap_or(true))
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
            Spec::State { .. } | Spec::Ring => return None,
        };
        let growth = Growth::Paged { stride: 1, window };
        Some((Demand::new(growth, 1, bucket.block, &situation.load), bucket.groups))
    };
    let demands: Vec<(Demand, u64)> = buckets.iter().filter_map(demand).collect();
    let states = |bucket: &Bucket| match bucket.spec {
        Spec::State { exported, .. } => bucket.groups * state_blocks(situation, exported, bucket.block),
        Spec::Ring => bucket.groups,
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

/// Read in 0.11.2, and not in 0.11.0: states are kept with prefix caching, of model types that keep one for every block.
const KEEPS_STATES: Version = Version(0, 11, 1);
/// Read in 0.15.1, and not in 0.14.0: so are those of others, the last alone.
const KEEPS_LAST_STATES: Version = Version(0, 15, 0);
/// Read in 0.28.0, and not in 0.27.0: where nobody says, the last alone is kept of all model types.
const KEEPS_LAST_STATES_OF_ALL: Version = Version(0, 28, 0);
/// Read in 0.21.0 alone: so it is with drafts.
const KEEPS_LAST_STATES_WITH_DRAFTS: Range<Version> = Version(0, 21, 0)..Version(0, 22, 0);
/// Model types that can keep a state for every block (`SupportsMambaPrefixCaching`), with the chunk of their scan where their
/// class states one.
const KEEPS_EVERY_STATE: [(&str, u64); 9] = [
    ("bamba", 256),
    ("falcon_h1", 256),
    ("falcon_mamba", NO_CHUNK),
    ("granitemoehybrid", 256),
    ("jamba", NO_CHUNK),
    ("mamba", NO_CHUNK),
    ("mamba2", 256),
    ("nemotron_h", 128),
    ("zamba2", 256),
];
/// Mamba-1 has none.
const NO_CHUNK: u64 = 2048;

/// The chunk of the scan of a model that can keep a state for every block.
fn every_state(situation: &Situation<'_>) -> Option<u64> {
    let model = situation.model.model_type.as_str();
    KEEPS_EVERY_STATE.iter().find(|(of, _)| *of == model).map(|(_, chunk)| *chunk)
}

/// How states are kept.
fn cache_mode(situation: &Situation<'_>) -> MambaCacheMode {
    let (version, keeps_all) = (situation.version, every_state(situation).is_some());
    let with_drafts = situation.draft_tokens > 0 && KEEPS_LAST_STATES_WITH_DRAFTS.contains(&version);
    match situation.options.mamba_cache_mode {
        // Without prefix caching any other mode is ignored, and with it a prefix has its state.
        _ if !situation.prefix_caching() || version < KEEPS_STATES => MambaCacheMode::None,
        _ if version < KEEPS_LAST_STATES && !keeps_all => MambaCacheMode::None,
        _ if version < KEEPS_LAST_STATES => MambaCacheMode::All,
        Some(MambaCacheMode::All) if keeps_all => MambaCacheMode::All,
        None | Some(MambaCacheMode::None) if keeps_all && version < KEEPS_LAST_STATES_OF_ALL && !with_drafts => {
            MambaCacheMode::All
        }
        _ => MambaCacheMode::Align,
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
    let family = Family::of(&situation.model.model_type);
    if let Some(block) = family.and_then(|family| family.block(capability(situation))) {
        return stated.unwrap_or(block);
    }
    let kernel = kernel_block(situation, latent);
    let state = situation.caches.states.iter().map(|state| aligned_state(situation, state)).max().unwrap_or(0);
    let per_token = attention.iter().map(|cache| cache.bytes.div_ceil(cache.stride)).max();
    let (Some(per_token), true) = (per_token, state > 0) else { return stated.unwrap_or(kernel) };
    // A state for every block is one at the end of chunks.
    let scan = every_state(situation).filter(|_| cache_mode(situation) == MambaCacheMode::All).unwrap_or(1);
    if situation.version < ASKS_THE_KERNEL {
        let wide = WIDE_ON_BLACKWELL.contains(&situation.version) && is_blackwell(capability(situation));
        let is_wide = |cache: &&Attention<'_>| shape(cache.handler).1 == 256;
        let alignment = match latent {
            true => 64,
            false if wide && attention.iter().any(is_wide) => 32,
            false => 16,
        };
        let alignment = lcm(alignment, scan);
        return (alignment * state.div_ceil(alignment * per_token)).max(stated.unwrap_or(0));
    }
    let alignment = kernel.max(stated.unwrap_or(0)).max(if latent { 128 } else { 0 });
    let alignment = lcm(lcm(alignment, scan), chunk(situation));
    (alignment * state.div_ceil(alignment * per_token)).next_multiple_of(kernel)
}

/// Heads of so many channels have a kernel of their own, which reads blocks of 64, where their cache is 8 bits wide and on
/// Blackwell.
const WIDE_HEAD: u64 = 512;
/// Seen in 0.32.0 and 0.33.0, of Gemma 4.
const WIDE_HEADS_IN_LARGE_BLOCKS: Version = Version(0, 32, 0);

/// Tokens that a block of attention has unless something else asks for more.
fn kernel_block(situation: &Situation<'_>, latent: bool) -> u64 {
    let caches = &situation.caches;
    let blackwell = is_blackwell(capability(situation));
    let wide = caches.attention.iter().all(|cache| cache.handler.dtype().row_bytes(2) >= Some(4));
    let is_long = |cache: &Attention<'_>| shape(cache.handler).1 >= WIDE_HEAD;
    let is_narrow = |cache: &Attention<'_>| cache.handler.dtype().row_bytes(1) == Some(1);
    match latent {
        false if situation.version < WIDE_HEADS_IN_LARGE_BLOCKS => 16,
        false if caches.attention.iter().any(|cache| is_long(cache) && (blackwell || is_narrow(cache))) => 64,
        false => 16,
        true if situation.version < SMALL_BLOCKS_OF_LATENTS || caches.sparse => 64,
        true if blackwell => 32,
        true if wide && capability(situation) < BLACKWELL.0 => 16,
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

/// How many layers there are of each spec on each stage.
fn specs(situation: &Situation<'_>) -> Result<BTreeMap<Spec, Vec<u64>>, PlanError> {
    let stages = situation.stages.len();
    let mut specs: BTreeMap<Spec, Vec<u64>> = BTreeMap::new();
    for (at, stage) in situation.stages.iter().enumerate() {
        let attention = stage.caches.attention.iter().map(|cache| {
            let (heads, head_dim) = shape(cache.handler);
            let entry = Entry { bytes: cache.bytes.div_ceil(cache.stride), heads, head_dim };
            match cache.handler.growth() {
                Growth::Paged { window: Some(window), .. } => Spec::Window { window, entry },
                _ => Spec::Full(entry),
            }
        });
        let states = stage.caches.states.iter();
        let states = states
            .map(|state| Spec::State { bytes: state_page(situation, state), exported: exported(situation, state) });
        for spec in attention.chain(states) {
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

fn notes(situation: &Situation<'_>, size: Option<u64>, groups: u64, page: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(state) = state_pages(situation).max() {
        notes.push(format!("the attention block is as large as the state page of {state} bytes, padded to {page}"));
    }
    if let Some(size) = size.filter(|_| groups > 1) {
        let layers = situation.caches.attention.len() + situation.caches.states.len();
        notes.push(format!("{groups} groups of {size} layers, {} of them padding", groups * size - layers as u64));
    }
    if size.is_none() {
        notes.push(format!("{groups} groups of layers whose pages differ in size, side by side in a block"));
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
