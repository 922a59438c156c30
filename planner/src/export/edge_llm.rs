//! TensorRT-Edge-LLM's runtime `config.json`: the part that its cache managers are made from.
//!
//! Read in its exporter and in the parser of its runtime, whose files state dtypes since 0.7.0.

use std::collections::BTreeSet;

use cacheplan_handlers::{DType, Kind};
use serde_json::{Value, json};

use super::dialect::{Dialect, dtype, own, plan};
use super::input::{Class, DTypeName, Input, Sourced};
use super::target_file::TargetFile;
use crate::engines::Version;
use crate::plan::PlannedResource;

pub(super) static EDGE_LLM: TargetFile = TargetFile::json("edge-llm", "config.json", &DIALECT);

static DIALECT: Dialect = Dialect {
    name: "TensorRT-Edge-LLM",
    versions: &["0.7.0"],
    keys: &[
        own("model_type", model_type),
        own("num_attention_layers", |input| count(input, Class::Kv, "paged caches")),
        own("num_linear_attn_layers", |input| count(input, Class::Ssm, "recurrent states")),
        own("recurrent_state_num_heads", |input| dim(input, Class::Ssm, "num_heads", 0)),
        own("recurrent_state_head_dim", |input| dim(input, Class::Ssm, "head_dim", 0)),
        own("recurrent_state_size", |input| dim(input, Class::Ssm, "d_state", 0)),
        own("conv_dim", |input| dim(input, Class::Conv, "conv_dim", 0)),
        own("conv_kernel", |input| dim(input, Class::Conv, "d_conv - 1", 1)),
        dtype("kv_cache_dtype", Class::Kv, None, DTYPES),
        dtype("recurrent_state_dtype", Class::Ssm, None, DTYPES),
        dtype("conv_state_dtype", Class::Conv, None, DTYPES),
        own("layer_types", layer_types),
        own("kv_layer_configs", kv_layer_configs),
        plan("builder_config.max_batch_size", "max_batch_size"),
        own("builder_config.max_input_len", max_input_len),
        plan("builder_config.max_kv_cache_capacity", "max_seq_len"),
    ],
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
    chooses_dtypes: false,
};

/// The dtypes that its runtime reads.
const DTYPES: &[DTypeName] = &[
    (DType::F16, "fp16", Version::EVER),
    (DType::F8E4m3, "fp8", Version::EVER),
    (DType::Int8, "int8", Version::EVER),
    (DType::Int8PerTokenHead, "int8", Version::EVER),
    (DType::Bf16, "bf16", Version::EVER),
    (DType::F32, "fp32", Version::EVER),
];

fn of_kind<'a>(input: &Input<'a>, of: Class) -> impl Iterator<Item = &'a PlannedResource> {
    input.resources().filter(move |resource| of.holds(resource.handler.kind()))
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
    if let Some(conv) = of_kind(input, Class::Conv).find(|conv| conv.handler.has_candidates()) {
        return Some(format!("`{}` holds the inputs of candidates, for which config.json has no keys", conv.name));
    }
    if let Some(conv) = of_kind(input, Class::Conv).find(|conv| count_in(input, Class::Ssm, conv.layer) == 0) {
        return Some(format!(
            "`{}` is in a layer without a recurrent state, for which config.json has no kind",
            conv.name
        ));
    }
    let convs: BTreeSet<usize> =
        of_kind(input, Class::Ssm).map(|state| count_in(input, Class::Conv, state.layer)).collect();
    if convs.len() > 1 || convs.last().is_some_and(|convs| *convs > 1) {
        return Some(
            "its states have none, one or several convolutions beside them; config.json has one for all".into(),
        );
    }
    let shapes = |of| of_kind(input, of).map(shape).collect::<BTreeSet<_>>().len();
    if shapes(Class::Ssm) > 1 || shapes(Class::Conv) > 1 {
        return Some("its states have several shapes; config.json has one".into());
    }
    if let Some(both) = of_kind(input, Class::Kv).find(|kv| of_kind(input, Class::Ssm).any(|ssm| ssm.layer == kv.layer))
    {
        return Some(format!("the layer of `{}` has a state as well; config.json has one kind per layer", both.name));
    }
    [("kv_cache_dtype", Class::Kv), ("recurrent_state_dtype", Class::Ssm), ("conv_state_dtype", Class::Conv)]
        .into_iter()
        .find(|(_, of)| of_kind(input, *of).next().is_some() && input.dtype_name(*of, None, DTYPES).is_none())
        .map(|(key, _)| format!("`{key}` takes one of fp16, fp8, int8, bf16 and fp32 for all layers"))
}

/// How many caches of a kind a layer has.
fn count_in(input: &Input<'_>, of: Class, layer: Option<u32>) -> usize {
    of_kind(input, of).filter(|resource| resource.layer == layer).count()
}

fn shape(resource: &PlannedResource) -> Vec<u64> {
    resource.handler.shape().iter().map(|dim| dim.size).collect()
}

fn model_type(input: &Input<'_>) -> Sourced {
    let states = input.has_states();
    Some((json!(if states { "hybrid_mamba" } else { "llm" }), "whether the plan has states".into()))
}

fn count(input: &Input<'_>, of: Class, what: &str) -> Sourced {
    Some((json!(of_kind(input, of).count()), format!("layers with {what}")))
}

/// A dimension that all states of a kind share, and `more`.
fn dim(input: &Input<'_>, of: Class, name: &str, more: u64) -> Sourced {
    let state = of_kind(input, of).next()?;
    Some((json!(state.handler.dim(name)?.checked_add(more)?), format!("`{name}` of `{}`", state.name)))
}

/// Layers with a cache, in order; those without have no entry.
fn layers<'a>(input: &Input<'a>) -> Vec<&'a PlannedResource> {
    let mut layers: Vec<_> = of_kind(input, Class::Kv).chain(of_kind(input, Class::Ssm)).collect();
    layers.sort_by_key(|resource| resource.layer);
    layers
}

fn layer_types(input: &Input<'_>) -> Sourced {
    let types: Vec<&str> = layers(input)
        .into_iter()
        .map(|resource| if resource.handler.kind().is_kv() { "attention" } else { "mamba" })
        .collect();
    input.has_states().then(|| (json!(types), "the kind of each layer's cache".into()))
}

fn kv_layer_configs(input: &Input<'_>) -> Sourced {
    let configs: Vec<Value> = layers(input)
        .into_iter()
        .map(|resource| match resource.handler.kind().is_kv() {
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
