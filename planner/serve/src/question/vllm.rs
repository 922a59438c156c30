//! vLLM's own flags and defaults, as `engine/arg_utils.py` and `config/` of each version that was read have them.

mod attention;
mod batch;
mod drafter;
mod dtype;
mod fields;
mod graphs;
pub(super) mod heads;
mod joined;
mod memory;
mod names;
mod rules;
mod runner;
mod towers;
mod transfers;
mod v0;
pub(super) mod words;

use std::ops::Range;

use cacheplan_handlers::{Kind, ResourceHandler};
use cacheplan_planner::engines::Version;
use cacheplan_planner::engines::vllm::{HYBRIDS_KEEP_PREFIXES, REPORTS_CONCURRENCY};
use cacheplan_planner::{ModelCaches, Override, PlanRequest};

use super::blocks::{self, Cut};
use super::rules::{Case, look, look_at_rows};
use super::{HEADS, Limits, Question, calibrated, connectors, of_config, quantization, speculation};
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Read in 0.19.0, and not in 0.20.0: events of caches turn the grouping of layers off.
const EVENTS_WITH_GROUPS: Version = Version(0, 20, 0);
/// Read in 0.10.2 to 0.12.0, and not in 0.9.1 and 0.14.0: so do chunks of local attention, unless a variable keeps it on.
const CHUNKS_WITHOUT_GROUPS: Range<Version> = Version(0, 10, 0)..Version(0, 14, 0);

/// The most sequences that run, of those that a step has room for.
pub(crate) const ACTIVE: &str = "--max-num-active-seqs";

/// `DEFAULT_VOCAB_PADDING_SIZE`.
const VOCABULARY: u64 = 64;

/// What its configuration refuses of words that its parser takes.
pub(super) fn look_at_words(question: &Question) -> Result<(), ServeError> {
    fields::look(question)?;
    fields::bounds(question)?;
    dtype::name(question)?;
    words::backend(question)
}

/// The most sequences that run at once, where they are fewer than a step has room for.
pub(super) fn most_running(question: &Question) -> Option<u64> {
    question.count(ACTIVE)
}

/// The longest sequence where a model that drafts cannot follow it as far.
pub(super) fn with_draft(
    question: &mut Question,
    model: &ModelCaches,
    draft: &ModelCaches,
    limits: Limits,
) -> Result<Limits, ServeError> {
    heads::beside(question, model, draft)?;
    runner::without_stages(question, draft)?;
    runner::same_ranks(question, draft)?;
    runner::same_words(question, model, draft)?;
    let max_seq_len = runner::longest(question, draft, limits.max_seq_len)?;
    if max_seq_len < limits.max_seq_len {
        question.put("max_seq_len", max_seq_len);
    }
    Ok(Limits { max_seq_len, ..limits })
}

/// A model that drafts, as this version runs it; none where only its layers that predict are run.
pub(super) fn as_run(question: &Question, draft: &ModelCaches) -> Result<Option<ModelCaches>, ServeError> {
    match heads::predicts(question, draft)? {
        true => Ok(None),
        false => drafter::as_run(question, draft).map(Some),
    }
}

/// What it asks of caches once they are known: that they have kernels, and how many blocks they must have at least.
pub(super) fn look_at_caches(
    question: &mut Question,
    request: &PlanRequest,
    limits: &Limits,
) -> Result<u64, ServeError> {
    dtype::bfloat16(question, request)?;
    dtype::kernels(question, request)?;
    Ok(memory::least_blocks(question, request, limits))
}

/// Tokens between states, or beginnings of windows, that are kept for reuse.
const RETENTION: &str = "--prefix-cache-retention-interval";

impl Question {
    /// Hits land on multiples of a block, once that is known (`_validate_prefix_cache_retention_interval`).
    pub(crate) fn refuse_interval(&self, block: u64) -> Result<(), ServeError> {
        let block = block.saturating_mul(self.count("--decode-context-parallel-size").unwrap_or(1));
        let broken = |interval: &u64| block > 0 && !interval.is_multiple_of(block);
        let Some(interval) = self.count(RETENTION).filter(broken) else { return Ok(()) };
        let said = format!(
            "prefix_cache_retention_interval ({interval}) must be non-negative and a multiple of scheduler_block_size ({block})."
        );
        let more = interval.checked_next_multiple_of(block).map(|more| Remedy::Set(RETENTION, more.to_string()));
        Err(self.refused(said, more.into_iter().chain([Remedy::Remove(RETENTION)])))
    }
}

