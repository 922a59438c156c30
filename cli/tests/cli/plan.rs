//! What `plan` prints, in each of its formats.

use std::path::Path;
use std::process::{Command, Stdio};

use rstest::rstest;
use serde_json::Value;

use super::{NANO, cacheplan, config, stderr};

fn plan_json(config_name: &str, budget: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let budget_file = folder.path().join("budget.toml");
    std::fs::write(&budget_file, budget).unwrap();
    let (model, budget) = (config(config_name), budget_file);
    let output = cacheplan(&[
        "plan".as_ref(),
        model.as_os_str(),
        "--budget".as_ref(),
        budget.as_os_str(),
        "--format".as_ref(),
        "json".as_ref(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn nemotron_3_nano_costs_what_its_shapes_say() {
    let plan = plan_json(NANO, "");
    let of_kind = |kind: &str| {
        let resources = plan["resources"].as_array().unwrap().iter();
        resources.filter(|resource| resource["kind"] == kind).cloned().collect::<Vec<_>>()
    };
    assert_eq!(["ssm", "causal_conv", "kv_paged"].map(|kind| of_kind(kind).len()), [23, 23, 6]);
    for resource in plan["resources"].as_array().unwrap() {
        assert!(resource["owner"].as_str().unwrap().ends_with("_cache_manager"), "{resource}");
    }
    let state_bytes = |kind: &str, dtype: &str| -> u64 {
        let resources = of_kind(kind);
        assert!(resources.iter().all(|resource| resource["dtype"] == dtype));
        resources.iter().map(|resource| resource["bytes_per_sequence"].as_u64().unwrap()).sum()
    };
    assert_eq!(state_bytes("ssm", "f32"), 48_234_496);
    assert_eq!(state_bytes("causal_conv", "bf16"), 847_872);
    assert_eq!(plan["totals"]["kv_bytes_per_token"], 6_144);
    assert_eq!(plan["totals"]["state_bytes_per_sequence"], 49_082_368);
    assert_eq!(plan["manager"], "mamba_hybrid_cache_manager");
}

#[test]
fn the_json_has_every_key_of_its_contract() {
    let plan = plan_json(NANO, "");
    let has = |value: &Value, keys: &[&str]| {
        for key in keys {
            assert!(value.get(key).is_some(), "no `{key}` in {value}");
        }
    };
    has(&plan, &["schema_version", "model", "manager", "resources", "pools", "capacity", "totals"]);
    has(&plan["model"], &["type", "layers"]);
    has(&plan["capacity"], &["tokens", "sequences", "capped_by"]);
    has(&plan["totals"], &["kv_bytes_per_token", "state_bytes_per_sequence", "managed_bytes", "unmanaged_bytes"]);
    for resource in plan["resources"].as_array().unwrap() {
        has(
            resource,
            &[
                "name",
                "layer",
                "kind",
                "owner",
                "pool",
                "dtype",
                "bytes_per_token",
                "bytes_per_sequence",
                "bytes_fixed",
                "reason",
                "source",
            ],
        );
    }
    for pool in plan["pools"].as_array().unwrap() {
        has(pool, &["id", "owner", "unit", "unit_bytes", "units", "bytes", "layers"]);
        let (unit_bytes, units) = (pool["unit_bytes"].as_u64().unwrap(), pool["units"].as_u64().unwrap());
        assert_eq!(pool["bytes"].as_u64().unwrap(), unit_bytes * units);
    }
}

#[rstest]
#[case::hybrid(NANO)]
#[case::mla("deepseek-ai__DeepSeek-V3.json")]
#[case::attention("Qwen__Qwen3-8B.json")]
fn the_table_is_at_most_80_columns_wide_and_says_owner_and_reason(#[case] name: &str) {
    let output =
        cacheplan(&["plan", config(name).to_str().unwrap(), "--device", "16xmi355x", "--dp", "2", "--tp", "8"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(table.contains("kv_cache_manager"), "{table}");
    assert!(table.contains("layers 0") || table.contains("layers 5"), "{table}");
}

#[test]
fn the_graph_prints_as_dot_with_its_caches() {
    let output = cacheplan(&["plan".as_ref(), config(NANO).as_os_str(), "--format".as_ref(), "dot".as_ref()]);
    let dot = String::from_utf8(output.stdout).unwrap();
    assert!(dot.starts_with("digraph"), "{dot}");
    // 52 caches of 29 layers, in a pattern that is drawn once.
    let caches = dot.matches("shape=cylinder").count();
    assert!((3..30).contains(&caches) && dot.contains("\"× "), "{caches}\n{dot}");
}

#[test]
fn first_reference_leaves_what_does_not_match_local() {
    let plan = plan_json("google__gemma-4-26B-A4B.json", "grouping = 'first-reference'\nmax_seq_len = 8192");
    assert!(plan["totals"]["unmanaged_bytes"].as_u64().unwrap() > 0);
    let by_key = plan_json("google__gemma-4-26B-A4B.json", "max_seq_len = 8192");
    assert_eq!(by_key["totals"]["unmanaged_bytes"], 0);
}

#[test]
fn a_dash_stands_for_what_is_piped_in() {
    let piped = |args: &[&str], text: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let plan = piped(&["plan", "-", "--format", "json"], &std::fs::read_to_string(config(NANO)).unwrap());
    assert!(piped(&["plan", "check", "-"], &plan).contains("-: 52 resources in 3 pools are consistent"));
    let rows = piped(
        &["simulate", "--trace", "-"],
        "{\"prompt\": [{\"tokens\": [1, 2]}], \"output\": {\"id\": 7, \"len\": 5}}\n",
    );
    assert_eq!(rows.lines().count(), 5, "{rows}");
}

/// The example in the README is what the command prints; `UPDATE_README=1 cargo test --test cli` rewrites it.
#[test]
fn the_readme_shows_a_real_plan() {
    let output = cacheplan(&["plan".as_ref(), config(NANO).as_os_str()]);
    let table = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once("```text\n").unwrap();
    let (shown, after) = rest.split_once("```").unwrap();
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(&path, format!("{before}```text\n{table}```{after}")).unwrap();
    } else {
        assert_eq!(shown, table);
    }
}

#[rstest]
#[case("Qwen__Qwen2.5-7B-Instruct.json", &["--tp", "8"], "1, 2, 4, 28")]
#[case("deepseek-ai__DeepSeek-V3.json", &["--device-memory", "3xb300"], "1, 2")]
#[case("meta-llama__Llama-3.1-8B-Instruct.json", &["--tp", "64"], "1, 2, 4, 8, 16, 32")]
fn ranks_that_do_not_divide_the_query_heads_are_refused_with_those_that_do(
    #[case] name: &str,
    #[case] flags: &[&str],
    #[case] instead: &str,
) {
    let output = cacheplan(&[&["plan", config(name).to_str().unwrap()], flags].concat());
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("query heads") && message.contains(&format!("these do: {instead}")), "{message}");
}
