//! Every byte has a line, a source, and a consumer.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::{Certainty, DeviceInfo, DeviceKind, LedgerItem, PlanError, PlanRequest};
use cacheplan_transforms::WeightBytes;
use rstest::rstest;

use crate::step::StepBytes;

use super::common::{Model, budget, kv};

fn device(kind: DeviceKind) -> DeviceInfo {
    DeviceInfo { name: "device".into(), total_bytes: 80 << 30, free_bytes: 78 << 30, kind }
}

fn model() -> Model {
    let mut model = Model::new("m", 2).with("kv", 0, kv(8, 128)).with(
        "extra",
        1,
        ResourceHandler::unpaged(&[16], DType::F32).unwrap(),
    );
    model.info.weights = Some(WeightBytes::new(16 << 30, true));
    model
}

#[test]
fn the_lines_add_up_to_the_share_of_the_device() {
    let (model, device) = (model(), device(DeviceKind::Cuda));
    let budget = budget(
        "max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'\nreserve = '1GiB'\ngraphs = '512MiB'\n\
         activations = '2GiB'",
    );
    let request = PlanRequest { device: Some(&device), ..model.request(&budget) };
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    assert_eq!(plan.ledger.iter().map(|line| line.bytes).sum::<u64>(), (80u64 << 30) / 10 * 9);
    let sources: Vec<(&str, Certainty)> = plan.ledger.iter().map(|line| (line.name.name(), line.source)).collect();
    assert_eq!(
        sources,
        [
            ("weights", Certainty::Exact),
            ("context", Certainty::Assumed),
            ("activations", Certainty::Assumed),
            ("graphs", Certainty::Assumed),
            ("reserve", Certainty::Exact),
            ("kv_paged.0", Certainty::Exact),
            ("local", Certainty::Exact),
            ("unused", Certainty::Exact),
        ]
    );
}

#[rstest]
#[case(DeviceKind::Cuda, 0)]
#[case(DeviceKind::Integrated, 8 << 30)]
#[case(DeviceKind::Cpu, 8 << 30)]
fn a_host_tier_takes_the_devices_memory_only_where_they_are_one(#[case] kind: DeviceKind, #[case] bytes: u64) {
    let (model, device) = (model(), device(kind));
    let budget = budget("max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'\n[host]\nbytes = '8GiB'");
    let plan = PlanRequest { device: Some(&device), ..model.request(&budget) }.plan().unwrap();
    let line = plan.ledger.iter().find(|line| line.name == LedgerItem::HostTier);
    assert_eq!(line.map_or(0, |line| line.bytes), bytes);
}

#[rstest]
#[case("[host]\nbytes = '1GiB'", "no managed cache")]
#[case("[workload]\ncheckpoints_per_sequence = 1", "no managed state")]
fn a_budget_that_nothing_consumes_is_an_error(#[case] text: &str, #[case] expected: &str) {
    let model = Model::new("m", 1).with("extra", 0, ResourceHandler::unpaged(&[16], DType::F32).unwrap());
    let error = model.request(&budget(text)).plan().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn memory_for_a_model_without_caches_is_an_error() {
    let model = Model::new("m", 1);
    let error = model.request(&budget("[memory]\nbytes = '1GiB'")).plan().unwrap_err().to_string();
    assert!(error.contains("the model has no cache"), "{error}");
}

#[test]
fn weights_that_take_more_than_all_are_what_does_not_fit() {
    let mut model = model();
    model.info.weights = Some(WeightBytes::new(100 << 30, true));
    let device = device(DeviceKind::Cuda);
    let budget = budget("max_seq_len = 4096\n[memory]\nfraction = 0.5\nof = 'total'\nactivations = '2GiB'");
    let error = PlanRequest { device: Some(&device), ..model.request(&budget) }.plan().unwrap_err();
    let text = error.to_string();
    // 40 GiB are allowed; weights, 512 MiB of context and 2 GiB of activations take 102.5.
    let expected =
        "but weights 100.00 GiB, context 512.00 MiB, activations 2.00 GiB take 102.50 GiB of the 40.00 GiB allowed";
    assert!(text.contains(expected) && text.contains("most of it `weights`"), "{text}");
    let PlanError::DoesNotFit(shortfall) = error else { panic!("{text}") };
    assert_eq!(shortfall.shortfall, (62 << 30) + (1 << 29) + shortfall.needed);
}

#[test]
fn what_does_not_fit_comes_with_changes_that_would() {
    let model = Model::new("m", 1).with("kv", 0, kv(8, 128));
    let budget = budget("max_seq_len = 65536\n[memory]\nbytes = '200MiB'");
    let error = model.request(&budget).plan().unwrap_err();
    assert_eq!(error.exit_code(), 3);
    let text = error.to_string();
    // 200 MiB are 3,200 blocks of 64 KiB: the null block and 3,199 of 16 tokens.
    assert!(text.contains("try max_seq_len = 51184: 1 sequence(s), 200.00 MiB of caches"), "{text}");
    assert!(text.contains("try dtypes.kv = \"f8_e4m3\": 1 sequence(s)"), "{text}");
    assert!(text.contains("try parallel.tp = 2: 1 sequence(s)"), "{text}");
}

/// Whose layers were read: the widest of them, captured graphs and the buffers of a group are assumed, and kept free once more
/// where that is asked for.
#[test]
fn what_assumed_lines_may_take_more_is_kept_free_on_request() {
    let (model, device) = (model(), device(DeviceKind::Cuda));
    let step = StepBytes { whole: 24_576, divided: 86_016, logits: 1_282_560 };
    let planned = |safe: bool| {
        let budget = budget(&format!(
            "max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'\nsafe = {safe}\n[parallel]\ntp = 2"
        ));
        let request = PlanRequest { device: Some(&device), step: Some(step), ..model.request(&budget) };
        let plan = request.plan().unwrap();
        assert_eq!(request.check(&plan), Ok(()));
        plan
    };
    let (plain, safe) = (planned(false), planned(true));
    let line = |name: LedgerItem| safe.ledger.iter().find(|line| line.name == name).unwrap();
    // 2048 tokens in the widest layer are less than the logits of 256 sequences.
    assert_eq!(line(LedgerItem::Activations).bytes, 256 * 1_282_560);
    assert_eq!(line(LedgerItem::Activations).uncertain_bytes, 128 * 1_282_560);
    assert_eq!(line(LedgerItem::Graphs).bytes, 2 * (15 << 19));
    assert_eq!(line(LedgerItem::Nccl).bytes, 128 << 20);
    assert_eq!(line(LedgerItem::Weights).uncertain_bytes, 0);
    let more: u64 = plain.ledger.iter().map(|line| line.uncertain_bytes).sum();
    assert_eq!(line(LedgerItem::Margin).bytes, more);
    assert!(plain.ledger.iter().all(|line| line.name != LedgerItem::Margin));
    assert!(safe.capacity.sequences < plain.capacity.sequences);
}