/// What of a hybrid an older version's log says otherwise, and whoever renews it sees change.
fn of_its_version(question: &mut Question, keeps: bool) {
    if keeps && !question.is_stated("engine.prefix_caching") {
        question.notes.push(format!(
            "it keeps prefixes where nobody says, of models with states since {HYBRIDS_KEEP_PREFIXES}, and a sequence takes more \
             blocks of states then; --no-enable-prefix-caching keeps none"
        ));
    }
    if question.engine.version >= REPORTS_CONCURRENCY {
        question.notes.push(format!(
            "the tokens of its log are those of whole sequences of the longest length, before {REPORTS_CONCURRENCY} those of its \
             blocks: concurrency is what compares"
        ));
    }
}

pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(Limits, bool), ServeError> {
    let (max_seq_len, fits_length) = batch::length(question, model)?;
    let (has_states, has_pages) = kinds(question, model)?;
    v0::refuse(question)?;
    variables(question, model)?;
    parallel(question, model)?;
    let batch = batch::batch(question, model, max_seq_len)?;
    batch::has_room(question, model, batch.max_num_tokens)?;
    question.default_of("max_seq_len", max_seq_len);
    question.default_of("max_num_tokens", batch.max_num_tokens);
    question.default_of("max_batch_size", batch.max_batch_size.unwrap_or(1));
    let case = Case::of(question, model, Limits { max_seq_len, ..batch })?;
    transfers::refuse_encoders(question, model)?;
    if question.engine.version >= joined::READ {
        look_at_rows(joined::ROWS, question, Some(&case))?;
    }
    look(rules::RULES, &case)?;
    look(joined::RULES, &case)?;
    look(transfers::RULES, &case)?;
    question.refuse_partition("VLLM_PP_LAYER_PARTITION", "--pipeline-parallel-size")?;
    let keeps = has_pages && (!has_states || question.engine.version >= HYBRIDS_KEEP_PREFIXES);
    if has_states && has_pages {
        of_its_version(question, keeps);
    }
    question.default_of("engine.prefix_caching", keeps);
    state_blocks(question, max_seq_len)?;
    class(question)?;
    without_buffers(question)?;
    grouping(question, model);
    connectors::settle(question, model)?;
    attention::settle(question)?;
    attention::named_block(question);
    if has_pages {
        attention::block(question)?;
    }
    dtype::dtype(question, model)?;
    calibrated::settle(question, model, &dtype::READS);
    memory::memory(question)?;
    speculation::settle(question, model)?;
    runner::settle(question, model)?;
    quantization::settle(question, model)?;
    towers::settle(question, model)?;
    if question.is_on("--disable-hybrid-kv-cache-manager") {
        question.default_of("engine.hybrid_kv_cache", false);
    }
    unified(question, has_states && has_pages)?;
    if let Some(share) = question.share("--watermark").filter(|share| *share > 0.0) {
        question.notes.push(format!(
            "--watermark {share} keeps that share of the blocks free where a prompt is admitted beside others: of long prompts fewer run at once than are held"
        ));
    }
    if let Some(backend) = attention::named(question) {
        question.notes.push(format!("blocks are those of the kernels that vLLM chooses; {backend} may read others"));
    }
    Ok((Limits { max_seq_len, ..batch }, fits_length))
}

/// Variables that change what caches are, by what `distributed/utils.py` and `config/model.py` of 0.33.0 make of them.
fn variables(question: &Question, model: &ModelCaches) -> Result<(), ServeError> {
    const WITHOUT_LATENTS: &str = "VLLM_MLA_DISABLE";
    let is_off = question.env.contains_key(WITHOUT_LATENTS) && is_on(question, WITHOUT_LATENTS) != Some(false);
    let caches = question.caches(model)?;
    if is_off && caches.iter().any(|cache| *cache.handler.kind() == Kind::MlaPaged) {
        let why = "keys and values in full in place of latents are not planned".to_owned();
        return Err(ServeError::NotHandled { flag: WITHOUT_LATENTS.into(), why, remedies: Vec::new() });
    }
    Ok(())
}

