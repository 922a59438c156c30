//! Flags and variables that 0.33.0 takes one by one and refuses together, or for a model: what its configuration refuses was asked of it
//! (`cargo xtask oracle vllm-commands`), what its workers refuse was read.

use cacheplan_handlers::Kind;
use cacheplan_planner::engines::Version;
use serde_json::Value;

use super::super::rules::{Case, Row, Rule, listed, lists, since, takes_more_than_text};
use super::super::{of_config, speculative};
use super::graphs::Graphs;
use super::names::{QUANTIZATIONS, WITHOUT_ADAPTERS};
use super::{attention, dtype};
use crate::visible::{OF_HIP, VARIABLE};

pub(super) const READ: Version = Version(0, 33, 0);

const EXPERTS: &str = "--enable-expert-parallel";
const BALANCE: &str = "--enable-eplb";
const RANKS: &str = "--tensor-parallel-size";
const PROMPTS: &str = "--prefill-context-parallel-size";
const REPLICAS: &str = "--data-parallel-size";
const STAGES: &str = "--pipeline-parallel-size";
const BATCHES: &str = "--ubatch-size";
const TWO_BATCHES: &str = "--enable-dbo";
const DECODES: &str = "--dbo-decode-token-threshold";
const PREFILLS: &str = "--dbo-prefill-token-threshold";
const LARGEST: &str = "--max-cudagraph-capture-size";
const COMPILE: &str = "--compilation-config";
const CHUNKS: &str = "--enable-chunked-prefill";
const CACHING: &str = "--enable-prefix-caching";
const SPECULATIVE: &str = "--speculative-config";
const METHOD: &str = "--spec-method";
const TOKENS: &str = "--spec-tokens";
const METRICS: &str = "--per-request-spec-decode-metrics";
const ROUTED: &str = "--enable-return-routed-experts";
const ELASTIC: &str = "--enable-elastic-ep";
const LOCAL: &str = "--data-parallel-size-local";
const SERVERS: &str = "--api-server-count";
const MANY_PORTS: &str = "--data-parallel-multi-port-external-lb";
const KERNEL: &str = "--mamba-backend";
const ALGORITHM: &str = "--mamba-ssu-algorithm";
const BUFFERS: &str = "--use-replayssm";
const SHARDED: &str = "--enable-batch-sharded-sampling";
const DTYPE: &str = "--dtype";
const QUANTIZATION: &str = "--quantization";
const UNIT: &str = "--prefix-match-unit";
const PARTITION: &str = "VLLM_PP_LAYER_PARTITION";
const TRANSFER: &str = "--kv-transfer-config";
const SEQUENCES: &str = "--max-num-seqs";
const PROBABILITIES: &str = "--max-logprobs";
const MASK: &str = "--return-sampling-mask";
const TEXT: &str = "--language-model-only";
const TENSORS: &str = "--mm-tensor-ipc";
const PROCESSOR: &str = "--mm-processor-device";
const ROUNDING: &str = "--enable-mamba-cache-stochastic-rounding";
const HYPER: &str = "--enable-hc-sp";
const ADAPTERS: &str = "--enable-lora";
const STORED_ADAPTERS: &str = "--max-cpu-loras";

/// Variables that it reads as whole numbers before it has caches.
const NUMBERS: [&str; 9] = [
    "VLLM_DP_SIZE",
    "VLLM_DP_RANK",
    "VLLM_DP_RANK_LOCAL",
    "VLLM_DP_MASTER_PORT",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_USE_RUST_FRONTEND",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    INVARIANT,
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
];
const INVARIANT: &str = "VLLM_BATCH_INVARIANT";

/// Variables that take these words alone (`env_with_choices`), of those that it asks for before it has caches; the last of states alone.
const CHOICES: [(&str, &str); 3] = [
    ("VLLM_KV_CACHE_LAYOUT", "LBNHC LBHNC LHBNC NHD HND BLHNC BLNHC BHLNC"),
    ("VLLM_WORKER_MULTIPROC_METHOD", "spawn fork"),
    ("VLLM_SSM_CONV_STATE_LAYOUT", "SD DS"),
];

