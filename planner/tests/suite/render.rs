//! A plan's formats hold what the plan holds, and hostile names stay text.

use cacheplan_planner::CachePlan;
use cacheplan_transforms::WeightBytes;
use rstest::rstest;

use super::common::{Model, budget, kv, nemotron_3_nano};

fn nemotron() -> CachePlan {
    let mut model = nemotron_3_nano();
    model.info.weights = Some(WeightBytes::new(63_000_000_000, true));
    let budget = budget("max_seq_len = 8192\n[memory]\nbytes = '24GiB'\ngraphs = '64MiB'");
    model.request(&budget).plan().unwrap()
}

/// Names that end strings, cells and tags if nobody stops them.
fn hostile() -> CachePlan {
    let model = Model::new("a<b>|\"&'\n- x: y", 1).with("kv", 0, kv(8, 64));
    model.request(&budget("")).plan().unwrap()
}

/// Every number of a format that stands between non-letters.
fn holds(text: &str, number: u64) -> bool {
    text.split(|letter: char| !letter.is_ascii_digit()).any(|word| word == number.to_string())
}

#[rstest]
#[case::yaml(CachePlan::yaml)]
#[case::markdown(CachePlan::markdown)]
#[case::svg(CachePlan::svg)]
fn every_line_of_the_ledger_is_there_with_its_bytes(#[case] format: fn(&CachePlan) -> String) {
    let plan = nemotron();
    let text = format(&plan);
    for line in &plan.ledger {
        assert!(text.contains(line.name.name()) && holds(&text, line.bytes), "{} {}\n{text}", line.name, line.bytes);
    }
}

#[rstest]
#[case(nemotron())]
#[case(hostile())]
fn yaml_reads_as_the_json(#[case] plan: CachePlan) {
    let read: serde_json::Value = serde_yaml_ng::from_str(&plan.yaml()).unwrap();
    assert_eq!(read, serde_json::to_value(&plan).unwrap());
}

#[test]
fn formats_of_nemotron_3_nano() {
    let plan = nemotron();
    insta::assert_snapshot!("markdown_of_nemotron_3_nano", plan.markdown());
    insta::assert_snapshot!("svg_of_nemotron_3_nano", plan.svg());
}

#[test]
fn hostile_names_stay_text() {
    let plan = hostile();
    let (svg, markdown, yaml) = (plan.svg(), plan.markdown(), plan.yaml());
    assert!(svg.contains("a&lt;b&gt;|&quot;&amp;'"), "{svg}");
    assert!(markdown.starts_with("# Cache plan of a&lt;b>\\|\"&'\\u000a- x: y ("), "{markdown}");
    assert!(yaml.contains("  type: \"a<b>|\\\"&'\\n- x: y\"\n"), "{yaml}");
}

/// 25 layers of 8 KiB a token stop at 1,024 tokens, 5 of 4 KiB go on.
#[test]
fn totals_tell_what_grows_for_ever_from_what_windows_hold() {
    let budget = super::common::budget("max_seq_len = 32768\n[memory]\nbytes = '8GiB'");
    let model = super::common::published("google__gemma-4-26B-A4B");
    let table = cacheplan_planner::PlanRequest::of(model).with_budget(budget).plan().unwrap().table();
    assert!(table.contains("20.00 KiB per token, 200.00 MiB in full windows and 0 B of states"), "{table}");
}
