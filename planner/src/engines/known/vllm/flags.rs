//! vLLM's `vllm serve --config`: keys are the flags without their dashes.
//!
//! Read in `engine/arg_utils.py` and `config/cache.py` of each version.

use cacheplan_handlers::{DType, Kind};
use serde_json::json;

use crate::budget::{Budget, Dtypes, EngineOptions};
use crate::export::deployment::Deployment;
use crate::export::dialect::{Dialect, Key, Told};
use crate::export::file::{nested, quoted};
use crate::export::input::{Input, Sourced, is_conv, is_kv, is_ssm, listed};
use crate::parallel::Parallel;
use crate::size::ByteSize;

pub(crate) static DEPLOYMENT: Deployment = Deployment {
    names_model: false,
    ..Deployment::new("vllm", "vllm.yaml", &DIALECT, |file| {
        let usage = format!("vllm serve {} --config FILE", quoted(file.model));
        file.yaml(&usage, &nested(file.settings))
    })
};

pub(crate) static DIALECT: Dialect = Dialect {
    name: "vLLM",
    versions: &["0.11.0", "0.24.0", "0.28.0", "0.33.0"],
    keys: &[
        Key { name: "tensor-parallel-size", since: 0, value: |input| input.tensor_parallel() },
        Key { name: "pipeline-parallel-size", since: 0, value: |input| input.pipeline_parallel() },
        Key { name: "data-parallel-size", since: 0, value: |input| input.data_parallel() },
        Key { name: "enable-expert-parallel", since: 0, value: |input| input.shares_experts() },
        Key { name: "decode-context-parallel-size", since: 0, value: |input| input.decode_context_parallel() },
        Key { name: "kv-cache-memory-bytes", since: 0, value: |input| input.cache_bytes() },
        Key { name: "max-model-len", since: 0, value: |input| input.max_seq_len() },
        Key { name: "max-num-seqs", since: 0, value: |input| input.max_batch_size() },
        Key { name: "max-num-batched-tokens", since: 0, value: max_num_batched_tokens },
        Key { name: "enable-prefix-caching", since: 0, value: |input| prefix_caching(input, true) },
        Key { name: "no-enable-prefix-caching", since: 0, value: |input| prefix_caching(input, false) },
        Key { name: "block-size", since: 0, value: block_size },
        Key { name: "kv-cache-dtype", since: 0, value: kv_dtype },
        Key { name: "mamba-cache-dtype", since: 0, value: conv_dtype },
        Key { name: "mamba-ssm-cache-dtype", since: 0, value: ssm_dtype },
        Key { name: "kv-offloading-size", since: OFFLOADING, value: offloading_size },
        Key { name: "kv-offloading-backend", since: OFFLOADING, value: offloading_backend },
    ],
    ranks: &[("dp", "data-parallel-size"), ("ep", "enable-expert-parallel"), ("dcp", "decode-context-parallel-size")],
    gaps: &[
        |input| {
            let pools =
                || input.pools().map(|pool| format!("{} ({} of {} bytes)", pool.id, pool.units, pool.unit_bytes));
            (pools().count() > 1).then(|| {
                format!(
                    "the sizes of {}: vLLM divides the bytes itself, into pages of one padded size",
                    listed(pools())
                )
            })
        },
        |input| {
            (input.has_states() && input.tokens_per_block().is_some())
                .then(|| "tokens_per_block: with states vLLM aligns its block size to them".into())
        },
        |input| input.unnamed_dtype("keys and values", is_kv, &kv_dtype(input)),
        |input| input.unnamed_dtype("convolution states", is_conv, &conv_dtype(input)),
        |input| input.unnamed_dtype("recurrent states", is_ssm, &ssm_dtype(input)),
    ],
    refuses: |_| None,
    back: Some(told),
};

/// The first version with flags for offloading, and with states in 16 bits.
const OFFLOADING: usize = 1;

/// Blocks that every kernel for latents reads.
const LATENT_BLOCK: u64 = 64;

fn block_size(input: &Input<'_>) -> Sourced {
    let (block, source) = input.tokens_per_block().filter(|_| !input.has_states())?;
    let latent = input.resources().any(|resource| *resource.handler.kind() == Kind::MlaPaged);
    match block.as_u64() {
        Some(tokens) if latent && !tokens.is_multiple_of(LATENT_BLOCK) => {
            let source =
                format!("{source} {tokens}, as a multiple of the {LATENT_BLOCK} that kernels for latents read");
            Some((json!(tokens.next_multiple_of(LATENT_BLOCK)), source))
        }
        _ => Some((block, source)),
    }
}

