//! The ledger names every byte once, and adds up.

use super::capacity::{Facts, memory};
use super::{Findings, Rule};
use crate::{ByteSize, CachePlan, DeviceKind, Owner, PlanRequest};

/// The lines besides caches, as the request implies them.
fn expected_lines(request: &PlanRequest<'_>, facts: &Facts<'_>) -> Vec<(&'static str, u128)> {
    let budget = request.budget;
    let memory = budget.memory.clone().unwrap_or_default();
    let mut lines: Vec<(&'static str, u128)> = Vec::new();
    if let Some(measured) = request.measurement {
        lines.push(("resident", measured.resident_bytes.into()));
        lines.push(("activations", measured.forward_bytes.into()));
    } else {
        let read = request.model.weights.map(|weights| weights.bytes);
        if let Some(weights) = memory.weights.map(|stated| stated.0).or(read) {
            let shards = u128::from(budget.parallel.tp) * u128::from(budget.parallel.pp);
            lines.push(("weights", u128::from(weights).div_ceil(shards)));
        }
        if request.device.is_some_and(|device| device.kind != DeviceKind::Cpu) {
            lines.push(("context", 512 * 1024 * 1024));
        }
        let assumed = u128::from(facts.step_tokens) * 256 * 1024;
        lines.push(("activations", memory.activations.map_or(assumed, |bytes| bytes.0.into())));
    }
    let shares_memory = request.device.is_some_and(|device| device.kind != DeviceKind::Cuda);
    let host = budget.host.filter(|_| shares_memory).map(|host| host.bytes);
    let draft = draft_weights(request).map(|bytes| ("draft weights", bytes));
    let stated = |(name, bytes): (&'static str, Option<ByteSize>)| bytes.map(|bytes| (name, u128::from(bytes.0)));
    lines.extend(stated(("graphs", memory.graphs)).into_iter().chain(draft));
    lines.extend([("host tier", host), ("reserve", memory.reserve)].into_iter().filter_map(stated));
    lines
}

/// This rank's share of the draft model's weights; none on a stage beyond its layers.
fn draft_weights(request: &PlanRequest<'_>) -> Option<u128> {
    let stated = request.budget.speculation.as_ref()?.draft_weights.map(|stated| stated.0);
    let read = request.draft.and_then(|draft| draft.model.weights).map(|weights| weights.bytes);
    let bytes = u128::from(stated.or(read)?);
    let parallel = request.budget.parallel;
    let stages = request.draft.map_or(parallel.pp, |draft| parallel.pp.min(draft.model.layers.max(1)));
    (request.stage < stages).then(|| bytes.div_ceil(u128::from(parallel.tp) * u128::from(stages)))
}

/// Bytes of everything but caches.
pub(super) fn outside(request: &PlanRequest<'_>, facts: &Facts<'_>) -> u128 {
    expected_lines(request, facts).iter().map(|(_, bytes)| bytes).sum()
}

pub(super) fn check(facts: &Facts<'_>, request: &PlanRequest<'_>, plan: &CachePlan, findings: &mut Findings) {
    let mut expected: Vec<(String, u128)> =
        expected_lines(request, facts).into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    let bytes_of = |owner: Option<Owner>| -> u128 {
        let pools = plan.pools.iter().filter(|pool| owner.is_none_or(|owner| pool.owner == owner));
        pools.map(|pool| u128::from(pool.unit_bytes) * u128::from(pool.units)).sum()
    };
    for pool in plan.pools.iter().filter(|pool| pool.owner.is_managed()) {
        expected.push((pool.id.clone(), u128::from(pool.unit_bytes) * u128::from(pool.units)));
    }
    if plan.pools.iter().any(|pool| pool.owner == Owner::Local) {
        expected.push(("local".into(), bytes_of(Some(Owner::Local))));
    }
    if let Some((bytes, _)) = memory(request, outside(request, facts)) {
        expected.push(("unused".into(), bytes.saturating_sub(bytes_of(None))));
    }
    let found: Vec<(String, u128)> =
        plan.ledger.iter().map(|line| (line.name.clone(), u128::from(line.bytes))).collect();
    findings.expect(Rule::Ledger, "ledger", found, expected);
}
