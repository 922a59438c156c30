//! SGLang: a pool of tokens, one of sliding-window tokens and one of states, split at fixed ratios.
//!
//! Rules: read in the 0.5.9 and 0.5.23 wheels; the logged sizes under `tests/fixtures/groundtruth` agree.

mod architectures;
mod compressed;
mod convolutions;
mod log;
mod states;

use cacheplan_handlers::{DType, Growth, Kind, Shape};
use cacheplan_transforms::CacheDTypes;

use crate::budget::{Budget, EngineOptions, Fraction};
use crate::engines::caches::{Attention, Caches, Packing, State, Storage, index_bytes, packed_bytes};
use crate::engines::expanded;
use crate::engines::prediction::EnginePrediction;
use crate::engines::rules::{EngineRules, Numbering};
use crate::engines::situation::Situation;
use crate::engines::stored::{OfAttention, Stored, Telling};
use crate::engines::version::Version;
use crate::error::{EngineRefusal, PlanError};
use crate::solver::demand::Demand;
use crate::solver::solve::last;
use crate::solver::step::LOGIT_BYTES;
use crate::stated::Stated;

use compressed::Family;
use states::{PAYS_COPIES_FROM_SHARE, PAYS_PADDING_SLOT, SHARES, SHARES_WITHOUT_RADIX};

pub(crate) use log::WORDS;
pub use states::{EXTRA_BUFFER, RUNNING_WITH_DRAFTS, SLOTS_WITH_RADIX};
pub(crate) use states::{PAYS_LARGEST_STAGE, slots_per_request};

pub(crate) static RULES: EngineRules = EngineRules {
    name: "sglang",
    numbering: Numbering::Releases,
    read: &[Version(0, 5, 9), Version(0, 5, 23)],
    oldest: Version(0, 4, 6),
    dtypes: |model, _, capability, _| {
        // A model in float32 is run in 16 bits (`_get_and_verify_dtype`).
        let run_in = if model.model_type.starts_with("gemma") { DType::Bf16 } else { DType::F16 };
        let kv = (model.dtype == DType::F32).then_some(run_in);
        // Read in 0.5.3 to 0.5.23 (`_dsa_kv_cache_dtype_default`).
        let narrow = SPARSE_LATENTS.contains(&model.model_type.as_str()) && capability >= BLACKWELL;
        let kv = if narrow { Some(DType::F8E4m3) } else { kv };
        let states_unread = READS_NO_STATES.contains(&model.model_type.as_str());
        CacheDTypes { kv, state: Some(DType::F32), conv: Some(DType::Bf16), states_unread, ..CacheDTypes::default() }
    },
    lacks: architectures::lacks,
    // Run by transformers' code, which multiplies latents out.
    descriptors: |model| (model.model_type == "mistral4").then(|| expanded::latents(|_, value| value)),
    compresses: true,
    forms_entries: true,
    convolves: convolutions::known,
    consumes: &[
        "block_size",
        "max_total_tokens",
        "prefix_caching",
        "state_slots",
        "state_ratio",
        "slots_per_request",
        "window_ratio",
        "hybrid_kv_cache",
        "async_scheduling",
    ],
    divides_tokens: &["dcp"],
    changes: &[
        (STAGES_AGREE, "all pipeline stages have the tokens of the poorest; before, each its own"),
        (SHARES, "states have a share of the bytes; before, slots for as many as run at once"),
        (SHARES_WITHOUT_RADIX, "without prefix caching states have a share of the bytes too"),
        (POOLS_WINDOWS, "windows have a pool of their own where nobody asks for one"),
        (PAYS_COPIES_FROM_SHARE, "copies of states for drafts are paid from the states' share; before, from all bytes"),
        (EXTRA_BUFFER, "with prefix caching a request takes five slots for states, before three"),
        (PAYS_DRAFTS, "what drafts is paid from the share of keys too"),
        (PAYS_LARGEST_STAGE, "a slot for states takes what it does of the stage with the most; before, of all stages"),
        (PAYS_PADDING_SLOT, "the padding slot is paid from the states' share; before nobody paid for it"),
        (SIZES_WINDOWS_BY_REQUESTS, "without prefix caching windows get what the stated batch holds at worst"),
        (INDEXES_WHERE_CHOSEN, "only latents with an indexer of their own have an index"),
    ],
    divides_whole_models: false,
    captures_apart: true,
    weights_in_blocks: false,
    logit_bytes: |_| LOGIT_BYTES,
    chunks_delta_rules: false,
    indexed_sequences: 0,
    storage: Storage {
        copies_shared: true,
        quantises_index: true,
        index_per_latent_before: INDEXES_WHERE_CHOSEN,
        keeps_long_windows: true,
        sets_apart: true,
        packed: packed_latent,
    },
    stored,
    refuses,
    predict,
    arguments: None,
};

