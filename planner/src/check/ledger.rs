//! The ledger names every byte once, and adds up.

use super::deployment::on_rank;
use super::facts::{Facts, StepSize};
use super::{Findings, Rule};
use cacheplan_transforms::{WeightBytes, WeightClasses};

use crate::budget::Base;
use crate::device::DeviceKind;
use crate::measured::MeasuredBytes;
use crate::overheads::{FEWEST_ALIKE, Overhead, STAND_IN, rows};
use crate::parallel::Parallel;
use crate::plan::{CachePlan, Certainty, LedgerItem, Owner};
use crate::size::ByteSize;
use crate::solver::inputs::Inputs;

/// A line's name, its bytes, how many more are kept free for it, and how it is known.
type Line = (&'static str, u128, u128, Certainty);

const EXACT: Certainty = Certainty::Exact;
const ASSUMED: Certainty = Certainty::Assumed;
const MEASURED: Certainty = Certainty::Measured;

/// The lines besides caches, as the request implies them while so many sequences run.
fn expected_lines(request: &Inputs<'_>, step: StepSize) -> Vec<Line> {
    let safe = request.budget.memory.as_ref().is_some_and(|memory| memory.safe);
    let lines = outside_lines(request, step);
    let margin: u128 = lines.iter().map(|(_, _, more, _)| more).sum();
    lines.into_iter().chain(safe.then_some(("margin", margin, 0, ASSUMED))).collect()
}

fn outside_lines(request: &Inputs<'_>, step: StepSize) -> Vec<Line> {
    let budget = request.budget;
    let memory = budget.memory.clone().unwrap_or_default();
    let mut lines: Vec<Line> = Vec::new();
    let gpu = request.device.is_some_and(|device| device.kind != DeviceKind::Cpu);
    if let Some(measured) = request.measurement {
        lines.push(("resident", measured.resident_bytes.into(), 0, MEASURED));
        lines.push(("activations", measured.forward_bytes.into(), 0, MEASURED));
    } else {
        let read = request.model.weights.map(|weights| weights.bytes);
        let measured = logged(request, step);
        if let Some(weights) = measured.weights.filter(|_| memory.weights.is_none()) {
            lines.push(("weights", weights, 0, MEASURED));
        } else if let Some(weights) = memory.weights.map(|stated| stated.0).or(read) {
            let classes = request.model.weights.and_then(|weights| weights.classes);
            let stage = (request.stage, budget.parallel.pp);
            let bytes = of_rank(weights, classes, budget.parallel, stage);
            let read = memory.weights.is_none() && request.model.weights.is_some_and(|read| read.exact);
            let known = memory.weights.is_some() || request.model.weights.is_some_and(is_of_files);
            let source = if read && is_exact(weights, classes, budget.parallel, stage) { EXACT } else { ASSUMED };
            // Only what dimensions say is not known to the byte.
            lines.push(("weights", bytes, if known { 0 } else { bytes / 50 }, source));
        }
        match (memory.context, measured.context) {
            (Some(stated), _) => lines.push(("context", stated.0.into(), 0, ASSUMED)),
            (None, Some(bytes)) => lines.push(("context", bytes, 0, MEASURED)),
            (None, None) if gpu => {
                let mut contexts = overheads(request, &LedgerItem::Context, |row| row.bytes);
                let (middle, most) = middle_and_most(&mut contexts);
                lines.push(("context", middle, middle.max(most - middle), ASSUMED));
            }
            (None, None) => {}
        }
        let groups = 128 * (1 << 20) * groups(budget.parallel);
        match measured.nccl {
            Some(bytes) => lines.push(("nccl", bytes, 0, MEASURED)),
            None if gpu && request.step.is_some() && groups > 0 => {
                lines.push(("nccl", groups, groups, ASSUMED));
            }
            None => {}
        }
        lines.push(match (memory.activations, measured.activations) {
            (Some(stated), _) => ("activations", stated.0.into(), 0, ASSUMED),
            (None, Some((bytes, source))) => ("activations", bytes, 0, source),
            (None, None) => {
                let bytes = activations(request, step);
                ("activations", bytes, bytes / 2, ASSUMED)
            }
        });
    }
    let shares_memory = request.device.is_some_and(|device| device.kind != DeviceKind::Cuda);
    let host = budget.host.filter(|_| shares_memory).map(|host| host.bytes);
    let stated = |(name, bytes, source): (&'static str, Option<ByteSize>, Certainty)| {
        bytes.map(|bytes| (name, u128::from(bytes.0), 0, source))
    };
    let measured = logged(request, step).graphs.map(|bytes| ("graphs", bytes, 0, MEASURED));
    let graphs = stated(("graphs", memory.graphs, ASSUMED)).or(measured);
    let captured = || {
        // The first stages have one layer more where they do not divide evenly, and all are taken to be as large.
        let layers = u128::from(request.model.layers.div_ceil(budget.parallel.pp.min(request.model.layers.max(1))));
        let apart = request.engine.is_none_or(|engine| engine.captures_apart);
        let some = gpu && apart && request.step.is_some() && request.measurement.is_none() && layers > 0;
        let mut of_layer = overheads(request, &LedgerItem::Graphs, |row| row.bytes / row.layers);
        let (middle, most) = middle_and_most(&mut of_layer);
        some.then_some(("graphs", layers * middle, layers * (most - middle), ASSUMED))
    };
    lines.extend(graphs.or_else(captured));
    lines.extend(draft_weights(request).into_iter().chain(head_weights(request)));
    lines.extend([("host tier", host, ASSUMED), ("reserve", memory.reserve, EXACT)].into_iter().filter_map(stated));
    lines
}

/// What an engine logged of `item` on such devices; of all devices where those are few, and another's where it logged none.
fn overheads(request: &Inputs<'_>, item: &LedgerItem, value: fn(&Overhead) -> u64) -> Vec<u128> {
    let has = |name: &str| rows().iter().any(|row| row.item == *item && row.engine == name);
    let name = request.engine.map(|engine| engine.name).filter(|name| has(name)).unwrap_or(STAND_IN);
    let memory = request.device.map_or(0, |device| u128::from(device.total_bytes));
    let (mut all, mut alike) = (Vec::new(), Vec::new());
    for row in rows().iter().filter(|row| row.item == *item && row.engine == name) {
        all.push(u128::from(value(row)));
        let bytes = row.device_bytes.map_or(0, u128::from);
        if bytes > 0 && memory >= bytes / 2 && memory <= 2 * bytes {
            alike.push(u128::from(value(row)));
        }
    }
    if alike.len() >= FEWEST_ALIKE { alike } else { all }
}

/// Of an even number the larger of the two in the middle.
fn middle_and_most(values: &mut [u128]) -> (u128, u128) {
    values.sort_unstable();
    (values.get(values.len() / 2).copied().unwrap_or(0), values.last().copied().unwrap_or(0))
}

/// A step's tokens in the widest layer, or the logits of every candidate of its sequences.
fn activations(request: &Inputs<'_>, step: StepSize) -> u128 {
    let Some(bytes) = request.step else { return step.tokens * 256 * 1024 };
    let tp = u128::from(request.budget.parallel.tp);
    let mut each = u128::from(bytes.whole) + u128::from(bytes.divided).div_ceil(tp);
    if request.engine.is_some_and(|engine| engine.chunks_delta_rules) {
        each = each.max(u128::from(bytes.chunked[0]) + u128::from(bytes.chunked[1]).div_ceil(tp));
    }
    // Without an engine a logit is there in the head's 16 bits, and twice in 32.
    let (logit, sequences) = request.engine.map_or((2 + 4 + 4, 0), |of| (of.logit_bytes, of.indexed_sequences));
    let keys = u128::from(sequences) * u128::from(request.budget.max_seq_len_for(request.model));
    let rows = step.candidates * u128::from(bytes.vocab) * u128::from(logit);
    (step.tokens * each).max(rows) + keys * u128::from(bytes.index_key)
}

/// Groups of ranks that one exchanges with.
fn groups(parallel: Parallel) -> u128 {
    let Parallel { tp, pp, ep, cp, dcp, .. } = parallel;
    u128::from(tp > 1) + u128::from(pp > 1) + u128::from(ep > tp) + u128::from(cp > 1) + u128::from(dcp > 1)
}

/// Bytes that an engine logged, for a step of this request.
#[derive(Default)]
struct Logged {
    weights: Option<u128>,
    activations: Option<(u128, Certainty)>,
    graphs: Option<u128>,
    context: Option<u128>,
    nccl: Option<u128>,
}

fn logged(request: &Inputs<'_>, step: StepSize) -> Logged {
    let Some(measured) = request.measured else { return Logged::default() };
    let lines = &measured.lines;
    let bytes = |line: Option<MeasuredBytes>| line.map(|line| u128::from(line.bytes));
    let per_step = match measured.limits.max_num_tokens {
        Some(tokens) if tokens > 0 => (step.tokens, u128::from(tokens)),
        _ => (1, 1),
    };
    Logged {
        weights: bytes(lines.weights),
        activations: bytes(lines.activations).map(|bytes| {
            let source = if per_step.0 == per_step.1 { MEASURED } else { ASSUMED };
            (bytes * per_step.0 / per_step.1, source)
        }),
        graphs: bytes(lines.graphs),
        context: bytes(lines.context),
        nccl: bytes(lines.nccl),
    }
}

/// One rank's share of `bytes` of weights, whose classes stand in the proportions of `classes`.
fn of_rank(bytes: u64, classes: Option<WeightClasses>, parallel: Parallel, stage: (u32, u32)) -> u128 {
    let shares = on_rank(bytes, classes, parallel, stage).into_iter();
    shares.map(|(_, bytes, ranks)| bytes.div_ceil(ranks.into())).sum()
}

/// Whether files say them, be they all there or not.
fn is_of_files(weights: WeightBytes) -> bool {
    weights.exact || weights.unproven
}

/// Whether a rank's share of what headers say follows without knowing which tensor lies where.
fn is_exact(bytes: u64, classes: Option<WeightClasses>, parallel: Parallel, stage: (u32, u32)) -> bool {
    let shares = on_rank(bytes, classes, parallel, stage);
    shares.len() == 1 || shares.iter().all(|(_, _, ranks)| *ranks == 1)
}

/// This rank's share of the draft model's weights; none on a stage beyond its layers.
fn draft_weights(request: &Inputs<'_>) -> Option<Line> {
    let stated = request.budget.speculation.as_ref()?.draft_weights.map(|stated| stated.0);
    let read = request.draft.and_then(|draft| draft.model.weights);
    let bytes = stated.or(read.map(|weights| weights.bytes))?;
    let classes = read.and_then(|weights| weights.classes);
    let parallel = request.budget.parallel;
    let stages = request.draft.map_or(parallel.pp, |draft| parallel.pp.min(draft.model.layers.max(1)));
    let stage = (request.stage, stages);
    let is_read = stated.is_none() && read.is_some_and(|weights| weights.exact);
    let source = if is_read && is_exact(bytes, classes, parallel, stage) { EXACT } else { ASSUMED };
    let known = stated.is_some() || read.is_some_and(is_of_files);
    let bytes = of_rank(bytes, classes, parallel, stage);
    (request.stage < stages).then_some(("draft weights", bytes, if known { 0 } else { bytes / 50 }, source))
}

/// This rank's share of the prediction layers, which lie where the last layer is; weights that are not the sum of dimensions
/// hold them already.
fn head_weights(request: &Inputs<'_>) -> Option<Line> {
    let budget = request.budget;
    let is_told = budget.memory.as_ref().and_then(|memory| memory.weights).is_some()
        || request.measurement.is_some()
        || request.measured.and_then(|measured| measured.lines.weights).is_some()
        || budget.speculation.as_ref().is_some_and(|speculation| speculation.draft_weights.is_some());
    let layers = budget.speculation.as_ref()?.mtp_layers;
    let one = request.prediction.weights?;
    let bytes = one.bytes.saturating_mul(layers.into());
    let bytes = of_rank(bytes, one.classes, budget.parallel, (0, 1));
    let is_here = request.stage == budget.parallel.pp - 1 && layers > 0 && !is_told;
    is_here.then_some(("draft weights", bytes, bytes / 50, ASSUMED))
}

/// Bytes of everything but caches.
pub(super) fn outside(request: &Inputs<'_>, step: StepSize) -> u128 {
    expected_lines(request, step).iter().map(|(_, bytes, ..)| bytes).sum()
}

/// The bytes for all caches while a step runs, below 0 where other things take more than there is, and the millionths that
/// pages may take of what the others leave.
pub(super) fn memory(request: &Inputs<'_>, step: StepSize) -> Option<(i128, i128)> {
    const ALL: i128 = 1_000_000;
    let memory = request.budget.memory.as_ref()?;
    let outside = outside(request, step) as i128;
    if let Some(stated) = memory.bytes {
        let stated = i128::from(stated.0);
        // Caches of stated bytes lie on a device beside everything else.
        let left = request.device.map(|device| i128::from(device.total_bytes) - outside);
        return Some((left.map_or(stated, |left| left.min(stated)), ALL));
    }
    let millionths = (f64::from(memory.fraction?) * 1e6).round() as i128;
    Some(match (memory.of?, request.measurement) {
        (Base::Total, _) => (i128::from(request.device?.total_bytes) * millionths / ALL - outside, ALL),
        (Base::Free, Some(measured)) => {
            let taken = (outside - i128::from(measured.resident_bytes)).max(0);
            (i128::from(measured.free_bytes) - taken, millionths)
        }
        (Base::Free, None) => (i128::from(request.device?.free_bytes) - outside, millionths),
    })
}

pub(super) fn check(facts: &Facts<'_>, request: &Inputs<'_>, plan: &CachePlan, findings: &mut Findings) {
    let step = facts.step(plan.capacity.sequences);
    let lines = expected_lines(request, step).into_iter();
    let mut expected: Vec<(String, u128, u128, Certainty)> =
        lines.map(|(name, bytes, more, source)| (name.to_owned(), bytes, more, source)).collect();
    let bytes_of = |owner: Option<Owner>| -> u128 {
        let pools = plan.pools.iter().filter(|pool| owner.is_none_or(|owner| pool.owner == owner));
        pools.map(|pool| u128::from(pool.unit_bytes) * u128::from(pool.units)).sum()
    };
    for pool in plan.pools.iter().filter(|pool| pool.owner.is_managed()) {
        expected.push((pool.id.clone(), u128::from(pool.unit_bytes) * u128::from(pool.units), 0, EXACT));
    }
    if plan.pools.iter().any(|pool| pool.owner == Owner::Local) {
        expected.push(("local".into(), bytes_of(Some(Owner::Local)), 0, EXACT));
    }
    if let Some((bytes, _)) = memory(request, step) {
        let bytes = u128::try_from(bytes).unwrap_or(0);
        expected.push(("unused".into(), bytes.saturating_sub(bytes_of(None)), 0, EXACT));
    }
    let lines = plan.ledger.iter();
    let found: Vec<(String, u128, u128, Certainty)> = lines
        .map(|line| (line.name.to_string(), line.bytes.into(), line.uncertain_bytes.into(), line.source))
        .collect();
    findings.expect(Rule::Ledger, "ledger", found, expected);
}
