//! llama.cpp: cells for a context that is fixed at start, float32 states for each parallel sequence.
//!
//! Rules: read in `llama-kv-cache-iswa.cpp` and `llama-context.cpp` of September 2026; the logged sizes under
//! `tests/fixtures/groundtruth` agree.

mod arguments;
mod log;

use cacheplan_handlers::{DType, Kind, ResourceHandler, Shape};
use cacheplan_transforms::CacheDTypes;

use crate::engines::caches::{Attention, Caches, State, Storage};
use crate::engines::expanded;
use crate::engines::prediction::{EnginePrediction, OfLayer};
use crate::engines::rules::{EngineRules, Numbering};
use crate::engines::situation::{Situation, Stage};
use crate::engines::version::Version;
use crate::error::{EngineRefusal, PlanError};
use crate::solver::solve::last;
use crate::solver::step::LOGIT_BYTES;

pub use arguments::DEFAULT_BATCH;
pub(crate) use log::WORDS;

/// Cells come in steps of this many.
pub const CELLS: u64 = 256;
/// From this build on parallel sequences have cells of their own; before they shared them.
const OWN_CELLS: Version = Version(5913, 0, 0);
/// The newest whose sources, and logs, were read.
const NEWEST: Version = Version(11_549, 0, 0);
/// From this build on layers that see a window keep cells for it alone.
const WINDOWS: Version = Version(5432, 0, 0);
/// Model types that it has no windows for: all of their layers see everything.
const WITHOUT_WINDOWS: [&str; 7] = ["mistral", "mixtral", "phi3", "plamo2", "qwen2", "qwen2_moe", "starcoder2"];
/// Model types whose latents it multiplies out into heads before it keeps them.
const EXPANDED: [&str; 2] = ["gguf:deepseek2-whole", "minicpm3"];
/// From about this build on (ggml-org/llama.cpp#23861, merged between b9263 and b9592) its server has logits for what a sequence
/// chooses alone; before for every token of a step.
const FEW_LOGITS: Version = Version(9592, 0, 0);
/// Seen in b9849, and not before it: masks are float16, before float32 and once more in 16 bits.
const SHORT_MASKS: Version = Version(9849, 0, 0);
/// Tokens of a pass where nobody says.
pub const DEFAULT_UBATCH: u64 = 512;
/// What `-ctk` and `-ctv` take (`kv_cache_types` of `common/arg.cpp`), whose names in ggml are ours.
pub const KV_DTYPES: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Iq4Nl,
    DType::Q5_0,
    DType::Q5_1,
];
const STATE_ELEMENT_BYTES: u64 = 4;

/// Those of the zoo that b11549 has no architecture for.
const LACKS: [&str; 18] = [
    "rwkv",
    "recurrent_gemma",
    "zamba2",
    "phi4flash",
    "deepseek_v41",
    "inkling_mm_model",
    "inkling_text",
    "inkling2",
    "inkling2_text",
    "zaya",
    "Motif",
    "motif",
    "alice_ai",
    "PanguProMoE",
    "pangu_ultra_moe",
    "param2moe",
    "rwkv5",
    "step1",
];

pub(crate) static RULES: EngineRules = EngineRules {
    name: "llama.cpp",
    numbering: Numbering::Builds,
    read: &[OWN_CELLS, NEWEST],
    oldest: Version(0, 0, 0),
    // Keys and values are float16 unless -ctk and -ctv say otherwise, whatever the model's dtype or quantisation.
    dtypes: |_, _, _, _| CacheDTypes {
        kv: Some(DType::F16),
        state: Some(DType::F32),
        conv: Some(DType::F32),
        ..CacheDTypes::default()
    },
    lacks: |model| LACKS.contains(&model),
    descriptors: |model| EXPANDED.contains(&model.model_type.as_str()).then(|| expanded::latents(|_, value| value)),
    compresses: true,
    forms_entries: false,
    convolves: |_| false,
    consumes: &["state_slots", "context", "ubatch", "cache_type_k", "cache_type_v", "swa_full"],
    divides_tokens: &[],
    changes: &[
        (WINDOWS, "windows keep cells for themselves alone"),
        (OWN_CELLS, "parallel sequences have cells of their own; before they shared them"),
    ],
    divides_whole_models: false,
    captures_apart: false,
    weights_in_blocks: true,
    logit_bytes: |_| LOGIT_BYTES,
    chunks_delta_rules: false,
    indexed_sequences: 0,
    storage: Storage::AS_MODELLED,
    stored: |_| Ok(None),
    refuses,
    predict,
    arguments: Some(arguments::of),
};

