//! Changes that would make a plan fit, or hold more sequences, each solved anew.

use cacheplan_handlers::DType;

use crate::budget::{Budget, CheckpointDType, Workload};
use crate::error::{PlanError, Shortfall, Suggestion};
use crate::limits::MAX_COUNT;
use crate::parallel::Parallel;
use crate::plan::{CachePlan, Cap};
use crate::request::PlanRequest;
use crate::solver::solve::last;

/// A plan, and the sequences that run at once with it, over all replicas: the engine's where one is named.
struct Planned {
    plan: CachePlan,
    sequences: u64,
}

/// How many changes are shown.
const SHOWN: usize = 3;

impl PlanRequest {
    /// The changes that make one sequence fit, those that admit the most first.
    pub(crate) fn suggestions(&self) -> Vec<Suggestion> {
        let Ok(budget) = self.budget() else { return Vec::new() };
        let tries = [
            self.fewer_checkpoints(&budget),
            self.smaller_checkpoints(&budget),
            self.shorter(&budget),
            self.smaller_kv(),
        ];
        best(tries.into_iter().flatten().chain(self.more_devices(&budget)))
    }

    /// The longest `max_seq_len` of which `max_batch_size` sequences fit, or one where that is not stated: what engines call
    /// `auto`. Where the request names an engine, it admits them too. It is at most what the model was made for, and where
    /// nobody says that, what the key takes.
    ///
    /// # Errors
    /// A budget without memory, and what [`plan`](Self::plan) says of the shortest sequences where none fit.
    pub fn longest_sequence(&self) -> Result<u64, PlanError> {
        let budget = self.budget()?;
        if budget.memory.is_none() {
            let unbounded = "the longest sequence depends on the memory; state it with --device-memory or [memory]";
            return Err(PlanError::Budget(unbounded.into()));
        }
        let asked = budget.max_batch_size.unwrap_or(1);
        let at = |length: u64| self.changed(|budget| budget.max_seq_len = Some(length));
        let holds = |length: u64| {
            let request = at(length);
            let admits = |engine| request.predict(engine).is_ok_and(|found| found.sequences >= asked);
            request.planned().is_some_and(|found| found.plan.capacity.sequences >= asked)
                && self.engine().is_none_or(admits)
        };
        let longest = last(self.most_tokens(), |length| length == 0 || holds(length));
        if longest > 0 {
            return Ok(longest);
        }
        // What would admit sequences of one token is no promise for longer ones.
        let ranks = at(1).ranks().map_err(|error| match error {
            PlanError::DoesNotFit(shortfall) => {
                PlanError::DoesNotFit(Box::new(Shortfall { suggestions: Vec::new(), ..*shortfall }))
            }
            error => error,
        })?;
        let is_by_step =
            |plan: &&CachePlan| plan.capacity.capped_by == Cap::MaxNumTokens && plan.capacity.sequences < asked;
        Err(match ranks.stages.iter().find(is_by_step) {
            None => PlanError::TooMany { asked },
            Some(CachePlan { capacity, limits, .. }) => {
                let needed = asked.saturating_mul(limits.draft_positions).min(MAX_COUNT);
                let wider = self.changed(|budget| budget.max_num_tokens = Some(needed));
                let would_do = wider.longest_sequence().is_ok();
                PlanError::SmallStep {
                    asked,
                    held: capacity.sequences,
                    max_num_tokens: limits.max_num_tokens,
                    change: would_do.then(|| self.stated().setting("max_num_tokens", &needed.to_string())),
                }
            }
        })
    }

    /// The longest sequences that are planned.
    pub fn most_tokens(&self) -> u64 {
        self.info().max_position_embeddings.unwrap_or(MAX_COUNT).min(MAX_COUNT)
    }

