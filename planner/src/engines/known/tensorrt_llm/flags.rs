//! TensorRT-LLM's `trtllm-serve --config`: the arguments of its Python API as YAML.
//!
//! Read in its `KvCacheConfig` of September 2026.

use cacheplan_handlers::{DType, Growth};
use serde_json::json;

use crate::budget::{Budget, EngineOptions};
use crate::export::deployment::Deployment;
use crate::export::dialect::{Dialect, Key, Told};
use crate::export::file::{nested, quoted};
use crate::export::input::{Input, Sourced, is_conv, is_kv, is_ssm, listed};
use crate::size::ByteSize;

pub(crate) static DEPLOYMENT: Deployment = Deployment {
    names_model: false,
    ..Deployment::new("tensorrt-llm", "tensorrt-llm.yaml", &DIALECT, |file| {
        let usage = format!("trtllm-serve {} --config FILE", quoted(file.model));
        file.yaml(&usage, &nested(file.settings))
    })
};

pub(crate) static DIALECT: Dialect = Dialect {
    name: "TensorRT-LLM",
    versions: &["1.3.0rc23", "1.3.0rc25"],
    keys: &[
        Key { name: "tensor_parallel_size", since: 0, value: |input| input.tensor_parallel() },
        Key { name: "pipeline_parallel_size", since: 0, value: |input| input.pipeline_parallel() },
        Key { name: "max_batch_size", since: 0, value: |input| input.max_batch_size() },
        Key { name: "max_num_tokens", since: 0, value: |input| input.max_num_tokens() },
        Key { name: "max_seq_len", since: 0, value: |input| input.max_seq_len() },
        Key { name: "kv_cache_config.max_gpu_total_bytes", since: 0, value: |input| input.cache_bytes() },
        Key { name: "kv_cache_config.free_gpu_memory_fraction", since: 0, value: fraction },
        Key { name: "kv_cache_config.tokens_per_block", since: 0, value: |input| input.tokens_per_block() },
        Key { name: "kv_cache_config.enable_block_reuse", since: 0, value: block_reuse },
        Key { name: "kv_cache_config.dtype", since: 0, value: kv_dtype },
        Key { name: "kv_cache_config.max_attention_window", since: 0, value: windows },
        Key { name: "kv_cache_config.avg_seq_len", since: 0, value: avg_seq_len },
        Key { name: "kv_cache_config.mamba_ssm_cache_dtype", since: 0, value: ssm_dtype },
        Key { name: "kv_cache_config.host_cache_size", since: 0, value: host_cache_size },
    ],
    ranks: &[],
    gaps: &[
        checkpoint_decides,
        |input| {
            let pools = || input.pools().map(|pool| format!("{} ({} units)", pool.id, pool.units));
            (pools().count() > 1)
                .then(|| format!("the sizes of {}: TensorRT-LLM divides the bytes itself", listed(pools())))
        },
        |input| input.unnamed_dtype("keys and values", is_kv, &kv_dtype(input)),
        |input| input.unnamed_dtype("convolution states", is_conv, &None),
        |input| input.unnamed_dtype("recurrent states", is_ssm, &ssm_dtype(input)),
    ],
    refuses: |_| None,
    back: Some(told),
};

fn fraction(_: &Input<'_>) -> Sourced {
    Input::not_binding_fraction("the smaller of this share of free memory and max_gpu_total_bytes decides")
}

/// Off where the plan has no slots for the states that reuse would keep.
fn block_reuse(input: &Input<'_>) -> Sourced {
    let none = input.has_states() && input.plan.checkpoints() == 0;
    none.then(|| (json!(false), "the plan has no slots for checkpoints".into()))
}

/// The keys as what TensorRT-LLM's model is told.
fn told(told: &Told<'_>) -> Budget {
    Budget {
        max_seq_len: told.number("max_seq_len"),
        max_batch_size: told.number("max_batch_size"),
        max_num_tokens: told.number("max_num_tokens"),
        engine: EngineOptions {
            cache_bytes: told.number("kv_cache_config.max_gpu_total_bytes").map(ByteSize),
            block_size: told.number("kv_cache_config.tokens_per_block"),
            ..EngineOptions::default()
        },
        ..Budget::default()
    }
}

/// Its loader takes these and no others.
fn kv_dtype(input: &Input<'_>) -> Sourced {
    input.dtype_name(is_kv, Some("auto"), &[(DType::F8E4m3, "fp8"), (DType::Nvfp4, "nvfp4")])
}

fn checkpoint_decides(input: &Input<'_>) -> Option<String> {
    let (_, source) = kv_dtype(input).filter(|(name, _)| name == "auto")?;
    Some(format!("keys and values in {source}: `auto` takes 8 bits where the checkpoint's quantisation says so"))
}

fn ssm_dtype(input: &Input<'_>) -> Sourced {
    let names = [(DType::F32, "float32"), (DType::Bf16, "bfloat16"), (DType::F16, "float16")];
    input.dtype_name(is_ssm, None, &names)
}

/// One window per attention layer; full attention sees the whole sequence.
fn windows(input: &Input<'_>) -> Sourced {
    let of_layers: Vec<Option<u32>> = input
        .resources()
        .filter_map(|resource| match resource.handler.growth() {
            Growth::Paged { window, .. } => Some(window),
            _ => None,
        })
        .collect();
    let max_seq_len = input.plan.limits.max_seq_len;
    let tokens: Vec<u64> = of_layers.iter().map(|window| window.map_or(max_seq_len, u64::from)).collect();
    let source = "the window of each attention layer; max_seq_len where there is none";
    of_layers.iter().any(Option::is_some).then(|| (json!(tokens), source.into()))
}

/// What splits the bytes between states and pages as the plan does.
fn avg_seq_len(input: &Input<'_>) -> Sourced {
    let tokens = input.plan.capacity.tokens?;
    let average = tokens / input.plan.capacity.sequences.max(1);
    let average = average.min(input.plan.limits.max_seq_len);
    let source = "tokens per running sequence, which splits the bytes between states and pages";
    input.has_states().then(|| (json!(average), source.into()))
}

fn host_cache_size(input: &Input<'_>) -> Sourced {
    input.serving.host_bytes.map(|bytes| (json!(bytes), "host.bytes, per rank".into()))
}
