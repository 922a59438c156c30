//! TensorRT-Edge-LLM, whose file has one number for each kind of cache.

use super::super::zoo;
use super::*;
use cacheplan_handlers::Growth;
use cacheplan_transforms::{Model as Config, PassContext, ReadOptions};

#[test]
fn edge_llm_gets_one_entry_per_layer_with_a_cache() {
    let config = arguments(target("edge-llm"), &newest(&half_hybrid(), target("edge-llm")));
    assert_eq!(config["model_type"], "hybrid_mamba");
    let types: Vec<&str> = strings(&config["layer_types"]).collect();
    let configs = config["kv_layer_configs"].as_array().unwrap();
    assert_eq!((types.len(), configs.len()), (29, 29));
    for (kind, config) in types.iter().zip(configs) {
        assert_eq!(*kind == "mamba", config.is_null());
    }
    assert_eq!((&types[..4], types[28]), (&["mamba", "mamba", "mamba", "attention"][..], "mamba"));
    assert_eq!(configs[3], serde_json::json!({ "num_kv_heads": 2, "head_dim": 128 }));
    assert_eq!((&config["conv_dim"], &config["conv_kernel"]), (&6144.into(), &4.into()));
    assert_eq!(config["recurrent_state_size"], 128);
    assert_eq!(config["recurrent_state_dtype"], "fp32");
}

#[rstest]
#[case(Model::new("m", 1).with("x", 0, ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap()), "`x_0` is mla_paged")]
#[case(
    Model::new("m", 2)
        .with("a", 0, ResourceHandler::ssm(8, 64, 128, DType::F32).unwrap())
        .with("b", 1, ResourceHandler::ssm(8, 64, 64, DType::F32).unwrap()),
    "its states have several shapes"
)]
#[case(
    Model::new("m", 1).with("kv", 0, kv(8, 64)).with("s", 0, ResourceHandler::ssm(8, 64, 64, DType::F32).unwrap()),
    "the layer of `kv_0` has a state as well"
)]
#[case(
    Model::new("m", 2).with("kv", 0, kv(8, 64)).with("c", 1, ResourceHandler::causal_conv(64, 3, Vec::new(), DType::Bf16).unwrap()),
    "`c_1` is in a layer without a recurrent state"
)]
#[case(
    Model::new("m", 2)
        .with("s", 0, ResourceHandler::ssm(8, 64, 64, DType::F32).unwrap())
        .with("c", 0, ResourceHandler::causal_conv(64, 3, Vec::new(), DType::Bf16).unwrap())
        .with("s", 1, ResourceHandler::ssm(8, 64, 64, DType::F32).unwrap()),
    "its states have none, one or several convolutions"
)]
#[case(
    Model::new("m", 1).with("kv", 0, ResourceHandler::kv_paged(8, 64, DType::Nvfp4).unwrap()),
    "`kv_cache_dtype` takes one of"
)]
fn edge_llm_refuses_what_one_number_cannot_say(#[case] model: Model, #[case] expected: &str) {
    let plan = model.request(&budget("")).plan().unwrap();
    match plan.export(target("edge-llm"), None, &serving()) {
        Err(ExportError::Unsupported { what, .. }) => assert!(what.starts_with(expected), "{what}"),
        other => panic!("{other:?}"),
    }
}

/// What a cache is, but for its window, which the file has no key for.
fn essence<'a>(handlers: impl Iterator<Item = &'a ResourceHandler>) -> Vec<String> {
    let of = |handler: &ResourceHandler| {
        let sizes: Vec<u64> = handler.shape().iter().map(|dim| dim.size).collect();
        let growth = match handler.growth() {
            Growth::Paged { stride, .. } => Growth::Paged { stride, window: None },
            other => other,
        };
        format!("{} {sizes:?} {} {growth:?}", handler.kind(), handler.dtype())
    };
    let mut all: Vec<String> = handlers.map(of).collect();
    all.sort();
    all
}

/// The file has all caches of the plan, once the model's other keys are merged as its note asks, or there is none.
#[rstest]
#[case("")]
#[case("[dtypes]\nkv = 'fp8'")]
#[case("[dtypes]\nssm = 'bf16'")]
#[case("[dtypes]\nconv = 'f32'")]
fn every_hybrid_that_edge_llm_is_told_of_is_read_back(#[case] dtypes: &str) {
    let mut read = 0;
    for (name, model) in zoo::models() {
        let budget = budget(&format!("max_seq_len = 8192\nmax_batch_size = 5\n{dtypes}"));
        let Ok(plan) = PlanRequest::of(model).with_budget(budget).plan() else { continue };
        let Ok(export) = plan.export(target("edge-llm"), None, &serving()) else { continue };
        let mut config: Value = serde_json::from_str(&export.text).unwrap();
        if config["model_type"] != "hybrid_mamba" {
            continue;
        }
        (config["hidden_size"], config["vocab_size"]) = (4096.into(), 1000.into());
        let back = Config::read_config("config.json", &config.to_string(), &ReadOptions::default());
        let mut back = back.unwrap_or_else(|error| panic!("{name}: {error}"));
        let resources = back.graph.collect(&PassContext::default()).unwrap().resources;
        let planned = essence(plan.resources.iter().map(|resource| &resource.handler));
        assert_eq!(essence(resources.iter().map(|resource| &resource.handler)), planned, "{name}");
        read += 1;
    }
    assert!(read >= 8, "{read} hybrids");
}
