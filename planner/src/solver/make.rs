//! From a request to a plan: group, size, lay out, account.

use std::collections::HashMap;

use cacheplan_handlers::{DType, Growth, ResourceHandler};

use crate::budget::{Budget, Objective, Speculation};
use crate::error::{Overdrawn, PlanError, Shortfall};
use crate::fingerprint;
use crate::limits::DEFAULT_TOKENS_PER_BLOCK;
use crate::parallel::{Agreement, Parallel};
use crate::plan::{
    CachePlan, Cap, Capacity, Certainty, Deployment, LedgerItem, LedgerLine, Limits, ManagerKind, Member, Owner,
    PlannedResource, Pool, RankPlans, SCHEMA_VERSION, SlotDomain, Totals, Unit,
};
use crate::size::ByteSize;
use crate::solver::demand::{Demand, Load, NULL_BLOCKS};
use crate::solver::group::{Group, group};
use crate::solver::inputs::{Inputs, RankResources};
use crate::solver::ledger::{self, CacheBytes, Ledger};
use crate::solver::room::Room;
use crate::solver::solve::{self, SearchLimits, StageCost};
use crate::solver::{checkpoints, host, weights};

const DEFAULT_BATCH_SIZE: u64 = 8;
const DEFAULT_NUM_TOKENS: u64 = 2_048;
const PADDING_SLOTS: u64 = 1;

/// Bytes that `sequences` sequences of a request take, and those that are there for them.
pub(crate) fn beside(request: &Inputs<'_>, sequences: u64) -> Result<(u64, Option<CacheBytes>), PlanError> {
    let budget = request.budget.or_fixed(request.model);
    let request = &Inputs { budget: &budget, ..*request };
    let held = request.held()?;
    let cost = Stage::of(request, &held)?;
    // What one pipeline stage lacks another may have.
    if budget.parallel.pp == 1 {
        refuse_unconsumed(&budget, &cost.groups.iter().collect::<Vec<_>>())?;
    }
    let needed = u64::try_from(cost.cost().at(sequences).total()).unwrap_or(u64::MAX);
    Ok((needed, cost.cost().memory(sequences)))
}

/// Plans every pipeline stage, all sized for what the poorest can serve.
pub(crate) fn make_all(request: &Inputs<'_>) -> Result<RankPlans, PlanError> {
    let budget = request.budget.or_fixed(request.model);
    budget.validate().map_err(PlanError::Budget)?;
    let stages = 0..budget.parallel.pp;
    let requests: Vec<Inputs<'_>> = stages.map(|stage| Inputs { budget: &budget, stage, ..*request }).collect();
    let held: Vec<RankResources<'_>> = requests.iter().map(Inputs::held).collect::<Result<_, _>>()?;
    let stages: Vec<Stage<'_>> =
        requests.iter().zip(&held).map(|(request, held)| Stage::of(request, held)).collect::<Result<_, _>>()?;

    refuse_unconsumed(&budget, &stages.iter().flat_map(|stage| &stage.groups).collect::<Vec<_>>())?;
    let positions = stages[0].load.draft_positions;
    let limits = SearchLimits {
        batch: budget.max_batch_size.or(if budget.memory.is_none() { Some(DEFAULT_BATCH_SIZE) } else { None }),
        step: sequences_in_step(&budget, positions)?,
        fill: budget.maximize == Some(Objective::Tokens),
    };
    let costs: Vec<StageCost<'_>> = stages.iter().map(Stage::cost).collect();
    let solving = tracing::debug_span!("solving", stages = stages.len());
    let solution = solving.in_scope(|| solve::solve(&costs, &limits)).map_err(|poorest| stages[poorest].shortfall())?;
    let parked = budget.host.map(|host| stages.iter().map(|stage| stage.parked(host.bytes)).min().unwrap_or(0));
    let agreement =
        Agreement { sequences: solution.sequences, spare_tokens: solution.spare_tokens, host_sequences: parked };
    let plans = stages.into_iter().zip(&solution.caps).map(|(stage, cap)| stage.plan(request, agreement, *cap));
    let stages: Vec<CachePlan> = plans.collect::<Result<_, _>>()?;
    let parallel = budget.parallel;
    Ok(RankPlans { hash: hash(parallel, agreement, &stages), parallel, agreement, stages })
}

