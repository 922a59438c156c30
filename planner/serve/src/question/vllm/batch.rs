//! The longest sequence, and the largest step, of a server.

use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::{Version, vllm};
use cacheplan_planner::logs::failures::TOO_LONG;
use serde_json::Value;

use super::super::rules::takes_more_than_text;
use super::super::{Limits, Question, overrides};
use super::towers;
use crate::error::ServeError;
use crate::flags::parse::Setting;
use crate::flags::table::Kind;
use crate::flags::values::is_auto;
use crate::remedy::Remedy;

/// The first read version that has defaults of its own for GPUs of 160 GiB.
const LARGE_DEVICES: Version = Version(0, 28, 0);
/// Read in 0.27.0, and not in 0.26.0: not of a server of text alone.
const KNOWS_ONLY_TEXT: Version = Version(0, 27, 0);

/// The longest sequence, and whether vLLM is to find it.
pub(super) fn length(question: &Question, model: &ModelCaches) -> Result<(u64, bool), ServeError> {
    const FLAG: &str = "--max-model-len";
    let derived = overrides::longest(question, "--hf-overrides", model)?;
    let takes_auto = |setting: &&Setting| setting.flag.kind == Kind::HumanIntOrAuto;
    let auto = question.flag(FLAG).filter(takes_auto).is_some_and(|setting| is_auto(setting.value()));
    match (question.count(FLAG), derived) {
        (Some(0), _) => Err(question.refused("max_model_len must be at least 1", [Remedy::Remove(FLAG)])),
        (Some(stated), Some(derived)) if stated > derived && overrides::is_stated(model) && !allows_long(question) => {
            let said = format!(
                "User-specified max_model_len ({stated}) {TOO_LONG} (max_position_embeddings={derived} or model_max_length=None in model's config.json). To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
            );
            Err(question.refused(said, [Remedy::Set(FLAG, derived.to_string())]))
        }
        (Some(stated), _) => Ok((stated, false)),
        (None, Some(derived)) => Ok((overrides::unscaled(question, model).unwrap_or(derived), auto)),
        (None, None) => Err(question.without_length(FLAG)),
    }
}

/// `DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP`, read in 0.33.0.
const BATCHED_EXPERTS: u64 = 256;

/// Whether replicas hand each other's tokens to their experts in batches (`use_batched_dp_moe`).
fn runs_batched_experts(question: &Question) -> bool {
    let by = question.flag("--all2all-backend").map(Setting::value);
    let shares = question.flag("--enable-expert-parallel").is_some_and(|setting| setting.on);
    let replicas = question.count("--data-parallel-size").unwrap_or(1);
    shares && replicas > 1 && matches!(by, Some("deepep_low_latency" | "nixl_ep"))
}