/// llama.cpp refuses a context of more sequences (`LLAMA_MAX_SEQ`; 64 before ggml-org/llama.cpp#15916).
pub const MOST_SEQUENCES: u64 = 256;

/// What it says of keys (`k`) or values (`v`) of heads that are no whole blocks of a dtype, which flash attention does not read.
pub fn refuses_head(of: char, dtype: DType, head: u64) -> Option<String> {
    const BLOCK: u64 = 32;
    let is_in_blocks = !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16);
    (is_in_blocks && !head.is_multiple_of(BLOCK)).then(|| {
        let side = of.to_ascii_uppercase();
        format!("{side} cache type {dtype} with block size {BLOCK} does not divide n_embd_head_{of}={head}")
    })
}

fn refuses(situation: &Situation<'_>) -> Option<EngineRefusal> {
    let options = situation.options;
    let sides = [('k', options.cache_type_k), ('v', options.cache_type_v)];
    let mut heads = situation.caches.attention.iter().filter_map(|cache| cache.handler.dim("head_dim"));
    let said = heads.find_map(|head| {
        sides.into_iter().find_map(|(of, stated)| {
            refuses_head(of, stated.or(situation.budget.dtypes.kv).unwrap_or(DType::F16), head)
        })
    })?;
    Some(EngineRefusal::Start { engine: RULES.name, version: situation.version, said })
}