/// Model types whose config says the dtype of states by another key than `mamba_ssm_dtype`, which it alone reads (`mamba2_state_dtype`).
const READS_NO_STATES: [&str; 3] = ["nemotron_h", "nemotron_h_puzzle", "NemotronH_Nano_VL_V2"];
/// Model types with latents of sparse attention: `is_deepseek_dsa`, which looks for `index_topk` beside the class and so misses
/// GLM-5.3-Flash's.
const SPARSE_LATENTS: [&str; 2] = ["deepseek_v32", "glm_moe_dsa"];
/// Compute capability, times ten.
const BLACKWELL: u32 = 100;
const CONSUMER_BLACKWELL: u32 = 120;
/// Read in 0.5.10, and not in 0.5.9: on Blackwell the kernels of 8 bits take latents without scales.
const WITHOUT_SCALES: Version = Version(0, 5, 10);
/// Read in 0.5.17, and not in 0.5.16: GLM has kernels of its own on consumer Blackwell, which take scales.
const GLM_ON_SM120: Version = Version(0, 5, 17);

/// Bytes of a latent of 8 bits beside its scales, where the kernels want them.
fn packed_latent(latent: &Packing<'_>) -> Option<u64> {
    wants_scales(latent.model, latent.version, latent.capability, None).then_some(packed_bytes(latent.width))
}

/// How latents of sparse attention are stored; all others as their dtype says.
fn stored(telling: &Telling<'_>) -> Result<Option<Stored>, EngineRefusal> {
    let Telling { model, version, capability, stated, told: OfAttention { word, backend, .. }, .. } = *telling;
    let model = model.model_type.as_str();
    if !SPARSE_LATENTS.contains(&model) {
        return Ok(None);
    }
    let is_narrow = match word.filter(|word| *word != "auto") {
        Some(word) => word.starts_with("fp8"),
        None => stated.map_or(capability >= BLACKWELL, |stated| stated == DType::F8E4m3),
    };
    Ok(Some(match is_narrow {
        false => Stored::Own,
        true if wants_scales(model, version, capability, backend) => Stored::Packed,
        true => Stored::Narrow,
    }))
}

/// Whether the kernels take 8 bits beside scales (`calculate_mla_kv_cache_dim`): those that the engine chooses, or that it is told.
fn wants_scales(model: &str, version: Version, capability: u32, told: Option<&str>) -> bool {
    let own = model == "glm_moe_dsa" && version >= GLM_ON_SM120 && capability >= CONSUMER_BLACKWELL;
    told.map_or(version < WITHOUT_SCALES || capability < BLACKWELL || own, |told| told != "trtllm")
}

