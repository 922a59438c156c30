//! Towers for images and sound, which a server of text alone leaves out (`_mark_tower_model`).

use cacheplan_planner::engines::Version;
use cacheplan_planner::{ByteSize, ModelCaches};
use cacheplan_transforms::graph::Extent;
use cacheplan_transforms::{WeightBytes, WeightClasses};

use super::super::Question;
use super::super::rules::lists;
use crate::error::ServeError;

const LIMITS: &str = "--limit-mm-per-prompt";
const MODE: &str = "--mm-encoder-tp-mode";
/// Sums of two stay exact.
const MOST: u64 = i64::MAX as u64;
/// Read in 0.33.0.
const LEAVES_OUT: Version = Version(0, 33, 0);
/// Model types whose towers are of images and of no videos (`_mark_tower_model` of their classes).
const OF_IMAGES: &str = "aria aya_vision cohere2_vision deepseek_vl_v2 dots_ocr gemma3 gemma3n granite4_vision idefics3 isaac kimi_vl lfm2-vl \
    lfm2_vl lightonocr llama4 llava llava_next mistral3 molmo ovis paligemma phi3_v phi4_multimodal phi4mm pixtral smolvlm step3_vl";
/// What stands beside a decoder is called so in its graph: what ranks divide of it, and what each has as a whole.
const BESIDE: [&str; 2] = ["tower.matrices", "tower"];

/// Whether prompts hold text alone, whatever else the model takes.
pub(super) fn is_of_text(question: &Question, model: &ModelCaches) -> Result<bool, ServeError> {
    let hears = model.model().is_some_and(|model| model.stated("audio_config").is_some());
    let of_whole = model.model().and_then(|model| model.around.get("model_type")?.as_str());
    let watches = !lists(OF_IMAGES, of_whole.unwrap_or(&model.info().model_type));
    let items = [Some("image"), watches.then_some("video"), hears.then_some("audio")];
    let mut no_item = true;
    for item in items.into_iter().flatten() {
        no_item &= takes_none(question, item)?;
    }
    Ok(question.is_on("--language-model-only") || no_item)
}

/// Whether prompts are said to hold no item of a kind.
pub(super) fn takes_none(question: &Question, item: &str) -> Result<bool, ServeError> {
    let limits = question.object(LIMITS)?;
    let limit = limits.as_ref().and_then(|limits| limits.get(item));
    Ok(limit.is_some_and(|limit| limit.get("count").unwrap_or(limit).as_u64() == Some(0)))
}

/// Weights without those of its towers, where it loads none; with these whole on every rank where it is told not to divide them.
pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let is_measured = question.measured.as_ref().is_some_and(|measured| measured.lines.weights.is_some());
    let is_told = question.is_stated("engine.cache_bytes") || question.is_stated("memory.weights") || is_measured;
    let leaves_out = question.engine.version >= LEAVES_OUT && is_of_text(question, model)?;
    let is_whole = question.value(MODE) == Some("data");
    if is_told || !leaves_out && !is_whole {
        return Ok(());
    }
    let stored = question.weights.or(model.info().weights);
    let Some((stored, [divided, whole])) = stored.zip(bytes(model).filter(|[divided, whole]| divided + whole > 0))
    else {
        return Ok(());
    };
    // By the names of tensors in files all of a tower is whole.
    let [divided, whole] = if stored.exact || stored.unproven { [0, divided + whole] } else { [divided, whole] };
    if !leaves_out {
        let classes = stored.classes.map(|classes| WeightClasses {
            dense: classes.dense.saturating_sub(divided),
            replicated: classes.replicated.saturating_add(divided.min(classes.dense)),
            tower: classes.tower.saturating_sub(divided),
            whole_tower: classes.whole_tower.saturating_add(divided.min(classes.tower)),
            ..classes
        });
        question.weights = Some(WeightBytes { classes, ..stored });
        return Ok(());
    }
    let Some(left) = stored.bytes.checked_sub(divided + whole) else { return Ok(()) };
    let classes = stored.classes.map(|classes| WeightClasses {
        dense: classes.dense.saturating_sub(divided),
        replicated: classes.replicated.saturating_sub(whole),
        tower: classes.tower.saturating_sub(divided),
        whole_tower: classes.whole_tower.saturating_sub(whole),
        ..classes
    });
    question.weights = Some(WeightBytes { classes, ..WeightBytes::new(left, false) });
    question.notes.push(format!(
        "a server of text alone loads none of the {} of the model's towers: {} of weights are left, assumed; --weights states them",
        ByteSize(divided + whole),
        ByteSize(left)
    ));
    Ok(())
}

/// What its towers take, and what leads from them to the decoder, as its config tells: what ranks divide, and what each has as a whole.
fn bytes(model: &ModelCaches) -> Option<[u64; 2]> {
    let model = model.model()?;
    let of = |part: &str| {
        let tensors = model.graph.tensors().iter().filter(|tensor| tensor.name.part == part);
        let bytes = tensors.map(|tensor| {
            let elements = tensor.shape.iter().try_fold(1u64, |all, extent| match extent {
                Extent::Known(size) => all.checked_mul(*size),
                Extent::Symbol(_) => None,
            })?;
            tensor.dtype.row_bytes(elements)
        });
        bytes.into_iter().try_fold(0u64, |all, bytes| all.checked_add(bytes?).filter(|all| *all <= MOST))
    };
    let [divided, whole] = BESIDE;
    Some([of(divided)?, of(whole)?])
}
