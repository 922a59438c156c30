//! A plan that was written reads back as itself; anything else is a typed error.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::plan_file::PlanFileError;
use cacheplan_planner::{CachePlan, DeviceInfo, PlanRequest};
use rstest::rstest;

use super::common::{Model, budget, kv, mamba2, nemotron_3_nano};

fn written() -> (CachePlan, String) {
    let budget = budget("max_seq_len = 8192\n[memory]\nbytes = '24GiB'\n[speculation]\ndraft_tokens = 3");
    let plan = nemotron_3_nano().request(&budget).plan().unwrap();
    let text = serde_json::to_string_pretty(&plan).unwrap();
    (plan, text)
}

#[test]
fn a_written_plan_reads_back_as_itself() {
    let (plan, text) = written();
    assert_eq!(CachePlan::from_json(&text, "plan.json"), Ok(plan));
}

#[rstest]
#[case("", "plan.json is no JSON")]
#[case("{}", "no whole number `schema_version`")]
#[case("[1]", "no whole number `schema_version`")]
#[case("{\"schema_version\": 999}", "has schema_version 999, this version reads 1")]
#[case(
    "{\"schema_version\": 0, \"tool_version\": \"0.0.1\"}",
    "has schema_version 0, this version reads 1; `cacheplan plan MODEL --out FILE` makes it anew"
)]
#[case("{\"schema_version\": 1}", "plan.json is no plan of schema_version 1: missing field `tool_version`")]
fn what_is_no_plan_is_an_error(#[case] text: &str, #[case] expected: &str) {
    let error: PlanFileError = CachePlan::from_json(text, "plan.json").unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn a_key_of_the_wrong_kind_names_its_line() {
    let (_, text) = written();
    let bad = text.replacen("\"max_seq_len\": 8192", "\"max_seq_len\": \"long\"", 1);
    let line = 1 + bad[..bad.find("\"long\"").unwrap()].matches('\n').count();
    let error = CachePlan::from_json(&bad, "plan.json").unwrap_err().to_string();
    assert!(error.contains(&format!("at line {line}")), "{error}");
}

#[test]
fn a_fingerprint_says_what_is_another() {
    let (model, device) = (
        nemotron_3_nano(),
        DeviceInfo { name: "gpu".into(), total_bytes: 1 << 30, free_bytes: 1 << 30, kind: DeviceKind::Cuda },
    );
    let (left, right) = (budget("max_seq_len = 1"), budget("max_seq_len = 2"));
    let of = |request: &PlanRequest| request.fingerprint().unwrap();
    let base = of(&model.request(&left));
    assert_eq!(base.differences(&base), [""; 0]);
    assert_eq!(base.differences(&of(&model.request(&right))), ["budget"]);
    let with_device = model.request(&left).with_devices(device.clone());
    assert_eq!(base.differences(&of(&with_device)), ["device"]);
    assert_eq!(base.differences(&of(&Model::new("other", 1).with("kv", 0, kv(1, 64)).request(&left))), ["model"]);
}

/// Compressed pages, windows, twins and unpaged tokens at once.
fn mixed() -> CachePlan {
    let model = Model::new("mixed", 5)
        .with("kv", 0, kv(8, 64))
        .with("kv", 1, kv(2, 64).with_window(256).unwrap())
        .with("ssm", 2, mamba2(4, 64, 16, 2, DType::F32))
        .with("conv", 2, ResourceHandler::causal_conv(320, 4, vec![256, 32, 32], DType::Bf16).unwrap())
        .with("extra", 4, ResourceHandler::unpaged(&[3], DType::Int32).unwrap());
    let budget = budget("max_seq_len = 2048\ntokens_per_block = 8\n[speculation]\ndraft_tokens = 3\nscheme = 'replay'");
    model.request(&budget).plan().unwrap()
}

#[test]
fn a_cap_that_is_none_is_refused_on_reading() {
    let text = serde_json::to_string(&mixed()).unwrap();
    let other = text.replace("\"capped_by\":\"max_batch_size\"", "\"capped_by\":\"weather\"");
    assert_ne!(text, other);
    let error = CachePlan::from_json(&other, "plan.json").unwrap_err();
    assert!(matches!(&error, PlanFileError::Malformed { .. }) && error.to_string().contains("weather"), "{error}");
}

/// Blocks whose tokens are beyond 64 bits.
#[test]
fn numbers_that_overflow_are_refused_on_reading() {
    let text = serde_json::to_string(&mixed()).unwrap();
    let other = text.replace("\"stride\":1", "\"stride\":2147483647");
    let other = other.replace("\"tokens_per_block\":8", "\"tokens_per_block\":18446744073709551615");
    assert_ne!(text, other);
    assert!(CachePlan::from_json(&other, "plan.json").is_err());
}

#[rstest]
#[case::a_hybrid_that_speculates(written().0)]
#[case::every_kind_of_pool(mixed())]
fn a_plan_proves_its_own_sizes(#[case] plan: CachePlan) {
    assert_eq!(plan.check_alone(), Ok(()));
}

#[rstest]
#[case::a_byte(|plan: &mut CachePlan| plan.pools[0].bytes += 1)]
#[case::an_offset(|plan: &mut CachePlan| plan.pools[0].members[0].offset += 2)]
#[case::a_sum(|plan: &mut CachePlan| plan.totals.managed_bytes += 1)]
#[case::a_layer_twice(|plan: &mut CachePlan| { let twice = plan.resources[0].clone(); plan.resources.push(twice); })]
fn a_changed_size_is_found_without_the_model(#[case] corrupt: fn(&mut CachePlan)) {
    let mut plan = mixed();
    corrupt(&mut plan);
    assert!(!plan.check_alone().unwrap_err().is_empty());
}
