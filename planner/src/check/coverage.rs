//! Every cache that the request implies for this rank is planned once, as it is.

use cacheplan_handlers::{Dim, Growth, Kind, Recurrence, ResourceHandler, Ring, Split};
use cacheplan_transforms::{Resource, Resources};

use super::facts::Facts;
use super::{Findings, Rule};
use crate::plan::{CachePlan, PlannedResource, Scheme};
use crate::solver::inputs::Inputs;

/// A cache that this rank must hold.
struct Due<'a> {
    name: String,
    /// What it is, or is like, before ranks divide it.
    of: &'a Resource,
    layer: Option<u32>,
    drafts: bool,
    /// Layers that read it without owning one.
    readers: &'a [u32],
    /// Columns for the inputs of candidates behind its own.
    candidates: u128,
    /// Whether it is a convolution whose B and C are those of one group.
    one_group: bool,
}

pub(super) fn check(facts: &Facts<'_>, request: &Inputs<'_>, plan: &CachePlan, findings: &mut Findings) {
    let due = due(facts, request);
    // What is kept of each candidate stands behind its state; `rollback` proves that it is the right thing.
    let mut state: Option<&PlannedResource> = None;
    let is_kept = |planned: &PlannedResource, state: Option<&PlannedResource>| {
        let base = planned.name.split_once('.').map(|(_, base)| base);
        planned.handler.growth() == Growth::PerDraftPosition
            && !planned.drafts
            && planned.shared_by.is_empty()
            && state.is_some_and(|state| state.handler.growth() == Growth::PerSequence && !state.drafts)
            && state.map(|state| state.name.as_str()) == base
    };
    let rolls_back = request.budget.speculation.is_some() && !has_twins(request);
    let mut planned = Vec::new();
    for resource in &plan.resources {
        if !(rolls_back && is_kept(resource, state)) {
            state = Some(resource);
            planned.push(resource);
        }
    }
    let names: Vec<&str> = planned.iter().map(|planned| planned.name.as_str()).collect();
    let expected: Vec<&str> = due.iter().map(|due| due.name.as_str()).collect();
    findings.expect(Rule::Coverage, "resources", names, expected);
    let drafted = request.budget.speculation.as_ref().map_or(0, |speculation| speculation.draft_tokens.into());
    for (due, planned) in due.iter().zip(planned) {
        compare(due, planned, u128::from(request.budget.parallel.tp), drafted, findings);
    }
}

/// The fewest whole units that hold what is behind and what is drafted, doubled until they do where they double.
fn ring_rows(ring: Ring, drafted: u128) -> u128 {
    let span = u128::from(ring.behind) + drafted;
    let mut units = 1;
    while units * u128::from(ring.unit) < span {
        units = if ring.doubles { 2 * units } else { span.div_ceil(ring.unit.into()) };
    }
    units * u128::from(ring.unit)
}

/// Whether what puts states back came with the model.
pub(super) fn has_twins(request: &Inputs<'_>) -> bool {
    request.resources.iter().any(|resource| resource.handler.growth() == Growth::PerDraftPosition)
}

/// The model's caches of this stage, those of its prediction head, then those of its draft model.
fn due<'a>(facts: &Facts<'_>, request: &Inputs<'a>) -> Vec<Due<'a>> {
    let speculation = request.budget.speculation.as_ref();
    let replays = speculation.is_some_and(|speculation| speculation.scheme == Scheme::Replay) && !has_twins(request);
    let mut due = Vec::new();
    for of in request.resources.iter().filter(|of| in_stage(request, of.layer, request.model.layers)) {
        let widened = replays && *of.handler.kind() == Kind::CausalConv;
        let candidates = if widened { facts.positions.into() } else { 0 };
        let one_group = has_one_group(of, request.resources);
        due.push(Due {
            name: of.name.clone(),
            of,
            layer: of.layer,
            drafts: false,
            readers: &of.shared_by,
            candidates,
            one_group,
        });
    }
    let windowed = request.prediction.windowed;
    let alike = |of: &&Resource| match of.handler.growth() {
        Growth::Paged { stride: 1, window: Some(_) } if windowed => true,
        Growth::Paged { stride: 1, window } => {
            !windowed && window.is_none_or(|window| u64::from(window) >= facts.seq_len)
        }
        _ => false,
    };
    let last = request.resources.iter().rfind(alike).map(|of| of.layer);
    let mut like: Vec<&Resource> = request.resources.iter().filter(alike).filter(|of| Some(of.layer) == last).collect();
    let kinds: Vec<&Kind> = like.iter().map(|of| of.handler.kind()).collect();
    // A head over chosen latents chooses by itself; one with a window chooses none.
    if !windowed && kinds.contains(&&Kind::MlaPaged) && !kinds.contains(&&Kind::IndexKey) {
        like.extend(request.resources.of_kind(&Kind::IndexKey).last());
    }
    let here = last.is_some_and(|layer| in_stage(request, layer, request.model.layers));
    for head in 0..speculation.map_or(0, |speculation| speculation.mtp_layers) {
        for (at, of) in like.iter().enumerate().filter(|_| here) {
            let more = if at == 0 { String::new() } else { format!(".{at}") };
            let name = format!("draft.mtp_{head}{more}");
            // It is like another cache, and has no readers but its own layer.
            let layer = last.flatten();
            due.push(Due { name, of, layer, drafts: true, readers: &[], candidates: 0, one_group: false });
        }
    }
    if let Some(draft) = request.draft {
        let own = draft.resources.iter().filter(|of| in_stage(request, of.layer, draft.model.layers));
        due.extend(own.map(|of| {
            let one_group = has_one_group(of, draft.resources);
            let name = format!("draft.{}", of.name);
            Due { name, of, layer: of.layer, drafts: true, readers: &of.shared_by, candidates: 0, one_group }
        }));
    }
    due
}

