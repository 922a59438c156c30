//! Each resource's bytes follow from its shape and growth, and the totals from theirs.

use std::collections::HashSet;

use cacheplan_handlers::Growth;

use super::shapes::unit_bytes;
use super::{Findings, Rule};
use crate::plan::{CachePlan, Certainty};

pub(super) fn check(plan: &CachePlan, findings: &mut Findings) {
    let (seq_len, positions) = (u128::from(plan.limits.max_seq_len), u128::from(plan.limits.draft_positions));
    let mut sums = (0u128, 0u128);
    let mut names = HashSet::new();
    for planned in &plan.resources {
        let place = |key: &str| format!("resources[{}].{key}", planned.name);
        let handler = &planned.handler;
        if !names.insert(&planned.name) {
            findings.add(Rule::Coverage, place("name"), "there twice", "a name of its own");
        }
        findings.expect(Rule::Coverage, place("kind"), planned.kind.as_str(), handler.kind().name());
        findings.expect(Rule::Coverage, place("dtype"), planned.dtype, handler.dtype());
        // Bytes of a shape are never assumed.
        findings.expect(Rule::Size, place("source"), planned.source, Certainty::Exact);
        let unit = unit_bytes(handler);
        let (token, sequence, fixed) = match handler.growth() {
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
        if handler.growth() == Growth::PerSequence {
            sums.1 += sequence;
        }
    }
    let totals = &plan.totals;
    findings.expect(Rule::Size, "totals.kv_bytes_per_token", totals.kv_bytes_per_token.into(), sums.0);
    findings.expect(Rule::Size, "totals.state_bytes_per_sequence", totals.state_bytes_per_sequence.into(), sums.1);
}