fn predict(situation: &Situation<'_>) -> Result<EnginePrediction, PlanError> {
    refuse_two_dtypes(situation)?;
    let load = &situation.load;
    let ubatch = situation.options.ubatch.unwrap_or(DEFAULT_UBATCH);
    // A stated context is what a server that chooses its slots itself shares among them.
    let own_cells = situation.version >= OWN_CELLS && situation.options.context.is_none();
    let aligned = |cells: u64| cells.saturating_add(CELLS - 1) / CELLS * CELLS;
    // Cells of one stream: of each sequence, or of all together.
    let stream = |sequences: u64| match situation.options.context {
        Some(context) if situation.version >= OWN_CELLS => aligned(context),
        Some(context) => context,
        None if own_cells => aligned(load.max_seq_len),
        None => load.max_seq_len.saturating_mul(sequences),
    };
    // Compressed entries have a stream for each sequence, and all cells beside them, also where a context is shared.
    let compressed = situation.caches.attention.iter().any(|cache| cache.stride > 1);
    let streams = |sequences: u64| if own_cells || compressed { sequences } else { 1 };
    let context = |sequences: u64| stream(sequences).saturating_mul(if own_cells { sequences } else { 1 });
    let knows_windows = situation.version >= WINDOWS && !WITHOUT_WINDOWS.contains(&situation.model.model_type.as_str());
    let window = |cache: &Attention<'_>| cache.window.filter(|_| knows_windows);
    let cells = |cache: &Attention<'_>, sequences: u64| match window(cache) {
        Some(window) if !situation.options.swa_full.unwrap_or(false) => {
            let sharing = if own_cells || compressed { 1 } else { sequences };
            let needed = u64::from(window).saturating_mul(sharing).saturating_add(ubatch);
            aligned(needed).min(stream(sequences)).saturating_mul(streams(sequences))
        }
        _ if cache.stride > 1 => aligned(stream(sequences).div_ceil(cache.stride)).saturating_mul(streams(sequences)),
        _ => stream(sequences).saturating_mul(streams(sequences)),
    };
    let bytes = |cache: &Attention<'_>, sequences: u64| -> u128 {
        u128::from(cells(cache, sequences)) * u128::from(bytes_per_cell(cache, situation))
    };
    let kv = |caches: &Caches<'_>, sequences: u64| -> u128 {
        caches.attention.iter().map(|cache| bytes(cache, sequences)).sum()
    };
    // A rollback copy per drafted token.
    let copies = |sequences: u64| u128::from(sequences) * u128::from(1 + situation.draft_tokens);
    let bytes_of = |caches: &Caches<'_>, of: fn(&State) -> u64| {
        let elements: u128 = caches.states.iter().map(|state| u128::from(of(state))).sum();
        elements * u128::from(STATE_ELEMENT_BYTES)
    };
    let states_of = |caches: &Caches<'_>| {
        [bytes_of(caches, |state| state.ssm_elements), bytes_of(caches, |state| state.conv_elements)]
    };
    let [ssm, conv] = states_of(&situation.caches);
    // A context has the same cells on every device.
    let fit = |sequences: u64| {
        situation.stages.iter().all(|Stage { caches, bytes }| {
            let states = copies(sequences) * states_of(caches).iter().sum::<u128>();
            bytes.is_none_or(|bytes| kv(caches, sequences) + states <= bytes.into())
        })
    };

    let stated = situation.options.state_slots.or(situation.budget.max_batch_size);
    let sequences = match (situation.bytes, stated) {
        (Some(_), cap) => last(cap.map_or(MOST_SEQUENCES, |cap| cap.min(MOST_SEQUENCES)), fit),
        (None, Some(sequences)) => sequences,
        (None, None) => situation.bytes()?,
    };
    if sequences == 0 {
        return Err(situation.does_not_fit("context cells"));
    }
    // Slots that share a stated context run as many sequences as its cells hold.
    let shared = situation.options.context.filter(|_| !compressed);
    let running = shared.map_or(sequences, |cells| sequences.min(cells / load.tokens_per_sequence().max(1)));
    let narrow = |bytes: u128| u64::try_from(bytes).ok();
    let masked = |windowed: bool| situation.caches.attention.iter().find(|cache| window(cache).is_some() == windowed);
    let masked: u64 = [false, true]
        .into_iter()
        .filter_map(masked)
        .map(|cache| cells(cache, sequences) / streams(sequences).max(1))
        .fold(0, u64::saturating_add);
    let states = !situation.caches.states.is_empty();
    let windowed = situation.caches.attention.iter().find(|cache| window(cache).is_some());
    let of_layer = |cache: &Attention<'_>| {
        let bytes = narrow(bytes(cache, sequences))?;
        Some(OfLayer { layer: cache.layer, windowed: window(cache).is_some(), bytes })
    };
    Ok(EnginePrediction {
        tokens: Some(context(sequences)),
        window_tokens: windowed.map(|cache| cells(cache, sequences)),
        state_slots: states.then_some(sequences),
        kv_bytes: narrow(kv(&situation.caches, sequences)),
        state_bytes: if states { narrow(copies(sequences) * (ssm + conv)) } else { None },
        ssm_bytes: if states { narrow(copies(sequences) * ssm) } else { None },
        conv_bytes: if states { narrow(copies(sequences) * conv) } else { None },
        of_layers: situation.caches.attention.iter().filter_map(of_layer).collect(),
        compute_bytes: compute_bytes(situation, ubatch, masked, sequences),
        sequences: running,
        notes: [
            own_cells.then(|| "every sequence owns max_seq_len cells from the start".into()),
            windowed.map(|_| format!("windows own their cells plus a batch of {ubatch}, in steps of {CELLS}")),
            Some(if own_cells {
                format!("cells are each sequence's own, as with -np since b{}", OWN_CELLS.0)
            } else if compressed {
                "every sequence owns cells for the whole context, though it is said to be shared".into()
            } else {
                format!("all sequences share the cells, as with automatic slots or before b{}", OWN_CELLS.0)
            }),
            (sequences >= MOST_SEQUENCES).then(|| format!("a context has at most {MOST_SEQUENCES} sequences")),
            compressed.then(|| format!("cells of compressed entries come in steps of {CELLS} of each sequence")),
            states.then(|| "states are float32 whatever the model states".into()),
            (states && situation.draft_tokens > 0).then(|| {
                "states are copied for each drafted token, as for those of prediction layers and EAGLE-3; drafts from the text \
                 or of a draft model need no copies"
                    .into()
            }),
        ]
        .into_iter()
        .flatten()
        .collect(),
        ..EnginePrediction::default()
    })
}

