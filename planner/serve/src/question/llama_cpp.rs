//! llama.cpp's own flags and defaults, as `common/arg.cpp` and the server of b11549 have them.

use cacheplan_handlers::{DType, Growth, Kind};
use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use cacheplan_planner::engines::llama_cpp::{
    CELLS, DEFAULT_BATCH, DEFAULT_UBATCH, KV_DTYPES, MOST_SEQUENCES, refuses_head,
};

use super::rules::lists;
use super::{Limits, Question, spread};
use crate::error::ServeError;
use crate::flags::parse::{Setting, program};
use crate::flags::values::stoi;
use crate::remedy::Remedy;

/// Slots of a server that chooses their number itself, which share their cells.
const SLOTS: u64 = 4;
/// From this build on slots that nobody counted share their cells; before there was one. None is longer than what the model was trained
/// for since.
const SHARES: Version = Version(6924, 0, 0);
/// From this build on one slot is one where it is asked for; from [`SHARES`] to here it was taken for the default.
const COUNTS_ONE: Version = Version(7418, 0, 0);
/// From this build on `-fa` has a value, and is `auto` where nobody says; before it was a switch, and off.
pub(super) const FLASH_ATTENTION_HAS_VALUES: Version = Version(6325, 0, 0);
/// From this build on the context is the trained length where nobody states it; before it was [`CONTEXT`].
pub(super) const FITS: Version = Version(7407, 0, 0);
const CONTEXT: u64 = 4096;
/// Seen in b10809, and not in b10566 (ggml-org/llama.cpp#27496): the context that nobody states is that of each stream of cells.
const FITS_EACH: Version = Version(10_809, 0, 0);
const KEYS: &str = "--cache-type-k";
const VALUES: &str = "--cache-type-v";
/// From about this build on (ggml-org/llama.cpp#17046) each sequence's cells are a multiple of [`CELLS`], as their log says.
const PADS: Version = Version(7016, 0, 0);

/// `--model FILE`, or a file of a repository on the hub.
pub(super) fn model(question: &Question) -> Result<Option<String>, ServeError> {
    let named = |name: &str| question.value(name).map(str::to_owned);
    match (named("--model"), named("--hf-repo"), named("--hf-file")) {
        (Some(file), _, _) => Ok(Some(file)),
        (None, Some(repo), Some(file)) => Ok(Some(format!("{}/{file}", repo.split(':').next().unwrap_or(&repo)))),
        (None, Some(repo), None) if question.model_is_given => Ok(Some(repo)),
        (None, Some(repo), None) => {
            let why = format!(
                "which file of {repo} it takes is not known; name it with --hf-file, or its config with --model-config"
            );
            Err(ServeError::unread("--hf-repo", why, []))
        }
        (None, None, _) => Ok(None),
    }
}

/// The trained length that `--override-kv` states instead of the file's; its other keys may decide what caches take.
fn overridden(question: &Question) -> Result<Option<u64>, ServeError> {
    const FLAG: &str = "--override-kv";
    let mut trained = None;
    let said = question.flag(FLAG).map(|setting| setting.values.join(",")).unwrap_or_default();
    for (key, value) in said.split(',').filter_map(|part| part.split_once('=')) {
        let length = value.strip_prefix("int:").and_then(|length| length.parse().ok());
        match length.filter(|_| key.ends_with(".context_length")) {
            Some(length) => trained = Some(length),
            None if key.starts_with("tokenizer.") => {}
            None => {
                let why = format!("`{key}` of the file is another then; ask about a file that has it");
                return Err(ServeError::unread(FLAG, why, [Remedy::Remove(FLAG)]));
            }
        }
    }
    Ok(trained)
}

/// Words that its parser takes of flags whose help has them in sentences (`common/arg.cpp`).
const WORDS: [(&str, &str); 3] = [
    ("--load-mode", "auto none mmap mlock mmap+mlock dio"),
    ("--lazy-mode", "auto on off"),
    ("--numa", "distribute isolate numactl"),
];
/// Numbers that it takes from 0 on.
const COUNTS: [&str; 4] = ["--n-cpu-moe", "--n-cpu-ffn", "--spec-draft-n-max", "--checkpoint-min-step"];

