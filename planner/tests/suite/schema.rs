//! `planner/schemas/plan.schema.json` describes every plan of the zoo, with an engine's prediction beside it or without.
//!
//! It is what these plans have in common: a key is required where all of them have it. `UPDATE_SCHEMAS=1` rewrites it.

use std::collections::{BTreeMap, BTreeSet};

use cacheplan_planner::{EngineSpec, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions};
use serde_json::{Map, Value, json};

use super::common::budget;

/// Models with every kind of cache, and budgets with every part of a plan.
const MODELS: [&str; 7] = [
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "deepseek-ai__DeepSeek-V4-Flash",
    "openai__gpt-oss-120b",
    "zai-org__GLM-5.2",
    "moonshotai__Kimi-K3",
    "google__gemma-3-1b-it",
    "RWKV__rwkv-4-169m-pile",
];
const BUDGETS: [&str; 6] = [
    "",
    "grouping = 'first-reference'\nmax_batch_size = 2",
    "[memory]\nbytes = '80GiB'\n[host]\nbytes = '8GiB'",
    "[workload]\nprompt = { fixed = 100 }\ncheckpoints_per_sequence = 1\ncheckpoint_dtype = 'int8'\n\
     [speculation]\ndraft_tokens = 2\n[memory]\nbytes = '80GiB'",
    "[parallel]\ntp = 2\ndp = 2\nep = 4\ndcp = 2",
    "[engine]\ncache_bytes = '20GiB'",
];

fn plans() -> Vec<Value> {
    let mut plans = Vec::new();
    for name in MODELS {
        let file = format!("{}/../tests/fixtures/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
        for text in BUDGETS {
            let budget = budget(text);
            let model = Model::read(std::path::Path::new(&file), &ReadOptions::default()).unwrap();
            let request = PlanRequest::of(model).with_budget(budget);
            // A budget that this model has no use for.
            let Ok(plan) = request.plan() else { continue };
            plans.push(serde_json::to_value(&plan).unwrap());
            for engine in ["vllm", "sglang", "tensorrt-llm", "llama.cpp"] {
                if let Ok(engine) = request.predict(engine.parse::<EngineSpec>().unwrap()) {
                    plans.push(serde_json::to_value(engine.beside(&plan)).unwrap());
                }
            }
        }
    }
    // What the models above happen to have, or not to have.
    let mut bare = plans[0].clone();
    bare["model"]["max_position_embeddings"] = Value::Null;
    bare["resources"][0]["layer"] = Value::Null;
    bare["resources"][0]["shared_by"] = json!([1]);
    bare["resources"][0]["drafts"] = json!(true);
    plans.push(bare);
    plans
}

/// What all of `values` are.
fn schema(values: &[&Value]) -> Value {
    let mut types = BTreeSet::new();
    let (mut objects, mut items) = (Vec::new(), Vec::new());
    for value in values {
        types.insert(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_u64() => "integer",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(inside) => {
                items.extend(inside);
                "array"
            }
            Value::Object(object) => {
                objects.push(object);
                "object"
            }
        });
    }
    let mut schema = Map::new();
    let names: Vec<&str> = types.into_iter().collect();
    schema.insert("type".into(), if let [one] = *names { json!(one) } else { json!(names) });
    if !items.is_empty() {
        schema.insert("items".into(), self::schema(&items));
    }
    if !objects.is_empty() {
        let mut inside: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for (key, value) in objects.iter().flat_map(|object| object.iter()) {
            inside.entry(key).or_default().push(value);
        }
        let required: Vec<&str> =
            inside.iter().filter(|(_, found)| found.len() == objects.len()).map(|(key, _)| *key).collect();
        schema.insert("required".into(), json!(required));
        let properties: Map<String, Value> =
            inside.iter().map(|(key, found)| ((*key).to_owned(), self::schema(found))).collect();
        schema.insert("properties".into(), properties.into());
    }
    schema.into()
}

#[test]
fn the_schema_of_plans_is_committed() {
    let plans = plans();
    let mut schema = schema(&plans.iter().collect::<Vec<_>>());
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("cacheplan plan");
    schema["description"] = json!("`cacheplan plan --format json`; `engine` with `--as`. Keys may be added.");
    let text = format!("{schema:#}\n");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/plan.schema.json");
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(file, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(file).unwrap_or_default(), text, "UPDATE_SCHEMAS=1 rewrites it");
    for key in ["host", "engine", "pools", "ledger"] {
        assert!(schema["properties"][key].is_object(), "no plan has `{key}`");
    }
    assert!(schema["properties"]["pools"]["items"]["properties"]["checkpoints_of"].is_object());
}