/// Model types whose windows have a pool of their own; of all others every token is kept.
pub(crate) const WITH_WINDOWS: [&str; 20] = [
    "beam",
    "deepseek_v4",
    "diffusion_gemma",
    "gemma4",
    "gemma4_text",
    "gemma4_unified",
    "gemma4_unified_text",
    "gpt_oss",
    "granite_swa",
    "granitemoe_swa",
    "inkling_mm_model",
    "inkling_text",
    "laguna",
    "llama4",
    "mellum",
    "mimo_v2",
    "mimo_v2_flash",
    "muse_glimmer",
    "step3p5",
    "step3p7",
];
/// Read in 0.5.14, and not in 0.5.13: what drafts is paid from the share too, as so many layers of the model's own.
const PAYS_DRAFTS: Version = Version(0, 5, 14);
/// Read in 0.5.2, and not in 0.5.1: `max_total_num_tokens` is the least of all ranks.
const STAGES_AGREE: Version = Version(0, 5, 2);
/// Read in 0.5.8, and not in 0.5.6: windows have a pool where nobody asks for one.
const POOLS_WINDOWS: Version = Version(0, 5, 7);
/// From here on only latents with an indexer of their own have an index.
const INDEXES_WHERE_CHOSEN: Version = Version(0, 5, 23);
const STATE_RATIO_MILLIONTHS: u128 = 900_000;
const WINDOW_RATIO_MILLIONTHS: u128 = 800_000;
/// Read in 0.5.21, and not in 0.5.20: without the radix cache and with a stated batch, windows get what the batch holds at worst.
pub const SIZES_WINDOWS_BY_REQUESTS: Version = Version(0, 5, 21);
/// Tokens behind a window before it lets go of them.
const EVICTION_INTERVAL: u64 = 128;

fn refuses(situation: &Situation<'_>) -> Option<EngineRefusal> {
    if let Some(family) = Family::of(&situation.model.model_type) {
        return family.refuses(situation);
    }
    let Caches { attention, forming, .. } = &situation.caches;
    let compressed = |cache: &&Attention<'_>| cache.stride > 1 || *cache.handler.kind() == Kind::CompressedLatent;
    let beside = attention.first().filter(|_| !forming.is_empty());
    let unread = attention.iter().find(compressed).or(beside).filter(|_| !pools_index(situation));
    let unread = unread.or_else(|| attention.first().filter(|_| !convolutions::are_read(situation)))?;
    Some(EngineRefusal::Unread { engine: RULES.name, cache: unread.name.to_owned() })
}

/// Whether the keys of an indexer stand for several tokens, and nothing else does: GLM-5.3 and Qwen4.
fn pools_index(situation: &Situation<'_>) -> bool {
    let model = &*situation.model.model_type;
    let is_known = (model.starts_with("glm5_next") || convolutions::is_qwen4(situation))
        && situation.version >= INDEXES_WHERE_CHOSEN;
    let strided = |cache: &Attention<'_>| cache.stride > 1;
    is_known
        && situation.caches.attention.iter().all(|cache| !strided(cache) || *cache.handler.kind() == Kind::IndexKey)
}