fn allows_long(question: &Question) -> bool {
    question
        .env
        .get("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
        .is_some_and(|value| ["1", "true"].contains(&value.to_lowercase().trim()))
}

/// `max_num_seqs` and `max_num_batched_tokens`, by the GPU and for a server.
pub(super) fn batch(question: &Question, model: &ModelCaches, max_seq_len: u64) -> Result<Limits, ServeError> {
    const GIB: u64 = 1 << 30;
    let device = question.device();
    // A device that is not named has at least the bytes that its caches are said to have.
    let bytes = device.map_or(question.cache_bytes, |device| device.total_bytes);
    let is_a100 = device.is_some_and(|device| device.name.to_lowercase().contains("a100"));
    let (mut tokens, mut sequences) = match bytes {
        _ if bytes >= 160 * GIB && question.engine.version >= LARGE_DEVICES => (16_384, 1024),
        _ if bytes >= 70 * GIB && !is_a100 => (8192, 1024),
        _ => (2048, 256),
    };
    if runs_batched_experts(question) {
        (tokens, sequences) = (BATCHED_EXPERTS, sequences.min(BATCHED_EXPERTS));
    }
    if question.value("--performance-mode") == Some("throughput") {
        (tokens, sequences) = (2 * tokens, 2 * sequences);
    }
    let stated_tokens = question.count("--max-num-batched-tokens");
    let stated_sequences = question.count("--max-num-seqs");
    sequences = stated_sequences.unwrap_or(sequences);
    let chunked = super::cuts_prompts(question);
    tokens = match stated_tokens {
        Some(tokens) => tokens,
        None => {
            let tokens = if chunked { tokens } else { tokens.max(max_seq_len) };
            let tokens = items(question, model)?.map_or(tokens, |[image, video]| tokens.max(image).max(video));
            tokens.min(sequences.saturating_mul(max_seq_len))
        }
    };
    if stated_sequences.is_none() {
        sequences = sequences.min(tokens);
    }
    if sequences == 0 || tokens == 0 {
        let flag = if sequences == 0 { "--max-num-seqs" } else { "--max-num-batched-tokens" };
        return Err(question.refused("Input should be greater than or equal to 1", [Remedy::Remove(flag)]));
    }
    if !chunked && tokens < max_seq_len {
        let said = format!(
            "max_num_batched_tokens ({tokens}) is smaller than max_model_len ({max_seq_len}). This effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase max_num_batched_tokens or decrease max_model_len."
        );
        let remedies = [
            Remedy::Set("--max-num-batched-tokens", max_seq_len.to_string()),
            Remedy::Remove("--enable-chunked-prefill"),
        ];
        return Err(question.refused(said, remedies));
    }
    if tokens < sequences {
        let said =
            format!("max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({sequences}).");
        let remedies = [
            Remedy::Set("--max-num-seqs", tokens.to_string()),
            Remedy::Set("--max-num-batched-tokens", sequences.to_string()),
        ];
        return Err(question.refused(said, remedies));
    }
    Ok(Limits { max_seq_len, max_batch_size: Some(sequences), max_num_tokens: tokens })
}

/// Tokens of an image and of a video of a model that looks at an item in both directions, which it never cuts.
pub(super) fn items(question: &Question, model: &ModelCaches) -> Result<Option<[u64; 2]>, ServeError> {
    const FLAG: &str = "--limit-mm-per-prompt";
    if question.engine.version < vllm::HOLDS_AN_ITEM {
        return Ok(None);
    }
    let config = model.model().map(|model| &model.config);
    let stated = |key: &str| config.and_then(|config| config.get(key)).filter(|value| !value.is_null());
    let class = stated("architectures").and_then(|classes| classes.get(0)).and_then(Value::as_str);
    let takes_items =
        class.map_or_else(|| takes_more_than_text(model), |class| class.ends_with("ForConditionalGeneration"));
    let model_type = &model.info().model_type;
    let looks_back = model_type.starts_with("gemma3")
        || stated("use_bidirectional_attention").and_then(Value::as_str) == Some("vision");
    if !takes_items || !looks_back {
        return Ok(None);
    }
    if question.engine.version >= KNOWS_ONLY_TEXT && towers::is_of_text(question, model)? {
        return Ok(None);
    }
    let limits = question.object(FLAG)?;
    let frames = limits.as_ref().and_then(|limits| limits.get("video")?.get("num_frames")?.as_u64());
    let items = vllm::items(model_type, frames);
    let image = model.model().and_then(|model| model.stated("mm_tokens_per_image")?.as_u64());
    Ok(items.map(|[usual, video]| [image.unwrap_or(usual), video]))
}

/// What it says of a step that has no room for an item that a prompt may have.
pub(super) fn has_room(question: &Question, model: &ModelCaches, step: u64) -> Result<(), ServeError> {
    let Some([image, video]) = items(question, model)? else { return Ok(()) };
    let item = if towers::takes_none(question, "video")? { image } else { image.max(video) };
    if item <= step {
        return Ok(());
    }
    const FLAG: &str = "--max-num-batched-tokens";
    let said = format!(
        "Chunked MM input disabled but max_tokens_per_mm_item ({item}) is larger than max_num_batched_tokens ({step}). Please increase max_num_batched_tokens."
    );
    Err(question.refused(said, [Remedy::Set(FLAG, item.to_string())]))
}