/// What turns the grouping of layers off: in older versions events of caches, and chunks of local attention unless a variable keeps it on;
/// later these where the variable says so.
fn grouping(question: &mut Question, model: &ModelCaches) {
    const KEEPS: &str = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE";
    let version = question.engine.version;
    let publishes = question.flag("--kv-events-config").is_some() && version < EVENTS_WITH_GROUPS;
    let kept = is_on(question, KEEPS).unwrap_or(!CHUNKS_WITHOUT_GROUPS.contains(&version));
    let chunks = model.info().model_type.starts_with("llama4") && version >= CHUNKS_WITHOUT_GROUPS.start && !kept;
    if publishes || chunks {
        question.default_of("engine.hybrid_kv_cache", false);
    }
}

/// Without groups states and pages would be one kind (`unify_hybrid_kv_cache_specs`, read in 0.22.0 to 0.33.0).
fn unified(question: &Question, has_both: bool) -> Result<(), ServeError> {
    const UNIFIES: Version = Version(0, 22, 0);
    const PROMOTES: Version = Version(0, 28, 0);
    let is_off = |stated: &Override| stated.key == "engine.hybrid_kv_cache" && stated.value == "false";
    if !has_both || question.engine.version < UNIFIES || !question.stated.iter().any(is_off) {
        return Ok(());
    }
    let flags = ["--disable-hybrid-kv-cache-manager", "--kv-transfer-config", "--kv-offloading-backend"];
    let stated = flags.into_iter().filter(|flag| question.flag(flag).is_some()).map(Remedy::Remove);
    // In other words in 0.24.0 and before.
    let said = match question.engine.version < PROMOTES {
        true => "Hybrid KV cache manager is disabled but failed to convert the KV cache specs to one unified type.",
        false => "Failed to promote local KV cache specs to one unified type.",
    };
    Err(question.refused(said, stated.collect::<Vec<_>>()))
}

/// What a variable says of something that is on or off, as `envs.py` reads it: a whole number.
fn is_on(question: &Question, variable: &str) -> Option<bool> {
    question.env.get(variable)?.trim().parse::<i64>().ok().map(|value| value != 0)
}

/// How states are kept, and in which blocks: `--mamba-block-size` is one for prefixes, and that of attention stands for it from then on.
fn state_blocks(question: &mut Question, max_seq_len: u64) -> Result<(), ServeError> {
    const FLAG: &str = "--mamba-block-size";
    if let Some(mode) = question.flag("--mamba-cache-mode").map(|setting| format!("\"{}\"", setting.value())) {
        question.default_of("engine.mamba_cache_mode", mode);
    }
    let Some(block) = question.count(FLAG) else { return Ok(()) };
    let stated = |key: &str| question.stated.iter().rev().find(|stated| stated.key == key).map(|stated| &*stated.value);
    if block != max_seq_len && stated("engine.prefix_caching") != Some("true") {
        let said = "--mamba-block-size can only be set with --enable-prefix-caching";
        return Err(
            question.refused(said, [Remedy::Remove(FLAG), Remedy::Set("--enable-prefix-caching", String::new())])
        );
    }
    if question.value("--mamba-cache-mode") == Some("all") {
        let why = "blocks of states in mode `all` are planned for the model's own chunk alone";
        return Err(ServeError::unread(FLAG, why, [Remedy::Remove(FLAG)]));
    }
    Ok(())
}

/// Buffers of states, where they are not refused.
fn without_buffers(question: &Question) -> Result<(), ServeError> {
    const FLAG: &str = "--use-replayssm";
    match question.is_on(FLAG) {
        true => Err(ServeError::unread(
            FLAG,
            "states have buffers beside them, which are not planned",
            [Remedy::Remove(FLAG)],
        )),
        false => Ok(()),
    }
}

/// What the model runs as: only one that generates, in vLLM's own class, is planned.
fn class(question: &Question) -> Result<(), ServeError> {
    let of_own = [("--runner", "generate"), ("--convert", "none"), ("--task", "generate"), ("--model-impl", "vllm")];
    for (flag, own) in of_own {
        let Some(word) = question.value(flag) else { continue };
        if word != own && word != "auto" {
            let why = format!("what a model that runs as `{word}` keeps was not read");
            return Err(ServeError::unread(flag, why, [Remedy::Remove(flag)]));
        }
    }
    Ok(())
}

