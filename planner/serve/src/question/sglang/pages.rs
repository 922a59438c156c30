//! Tokens in a page by the kernels that a command names, and steps of whole pages: the same in 0.5.10, 0.5.12 and 0.5.23, but for what says
//! so.

use cacheplan_handlers::Kind;
use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;

use super::super::Question;
use super::super::rules::lists;
use super::capability;
use super::kernels::{self, ALL, DECODE, PREFILL};
use crate::error::ServeError;
use crate::flags::parse::Setting;
use crate::remedy::Remedy;

const PAGE: &str = "--page-size";

/// Kernels, the pages that they take, of which the last is taken in place of others, and whether those of a prefill count too.
const PAGES: [(&str, &[u64], bool); 6] = [
    ("flashmla", &[64], false),
    ("cutlass_mla", &[128], false),
    ("trtllm_mla", &[32, 64], false),
    ("cutedsl_mla", &[32, 64], true),
    (TRTLLM, &[16, 32, 64], true),
    ("hpc_ops", &[64], true),
];
/// Model types whose sparse attention reads pages of 128, by the kernels that it chooses for them on Hopper and Blackwell.
const M3: &str = "minimax_m3 minimax_m3_vl";
const TRTLLM: &str = "trtllm_mha";
/// Read in 0.5.23, and not in 0.5.12: these take pages of so many too.
const TAKES_128: Version = Version(0, 5, 23);

/// States the page that the kernels take, and refuses kernels of other GPUs and steps that end within a page.
pub(super) fn settle(question: &mut Question, model: &ModelCaches, step: Option<u64>) -> Result<(), ServeError> {
    if let Some(flag) = named_by(question, "trtllm_mla", false)
        && capability(question, model).is_some_and(|capability| capability < 100)
    {
        let said =
            "TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x). Please use a different backend.";
        return Err(question.refused(said, [Remedy::Remove(flag)]));
    }
    if model.info().model_type.starts_with("deepseek_v4") && question.flag(PAGE).is_some() {
        question.stated.retain(|stated| stated.key != "engine.block_size");
        question.notes.push(format!("{PAGE} is taken back: pages of compressed attention are of its own size"));
    }
    let stated = question.count(PAGE).filter(|_| !model.info().model_type.starts_with("deepseek_v4"));
    // Caches in four bits have these kernels whatever else is chosen.
    let in_four_bits = question.value("--kv-cache-dtype") == Some("nvfp4");
    let usual = if in_four_bits { Some(TRTLLM) } else { kernels::usual(question, model)? };
    let runs =
        |question: &Question, name: &str, prefills| named_by(question, name, prefills).is_some() || usual == Some(name);
    let mut page = stated;
    for (name, pages, prefills) in PAGES {
        let wide = name == TRTLLM && question.engine.version >= TAKES_128 && page == Some(128);
        let takes = wide || page.is_some_and(|page| pages.contains(&page));
        if runs(question, name, prefills) && !takes {
            page = pages.last().copied();
        }
    }
    if runs(question, "fa4", true) && capability(question, model).is_some_and(|capability| capability / 10 == 10) {
        let caches = question.caches(model)?;
        let keeps_latents = caches.iter().any(|cache| *cache.handler.kind() == Kind::MlaPaged);
        page = if keeps_latents { page } else { Some(128) };
    }
    let caches = question.caches(model)?;
    let keeps = |kind: &Kind| caches.iter().any(|cache| cache.handler.kind() == kind);
    let is_cuda = capability(question, model).is_some();
    if is_cuda && keeps(&Kind::IndexKey) && keeps(&Kind::MlaPaged) && stated.is_some() {
        // Sparse latents are in pages of its own choice, which is planned.
        question.stated.retain(|stated| stated.key != "engine.block_size");
        question.notes.push(format!("{PAGE} is taken back: pages of sparse latents are of its own size"));
        return Ok(());
    }
    let of_m3 = lists(M3, &model.info().model_type) && question.engine.version >= TAKES_128;
    if of_m3 && page.is_none() && capability(question, model).is_some_and(|found| matches!(found / 10, 9 | 10)) {
        page = Some(128);
    }
    if let Some(page) = page.filter(|_| page != stated) {
        question.stated.retain(|stated| stated.key != "engine.block_size");
        question.default_of("engine.block_size", page);
        let whose = if usual.is_some() || of_m3 { "it chooses" } else { "are named" };
        question.notes.push(format!("the kernels that {whose} take pages of {page} tokens"));
    }
    let decodes = question.flag("--disaggregation-mode").map(Setting::value) == Some("decode");
    match (step.filter(|_| !decodes), page.filter(|page| *page > 0)) {
        (Some(step), Some(page)) if !step.is_multiple_of(page) => {
            let whole = (step / page * page).max(page);
            let remedies = [Remedy::Set("--chunked-prefill-size", whole.to_string()), Remedy::Remove(PAGE)];
            Err(question.refused("chunked_prefill_size must be divisible by page_size", remedies))
        }
        _ => Ok(()),
    }
}

/// The flag that names such kernels.
fn named_by(question: &Question, name: &str, prefills: bool) -> Option<&'static str> {
    let drafts = (name == TRTLLM).then_some("--speculative-draft-attention-backend");
    let flags = [ALL, DECODE].into_iter().chain(prefills.then_some(PREFILL)).chain(drafts);
    let mut stated = flags.filter_map(|flag| question.flag(flag));
    stated.find(|setting| setting.value() == name).map(|setting| setting.flag.name)
}
