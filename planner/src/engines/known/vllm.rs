//! vLLM: every layer's page has the same bytes; layers of one kind form groups of equal size that share one pool.
//!
//! Rules: read in the 0.17.1 and 0.33.0 sources, a fork of 0.23.0 and the merged changes between. The logged sizes under
//! `tests/fixtures/groundtruth` agree, and so do the answers of the planners of 0.32.0 and 0.33.0 under
//! `tests/fixtures/oracles`.

mod beside;
mod blocks;
mod changes;
mod count;
mod groups;
mod kernels;
mod log;
mod packed;
mod spec;
mod states;

use std::ops::Range;

use cacheplan_handlers::{DType, Kind};
use cacheplan_transforms::CacheDTypes;

use crate::budget::MambaCacheMode;
use crate::engines::caches::{HOPPER, Storage};
use crate::engines::expanded;
use crate::engines::prediction::EnginePrediction;
use crate::engines::rules::{EngineRules, Numbering};
use crate::engines::situation::Situation;
use crate::engines::version::Version;
use crate::error::{EngineRefusal, PlanError};
use crate::solver::solve::last;

use beside::Keeps;
use blocks::{SMALL_BLOCKS_OF_LATENTS, block_size, sparse_block};
use count::{blocks_of_group, blocks_per_request, sequences, tokens};
use groups::{Division, divide};
use packed::Family;
use states::state_pages;

pub use count::REPORTS_CONCURRENCY;
pub use kernels::{dense_block, reads_latents};
pub(crate) use log::WORDS;

/// Those of the zoo that `model_executor/models/registry.py` of 0.33.0 does not name.
const LACKS: [&str; 9] =
    ["Motif", "inkling2", "inkling2_text", "motif", "recurrent_gemma", "rwkv", "rwkv5", "rwkv6", "rwkv7"];

/// Nemotron-H, and what `MODELS_CONFIG_MAP` says the same of.
const NEMOTRON_H: [&str; 3] = ["nemotron_h", "nemotron_h_puzzle", "NemotronH_Nano_VL_V2"];