/// Whether the model keeps states, and whether it keeps pages.
fn kinds(question: &Question, model: &ModelCaches) -> Result<(bool, bool), ServeError> {
    let caches = question.caches(model)?;
    let has = |of: fn(&ResourceHandler) -> bool| caches.iter().any(|resource| of(&resource.handler));
    Ok((has(ResourceHandler::is_state), has(ResourceHandler::is_paged)))
}

/// Whether prompts may be cut, as they are where nobody says otherwise.
pub(super) fn cuts_prompts(question: &Question) -> bool {
    question.flag("--enable-chunked-prefill").is_none_or(|setting| setting.on)
}

/// Read in 0.33.0: ranks that hold parts of all experts hold equal ones.
const EQUAL_EXPERTS: Version = Version(0, 33, 0);

/// Ranks of all replicas hold the attention of their own sequences, and of the experts each as many, or of each as much
/// (`FusedMoEParallelConfig.make`).
fn experts(question: &mut Question, model: &ModelCaches, tp: u64, dp: u64) -> Result<(), ServeError> {
    const FLAG: &str = "--enable-expert-parallel";
    question.stated.retain(|stated| stated.key != "parallel.ep");
    let ranks = tp.saturating_mul(dp);
    let mut channels = model.model().into_iter().flat_map(cacheplan_transforms::Model::expert_channels).peekable();
    let holds_whole = question.is_on(FLAG);
    if ranks > 1 && (holds_whole || dp > 1 && channels.peek().is_some()) {
        question.default_of("parallel.ep", ranks);
    }
    let divides = holds_whole || question.engine.version < EQUAL_EXPERTS;
    match channels.find(|channels| !divides && !channels.is_multiple_of(ranks)) {
        None => Ok(()),
        Some(channels) => {
            let said = format!(
                "assert self.intermediate_size % tp_size == 0 ({channels} channels of an expert, {ranks} ranks)"
            );
            Err(question.refused(said, [Remedy::Set(FLAG, String::new())]))
        }
    }
}

/// Ranks that cut blocks of weights are refused from the first version on that was read.
fn cut(question: &Question, model: &ModelCaches, tp: u64, dp: u64) -> Result<(), ServeError> {
    const EXPERTS: &str = "--enable-expert-parallel";
    const READ: Version = Version(0, 22, 0);
    /// Read in 0.30.0, and not in 0.28.0.
    const REFINES: Version = Version(0, 30, 0);
    let version = question.engine.version;
    let of_expert = if question.is_on(EXPERTS) { 1 } else { tp.saturating_mul(dp) };
    let whole = Some(Remedy::Set(EXPERTS, String::new()));
    let cut = Cut { ranks: ("--tensor-parallel-size", tp), of_expert, whole, refines: version >= REFINES };
    if version < READ { Ok(()) } else { blocks::look(question, model, cut) }
}

/// Sizes that divide the model, and the devices that they take.
fn parallel(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let size = |name: &str| question.count(name).unwrap_or(1);
    let (tp, pp, dp) = (size("--tensor-parallel-size"), size("--pipeline-parallel-size"), size("--data-parallel-size"));
    let zero = [("--tensor-parallel-size", tp), ("--pipeline-parallel-size", pp), ("--data-parallel-size", dp)];
    if let Some((flag, _)) = zero.into_iter().find(|(_, size)| *size == 0) {
        let said = format!("{} must be at least 1", flag.trim_start_matches('-'));
        return Err(question.refused(said, [Remedy::Set(flag, "1".into())]));
    }
    let said = |heads: u64| {
        format!("Total number of attention heads ({heads}) must be divisible by tensor parallel size ({tp}).")
    };
    question.divides(of_config(model, HEADS), "--tensor-parallel-size", tp, said)?;
    // Embeddings are padded whatever the ranks (`VocabParallelEmbedding`); beside adapters otherwise.
    let words = of_config(model, "vocab_size").filter(|_| !question.is_on("--enable-lora"));
    let padded = words.and_then(|words| words.checked_next_multiple_of(VOCABULARY));
    question.divides(padded, "--tensor-parallel-size", tp, |words| format!("{words} is not divisible by {tp}"))?;
    experts(question, model, tp, dp)?;
    cut(question, model, tp, dp)?;
    // Of several nodes each has as many devices, and each may run a part of the replicas.
    let local = question.count("--data-parallel-size-local").unwrap_or(dp);
    let nodes = question.count("--nnodes").unwrap_or(1).max(1);
    question.use_devices(tp.saturating_mul(pp).saturating_mul(local).div_ceil(nodes))
}
