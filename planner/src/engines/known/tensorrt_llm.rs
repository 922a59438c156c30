//! TensorRT-LLM: one block pool per window that it is told with equal shares of bytes, and states for the largest batch.
//!
//! Rules: read in the PyTorch backend's resource managers; the logged sizes under `tests/fixtures/groundtruth` agree.

mod log;

use std::collections::{BTreeMap, BTreeSet};

use cacheplan_handlers::Growth;
use cacheplan_transforms::{CacheDTypes, is_built_in};

use crate::device::DeviceInfo;
use crate::engines::caches::{Caches, Storage};
use crate::engines::prediction::EnginePrediction;
use crate::engines::rules::{EngineRules, Numbering};
use crate::engines::situation::{Situation, Stage};
use crate::engines::version::Version;
use crate::error::{EngineRefusal, PlanError};
use crate::solver::demand::Demand;
use crate::solver::solve::last;
use crate::solver::step::LOGIT_BYTES;

pub(crate) use log::WORDS;

/// Model types that the PyTorch backend has a class for (`MODEL_ARCH_TO_MODULE`): it refuses all others, and falls back on nothing.
const HAS: &str = "
    NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Nano_VL_V2 afmoe apertus cohere2 cosmos3_edge cosmos3_edge_text deepseek_v3 deepseek_v32
    deepseek_v4 deepseek_v41 deepseek_v41_text exaone4 exaone_moe gemma3 gemma3_text gemma4 gemma4_text gemma4_unified
    gemma4_unified_text glm4_moe glm5_next glm5_next_text glm_moe_dsa gpt_oss hunyuan hunyuan_v1_dense hunyuan_v1_moe hyperclovax
    inkling_mm_model inkling_text kimi_k2 kimi_k25 kimi_k3 kimi_linear kolibri1 laguna llama llama4 llama4_text minicpmv minimax_m2
    minimax_m3 minimax_m3_vl minimax_m3_vl_text ministral3 mistral mistral4 mistral_large4 mistral_large4_text mixtral nemotron
    nemotron-nas nemotron_h nemotron_h_puzzle phi3 phi4_multimodal phi4mm qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl
    qwen2_vl_text qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe qwen3_vl_moe_text
    qwen3_vl_text qwen4_exp qwen4_exp_text seed_oss starcoder2 step3p5 step3p7
";

pub(crate) static RULES: EngineRules = EngineRules {
    name: "tensorrt-llm",
    numbering: Numbering::Releases,
    read: &[Version(1, 3, 0)],
    oldest: Version(0, 19, 0),
    dtypes: |model, _, _, _| CacheDTypes { state: Some(model.dtype), ..CacheDTypes::default() },
    lacks: |model| is_built_in(model) && !HAS.split_whitespace().any(|has| has == model),
    descriptors: |_| None,
    compresses: false,
    forms_entries: false,
    convolves: |_| false,
    consumes: &["block_size", "max_total_tokens", "state_slots", "swa_full"],
    divides_tokens: &[],
    changes: &[],
    divides_whole_models: false,
    captures_apart: true,
    weights_in_blocks: false,
    logit_bytes: |_| LOGIT_BYTES,
    chunks_delta_rules: false,
    indexed_sequences: 0,
    storage: Storage { quantises_index: true, ..Storage::AS_MODELLED },
    stored: |_| Ok(None),
    refuses: |situation| {
        let said = situation.device.and_then(refuses_device);
        let said = said.or_else(|| situation.options.block_size.and_then(refuses_block))?;
        Some(EngineRefusal::Start { engine: RULES.name, version: situation.version, said })
    },
    predict,
    arguments: None,
};

/// Whether it divides layers by their windows where nobody tells it those (`_create_kv_cache_manager`): all others keep all tokens in
/// one pool then (`max_attention_window_vec` of its managers).
pub fn knows_windows(model_type: &str) -> bool {
    ["gemma4", "inkling"].iter().any(|family| model_type.starts_with(family))
}

/// What it says where it finds no device that it runs on.
pub fn refuses_device(device: &DeviceInfo) -> Option<String> {
    let is_other = device.maker().is_some_and(|maker| maker != "NVIDIA");
    is_other.then(|| format!("No CUDA GPUs are available: it runs on NVIDIA's alone, not on {}", device.name))
}

/// What it says of blocks of so many tokens that its kernels do not read (`kvCacheUtils.h`).
pub fn refuses_block(tokens: u64) -> Option<String> {
    let said = || format!("[TensorRT-LLM][ERROR] Assertion failed: tokensPerBlock must be power of 2 (it is {tokens})");
    (!tokens.is_power_of_two()).then(said)
}

/// What a rank has, and what its caches take of it.
struct Rank {
    bytes: u64,
    /// Bytes of a sequence's states.
    per_state: u128,
    /// Bytes of a token in the pool of each window.
    windows: BTreeMap<Option<u32>, u64>,
}