pub(crate) static RULES: EngineRules = EngineRules {
    name: "vllm",
    numbering: Numbering::Releases,
    read: &[Version(0, 17, 1), Version(0, 33, 0)],
    oldest: Version(0, 7, 2),
    dtypes: |model, version, capability, conv| {
        // A model in float32 is run in bfloat16; `auto` follows that (logged: Qwen3-Next bf16 in 0.10 to 0.13).
        let run_in = if model.dtype == DType::F32 { DType::Bf16 } else { model.dtype };
        let cast = (run_in != model.dtype).then_some(run_in);
        let reads = |(since, models): &(Version, &[&str])| version >= *since && models.contains(&&*model.model_type);
        let reads_states = READS_STATES.iter().any(reads);
        // Nemotron-H in newer versions, where its config says nothing.
        let float32 = NEMOTRON_H.contains(&&*model.model_type) && version >= STATES_OF_NEMOTRON_IN_FLOAT32;
        // Others as the convolutions beside them (`_mamba_state_dtype`).
        let state = Some(if float32 { DType::F32 } else { conv.unwrap_or(run_in) });
        // `kda_state_dtype`, of whichever model.
        let per_channel = Some(DType::F32);
        let narrow = NARROW_ON.iter().any(|(majors, since, models)| {
            majors.contains(&(capability / 10)) && version >= *since && models.contains(&&*model.model_type)
        });
        let narrow = narrow || (model.model_type == "deepseek_v32" && NARROWS_SPARSE.contains(&version));
        let kv = if narrow { Some(DType::F8E4m3) } else { cast };
        CacheDTypes { kv, conv: cast, state, per_channel, states_unread: !reads_states, ..CacheDTypes::default() }
    },
    lacks: |model| LACKS.contains(&model),
    descriptors: |model| match model.model_type.as_str() {
        // Values are as wide as keys; the others are run by transformers' code.
        "minicpm3" | "mistral4" | "youtu" => Some(expanded::latents(|key, _| key)),
        "zamba2" => Some(expanded::heads()),
        _ => None,
    },
    compresses: true,
    forms_entries: true,
    convolves: |model| beside::Keeps::of(model).is_some(),
    consumes: &[
        "block_size",
        "num_blocks",
        "prefix_caching",
        "mamba_cache_mode",
        "async_scheduling",
        "hybrid_kv_cache",
    ],
    divides_tokens: &["dcp", "cp"],
    changes: &changes::CHANGES,
    divides_whole_models: true,
    captures_apart: true,
    weights_in_blocks: false,
    logit_bytes: |version| if version < SAMPLES_UNSORTED { SORTED_LOGIT } else { UNSORTED_LOGIT },
    chunks_delta_rules: true,
    // `get_max_prefill_buffer_size` of its sparse attention, measured with the step.
    indexed_sequences: 40,
    storage: Storage {
        quantises_index: true,
        packed: kernels::packed,
        keeps_long_windows: true,
        sets_apart: true,
        ..Storage::AS_MODELLED
    },
    stored: kernels::told,
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
/// Read in 0.29.0, and not in 0.28.0: it starts only where the bytes beside the null block hold a sequence of `max_seq_len` tokens.
/// Before, all bytes had to, so that it may start and never end such a sequence.
const RESERVES_THE_NULL_BLOCK: Version = Version(0, 29, 0);
/// Read in 0.14.0 to 0.16.0, not in 0.13.0 and 0.17.1: a sequence in all stages had to fit the poorest one (#34076).
const COUNTS_ALL_STAGES: Range<Version> = Version(0, 14, 0)..Version(0, 17, 0);
/// Read in 0.32.0 and 0.33.0 alone, so that it holds from there on: `--mamba-cache-mode all` is gone.
const WITHOUT_MODE_ALL: Version = Version(0, 32, 0);
/// Read in 0.20.0, and not in 0.19.0.
const STATES_OF_NEMOTRON_IN_FLOAT32: Version = Version(0, 20, 0);
/// Model types whose config is asked for the dtype of states, and since when: the classes that `MODELS_CONFIG_MAP` names with a
/// rule for it, in the releases from 0.12.0 to 0.33.0. Of all others it reads none.
const READS_STATES: [(Version, &[&str]); 5] = [
    (Version(0, 13, 0), &["nemotron_h"]),
    (Version(0, 16, 0), &["nemotron_h_puzzle"]),
    // Logged by builds behind 0.16.0, which has none.
    (Version(0, 16, 1), &["qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"]),
    (Version(0, 18, 0), &["NemotronH_Nano_VL_V2"]),
    (beside::READ, &["qwen4_exp", "qwen4_exp_text"]),
];
/// Compute capabilities, times ten, for which FlashInfer's kernels are chosen.
const BLACKWELL: (u32, u32) = (100, 110);

const fn is_blackwell(capability: u32) -> bool {
    BLACKWELL.0 <= capability && capability < BLACKWELL.1
}

/// Merged before 0.11.0 (vllm-project/vllm#25988), and gone later: DeepSeek-V3.2's latents are 8 bits wide where nobody says.
const NARROWS_SPARSE: Range<Version> = Version(0, 11, 0)..Version(0, 11, 1);
/// Model types whose latents are 8 bits wide where nobody says, on which GPUs (major compute capabilities) and since when: two are told
/// to be, on consumer Blackwell no kernel reads others.
const NARROW_ON: [(Range<u32>, Version, &[&str]); 3] = [
    (10..11, SMALL_BLOCKS_OF_LATENTS, &["glm_moe_dsa"]),
    (10..11, Version(0, 33, 0), &["glm5_next", "glm5_next_text"]),
    (12..13, kernels::table::SPARSE_ON_SM120, &["deepseek_v32", "glm_moe_dsa", "glm5_next", "glm5_next_text"]),
];
/// Read in 0.33.0, and not in 0.32.0: a stated dtype of caches of 16 bits is that which the model is run in.
const OWN_FLOAT: Version = Version(0, 33, 0);

/// The word for the dtype that a model is run in where nobody says; one in float32 is run in bfloat16.
pub fn run_in(model: DType) -> &'static str {
    if model == DType::F16 { "float16" } else { "bfloat16" }
}

/// What it says where caches are to be kept in 16 bits (`word`) that are not those which the model is run in.
pub fn other_float(version: Version, word: &str, run_in: &str) -> Option<String> {
    let is_other = matches!(word, "float16" | "bfloat16") && word != run_in && version >= OWN_FLOAT;
    is_other.then(|| format!("kv_cache_dtype=\"{word}\" is incompatible with dtype=\"{run_in}\""))
}

/// Read in 0.22.0, and not in 0.21.0: where nobody states the step, an item of a model that looks at items in both directions fits into one
/// (`_get_min_mm_batched_tokens`). A stated one that is smaller it refuses.
pub const HOLDS_AN_ITEM: Version = Version(0, 22, 0);

/// Tokens of a picture, and of a video of so many frames at most, of a model type that may look at them in both directions
/// (`get_mm_max_tokens_per_item`).
pub fn items(model_type: &str, frames: Option<u64>) -> Option<[u64; 2]> {
    /// Frames, and tokens of one with its marks and its time.
    const FRAMES: u64 = 32;
    const FRAME: u64 = 70 + 2 + 6;
    match model_type {
        of if of.starts_with("gemma4") => Some([280, frames.unwrap_or(FRAMES).min(FRAMES) * FRAME]),
        of if of.starts_with("gemma3") && !of.starts_with("gemma3n") => Some([256, 0]),
        _ => None,
    }
}

