//! The pools hold what is claimed, and neither one more sequence nor one more token would fit.

use super::facts::Facts;
use super::ledger::memory;
use super::{Findings, Rule};
use crate::budget::Objective;
use crate::plan::{CachePlan, Cap, Unit};
use crate::solver::inputs::Inputs;

/// Whether the pools of so many sequences and spare tokens lie in memory beside a step of as many.
fn fits(facts: &Facts<'_>, request: &Inputs<'_>, plan: &CachePlan, sequences: u64, spare: u64) -> bool {
    let Some((bytes, share)) = memory(request, facts.step(sequences)) else { return true };
    let (paged, other) = facts.bytes(plan, sequences, spare);
    let left = bytes.saturating_sub_unsigned(other);
    left >= 0 && paged <= (left * share / 1_000_000).unsigned_abs()
}

pub(super) fn check(facts: &Facts<'_>, request: &Inputs<'_>, plan: &CachePlan, findings: &mut Findings) {
    let (sequences, spare) = (plan.capacity.sequences, plan.capacity.spare_tokens);
    let limits = &plan.limits;
    findings.expect(Rule::Limits, "limits.max_seq_len", limits.max_seq_len, facts.seq_len);
    findings.expect(Rule::Limits, "limits.max_batch_size", limits.max_batch_size, sequences);
    let step = facts.step_tokens.max(sequences.saturating_mul(facts.positions));
    findings.expect(Rule::Limits, "limits.max_num_tokens", limits.max_num_tokens, step);
    findings.expect(Rule::Limits, "limits.draft_positions", limits.draft_positions, facts.positions);
    findings.expect(Rule::Limits, "slots.padding", plan.slots.padding, 1);
    findings.expect(Rule::Limits, "slots.live", plan.slots.live, sequences);
    let checkpoints = if facts.apart { 0 } else { sequences.saturating_mul(facts.checkpoints) };
    findings.expect(Rule::Limits, "slots.checkpoints", plan.slots.checkpoints, checkpoints);
    for pool in &plan.pools {
        let units = facts.units(pool, sequences, spare);
        findings.expect(Rule::Capacity, format!("pools[{}].units", pool.id), pool.units.into(), units);
    }
    let holds = |sequences, spare| fits(facts, request, plan, sequences, spare);
    if !holds(sequences, spare) {
        let memory = memory(request, facts.step(sequences));
        findings.add(Rule::Capacity, "pools", "more bytes than the budget", format!("{memory:?}"));
    }
    maximal(facts, request, plan, holds, findings);

    self::tokens(plan, findings);
    let found = u128::from(plan.capacity.tokens_per_sequence);
    findings.expect(Rule::Capacity, "capacity.tokens_per_sequence", found, facts.tokens_per_sequence());
    if sequences == 0 {
        findings.add(Rule::Capacity, "capacity.sequences", "0", "at least 1");
    }
}

/// The tokens of the smallest pool of pages, of those with full attention where there are any.
pub(super) fn tokens(plan: &CachePlan, findings: &mut Findings) {
    let tokens = |windowed: bool| {
        let pools = plan.pools.iter().filter(|pool| pool.window.is_some() == windowed);
        pools.filter_map(|pool| Some(pool.units.saturating_sub(1).saturating_mul(pool.tokens_per_block?))).min()
    };
    findings.expect(Rule::Capacity, "capacity.tokens", plan.capacity.tokens, tokens(false).or(tokens(true)));
}

/// Neither one more sequence nor one more spare token would do, and the plan names the right cap.
///
/// A cap is what one more sequence breaks: memory, with the larger step of one more; a limit that is stated; what another
/// rank serves. Tokens beyond those of the sequences are there as far as memory goes where it is memory that ends them, on
/// this rank or another, or where the budget asks for them, and nowhere else.
fn maximal(
    facts: &Facts<'_>,
    request: &Inputs<'_>,
    plan: &CachePlan,
    holds: impl Fn(u64, u64) -> bool,
    findings: &mut Findings,
) {
    const MOST: u64 = 1 << 20;
    let budget = request.budget;
    let (sequences, spare) = (plan.capacity.sequences, plan.capacity.spare_tokens);
    let batch = budget.max_batch_size.or(if budget.memory.is_none() { Some(8) } else { None });
    let above = |limit: Option<u64>, sequences: u64| limit.is_some_and(|limit| sequences > limit);
    let tokens = |sequences: u64| sequences.saturating_mul(facts.positions);
    let agreed = request.agreement;
    if above(batch, sequences)
        || above(budget.max_num_tokens, tokens(sequences))
        || above(agreed.map(|agreed| agreed.sequences), sequences)
    {
        findings.add(Rule::Capacity, "capacity.sequences", sequences.to_string(), "at most what was asked for");
    }
    let more = sequences.saturating_add(1);
    let breaks_memory = !holds(more, 0);
    let cap = if breaks_memory {
        Some(Cap::Memory)
    } else if above(batch, more) {
        Some(Cap::MaxBatchSize)
    } else if above(budget.max_num_tokens, tokens(more)) {
        Some(Cap::MaxNumTokens)
    } else if agreed.is_some_and(|agreed| agreed.sequences == sequences && sequences < MOST) {
        Some(Cap::AnotherRank)
    } else {
        (sequences >= MOST).then_some(Cap::SequenceLimit)
    };
    match cap {
        Some(cap) => findings.expect(Rule::Capacity, "capacity.capped_by", plan.capacity.capped_by, cap),
        None => findings.add(Rule::Capacity, "capacity.sequences", sequences.to_string(), "more, for one more fits"),
    }

    let grows = plan.pools.iter().any(|pool| pool.unit == Unit::Block && pool.window.is_none());
    let fills = budget.memory.is_some() && (breaks_memory || budget.maximize == Some(Objective::Tokens));
    if let Some(agreed) = agreed {
        findings.expect(Rule::Capacity, "capacity.spare_tokens", spare, agreed.spare_tokens);
    } else if !grows || !fills {
        findings.expect(Rule::Capacity, "capacity.spare_tokens", spare, 0);
    } else if holds(sequences, spare.saturating_add(1)) {
        findings.add(Rule::Capacity, "capacity.spare_tokens", spare.to_string(), "more, for one more fits");
    }
}
