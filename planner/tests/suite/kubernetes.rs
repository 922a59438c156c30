//! Files for a cluster are what it takes: every export of the zoo for Dynamo and llm-d is held to the schemas under
//! `tests/fixtures/kubernetes`, whose README says where they come from.

use std::path::Path;

use cacheplan_planner::{Parallel, PlanRequest, Serving, Target};
use rstest::rstest;
use serde_json::{Map, Value, json};

use super::oracle_exports::{fitting, models, twenty_gib};
use super::oracles::zoo;

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/kubernetes").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn deployment() -> Value {
    schema("deployment.json")
}

/// A component's pods are Kubernetes' own.
fn dynamo_graph_deployment() -> Value {
    let (mut own, mut kubernetes) = (schema("dynamo_graph_deployment.json"), deployment());
    own["$defs"].as_object_mut().unwrap().append(kubernetes["$defs"].as_object_mut().unwrap());
    own
}

/// What of `value` is not as `schema` says, as a path and a reason. A keyword that is not known here is a panic, so that
/// nothing of a schema is passed over.
fn refused(value: &Value, schema: &Value, root: &Value) -> Vec<String> {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let mut faults = Vec::new();
    let mut within = |at: &str, inner: &Value, schema: &Value| {
        faults.extend(refused(inner, schema, root).into_iter().map(|fault| format!("/{at}{fault}")));
    };
    for (key, inner) in value.as_object().unwrap_or(&none) {
        match (properties.get(key), &schema["additionalProperties"]) {
            (Some(own), _) => within(key, inner, own),
            (None, other @ Value::Object(_)) => within(key, inner, other),
            (None, Value::Bool(false)) => within(key, inner, &json!({ "unknown": true })),
            (None, _) => {}
        }
    }
    for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
        schema.get("items").into_iter().for_each(|items| within(&index.to_string(), inner, items));
    }
    for (keyword, says) in schema.as_object().unwrap() {
        let listed = || says.as_array().unwrap().iter();
        let is = |kind: &Value| match kind.as_str().unwrap() {
            "null" => value.is_null(),
            "string" => value.is_string(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("unknown type {other}"),
        };
        let holds = match keyword.as_str() {
            "properties" | "additionalProperties" | "items" | "$defs" => true,
            "unknown" => false,
            "$ref" => {
                let named = root.pointer(says.as_str().unwrap().trim_start_matches('#')).unwrap();
                faults.extend(refused(value, named, root));
                true
            }
            "type" if says.is_array() => listed().any(is),
            "type" => is(says),
            "enum" => listed().any(|one| one == value),
            "oneOf" => listed().filter(|one| refused(value, one, root).is_empty()).count() == 1,
            "required" => listed().all(|key| value.get(key.as_str().unwrap()).is_some()),
            "minimum" => value.as_f64() >= says.as_f64(),
            "minLength" => value.as_str().map(|text| text.chars().count() as u64) >= says.as_u64(),
            "maxLength" => value.as_str().map(|text| text.chars().count() as u64) <= says.as_u64(),
            "maxItems" => value.as_array().map(|list| list.len() as u64) <= says.as_u64(),
            other => panic!("unknown keyword {other}"),
        };
        if !holds {
            faults.push(format!(": {keyword} is {says}, found {value:.80}"));
        }
    }
    faults
}

/// The documents of every model of the zoo that fits, on one GPU and on two.
fn documents(target: &str) -> Vec<(String, Value)> {
    let target: Target = target.parse().unwrap();
    let mut documents = Vec::new();
    for name in models() {
        let (mut model, told) = (zoo(&name), twenty_gib());
        let resources = model.graph.collect(&told.pass_context(&model.info)).unwrap().resources;
        let Some(plan) =
            fitting(PlanRequest::of((model.info.clone(), resources.clone())).with_budget(told.clone()).plan())
        else {
            continue;
        };
        for tp in [1, 2] {
            let parallel = Some(Parallel { tp, ..Parallel::default() });
            let serving = Serving { model: Some("a/model".into()), parallel, host_bytes: Some(1 << 30) };
            // What an engine has no words for is another test's.
            let Ok(export) = plan.export(target, None, &serving) else { continue };
            documents.push((format!("{name}, tp {tp}"), serde_yaml_ng::from_str(&export.text).unwrap()));
        }
    }
    assert!(documents.len() > 90, "{} files for {target}", documents.len());
    documents
}

#[rstest]
#[case("dynamo")]
#[case("dynamo-sglang")]
#[case("dynamo-tensorrt-llm")]
fn every_file_of_the_zoo_for_dynamo_is_one_to_its_schema(#[case] target: &str) {
    let schema = dynamo_graph_deployment();
    for (name, document) in documents(target) {
        let faults = refused(&document, &schema, &schema);
        assert!(faults.is_empty(), "{name}: {faults:#?}");
        for component in document["spec"]["components"].as_array().unwrap() {
            let main = &component["podTemplate"]["spec"]["containers"][0];
            assert_eq!(main["name"], "main", "{name}");
            assert!(main["image"].as_str().is_some_and(|image| image.contains(":1.")), "{name}: {main}");
        }
    }
}

/// A patch leaves out what its base has: the labels by which a Deployment knows its pods.
#[test]
fn every_file_of_the_zoo_for_llm_d_patches_a_deployment_into_one() {
    let schema = deployment();
    for (name, mut document) in documents("llm-d") {
        assert_eq!(document["metadata"]["name"], "decode");
        let labels = json!({ "matchLabels": { "llm-d.ai/role": "decode" } });
        document["spec"].as_object_mut().unwrap().insert("selector".into(), labels);
        let faults = refused(&document, &schema, &schema);
        assert!(faults.is_empty(), "{name}: {faults:#?}");
        let containers = &document["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers.as_array().unwrap().len(), 1);
        assert_eq!(containers[0]["name"], "modelserver");
    }
}

#[rstest]
#[case("/spec/backendFramework", json!("llama.cpp"), "/spec/backendFramework: enum")]
#[case("/spec/components/0/replicas", json!("1"), "/spec/components/0/replicas: type")]
#[case("/spec/components/0/replicas", json!(-1), "/spec/components/0/replicas: minimum")]
#[case("/spec/components/1/name", json!(""), "/spec/components/1/name: minLength")]
#[case("/spec/components/1/type", json!("main"), "/spec/components/1/type: enum")]
#[case("/spec/components/1/podTemplate/spec/containers/0", json!({}), "/spec/components/1/podTemplate/spec/containers/0: required")]
#[case("/spec/components/1/podTemplate/spec/containers/0/args/0", json!(1), "/spec/components/1/podTemplate/spec/containers/0/args/0: type")]
#[case("/spec/components/1/podTemplate/spec/containers/0/resources/limits", json!({ "nvidia.com/gpu": [] }), "/spec/components/1/podTemplate/spec/containers/0/resources/limits/nvidia.com/gpu: oneOf")]
#[case("/spec/components/1/podTemplate", json!({ "extra": 1 }), "/spec/components/1/podTemplate/extra: unknown")]
fn a_file_that_is_not_as_the_schema_says_is_refused(#[case] path: &str, #[case] value: Value, #[case] fault: &str) {
    let schema = dynamo_graph_deployment();
    let (_, mut document) = documents("dynamo").swap_remove(0);
    *document.pointer_mut(path).unwrap() = value;
    let faults = refused(&document, &schema, &schema);
    assert!(faults.iter().any(|found| found.starts_with(fault)), "{fault} is not in {faults:#?}");
}