/// Stages hold layers that follow each other; where they do not divide evenly the first stages hold one more.
fn in_stage(request: &Inputs<'_>, layer: Option<u32>, layers: u32) -> bool {
    let stages = request.budget.parallel.pp;
    let Some(layer) = layer.filter(|_| stages > 1) else { return true };
    let (mut stage, mut end) = (0, layers / stages + u32::from(!layers.is_multiple_of(stages)));
    while layer >= end && stage < stages {
        stage += 1;
        end += layers / stages + u32::from(stage < layers % stages);
    }
    stage == request.stage
}

fn compare(due: &Due<'_>, planned: &PlannedResource, tp: u128, drafted: u128, findings: &mut Findings) {
    let (found, of) = (&planned.handler, &due.of.handler);
    let place = |key: &str| format!("resources[{}].{key}", due.name);
    findings.expect(Rule::Coverage, place("layer"), planned.layer, due.layer);
    findings.expect(Rule::Coverage, place("drafts"), planned.drafts, due.drafts);
    findings.expect(Rule::Coverage, place("kind"), planned.kind.as_str(), of.kind().name());
    findings.expect(Rule::Coverage, place("dtype"), planned.dtype, of.dtype());
    findings.expect(Rule::Coverage, place("shared_by"), planned.shared_by.as_slice(), due.readers);
    let rest =
        |handler: &ResourceHandler| (handler.kind().clone(), handler.growth(), handler.dtype(), handler.layout());
    findings.expect(Rule::Coverage, place("handler"), rest(found), rest(of));
    let share = |dim: &Dim| match &dim.split {
        Split::Sections(sections) if due.one_group => u128::from(sections[0]) / tp + 2 * u128::from(sections[1]),
        split => share(dim.size.into(), split, tp),
    };
    let mut sizes: Vec<u128> = of.shape().iter().map(share).collect();
    if let Some(columns) = sizes.last_mut() {
        *columns += due.candidates;
    }
    if let (Some(Recurrence::Ring(ring)), Some(rows)) = (of.recurrence(), sizes.first_mut()) {
        *rows = ring_rows(ring, if due.drafts { 0 } else { drafted });
    }
    let shape: Vec<u128> = found.shape().iter().map(|dim| dim.size.into()).collect();
    findings.expect(Rule::Coverage, place("handler.shape"), shape, sizes);
    let recurrence = of.recurrence().map(|recurrence| match recurrence {
        Recurrence::Ssd { n_groups } => Recurrence::Ssd { n_groups: n_groups.div_ceil(tp as u64) },
        Recurrence::LinearAttention { num_k_heads, delta_rule, decay } => {
            Recurrence::LinearAttention { num_k_heads: num_k_heads.div_ceil(tp as u64), delta_rule, decay }
        }
        Recurrence::SelectiveScan | Recurrence::RgLru | Recurrence::Ring(_) => recurrence,
    });
    findings.expect(Rule::Coverage, place("handler.recurrence"), found.recurrence(), recurrence);
    let names: Vec<&str> = found.shape().iter().map(|dim| &*dim.name).collect();
    let mut expected: Vec<&str> = of.shape().iter().map(|dim| &*dim.name).collect();
    if let Some(columns) = expected.last_mut().filter(|_| due.candidates > 0) {
        *columns = "d_conv - 1 + candidates";
    }
    findings.expect(Rule::Coverage, place("handler.shape"), names, expected);
    let splits: Vec<&Split> = found.shape().iter().map(|dim| &dim.split).collect();
    let expected: Vec<Split> = of.shape().iter().map(|dim| split(&dim.split, tp, due.one_group)).collect();
    findings.expect(Rule::Coverage, place("handler.shape"), splits, expected.iter().collect());
}

/// How one rank's share of a dimension could be divided on.
fn split(of: &Split, tp: u128, one_group: bool) -> Split {
    let part = |size: u64| (u128::from(size) / tp) as u64;
    match of {
        Split::KvChannels(heads) => Split::KvChannels(part(*heads).max(1)),
        Split::Sections(sections) => {
            let whole = |at: usize| one_group && at > 0;
            let sections = sections.iter().enumerate();
            Split::Sections(sections.map(|(at, size)| if whole(at) { *size } else { part(*size) }).collect())
        }
        Split::Whole | Split::Heads | Split::KvHeads => of.clone(),
    }
}

/// Whether a convolution's B and C are those of one group, as wide as the state's columns: every rank has them whole.
fn has_one_group(conv: &Resource, resources: &Resources) -> bool {
    let sections = conv.handler.shape().iter().find_map(|dim| match &dim.split {
        Split::Sections(sections) => Some(sections.as_slice()),
        _ => None,
    });
    let Some([_, b, c]) = sections else { return false };
    let mut states = resources.of_kind(&Kind::Ssm).filter(|state| state.layer == conv.layer);
    b == c && states.any(|state| state.handler.dim("d_state") == Some(*b))
}

/// One rank's share of a dimension; KV heads that are fewer than the ranks are each on several.
fn share(size: u128, split: &Split, tp: u128) -> u128 {
    match split {
        Split::Whole => size,
        Split::KvHeads if size < tp => 1,
        Split::KvChannels(heads) => size / u128::from(*heads).min(tp),
        Split::KvHeads | Split::Heads | Split::Sections(_) => size / tp,
    }
}
