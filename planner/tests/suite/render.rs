//! A plan's formats hold what the plan holds, and hostile names stay text.

use cacheplan_planner::error::Suggestion;
use cacheplan_planner::{ByteSize, CachePlan, PlanRequest};
use cacheplan_transforms::WeightBytes;
use rstest::rstest;

use super::common::{Model, budget, kv, nemotron_3_nano, published};

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
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("840.00 MiB at 32768 tokens: 20.00 KiB per token + 200.00 MiB in full windows"), "{table}");
}

/// What one more sequence takes of the pools is what the line says that a sequence takes.
#[rstest]
#[case("meta-llama__Llama-3.1-8B-Instruct", "", "128.00 KiB per token")]
#[case("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "", "6.00 KiB per token + 46.81 MiB of states")]
#[case(
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "[workload]\ncheckpoints_per_sequence = 2",
    "6.00 KiB per token + 140.43 MiB of states"
)]
fn a_sequence_costs_what_one_more_takes_of_the_pools(#[case] model: &str, #[case] more: &str, #[case] terms: &str) {
    let plan = |sequences: u64| {
        let budget = budget(&format!("max_seq_len = 8192\nmax_batch_size = {sequences}\n{more}"));
        PlanRequest::of(published(model)).with_budget(budget).plan().unwrap()
    };
    let (less, plan) = (plan(4), plan(5));
    let each = ByteSize(plan.totals.managed_bytes - less.totals.managed_bytes);
    let line = format!("SEQUENCE  {each} at 8192 tokens: {terms}\n");
    assert!(plan.table().contains(&line), "{line}{}", plan.table());
}

/// A window that is full grows no more, one that no sequence fills is as any attention.
#[rstest]
#[case(512, "1.00 KiB per token\n")]
#[case(32_768, "512.00 KiB in full windows\n")]
fn a_full_window_costs_no_tokens(#[case] longest: u64, #[case] terms: &str) {
    let model = Model::new("windowed", 1).with("kv", 0, kv(4, 64).with_window(512).unwrap());
    let table = model.request(&budget(&format!("max_seq_len = {longest}"))).plan().unwrap().table();
    assert!(table.contains(terms), "{table}");
}

#[test]
fn knobs_are_as_wide_as_the_table_and_count_one_sequence_as_one() {
    let knob = |change: &str, sequences: u64| Suggestion { change: change.to_owned(), sequences, bytes: 0 };
    let long = "--device-memory 8xrtx-pro-6000 --tp 8 --pp 1 --dp 1 --ep 8 --dcp 2";
    let table = Suggestion::table(&[knob("--pp 2", 1), knob(long, 20)]);
    let lines = [
        "KNOBS     --pp 2 would admit 1 sequence",
        &format!("          {long}"),
        "            would admit 20 sequences",
    ];
    assert_eq!(table.lines().collect::<Vec<_>>(), lines);
    assert_eq!(Suggestion::table(&[]), "");
}