/// What it allocates for the largest pass: the widest layer in float32 with what masks the cells, or the logits, whichever is
/// more. Logs under `tests/fixtures` and starts of b11549 without weights are within an eighth.
fn compute_bytes(situation: &Situation<'_>, ubatch: u64, masked: u64, sequences: u64) -> Option<u64> {
    const FLOAT: u64 = 4;
    let step = situation.step?;
    // As wide in the model's own dtype.
    let element = situation.model.dtype.row_bytes(1).unwrap_or(2);
    let channels = step.whole.saturating_add(step.divided) / element;
    let mask = if situation.version < SHORT_MASKS { FLOAT + 2 } else { 2 };
    let of_token = channels.saturating_mul(FLOAT).saturating_add(masked.saturating_mul(mask));
    let chosen = sequences.saturating_mul(1 + situation.draft_tokens);
    let rows = if situation.version < FEW_LOGITS { ubatch } else { chosen.min(ubatch) };
    let logits = rows.saturating_mul(step.vocab).saturating_mul(FLOAT);
    Some(ubatch.saturating_mul(of_token).max(logits))
}

/// A latent is key and value at once, with which it does not start in two dtypes; and what a row holds of a key and of a
/// value is not known where they differ in width.
fn refuse_two_dtypes(situation: &Situation<'_>) -> Result<(), PlanError> {
    let options = situation.options;
    let stated = [options.cache_type_k, options.cache_type_v]
        .map(|dtype| dtype.or(situation.budget.dtypes.kv).unwrap_or(DType::F16));
    if stated[0] == stated[1] {
        return Ok(());
    }
    let has = |of: fn(&Attention<'_>) -> bool| situation.caches.attention.iter().any(of);
    let is_row = |cache: &Attention<'_>| {
        let shape = cache.handler.known_shape();
        let is_one = *cache.handler.kind() == Kind::KvPaged && matches!(shape, Some(Shape::Kv { kv_factor: 1, .. }));
        is_one && !expanded::is_part(cache.name)
    };
    let engine = RULES.name;
    if has(|cache| *cache.handler.kind() == Kind::MlaPaged) {
        return Err(EngineRefusal::LatentInTwoDtypes { engine }.into());
    }
    if has(is_row) {
        return Err(EngineRefusal::RowsInTwoDtypes { engine }.into());
    }
    Ok(())
}

/// A latent is stored once, as keys are; keys and values may have dtypes of their own. So is the key of an indexer that
/// chooses among latents; one that chooses among heads' keys has a value beside it, as wide as itself.
fn bytes_per_cell(cache: &Attention<'_>, situation: &Situation<'_>) -> u64 {
    let own = cache.bytes;
    let (parts, part, heads, width) = match (cache.handler.kind(), cache.handler.known_shape()) {
        (Kind::KvPaged | Kind::MlaPaged, Some(Shape::Kv { kv_factor, num_kv_heads, head_dim })) => {
            (kv_factor, own / kv_factor, num_kv_heads, head_dim)
        }
        (Kind::CompressedLatent, Some(Shape::Vector { head_dim })) => (1, own, 1, head_dim),
        (Kind::IndexKey, Some(Shape::Vector { head_dim })) if situation.caches.sparse || cache.stride > 1 => {
            (1, own, 1, head_dim)
        }
        (Kind::IndexKey, Some(Shape::Vector { head_dim })) => (2, own, 1, head_dim),
        _ => return own,
    };
    let bytes = |dtype: Option<DType>| match dtype.map(|dtype| ResourceHandler::kv_paged(heads, width, dtype)) {
        // One of two equal parts: keys or values.
        Some(Ok(handler)) => handler.unit_bytes() / 2,
        _ => part,
    };
    // The context of what drafts has types of its own, which nothing states here.
    let [keys, values] = match cache.draft {
        true => [Some(DType::F16); 2],
        false => [situation.options.cache_type_k, situation.options.cache_type_v],
    };
    let first = if expanded::is_of_values(cache.name) { values } else { keys };
    bytes(first) + if parts == 2 { bytes(values) } else { 0 }
}
