//! Whatever is changed in a plan, the checker finds it.

use cacheplan_handlers::{DType, HandlerError, ResourceHandler};
use cacheplan_transforms::{ModelInfo, Resource, Resources, WeightBytes};
use rstest::rstest;
use serde_json::Value;

use crate::budget::Budget;
use crate::device::DeviceInfo;
use crate::plan_file::PlanFields;
use crate::request::PlanRequest;

/// Every kind of pool at once: full and windowed pages, states, twins, unpaged tokens.
fn mixed() -> (ModelInfo, Resources) {
    let model = ModelInfo {
        name: None,
        model_type: "mixed".into(),
        layers: 6,
        dtype: DType::Bf16,
        max_position_embeddings: Some(262_144),
        weights: Some(WeightBytes::new(1 << 30, true)),
        fingerprint: "mixed".into(),
        revision: None,
        step_tokens: None,
    };
    let handlers: [(u32, Result<ResourceHandler, HandlerError>); 7] = [
        (0, ResourceHandler::kv_paged(8, 64, DType::Bf16)),
        (1, ResourceHandler::kv_paged(2, 64, DType::Bf16).and_then(|kv| kv.with_window(256))),
        (2, ResourceHandler::mla_paged(512, 64, DType::F8E4m3)),
        (3, ResourceHandler::ssm(4, 64, 16, DType::F32)),
        (3, ResourceHandler::causal_conv(320, 4, vec![256, 32, 32], DType::Bf16)),
        (4, ResourceHandler::ssm(8, 64, 16, DType::F32)),
        (5, ResourceHandler::unpaged(&[3], DType::Int32)),
    ];
    let resource = |(at, (layer, handler)): (usize, (u32, Result<ResourceHandler, HandlerError>))| Resource {
        name: format!("cache_{at}"),
        layer: Some(layer),
        handler: handler.unwrap(),
        node: format!("layers.{layer}.mixer"),
        provenance: Vec::new(),
        shared_by: Vec::new(),
    };
    let resources: Vec<Resource> = handlers.into_iter().enumerate().map(resource).collect();
    (model, Resources::try_from(resources).unwrap())
}

const BUDGET: &str = "
    max_seq_len = 2048
    max_num_tokens = 512
    [memory]
    fraction = 0.8
    of = 'free'
    reserve = '64MiB'
    [workload]
    prompt = { lognormal = { median = 300, sigma = 0.5 } }
    output = { fixed = 200 }
    checkpoints_per_sequence = 2
    prefix_reuse = 0.25
    [speculation]
    draft_tokens = 3
";

/// [`BUDGET`] with checkpoints apart and a host tier.
const TIERED: &str = "
    max_seq_len = 2048
    max_num_tokens = 512
    [memory]
    bytes = '1GiB'
    [workload]
    prompt = { fixed = 300 }
    output = { fixed = 200 }
    checkpoints_per_sequence = 2
    checkpoint_dtype = 'int8'
    [host]
    bytes = '256MiB'
    [speculation]
    draft_tokens = 3
";

/// Four ranks, two of which serve the same sequences.
const DIVIDED: &str = "
    max_seq_len = 2048
    [memory]
    bytes = '1GiB'
    [parallel]
    tp = 2
    dp = 2
";

#[rstest]
fn changing_any_single_number_of_the_json_is_found(#[values(BUDGET, TIERED, DIVIDED)] text: &str) {
    let budget = Budget::from_toml(text, "budget.toml").unwrap();
    let request =
        PlanRequest::of(mixed()).with_budget(budget).with_devices(DeviceInfo::cuda("gpu", 24 << 30, 22 << 30));
    let json = serde_json::to_value(request.plan().unwrap()).unwrap();
    let numbers = numbers(&json, &mut String::new());
    assert!(numbers.len() > 150, "{} numbers", numbers.len());
    for pointer in numbers {
        let original = json.pointer(&pointer).and_then(Value::as_u64).unwrap();
        for changed in [original + 1, original.saturating_sub(1), original * 2 + 7] {
            if changed == original {
                continue;
            }
            let mut corrupt = json.clone();
            *corrupt.pointer_mut(&pointer).unwrap() = changed.into();
            // A shape that no handler can have is refused on reading, which is found as well.
            if let Ok(plan) = PlanFields::deserialize(corrupt) {
                assert!(request.check(&plan).is_err(), "{pointer}: {original} -> {changed} was not found");
            }
        }
    }
}

/// JSON pointers of all numbers.
fn numbers(value: &Value, at: &mut String) -> Vec<String> {
    let children: Vec<(String, &Value)> = match value {
        Value::Number(_) => return vec![at.clone()],
        Value::Array(items) => items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect(),
        Value::Object(map) => map.iter().map(|(key, item)| (key.clone(), item)).collect(),
        _ => Vec::new(),
    };
    children.into_iter().flat_map(|(key, item)| numbers(item, &mut format!("{at}/{key}"))).collect()
}
