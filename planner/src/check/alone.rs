//! What a plan says of itself, without what it was made from.

use cacheplan_transforms::{Resource, Resources};

use super::{Findings, Rule, Violation, check, rollback};
use crate::{Budget, CachePlan, PlanRequest};

/// Proves what can be proved of a plan without its model and budget: that every resource is a member of one pool that
/// may hold it, that offsets, units and sums are what the resources' shapes make of them, and that every state can be
/// put back after a speculative step.
///
/// Limits, capacity, ledger and fingerprint follow from the request; [`check`](fn@crate::check) proves those too.
///
/// # Errors
/// Everything that is not as it must be.
pub fn check_alone(plan: &CachePlan) -> Result<(), Vec<Violation>> {
    let mut resources = Resources::default();
    for planned in &plan.resources {
        let resource = Resource {
            name: planned.name.clone(),
            layer: planned.layer,
            handler: planned.handler.clone(),
            node: String::new(),
            provenance: Vec::new(),
            shared_by: planned.shared_by.clone(),
        };
        resources.push(resource).map_err(|error| {
            vec![Violation {
                rule: Rule::Coverage,
                place: "resources".into(),
                found: error.to_string(),
                expected: "each once".into(),
            }]
        })?;
    }
    // A pool of compressed entries rounds the budget's block up, so the smallest is the budget's own or a multiple.
    let tokens_per_block = plan.pools.iter().filter_map(|pool| pool.tokens_per_block).min();
    let budget = Budget { max_seq_len: Some(plan.limits.max_seq_len), tokens_per_block, ..Budget::default() };
    let of_the_plan_alone = |violation: &Violation| {
        matches!(
            violation.rule,
            Rule::Coverage | Rule::Membership | Rule::Compatibility | Rule::Owner | Rule::Layout | Rule::Size
        )
    };
    let found = check(&PlanRequest::new(&plan.model, &resources, &budget), plan).err().unwrap_or_default();
    let mut findings = Findings(found.into_iter().filter(of_the_plan_alone).collect());
    rollback::check_alone(&resources, plan, &mut findings);
    if findings.0.is_empty() { Ok(()) } else { Err(findings.0) }
}
