//! Changes that would make a plan fit, or hold more sequences, each solved anew.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_transforms::{Resource, Resources};

use crate::make::make;
use crate::solve::last;
use crate::{Budget, CachePlan, CheckpointDType, Draft, PlanRequest, Suggestion, Workload};

/// How many changes are shown.
const SHOWN: usize = 3;

/// The changes that make one sequence fit, those that admit the most first.
pub(crate) fn suggestions(request: &PlanRequest<'_>) -> Vec<Suggestion> {
    let tries = [
        fewer_checkpoints(request),
        smaller_checkpoints(request),
        shorter(request),
        smaller_kv(request),
        more_ranks(request),
    ];
    best(tries.into_iter().flatten())
}

/// What would let more sequences run at once than `plan`, the plan of `request`, does: one change each, those that admit
/// the most first. None where no memory is stated, and none for pipeline stages, which must agree.
pub fn knobs(request: &PlanRequest<'_>, plan: &CachePlan) -> Vec<Suggestion> {
    let budget = request.budget;
    if budget.memory.is_none() || budget.parallel.pp > 1 {
        return Vec::new();
    }
    let tries = match plan.capacity.capped_by.as_str() {
        "max_batch_size" => vec![larger_batch(request)],
        _ => vec![
            no_checkpoints(request),
            smaller_checkpoints(request),
            half_as_long(request),
            smaller_kv(request),
            more_ranks(request),
        ],
    };
    best(tries.into_iter().flatten().filter(|suggestion| suggestion.sequences > plan.capacity.sequences))
}

fn best(found: impl Iterator<Item = Suggestion>) -> Vec<Suggestion> {
    let mut found: Vec<Suggestion> = found.collect();
    found.sort_by_key(|suggestion| std::cmp::Reverse(suggestion.sequences));
    found.truncate(SHOWN);
    found
}

fn suggestion(change: String, plan: &CachePlan) -> Suggestion {
    let bytes = plan.totals.managed_bytes + plan.totals.unmanaged_bytes;
    Suggestion { change, sequences: plan.capacity.sequences, bytes }
}

fn with_budget(request: &PlanRequest<'_>, change: impl FnOnce(&mut Budget)) -> Option<CachePlan> {
    let mut budget = request.budget.clone();
    change(&mut budget);
    make(&PlanRequest { budget: &budget, ..*request }).ok()
}

fn shorter(request: &PlanRequest<'_>) -> Option<Suggestion> {
    let at = |length: u64| with_budget(request, |budget| budget.max_seq_len = Some(length));
    let longest = last(request.budget.max_seq_len_for(request.model) - 1, |length| length == 0 || at(length).is_some());
    Some(suggestion(format!("max_seq_len = {longest}"), &at(longest)?))
}

fn larger_batch(request: &PlanRequest<'_>) -> Option<Suggestion> {
    let plan = with_budget(request, |budget| (budget.max_batch_size, budget.maximize) = (None, None))?;
    Some(suggestion(format!("max_batch_size = {}", plan.capacity.sequences), &plan))
}

fn half_as_long(request: &PlanRequest<'_>) -> Option<Suggestion> {
    if request.budget.workload.as_ref().is_some_and(Workload::states_lengths) {
        return None;
    }
    let half = request.budget.max_seq_len_for(request.model) / 2;
    let plan = with_budget(request, |budget| budget.max_seq_len = Some(half))?;
    Some(suggestion(format!("max_seq_len = {half}"), &plan))
}

fn fewer_checkpoints(request: &PlanRequest<'_>) -> Option<Suggestion> {
    let checkpoints = request.budget.workload.as_ref()?.checkpoints_per_sequence;
    let fits = |fewer: u64| with_checkpoints(request, fewer).is_some();
    let most = last(checkpoints.checked_sub(1)?, |fewer| fewer == 0 || fits(fewer));
    Some(checkpoints_of(most, &with_checkpoints(request, most)?))
}

fn no_checkpoints(request: &PlanRequest<'_>) -> Option<Suggestion> {
    request.budget.workload.as_ref().filter(|workload| workload.checkpoints_per_sequence > 0)?;
    Some(checkpoints_of(0, &with_checkpoints(request, 0)?))
}

fn with_checkpoints(request: &PlanRequest<'_>, each: u64) -> Option<CachePlan> {
    with_budget(request, |budget| {
        if let Some(workload) = &mut budget.workload {
            workload.checkpoints_per_sequence = each;
            workload.checkpoint_dtype = workload.checkpoint_dtype.filter(|_| each > 0);
        }
    })
}

fn checkpoints_of(each: u64, plan: &CachePlan) -> Suggestion {
    suggestion(format!("workload.checkpoints_per_sequence = {each}"), plan)
}

fn smaller_checkpoints(request: &PlanRequest<'_>) -> Option<Suggestion> {
    request.budget.workload.as_ref().filter(|workload| workload.checkpoint_dtype.is_none())?;
    let plan = with_budget(request, |budget| {
        if let Some(workload) = &mut budget.workload {
            workload.checkpoint_dtype = Some(CheckpointDType::Int8);
        }
    })?;
    Some(suggestion("workload.checkpoint_dtype = \"int8\"".into(), &plan))
}

fn smaller_kv(request: &PlanRequest<'_>) -> Option<Suggestion> {
    let smaller = in_eight_bits(request.resources)?;
    let drafting = request.draft.and_then(|draft| in_eight_bits(draft.resources));
    let draft = request.draft.zip(drafting.as_ref()).map(|(draft, resources)| Draft { resources, ..draft });
    if smaller == *request.resources {
        return None;
    }
    let plan = make(&PlanRequest { resources: &smaller, draft, ..*request }).ok()?;
    Some(suggestion("dtypes.kv = \"f8_e4m3\"".into(), &plan))
}

/// The resources with wide keys and values in 8 bits.
fn in_eight_bits(resources: &Resources) -> Option<Resources> {
    let mut smaller = Resources::default();
    for resource in resources {
        let handler = &resource.handler;
        let halved = handler.is_paged() && matches!(handler.dtype(), DType::F32 | DType::F16 | DType::Bf16);
        let (kind, growth, shape) = (handler.kind().clone(), handler.growth(), handler.shape().to_vec());
        let handler = match halved {
            true => ResourceHandler::new(kind, growth, shape, DType::F8E4m3, handler.layout()).ok()?,
            false => handler.clone(),
        };
        smaller.push(Resource { handler, ..resource.clone() }).ok()?;
    }
    Some(smaller)
}

fn more_ranks(request: &PlanRequest<'_>) -> Option<Suggestion> {
    (1..=3).find_map(|doublings| {
        let tp = request.budget.parallel.tp << doublings;
        let plan = with_budget(request, |budget| budget.parallel.tp = tp)?;
        Some(suggestion(format!("parallel.tp = {tp}"), &plan))
    })
}
