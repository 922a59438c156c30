//! Latents in the cache modes of Ascend's MLA operator.

use cacheplan_planner::budget::MlaCache;
use cacheplan_planner::{Budget, PlanRequest, Serving};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;

fn deepseek() -> Model {
    let file = format!("{}/../tests/fixtures/configs/deepseek-ai__DeepSeek-V3.json", env!("CARGO_MANIFEST_DIR"));
    Model::read(file.as_ref(), &ReadOptions::default()).unwrap()
}

fn budget_in(mode: &str, more: &str) -> Result<Budget, String> {
    let toml = format!("tokens_per_block = 128\nmax_batch_size = 2\nmla_cache_mode = '{mode}'\n{more}");
    Budget::from_toml(&toml, "test").map_err(|error| error.to_string())
}

/// The operator's own table: 576 elements in one tensor, 512 and 64 in two, in NZ order in columns of 32 bytes.
#[rstest]
#[case("kvcache", &[("mla_paged", [1, 1, 576], "bf16")], 1152)]
#[case("krope_ctkv", &[("mla_paged", [1, 1, 512], "bf16"), ("mla_rope", [1, 1, 64], "bf16")], 1152)]
#[case("int8_nz", &[("mla_paged", [1, 16, 32], "int8"), ("mla_rope", [1, 4, 16], "bf16")], 640)]
#[case("nz", &[("mla_paged", [1, 32, 16], "bf16"), ("mla_rope", [1, 4, 16], "bf16")], 1152)]
fn a_plan_has_the_caches_of_its_mode(
    #[case] mode: &str,
    #[case] expected: &[(&str, [u64; 3], &str)],
    #[case] bytes_per_token: u64,
    #[values("by-key", "first-reference")] grouping: &str,
) {
    let mut model = deepseek();
    let budget = budget_in(mode, &format!("grouping = '{grouping}'")).unwrap();
    let resources = model.graph.collect(&budget.pass_context(&model.info)).unwrap().resources;
    let request = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone());
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    assert_eq!(plan.check_alone(), Ok(()));
    let layer: Vec<_> = plan.resources.iter().filter(|resource| resource.layer == Some(7)).collect();
    assert_eq!(layer.len(), expected.len());
    for (resource, (kind, shape, dtype)) in layer.iter().zip(expected) {
        let handler = &resource.handler;
        let sizes: Vec<u64> = handler.shape().iter().map(|dim| dim.size).collect();
        assert_eq!((handler.kind().name(), sizes.as_slice(), handler.dtype().name()), (*kind, &shape[..], *dtype));
        let collected = resources.iter().find(|collected| collected.name == resource.name).unwrap();
        assert!(collected.provenance.contains(&format!("mla_cache_mode = {mode} (the budget)")));
    }
    let bytes: u64 = layer.iter().map(|resource| resource.handler.unit_bytes()).sum();
    assert_eq!(bytes, bytes_per_token);
    // As many blocks of 128 tokens as the operator's tensors have, each with its layers one after the other.
    if grouping == "by-key" {
        let blocks: u64 = plan.pools.iter().map(|pool| pool.unit_bytes).sum();
        assert_eq!(blocks, 61 * 128 * bytes_per_token);
    }
}

#[rstest]
#[case("nz", "tokens_per_block = 16", "has blocks of 128 tokens; `tokens_per_block` is 16")]
#[case("krope_ctkv", "tokens_per_block = 129", "has blocks of at most 128 tokens; `tokens_per_block` is 129")]
#[case("int8_nz", "layout = 'NHD'", "keeps columns before tokens; `layout` must be \"HND\"")]
fn a_budget_that_its_mode_does_not_have_is_refused(#[case] mode: &str, #[case] more: &str, #[case] expected: &str) {
    let block = if more.starts_with("tokens") { "" } else { "tokens_per_block = 128\n" };
    let error =
        Budget::from_toml(&format!("mla_cache_mode = '{mode}'\n{block}{more}"), "test").unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn rope_keys_in_8_bits_are_refused_with_the_dtype() {
    let mut model = deepseek();
    let budget = budget_in("nz", "[dtypes]\nkv = 'fp8'").unwrap();
    let error = model.graph.collect(&budget.pass_context(&model.info)).unwrap_err().to_string();
    assert!(error.contains("`nz`: rope keys are stored in f8_e4m3"), "{error}");
}

/// What an engine on Ascend stores follows the plan, unless it is said to do otherwise; a flag of its own says nothing of it.
#[test]
fn exports_and_predictions_know_the_mode() {
    let mut model = deepseek();
    let budget = budget_in("int8_nz", "").unwrap();
    let resources = model.graph.collect(&budget.pass_context(&model.info)).unwrap().resources;
    let plan = PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone()).plan().unwrap();
    let error = plan.export("vllm".parse().unwrap(), None, &Serving::default()).unwrap_err().to_string();
    assert!(error.contains("cannot run this plan: `krope_cache_0`") && error.contains("mla_cache_mode"), "{error}");
    let stored = |more: &str| budget_in("int8_nz", more).unwrap().engine_mla_cache().map(MlaCache::number);
    assert_eq!((stored(""), stored("[engine]\nmla_cache = 'nz'")), (Some(2), Some(3)));
}

/// The rule is the plan's, so that whoever plans has it; the model that drafts may have none.
#[rstest]
#[case::attention(
    r#"{ "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256 }"#,
    "llama"
)]
#[case::states(
    r#"{ "model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "state_size": 16, "conv_kernel": 4,
    "intermediate_size": 128, "time_step_rank": 4, "expand": 2, "vocab_size": 256 }"#,
    "mamba"
)]
fn a_mode_of_a_model_without_latents_is_an_error(
    #[case] config: &str,
    #[case] name: &str,
    #[values("kvcache", "krope_ctkv", "int8_nz", "nz")] mode: &str,
) {
    let model = || Model::read_config("config.json", config, &ReadOptions::default()).unwrap();
    let budget = budget_in(mode, "").unwrap();
    let error = PlanRequest::of(model()).with_budget(budget).plan().unwrap_err();
    let expected = format!(
        "`mla_cache_mode = \"{mode}\"` says how latents of multi-head latent attention are kept, and a {name} has none"
    );
    assert!(error.to_string().contains(&expected), "{error}");
    assert_eq!(error.exit_code(), 1);
    if name == "llama" {
        let budget = budget_in(mode, "[speculation]\ndraft_tokens = 3\n").unwrap();
        let drafted = PlanRequest::of(deepseek()).with_draft(model()).with_budget(budget).plan();
        let refused = drafted.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!refused.contains("has none"), "a draft model may have none: {refused}");
    }
}