/// Methods that draft without a model beside the one that is served (`SpeculativeConfig.__post_init__`).
const BY_THEMSELVES: &str = "mtp dspark ngram [ngram] ngram_gpu suffix extract_hidden_states custom_class";

/// Classes with a history of states beside them (`SupportsReplaySSM` of its registry).
const WITH_BUFFERS: &str = "nemotron_h nemotron_h_puzzle kimi_linear kimi_k3";

/// Methods of which the files must say how they were quantised.
const OF_FILES: &str = "awq awq_marlin gptq gptq_marlin compressed-tensors torchao";

/// Methods that read each other's files; of others of these none does.
const FAMILIES: [&str; 9] = [
    "awq awq_marlin auto_awq",
    "gptq gptq_marlin auto_gptq",
    "fp8 deepseek_v4_fp8",
    "modelopt modelopt_fp4 modelopt_mxfp8 modelopt_mixed",
    "mxfp4 gpt_oss_mxfp4",
    "compressed-tensors",
    "quark",
    "torchao",
    "fp8_per_tensor fp8_per_block fp8_per_channel int8_per_channel_weight_only nvfp4_per_token",
];

/// Methods, the least capability of a GPU that they need, and the dtypes that a model is run in by them (`get_min_capability`,
/// `get_supported_act_dtypes`).
const METHODS: [(&str, u32, &str); 10] = [
    ("fp8", 75, "bfloat16 float16"),
    ("awq awq_marlin auto_awq", 75, "float16 bfloat16"),
    ("gptq gptq_marlin auto_gptq inc", 60, "float16 bfloat16"),
    ("mxfp4 gpt_oss_mxfp4", 80, "bfloat16"),
    ("modelopt modelopt_mxfp8", 80, "bfloat16 float16"),
    ("modelopt_fp4 modelopt_mixed", 75, "bfloat16 float16"),
    ("fbgemm_fp8 experts_int8", 80, "bfloat16 float16"),
    ("quark moe_wna16", 70, "float16 bfloat16"),
    ("compressed-tensors", 70, "float32 float16 bfloat16"),
    ("torchao", 75, "float32 float16 bfloat16"),
];

/// How the files of a model were quantised, by its name for that.
fn of_files(case: &Case<'_>) -> Option<String> {
    let section = case.model.model()?.stated("quantization_config")?;
    let method = section.get("quant_method")?.as_str()?.to_lowercase().replace('_', "-");
    let algorithm =
        section.get("quant_algo").and_then(|algorithm| algorithm.as_str()).unwrap_or_default().to_uppercase();
    Some(match &*method {
        "compressed-tensors" => method,
        "auto-round" | "intel/auto-round" => "inc".to_owned(),
        "modelopt" if algorithm.contains("NVFP4") => "modelopt_fp4".to_owned(),
        "modelopt" if algorithm.contains("MXFP8") => "modelopt_mxfp8".to_owned(),
        "modelopt" if algorithm.contains("MIXED") => "modelopt_mixed".to_owned(),
        _ => method.replace('-', "_"),
    })
}

/// What it refuses of flags alone, or of those of models that take more than text.
pub(super) const ROWS: &[Row] = &[
    (
        "--collect-detailed-traces !--otlp-traces-endpoint",
        "collect_detailed_traces requires `--otlp-traces-endpoint` to be set.",
    ),
    (
        "@more-than-text --mm-shm-cache-max-object-size-mb !--mm-shm-cache-max-object-size-mb=128 !--mm-processor-cache-type=shm",
        "'mm_shm_cache_max_object_size_mb' should only be set when 'mm_processor_cache_type' is 'shm'.",
    ),
    (
        "@more-than-text --mm-encoder-attn-backend=XFORMERS|xformers",
        "Attention backend 'XFORMERS' has been removed (See PR #29262 for details). Please select a supported attention backend.",
    ),
    ("@more-than-text --mm-encoder-fp8-scale-path !--mm-encoder-attn-dtype=fp8", SCALES),
    ("@more-than-text --mm-encoder-fp8-scale-save-path !--mm-encoder-attn-dtype=fp8", SCALES),
    (
        "--enable-per-request-metrics --disable-log-stats",
        "Error: --enable-per-request-metrics requires engine statistics logging; remove --disable-log-stats to enable per-request metrics.",
    ),
    (
        "--enable-lora --moe-backend=deep_gemm_mega_moe|aiter_mega_moe|flashinfer_moe_ep_cutedsl|flashinfer_moe_ep_mega_deep_gemm",
        "LoRA is not supported with such a moe_backend. Disable LoRA or select a MoE backend that supports LoRA.",
    ),
];

