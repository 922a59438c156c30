//! The GPUs that a process sees.

use std::collections::{BTreeMap, BTreeSet};

use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::{DeviceInfo, Engine};

use crate::flags::meaning::{Meaning, meaning};
use crate::flags::table::{Flag, all_flags};

/// The variable by which CUDA, and HIP after it, shows a process some of the GPUs.
pub(crate) const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// Those of AMD: HIP's stands over CUDA's, and counts what ROCm's runtime shows.
pub(crate) const OF_HIP: &str = "HIP_VISIBLE_DEVICES";
const OF_ROCR: &str = "ROCR_VISIBLE_DEVICES";

/// The variable by which NVIDIA's runtime shows a container some of them.
pub(crate) const OF_CONTAINER: &str = "NVIDIA_VISIBLE_DEVICES";

/// The variables on which an answer depends, beside those by which flags are stated too.
const READ: [&str; 54] = [
    VARIABLE,
    OF_HIP,
    OF_ROCR,
    "GGML_CUDA_ENABLE_UNIFIED_MEMORY",
    "PYTORCH_CUDA_ALLOC_CONF",
    "SGLANG_AITER_KV_CACHE_LAYOUT",
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
    "SGLANG_DISABLED_MODEL_ARCHS",
    "SGLANG_DISAGG_STAGING_BUFFER",
    "SGLANG_DSV4_COMPRESSED_KV_LAYOUT",
    "SGLANG_DSV4_COMPRESS_STATE_DTYPE",
    "SGLANG_DSV4_FP4_DEQUANT",
    "SGLANG_DSV4_KV_LAYOUT",
    "SGLANG_ENABLE_EMBED_REPLICATION",
    "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
    "SGLANG_ENABLE_PP_SPEC",
    "SGLANG_ENABLE_SPEC_V2",
    "SGLANG_EXTERNAL_MODEL_PACKAGE",
    "SGLANG_HACK_FLASHMLA_BACKEND",
    "SGLANG_INT4_WEIGHT",
    "SGLANG_MAMBA_CONV_DTYPE",
    "SGLANG_MAMBA_SSM_DTYPE",
    "SGLANG_MM_FEATURE_CACHE_MB",
    "SGLANG_NVFP4_CKPT_FP8_GEMM_IN_ATTN",
    "SGLANG_NVFP4_CKPT_FP8_NEXTN_MOE",
    "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK",
    "SGLANG_OPT_MINIMAX_M3_FP8_INDEX_CACHE",
    "SGLANG_OPT_USE_ONLINE_COMPRESS",
    "SGLANG_PLATFORM",
    "SGLANG_PLUGINS",
    "SGLANG_PP_LAYER_PARTITION",
    "SGLANG_RUST_SERVER",
    "SGLANG_SHARED_EXPERT_TP1",
    "SGLANG_SWA_EVICTION_INTERVAL",
    "SGLANG_USE_AITER_UNIFIED_ATTN",
    "SGLANG_USE_CUDA_IPC_TRANSPORT",
    "SGLANG_VLM_CACHE_SIZE_MB",
    "TLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_BATCH_INVARIANT",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_DP_SIZE",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_KV_CACHE_LAYOUT",
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
    "VLLM_MLA_DISABLE",
    "VLLM_PP_LAYER_PARTITION",
    "VLLM_SSM_CONV_STATE_LAYOUT",
    "VLLM_USE_RUST_FRONTEND",
    "VLLM_USE_V1",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_WORKER_MULTIPROC_METHOD",
];

/// Whether an answer depends on a variable.
pub(crate) fn is_read(name: &str) -> bool {
    // `LLAMA_ARG_NO_X` is the opposite of `LLAMA_ARG_X`.
    let turned = name.replacen("_NO_", "_", 1);
    let says = |engine: Engine| flags_of_variables(engine).any(|(of, _)| of == name || of == turned);
    READ.contains(&name) || Engine::all().iter().any(|engine| says(*engine))
}

/// The flags of an engine that say something of caches and that variables state too.
fn flags_of_variables(engine: Engine) -> impl Iterator<Item = (&'static str, &'static Flag)> {
    let says = move |flag: &&Flag| meaning(engine, flag) != Meaning::None;
    all_flags(engine).filter_map(|flag| Some((flag.env?, flag))).filter(move |(_, flag)| says(flag))
}

