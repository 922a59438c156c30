//! A plan in an engine's own terms: what the engine's model says of the plan's caches.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_transforms::{Resource, Resources};

use super::LogDialect;
use crate::budget::{Budget, Speculation};
use crate::engines::{EnginePrediction, EngineSpec};
use crate::error::{EngineRefusal, PlanError};
use crate::plan::{CachePlan, PlannedResource, Pool, Scheme};
use crate::size::ByteSize;
use crate::solver::inputs::{Draft, Inputs};
use crate::stated::Stated;

/// A plan's caches, which are those of one rank already.
pub(super) struct AsEngine<'a> {
    plan: &'a CachePlan,
    resources: Resources,
    /// Those of what drafts.
    drafting: Resources,
}

/// What an engine knows before it divides its memory: stated, or found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoggedSettings {
    /// Bytes for caches; llama.cpp needs none.
    pub(super) bytes: Option<u64>,
    pub(super) max_seq_len: u64,
    pub(super) max_batch_size: u64,
    pub(super) max_num_tokens: u64,
    pub(super) draft_tokens: u64,
    pub(super) prefix_caching: Option<bool>,
    /// The engine's own where absent.
    pub(super) tokens_per_block: Option<u64>,
    pub(super) max_total_tokens: Option<u64>,
    pub(super) state_slots: Option<u64>,
    /// llama.cpp: cells that all sequences share.
    pub(super) shared_cells: Option<u64>,
    pub(super) ubatch: Option<u64>,
}

impl<'a> AsEngine<'a> {
    pub(super) fn of(plan: &'a CachePlan) -> Result<Self, PlanError> {
        if plan.rollback == Some(Scheme::Replay) {
            return Err(EngineRefusal::Replay.into());
        }
        let of = |drafts: bool| {
            let kept = plan.resources.iter().filter(|resource| !resource.handler.is_speculative());
            let kept = kept.filter(|resource| resource.drafts == drafts).map(PlannedResource::collected);
            // Who asks for them names them so again.
            let unnamed =
                |name: String| name.strip_prefix("draft.").map(str::to_owned).filter(|_| drafts).unwrap_or(name);
            collected(kept.map(|kept| Resource { name: unnamed(kept.name), ..kept }))
        };
        Ok(Self { plan, resources: of(false)?, drafting: of(true)? })
    }

    /// The same caches in another dtype; `None` where that changes nothing.
    pub(super) fn stored_as(&self, dtype: DType, of: fn(&ResourceHandler) -> bool) -> Option<Self> {
        let change = |resource: &Resource| {
            let handler = &resource.handler;
            if !of(handler) {
                return Ok(resource.clone());
            }
            let (kind, shape) = (handler.kind().clone(), handler.shape().to_vec());
            let handler = ResourceHandler::new(kind, handler.growth(), shape, dtype, handler.layout())?;
            Ok(Resource { handler, ..resource.clone() })
        };
        // A shape that the other dtype cannot hold is no explanation.
        let changed = |all: &Resources| {
            let changed: Result<Vec<Resource>, cacheplan_handlers::HandlerError> = all.iter().map(change).collect();
            collected(changed.ok()?.into_iter()).ok()
        };
        let (resources, drafting) = (changed(&self.resources)?, changed(&self.drafting)?);
        let differs = resources != self.resources || drafting != self.drafting;
        differs.then_some(Self { plan: self.plan, resources, drafting })
    }

    pub(super) fn has_states(&self) -> bool {
        self.resources.iter().any(|resource| resource.handler.is_state())
    }

    /// Tokens that the plan's own pages hold, those of windows aside where there are others.
    pub(super) fn own_tokens(&self) -> Option<u64> {
        let tokens = |windows: bool| {
            let pools = self.plan.pools.iter().filter(move |pool| pool.window.is_some() == windows);
            let held =
                |pool: &Pool| Some(pool.units.saturating_sub(pool.reserved).saturating_mul(pool.tokens_per_block?));
            pools.filter_map(held).min()
        };
        tokens(false).or_else(|| tokens(true))
    }

    /// The settings that a plan states for an engine of this dialect.
    pub(super) fn settings(&self, dialect: &LogDialect) -> Result<LoggedSettings, PlanError> {
        let plan = self.plan;
        let slots = plan.slots.live.saturating_add(plan.slots.checkpoints);
        Ok(LoggedSettings {
            bytes: (!dialect.divides_cells).then(|| engine_bytes(plan)).transpose()?,
            max_seq_len: plan.limits.max_seq_len,
            max_batch_size: plan.limits.max_batch_size,
            max_num_tokens: plan.limits.max_num_tokens,
            draft_tokens: plan.limits.draft_positions.saturating_sub(1),
            prefix_caching: None,
            tokens_per_block: None,
            max_total_tokens: None,
            state_slots: (dialect.slots_are_told && self.has_states()).then_some(slots),
            shared_cells: None,
            ubatch: None,
        })
    }

    /// What the engine would allocate.
    pub(super) fn predict(&self, engine: EngineSpec, told: &LoggedSettings) -> Result<EnginePrediction, PlanError> {
        let mut budget = Budget {
            max_seq_len: Some(told.max_seq_len),
            max_batch_size: Some(told.max_batch_size),
            max_num_tokens: Some(told.max_num_tokens),
            parallel: self.plan.parallel.of_rank(),
            ..Budget::default()
        };
        budget.engine.cache_bytes = told.bytes.map(ByteSize);
        budget.engine.prefix_caching = told.prefix_caching;
        budget.engine.block_size = told.tokens_per_block;
        budget.engine.max_total_tokens = told.max_total_tokens;
        budget.engine.state_slots = told.state_slots;
        budget.engine.context = told.shared_cells;
        budget.engine.ubatch = told.ubatch;
        let draft_tokens = u32::try_from(told.draft_tokens).unwrap_or(u32::MAX);
        budget.speculation = (draft_tokens > 0).then_some(Speculation {
            draft_tokens,
            scheme: Scheme::default(),
            // The plan has the head's caches already.
            mtp_layers: 0,
            draft_weights: None,
        });
        // A log may say anything.
        budget.validate().map_err(PlanError::Budget)?;
        if [told.tokens_per_block, told.shared_cells, told.ubatch].contains(&Some(0)) {
            return Err(EngineRefusal::EmptyBlock.into());
        }
        // What a log says it was told.
        let stated = Stated::Command;
        let drafts = draft_tokens > 0 && !self.drafting.is_empty();
        let draft = drafts.then_some(Draft { model: &self.plan.model, resources: &self.drafting });
        Inputs { stated, draft, ..Inputs::new(&self.plan.model, &self.resources, &budget) }.predict(engine)
    }
}

fn collected(all: impl Iterator<Item = Resource>) -> Result<Resources, PlanError> {
    let mut resources = Resources::default();
    for resource in all {
        resources.push(resource).map_err(|error| EngineRefusal::Damaged { what: error.to_string() })?;
    }
    Ok(resources)
}

/// Bytes that the engine has for caches: as the plan says, or what the plan has for its own.
fn engine_bytes(plan: &CachePlan) -> Result<u64, PlanError> {
    let damaged = || EngineRefusal::Damaged { what: "its pools have more bytes than can be counted".into() };
    Ok(plan.engine_cache_bytes.or_else(|| plan.cache_bytes()).ok_or_else(damaged)?)
}