/// Ranks agree on sequences and spare tokens, from which every pool's size follows; a minimum of tokens alone would leave
/// ranks with other pools out of step.
fn hash(parallel: Parallel, agreement: Agreement, stages: &[CachePlan]) -> String {
    let pools: Vec<_> = stages
        .iter()
        .map(|plan| plan.pools.iter().map(|pool| (&pool.id, pool.unit_bytes, pool.units)).collect::<Vec<_>>())
        .collect();
    fingerprint::hash(&(parallel, agreement, pools))
}

/// One pipeline stage before its pools have sizes.
struct Stage<'a> {
    request: &'a Inputs<'a>,
    held: &'a RankResources<'a>,
    groups: Vec<Group<'a>>,
    pools: Vec<Pool>,
    demands: Vec<Demand>,
    load: Load,
    room: Room<'a>,
}

impl<'a> Stage<'a> {
    fn of(request: &'a Inputs<'a>, held: &'a RankResources<'a>) -> Result<Self, PlanError> {
        let budget = request.budget;
        let max_seq_len = budget.max_seq_len_for(request.model);
        let load = load(budget, max_seq_len)?;
        let grouping = tracing::debug_span!("grouping", stage = request.stage);
        let groups = grouping.in_scope(|| group(budget.grouping.unwrap_or_default(), &held.resources, max_seq_len))?;
        refuse_unmanaged(budget, &groups)?;
        refuse_mixed(budget, &groups)?;
        let tokens_per_block = budget.tokens_per_block.unwrap_or(DEFAULT_TOKENS_PER_BLOCK);
        let mut pools = lay_out(&groups, &load, tokens_per_block)?;
        let mut demands: Vec<Demand> =
            groups.iter().zip(&pools).map(|(group, pool)| demand(group, pool, &load)).collect();
        if load.checkpoints_apart {
            let apart = checkpoints::pools(&groups, &pools);
            if budget.parallel.pp == 1 && apart.iter().all(|pool| pool.dtype != DType::Int8) {
                let nothing = "`workload.checkpoint_dtype` is int8, but no state of the model is smaller in it: it is for recurrent states \
                               of heads (kind ssm); leave it out, or give a block of another kind a `dtype` of its own in its description";
                return Err(PlanError::Budget(nothing.into()));
            }
            demands.extend(apart.iter().map(|pool| Demand::checkpoints(pool.unit_bytes)));
            pools.extend(apart);
        }
        Ok(Self { request, held, groups, pools, demands, load, room: Room::of(request)? })
    }

    fn cost(&self) -> StageCost<'_> {
        StageCost { demands: &self.demands, load: &self.load, room: &self.room }
    }

    /// The sequences that the host tier holds of this stage.
    fn parked(&self, bytes: ByteSize) -> u64 {
        host::sequences(bytes, &self.pools, &self.demands, &self.load)
    }

    /// The plan at what all stages serve; `stated` is the request as it was asked.
    fn plan(self, stated: &Inputs<'_>, agreed: Agreement, cap: Cap) -> Result<CachePlan, PlanError> {
        let Self { request, held, groups, mut pools, demands, load, room } = self;
        let budget = request.budget;
        let sequences = agreed.sequences;
        set_sizes(&mut pools, &demands, &load, agreed)?;
        let slots = SlotDomain {
            padding: load.padding_slots,
            live: sequences,
            checkpoints: load.slots(sequences) - load.padding_slots - sequences,
        };
        let resources = planned_resources(held, &groups, &pools, &load);
        let totals = totals(&resources, &pools)?;
        let parked = budget.host.zip(agreed.host_sequences);
        let host = parked.map(|(host, parked)| host::plan(host.bytes, &pools, &demands, &load, parked)).transpose()?;
        let managed_state = pools.iter().any(|pool| pool.owner == Owner::MambaCacheManager);
        let step = load.step(sequences);
        let mut ledger = room.ledger(step);
        ledger.add_pools(&pools, room.at(step));
        let agreement = (budget.parallel.pp > 1).then_some(agreed);
        Ok(CachePlan {
            schema_version: SCHEMA_VERSION,
            tool_version: env!("CARGO_PKG_VERSION").into(),
            fingerprint: Inputs { stage: request.stage, agreement, ..*stated }.fingerprint(),
            model: request.model.clone(),
            policy: budget.grouping.unwrap_or_default(),
            manager: if managed_state { ManagerKind::MambaHybridCacheManager } else { ManagerKind::KvCacheManager },
            parallel: budget.parallel,
            limits: Limits {
                max_seq_len: load.max_seq_len,
                max_batch_size: sequences,
                max_num_tokens: step.tokens,
                draft_positions: load.draft_positions,
            },
            rollback: budget.speculation.as_ref().and_then(|speculation| speculation.rollback_of(request.resources)),
            slots,
            resources,
            capacity: capacity(&pools, &load, agreed, cap),
            pools,
            totals,
            deployment: deployment(request, &ledger, sequences),
            engine_cache_bytes: budget.engine.cache_bytes.map(|bytes| bytes.0),
            ledger: ledger.lines,
            host,
        })
    }

    /// What is missing for one sequence.
    fn shortfall(&self) -> PlanError {
        let one = self.cost().at(1);
        let memory = self.cost().memory(1);
        let overdrawn = memory.filter(|memory| memory.overdrawn > 0).map(|memory| {
            let outside = self.room.ledger(self.load.step(1));
            Overdrawn { allowed: outside.sum().saturating_sub(memory.overdrawn), lines: outside.lines }
        });
        let bytes = |demand: &Demand| u128::from(demand.unit_bytes) * u128::from(demand.units(&self.load, 1));
        let largest = self.demands.iter().zip(&self.pools).max_by_key(|(demand, _)| bytes(demand));
        PlanError::DoesNotFit(Box::new(Shortfall {
            sequences: 1,
            max_seq_len: self.load.max_seq_len,
            needed: u64::try_from(one.total()).unwrap_or(u64::MAX),
            available: memory.map_or(0, |memory| memory.bytes),
            shortfall: memory.map_or(0, |memory| u64::try_from(one.excess(memory)).unwrap_or(u64::MAX)),
            capped_by: match (&overdrawn, largest) {
                (Some(overdrawn), _) => overdrawn.largest(),
                (None, Some((_, pool))) => pool.id.clone(),
                (None, None) => "memory".into(),
            },
            overdrawn,
            suggestions: Vec::new(),
        }))
    }
}

