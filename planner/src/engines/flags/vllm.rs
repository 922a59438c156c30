//! What vLLM is told: read in `engine/arg_utils.py` and `config/cache.py` of each version.

use cacheplan_handlers::{DType, Kind};
use serde_json::json;

use super::{EVER, nodes, taken};
use crate::budget::{Budget, EngineOptions};
use crate::engines::known::vllm;
use crate::engines::version::Version;
use crate::export::dialect::{Dialect, dtype, flag, own, plan};
use crate::export::file::{nested, quoted};
use crate::export::input::{Class, DTypeName, Input, Sourced, listed};
use crate::export::target_file::TargetFile;
use crate::parallel::Parallel;
use crate::size::ByteSize;

/// The first version of vLLM with flags for offloading, and with states in 16 bits.
const OFFLOADING: Version = Version(0, 24, 0);

pub(crate) static VLLM: Dialect = Dialect {
    name: "vLLM",
    versions: &["0.11.0", "0.24.0", "0.28.0", "0.33.0"],
    keys: &[
        plan("tensor-parallel-size", "parallel.tp"),
        plan("pipeline-parallel-size", "parallel.pp"),
        plan("data-parallel-size", "parallel.dp"),
        plan("enable-expert-parallel", "parallel.ep"),
        plan("decode-context-parallel-size", "parallel.dcp"),
        plan("kv-cache-memory-bytes", "engine.cache_bytes"),
        plan("max-model-len", "max_seq_len"),
        plan("max-num-seqs", "max_batch_size"),
        flag("max-num-batched-tokens", "max_num_tokens", batched_tokens),
        flag("enable-prefix-caching", "engine.prefix_caching", |input| prefix_caching(input, true)),
        own("no-enable-prefix-caching", |input| prefix_caching(input, false)),
        flag("block-size", "engine.block_size", block_size),
        dtype(
            "kv-cache-dtype",
            Class::Kv,
            Some("auto"),
            &[
                (DType::Bf16, "bfloat16", EVER),
                (DType::F8E4m3, "fp8_e4m3", EVER),
                (DType::F8E5m2, "fp8_e5m2", EVER),
                (DType::F16, "float16", OFFLOADING),
                (DType::Nvfp4, "nvfp4", OFFLOADING),
                (DType::Int8PerTokenHead, "int8_per_token_head", OFFLOADING),
                // A sparse latent's layout of 8 bits, which `fp8` is there too.
                (DType::F8E4m3, "fp8_ds_mla", EVER),
            ],
        ),
        dtype("mamba-cache-dtype", Class::Conv, Some("auto"), VLLM_STATES),
        // `auto` is what the convolution's states have or what the model's file states, so it is never left to that.
        dtype("mamba-ssm-cache-dtype", Class::Ssm, None, VLLM_STATES),
        own("kv-offloading-size", offloading_size).since(OFFLOADING),
        own("kv-offloading-backend", |input| {
            input.serving.host_bytes.map(|_| (json!("native"), "the engine's own offloading".into()))
        })
        .since(OFFLOADING),
    ],
    gaps: &[
        |input| {
            let pools =
                || input.pools().map(|pool| format!("{} ({} of {} bytes)", pool.id, pool.units, pool.unit_bytes));
            let sizes = || format!("the sizes of {}", listed(pools()));
            let divides = "vLLM divides the bytes itself, into pages of one padded size";
            (pools().count() > 1).then(|| format!("{}: {divides}", sizes()))
        },
        |input| {
            (input.has_states() && input.tokens_per_block().is_some())
                .then(|| "tokens_per_block: with states vLLM aligns its block size to them".into())
        },
        |input| {
            let key = VLLM.keys.iter().find(|key| key.name == "kv-cache-dtype")?;
            let (_, source) = key.value(input).filter(|(name, _)| name == "auto")?;
            let name = (input.stores)(None).ok()??.name()?;
            Some(format!("keys and values in {source}: vLLM keeps those of this model as {name}"))
        },
        |input| nodes(input, "--nnodes and --node-rank, or once with --distributed-executor-backend ray"),
    ],
    chooses_dtypes: true,
    refuses: |input| {
        let model = &*input.plan.model.model_type;
        if input.parallel().pp > 1 && vllm::WITHOUT_STAGES.contains(&model) {
            return Some(format!("it does not divide {model} into pipeline stages"));
        }
        let Parallel { tp, dp, .. } = input.parallel();
        if input.has_experts() && !input.parallel().shares_experts() {
            let all = u64::from(tp) * u64::from(dp);
            return Some(format!(
                "its replicas share the experts of {model}: plan with `parallel.ep` = {all}, or without `parallel.dp` for replicas that are started one by one"
            ));
        }
        let key = VLLM.keys.iter().find(|key| key.name == "kv-cache-dtype")?;
        let (word, _) = key.value(input)?;
        vllm::other_float(input.version, word.as_str()?, vllm::run_in(input.plan.model.dtype))
    },
};

