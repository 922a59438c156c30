//! Changing any one leaf of a plan is found by its model and budget, names and sentences apart.

use std::collections::BTreeMap;

use cacheplan_planner::{CachePlan, Config, DeviceInfo, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;
use serde_json::{Value, json};

/// What nothing follows from: names and sentences for people, versions, and where a tensor was read.
const FREE: [&str; 7] = ["reason", "note", "node", "tool_version", "version", "revision", "provenance"];

fn is_free(place: &str) -> bool {
    place == "/model/name" || place.split('/').any(|part| FREE.contains(&part))
}

/// Places of leaves, and of each key the texts that stand under it.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>, words: &mut BTreeMap<String, Vec<Value>>) {
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| leaves(item, &format!("{at}/{index}"), found, words));
        }
        Value::Object(map) => map.iter().for_each(|(key, item)| leaves(item, &format!("{at}/{key}"), found, words)),
        leaf => {
            found.push(at.to_owned());
            if leaf.is_string() {
                words.entry(key(at).to_owned()).or_default().push(leaf.clone());
            }
        }
    }
}

/// The last key of a place.
fn key(place: &str) -> &str {
    place.rsplit('/').find(|part| part.parse::<u32>().is_err()).unwrap_or_default()
}

/// The same for all items of a list.
fn alike(place: &str) -> String {
    place.split('/').map(|part| if part.parse::<u32>().is_ok() { "*" } else { part }).collect::<Vec<_>>().join("/")
}

/// Values of which each is another one, and could stand there.
fn others(value: &Value, key: &str, words: &BTreeMap<String, Vec<Value>>) -> Vec<Value> {
    let of_kind: &[&str] = match key {
        "source" => &["exact", "assumed", "measured"],
        "split" => &["whole", "heads", "kv_heads"],
        "dtype" => &["bf16", "f32", "f8_e4m3"],
        "unit" => &["block", "slot"],
        "capped_by" => &["memory", "max_batch_size"],
        _ => &[],
    };
    let all: Vec<Value> = match value {
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or(0);
            vec![json!(number + 1), json!(number.saturating_sub(1))]
        }
        Value::String(_) => {
            words.get(key).into_iter().flatten().cloned().chain(of_kind.iter().map(|of| json!(of))).collect()
        }
        Value::Bool(set) => vec![json!(!set)],
        _ => vec![json!(1)],
    };
    let mut distinct: Vec<Value> = Vec::new();
    all.into_iter().filter(|other| other != value).for_each(|other| {
        if !distinct.contains(&other) && distinct.len() < 4 {
            distinct.push(other);
        }
    });
    distinct
}

#[rstest]
#[case::states_and_checkpoints(
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "h100",
    Some("vllm"),
    "[workload]\ncheckpoints_per_sequence = 2\ncheckpoint_dtype = 'int8'\n[host]\nbytes = '64GiB'"
)]
#[case::windows_and_drafts(
    "google__gemma-3-1b-it",
    "h100",
    Some("sglang"),
    "[memory]\nfraction = 0.9\nof = 'total'\nweights = '2GiB'\n[speculation]\ndraft_tokens = 3\n[workload]\nprompt = { fixed = 300 }\noutput = { fixed = 100 }\nprefix_reuse = 0.25"
)]
#[case::experts(
    "deepseek-ai__DeepSeek-V3.2",
    "h200",
    Some("vllm"),
    "[parallel]\ndp = 8\nep = 8\n[speculation]\nmtp_layers = 1\ndraft_tokens = 1"
)]
#[case::compressed(
    "deepseek-ai__DeepSeek-V4-Flash",
    "h200",
    None,
    "[memory]\nfraction = 0.9\nof = 'total'\nweights = '150GiB'\n[parallel]\ntp = 4"
)]
#[case::a_stage(
    "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "h200",
    Some("tensorrt-llm"),
    "[parallel]\ntp = 2\npp = 2\n[speculation]\ndraft_tokens = 2\nscheme = 'replay'"
)]
#[case::plain("Qwen__Qwen3-8B", "h100", None, "max_batch_size = 8")]
#[case::ranks_of_heads("meta-llama__Llama-3.1-8B-Instruct", "h100", None, "[parallel]\ntp = 16\ndcp = 2")]
#[case::margin(
    "Qwen__Qwen3.5-9B",
    "l40s",
    Some("sglang"),
    "[memory]\nfraction = 0.9\nof = 'total'\nsafe = true\nweights = '18GiB'"
)]
#[case::latents("deepseek-ai__DeepSeek-R1", "h200", Some("sglang"), "[parallel]\ntp = 8")]
#[case::channels_of_heads("moonshotai__Kimi-Linear-48B-A3B-Instruct", "h200", None, "[parallel]\ntp = 2")]
fn a_changed_leaf_is_found(
    #[case] model: &str,
    #[case] device: &str,
    #[case] engine: Option<&str>,
    #[case] budget: &str,
) {
    let path = format!("{}/../tests/fixtures/configs/{model}.json", env!("CARGO_MANIFEST_DIR"));
    let model = Model::read(path.as_ref(), &ReadOptions::default()).unwrap();
    let device: DeviceInfo = device.parse().unwrap();
    let config = Config::resolve_on(Some(&device), Some((budget, "budget")), &[], &[]).unwrap();
    let request = PlanRequest::of(model).with_config(config).with_devices(device);
    let request = engine.into_iter().fold(request, |request, engine| request.for_engine(engine.parse().unwrap()));
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    let original = serde_json::to_value(&plan).unwrap();
    let (mut all, mut words) = (Vec::new(), BTreeMap::new());
    leaves(&original, "", &mut all, &mut words);
    let mut tried: BTreeMap<String, u32> = BTreeMap::new();
    let mut unfound = Vec::new();
    // Two of each sort; the others are like them.
    for place in all.iter().filter(|place| !is_free(place)) {
        let seen = tried.entry(alike(place)).or_default();
        *seen += 1;
        if *seen > 2 {
            continue;
        }
        for other in others(original.pointer(place).unwrap(), key(place), &words) {
            let mut changed = original.clone();
            *changed.pointer_mut(place).unwrap() = other.clone();
            if serde_json::from_value::<CachePlan>(changed).is_ok_and(|plan| request.check(&plan).is_ok()) {
                unfound.push(format!("{place} -> {other}"));
            }
        }
    }
    assert!(tried.len() > 60, "{} sorts of leaves", tried.len());
    assert!(unfound.is_empty(), "{}", unfound.join("\n"));
}
