//! TensorRT-Edge-LLM's runtime `config.json`: the part that its cache managers are made from.
//!
//! Read in its exporter and in the parser of its runtime, whose files state dtypes since 0.7.0.

use std::collections::BTreeSet;

use cacheplan_handlers::{DType, Kind};
use serde_json::{Value, json};

use super::deployment::Deployment;
use super::dialect::{Dialect, Key};
use super::input::{Input, Sourced, is_conv, is_kv, is_ssm};
use crate::plan::PlannedResource;

pub(super) static EDGE_LLM: Deployment = Deployment::json("edge-llm", "config.json", &DIALECT);

static DIALECT: Dialect = Dialect {
    name: "TensorRT-Edge-LLM",
    versions: &["0.7.0"],
    keys: &[
        Key { name: "model_type", since: 0, value: model_type },
        Key { name: "num_attention_layers", since: 0, value: |input| count(input, is_kv, "paged caches") },
        Key { name: "num_linear_attn_layers", since: 0, value: |input| count(input, is_ssm, "recurrent states") },
        Key { name: "recurrent_state_num_heads", since: 0, value: |input| dim(input, is_ssm, "num_heads", 0) },
        Key { name: "recurrent_state_head_dim", since: 0, value: |input| dim(input, is_ssm, "head_dim", 0) },
        Key { name: "recurrent_state_size", since: 0, value: |input| dim(input, is_ssm, "d_state", 0) },
        Key { name: "conv_dim", since: 0, value: |input| dim(input, is_conv, "conv_dim", 0) },
        Key { name: "conv_kernel", since: 0, value: |input| dim(input, is_conv, "d_conv - 1", 1) },
        Key { name: "kv_cache_dtype", since: 0, value: |input| input.dtype_name(is_kv, None, DTYPES) },
        Key { name: "recurrent_state_dtype", since: 0, value: |input| input.dtype_name(is_ssm, None, DTYPES) },
        Key { name: "conv_state_dtype", since: 0, value: |input| input.dtype_name(is_conv, None, DTYPES) },
        Key { name: "layer_types", since: 0, value: layer_types },
        Key { name: "kv_layer_configs", since: 0, value: kv_layer_configs },
        Key { name: "builder_config.max_batch_size", since: 0, value: |input| input.max_batch_size() },
        Key { name: "builder_config.max_input_len", since: 0, value: max_input_len },
        Key { name: "builder_config.max_kv_cache_capacity", since: 0, value: |input| input.max_seq_len() },
    ],
    ranks: &[],
    gaps: &[
        |_| {
            Some(
                "the model's other keys (vocab_size, hidden_size, RoPE): merge these into the exported config.json"
                    .into(),
            )
        },
        |input| {
            input.tokens_per_block().map(|_| {
                "pages: every slot holds max_kv_cache_capacity tokens, so that the bytes are max_batch_size times those".into()
            })
        },
        |input| {
            let windowed = input.paged().any(|pool| pool.window.is_some());
            windowed.then(|| "sliding windows: every layer keeps the whole sequence".into())
        },
        |input| input.no_host_tier("its caches stay on the device"),
    ],
    refuses,
    back: None,
};

/// The dtypes that its runtime reads.
const DTYPES: &[(DType, &str)] =
    &[(DType::F16, "fp16"), (DType::F8E4m3, "fp8"), (DType::Int8, "int8"), (DType::Bf16, "bf16"), (DType::F32, "fp32")];

fn of_kind<'a>(input: &Input<'a>, of: fn(&Kind) -> bool) -> impl Iterator<Item = &'a PlannedResource> {
    input.resources().filter(move |resource| of(resource.handler.kind()))
}

/// One shape of state, one dtype of each kind, and no other caches: the file has one number for each.
fn refuses(input: &Input<'_>) -> Option<String> {
    let known = |kind: &Kind| {
        matches!(
            kind,
            Kind::KvPaged | Kind::Ssm | Kind::CausalConv | Kind::IntermediateSsm | Kind::IntermediateCausalConv
        )
    };
    if let Some(other) = input.resources().find(|resource| !known(resource.handler.kind())) {
        return Some(format!("`{}` is {}, for which config.json has no keys", other.name, other.kind));
    }
    if let Some(conv) = of_kind(input, is_conv).find(|conv| conv.handler.has_candidates()) {
        return Some(format!("`{}` holds the inputs of candidates, for which config.json has no keys", conv.name));
    }
    let shapes = |of| of_kind(input, of).map(shape).collect::<BTreeSet<_>>().len();
    if shapes(is_ssm) > 1 || shapes(is_conv) > 1 {
        return Some("its states have several shapes; config.json has one".into());
    }
    if let Some(both) = of_kind(input, is_kv).find(|kv| of_kind(input, is_ssm).any(|ssm| ssm.layer == kv.layer)) {
        return Some(format!("the layer of `{}` has a state as well; config.json has one kind per layer", both.name));
    }
    [("kv_cache_dtype", is_kv as fn(&Kind) -> bool), ("recurrent_state_dtype", is_ssm), ("conv_state_dtype", is_conv)]
        .into_iter()
        .find(|(_, of)| of_kind(input, *of).next().is_some() && input.dtype_name(*of, None, DTYPES).is_none())
        .map(|(key, _)| format!("`{key}` takes one of fp16, fp8, int8, bf16 and fp32 for all layers"))
}

fn shape(resource: &PlannedResource) -> Vec<u64> {
    resource.handler.shape().iter().map(|dim| dim.size).collect()
}

fn model_type(input: &Input<'_>) -> Sourced {
    let states = input.has_states();
    Some((json!(if states { "hybrid_mamba" } else { "llm" }), "whether the plan has states".into()))
}

fn count(input: &Input<'_>, of: fn(&Kind) -> bool, what: &str) -> Sourced {
    Some((json!(of_kind(input, of).count()), format!("layers with {what}")))
}

/// A dimension that all states of a kind share, and `more`.
fn dim(input: &Input<'_>, of: fn(&Kind) -> bool, name: &str, more: u64) -> Sourced {
    let state = of_kind(input, of).next()?;
    Some((json!(state.handler.dim(name)?.checked_add(more)?), format!("`{name}` of `{}`", state.name)))
}

/// Layers with a cache, in order; those without have no entry.
fn layers<'a>(input: &Input<'a>) -> Vec<&'a PlannedResource> {
    let mut layers: Vec<_> = of_kind(input, |kind| is_kv(kind) || is_ssm(kind)).collect();
    layers.sort_by_key(|resource| resource.layer);
    layers
}

fn layer_types(input: &Input<'_>) -> Sourced {
    let types: Vec<&str> = layers(input)
        .into_iter()
        .map(|resource| if is_kv(resource.handler.kind()) { "attention" } else { "mamba" })
        .collect();
    input.has_states().then(|| (json!(types), "the kind of each layer's cache".into()))
}

fn kv_layer_configs(input: &Input<'_>) -> Sourced {
    let configs: Vec<Value> = layers(input)
        .into_iter()
        .map(|resource| match is_kv(resource.handler.kind()) {
            true => json!({
                "num_kv_heads": resource.handler.dim("num_kv_heads"),
                "head_dim": resource.handler.dim("head_dim"),
            }),
            false => Value::Null,
        })
        .collect();
    input.has_states().then(|| (json!(configs), "the shape of each layer's paged cache".into()))
}

fn max_input_len(input: &Input<'_>) -> Sourced {
    let limits = &input.plan.limits;
    let tokens = limits.max_num_tokens.min(limits.max_seq_len);
    Some((json!(tokens), "the plan's max_num_tokens, and at most max_seq_len".into()))
}
