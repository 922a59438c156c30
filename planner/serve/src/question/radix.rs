//! How SGLang's radix cache keeps states: whether it does, and in how many slots for each request (`_handle_mamba_radix_cache`).

use cacheplan_handlers::ResourceHandler;
use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use cacheplan_planner::engines::sglang::{EXTRA_BUFFER as BUFFERS, SLOTS_WITH_RADIX as SLOTS};

use super::Question;
use crate::error::ServeError;
use crate::remedy::Remedy;

const FLAGS: [&str; 2] = ["--mamba-radix-cache-strategy", "--mamba-scheduler-strategy"];
/// Read in 0.5.4, and not in 0.5.3: it keeps states at all.
const KEEPS_STATES: Version = Version(0, 5, 4);
/// Read in 0.5.10, and not in 0.5.9: it refuses drafts beside states in slots without buffers; before, it kept none then.
const REFUSES_DRAFTS: Version = Version(0, 5, 10);
/// Read in 0.5.23: kernels of linear attention other than Triton's copy no states beside others (`supports_mamba_cache_extra_buffer`).
const READS_KERNELS: Version = Version(0, 5, 23);
const KERNELS: &str = "--linear-attn-backend";
/// Up to there it kept no states of these.
const WITHOUT_STATES: [(&str, Version); 1] = [("kimi_linear", BUFFERS)];

pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let caches = question.caches(model)?;
    if !question.keeps_prefixes() || !caches.iter().any(|cache| ResourceHandler::is_state(&cache.handler)) {
        return Ok(());
    }
    let version = question.engine.version;
    let stated = FLAGS.into_iter().find_map(|flag| Some((flag, question.value(flag)?.to_owned())));
    let stated = stated.filter(|(_, word)| word != "auto");
    let word = stated.as_ref().map(|(_, word)| &**word);
    let drafts = question.flag("--speculative-algorithm").is_some();
    let drafts_alone = drafts && version < BUFFERS && word.is_none_or(|word| word == "no_buffer");
    if drafts_alone && version >= REFUSES_DRAFTS {
        let said = "Speculative decoding is not compatible with radix cache when using --mamba-scheduler-strategy no_buffer. To use radix cache with speculative decoding, please use --mamba-scheduler-strategy extra_buffer and set SGLANG_ENABLE_SPEC_V2=1.";
        let remedies =
            [Remedy::Set(FLAGS[1], "extra_buffer".into()), Remedy::Set("--disable-radix-cache", String::new())];
        return Err(question.refused(said, remedies));
    }
    let model_type = &*model.info().model_type;
    let keeps_none = WITHOUT_STATES.iter().any(|(name, before)| *name == model_type && version < *before);
    if drafts_alone || keeps_none || version < KEEPS_STATES {
        question.put("engine.prefix_caching", false);
        question.notes.push("the radix cache is off: this version keeps no such states in it".into());
        return Ok(());
    }
    // One for a copy beside another that is being written, and one alone where steps do not overlap.
    let overlaps = !question.is_on("--disable-overlap-schedule");
    // Stages of a pipeline do not overlap, which is settled behind how states are copied.
    let stages = version >= READS_KERNELS && question.count("--pp-size").is_some_and(|stages| stages > 1);
    let overlaps = overlaps && (!drafts || version >= BUFFERS || spec_overlaps(question));
    let pages = question.count("--page-size").is_some_and(|tokens| tokens > 1);
    let takes_copies = version < READS_KERNELS || question.value(KERNELS).is_none_or(|word| word == "triton");
    let own = question.engine.slots_per_request(model_type, true);
    let each = match word {
        Some("extra_buffer_lazy") => Some(SLOTS + 1),
        Some("extra_buffer") => Some(if overlaps && !stages { SLOTS + 2 } else { SLOTS + 1 }),
        Some(_) => Some(SLOTS),
        None if !takes_copies => Some(SLOTS),
        None if overlaps && stages && own > Some(SLOTS) => Some(SLOTS + 1),
        None if overlaps || version < BUFFERS => None,
        None => Some(if pages { SLOTS + 1 } else { SLOTS }),
    };
    // A request gives one of them back before it decodes (`_calculate_mamba_ratio`).
    let skips = version >= READS_KERNELS && question.has_on("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK");
    let each = if skips { each.or(own).map(|each| if each > SLOTS { each - 1 } else { each }) } else { each };
    if let Some(each) = each {
        question.default_of("engine.slots_per_request", each);
    }
    Ok(())
}

/// Whether steps with drafts overlap, which a variable said at first.
fn spec_overlaps(question: &Question) -> bool {
    /// Read in 0.5.11, and not in 0.5.10.
    const USUAL: Version = Version(0, 5, 11);
    let stated = question.env.get("SGLANG_ENABLE_SPEC_V2").map(|value| matches!(&*value.to_lowercase(), "1" | "true"));
    stated.unwrap_or(question.engine.version >= USUAL)
}
