//! A draft model: its caches and weights stand beside the model's, divided over the same ranks.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::check::Rule;
use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::plan::{Certainty, LedgerItem, LedgerLine};
use cacheplan_planner::{CachePlan, DeviceInfo, PlanRequest};
use cacheplan_transforms::WeightBytes;
use rstest::rstest;

use super::common::{Model, budget, kv, mamba2, published};

fn layers(model_type: &str, count: u32, heads: u64) -> Model {
    (0..count).fold(Model::new(model_type, count), |model, layer| model.with("kv", layer, kv(heads, 64)))
}

fn draft(count: u32, weights: u64) -> Model {
    let mut draft = layers("draft", count, 4);
    draft.info.weights = Some(WeightBytes::new(weights, true));
    draft
}

/// The plan of every stage, each proved.
fn stages(model: &Model, draft: &Model, budget_text: &str) -> Vec<CachePlan> {
    let budget = budget(budget_text);
    let request = model.request(&budget).with_draft(draft.caches());
    let ranks = request.ranks().unwrap();
    for plan in &ranks.stages {
        assert_eq!(request.check(plan), Ok(()));
        assert_eq!(plan.check_alone(), Ok(()));
    }
    ranks.stages
}

fn weights(plan: &CachePlan) -> Option<&LedgerLine> {
    plan.ledger.iter().find(|line| line.name == LedgerItem::DraftWeights)
}

fn drafting(plan: &CachePlan) -> Vec<u32> {
    let own = plan.resources.iter().filter(|resource| resource.drafts);
    own.filter_map(|resource| resource.layer).collect()
}

#[rstest]
#[case::alone("", 1000, "sum of the tensors' headers")]
#[case::tensor_parallel("[parallel]\ntp = 2", 500, "sum of the tensors' headers, over 2 shards")]
#[case::stages("[parallel]\ntp = 2\npp = 2", 250, "sum of the tensors' headers, over 4 shards")]
#[case::groups_hold_copies("[parallel]\ndp = 2", 1000, "sum of the tensors' headers")]
fn its_weights_are_divided_as_those_of_the_model(#[case] parallel: &str, #[case] bytes: u64, #[case] note: &str) {
    let (mut model, draft) = (layers("m", 8, 8), draft(4, 1000));
    model.info.weights = draft.info.weights;
    for plan in stages(&model, &draft, &format!("max_batch_size = 2\n[speculation]\ndraft_tokens = 2\n{parallel}")) {
        let of_model = plan.ledger.iter().find(|line| line.name == LedgerItem::Weights).unwrap();
        let of_draft = weights(&plan).unwrap();
        assert_eq!((of_draft.bytes, of_draft.source, of_draft.note.as_str()), (bytes, Certainty::Exact, note));
        assert_eq!((of_draft.bytes, &of_draft.note), (of_model.bytes, &of_model.note));
    }
}

/// With layers of another number than the model's, its own are divided over the stages, and none is lost.
#[rstest]
#[case::fewer(4, 2, &[2, 2])]
#[case::uneven(5, 2, &[3, 2])]
#[case::more_than_the_model(12, 2, &[6, 6])]
#[case::fewer_than_stages(2, 4, &[1, 1, 0, 0])]
fn its_own_layers_are_divided_over_stages(#[case] count: u32, #[case] pp: u32, #[case] held: &[usize]) {
    let text = format!("max_batch_size = 2\n[speculation]\ndraft_tokens = 2\n[parallel]\npp = {pp}");
    let stages = stages(&layers("m", 8, 8), &draft(count, 1 << 20), &text);
    assert_eq!(stages.iter().map(|plan| drafting(plan).len()).collect::<Vec<_>>(), held);
    assert!(stages.iter().flat_map(drafting).eq(0..count));
    for plan in &stages {
        // A stage without a layer of it holds nothing of its weights.
        let share = (1 << 20) / u64::from(pp.min(count));
        assert_eq!(weights(plan).map(|line| line.bytes), (!drafting(plan).is_empty()).then_some(share));
    }
}

#[test]
fn weights_that_the_budget_states_come_first() {
    let text = "max_batch_size = 1\n[speculation]\ndraft_tokens = 2\ndraft_weights = '4MiB'\n[parallel]\ntp = 2";
    let plans = stages(&layers("m", 2, 8), &draft(1, 1000), text);
    let line = weights(&plans[0]).unwrap();
    assert_eq!(
        (line.bytes, line.source, line.note.as_str()),
        (2 << 20, Certainty::Assumed, "stated in the budget, over 2 shards")
    );
}

/// Its convolution's groups are those of its own state, not of the model's in the layer of the same number.
#[test]
fn a_group_of_its_convolution_is_not_divided() {
    let hybrid = |d_state: u64| {
        let conv = ResourceHandler::causal_conv(256 + 2 * 64, 4, vec![256, 64, 64], DType::Bf16).unwrap();
        Model::new("hybrid", 1).with("ssm", 0, mamba2(4, 64, d_state, 64 / d_state, DType::F32)).with("conv", 0, conv)
    };
    let (model, draft) = (hybrid(16), hybrid(32));
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\n[parallel]\ntp = 4");
    assert!(model.request(&budget).plan().is_ok());
    let error = model.request(&budget).with_draft(draft.caches()).plan().unwrap_err();
    assert!(error.to_string().contains("tp 4 does not divide n_groups 2"), "{error}");
}