/// The plan's step; at least the block that vLLM aligns to the states, which it asserts.
fn max_num_batched_tokens(input: &Input<'_>) -> Sourced {
    let (tokens, source) = input.max_num_tokens()?;
    let aligned = aligned_block(input).filter(|block| *block > input.plan.limits.max_num_tokens);
    Some(match aligned {
        Some(block) => (json!(block), format!("{source} {tokens}, raised to the block that is aligned to the states")),
        None => (tokens, source),
    })
}

fn aligned_block(input: &Input<'_>) -> Option<u64> {
    if !input.has_states() {
        return None;
    }
    let ample =
        EngineOptions { cache_bytes: Some(ByteSize(1 << 50)), prefix_caching: Some(true), ..Default::default() };
    let budget = Budget { max_seq_len: Some(input.plan.limits.max_seq_len), engine: ample, ..Budget::default() };
    input.predicted(budget)?.ok()?.block_size
}

/// On unless it would take states that the plan has not: those at the end of blocks.
fn prefix_caching(input: &Input<'_>, on: bool) -> Sourced {
    let reuses = input.plan.checkpoints() > 0;
    let source = match (input.has_states(), reuses) {
        (false, _) => "prefixes of attention alone take no bytes of their own",
        (true, true) => "the plan has slots for checkpoints",
        (true, false) => "the plan has no slots for states at the end of blocks",
    };
    (on == (reuses || !input.has_states())).then(|| (json!(true), source.into()))
}

/// The keys as what vLLM's model is told.
fn told(told: &Told<'_>) -> Budget {
    Budget {
        max_seq_len: told.number("max-model-len"),
        max_batch_size: told.number("max-num-seqs"),
        max_num_tokens: told.number("max-num-batched-tokens"),
        engine: EngineOptions {
            cache_bytes: told.number("kv-cache-memory-bytes").map(ByteSize),
            block_size: told.number("block-size"),
            prefix_caching: told.switch("enable-prefix-caching"),
            ..EngineOptions::default()
        },
        ..Budget::default()
    }
}

fn kv_dtype(input: &Input<'_>) -> Sourced {
    let always = [(DType::Bf16, "bfloat16"), (DType::F8E4m3, "fp8_e4m3"), (DType::F8E5m2, "fp8_e5m2")];
    let later = [(DType::F16, "float16"), (DType::Nvfp4, "nvfp4")];
    let later = if input.release >= OFFLOADING { &later[..] } else { &[] };
    input.dtype_name(is_kv, Some("auto"), &[&always, later].concat())
}

fn conv_dtype(input: &Input<'_>) -> Sourced {
    input.dtype_name(is_conv, Some("auto"), state_dtypes(input))
}

fn ssm_dtype(input: &Input<'_>) -> Sourced {
    // `auto` is what the convolution's states have or what the model's file states, so it is never left to that.
    input.dtype_name(is_ssm, None, state_dtypes(input))
}

fn state_dtypes(input: &Input<'_>) -> &'static [(DType, &'static str)] {
    const NAMES: &[(DType, &str)] = &[(DType::F32, "float32"), (DType::F16, "float16"), (DType::Bf16, "bfloat16")];
    if input.release >= OFFLOADING { NAMES } else { &NAMES[..1] }
}

fn offloading_size(input: &Input<'_>) -> Sourced {
    // The flag is in GiB and summed over the ranks of all stages.
    let Parallel { tp, pp, .. } = input.parallel();
    let bytes = input.serving.host_bytes? as f64 * f64::from(tp) * f64::from(pp);
    Some((json!(bytes / f64::from(1 << 30)), "GiB of host.bytes over all ranks".into()))
}

fn offloading_backend(input: &Input<'_>) -> Sourced {
    input.serving.host_bytes.map(|_| (json!("native"), "the engine's own offloading".into()))
}

/// A layout as flags of `vllm serve`, for so many sequences over all replicas.
pub(crate) fn serve_flags(parallel: Parallel, dtypes: Dtypes, context: u64, sequences: u64) -> String {
    let Parallel { tp, pp, dp, ep, .. } = parallel;
    let sizes = [("tensor", tp), ("pipeline", pp), ("data", dp)].into_iter().filter(|(_, size)| *size > 1);
    let mut flags: Vec<String> = sizes.map(|(kind, size)| format!("--{kind}-parallel-size {size}")).collect();
    if ep > 1 {
        flags.push("--enable-expert-parallel".into());
    }
    if dtypes.kv.is_some() {
        flags.push("--kv-cache-dtype fp8".into());
    }
    if dtypes.ssm.is_some() {
        flags.push("--mamba-ssm-cache-dtype bfloat16".into());
    }
    flags.push(format!("--max-model-len {context}"));
    flags.push(format!("--max-num-seqs {}", sequences.div_ceil(dp.into()).max(1)));
    flags.join(" ")
}
