//! Changes that would make a plan fit, or hold more sequences, each solved anew.

use cacheplan_handlers::{DType, Kind, ResourceHandler};
use cacheplan_transforms::{Resource, Resources};

use crate::make::{beside, make};
use crate::request::Stated;
use crate::solve::last;
use crate::{
    Budget, BudgetKey, ByteSize, CachePlan, Cap, CheckpointDType, Draft, Parallel, PlanRequest, Suggestion, Workload,
    ledger,
};

/// How many changes are shown.
const SHOWN: usize = 3;

/// The changes that make one sequence fit, those that admit the most first.
pub(crate) fn suggestions(request: &PlanRequest<'_>) -> Vec<Suggestion> {
    let tries = [fewer_checkpoints(request), smaller_checkpoints(request), shorter(request), smaller_kv(request)];
    best(tries.into_iter().flatten().chain(more_devices(request)))
}

impl PlanRequest<'_> {
    /// What would let more sequences run at once than `plan`, the plan of this request, does: one change each, those that admit
    /// the most first. None where no memory is stated.
    pub fn knobs(&self, plan: &CachePlan) -> Vec<Suggestion> {
        let request = self;
        if request.budget.memory.is_none() {
            return Vec::new();
        }
        let tries = match plan.capacity.capped_by {
            Cap::MaxBatchSize => vec![larger_batch(request)],
            Cap::MaxNumTokens => vec![larger_step(request)],
            Cap::SequenceLimit => Vec::new(),
            Cap::Memory | Cap::AnotherRank => vec![
                no_checkpoints(request),
                smaller_checkpoints(request),
                half_as_long(request),
                smaller_kv(request),
                more_devices(request).into_iter().next(),
            ],
        };
        best(tries.into_iter().flatten().filter(|suggestion| suggestion.sequences > served(plan)))
    }
}

impl PlanRequest<'_> {
    /// What is missing where `max_batch_size` asks for more sequences than `plan`, the plan of this request, holds.
    pub fn missing(&self, plan: &CachePlan) -> Option<String> {
        let held = plan.capacity.sequences;
        let asked = self.budget.max_batch_size.filter(|asked| *asked > held)?;
        // A larger step leaves less.
        let (needed, there) = beside(self, asked).ok()?;
        let there = there?.bytes;
        let short = needed.checked_sub(there).filter(|short| *short > 0)?;
        let [needed, there, short] = [needed, there, short].map(ByteSize);
        Some(format!(
            "max_batch_size {asked} was asked for, and {held} fit: caches of {asked} need {needed}, {there} are there; short of {short}"
        ))
    }
}

fn best(found: impl Iterator<Item = Suggestion>) -> Vec<Suggestion> {
    let mut found: Vec<Suggestion> = found.collect();
    found.sort_by_key(|suggestion| std::cmp::Reverse(suggestion.sequences));
    found.truncate(SHOWN);
    found
}

/// A key and its value, as the request was stated.
pub(crate) fn worded(stated: Stated, path: &str, value: &str) -> String {
    match stated {
        Stated::Keys => format!("{path} = {value}"),
        Stated::Flags => {
            let flag = BudgetKey::all().iter().find(|key| key.path == path).map_or(path, |key| key.flag);
            format!("{flag} {}", value.trim_matches('"'))
        }
    }
}

/// What `plan` comes to with these keys, in the words that the request was stated in.
fn suggestion(request: &PlanRequest<'_>, keys: &[(&str, String)], plan: &CachePlan) -> Suggestion {
    let words = |(path, value): &(&str, String)| worded(request.stated, path, value);
    let between = if request.stated == Stated::Flags { " " } else { ", " };
    let change = keys.iter().map(words).collect::<Vec<_>>().join(between);
    let bytes = plan.totals.managed_bytes + plan.totals.unmanaged_bytes;
    Suggestion { change, sequences: served(plan), bytes }
}

/// Sequences over all replicas.
fn served(plan: &CachePlan) -> u64 {
    plan.deployment.as_ref().map_or(plan.capacity.sequences, |all| all.sequences)
}

fn with_budget(request: &PlanRequest<'_>, change: impl FnOnce(&mut Budget)) -> Option<CachePlan> {
    let mut budget = request.budget.clone();
    change(&mut budget);
    make(&PlanRequest { budget: &budget, ..*request }).ok()
}

fn shorter(request: &PlanRequest<'_>) -> Option<Suggestion> {
    let at = |length: u64| with_budget(request, |budget| budget.max_seq_len = Some(length));
    let longest = last(request.budget.max_seq_len_for(request.model) - 1, |length| length == 0 || at(length).is_some());
    Some(suggestion(request, &[("max_seq_len", longest.to_string())], &at(longest)?))
}

fn larger_step(request: &PlanRequest<'_>) -> Option<Suggestion> {
    let plan = with_budget(request, |budget| (budget.max_num_tokens, budget.maximize) = (None, None))?;
    Some(suggestion(request, &[("max_num_tokens", plan.limits.max_num_tokens.to_string())], &plan))
}

fn larger_batch(request: &PlanRequest<'_>) -> Option<Suggestion> {
    let plan = with_budget(request, |budget| (budget.max_batch_size, budget.maximize) = (None, None))?;
    Some(suggestion(request, &[("max_batch_size", plan.capacity.sequences.to_string())], &plan))
}

fn half_as_long(request: &PlanRequest<'_>) -> Option<Suggestion> {
    if request.budget.workload.as_ref().is_some_and(Workload::states_lengths) {
        return None;
    }
    let half = request.budget.max_seq_len_for(request.model) / 2;
    let plan = with_budget(request, |budget| budget.max_seq_len = Some(half))?;
    Some(suggestion(request, &[("max_seq_len", half.to_string())], &plan))
}