/// What all ranks are together.
fn deployment(request: &Inputs<'_>, ledger: &Ledger, sequences_per_replica: u64) -> Option<Deployment> {
    let parallel = request.budget.parallel;
    let stages = parallel.stages_of(request.stage, request.model.layers);
    // Of weights that were measured on one rank nobody knows the classes.
    let divided = |line: &&LedgerLine| line.name == LedgerItem::Weights && line.source != Certainty::Measured;
    let weights = ledger.lines.iter().find(divided).and_then(|_| ledger::weights(request)).zip(stages);
    (parallel != Parallel::default()).then(|| Deployment {
        devices: parallel.world_size(),
        replicas: parallel.dp.into(),
        devices_per_replica: parallel.replica_size(),
        sequences_per_replica,
        sequences: sequences_per_replica.saturating_mul(parallel.dp.into()),
        weights: weights
            .map(|(told, stages)| weights::shares(&told.size, parallel, request.stage, stages))
            .unwrap_or_default(),
    })
}

/// The sequences that a stated step has tokens for: each takes one, or all its candidates.
fn sequences_in_step(budget: &Budget, draft_positions: u64) -> Result<Option<u64>, PlanError> {
    match budget.max_num_tokens {
        Some(tokens) if tokens < draft_positions => Err(PlanError::Budget(format!(
            "`max_num_tokens` (--max-num-tokens) is {tokens}, but a step verifies {draft_positions} tokens of each sequence"
        ))),
        tokens => Ok(tokens.map(|tokens| tokens / draft_positions)),
    }
}

/// What the budget says of sequences and steps.
pub(crate) fn load(budget: &Budget, max_seq_len: u64) -> Result<Load, PlanError> {
    let workload = budget.workload.clone().unwrap_or_default();
    let samples = workload.samples(max_seq_len).map_err(PlanError::Budget)?;
    Ok(Load {
        max_seq_len,
        max_num_tokens: budget.max_num_tokens.unwrap_or(DEFAULT_NUM_TOKENS),
        draft_positions: budget.speculation.as_ref().map_or(1, Speculation::positions),
        context_ranks: budget.parallel.context_ranks(),
        padding_slots: PADDING_SLOTS,
        checkpoints_per_sequence: workload.checkpoints_per_sequence,
        checkpoints_apart: workload.checkpoint_dtype.is_some(),
        prefix_reuse: workload.prefix_reuse,
        samples,
    })
}

