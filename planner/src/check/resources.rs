//! Every resource of the model is planned once, as it is.

use cacheplan_handlers::Growth;
use cacheplan_transforms::Resources;

use super::shapes::unit_bytes;
use super::{Findings, Rule};
use crate::CachePlan;

pub(super) fn check(held: &Resources, plan: &CachePlan, findings: &mut Findings) {
    let names = |plan: &CachePlan| plan.resources.iter().map(|resource| resource.name.clone()).collect::<Vec<_>>();
    let expected: Vec<String> = held.iter().map(|resource| resource.name.clone()).collect();
    if names(plan) != expected {
        findings.add(Rule::Coverage, "resources", format!("{:?}", names(plan)), format!("{expected:?}"));
    }
    let (seq_len, positions) = (u128::from(plan.limits.max_seq_len), u128::from(plan.limits.draft_positions));
    let mut sums = (0u128, 0u128);
    for (resource, planned) in held.iter().zip(&plan.resources) {
        let place = |key: &str| format!("resources[{}].{key}", resource.name);
        findings.expect(Rule::Coverage, place("handler"), &planned.handler, &resource.handler);
        findings.expect(Rule::Coverage, place("layer"), planned.layer, resource.layer);
        findings.expect(Rule::Coverage, place("kind"), planned.kind.as_str(), resource.handler.kind().name());
        findings.expect(Rule::Coverage, place("dtype"), planned.dtype, resource.handler.dtype());
        findings.expect(Rule::Coverage, place("shared_by"), &planned.shared_by, &resource.shared_by);
        let unit = unit_bytes(&resource.handler);
        let (token, sequence, fixed) = match resource.handler.growth() {
            Growth::Paged { stride, .. } => (unit.div_ceil(stride.into()), 0, 0),
            Growth::PerSlotToken => (0, unit * seq_len, 0),
            Growth::PerSequence => (0, unit, 0),
            Growth::PerDraftPosition => (0, unit * positions, 0),
            Growth::Fixed => (0, 0, unit),
        };
        findings.expect(Rule::Size, place("bytes_per_token"), planned.bytes_per_token.into(), token);
        findings.expect(Rule::Size, place("bytes_per_sequence"), planned.bytes_per_sequence.into(), sequence);
        findings.expect(Rule::Size, place("bytes_fixed"), planned.bytes_fixed.into(), fixed);
        sums.0 += token;
        if resource.handler.growth() == Growth::PerSequence {
            sums.1 += sequence;
        }
    }
    let totals = &plan.totals;
    findings.expect(Rule::Size, "totals.kv_bytes_per_token", totals.kv_bytes_per_token.into(), sums.0);
    findings.expect(Rule::Size, "totals.state_bytes_per_sequence", totals.state_bytes_per_sequence.into(), sums.1);
}