fn fewer_checkpoints(request: &PlanRequest<'_>) -> Option<Suggestion> {
    let checkpoints = request.budget.workload.as_ref()?.checkpoints_per_sequence;
    let fits = |fewer: u64| with_checkpoints(request, fewer).is_some();
    let most = last(checkpoints.checked_sub(1)?, |fewer| fewer == 0 || fits(fewer));
    Some(checkpoints_of(request, most, &with_checkpoints(request, most)?))
}

fn no_checkpoints(request: &PlanRequest<'_>) -> Option<Suggestion> {
    request.budget.workload.as_ref().filter(|workload| workload.checkpoints_per_sequence > 0)?;
    Some(checkpoints_of(request, 0, &with_checkpoints(request, 0)?))
}

fn with_checkpoints(request: &PlanRequest<'_>, each: u64) -> Option<CachePlan> {
    with_budget(request, |budget| {
        if let Some(workload) = &mut budget.workload {
            workload.checkpoints_per_sequence = each;
            workload.checkpoint_dtype = workload.checkpoint_dtype.filter(|_| each > 0);
            workload.checkpoint_strategy = workload.checkpoint_strategy.filter(|_| each > 0);
        }
    })
}

fn checkpoints_of(request: &PlanRequest<'_>, each: u64, plan: &CachePlan) -> Suggestion {
    suggestion(request, &[("workload.checkpoints_per_sequence", each.to_string())], plan)
}

fn smaller_checkpoints(request: &PlanRequest<'_>) -> Option<Suggestion> {
    request.budget.workload.as_ref().filter(|workload| workload.checkpoint_dtype.is_none())?;
    let plan = with_budget(request, |budget| {
        if let Some(workload) = &mut budget.workload {
            workload.checkpoint_dtype = Some(CheckpointDType::Int8);
        }
    })?;
    Some(suggestion(request, &[("workload.checkpoint_dtype", "\"int8\"".into())], &plan))
}

fn smaller_kv(request: &PlanRequest<'_>) -> Option<Suggestion> {
    let smaller = in_eight_bits(request.resources)?;
    let drafting = request.draft.and_then(|draft| in_eight_bits(draft.resources));
    let draft = request.draft.zip(drafting.as_ref()).map(|(draft, resources)| Draft { resources, ..draft });
    if smaller == *request.resources {
        return None;
    }
    let plan = make(&PlanRequest { resources: &smaller, draft, ..*request }).ok()?;
    Some(suggestion(request, &[("dtypes.kv", "\"f8_e4m3\"".into())], &plan))
}

/// The resources with wide keys and values in 8 bits.
pub(crate) fn in_eight_bits(resources: &Resources) -> Option<Resources> {
    let is_wide = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::Bf16);
    stored_as(resources, DType::F8E4m3, |handler| handler.is_paged() && is_wide(handler.dtype()))
}

/// The same resources with recurrent states of 32 bits in 16.
pub(crate) fn states_in_sixteen_bits(resources: &Resources) -> Option<Resources> {
    let is_state = |handler: &ResourceHandler| matches!(handler.kind(), Kind::Ssm | Kind::IntermediateSsm);
    stored_as(resources, DType::Bf16, |handler| is_state(handler) && handler.dtype() == DType::F32)
}

/// The same resources, those that `of` picks in another dtype.
fn stored_as(resources: &Resources, dtype: DType, of: impl Fn(&ResourceHandler) -> bool) -> Option<Resources> {
    let mut smaller = Resources::default();
    for resource in resources {
        let handler = &resource.handler;
        let handler = if of(handler) { handler.with_dtype(dtype).ok()? } else { handler.clone() };
        smaller.push(Resource { handler, ..resource.clone() }).ok()?;
    }
    Some(smaller)
}

/// The fewest devices more that admit a sequence, divided in the ways that engines run, that which admits the most first.
fn more_devices(request: &PlanRequest<'_>) -> Vec<Suggestion> {
    let now = request.budget.parallel;
    let experts = ledger::weights(request).and_then(|weights| weights.size.classes).is_some_and(|of| of.routed > 0);
    let tried = (1..=3).map(|doublings| {
        let layouts = [
            Some(Parallel { tp: now.tp << doublings, ..now }),
            Some(Parallel { pp: now.pp << doublings, ..now }),
            // The ranks of a latent or of few heads hold the same tokens unless they divide them.
            Some(Parallel { tp: now.tp << doublings, dcp: now.dcp << doublings, ..now }),
            // Each replica runs the attention of its own sequences, and the experts of all.
            experts.then(|| Parallel { dp: now.dp << doublings, ep: (now.tp * now.dp) << doublings, ..now }),
        ];
        let plans = layouts.into_iter().flatten().filter_map(|parallel| {
            let plan = with_budget(request, |budget| budget.parallel = parallel)?;
            Some(match request.counted_device {
                None => suggestion(request, &parallel.changes(now), &plan),
                // Their number and the layout are stated together, or contradict each other.
                Some(device) => {
                    let mut all = suggestion(request, &parallel.changes(Parallel::default()), &plan);
                    all.change = format!("--device-memory {}x{device} {}", parallel.world_size(), all.change);
                    all
                }
            })
        });
        let mut found: Vec<Suggestion> = plans.collect();
        found.sort_by_key(|suggestion| std::cmp::Reverse(suggestion.sequences));
        found
    });
    tried.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}