/// The same with an index as it is stored; what its keys are made of lies beside the pools.
fn with_pooled_index(mut situation: Situation<'_>) -> Situation<'_> {
    situation.caches.states.retain(State::is_recurrent);
    situation.stages.iter_mut().for_each(|stage| stage.caches.states.retain(State::is_recurrent));
    // Qwen4's is in 16 bits (`resolve_qsa_indexer_dtype`).
    let quantised = !convolutions::is_qwen4(&situation);
    let index = situation.caches.attention.iter_mut().filter(|cache| *cache.handler.kind() == Kind::IndexKey);
    for cache in index.filter(|_| quantised) {
        if let Some(Shape::Vector { head_dim }) = cache.handler.known_shape() {
            cache.bytes = index_bytes(head_dim);
        }
    }
    situation
}

/// What it allocates as a plan has it started: told how many requests run, but where it then starts with none, or runs fewer
/// than it would untold.
fn predict(situation: &Situation<'_>) -> Result<EnginePrediction, PlanError> {
    let situation = &with_every_layer(convolutions::among_states(situation));
    let told = started(situation);
    let Some(batch) = situation.budget.max_batch_size.filter(|_| situation.stated != Stated::Command) else {
        return told;
    };
    let runs = told.as_ref().map_or(0, |told| told.sequences);
    if runs >= batch {
        return told;
    }
    let budget = Budget { max_batch_size: None, ..situation.budget.clone() };
    match started(&Situation { budget: &budget, ..situation.clone() }) {
        Ok(mut untold) if untold.sequences.min(batch) > runs => {
            untold.sequences = untold.sequences.min(batch);
            untold.notes.push(format!("without --max-running-requests: told {batch}, it runs {runs} of them"));
            Ok(untold)
        }
        _ => told,
    }
}

/// Model types that it has no class of and runs by transformers' code, with keys and values in every layer: what else these keep is lost
/// after each step.
const EVERY_LAYER: [&str; 2] = ["minimax", "recurrent_gemma"];

fn with_every_layer(mut situation: Situation<'_>) -> Situation<'_> {
    if EVERY_LAYER.contains(&&*situation.model.model_type) {
        let Situation { caches, stages, .. } = &mut situation;
        for caches in stages.iter_mut().map(|stage| &mut stage.caches).chain([caches]) {
            let layers = std::mem::take(&mut caches.states).len();
            let attention = caches.attention.first().cloned();
            caches.attention.extend(attention.into_iter().cycle().take(layers));
        }
    }
    situation
}

/// What it allocates of what it is told.
fn started(situation: &Situation<'_>) -> Result<EnginePrediction, PlanError> {
    if situation.stages.len() == 1 {
        return on_rank(situation);
    }
    let all = situation.of_each_stage().map(|rank| on_rank(&rank)).collect::<Result<Vec<_>, _>>()?;
    let least = all.iter().filter_map(|rank| rank.tokens).min().filter(|_| situation.version >= STAGES_AGREE);
    let max_total_tokens = least.or(situation.options.max_total_tokens);
    let options = EngineOptions { max_total_tokens, ..situation.options.clone() };
    let mut own = on_rank(&Situation { options: &options, ..situation.clone() })?;
    own.sequences = all.iter().map(|rank| rank.sequences).min().unwrap_or(own.sequences);
    Ok(own)
}

/// The same on a rank that is alone.
fn on_rank(situation: &Situation<'_>) -> Result<EnginePrediction, PlanError> {
    if let Some(family) = Family::of(&situation.model.model_type) {
        return compressed::predict(family, situation);
    }
    let pooled = pools_index(situation).then(|| with_pooled_index(situation.clone()));
    let situation = pooled.as_ref().unwrap_or(situation);
    let (caches, load) = (&situation.caches, &situation.load);
    let (own_slot, per_slot) = (caches.state_bytes(), states::bytes_of_slot(situation));
    // The kernels of sparse attention read pages of 64 tokens.
    let keys = caches.attention.iter().filter(|cache| *cache.handler.kind() == Kind::IndexKey);
    let pooled = keys.map(|cache| cache.stride).max().filter(|stride| *stride > 1 || caches.sparse);
    let pooled = pooled.map(|stride| if convolutions::is_qwen4(situation) { 1 } else { stride });
    let page = situation.options.block_size.unwrap_or(pooled.map_or(1, |stride| 64 * stride));
    let model_type = situation.model.model_type.as_str();
    let apart = situation.options.hybrid_kv_cache.unwrap_or(true) && situation.version >= POOLS_WINDOWS;
    let knows_windows = apart && WITH_WINDOWS.contains(&model_type);
    let sees_all = |cache: &Attention<'_>| !cache.draft && (cache.window.is_none() || !knows_windows);
    let full = caches.bytes_per_token(sees_all);
    let windowed = caches.bytes_per_token(|cache| !cache.draft && cache.window.is_some() && knows_windows);
    let layers = caches.attention.iter().filter(|cache| sees_all(cache)).count() as u64;
    let drafts = caches.attention.iter().filter(|cache| cache.draft).count() as u64;
    let drafts = if situation.version >= PAYS_DRAFTS { full * drafts / layers.max(1) } else { 0 };
    // Without a full-attention layer every token is kept: the windows' pool needs another to lead it.
    let (full, windowed) = if full == 0 { (windowed, 0) } else { (full, windowed) };
    let paid = full + drafts;

    let slots_per_request = states::each(situation);
    let slots = if per_slot == 0 { None } else { Some(states::slots(situation, per_slot, slots_per_request)?) };
    let state_bytes = slots.map(|slots| (u128::from(slots) + 1) * u128::from(own_slot));
    let charged_bytes = slots.map(|slots| states::charged(situation, slots) * u128::from(per_slot));
    // Copies of every running request's states at each drafted token.
    let drafted = |of: fn(&State) -> u64| {
        let copies = states::copies(situation, slots?, slots_per_request)?;
        Some(copies * u128::from(caches.states.iter().map(of).sum::<u64>()))
    };
    let (speculation_bytes, speculation_conv_bytes) = (drafted(|state| state.ssm), drafted(|state| state.conv));

    let taken = charged_bytes.unwrap_or(0);
    if situation.bytes.is_some_and(|bytes| taken > 0 && taken >= u128::from(bytes)) {
        return Err(situation.does_not_fit("max_mamba_cache_size"));
    }
    let whole_pages = |tokens: u128| tokens / u128::from(page) * u128::from(page);
    let ratio = ratio(situation.options.window_ratio, convolutions::window_ratio(situation));
    let window = caches.attention.iter().filter(|_| windowed > 0).filter_map(|cache| cache.window).max();
    let of_requests = window.and_then(|window| of_requests(situation, window, page));
    let of_bytes = situation.bytes.filter(|_| full > 0).map(|bytes| {
        let rest = u128::from(bytes).saturating_sub(taken);
        match of_requests {
            Some(tokens) => rest.saturating_sub(tokens * u128::from(windowed)) / u128::from(paid),
            None => rest * 1_000_000 / (u128::from(paid) * 1_000_000 + u128::from(windowed) * ratio),
        }
    });
    let stated = situation.options.max_total_tokens.filter(|_| full > 0).map(u128::from);
    let tokens = of_bytes.into_iter().chain(stated).min().map(whole_pages);
    if tokens == Some(0) {
        return Err(situation.does_not_fit("max_total_num_tokens"));
    }
    let window_tokens = tokens.filter(|_| windowed > 0).map(|tokens| match of_requests {
        Some(of_requests) => of_requests.min(tokens),
        None => whole_pages(tokens * ratio / 1_000_000),
    });
    // The floor below which no prefill is ever admitted.
    let floor = window.map(|window| u128::from(reach(window)) + u128::from(page));
    if of_requests.is_none() && floor.zip(window_tokens).is_some_and(|(floor, tokens)| floor >= tokens) {
        // No share of tokens is more than all of them.
        let is_count = situation.options.window_ratio.is_none() || floor >= tokens;
        let by_count = tokens == stated.map(whole_pages) && is_count;
        return Err(situation.does_not_fit(if by_count { "max_total_tokens" } else { "swa_full_tokens_ratio" }));
    }

    let demand = |window| Demand::new(Growth::Paged { stride: 1, window }, 1, page, load);
    let (everything, in_window) = (demand(None), demand(window));
    let sequences = last(1 << 20, |sequences| {
        let holds = |demand: &Demand, tokens: Option<u128>| {
            tokens.is_none_or(|tokens| u128::from(demand.units(load, sequences) - 1) * u128::from(page) <= tokens)
        };
        holds(&everything, tokens)
            && holds(&in_window, window_tokens)
            && slots.is_none_or(|slots| sequences <= slots / slots_per_request)
    });
    if slots.is_some_and(|slots| slots < slots_per_request) {
        return Err(situation.does_not_fit("max_mamba_cache_size"));
    }
    let total = |of: fn(&State) -> u64| slots.map(|slots| (slots + 1) * caches.states.iter().map(of).sum::<u64>());
    let narrow = |bytes: Option<u128>| bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let slack = if page > 1 { u128::from(page) } else { 0 };
    let kv_bytes = tokens.map(|tokens| {
        (tokens + slack) * u128::from(full) + window_tokens.map_or(0, |tokens| tokens + slack) * u128::from(windowed)
    });
    // What drafts has a pool of its own, of as many tokens.
    let of_drafts = caches.bytes_per_token(|cache| cache.draft);
    let draft_kv_bytes = tokens.filter(|_| of_drafts > 0).map(|tokens| (tokens + slack) * u128::from(of_drafts));
    let is_apart = |cache: &Attention<'_>| matches!(cache.handler.known_shape(), Some(Shape::Kv { kv_factor: 2, .. }));
    // As wide as keys.
    let of_values = |bytes: Option<u128>, drafts: bool| {
        let mut caches = caches.attention.iter().filter(|cache| cache.draft == drafts).peekable();
        let are_apart = caches.peek().is_some() && caches.all(is_apart);
        narrow(bytes).filter(|_| are_apart).map(|bytes| bytes / 2)
    };
    Ok(EnginePrediction {
        block_size: Some(page),
        value_bytes: of_values(kv_bytes, false),
        draft_kv_bytes: narrow(draft_kv_bytes),
        draft_share_bytes: narrow(tokens.map(|tokens| (tokens + slack) * u128::from(drafts))).filter(|_| drafts > 0),
        draft_value_bytes: of_values(draft_kv_bytes, true),
        kv_dtype: caches.attention.iter().find(|cache| sees_all(cache)).map(|cache| cache.handler.dtype()),
        tokens: narrow(tokens),
        window_tokens: narrow(window_tokens),
        state_slots: slots,
        kv_bytes: narrow(kv_bytes),
        state_bytes: narrow(state_bytes),
        ssm_bytes: total(|state| state.ssm),
        conv_bytes: total(|state| state.conv),
        speculation_bytes: narrow(speculation_bytes),
        speculation_conv_bytes: narrow(speculation_conv_bytes),
        sequences: situation.budget.max_batch_size.map_or(sequences, |cap| cap.min(sequences)),
        notes: notes(situation, windowed > 0, slots_per_request, sequences),
        ..EnginePrediction::default()
    })
}

/// Whether the windows get what the stated requests hold at worst, where they are stated.
fn sizes_by_requests(situation: &Situation<'_>) -> bool {
    situation.version >= SIZES_WINDOWS_BY_REQUESTS && !situation.prefix_caching()
}

/// Tokens of the windows' pool that the stated requests hold at worst, where it is sized by them.
fn of_requests(situation: &Situation<'_>, window: u32, page: u64) -> Option<u128> {
    let running = situation.budget.max_batch_size.filter(|_| sizes_by_requests(situation))?;
    let drafts = situation.draft_tokens;
    let ahead = if drafts == 0 { page } else { 2 * drafts };
    let each = reach(window) + EVICTION_INTERVAL * drafts.max(1) + page + ahead;
    let prefills = u128::from(steps_under_way(situation)) * u128::from(situation.load.max_num_tokens);
    let all = u128::from(each) * u128::from(running) + prefills + u128::from(page);
    Some(all.next_multiple_of(page.into()))
}

/// Steps that prefill at once: one is prepared while another runs, but where they are told not to overlap, and in stages.
fn steps_under_way(situation: &Situation<'_>) -> u64 {
    let overlaps = situation.options.async_scheduling.unwrap_or(true) && situation.budget.parallel.pp == 1;
    if overlaps { 2 } else { 1 }
}

/// Tokens before the newest that a window reaches.
const fn reach(window: u32) -> u64 {
    window as u64 - 1
}

fn notes(situation: &Situation<'_>, windows: bool, slots_per_request: u64, sequences: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if sequences == 0 {
        let length = situation.load.max_seq_len;
        notes
            .push(format!("it starts, but its pool is smaller than one sequence of {length} tokens, which it refuses"));
    }
    if !situation.caches.states.is_empty() {
        notes.push(format!(
            "states get 0.{} times the tokens' bytes unless stated",
            convolutions::state_ratio(situation) / 100_000
        ));
        notes.push(format!("{slots_per_request} state slots per running request"));
    }
    if windows {
        notes.push(match sizes_by_requests(situation) && situation.budget.max_batch_size.is_some() {
            true => "windows get what the stated requests hold at worst".into(),
            false => format!(
                "windows get 0.{} times the tokens unless stated",
                convolutions::window_ratio(situation) / 100_000
            ),
        });
    }
    if situation.caches.sparse {
        notes.push("an index for every latent, in pages of 64 tokens".into());
    }
    if EVERY_LAYER.contains(&&*situation.model.model_type) {
        notes.push("it has no class of this model and runs transformers' code, with keys and values in every layer: what else these keep is lost after each step".into());
    }
    if notes.is_empty() {
        notes.push("every token has a slot of its own".into());
    }
    notes
}

fn ratio(stated: Option<Fraction>, default: u128) -> u128 {
    stated.map_or(default, |ratio| ratio.of(1_000_000).into())
}