/// Model types that it does not divide into pipeline stages (`SupportsPP` of the classes in the registry of 0.33.0).
pub(crate) const WITHOUT_STAGES: [&str; 15] = [
    "alice_ai",
    "aria",
    "domyn_edge",
    "dory",
    "gemma3n",
    "gemma3n_text",
    "hrm_text",
    "idefics3",
    "iquestloopcoder",
    "mamba2",
    "mamba_ssm",
    "phi4_multimodal",
    "phi4mm",
    "smolvlm",
    "zamba2",
];

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
    if let Some(refusal) = beside::refuses(situation) {
        return Some(refusal);
    }
    let compressed = situation.caches.attention.iter().find(|cache| cache.stride > 1);
    match (compressed, Family::of(model)) {
        // Ranks that divide a sequence's tokens keep windows whole, which was not read.
        (Some(cache), Some(_)) if situation.load.context_ranks > 1 => {
            return Some(EngineRefusal::Unread { engine, cache: cache.name.to_owned() });
        }
        (Some(_), Some(family)) if situation.version < family.since() => {
            return Some(Family::unknown(model, situation.version));
        }
        (Some(cache), None) => return Some(EngineRefusal::Unread { engine, cache: cache.name.to_owned() }),
        _ => {}
    }
    if let Some(refusal) = kernels::refuses(situation) {
        return Some(refusal);
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

/// Read in 0.21.0, and not in 0.20.0: a sequence must fit into the blocks that are stated, and not into the bytes that there are.
const LOOKS_AT_STATED_BLOCKS: Version = Version(0, 21, 0);

fn capability(situation: &Situation<'_>) -> u32 {
    situation.options.compute_capability.unwrap_or(HOPPER)
}

fn predict(situation: &Situation<'_>) -> Result<EnginePrediction, PlanError> {
    // Layers are grouped before they are divided over stages, and the config is one for all.
    let situation = &beside::among_states(packed::without_forming(situation.of_all_stages()));
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
    let of_bytes = || {
        situation.bytes()?;
        let of_stages = situation.stages.iter().zip(&bytes_per_block).filter(|(_, each)| **each > 0);
        let blocks = of_stages.map(|(stage, each)| u128::from(stage.bytes.unwrap_or(0)) / each);
        Ok::<u64, PlanError>(u64::try_from(blocks.min().unwrap_or(1)).unwrap_or(u64::MAX))
    };
    let stated = situation.options.num_blocks;
    let num_blocks = stated.map_or_else(of_bytes, Ok)?;
    let looked_at = match stated {
        Some(blocks) if situation.version < LOOKS_AT_STATED_BLOCKS => of_bytes().unwrap_or(blocks),
        _ => num_blocks,
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
        None => (looked_at - u64::from(situation.version >= RESERVES_THE_NULL_BLOCK).min(looked_at), own_block),
    };
    if blocks_per_request > checked {
        let longest = last(length, |length| blocks_of(length) <= checked);
        let needed = checked_block * u128::from(blocks_per_request);
        let mut error = situation.too_long("num_blocks", needed, longest);
        if let (PlanError::DoesNotFit(shortfall), Some(_)) = (&mut error, stated) {
            shortfall.available = u64::try_from(u128::from(looked_at) * own_block).unwrap_or(u64::MAX);
        }
        return Err(error);
    }
    let mut notes = notes(situation, group_size, groups, target);
    if sequences == 0 {
        notes.push(format!("it starts, and the null block is one that a sequence of {length} tokens lacks: none ends"));
    }
    Ok(EnginePrediction {
        block_size: Some(block),
        least_step: state_pages(situation).max().and(states::least_step(situation, block)),
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

/// The first read version in which hybrids keep prefixes where nobody says.
pub const HYBRIDS_KEEP_PREFIXES: Version = Version(0, 28, 0);

fn notes(situation: &Situation<'_>, size: Option<u64>, groups: u64, page: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(state) = state_pages(situation).max() {
        notes.push(format!("the attention block is as large as the state page of {state} bytes, padded to {page}"));
        if situation.options.prefix_caching.is_none() && situation.version >= HYBRIDS_KEEP_PREFIXES {
            notes.push(
                "prefixes are not kept, as nobody states it; its own command keeps them, in larger blocks: --prefix-caching"
                    .into(),
            );
        }
    }
    if let Some(size) = size.filter(|_| groups > 1) {
        let layers = situation.caches.attention.len() + situation.caches.states.len();
        notes.push(format!("{groups} groups of {size} layers, {} of them padding", groups * size - layers as u64));
    }
    if size.is_none() {
        notes.push(format!("{groups} groups of layers whose pages differ in size, side by side in a block"));
    }
    if states::cache_mode(situation) == MambaCacheMode::All && !situation.caches.states.is_empty() {
        notes.push("prefix caching keeps a state for every block of a sequence (mamba_cache_mode all)".into());
    }
    notes.push("one pool for all groups; block 0 is the null block".into());
    if Keeps::of(&situation.model.model_type) == Some(Keeps::Nothing) {
        notes.push("it has no class of this model and runs transformers' code, of which it keeps keys and values alone: what convolutions keep is lost after each step".into());
    }
    notes
}

const fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