fn cache_type(word: &str) -> Option<DType> {
    KV_DTYPES.into_iter().find(|dtype| dtype.name() == word)
}

/// What its parser refuses of values that are text in its help: names of dtypes, which it takes as they are written alone, and layers.
pub(super) fn look_at_words(question: &Question) -> Result<(), ServeError> {
    spread::devices(question)?;
    const LAYERS: &str = "--n-gpu-layers";
    let refused = |flag: &'static str, said: String, meant: &str| ServeError::Parser {
        program: program(question.engine.engine),
        said: format!("error while handling argument \"{flag}\": {said}"),
        remedies: vec![Remedy::Set(flag, meant.to_owned()), Remedy::Remove(flag)],
    };
    let layers = question.flag(LAYERS).map_or("all", Setting::value);
    if !matches!(layers, "auto" | "all") && stoi(layers).is_none() {
        return Err(refused(LAYERS, "stoi".to_owned(), "all"));
    }
    for (flag, words) in WORDS {
        let stated = question.flag(flag).map(Setting::value).filter(|word| !word.is_empty());
        if stated.is_some_and(|word| !lists(words, word)) {
            let first = words.split(' ').next().unwrap_or_default();
            return Err(refused(flag, "invalid value".to_owned(), first));
        }
    }
    let negative = |flag: &&str| question.flag(flag).and_then(Setting::whole).is_some_and(|number| number < 0);
    if let Some(flag) = COUNTS.into_iter().find(negative) {
        return Err(refused(flag, "invalid value".to_owned(), "0"));
    }
    if question.flag("--parallel").and_then(Setting::whole) == Some(0) {
        return Err(refused("--parallel", "invalid value for n_parallel".to_owned(), "1"));
    }
    for flag in [KEYS, VALUES] {
        let Some(word) = question.flag(flag).map(Setting::value).filter(|word| cache_type(word).is_none()) else {
            continue;
        };
        let written = word.to_lowercase();
        let meant = if cache_type(&written).is_some() { written } else { "q8_0".to_owned() };
        return Err(refused(flag, format!("Unsupported cache type: {word}"), &meant));
    }
    Ok(())
}

pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(Limits, bool), ServeError> {
    let trained = overridden(question)?.or(model.info().max_position_embeddings);
    let version = question.engine.version;
    let stated = match counted(question, "--ctx-size") {
        Some(0) => None,
        None if version < FITS => Some(CONTEXT),
        stated => stated,
    };
    let own = stated.or(trained).ok_or_else(|| question.without_length("--ctx-size"))?;
    let slots = question.flag("--parallel").and_then(Setting::whole).filter(|slots| *slots >= 0);
    if slots.is_some_and(|slots| slots.unsigned_abs() > MOST_SEQUENCES) {
        let said =
            format!("llama_init_from_model: failed to initialize the context: n_seq_max must be <= {MOST_SEQUENCES}");
        return Err(question.refused(said, [Remedy::Set("--parallel", MOST_SEQUENCES.to_string())]));
    }
    let (sequences, shared) = slots_of(question);
    // What fits a context that nobody states to the devices gives each stream of cells the trained length first.
    let wanted = match stated {
        None => own.saturating_mul(streams(question)).min(u32::MAX.into()),
        Some(stated) => stated,
    };
    // In 32 bits: the last cells that these count come to none.
    let padded = |cells: u64| if version < PADS { cells } else { cells.next_multiple_of(CELLS) % (1 << 32) };
    let cells = padded(wanted);
    let each = if shared { cells } else { cells / sequences };
    if each == 0 {
        let said = match cells {
            0 => format!(
                "llama_init_from_model: failed to initialize the context: {wanted} cells in steps of {CELLS} are none in 32 bits"
            ),
            _ => format!("{cells} cells are fewer than {sequences} slots"),
        };
        return Err(question.refused(said, [Remedy::Set("--ctx-size", (sequences * 4096).to_string())]));
    }
    let each = padded(each);
    // What is meant to stretch the trained length raises this limit too.
    let stretches =
        ["--rope-scaling", "--rope-scale", "--rope-freq-scale"].iter().any(|flag| question.flag(flag).is_some());
    question.slot_tokens = trained.filter(|trained| version >= SHARES && each > *trained && !stretches);
    if let Some(trained) = question.slot_tokens {
        question
            .notes
            .push(format!("the slot context ({each}) exceeds the training context of the model ({trained}) - capping"));
    }
    // Slots that share the cells run as many sequences as these hold, of which none is longer than that.
    question.default_of("max_seq_len", question.slot_tokens.filter(|_| shared).unwrap_or(each));
    question.default_of("max_batch_size", sequences);
    // States are each sequence's own.
    let has_cells = question.caches(model)?.iter().any(|cache| matches!(cache.handler.growth(), Growth::Paged { .. }));
    if shared && has_cells {
        question.default_of("engine.context", cells);
    }
    for (flag, key) in [(KEYS, "engine.cache_type_k"), (VALUES, "engine.cache_type_v")] {
        if let Some(dtype) = question.value(flag).and_then(cache_type) {
            question.default_of(key, format!("\"{dtype}\""));
        }
    }
    let plain = |word: &str| matches!(word, "f32" | "f16" | "bf16");
    heads_in_blocks(question, model)?;
    let quantised = question.value(VALUES).is_some_and(|word| !plain(word));
    if quantised && is_without_flash_attention(question) {
        let said = "llama_init_from_model: V cache quantization requires flash_attn";
        // From then on it is `auto` where nobody says.
        let on = match version < FLASH_ATTENTION_HAS_VALUES {
            true => Remedy::Set("--flash-attn", String::new()),
            false => Remedy::Remove("--flash-attn"),
        };
        let remedies = [on, Remedy::Set(VALUES, "f16".into())];
        return Err(question.refused(said, remedies));
    }
    if counted(question, "--batch-size") == Some(0) {
        return Err(question.refused("error: n_batch must be at least 1", [Remedy::Remove("--batch-size")]));
    }
    let batch = batch(question).min(wanted);
    question.put("engine.ubatch", ubatch(question).min(batch));
    drafts(question)?;
    Ok((Limits { max_seq_len: each, max_batch_size: Some(sequences), max_num_tokens: batch }, false))
}

/// How many slots there are, and whether they share their cells: those do of which it chooses the number, whatever is said of that.
fn slots_of(question: &Question) -> (u64, bool) {
    let version = question.engine.version;
    let stated = question.flag("--parallel").and_then(Setting::whole).filter(|slots| *slots >= 0);
    let (slots, chosen) = match stated {
        Some(1) if (SHARES..COUNTS_ONE).contains(&version) => (SLOTS, true),
        Some(slots) => (slots.unsigned_abs(), false),
        None if version < SHARES => (1, false),
        None => (SLOTS, true),
    };
    (slots, chosen || question.is_on("--kv-unified"))
}

/// Whether it fits itself to the devices.
pub(super) fn fits(question: &Question) -> bool {
    question.engine.version >= FITS && question.value("--fit").is_none_or(|value| !OFF.contains(&value))
}

/// Streams of cells that `--fit` counts a context for: slots that share theirs are one.
pub(super) fn streams(question: &Question) -> u64 {
    let counts = question.engine.version >= FITS_EACH && fits(question);
    match slots_of(question) {
        (slots, false) if counts => slots.max(1),
        _ => 1,
    }
}

/// Whether nobody says how many cells there are, so that `--fit` may choose fewer; `0` asks for all that the model was trained for.
pub(super) fn is_free(question: &Question) -> bool {
    counted(question, "--ctx-size").is_none()
}