    /// What ends the longest sequences, of which so many tokens were found.
    pub fn longest_is(&self, tokens: u64) -> &'static str {
        match self.info().max_position_embeddings {
            Some(most) if most == tokens => "the longest that the model was made for, and fits",
            None if tokens == MAX_COUNT => "the most that is planned, and fits; the model states no maximum",
            _ => "the longest that fits",
        }
    }

    /// What would let more sequences run at once than `plan` does, of a request with this budget.
    pub(crate) fn larger(&self, budget: &Budget, plan: &CachePlan) -> Vec<Suggestion> {
        if budget.memory.is_none() {
            return Vec::new();
        }
        let tries = match plan.capacity.capped_by {
            Cap::MaxBatchSize => vec![self.larger_batch()],
            Cap::MaxNumTokens => vec![self.larger_step()],
            Cap::SequenceLimit => Vec::new(),
            Cap::Memory | Cap::AnotherRank => vec![
                self.no_checkpoints(budget),
                self.smaller_checkpoints(budget),
                self.half_as_long(budget),
                self.smaller_kv(),
                self.more_devices(budget).into_iter().next(),
            ],
        };
        best(tries.into_iter().flatten().filter(|suggestion| suggestion.sequences > served(plan)))
    }

    /// The plan of the first stage, if there is one, and an engine that is named holds something of it too.
    fn planned(&self) -> Option<Planned> {
        let plan = self.made().and_then(|ranks| ranks.into_stage(0)).ok()?;
        let sequences = match self.engine() {
            Some(engine) => self.predict(engine).ok()?.sequences.saturating_mul(plan.parallel.dp.into()),
            None => served(&plan),
        };
        (sequences > 0).then_some(Planned { plan, sequences })
    }

    /// What a plan comes to with these keys, in the words that the request was stated in, if who asks takes it.
    fn suggestion(&self, keys: &[(&str, String)], planned: &Planned) -> Option<Suggestion> {
        let change = self.stated().settings(keys);
        let Planned { plan, sequences } = planned;
        let bytes = plan.totals.managed_bytes + plan.totals.unmanaged_bytes;
        self.takes(plan).then_some(Suggestion { change, sequences: *sequences, bytes })
    }

    fn shorter(&self, budget: &Budget) -> Option<Suggestion> {
        let at = |length: u64| self.changed(|budget| budget.max_seq_len = Some(length)).planned();
        let longest = last(budget.max_seq_len_for(self.info()) - 1, |length| length == 0 || at(length).is_some());
        self.suggestion(&[("max_seq_len", longest.to_string())], &at(longest)?)
    }

    fn half_as_long(&self, budget: &Budget) -> Option<Suggestion> {
        if budget.workload.as_ref().is_some_and(Workload::states_lengths) {
            return None;
        }
        let half = budget.max_seq_len_for(self.info()) / 2;
        let plan = self.changed(|budget| budget.max_seq_len = Some(half)).planned()?;
        self.suggestion(&[("max_seq_len", half.to_string())], &plan)
    }

    fn larger_step(&self) -> Option<Suggestion> {
        let most = self.changed(|budget| (budget.max_num_tokens, budget.maximize) = (None, None)).planned()?;
        let tokens = most.plan.limits.max_num_tokens;
        let plan = self.changed(|budget| budget.max_num_tokens = Some(tokens)).planned()?;
        self.suggestion(&[("max_num_tokens", tokens.to_string())], &plan)
    }

    fn larger_batch(&self) -> Option<Suggestion> {
        let most = self.changed(|budget| (budget.max_batch_size, budget.maximize) = (None, None)).planned()?;
        let sequences = most.plan.capacity.sequences;
        let plan = self.changed(|budget| budget.max_batch_size = Some(sequences)).planned()?;
        self.suggestion(&[("max_batch_size", sequences.to_string())], &plan)
    }

    fn fewer_checkpoints(&self, budget: &Budget) -> Option<Suggestion> {
        let workload = budget.workload.as_ref()?;
        let (checkpoints, fewest) = (workload.checkpoints_per_sequence, workload.fewest_checkpoints());
        let holds = |fewer: u64| fewer <= fewest || self.with_checkpoints(fewer).is_some();
        self.checkpoints_of(last(checkpoints.checked_sub(1).filter(|most| *most >= fewest)?, holds))
    }

    fn no_checkpoints(&self, budget: &Budget) -> Option<Suggestion> {
        let workload = budget.workload.as_ref()?;
        let fewest = workload.fewest_checkpoints();
        (workload.checkpoints_per_sequence > fewest).then(|| self.checkpoints_of(fewest))?
    }

    fn with_checkpoints(&self, each: u64) -> Option<Planned> {
        let fewer = self.changed(|budget| {
            if let Some(workload) = &mut budget.workload {
                workload.checkpoints_per_sequence = each;
            }
        });
        fewer.planned()
    }

    fn checkpoints_of(&self, each: u64) -> Option<Suggestion> {
        let plan = self.with_checkpoints(each)?;
        self.suggestion(&[("workload.checkpoints_per_sequence", each.to_string())], &plan)
    }

    fn smaller_checkpoints(&self, budget: &Budget) -> Option<Suggestion> {
        budget.workload.as_ref().filter(|workload| workload.checkpoint_dtype.is_none())?;
        let smaller = self.changed(|budget| {
            if let Some(workload) = &mut budget.workload {
                workload.checkpoint_dtype = Some(CheckpointDType::Int8);
            }
        });
        self.suggestion(&[("workload.checkpoint_dtype", "\"int8\"".into())], &smaller.planned()?)
    }

    fn smaller_kv(&self) -> Option<Suggestion> {
        let smaller = self.stored_in(Some(DType::F8E4m3), None);
        if !smaller.stores_less_than(self) {
            return None;
        }
        self.suggestion(&[("dtypes.kv", "\"f8_e4m3\"".into())], &smaller.planned()?)
    }

    /// Whether the model's caches have fewer bytes than those of `other`, another request for it.
    pub(crate) fn stores_less_than(&self, other: &Self) -> bool {
        let bytes = |request: &Self| -> Option<u128> {
            Some(request.caches().ok()?.iter().map(|resource| u128::from(resource.handler.unit_bytes())).sum())
        };
        bytes(self).zip(bytes(other)).is_some_and(|(own, other)| own < other)
    }

    /// The fewest devices more that admit a sequence, divided in the ways that engines run, that which admits the most first.
    fn more_devices(&self, budget: &Budget) -> Vec<Suggestion> {
        let now = budget.parallel;
        let tried = (1..=3).map(|doublings| {
            let layouts = [
                Some(Parallel { tp: now.tp << doublings, ..now }),
                Some(Parallel { pp: now.pp << doublings, ..now }),
                // The ranks of a latent or of few heads hold the same tokens unless they divide them.
                Some(Parallel { tp: now.tp << doublings, dcp: now.dcp << doublings, ..now }),
                // Each replica runs the attention of its own sequences, and the experts of all.
                self.has_experts().then(|| Parallel {
                    dp: now.dp << doublings,
                    ep: (now.tp * now.dp) << doublings,
                    ..now
                }),
            ];
            let plans = layouts.into_iter().flatten().filter_map(|parallel| {
                let plan = self.divided(parallel).planned()?;
                match self.counted_device() {
                    None => self.suggestion(&parallel.changes(now), &plan),
                    // Their number and the layout are stated together, or contradict each other.
                    Some(device) => {
                        let mut all = self.suggestion(&parallel.changes(Parallel::default()), &plan)?;
                        let devices = self.stated().devices(&format!("{}x{device}", parallel.world_size()));
                        all.change = format!("{devices} {}", all.change);
                        Some(all)
                    }
                }
            });
            let mut found: Vec<Suggestion> = plans.collect();
            found.sort_by_key(|suggestion| std::cmp::Reverse(suggestion.sequences));
            found
        });
        tried.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Where nobody said how several devices divide the model and they cannot be tensor parallel ranks: how else.
    pub(crate) fn another_layout(&self) -> String {
        let Some((devices, divisible)) = self.assumes_ranks().zip(self.model().divisible()) else {
            return String::new();
        };
        let best = |kept: Parallel| {
            let layouts = divisible.layouts(devices, kept, |tp| self.divides_over(tp));
            let plans = layouts.into_iter().filter(|parallel| parallel.world_size() == u64::from(devices));
            let plans = plans.filter_map(|parallel| Some((self.divided(parallel).planned()?.sequences, parallel)));
            plans.max_by_key(|(sequences, _)| *sequences).map(|(_, parallel)| parallel)
        };
        let (none, stated) = (Parallel::default(), self.config().budget.parallel);
        let said = |parallel: Parallel, beside: Parallel| self.stated().settings(&parallel.changes(beside));
        match (best(stated), stated == none) {
            (Some(best), _) => format!("; {} would do", said(best, stated)),
            (None, true) => String::new(),
            // No layout goes with what is stated of it.
            (None, false) => best(none).map_or_else(String::new, |best| {
                format!("; without {}, {} would do", said(stated, none), said(best, none))
            }),
        }
    }

    /// Whether so many tensor parallel ranks divide every cache, whatever memory they have.
    pub(crate) fn divides_over(&self, tp: u32) -> bool {
        let made = self.divided(Parallel { tp, ..Parallel::default() }).made();
        tp == 1 || matches!(made, Ok(_) | Err(PlanError::DoesNotFit(_)))
    }

    fn has_experts(&self) -> bool {
        let Ok(settled) = self.settled() else { return false };
        let weights = crate::solver::ledger::weights(&settled.inputs());
        weights.and_then(|weights| weights.size.classes).is_some_and(|of| of.routed > 0)
    }
}

fn best(found: impl Iterator<Item = Suggestion>) -> Vec<Suggestion> {
    let mut found: Vec<Suggestion> = found.collect();
    found.sort_by_key(|suggestion| std::cmp::Reverse(suggestion.sequences));
    found.truncate(SHOWN);
    found
}

/// Sequences over all replicas.
fn served(plan: &CachePlan) -> u64 {
    plan.deployment.as_ref().map_or(plan.capacity.sequences, |all| all.sequences)
}
