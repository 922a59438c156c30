//! Every state of a speculative plan can be put back to its accepted tokens.

use cacheplan_handlers::{DType, DecayKind, Growth, Kind, Recurrence, ResourceHandler};

use super::coverage::has_twins;
use super::{Findings, Rule};
use crate::plan::{CachePlan, PlannedResource, Scheme};
use crate::solver::inputs::Inputs;

/// What lies at each candidate position: kind, elements, dtype.
type Kept = (String, u128, DType);

pub(super) fn check(request: &Inputs<'_>, plan: &CachePlan, findings: &mut Findings) {
    // Twins that came with the model are the model's own affair.
    let speculation = request.budget.speculation.as_ref().filter(|_| !has_twins(request));
    findings.expect(Rule::Rollback, "rollback", plan.rollback, speculation.map(|speculation| speculation.scheme));
    let Some(speculation) = speculation else { return };
    let positions = u128::from(speculation.draft_tokens) + 1;
    for (model, state) in request.resources.iter().filter_map(|model| Some((model, plan.resource(&model.name)?))) {
        if !check_state(speculation.scheme, state, request.model.dtype, plan, findings) {
            let place = format!("resources[{}]", state.name);
            findings.expect(Rule::Rollback, place, columns(&state.handler), columns(&model.handler) + positions);
        }
    }
}

/// The same of the plan's own resources, as far as they tell: how many columns a convolution has of its own they do not.
pub(super) fn check_alone(plan: &CachePlan, findings: &mut Findings) {
    let own = || plan.resources.iter().filter(|planned| !planned.drafts);
    let Some(scheme) = plan.rollback else {
        let drafts = plan.limits.draft_positions > 1 && own().any(|resource| is_state(&resource.handler));
        if drafts && !own().any(|resource| resource.handler.is_speculative()) {
            findings.add(Rule::Rollback, "rollback", "absent", "a way back for each state");
        }
        return;
    };
    for state in own() {
        if !check_state(scheme, state, plan.model.dtype, plan, findings)
            && (columns(&state.handler) <= plan.limits.draft_positions.into() || !state.handler.has_candidates())
        {
            let found = format!("{} columns", columns(&state.handler));
            let place = format!("resources[{}]", state.name);
            findings.add(Rule::Rollback, place, found, "its own and one for each candidate");
        }
    }
}

/// Whether what is kept beside a state, which is checked, is all that puts it back: a convolution that is replayed has
/// columns for its candidates instead.
fn check_state(
    scheme: Scheme,
    state: &PlannedResource,
    activations: DType,
    plan: &CachePlan,
    findings: &mut Findings,
) -> bool {
    let handler = &state.handler;
    if !is_state(handler) {
        return true;
    }
    let widened = scheme == Scheme::Replay && *handler.kind() == Kind::CausalConv;
    let expected = match scheme {
        Scheme::Snapshots => vec![(snapshot(handler.kind()).to_owned(), elements(handler), handler.dtype())],
        Scheme::Replay if widened => Vec::new(),
        Scheme::Replay => inputs(handler, activations),
    };
    findings.expect(Rule::Rollback, format!("resources[{}]", state.name), kept(plan, state), expected);
    !widened
}

/// A state that must be put back: what a ring holds of rejected candidates is written again.
fn is_state(handler: &ResourceHandler) -> bool {
    handler.growth() == Growth::PerSequence && handler.as_ring().is_none()
}

fn columns(handler: &ResourceHandler) -> u128 {
    handler.shape().last().map_or(0, |dim| u128::from(dim.size))
}

/// What the plan keeps at the candidate positions of a state.
fn kept(plan: &CachePlan, state: &PlannedResource) -> Vec<Kept> {
    let of_state = plan.resources.iter().filter(|resource| {
        let twin_of = resource.name.split_once('.').map(|(_, name)| name);
        resource.handler.growth() == Growth::PerDraftPosition
            && twin_of == Some(state.name.as_str())
            && resource.layer == state.layer
    });
    of_state.map(|twin| (twin.kind.clone(), elements(&twin.handler), twin.handler.dtype())).collect()
}

fn snapshot(kind: &Kind) -> &'static str {
    match kind {
        Kind::Ssm => "intermediate_ssm",
        Kind::CausalConv => "intermediate_causal_conv",
        _ => "intermediate_state",
    }
}

/// The operands of one step of the recurrence; none where it is not known, which is never what a plan keeps.
fn inputs(state: &ResourceHandler, activations: DType) -> Vec<Kept> {
    let sizes: Vec<u128> = state.shape().iter().map(|dim| u128::from(dim.size)).collect();
    let (Some(recurrence), &[heads, rows, columns]) = (state.recurrence(), sizes.as_slice()) else {
        return vec![("the inputs of a recurrence that nobody stated".into(), 0, activations)];
    };
    let operands = match recurrence {
        Recurrence::SelectiveScan => {
            vec![("x", heads * rows, activations), ("b", columns, activations), ("dt", heads * rows, DType::F32)]
        }
        Recurrence::Ssd { n_groups } => vec![
            ("x", heads * rows, activations),
            ("b", u128::from(n_groups) * columns, activations),
            ("dt", heads, DType::F32),
            ("decay", heads, DType::F32),
        ],
        Recurrence::LinearAttention { num_k_heads, delta_rule, decay } => {
            let gates = [
                ("beta", if delta_rule { heads } else { 0 }, DType::F32),
                (
                    "g",
                    match decay {
                        DecayKind::Fixed => 0,
                        DecayKind::PerHead => heads,
                        DecayKind::PerChannel => heads * rows,
                    },
                    DType::F32,
                ),
            ];
            let outer = [("k", u128::from(num_k_heads) * rows, activations), ("v", heads * columns, activations)];
            outer.into_iter().chain(gates.into_iter().filter(|(_, elements, _)| *elements > 0)).collect()
        }
        Recurrence::RgLru => ["x", "input_gate", "recurrence_gate"].map(|name| (name, heads, activations)).into(),
        Recurrence::Ring(_) => Vec::new(),
    };
    operands.into_iter().map(|(name, elements, dtype)| (format!("replay.{name}"), elements, dtype)).collect()
}

fn elements(handler: &ResourceHandler) -> u128 {
    handler.shape().iter().map(|dim| u128::from(dim.size)).product()
}
