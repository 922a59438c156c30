//! The way back: what an engine's own model admits with the values that it is told.

use cacheplan_transforms::Resources;

use super::input::Prediction;
use crate::budget::{Budget, Lengths, Speculation, Workload};
use crate::engines::{EnginePrediction, EngineSpec, OfAttention, Stored};
use crate::error::{EngineRefusal, PlanError};
use crate::plan::{CachePlan, Scheme};
use crate::size::ByteSize;
use crate::solver::inputs::Inputs;
use crate::solver::solve::last;
use crate::stated::Stated;

/// What the engine would allocate for a budget; `None` where the plan is none that its rules can judge.
pub(super) fn predicted(
    plan: &CachePlan,
    engine: EngineSpec,
    budget: Budget,
) -> Option<Result<EnginePrediction, PlanError>> {
    let mut budget = Budget {
        workload: Some(Workload { prompt: Lengths::Fixed(plan.capacity.tokens_per_sequence), ..Workload::default() }),
        speculation: speculation(plan)?,
        parallel: plan.parallel.of_rank(),
        ..budget
    };
    // An engine without a word for it is asked by sequences of the plan's length too.
    budget.max_seq_len = budget.max_seq_len.or(Some(plan.limits.max_seq_len));
    // Whatever it is told, it has no more than the plan.
    budget.engine.cache_bytes = budget.engine.cache_bytes.or(plan.cache_bytes().map(ByteSize));
    let resources = held(plan)?;
    // It is told all that an export has.
    let stated = Stated::Command;
    Some(Inputs { stated, ..Inputs::new(&plan.model, &resources, &budget) }.predict(engine))
}

/// The most sequences that the engine runs where it is told to run no more; 0 where it runs none so.
pub(super) fn most(told: &Budget, predicted: impl Fn(Budget) -> Prediction) -> u64 {
    let runs = |running: u64| {
        let told = Budget { max_batch_size: Some(running), ..told.clone() };
        matches!(predicted(told), Some(Ok(predicted)) if predicted.sequences >= running)
    };
    last(told.max_batch_size.unwrap_or(0), |running| running == 0 || runs(running))
}

/// How the engine stores the plan's latents where its flag for their dtype is `word`, or says the plan's; as on the GPU that
/// engines are taken to run on.
pub(super) fn stored(
    plan: &CachePlan,
    engine: EngineSpec,
    word: Option<&str>,
) -> Result<Option<Stored>, EngineRefusal> {
    let caches = held(plan).unwrap_or_default();
    let kept = caches.iter().find(|cache| cache.handler.kind().is_kv()).map(|cache| cache.handler.dtype());
    let mut budget = Budget::default();
    budget.dtypes.kv = kept.filter(|dtype| *dtype != plan.model.dtype);
    engine.stored(&plan.model, &caches, &budget, OfAttention { word, ..OfAttention::default() })
}

/// One rank's caches without what only our own rollback needs; `None` where that changes the shape of others.
fn held(plan: &CachePlan) -> Option<Resources> {
    let mut held = Resources::default();
    let own = plan.resources.iter().filter(|resource| {
        let handler = &resource.handler;
        !handler.is_speculative() && !handler.kind().is_replay()
    });
    for resource in own {
        held.push(resource.collected()).ok()?;
    }
    Some(held)
}

/// The drafted tokens; the caches of what drafts are among the plan's own.
fn speculation(plan: &CachePlan) -> Option<Option<Speculation>> {
    if plan.rollback == Some(Scheme::Replay) {
        return None;
    }
    let drafts = u32::try_from(plan.limits.draft_positions.checked_sub(1)?).ok()?;
    let stated = Speculation { draft_tokens: drafts, scheme: Scheme::Snapshots, mtp_layers: 0, draft_weights: None };
    Some((drafts > 0).then_some(stated))
}