/// A budget that nothing consumes is a mistake, not a wish.
fn refuse_unconsumed(budget: &Budget, groups: &[&Group<'_>]) -> Result<(), PlanError> {
    // What lies in slots is kept and offloaded with them, whoever owns it.
    let is_unpaged = |group: &Group<'_>| group.growth == Growth::PerSlotToken;
    let any = |of: &dyn Fn(&Group<'_>) -> bool| groups.iter().any(|group| of(group) || is_unpaged(group));
    let (key, why) = if budget.host.is_some() && !any(&|group| group.owner.is_managed()) {
        ("host.bytes", "`host.bytes` is stated, but the model has no managed cache to offload")
    } else if budget.workload.as_ref().is_some_and(|workload| workload.checkpoints_per_sequence > 0)
        && !any(&|group| group.owner == Owner::MambaCacheManager)
    {
        let key = "workload.checkpoints_per_sequence";
        (key, "`workload.checkpoints_per_sequence` is stated, but the model has no managed state")
    } else if budget.memory.is_some() && groups.is_empty() {
        ("memory", "`[memory]` is stated, but the model has no cache")
    } else {
        return Ok(());
    };
    Err(PlanError::Unconsumed { key, why: why.into() })
}

/// Caches that are moved between machines must have a manager; what is there once need not.
fn refuse_unmanaged(budget: &Budget, groups: &[Group<'_>]) -> Result<(), PlanError> {
    let unmanaged = groups.iter().filter(|group| group.owner == Owner::Local && group.growth != Growth::Fixed);
    let names: Vec<String> = unmanaged
        .flat_map(|group| group.members.iter().map(|resource| format!("`{}` ({})", resource.name, group.kind)))
        .collect();
    if !budget.reject_unmanaged || names.is_empty() {
        return Ok(());
    }
    Err(PlanError::Grouping(format!(
        "no manager owns {}, which `reject_unmanaged` forbids; group by-key, or drop the switch",
        names.join(", ")
    )))
}

/// Caches that are moved between machines may have to be alike.
fn refuse_mixed(budget: &Budget, groups: &[Group<'_>]) -> Result<(), PlanError> {
    let paged = groups.iter().filter(|group| matches!(group.growth, Growth::Paged { .. }));
    let firsts: Vec<String> = paged.map(|group| format!("`{}`", group.members[0].name)).collect();
    if !budget.require_uniform || firsts.len() <= 1 {
        return Ok(());
    }
    Err(PlanError::Grouping(format!(
        "paged caches are not uniform: {} need pools of their own, which `require_uniform` forbids",
        firsts.join(", ")
    )))
}

/// One pool for each group, with the members' places in a unit; sizes come later.
fn lay_out(groups: &[Group<'_>], load: &Load, tokens_per_block: u64) -> Result<Vec<Pool>, PlanError> {
    let mut count_of_kind: HashMap<&str, usize> = HashMap::new();
    groups
        .iter()
        .map(|group| {
            let id = match group.members.as_slice() {
                [alone] if group.owner == Owner::Local => alone.name.clone(),
                _ => {
                    let count = count_of_kind.entry(group.kind.name()).or_default();
                    *count += 1;
                    format!("{}.{}", group.kind, *count - 1)
                }
            };
            let (unit, window, stride) = match group.growth {
                Growth::Paged { stride, window } => (Unit::Block, window, u64::from(stride)),
                Growth::Fixed => (Unit::Fixed, None, 1),
                Growth::PerSlotToken | Growth::PerSequence | Growth::PerDraftPosition => (Unit::Slot, None, 1),
            };
            // A block holds whole entries.
            let tokens_per_block = tokens_per_block.div_ceil(stride) * stride;
            let per_unit = match group.growth {
                Growth::Paged { .. } => tokens_per_block / stride,
                Growth::PerSlotToken => load.max_seq_len,
                Growth::PerDraftPosition => load.draft_positions,
                Growth::PerSequence | Growth::Fixed => 1,
            };
            let too_large = || PlanError::TooLarge { pool: id.clone() };
            let mut offset = 0u64;
            let mut members = Vec::with_capacity(group.members.len());
            for resource in &group.members {
                let bytes = resource.handler.unit_bytes().checked_mul(per_unit).ok_or_else(too_large)?;
                members.push(Member { resource: resource.name.clone(), offset, bytes });
                offset = offset.checked_add(bytes).ok_or_else(too_large)?;
            }
            let mut layers: Vec<u32> = group.members.iter().filter_map(|resource| resource.layer).collect();
            layers.sort_unstable();
            layers.dedup();
            Ok(Pool {
                owner: group.owner,
                unit,
                unit_bytes: offset,
                units: 0,
                reserved: match unit {
                    Unit::Block => NULL_BLOCKS,
                    Unit::Slot => load.padding_slots,
                    Unit::Fixed => 0,
                },
                bytes: 0,
                layers,
                dtype: group.dtype,
                tokens_per_block: (unit == Unit::Block).then_some(tokens_per_block),
                window,
                checkpoints_of: None,
                members,
                id,
            })
        })
        .collect()
}

fn demand(group: &Group<'_>, pool: &Pool, load: &Load) -> Demand {
    Demand::new(group.growth, pool.unit_bytes, pool.tokens_per_block.unwrap_or(1), load)
}

fn set_sizes(pools: &mut [Pool], demands: &[Demand], load: &Load, agreed: Agreement) -> Result<(), PlanError> {
    for (pool, demand) in pools.iter_mut().zip(demands) {
        pool.units = demand.units(load, agreed.sequences).saturating_add(demand.spare_units(agreed.spare_tokens));
        let bytes = pool.unit_bytes.checked_mul(pool.units);
        pool.bytes = bytes.ok_or_else(|| PlanError::TooLarge { pool: pool.id.clone() })?;
    }
    Ok(())
}

fn planned_resources(
    held: &RankResources<'_>,
    groups: &[Group<'_>],
    pools: &[Pool],
    load: &Load,
) -> Vec<PlannedResource> {
    let place: HashMap<&str, usize> = groups
        .iter()
        .enumerate()
        .flat_map(|(index, group)| group.members.iter().map(move |resource| (resource.name.as_str(), index)))
        .collect();
    held.iter()
        .filter_map(|(resource, drafts)| {
            let index = *place.get(resource.name.as_str())?;
            let handler = &resource.handler;
            Some(PlannedResource {
                name: resource.name.clone(),
                layer: resource.layer,
                kind: handler.kind().name().to_owned(),
                owner: groups[index].owner,
                pool: pools[index].id.clone(),
                dtype: handler.dtype(),
                bytes_per_token: paged_bytes_per_token(handler),
                bytes_per_sequence: bytes_per_sequence(handler, load),
                bytes_fixed: if handler.growth() == Growth::Fixed { handler.unit_bytes() } else { 0 },
                reason: groups[index].reason.clone(),
                source: Certainty::Exact,
                handler: handler.clone(),
                shared_by: resource.shared_by.clone(),
                drafts,
            })
        })
        .collect()
}

fn paged_bytes_per_token(handler: &ResourceHandler) -> u64 {
    match handler.growth() {
        Growth::Paged { stride, .. } => handler.unit_bytes().div_ceil(u64::from(stride)),
        _ => 0,
    }
}

fn bytes_per_sequence(handler: &ResourceHandler, load: &Load) -> u64 {
    // A unit is at most 2^40 bytes, a count at most 2^32; the pool's own size was checked before.
    match handler.growth() {
        Growth::PerSequence => handler.unit_bytes(),
        Growth::PerSlotToken => handler.unit_bytes().saturating_mul(load.max_seq_len),
        Growth::PerDraftPosition => handler.unit_bytes().saturating_mul(load.draft_positions),
        Growth::Paged { .. } | Growth::Fixed => 0,
    }
}

fn totals(resources: &[PlannedResource], pools: &[Pool]) -> Result<Totals, PlanError> {
    let mut sums = [0u64; 2];
    for pool in pools {
        let sum = &mut sums[usize::from(!pool.owner.is_managed())];
        *sum = sum.checked_add(pool.bytes).ok_or_else(|| PlanError::TooLarge { pool: pool.id.clone() })?;
    }
    let [managed_bytes, unmanaged_bytes] = sums;
    Ok(Totals {
        kv_bytes_per_token: resources.iter().map(|resource| resource.bytes_per_token).sum(),
        state_bytes_per_sequence: resources
            .iter()
            .filter(|resource| resource.handler.is_state())
            .map(|resource| resource.bytes_per_sequence)
            .sum(),
        managed_bytes,
        unmanaged_bytes,
    })
}

fn capacity(pools: &[Pool], load: &Load, agreed: Agreement, capped_by: Cap) -> Capacity {
    let tokens_of = |windowed: bool| {
        pools
            .iter()
            .filter(|pool| pool.window.is_some() == windowed)
            .filter_map(|pool| Some((pool.units - pool.reserved) * pool.tokens_per_block?))
            .min()
    };
    Capacity {
        tokens: tokens_of(false).or_else(|| tokens_of(true)),
        sequences: agreed.sequences,
        tokens_per_sequence: load.tokens_per_sequence(),
        spare_tokens: agreed.spare_tokens,
        capped_by,
    }
}
