//! The host tier holds the sequences claimed, pool by pool, and not one more.

use super::facts::Facts;
use super::{Findings, Rule};
use crate::plan::CachePlan;
use crate::solver::inputs::Inputs;

/// Its bytes are those of its pools and what is left, and its pools are the plan's.
pub(super) fn check_alone(plan: &CachePlan, findings: &mut Findings) {
    let Some(host) = &plan.host else { return };
    let mut left = Some(u128::from(host.bytes));
    for pool in &host.pools {
        let bytes = u128::from(pool.units) * u128::from(pool.unit_bytes);
        let place = |key: &str| format!("host.pools[{}].{key}", pool.pool);
        findings.expect(Rule::Host, place("bytes"), pool.bytes.into(), bytes);
        let on_device = plan.pool(&pool.pool).map(|pool| pool.unit_bytes);
        findings.expect(Rule::Host, place("unit_bytes"), Some(pool.unit_bytes), on_device);
        left = left.and_then(|left| left.checked_sub(bytes));
    }
    findings.expect(Rule::Host, "host.unused_bytes", Some(host.unused_bytes.into()), left);
}

pub(super) fn check(facts: &Facts<'_>, request: &Inputs<'_>, plan: &CachePlan, findings: &mut Findings) {
    let stated = request.budget.host.map(|host| host.bytes.0);
    findings.expect(Rule::Host, "host.bytes", plan.host.as_ref().map(|host| host.bytes), stated);
    let Some(host) = &plan.host else { return };
    let units = |sequences: u64| -> Vec<(&str, u128, u128)> {
        let parked = plan.pools.iter().filter(|pool| facts.is_parked(pool));
        let of = |pool: &crate::plan::Pool| facts.units(pool, sequences, 0).saturating_sub(pool.reserved.into());
        parked.map(|pool| (pool.id.as_str(), of(pool), pool.unit_bytes.into())).collect()
    };
    let sum = |units: &[(&str, u128, u128)]| units.iter().map(|(_, units, each)| units * each).sum::<u128>();
    let expected = units(host.sequences);
    let found: Vec<_> =
        host.pools.iter().map(|pool| (pool.pool.as_str(), pool.units.into(), pool.unit_bytes.into())).collect();
    findings.expect(Rule::Host, "host.pools", &found, &expected);
    check_alone(plan, findings);
    if host.sequences == 0 {
        findings.add(Rule::Host, "host.sequences", "0", "at least 1");
    }
    let agreed = request.agreement.and_then(|agreed| agreed.host_sequences);
    let cap = agreed.unwrap_or(1 << 20).min(1 << 20);
    if host.sequences > cap {
        findings.add(Rule::Host, "host.sequences", host.sequences.to_string(), format!("at most {cap}"));
    } else if host.sequences < cap && sum(&units(host.sequences + 1)) <= host.bytes.into() {
        findings.add(Rule::Host, "host.sequences", host.sequences.to_string(), "more, for one more fits");
    }
}
