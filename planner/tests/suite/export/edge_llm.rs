//! TensorRT-Edge-LLM, whose file has one number for each kind of cache.

use super::*;

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
