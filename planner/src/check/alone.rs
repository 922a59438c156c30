//! What a plan says of itself, without what it was made from.

use cacheplan_files::Shown;
use cacheplan_handlers::Growth;
use cacheplan_transforms::Resources;

use super::capacity;
use super::facts::Facts;
use super::{Findings, Rule, Violation, deployment, host, manager, pools, resources, rollback};
use crate::budget::Budget;
use crate::plan::{CachePlan, Unit};
use crate::solver::inputs::Inputs;

impl CachePlan {
    /// Proves what can be proved of the plan without its model and budget: that every resource is a member of one pool that
    /// may hold it, that offsets, units and sums are what the resources' shapes make of them, and that every state can be
    /// put back after a speculative step.
    ///
    /// That no limit is none, that slots are as many as their pools have, and the tokens that these hold is proved too. What
    /// they must be, ledger and fingerprint follow from the request; [`PlanRequest::check`](crate::PlanRequest::check) proves that.
    ///
    /// # Errors
    /// Everything that is not as it must be.
    pub fn check_alone(&self) -> Result<(), Vec<Violation>> {
        let plan = self;
        // A pool of compressed entries rounds the budget's block up, so the smallest is the budget's own or a multiple.
        let tokens_per_block = plan.pools.iter().filter_map(|pool| pool.tokens_per_block).min();
        let budget = Budget { max_seq_len: Some(plan.limits.max_seq_len), tokens_per_block, ..Budget::default() };
        let of_the_plan_alone = |violation: &Violation| {
            matches!(
                violation.rule,
                Rule::Coverage | Rule::Membership | Rule::Compatibility | Rule::Owner | Rule::Layout | Rule::Size
            )
        };
        let none = Resources::default();
        let facts = Facts::of(&Inputs::new(&plan.model, &none, &budget), plan)
            .map_err(|error| vec![Violation::unreadable(&error)])?;
        let mut findings = Findings::default();
        manager(plan, &mut findings);
        resources::check(plan, &mut findings);
        pools::check(&facts, plan, &mut findings);
        findings.0.retain(of_the_plan_alone);
        limits(plan, &mut findings);
        capacity::tokens(plan, &mut findings);
        host::check_alone(plan, &mut findings);
        deployment::check_alone(plan, &mut findings);
        names(plan, &mut findings);
        rollback::check_alone(plan, &mut findings);
        if findings.0.is_empty() { Ok(()) } else { Err(findings.0) }
    }
}

/// More than any book is kept of.
const MOST_SLOTS: u64 = 1 << 28;

/// No limit is none, and the slots are those of the sequences and of every pool that is indexed by them.
fn limits(plan: &CachePlan, findings: &mut Findings) {
    let limits = &plan.limits;
    let stated = [
        ("max_seq_len", limits.max_seq_len),
        ("max_batch_size", limits.max_batch_size),
        ("max_num_tokens", limits.max_num_tokens),
        ("draft_positions", limits.draft_positions),
    ];
    for (key, _) in stated.into_iter().filter(|(_, limit)| *limit == 0) {
        findings.add(Rule::Limits, format!("limits.{key}"), "0", "at least 1");
    }
    let slots = plan.slots;
    findings.expect(Rule::Limits, "slots.padding", slots.padding, 1);
    findings.expect(Rule::Limits, "slots.live", slots.live, plan.capacity.sequences);
    let total = slots.total();
    if total > MOST_SLOTS {
        findings.add(Rule::Size, "slots", total.to_string(), format!("at most {MOST_SLOTS}"));
    }
    let length = plan.capacity.tokens_per_sequence;
    if !(1..=limits.max_seq_len).contains(&length) {
        let expected = format!("at least 1 and at most max_seq_len, {}", limits.max_seq_len);
        findings.add(Rule::Capacity, "capacity.tokens_per_sequence", length.to_string(), expected);
    }
    for pool in &plan.pools {
        let reserved = u64::from(pool.unit != Unit::Fixed && pool.checkpoints_of.is_none());
        findings.expect(Rule::Limits, format!("pools[{}].reserved", pool.id), pool.reserved, reserved);
    }
    let drafts = |pool: &str| {
        let mut members = plan.resources.iter().filter(|resource| resource.pool == pool);
        members.any(|resource| resource.handler.growth() == Growth::PerDraftPosition)
    };
    for pool in plan.pools.iter().filter(|pool| pool.unit == Unit::Slot && pool.checkpoints_of.is_none()) {
        if !drafts(&pool.id) {
            findings.expect(Rule::Limits, format!("pools[{}].units", pool.id), pool.units, total);
        }
    }
}

/// Names are shown, compared and written into other files: all of them are short, and none steers a terminal.
fn names(plan: &CachePlan, findings: &mut Findings) {
    const LONGEST: usize = 500;
    let resources = plan.resources.iter().map(|resource| ("resources", resource.name.as_str()));
    let pools = plan.pools.iter().map(|pool| ("pools", pool.id.as_str()));
    let model = [("model.type", Some(&plan.model.model_type)), ("model.name", plan.model.name.as_ref())];
    let model = model.into_iter().filter_map(|(place, name)| Some((place, name?.as_str())));
    for (place, name) in resources.chain(pools).chain(model) {
        if name.len() > LONGEST || Shown(name).to_string() != name {
            findings.add(Rule::Coverage, place, name, "names of visible characters");
        }
    }
}