const VLLM_STATES: &[DTypeName] =
    &[(DType::F32, "float32", EVER), (DType::F16, "float16", OFFLOADING), (DType::Bf16, "bfloat16", OFFLOADING)];

/// vLLM's `vllm serve --config`: keys are the flags without their dashes.
pub(crate) static VLLM_FILE: TargetFile = TargetFile {
    names_model: false,
    ..TargetFile::new("vllm", "vllm.yaml", &VLLM, |file| {
        file.yaml(&format!("vllm serve {} --config FILE", quoted(file.model)), &nested(file.settings))
    })
};

/// The dtypes of keys and values that vLLM's kernels read: Triton converts from e4m3 on compute capability 8.9 and above, and vLLM
/// takes it below too after 0.11.0 (vllm-project/vllm#26431, on an RTX 3090).
pub(in super::super) fn vllm_kv_dtypes(version: Version, capability: u32) -> Vec<DType> {
    const AMPERE: u32 = 80;
    const ADA: u32 = 89;
    let lacks = |dtype: &DType| *dtype == DType::F8E4m3 && capability < ADA && version <= Version(0, 11, 0);
    // Without bfloat16 a model that takes no float16 is run in float32, and keys and values follow.
    let wide = (capability < AMPERE).then_some(DType::F32);
    VLLM.kv_dtypes(version).into_iter().filter(|dtype| !lacks(dtype)).chain(wide).collect()
}

/// vLLM's block: the plan's, as a multiple of what every kernel reads (`get_supported_kernel_block_sizes`).
fn block_size(input: &Input<'_>) -> Sourced {
    let block = input.tokens_per_block().filter(|_| !input.has_states())?;
    let latent = input.resources().any(|resource| *resource.handler.kind() == Kind::MlaPaged);
    let (least, kernels) = if latent { (64, "kernels for latents") } else { (16, "kernels") };
    taken(
        block,
        |tokens| tokens.checked_next_multiple_of(least),
        &format!("as a multiple of the {least} that {kernels} read"),
    )
}

/// vLLM's step: the plan's, and at least the block that vLLM aligns to the states, which it asserts.
fn batched_tokens(input: &Input<'_>) -> Sourced {
    let (tokens, source) = input.max_num_tokens()?;
    let ample =
        EngineOptions { cache_bytes: Some(ByteSize(1 << 50)), prefix_caching: Some(true), ..EngineOptions::default() };
    let limits = &input.plan.limits;
    let budget = Budget { max_seq_len: Some(limits.max_seq_len), engine: ample, ..Budget::default() };
    let aligned = if input.has_states() { input.predicted(budget) } else { None };
    let aligned = aligned.and_then(|predicted| predicted.ok()?.block_size);
    let items = vllm::items(&input.plan.model.model_type, None).filter(|_| input.version >= vllm::HOLDS_AN_ITEM);
    let raised = [
        (aligned, "block that is aligned to the states"),
        (items.map(|[image, video]| image.max(video)), "longest video, which is never cut"),
    ];
    let raised = raised.into_iter().find_map(|(to, what)| Some((to.filter(|to| *to > limits.max_num_tokens)?, what)));
    Some(match raised {
        Some((to, what)) => (json!(to), format!("{source} {tokens}, raised to the {what}")),
        None => (tokens, source),
    })
}

/// vLLM's prefix caching: on unless it would take states that the plan has not, those at the end of blocks.
fn prefix_caching(input: &Input<'_>, on: bool) -> Sourced {
    let reuses = input.plan.checkpoints() > 0;
    let source = match (input.has_states(), reuses) {
        (false, _) => "prefixes of attention alone take no bytes of their own",
        (true, true) => "the plan has slots for checkpoints",
        (true, false) => "the plan has no slots for states at the end of blocks",
    };
    (on == (reuses || !input.has_states())).then(|| (json!(true), source.into()))
}

/// vLLM's offloading, which is in GiB and summed over the ranks of all stages.
fn offloading_size(input: &Input<'_>) -> Sourced {
    let Parallel { tp, pp, .. } = input.parallel();
    let bytes = input.serving.host_bytes? as f64 * f64::from(tp) * f64::from(pp);
    Some((json!(bytes / f64::from(1 << 30)), "GiB of host.bytes over all ranks".into()))
}
