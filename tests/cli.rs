//! The command as its users meet it: exit codes, messages, and the JSON contract.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rstest::rstest;
use serde_json::Value;

const NANO: &str = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/configs").join(name)
}

fn cacheplan<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

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
fn the_table_is_at_most_100_columns_wide_and_says_owner_and_reason(#[case] name: &str) {
    let output = cacheplan(&["plan".as_ref(), config(name).as_os_str()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for line in table.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    assert!(table.contains("kv_cache_manager"), "{table}");
    assert!(table.contains("layers 0") || table.contains("layers 5"), "{table}");
}

#[test]
fn the_graph_prints_as_dot_with_its_caches() {
    let output = cacheplan(&["plan".as_ref(), config(NANO).as_os_str(), "--format".as_ref(), "dot".as_ref()]);
    let dot = String::from_utf8(output.stdout).unwrap();
    assert!(dot.starts_with("digraph"), "{dot}");
    assert_eq!(dot.matches("shape=cylinder").count(), 52);
}

#[test]
fn first_reference_leaves_what_does_not_match_local() {
    let plan = plan_json("google__gemma-4-26B-A4B.json", "grouping = 'first-reference'\nmax_seq_len = 8192");
    assert!(plan["totals"]["unmanaged_bytes"].as_u64().unwrap() > 0);
    let by_key = plan_json("google__gemma-4-26B-A4B.json", "max_seq_len = 8192");
    assert_eq!(by_key["totals"]["unmanaged_bytes"], 0);
}

/// A model file that is `text`, or the fixture with `find` replaced.
enum Model {
    Missing,
    Text(&'static str),
    Truncated,
    Edited(&'static str, &'static str),
    Good,
}

#[rstest]
#[case::missing_file(Model::Missing, "", 1, "No such file")]
#[case::truncated_json(Model::Truncated, "", 1, "not valid JSON")]
#[case::no_object(Model::Text("[]"), "", 1, "config.json")]
#[case::unknown_model_type(Model::Text(r#"{"model_type": "lama"}"#), "", 4, "llama")]
#[case::negative_dim(Model::Edited("\"head_dim\": 128", "\"head_dim\": -128"), "", 1, "head_dim")]
#[case::zero_dim(Model::Edited("\"head_dim\": 128", "\"head_dim\": 0"), "", 1, "head_dim")]
#[case::absurd_dim(Model::Edited("\"head_dim\": 128", "\"head_dim\": 1e30"), "", 1, "head_dim")]
#[case::budget_too_small(Model::Good, "[memory]\nbytes = '1MiB'", 3, "short")]
#[case::unknown_key(Model::Good, "max_seq_length = 4096", 1, "max_seq_len")]
#[case::bad_size(Model::Good, "[memory]\nbytes = '24 bananas'", 1, "24 bananas")]
#[case::no_base(Model::Good, "[memory]\nfraction = 0.9", 1, "of")]
fn bad_input_is_a_clear_error_with_its_exit_code(
    #[case] model: Model,
    #[case] budget: &str,
    #[case] code: i32,
    #[case] says: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let good = std::fs::read_to_string(config(NANO)).unwrap();
    match model {
        Model::Missing => {}
        Model::Text(text) => std::fs::write(&file, text).unwrap(),
        Model::Truncated => std::fs::write(&file, &good[..good.len() / 2]).unwrap(),
        Model::Edited(find, replace) => {
            assert!(good.contains(find));
            std::fs::write(&file, good.replace(find, replace)).unwrap();
        }
        Model::Good => std::fs::write(&file, good).unwrap(),
    }
    let budget_file = folder.path().join("budget.toml");
    std::fs::write(&budget_file, budget).unwrap();
    let output = cacheplan(&["plan".as_ref(), file.as_os_str(), "--budget".as_ref(), budget_file.as_os_str()]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.contains(says), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert!(output.stdout.is_empty());
}

#[rstest]
#[case(&["plan"])]
#[case(&["plan", "x", "--format", "xml"])]
#[case(&["fly"])]
fn wrong_usage_exits_with_2(#[case] args: &[&str]) {
    assert_eq!(cacheplan(args).status.code(), Some(2));
}