#[test]
fn weights_of_unknown_size_are_asked_for_where_a_fraction_needs_them() {
    let (mut model, mut draft) = (layers("m", 2, 8), draft(1, 1000));
    model.info.weights = Some(WeightBytes::new(1 << 30, true));
    draft.info.weights = None;
    let device = DeviceInfo { name: "d".into(), total_bytes: 8 << 30, free_bytes: 8 << 30, kind: DeviceKind::Cuda };
    let planned = |more: &str| {
        let budget =
            budget(&format!("[memory]\nfraction = 0.9\nof = 'total'\n[speculation]\ndraft_tokens = 2\n{more}"));
        model.request(&budget).with_draft(draft.caches()).with_devices(device.clone()).plan()
    };
    let error = planned("").unwrap_err().to_string();
    assert!(error.contains("state `speculation.draft_weights` (--draft-weights)"), "{error}");
    assert_eq!(weights(&planned("draft_weights = 0").unwrap()).unwrap().bytes, 0);
}

#[test]
fn another_draft_of_the_same_caches_is_another_model() {
    let (model, one, mut other) = (layers("m", 2, 8), draft(1, 1000), draft(1, 1000));
    other.info.fingerprint = "other".into();
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 2");
    let of = |draft: &Model| model.request(&budget).with_draft(draft.caches()).fingerprint().unwrap();
    assert_eq!(of(&one).differences(&of(&other)), ["model"]);
}

#[test]
fn a_share_that_is_not_its_own_is_found() {
    let (model, draft) = (layers("m", 2, 8), draft(2, 1000));
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\n[parallel]\ntp = 2");
    let request = model.request(&budget).with_draft(draft.caches());
    let mut plan = request.plan().unwrap();
    plan.ledger.iter_mut().find(|line| line.name == LedgerItem::DraftWeights).unwrap().bytes = 1000;
    let violations = request.check(&plan).unwrap_err();
    assert!(violations.iter().all(|violation| violation.rule == Rule::Ledger), "{violations:#?}");
}

#[rstest]
#[case("", false)]
#[case("draft_weights = 1000", true)]
fn the_explanation_says_what_was_divided_and_who_stated_it(#[case] stated: &str, #[case] by_budget: bool) {
    let (model, draft) = (layers("m", 2, 8), draft(2, 1000));
    let budget = budget(&format!("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\n{stated}\n[parallel]\ntp = 2"));
    let request = model.request(&budget).with_draft(draft.caches());
    let text = request.explain(&request.plan().unwrap(), "draft weights").unwrap().to_string();
    assert!(text.starts_with("draft weights takes 500 bytes") && text.contains("over 2 shards"), "{text}");
    assert_eq!(text.contains("set by `speculation.draft_weights`"), by_budget, "{text}");
}

/// What is suggested of keys and values holds for those of the draft model too.
#[test]
fn smaller_keys_and_values_are_the_drafts_too() {
    let budget = budget("max_seq_len = 1024\n[memory]\nbytes = '2GiB'\n[speculation]\ndraft_tokens = 2");
    let (model, draft) = (published("Qwen__Qwen3-8B"), published("Qwen__Qwen3-0.6B"));
    let request = PlanRequest::of(model).with_draft(draft).with_budget(budget);
    let suggested = request.knobs(&request.plan().unwrap());
    let narrow = request.changed(|budget| budget.dtypes.kv = Some(DType::F8E4m3)).plan().unwrap();
    assert!(narrow.resources.iter().all(|resource| resource.dtype == DType::F8E4m3));
    assert!(narrow.resources.iter().any(|resource| resource.drafts));
    let knob = suggested.iter().find(|knob| knob.change.starts_with("dtypes.kv")).unwrap();
    assert_eq!(knob.sequences, narrow.capacity.sequences);
}

/// Layer 0 of the draft model is not layer 0 of the model.
#[test]
fn its_layers_are_told_from_the_models() {
    let (model, draft) = (layers("m", 3, 8), layers("draft", 2, 8));
    let budget = budget("max_batch_size = 1\n[speculation]\ndraft_tokens = 2\nmtp_layers = 1");
    let request = model.request(&budget).with_draft(draft.caches());
    let plan = request.plan().unwrap();
    let table = plan.table();
    assert!(table.contains("      layers 0-2\n") && table.contains("      drafting, layers 2,0-1\n"), "{table}");
    assert!(plan.markdown().contains("| draft 2,0-1 |"), "{}", plan.markdown());
    let explained = request.explain(&plan, "0").unwrap();
    assert_eq!(explained.claim, "layer 0 has 1 cache");
}
