//! An independent proof of a plan.
//!
//! Nothing here calls the planner or the handlers' arithmetic: which caches a rank holds, their shapes, their bytes, how
//! many of them fit and what the ledger adds up to are all derived anew from the request. Shared are the types, the
//! samples that a workload stands for, and the hash of the request.

mod alone;
mod capacity;
mod coverage;
mod deployment;
mod facts;
mod host;
mod ledger;
mod pools;
mod resources;
mod rollback;
mod shapes;

use std::fmt;

use cacheplan_files::Shown;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use cacheplan_transforms::ModelInfo;

use crate::error::PlanError;
use crate::plan::{CachePlan, ManagerKind, Owner, SCHEMA_VERSION};
use crate::solver::inputs::Inputs;

/// Something in a plan that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{rule}: {} is {}, expected {}", Shown(place), Shown(found), Shown(expected))]
pub struct Violation {
    /// The rule that is broken.
    pub rule: Rule,
    /// Where: `pools[ssm.0].units`.
    pub place: String,
    /// What the plan says.
    pub found: String,
    /// What it must say.
    pub expected: String,
}

/// The rules of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The plan is for this schema, model, budget and device.
    Fingerprint,
    /// Limits and slots are the budget's.
    Limits,
    /// Every resource of the model is planned once, as it is.
    Coverage,
    /// Every resource is a member of exactly the pool it names.
    Membership,
    /// The members of a pool may share it.
    Compatibility,
    /// The owner can own what it owns.
    Owner,
    /// Members stand one after the other, each of its bytes, on whole elements.
    Layout,
    /// Sizes are products and sums of what they are made of.
    Size,
    /// The pools hold the sequences claimed and no more would fit.
    Capacity,
    /// Every state has what puts it back to the accepted tokens: a snapshot, or the inputs of its recurrence.
    Rollback,
    /// The ledger adds up.
    Ledger,
    /// The host tier holds what is claimed and no more would fit.
    Host,
    /// What all ranks are together follows from one of them.
    Deployment,
    /// What an engine is said to allocate is what its rules give.
    Engine,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fingerprint => "fingerprint",
            Self::Limits => "limits",
            Self::Coverage => "coverage",
            Self::Membership => "membership",
            Self::Compatibility => "compatibility",
            Self::Owner => "owner",
            Self::Layout => "layout",
            Self::Size => "size",
            Self::Capacity => "capacity",
            Self::Rollback => "rollback",
            Self::Ledger => "ledger",
            Self::Host => "host",
            Self::Deployment => "deployment",
            Self::Engine => "engine",
        })
    }
}

/// What was found so far.
#[derive(Default)]
pub(crate) struct Findings(pub(crate) Vec<Violation>);

impl Findings {
    #[allow(clippy::needless_pass_by_value, reason = "both sides are mostly made for the comparison")]
    pub(crate) fn expect<T: PartialEq + fmt::Debug>(
        &mut self,
        rule: Rule,
        place: impl fmt::Display,
        found: T,
        expected: T,
    ) {
        if found != expected {
            self.add(rule, place, format!("{found:?}"), format!("{expected:?}"));
        }
    }

    pub(crate) fn add(
        &mut self,
        rule: Rule,
        place: impl fmt::Display,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        let (found, expected) = (found.into(), expected.into());
        self.0.push(Violation { rule, place: place.to_string(), found, expected });
    }
}

impl Inputs<'_> {
    /// What [`PlanRequest::check`](crate::request::PlanRequest::check) proves, of the plan of one stage.
    pub(crate) fn check(&self, plan: &CachePlan) -> Result<(), Vec<Violation>> {
        let _span = tracing::debug_span!("proof", pools = plan.pools.len()).entered();
        let mut findings = Findings::default();
        identity(self, plan, &mut findings);
        let budget = self.budget.or_fixed(self.model);
        let request = &Inputs { budget: &budget, ..*self };
        let facts = facts::Facts::of(request, plan).map_err(|error| vec![Violation::unreadable(&error)])?;
        coverage::check(&facts, request, plan, &mut findings);
        resources::check(plan, &mut findings);
        rollback::check(request, plan, &mut findings);
        pools::check(&facts, plan, &mut findings);
        capacity::check(&facts, request, plan, &mut findings);
        ledger::check(&facts, request, plan, &mut findings);
        host::check(&facts, request, plan, &mut findings);
        deployment::check(request, plan, &mut findings);
        let stated = request.budget.engine.cache_bytes.map(|bytes| bytes.0);
        findings.expect(Rule::Ledger, "engine_cache_bytes", plan.engine_cache_bytes, stated);
        if findings.0.is_empty() { Ok(()) } else { Err(findings.0) }
    }
}

impl Violation {
    /// A request of which nothing can be proved.
    pub(crate) fn unreadable(error: &PlanError) -> Self {
        Self {
            rule: Rule::Limits,
            place: "the request".into(),
            found: error.to_string(),
            expected: "a request that can be planned".into(),
        }
    }
}

fn identity(request: &Inputs<'_>, plan: &CachePlan, findings: &mut Findings) {
    findings.expect(Rule::Fingerprint, "schema_version", plan.schema_version, SCHEMA_VERSION);
    // A plan that was made by a model's name is that of its files too.
    let revision = request.model.revision.as_ref().or(plan.model.revision.as_ref()).cloned();
    let model = ModelInfo { revision, name: plan.model.name.clone(), ..request.model.clone() };
    findings.expect(Rule::Fingerprint, "model", &plan.model, &model);
    findings.expect(Rule::Fingerprint, "fingerprint", &plan.fingerprint, &request.fingerprint());
    findings.expect(Rule::Fingerprint, "policy", plan.policy, request.budget.grouping.unwrap_or_default());
    findings.expect(Rule::Fingerprint, "parallel", plan.parallel, request.budget.parallel);
    manager(plan, findings);
}

fn manager(plan: &CachePlan, findings: &mut Findings) {
    let states = plan.pools.iter().any(|pool| pool.owner == Owner::MambaCacheManager);
    let manager = if states { ManagerKind::MambaHybridCacheManager } else { ManagerKind::KvCacheManager };
    findings.expect(Rule::Owner, "manager", plan.manager, manager);
}

#[cfg(test)]
mod tests;
