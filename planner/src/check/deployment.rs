//! What all ranks are together follows from their groups, from what one of them serves and from the model's weights.

use std::collections::BTreeSet;

use cacheplan_transforms::WeightClasses;

use super::{Findings, Rule};
use crate::parallel::Parallel;
use crate::plan::CachePlan;
use crate::solver::inputs::Inputs;

/// Counts and sums, which the plan tells by itself.
pub(super) fn check_alone(plan: &CachePlan, findings: &mut Findings) {
    let Some(all) = &plan.deployment else {
        if plan.parallel != Parallel::default() {
            findings.add(Rule::Deployment, "deployment", "absent", "what all ranks are together");
        }
        return;
    };
    let mut expect = |place: &str, found: u64, expected: u128| {
        findings.expect(Rule::Deployment, format!("deployment.{place}"), u128::from(found), expected);
    };
    let Parallel { tp, pp, dp, cp, .. } = plan.parallel;
    let (of_replica, replicas) = ([tp, pp, cp].map(u128::from).iter().product::<u128>(), u128::from(dp));
    expect("devices", all.devices, of_replica * replicas);
    expect("replicas", all.replicas, replicas);
    expect("devices_per_replica", all.devices_per_replica, of_replica);
    let served = u128::from(plan.capacity.sequences);
    expect("sequences_per_replica", all.sequences_per_replica, served);
    expect("sequences", all.sequences, served * replicas);
    for share in &all.weights {
        let (bytes, ranks) = (u128::from(share.bytes), u128::from(share.ranks));
        expect(&format!("weights[{}].bytes_per_rank", share.class), share.bytes_per_rank, bytes.div_ceil(ranks.max(1)));
    }
    if plan.parallel == Parallel::default() {
        findings.add(Rule::Deployment, "deployment", "present", "nothing, for there is one rank");
    }
}

/// The classes of the weights, and over how many ranks each is divided.
pub(super) fn check(request: &Inputs<'_>, plan: &CachePlan, findings: &mut Findings) {
    check_alone(plan, findings);
    let Some(all) = &plan.deployment else { return };
    let found: BTreeSet<_> =
        all.weights.iter().map(|share| (share.class.as_str(), u128::from(share.bytes), share.ranks)).collect();
    findings.expect(Rule::Deployment, "deployment.weights", found, classes(request).into_iter().collect());
}

/// Each class of this stage's weights with the bytes of all of it and its ranks; none where they were measured on one rank.
fn classes(request: &Inputs<'_>) -> Vec<(&'static str, u128, u64)> {
    let parallel = request.budget.parallel;
    let stages = parallel.pp.min(request.model.layers.max(1));
    let stated = request.budget.memory.as_ref().and_then(|memory| memory.weights).map(|stated| stated.0);
    let is_logged = request.measured.is_some_and(|measured| measured.lines.weights.is_some()) && stated.is_none();
    if request.measurement.is_some() || is_logged || request.stage >= stages {
        return Vec::new();
    }
    let read = request.model.weights;
    let Some(bytes) = stated.or(read.map(|read| read.bytes)) else { return Vec::new() };
    on_rank(bytes, read.and_then(|read| read.classes), parallel, (request.stage, stages))
}

/// What of each class a stage has, of the whole for what all stages share, and over how many ranks; the classes of `bytes` stand in the
/// proportions of those known.
pub(super) fn on_rank(
    bytes: u64,
    known: Option<WeightClasses>,
    parallel: Parallel,
    (stage, stages): (u32, u32),
) -> Vec<(&'static str, u128, u64)> {
    let bytes = u128::from(bytes);
    let (tp, experts) = (u64::from(parallel.tp), u64::from(parallel.tp.max(parallel.ep)));
    let over = |ranks: u64| ranks * u64::from(stages);
    let Some(known) = known else { return vec![("weights", bytes, over(tp))] };
    let WeightClasses { attention, dense, routed, shared, embeddings, replicated, head, tower, whole_tower } = known;
    let whole: u128 = [attention, dense, routed, shared, embeddings, replicated].map(u128::from).iter().sum();
    let of = |class: u64| u128::from(class) * bytes / whole.max(1);
    // What division leaves is on every rank.
    let rest = bytes - [attention, dense, routed, shared, embeddings].map(of).iter().sum::<u128>();
    let mut classes = if stages == 1 {
        vec![("dense", of(dense), tp), ("embeddings", of(embeddings), tp), ("replicated", rest, 1)]
    } else {
        let tokens = of(embeddings).saturating_sub(of(head));
        let of_stage = [
            (stage == 0, "embeddings", tokens, tp),
            (stage == 0, "towers", of(tower), tp),
            (stage == 0, "whole towers", of(whole_tower), 1),
            (stage + 1 == stages, "embeddings", if of(head) == 0 { tokens } else { of(head) }, tp),
        ];
        let of_layers = [
            ("dense", of(dense).saturating_sub(of(tower)), over(tp)),
            ("replicated", rest.saturating_sub(of(whole_tower)), over(1)),
        ];
        let of_stage = of_stage.into_iter().filter(|(is_here, ..)| *is_here);
        of_layers.into_iter().chain(of_stage.map(|(_, class, bytes, ranks)| (class, bytes, ranks))).collect()
    };
    classes.extend([
        ("attention", of(attention), over(tp)),
        ("routed experts", of(routed), over(experts)),
        ("shared experts", of(shared), over(tp)),
    ]);
    classes.retain(|(_, bytes, _)| *bytes > 0);
    classes
}
