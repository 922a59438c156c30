//! A diff names what changed and nothing else.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::CachePlan;
use cacheplan_planner::diff::Side;
use rstest::rstest;

use super::common::{Model, budget, nemotron_3_nano, nemotron_3_nano_with};

fn planned(model: &Model, text: &str) -> CachePlan {
    model.request(&budget(text)).plan().unwrap()
}

#[test]
fn equal_plans_have_no_differences() {
    let plan = planned(&nemotron_3_nano(), "max_seq_len = 8192\n[memory]\nbytes = '24GiB'");
    let none = plan.diff(&plan);
    assert!(none.is_empty());
    assert_eq!(none.table(), "");
}

#[test]
fn what_a_plan_was_made_from_is_no_difference_by_itself() {
    let model = nemotron_3_nano();
    let (left, right) = (planned(&model, ""), planned(&model, "max_batch_size = 8"));
    assert_ne!(left.fingerprint, right.fingerprint);
    assert!(left.diff(&right).is_empty());
}

#[test]
fn grouping_policies_are_compared_by_owner_and_pool() {
    let ssm = |heads| ResourceHandler::ssm(heads, 64, 16, DType::F32).unwrap();
    let model = Model::new("mixed", 4).with("ssm", 0, ssm(4)).with("ssm", 1, ssm(4)).with("ssm", 2, ssm(8)).with(
        "ssm",
        3,
        ssm(8),
    );
    let left = planned(&model, "grouping = 'first-reference'");
    let right = planned(&model, "grouping = 'by-key'");
    let table = left.diff(&right).table();
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    insta::assert_snapshot!("diff_of_two_policies", table);
}

#[test]
fn another_dtype_and_budget_show_in_bytes_and_capacity() {
    let left = planned(&nemotron_3_nano(), "max_seq_len = 8192\n[memory]\nbytes = '24GiB'");
    let model = nemotron_3_nano_with(DType::F8E4m3, DType::F32);
    let right = planned(&model, "max_seq_len = 16384\n[memory]\nbytes = '30GiB'\ngraphs = '1GiB'");
    let table = left.diff(&right).table();
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    insta::assert_snapshot!("diff_of_two_dtypes_and_budgets", table);
}

#[rstest]
#[case::an_owner(|plan: &mut CachePlan| plan.resources[0].owner = cacheplan_planner::Owner::Local, "owner")]
#[case::bytes(|plan: &mut CachePlan| plan.resources[0].bytes_per_sequence += 1, "bytes_per_sequence")]
#[case::a_pool(|plan: &mut CachePlan| plan.pools[0].units += 1, "units")]
#[case::a_limit(|plan: &mut CachePlan| plan.limits.max_seq_len += 1, "max_seq_len")]
#[case::capacity(|plan: &mut CachePlan| plan.capacity.sequences += 1, "sequences")]
#[case::the_ledger(|plan: &mut CachePlan| plan.ledger[0].bytes += 1, "bytes")]
fn one_change_is_one_difference(#[case] change: fn(&mut CachePlan), #[case] key: &str) {
    let before = planned(&nemotron_3_nano(), "");
    let mut after = before.clone();
    change(&mut after);
    let keys: Vec<String> = before.diff(&after).changes.into_iter().map(|change| change.key).collect();
    assert_eq!(keys, [key]);
}

/// What is asked otherwise is named, and so is what becomes of it on a rank.
#[rstest]
#[case::devices("[parallel]\ntp = 2", &["tp", "devices", "handler.shape.num_kv_heads.size"])]
#[case::stages("[parallel]\npp = 2", &["pp", "devices"])]
#[case::replicas("[parallel]\ndp = 2", &["dp", "replicas"])]
#[case::context("[parallel]\ncp = 2", &["cp"])]
#[case::layout("layout = 'NHD'", &["handler.layout"])]
fn a_diff_names_what_divides_a_plan_and_how_it_lies(#[case] text: &str, #[case] keys: &[&str]) {
    let request = |text: &str| {
        let model = super::common::published("meta-llama__Llama-3.1-8B-Instruct");
        let config = budget(&format!("{text}\n[memory]\nbytes = '60GiB'\n"));
        cacheplan_planner::PlanRequest::of(model).with_budget(config).plan().unwrap()
    };
    let (before, after) = (request(""), request(text));
    for (before, after) in [(&before, &after), (&after, &before)] {
        let changes = before.diff(after).changes;
        assert!(keys.iter().all(|key| changes.iter().any(|change| change.key == *key)), "{changes:?}");
    }
}

#[test]
fn engines_of_two_plans_are_compared_with_their_versions_and_numbers() {
    let request = nemotron_3_nano();
    let predicted = |engine: &str| {
        let request = request.request(&budget("max_seq_len = 8192\n[memory]\nbytes = '24GiB'"));
        request.predict(engine.parse().unwrap()).unwrap()
    };
    let (old, new) = (predicted("vllm@0.11.0"), predicted("vllm@0.33.0"));
    let plan = planned(&request, "");
    let changes = |before, after| plan.diff(&plan).and_engines(before, after).changes;
    let keys = |before, after| changes(before, after).into_iter().map(|change| change.key).collect::<Vec<_>>();
    assert!(keys(Some(&old), Some(&new)).contains(&"version".to_owned()));
    assert!(keys(None, Some(&new)).contains(&"name".to_owned()));
    assert!(keys(Some(&new), Some(&new)).is_empty() && keys(None, None).is_empty());
    let mut more = new.clone();
    more.num_blocks = more.num_blocks.map(|blocks| blocks + 1);
    assert_eq!(keys(Some(&new), Some(&more)), ["num_blocks"]);
}

#[test]
fn what_one_side_lacks_is_absent_there() {
    let before = planned(&nemotron_3_nano(), "[memory]\nbytes = '24GiB'");
    let after = planned(&nemotron_3_nano(), "[memory]\nbytes = '24GiB'\ngraphs = '1GiB'");
    let change = &before.diff(&after).changes[0];
    assert_eq!((change.name.as_str(), &change.before, &change.after), ("graphs", &None, &Some(Side::Bytes(1 << 30))));
}