const SCALES: &str =
    "'mm_encoder_fp8_scale_path' and 'mm_encoder_fp8_scale_save_path' require 'mm_encoder_attn_dtype' to be 'fp8'.";

pub(super) const RULES: &[Rule] = &[
    since(READ, &[], |case| {
        let is_number = |value: &str| value.trim().replace('_', "").parse::<i64>().is_ok();
        let stated = |name: &'static str| Some((name, case.question.env.get(name)?));
        let (name, value) = NUMBERS.into_iter().filter_map(stated).find(|(_, value)| !is_number(value))?;
        Some(format!("{name}: invalid literal for int() with base 10: '{value}'"))
    }),
    since(READ, &[], |case| {
        let asked = if case.has_states() { &CHOICES[..] } else { &CHOICES[..2] };
        let stated = |(name, words): (&'static str, &'static str)| Some((name, words, case.question.env.get(name)?));
        let (name, words, value) =
            asked.iter().copied().filter_map(stated).find(|(_, words, value)| !lists(words, value))?;
        let words: Vec<&str> = words.split(' ').collect();
        Some(format!("Invalid value '{value}' for {name}. Valid options: {}.", words.join(", ")))
    }),
    since(READ, &[], |case| {
        let [of_hip, of_cuda] = [OF_HIP, VARIABLE].map(|name| case.question.env.get(name).filter(|it| !it.is_empty()));
        let is_amd = case.question.is_on_amd();
        let (of_hip, of_cuda) = of_hip.zip(of_cuda).filter(|(of_hip, of_cuda)| is_amd && of_hip != of_cuda)?;
        Some(format!(
            "Inconsistent GPU visibility env vars: {OF_HIP}='{of_hip}' vs {VARIABLE}='{of_cuda}'. Please set only one, or ensure they match."
        ))
    }),
    since(READ, &[], |case| {
        let holds = |value: &String| value.trim().parse::<i64>().is_ok_and(|number| number != 0);
        let is_on = case.question.env.get(INVARIANT).is_some_and(holds);
        match is_on {
            true if case.has_states() => {
                Some("VLLM batch_invariant mode is not supported for the kernels of its states.".into())
            }
            true if case.keeps(&Kind::IndexKey) => Some(
                "No valid attention backend found: batch invariance not supported by those of sparse latents".into(),
            ),
            _ => None,
        }
    }),
    since(READ, &[BALANCE, EXPERTS], |case| {
        let ranks = [RANKS, PROMPTS, REPLICAS].map(|flag| case.size(flag));
        match case.is_on(BALANCE) {
            true if !case.is_on(EXPERTS) => Some("enable_expert_parallel must be True to use EPLB.".into()),
            true if ranks.iter().all(|size| *size <= 1) => Some(format!(
                "EPLB requires tensor, prefill-context, or data parallelism, but got TP={}, PCP={}, DP={}.",
                ranks[0], ranks[1], ranks[2]
            )),
            _ => None,
        }
    }),
    since(READ, &[BATCHES, TWO_BATCHES, DECODES, PREFILLS], |case| {
        let batches = if case.is_on(TWO_BATCHES) { 2 } else { case.question.count(BATCHES)? };
        let threshold = |flag: &str, usual: u64| case.question.count(flag).unwrap_or(usual);
        let least = threshold(DECODES, 32).min(threshold(PREFILLS, 512));
        (batches > 1 && least < batches).then(|| {
            format!(
                "dbo_decode_token_threshold and dbo_prefill_token_threshold must be at least the number of microbatches ({batches})."
            )
        })
    }),
    since(READ, &[LARGEST, COMPILE], |case| {
        let config = case.object(COMPILE);
        let stated =
            case.whole(LARGEST).or_else(|| config.get("max_cudagraph_capture_size").and_then(Value::as_i64))?;
        (stated < 1 && Graphs::of(case.question) != Graphs::None)
            .then(|| "Maximum cudagraph size should be greater than or equal to 1 when using cuda graph.".into())
    }),
    since(READ, &[CHUNKS], |case| {
        let cuts = case.question.flag(CHUNKS).is_none_or(|setting| setting.on);
        let has_pages = [Kind::KvPaged, Kind::MlaPaged].iter().any(|kind| case.keeps(kind));
        let keeps = case.question.flag(CACHING).map_or(has_pages, |setting| setting.on);
        (!cuts && keeps && case.has_states()).then(|| "Chunked prefill is required for Mamba prefix caching.".into())
    }),
    since(READ, &[SPECULATIVE, METHOD, TOKENS], |case| {
        let config = speculative::config(case.question).ok()?;
        let Some(config) = config else {
            return case.is_stated(SPECULATIVE).then(|| {
                "num_speculative_tokens must be provided with speculative model unless the draft model config contains an n_predict parameter.".into()
            });
        };
        let method = speculative::method(&config);
        let alone = lists(BY_THEMSELVES, method) || method.ends_with("_mtp");
        let says = |key: &str| config.get(key).is_some_and(|value| !value.is_null());
        if !alone && !says("model") && says("num_speculative_tokens") {
            return Some("num_speculative_tokens was provided but without speculative model.".into());
        }
        if says("tensor_parallel_size") {
            return Some(
                "'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass 'draft_tensor_parallel_size' instead."
                    .into(),
            );
        }
        let synthetic = config.get("rejection_sample_method").and_then(Value::as_str) == Some("synthetic");
        let rated = says("synthetic_acceptance_rates") || says("synthetic_acceptance_length");
        (rated && !synthetic).then(|| {
            "synthetic_acceptance_rates / synthetic_acceptance_length are only valid with rejection_sample_method='synthetic'."
                .into()
        })
    }),
    since(READ, &[METRICS, SPECULATIVE], |case| {
        let counts = case.word(METRICS).is_some_and(|word| word != "none");
        let drafts = speculative::config(case.question).ok().flatten().is_some();
        (counts && !drafts).then(|| {
            "--per-request-spec-decode-metrics requires speculative decoding to be enabled (via --speculative-config).".into()
        })
    }),
    since(READ, &[ROUTED, CACHING], |case| {
        let keeps = case.question.flag(CACHING).is_none_or(|setting| setting.on);
        match case.is_on(ROUTED) {
            true if case.is_dense() => Some("AuxOutput Connector only supports MoE models.".into()),
            true if !keeps => Some("AuxOutput Connector requires prefix caching.".into()),
            true if case.size(STAGES) > 1 => {
                Some("--enable-return-routed-experts is incompatible with pipeline parallelism (PP > 1).".into())
            }
            _ => None,
        }
    }),
    since(READ, &[ADAPTERS], |case| {
        let class = case.model.model()?.stated("architectures")?.get(0)?.as_str()?;
        (case.is_on(ADAPTERS) && lists(WITHOUT_ADAPTERS, class)).then(|| {
            format!(
                "LoRA is not supported for ['{class}']. Supported models implement the `SupportsLoRA` interface. Run this model without `enable_lora`."
            )
        })
    }),
    since(READ, &[STORED_ADAPTERS, "--max-loras"], |case| {
        let (stored, at_once) = (case.question.count(STORED_ADAPTERS)?, case.size("--max-loras"));
        (case.is_on(ADAPTERS) && 0 < stored && stored < at_once)
            .then(|| format!("max_cpu_loras ({stored}) must be >= max_loras ({at_once})."))
    }),
    since(READ, &[ADAPTERS, SPECULATIVE, SEQUENCES], |case| {
        let config = speculative::config(case.question).ok().flatten().filter(|_| case.is_on(ADAPTERS))?;
        let drafted = config.get("num_speculative_tokens").and_then(super::words::whole)?;
        let needed = case.limits.max_batch_size?.saturating_mul(drafted.saturating_add(1));
        (case.limits.max_num_tokens < needed).then(|| {
            format!(
                "Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens ({} tokens of a step, {needed} are needed)",
                case.limits.max_num_tokens
            )
        })
    }),
    since(READ, &["--eplb-config"], |case| {
        let extra = case.object("--eplb-config").get("num_redundant_experts").and_then(Value::as_i64)?;
        (extra != 0 && !case.is_on(BALANCE)).then(|| {
            format!("num_redundant_experts is set to {extra} but EPLB is not enabled. Either enable EPLB or unset num_redundant_experts.")
        })
    }),
    since(READ, &[ELASTIC], |case| {
        (case.is_on(ELASTIC) && !case.is_on(BALANCE))
            .then(|| "Elastic EP is only supported with enable_eplb=True.".into())
    }),
    // One server supervises a replica behind each port.
    since(READ, &[MANY_PORTS, REPLICAS, LOCAL, SERVERS], |case| {
        let (replicas, local) = (case.size(REPLICAS), case.question.count(LOCAL).unwrap_or(0));
        let first = case.question.count("--data-parallel-start-rank").unwrap_or(0);
        let servers = case.question.count(SERVERS).filter(|servers| *servers != 1);
        let keys = case.is_stated("--ssl-keyfile") != case.is_stated("--ssl-certfile");
        let refused = [
            (case.is_stated("--uds"), format!("{MANY_PORTS} does not support --uds")),
            (keys, "--ssl-keyfile and --ssl-certfile must be provided together".to_owned()),
            (servers.is_some(), format!("{MANY_PORTS} currently requires {SERVERS}=1")),
            (replicas < 2, format!("{MANY_PORTS} requires {REPLICAS} > 1")),
            (local < 2, format!("{MANY_PORTS} requires {LOCAL} >= 2")),
            (local > replicas, format!("{LOCAL} cannot exceed {REPLICAS}")),
            (!replicas.is_multiple_of(local), format!("{REPLICAS} must be divisible by {LOCAL}")),
            (first.saturating_add(local) > replicas, format!("multi-port supervised ranks would exceed {REPLICAS}")),
        ];
        let (_, said) = refused.into_iter().find(|(is, _)| *is && case.is_on(MANY_PORTS))?;
        Some(format!("Error: {said}"))
    }),
    since(READ, &["--profiler-config"], |case| {
        let config = case.object("--profiler-config");
        let torch = config.get("profiler").and_then(Value::as_str) == Some("torch");
        let folder = config.get("torch_profiler_dir").and_then(Value::as_str).is_some_and(|folder| !folder.is_empty());
        match (torch, folder) {
            (true, false) => Some("torch_profiler_dir must be set when profiler is 'torch'".into()),
            (false, true) => Some("torch_profiler_dir is only applicable when profiler is set to 'torch'".into()),
            _ => None,
        }
    }),
    since(READ, &["--logits-processors", SPECULATIVE], |case| {
        (case.is_stated("--logits-processors") && case.is_stated(SPECULATIVE))
            .then(|| "Custom logits processors are not supported when speculative decoding is enabled.".into())
    }),
    since(READ, &[], |case| {
        let level = case.question.env.get("VLLM_LOGGING_LEVEL")?.to_uppercase();
        let known = lists("CRITICAL FATAL ERROR WARN WARNING INFO DEBUG NOTSET", &level);
        (!known && !level.is_empty()).then(|| format!("Unable to configure handler 'vllm': unknown level '{level}'"))
    }),
    since(READ, &[ALGORITHM, KERNEL], |case| {
        let other = !case.word(KERNEL).is_some_and(|kernel| kernel.eq_ignore_ascii_case("flashinfer"));
        (case.is_stated(ALGORITHM) && other).then(|| {
            "Mamba SSU algorithm selection is only supported with the FlashInfer backend. Please set `--mamba-backend flashinfer`."
                .into()
        })
    }),
    since(READ, &[BUFFERS], |case| {
        let lacks = !lists(WITH_BUFFERS, case.model_type());
        let older = case.question.env.get("VLLM_USE_V2_MODEL_RUNNER").is_some_and(|value| value.trim() == "0");
        let by_triton = case.word(KERNEL).is_none_or(|kernel| kernel.eq_ignore_ascii_case("triton"));
        match case.is_on(BUFFERS) {
            true if lacks => {
                Some(format!("--use-replayssm is not supported for architecture of type '{}'", case.model_type()))
            }
            true if case.is_stated(TRANSFER) => {
                Some("--use-replayssm is incompatible with KV connectors (P/D disaggregation, KV cache offload)".into())
            }
            true if by_triton && !older && case.model_type().starts_with("nemotron") => Some(
                "Triton ReplaySSM requires Model Runner V1; use --mamba-backend flashinfer or Model Runner V1".into(),
            ),
            _ => None,
        }
    }),
    since(READ, &[SHARDED, RANKS, SEQUENCES, PROBABILITIES, MASK], |case| {
        let (ranks, most) = (case.size(RANKS), case.limits.max_batch_size.unwrap_or(u64::MAX));
        let few = format!("max_num_seqs ({most}) is below tensor_parallel_size ({ranks})");
        let blockers: Vec<&str> = [
            (ranks <= 1, "tensor_parallel_size is 1, so there is nothing to shard"),
            (ranks > 1 && most < ranks, &few),
            (
                case.whole(PROBABILITIES).is_some_and(|most| most < 0),
                "max_logprobs is -1, allowing vocab-size logprob requests",
            ),
            (
                case.is_on(MASK),
                "return_sampling_mask is set and the batch-sharded gather does not forward sampling masks",
            ),
        ]
        .into_iter()
        .filter_map(|(holds, why)| holds.then_some(why))
        .collect();
        (case.is_on(SHARDED) && !blockers.is_empty()).then(|| {
            format!(
                "Batch-sharded sampling was explicitly enabled via the --enable-batch-sharded-sampling flag, but is not supported in this configuration for the following reason(s): {}.",
                blockers.join("; ")
            )
        })
    }),
    since(READ, &[TEXT, COMPILE], |case| {
        let captures = case.object(COMPILE).get("cudagraph_mm_encoder").and_then(Value::as_bool) == Some(true);
        (case.is_on(TEXT) && captures).then(|| {
            "--language-model-only is incompatible with cudagraph_mm_encoder=True, since it disables all multimodal inputs and the multimodal encoder is never run. Please disable one of them."
                .into()
        })
    }),
    since(READ, &[TENSORS, RANKS, STAGES, REPLICAS], |case| {
        const SPAWNS: &str = "VLLM_WORKER_MULTIPROC_METHOD";
        let several = [RANKS, STAGES, REPLICAS].iter().any(|flag| case.size(flag) > 1);
        let spawns = case.question.env.get(SPAWNS).is_some_and(|method| method.trim() == "spawn");
        match case.word(TENSORS) == Some("torch_shm") && takes_more_than_text(case.model) {
            true if several => Some(
                "mm_tensor_ipc='torch_shm' is not supported with data_parallel_size > 1 or tensor_parallel_size > 1 or pipeline_parallel_size > 1."
                    .into(),
            ),
            true if !spawns => Some(format!("torch_shm is known to fail without {SPAWNS} set to spawn")),
            _ => None,
        }
    }),
    since(READ, &["--disable-chunked-mm-input", "--enable-prefix-caching"], |case| {
        (case.is_on("--disable-chunked-mm-input") && case.has_states() && case.question.keeps_prefixes()).then(|| {
            "Chunked MM input is required because we need the flexibility to schedule a multiple of block_size tokens even if they are in the middle of a mm input".into()
        })
    }),
    since(READ, &[PROCESSOR], |case| {
        // An instance that encodes alone has no caches.
        let word = case.unlisted(PROCESSOR, "auto cpu").filter(|_| takes_more_than_text(case.model))?;
        Some(format!(
            "Cannot run the multi-modal processor on '{word}': this instance also runs the language model. Use --mm-processor-device=cpu, or drop \"device\" from --mm-processor-kwargs."
        ))
    }),
    since(READ, &[ROUNDING, KERNEL], |case| {
        let by_triton = case.word(KERNEL).is_none_or(|kernel| kernel.eq_ignore_ascii_case("triton"));
        let other = case.generation().is_some_and(|generation| generation != 10);
        (case.is_on(ROUNDING) && by_triton && other).then(|| {
            "Stochastic rounding for Mamba cache with triton backend requires compute capability 10.0 (data center Blackwell). The `cvt.rs` PTX instruction is not supported on your GPU. Please do not specify `--enable-mamba-cache-stochastic-rounding`, or set `--mamba-backend flashinfer`."
                .into()
        })
    }),
    since(READ, &[HYPER, RANKS], |case| {
        let lacks = !case.model_type().starts_with("qwen4_exp");
        (case.is_on(HYPER) && case.size(RANKS) > 1 && lacks)
            .then(|| "--enable-hc-sp is not supported for this model".into())
    }),
    since(READ, &[DTYPE], |case| {
        let method = of_files(case)?;
        let (_, least, words) = METHODS.iter().find(|(names, ..)| lists(names, &method))?;
        if let Some(capability) = case.capability().filter(|capability| capability < least) {
            return Some(format!(
                "The quantization method {method} is not supported for the current GPU. Minimum capability: {least}. Current capability: {capability}."
            ));
        }
        let run_in = dtype::run_as(case.question, case.model)?;
        let word = dtype::word(run_in).filter(|word| !lists(words, word))?;
        let words: Vec<String> = words.split(' ').map(|word| format!("torch.{word}")).collect();
        Some(format!(
            "torch.{word} is not supported for quantization method {method}. Supported dtypes: [{}]",
            words.join(", ")
        ))
    }),
    since(READ, &[QUANTIZATION], |case| {
        // What a checkpoint was quantised by is asked as what a flag says.
        const DEPRECATED: &str = "fbgemm_fp8";
        let word = case.word(QUANTIZATION).map(str::to_lowercase).or_else(|| of_files(case))?;
        match &*word {
            unknown if !unknown.is_empty() && !lists(QUANTIZATIONS, unknown) => {
                Some(format!("Unknown quantization method: {unknown}. Must be one of {}.", listed(QUANTIZATIONS)))
            }
            DEPRECATED if !case.is_on("--allow-deprecated-quantization") => Some(format!(
                "The quantization method {word} is deprecated and will be removed in future versions of vLLM. To bypass, set `--allow-deprecated-quantization`."
            )),
            _ => None,
        }
    }),
    since(READ, &[QUANTIZATION], |case| {
        let word = case.word(QUANTIZATION)?.to_lowercase();
        let is_said = case.model.model()?.config.get("quantization_config").is_some_and(|section| !section.is_null());
        (lists(OF_FILES, &word) && !is_said).then(|| format!("Cannot find the config file for {word}"))
    }),
    since(READ, &[QUANTIZATION], |case| {
        let word = case.word(QUANTIZATION)?.to_lowercase();
        let of_files = of_files(case)?;
        let family = |name: &str| FAMILIES.iter().position(|names| lists(names, name));
        let differ = family(&word).zip(family(&of_files)).is_some_and(|(stated, stored)| stated != stored);
        differ.then(|| {
            format!(
                "Quantization method specified in the model config ({of_files}) does not match the quantization method specified in the `quantization` argument ({word})."
            )
        })
    }),
    since(READ, &[UNIT], |case| {
        let unit = case.question.count(UNIT)?;
        let looks = case.question.flag(CACHING).is_none_or(|setting| setting.on) || case.is_stated(TRANSFER);
        let block = case.question.count("--block-size").unwrap_or(attention::READ);
        let several = !case.keeps_all_alike() && !case.has_states();
        (looks && several && !block.is_multiple_of(unit)).then(|| {
            format!(
                "Invalid prefix_match_unit={unit}; prefix-cacheable KV cache group block sizes must be divisible by prefix_match_unit."
            )
        })
    }),
    since(READ, &[STAGES], |case| {
        let parts = case.question.env.get(PARTITION).filter(|parts| !parts.is_empty())?;
        let stages = case.size(STAGES);
        let all: Option<Vec<u64>> = parts.split(',').map(|part| part.trim().parse().ok()).collect();
        let Some(all) = all else { return Some(format!("Invalid partition string: {parts}")) };
        let sum = all.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
        match of_config(case.model, "num_hidden_layers") {
            _ if u64::try_from(all.len()) != Ok(stages) => {
                Some(format!("len(partitions)={} does not match pp_size={stages}.", all.len()))
            }
            Some(layers) if layers != sum => {
                Some(format!("sum(partitions)={sum} does not match num_hidden_layers={layers}."))
            }
            _ => None,
        }
    }),
];