impl Rank {
    fn of(caches: &Caches<'_>, bytes: u64, keeps_all: bool) -> Self {
        let mut windows = BTreeMap::new();
        for cache in &caches.attention {
            *windows.entry(cache.window.filter(|_| !keeps_all)).or_default() += cache.bytes.div_ceil(cache.stride);
        }
        Self { bytes, per_state: caches.state_bytes().into(), windows }
    }

    /// Blocks of each window beside so many states; none where these do not fit.
    fn blocks(&self, slots: u64, block: u64) -> Option<impl Iterator<Item = (Option<u32>, u64)>> {
        // One more state row pads batches.
        let left = u128::from(self.bytes).checked_sub((u128::from(slots) + 1) * self.per_state)?;
        let share = left / self.windows.len().max(1) as u128;
        Some(self.windows.iter().map(move |(window, per_token)| {
            let blocks = share / u128::from(*per_token) / u128::from(block);
            (*window, u64::try_from(blocks).unwrap_or(u64::MAX))
        }))
    }
}

fn predict(situation: &Situation<'_>) -> Result<EnginePrediction, PlanError> {
    let bytes = situation.bytes()?;
    let load = &situation.load;
    let block = situation.options.block_size.unwrap_or(32);
    let keeps_all = situation.options.swa_full.unwrap_or(false);
    let of_stage = |stage: &Stage<'_>| Rank::of(&stage.caches, stage.bytes.unwrap_or(bytes), keeps_all);
    let ranks: Vec<Rank> = situation.stages.iter().map(of_stage).collect();
    let Rank { windows, per_state, .. } = &ranks[situation.stage];
    let per_state = *per_state;
    // All ranks have the blocks of the poorest (`allreduce` of `max_tokens` with `MPI.MIN`).
    let all: BTreeSet<Option<u32>> = ranks.iter().flat_map(|rank| rank.windows.keys().copied()).collect();
    // Several pools take no notice of it (`calculate_max_num_blocks_for_vswa`).
    let stated = situation.options.max_total_tokens.filter(|_| all.len() == 1);
    let most = stated.map_or(u64::MAX, |tokens| tokens / block);
    let blocks_of = |slots: u64| {
        let mut least: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for rank in &ranks {
            for (window, blocks) in rank.blocks(slots, block)? {
                let blocks = blocks.min(most);
                least.entry(window).and_modify(|least| *least = blocks.min(*least)).or_insert(blocks);
            }
        }
        Some(least)
    };
    let demands: Vec<(Option<u32>, Demand)> = all
        .into_iter()
        .map(|window| (window, Demand::new(Growth::Paged { stride: 1, window }, 1, block, load)))
        .collect();
    let serves = |slots: u64, sequences: u64| {
        blocks_of(slots).is_some_and(|blocks| {
            demands.iter().all(|(window, demand)| demand.units(load, sequences) - 1 <= blocks[window])
        })
    };
    // States are allocated for the largest batch, so that the best situation of it is the most that it can serve.
    let wanted = situation.options.state_slots.or(situation.budget.max_batch_size);
    let sequences = match wanted.filter(|_| ranks.iter().any(|rank| rank.per_state > 0)) {
        Some(slots) => last(slots, |sequences| serves(slots, sequences)),
        None => last(wanted.unwrap_or(1 << 20), |sequences| serves(sequences, sequences)),
    };
    if sequences == 0 {
        return Err(situation.does_not_fit("kv_cache_config"));
    }
    let slots = wanted.unwrap_or(sequences);
    let state_bytes = (per_state > 0).then(|| (u128::from(slots) + 1) * per_state);
    let blocks = blocks_of(slots).unwrap_or_default();
    let blocks = |window: &Option<u32>| blocks.get(window).copied().unwrap_or(0);
    let kv_bytes: u128 = windows
        .iter()
        .map(|(window, per_token)| u128::from(blocks(window)) * u128::from(block) * u128::from(*per_token))
        .sum();
    let fewest = windows.keys().map(blocks).min();
    Ok(EnginePrediction {
        block_size: (!windows.is_empty()).then_some(block),
        groups: Some(windows.len() as u64),
        num_blocks: fewest,
        tokens: fewest.map(|blocks| blocks.saturating_mul(block)),
        state_slots: state_bytes.map(|_| slots),
        kv_bytes: u64::try_from(kv_bytes).ok(),
        state_bytes: state_bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        sequences,
        notes: [
            match windows.len() {
                1 => "one pool for all attention layers".into(),
                count => format!("{count} pools, one per window, with equal shares of the bytes"),
            },
            "states for the largest batch and one padding row".into(),
        ]
        .into_iter()
        .take(if per_state > 0 { 2 } else { 1 })
        .collect(),
        ..EnginePrediction::default()
    })
}
