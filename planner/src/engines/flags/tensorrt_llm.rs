//! What TensorRT-LLM is told, whose keys are the arguments of its Python API: read in its `KvCacheConfig` of September 2026.

use cacheplan_handlers::{DType, Growth};
use serde_json::json;

use super::{EVER, STATES, has_no_checkpoints, taken, windows};
use crate::export::dialect::{Dialect, dtype, flag, own, plan};
use crate::export::file::{nested, quoted};
use crate::export::input::{Class, Input, Sourced, listed};
use crate::export::target_file::TargetFile;

pub(crate) static TENSORRT_LLM: Dialect = Dialect {
    name: "TensorRT-LLM",
    versions: &["1.3.0rc23", "1.3.0rc25"],
    keys: &[
        plan("tensor_parallel_size", "parallel.tp"),
        plan("pipeline_parallel_size", "parallel.pp"),
        plan("max_batch_size", "max_batch_size"),
        plan("max_num_tokens", "max_num_tokens"),
        plan("max_seq_len", "max_seq_len"),
        plan("kv_cache_config.max_gpu_total_bytes", "engine.cache_bytes"),
        plan("kv_cache_config.max_tokens", "engine.max_total_tokens"),
        own("kv_cache_config.free_gpu_memory_fraction", |_| {
            Input::not_binding_fraction("the smaller of this share of free memory and max_gpu_total_bytes decides")
        }),
        // Its documents: "tokens_per_block must be a power of 2".
        flag("kv_cache_config.tokens_per_block", "engine.block_size", |input| {
            taken(input.tokens_per_block()?, u64::checked_next_power_of_two, "as a power of 2")
        }),
        own("kv_cache_config.enable_block_reuse", |input| {
            has_no_checkpoints(input).then(|| (json!(false), "the plan has no slots for checkpoints".into()))
        }),
        // Its loader takes these and no others.
        dtype(
            "kv_cache_config.dtype",
            Class::Kv,
            Some("auto"),
            &[(DType::F8E4m3, "fp8", EVER), (DType::Nvfp4, "nvfp4", EVER)],
        ),
        own("kv_cache_config.max_attention_window", attention_windows),
        own("kv_cache_config.avg_seq_len", avg_seq_len),
        dtype("kv_cache_config.mamba_ssm_cache_dtype", Class::Ssm, None, STATES),
        own("kv_cache_config.host_cache_size", |input| {
            input.serving.host_bytes.map(|bytes| (json!(bytes), "host.bytes, per rank".into()))
        }),
    ],
    gaps: &[
        |input| {
            let key = TENSORRT_LLM.keys.iter().find(|key| key.name == "kv_cache_config.dtype")?;
            let (_, source) = key.value(input).filter(|(name, _)| name == "auto")?;
            let why = "`auto` takes 8 bits where the checkpoint's quantisation says so";
            Some(format!("keys and values in {source}: {why}"))
        },
        |input| {
            let pools = || input.pools().map(|pool| format!("{} ({} units)", pool.id, pool.units));
            (pools().count() > 1)
                .then(|| format!("the sizes of {}: TensorRT-LLM divides the bytes itself", listed(pools())))
        },
        |input| {
            let is_windowed = windows(input).count() > 0 && input.parallel().pp > 1;
            is_windowed.then(|| {
                "kv_cache_config.max_attention_window: it counts the layers of all stages, and the plan has those of one".into()
            })
        },
    ],
    chooses_dtypes: true,
    refuses: |_| None,
};

/// TensorRT-LLM's `trtllm-serve --config`: the arguments of its Python API as YAML.
pub(crate) static TENSORRT_LLM_FILE: TargetFile = TargetFile {
    names_model: false,
    ..TargetFile::new("tensorrt-llm", "tensorrt-llm.yaml", &TENSORRT_LLM, |file| {
        file.yaml(&format!("trtllm-serve {} --config FILE", quoted(file.model)), &nested(file.settings))
    })
};

/// TensorRT-LLM's windows, one per attention layer; full attention sees the whole sequence.
fn attention_windows(input: &Input<'_>) -> Sourced {
    // It counts the layers of all stages, and the plan has those of one.
    if input.parallel().pp > 1 {
        return None;
    }
    let max_seq_len = input.plan.limits.max_seq_len;
    let of_layers: Vec<Option<u32>> = input
        .resources()
        .filter_map(|resource| match resource.handler.growth().within(max_seq_len) {
            Growth::Paged { window, .. } => Some(window),
            _ => None,
        })
        .collect();
    let tokens: Vec<u64> = of_layers.iter().map(|window| window.map_or(max_seq_len, u64::from)).collect();
    let source = "the window of each attention layer; max_seq_len where there is none";
    of_layers.iter().any(Option::is_some).then(|| (json!(tokens), source.into()))
}

/// What splits TensorRT-LLM's bytes between states and pages as the plan does.
fn avg_seq_len(input: &Input<'_>) -> Sourced {
    let average = input.plan.capacity.tokens? / input.plan.capacity.sequences.max(1);
    let source = "tokens per running sequence, which splits the bytes between states and pages";
    input.has_states().then(|| (json!(average.min(input.plan.limits.max_seq_len)), source.into()))
}