/// The variables on which the answer to a command of an engine depends: a flag stands over its variable.
pub(crate) fn read_by(engine: Engine, words: &[String]) -> BTreeSet<&'static str> {
    const OF_ENGINES: [(&str, &str); 4] =
        [("VLLM_", "vllm"), ("SGLANG_", "sglang"), ("TLLM_", "tensorrt-llm"), ("GGML_", "llama.cpp")];
    let of = |name: &str| OF_ENGINES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, engine)| *engine);
    let own = READ.into_iter().filter(|name| of(name).is_none_or(|of| of == engine.name()));
    let given: BTreeSet<&str> = words.iter().map(|word| word.split('=').next().unwrap_or(word)).collect();
    let is_stated = |flag: &Flag| flag.names().chain(flag.negated.iter().copied()).any(|name| given.contains(name));
    let stated: BTreeSet<&str> =
        flags_of_variables(engine).filter(|(_, flag)| is_stated(flag)).map(|(name, _)| name).collect();
    let all = flags_of_variables(engine).map(|(name, _)| name).chain(own);
    all.filter(|name| !stated.contains(name)).collect()
}

/// How many of so many GPUs a process sees: those that the variable lists in front of the first that is none, and none where it lists one
/// twice (CUDA's guide, and `_parse_visible_devices` of torch). Nothing where nobody says how many there are.
pub(crate) fn seen(env: &BTreeMap<String, String>, device: Option<&DeviceInfo>, there: Option<u32>) -> Option<u32> {
    let is_cuda = device.is_none_or(|device| device.kind != DeviceKind::Cpu && device.maker() != Some("Apple"));
    let limits = listing(env, device).into_iter().filter(|_| is_cuda);
    limits.fold(there, |there, name| Some(shown(&env[name], there.unwrap_or(u32::MAX))))
}

/// The variables that show some of the GPUs of that make, each of what the one before it shows.
pub(crate) fn listing(env: &BTreeMap<String, String>, device: Option<&DeviceInfo>) -> Vec<&'static str> {
    let of_amd = device.is_some_and(|device| device.maker() == Some("AMD"));
    let says = |name: &&str| env.get(*name).is_some_and(|listed| !of_amd || !listed.is_empty());
    let last = if of_amd && env.get(OF_HIP).is_some_and(|listed| !listed.is_empty()) { OF_HIP } else { VARIABLE };
    [of_amd.then_some(OF_ROCR), Some(last)].into_iter().flatten().filter(says).collect()
}

fn shown(listed: &str, there: u32) -> u32 {
    let by_name = ["GPU-", "MIG-"].into_iter().find(|prefix| listed.starts_with(prefix));
    let mut ids = Vec::new();
    for id in listed.split(',').map(str::trim) {
        let known = match by_name {
            Some(prefix) => id.starts_with(prefix).then(|| id.to_owned()),
            None => index(id).map(|index| index.to_string()),
        };
        let Some(id) = known else { break };
        if ids.contains(&id) {
            return 0;
        }
        ids.push(id);
    }
    let is_there = |id: &&String| by_name.is_some() || id.parse::<u32>().is_ok_and(|index| index < there);
    u32::try_from(ids.iter().take_while(is_there).count()).unwrap_or(u32::MAX).min(there)
}

/// The number that a text begins with, as `strtoul` reads it; none of one that is negative.
fn index(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::all("0,1,2,3", 4)]
    #[case::some(" 3, 1 ", 2)]
    #[case::none("", 0)]
    #[case::negative("-1", 0)]
    #[case::ends_at_a_negative("0,-1,1", 1)]
    #[case::ends_at_one_too_many("0,7,1", 1)]
    #[case::begins_with_one_too_many("4", 0)]
    #[case::twice("0,0", 0)]
    #[case::twice_behind_another("1,2,01", 0)]
    #[case::no_number("all", 0)]
    #[case::begins_with_a_number("1gpu,2", 2)]
    #[case::names("GPU-a,GPU-b", 2)]
    #[case::a_name_twice("GPU-a,GPU-a", 0)]
    #[case::a_name_and_a_number("GPU-a,1", 1)]
    #[case::more_names_than_gpus("GPU-a,GPU-b,GPU-c,GPU-d,GPU-e", 4)]
    fn a_process_of_four_gpus_sees_those_before_the_first_that_is_none(#[case] listed: &str, #[case] expected: u32) {
        let env = BTreeMap::from([(VARIABLE.to_owned(), listed.to_owned())]);
        assert_eq!(seen(&env, None, Some(4)), Some(expected));
        let apple = DeviceInfo::cuda("Apple M4 Max", 1 << 30, 1 << 30);
        assert_eq!(seen(&env, Some(&apple), Some(1)), Some(1));
        assert_eq!(seen(&BTreeMap::new(), None, Some(4)), Some(4));
    }
}
