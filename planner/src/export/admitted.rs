//! The way back: what an engine's own model admits with the values that it is told.

use cacheplan_transforms::Resources;

use super::Setting;
use super::dialect::{Dialect, Told};
use super::input::Input;
use crate::budget::{Budget, Lengths, Speculation, Workload};
use crate::engines::{EnginePrediction, EngineSpec};
use crate::error::PlanError;
use crate::plan::{CachePlan, Scheme};
use crate::request::PlanRequest;
use crate::size::ByteSize;

/// What the engine would allocate for `settings`; `None` where it has no model, or the plan is none that it can judge.
pub(super) fn admitted(
    dialect: &Dialect,
    input: &Input<'_>,
    settings: &[Setting],
) -> Option<Result<EnginePrediction, PlanError>> {
    let back = dialect.back?;
    predicted(dialect, input, (back.told)(&Told(settings)))
}

/// What the engine would allocate for a budget.
pub(crate) fn predicted(
    dialect: &Dialect,
    input: &Input<'_>,
    budget: Budget,
) -> Option<Result<EnginePrediction, PlanError>> {
    let engine = dialect.back?.engine;
    let plan = input.plan;
    let version = dialect.versions.get(input.release)?.parse().ok()?;
    let mut budget = Budget {
        workload: Some(Workload { prompt: Lengths::Fixed(plan.capacity.tokens_per_sequence), ..Workload::default() }),
        speculation: speculation(plan)?,
        parallel: crate::parallel::Parallel { cp: plan.parallel.cp, ..crate::parallel::Parallel::default() },
        ..budget
    };
    // Whatever it is told, it has no more than the plan.
    budget.engine.cache_bytes = budget.engine.cache_bytes.or(plan.cache_bytes().map(ByteSize));
    let resources = held(plan)?;
    let request = PlanRequest::new(&plan.model, &resources, &budget);
    Some(request.predict(EngineSpec { engine, version }))
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
