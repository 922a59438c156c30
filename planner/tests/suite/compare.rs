//! Our plan beside the engines'.

use cacheplan_planner::{Comparison, Engine, EngineSpec, Objective};

use rstest::rstest;

use super::common::{Model, budget, kv, nemotron_3_nano};

const CHAT: &str = "max_seq_len = 8192\n[workload]\nprompt = { fixed = 300 }\noutput = { fixed = 200 }\n";

#[test]
fn every_engine_has_a_row_and_the_table_is_at_most_100_columns_wide() {
    let model = nemotron_3_nano();
    let budget = budget(&format!("{CHAT}[memory]\nbytes = '24GiB'"));
    let rows: Vec<_> =
        Engine::all().iter().map(|&engine| model.request(&budget).compare(EngineSpec::from(engine)).unwrap()).collect();
    for row in &rows {
        assert_eq!(row.bytes, 24 << 30);
        assert!(row.sequences >= row.engine_sequences, "{row:?}");
        assert!(row.wasted_bytes <= row.engine_wasted_bytes, "{row:?}");
    }
    let table = Comparison::table(&rows);
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    insta::assert_snapshot!(table);
}

#[test]
fn a_prediction_prints_within_100_columns() {
    let model = nemotron_3_nano();
    let budget = budget(&format!("{CHAT}[engine]\ncache_bytes = '24GiB'"));
    let tables: Vec<String> =
        Engine::all().iter().map(|&engine| model.request(&budget).predict(engine.into()).unwrap().table()).collect();
    let text = tables.join("\n");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_budget_too_small_for_one_sequence_compares_as_none() {
    let model = nemotron_3_nano();
    let budget = budget(&format!("{CHAT}[memory]\nbytes = '50MiB'"));
    let row = model.request(&budget).compare("vllm".parse().unwrap()).unwrap();
    assert_eq!((row.sequences, row.engine_sequences), (0, 0));
}

#[test]
fn a_comparison_without_bytes_is_an_error() {
    let model = nemotron_3_nano();
    let error = model.request(&budget(CHAT)).compare("vllm".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("needs bytes"), "{error}");
}

#[test]
fn the_most_tokens_at_a_given_concurrency_fill_the_bytes() {
    let model = nemotron_3_nano();
    let mut budget = budget("max_seq_len = 8192\nmax_batch_size = 4\n[memory]\nbytes = '8GiB'");
    let fixed = model.request(&budget).plan().unwrap();
    budget.maximize = Some(Objective::Tokens);
    let filled = model.request(&budget).plan().unwrap();
    assert_eq!((fixed.capacity.sequences, filled.capacity.sequences), (4, 4));
    assert_eq!(fixed.capacity.tokens, Some(4 * 8192));
    // 8 GiB less 5 slots, in blocks of 16 tokens, block 0 of which is padding.
    let blocks = ((8u64 << 30) - 5 * 49_082_368) / (16 * 6_144);
    assert_eq!(filled.capacity.tokens, Some((blocks - 1) * 16));
}

/// A layer that reads another's cache costs SGLang a cache of its own (gemma-4 E4B), vLLM nothing.
#[rstest]
#[case("sglang", 2)]
#[case("vllm", 1)]
fn shared_keys_and_values(#[case] engine: &str, #[case] caches: u64) {
    let mut model = Model::new("m", 2).with("kv", 0, kv(8, 128));
    let mut shared = model.resources.get("kv_0").unwrap().clone();
    shared.shared_by = vec![1];
    model.resources = cacheplan_transforms::Resources::default();
    model.resources.push(shared).unwrap();
    let budget = budget("max_seq_len = 1024\n[engine]\ncache_bytes = '1GiB'");
    let prediction = model.request(&budget).predict(engine.parse().unwrap()).unwrap();
    assert_eq!(prediction.tokens, Some((1 << 30) / 4096 / caches));
}

#[test]
fn context_parallel_ranks_multiply_the_tokens_that_vllm_reports() {
    let model = nemotron_3_nano();
    let at = |version: &str, cp: u32| {
        let text = format!("max_seq_len = 262144\n[parallel]\ncp = {cp}\n[engine]\ncache_bytes = '24GiB'");
        let engine: EngineSpec = version.parse().unwrap();
        model.request(&budget(&text)).predict(engine).unwrap().tokens.unwrap()
    };
    assert_eq!(at("vllm@0.19.0", 2), 2 * at("vllm@0.19.0", 1));
    assert!(at("vllm@0.33.0", 2) > at("vllm@0.33.0", 1) * 19 / 10);
}