/// Tokens of a step, of which there are no more than cells; of what gives vectors a step is a pass.
fn batch(question: &Question) -> u64 {
    let stated = counted(question, "--batch-size").unwrap_or(DEFAULT_BATCH);
    let cells = counted(question, "--ctx-size").filter(|cells| *cells > 0).unwrap_or(u64::MAX);
    let gives_vectors = ["--embeddings", "--reranking"].iter().any(|flag| question.is_on(flag));
    if gives_vectors { of_step(question, stated) } else { stated }.min(cells)
}

/// Tokens of a pass, which is no longer than a step.
pub(crate) fn ubatch(question: &Question) -> u64 {
    of_step(question, batch(question))
}

fn of_step(question: &Question, batch: u64) -> u64 {
    match counted(question, "--ubatch-size") {
        Some(0) => batch,
        stated => stated.unwrap_or(DEFAULT_UBATCH).min(batch),
    }
}

/// A number that the parser takes with a sign, and the server counts without one, in 32 bits.
pub(super) fn counted(question: &Question, flag: &str) -> Option<u64> {
    let number = question.flag(flag).and_then(Setting::whole)?;
    u64::try_from(number.rem_euclid(1 << 32)).ok()
}

/// Whether all scores of a pass are kept. From [`FLASH_ATTENTION_HAS_VALUES`] on it is `auto` where nobody says.
pub(super) fn is_without_flash_attention(question: &Question) -> bool {
    let takes_values = question.engine.version >= FLASH_ATTENTION_HAS_VALUES;
    match question.flag("--flash-attn") {
        Some(setting) if takes_values => OFF.contains(&setting.value()),
        Some(_) => false,
        None => !takes_values,
    }
}

/// Heads that are no whole blocks of a stated dtype; without flash attention rows of all heads are in blocks.
fn heads_in_blocks(question: &Question, model: &ModelCaches) -> Result<(), ServeError> {
    let caches = question.caches(model)?;
    let paged = caches.iter().filter(|cache| *cache.handler.kind() == Kind::KvPaged);
    for head in paged.filter_map(|cache| cache.handler.dim("head_dim")) {
        for (flag, of) in [(KEYS, 'k'), (VALUES, 'v')] {
            let dtype = question.value(flag).and_then(cache_type);
            let Some(said) = dtype.and_then(|dtype| refuses_head(of, dtype, head)) else { continue };
            let remedies = [Remedy::Set(flag, "f16".into())];
            if is_without_flash_attention(question) {
                let why = format!("heads of {head} are no whole blocks, and rows of several are not planned");
                return Err(ServeError::unread(flag, why, remedies));
            }
            return Err(question.refused(said, remedies));
        }
    }
    Ok(())
}

/// What it takes for no.
pub(super) const OFF: &[&str] = &["off", "disabled", "false", "0"];

/// `--spec-draft-n-max` where nobody says, by the help of builds of 2026.
const DRAFTED: u64 = 3;

/// What drafts, and how many tokens: states are kept once more for each that a model drafts, and never for those from the text.
fn drafts(question: &mut Question) -> Result<(), ServeError> {
    const TYPE: &str = "--spec-type";
    const MODEL: &str = "--model-draft";
    if question.flag(MODEL).is_some() {
        let why = "the context of a model that drafts was not read";
        return Err(ServeError::unread(MODEL, why, [Remedy::Remove(MODEL)]));
    }
    let Some(kinds) = question.value(TYPE).map(str::to_owned) else { return Ok(()) };
    let from_text = |kind: &&str| *kind == "none" || kind.starts_with("ngram");
    let Some(kind) = kinds.split(',').map(str::trim).find(|kind| !from_text(kind)) else { return Ok(()) };
    if kind != "draft-mtp" {
        let remedies = [Remedy::Remove(TYPE), Remedy::Set("--spec-draft-n-max", "3".into())];
        return Err(ServeError::unread(TYPE, format!("what `{kind}` drafts with was not read"), remedies));
    }
    let tokens = question.count("--spec-draft-n-max").or(question.count("--draft-max")).unwrap_or(DRAFTED);
    if tokens > 0 {
        question.default_of("speculation.draft_tokens", tokens);
        question.default_of("speculation.mtp_layers", 1);
    }
    Ok(())
}
