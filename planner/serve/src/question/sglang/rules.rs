//! What SGLang refuses behind its parser, by the words of 0.5.23 (`arg_groups/` and `server_args.py`).

use cacheplan_planner::logs::failures::NOTHING_LEFT_OF_SHARE;

use super::super::Question;
use super::super::rules::{Case, Row, Rule, lists, look as look_at_rules, look_at_rows, since};
use super::{READ, kernels, weights};
use crate::error::ServeError;

const STRATEGY: &str = "--mamba-radix-cache-strategy";
const DRAFTS: &str = "--speculative-algorithm";
const NO_OVERLAP: &str = "--disable-overlap-schedule";
const SENDS: &str = "--moe-a2a-backend";
const INTERVAL: &str = "--mamba-track-interval";

/// `SpeculativeAlgorithm`, with the other name of one.
const ALGORITHMS: &str = "DFLASH UNO DSPARK EAGLE EAGLE3 FROZEN_KV_MTP STANDALONE NGRAM NONE NEXTN";

pub(super) fn look(case: &Case<'_>) -> Result<(), ServeError> {
    if case.question.engine.version >= READ {
        look_at_rows(ROWS, case.question, Some(case))?;
    }
    look_at_rules(RULES, case)
}

/// What is refused whatever the model is.
pub(super) fn look_at_words(question: &Question) -> Result<(), ServeError> {
    if question.engine.version >= READ { look_at_rows(ROWS, question, None) } else { Ok(()) }
}

const STATES: &str = "--mamba-max-states-per-path must be -1 (unlimited) or a positive integer";

/// What flags alone say.
const ROWS: &[Row] = &[
    ("--tp-size=0", "integer division or modulo by zero"),
    ("--pp-size=0", "integer division or modulo by zero"),
    ("--nnodes<1", "integer modulo by zero"),
    ("--page-size=0", "integer modulo by zero"),
    ("--context-length=0", "division by zero"),
    ("--max-total-tokens<1", NOTHING_LEFT_OF_SHARE),
    ("--max-total-tokens<2 @states", "Hybrid (mamba/linear-attention) state cache is too small to serve any requests."),
    ("--disaggregation-decode-host-receive-threshold<0", THRESHOLD),
    ("--disaggregation-decode-host-receive-threshold>1", THRESHOLD),
    (
        "--disaggregation-decode-host-receive-threshold<1 !--disaggregation-mode=decode",
        "--disaggregation-decode-retraction-backup=host_pool is only supported on a PD decode server.",
    ),
    (
        "--elastic-ep-initial-size !--max-ep-size",
        "--elastic-ep-initial-size is only valid for an Elastic EP deployment with --max-ep-size larger than its local TP size.",
    ),
    ("--cuda-graph-prefill-max-context<1", "--cuda-graph-prefill-max-context must be a positive integer"),
    ("--speculative-moe-a2a-backend=deepep_v2", "DeepEP v2 MoE is not validated as a speculative draft backend."),
    ("--moe-dp-size<1", "attn_cp_size != moe_dp_size is only supported when moe_dp_size == 1"),
    ("--grpc-port<1", "--grpc-port / SGLANG_GRPC_PORT must be between 1 and 65535"),
    ("--grpc-port>65535", "--grpc-port / SGLANG_GRPC_PORT must be between 1 and 65535"),
    (
        "--enable-layernorm-sp !--tp-size>1",
        "--enable-layernorm-sp requires tp_size > 1: there is no sequence to shard across a single TP rank.",
    ),
    ("--shared-experts-tp-size !@kimi_k3", "--shared-experts-tp-size is only supported for Kimi-K3."),
    (
        "--quantize-and-serve !--quantization",
        "quantize_and_serve requires ModelOpt quantization (set with --quantization {modelopt, modelopt_fp8, modelopt_fp4, modelopt_mixed})",
    ),
    (
        "--model-config-parser !--model-config-parser=auto|hf|mistral",
        "Unknown model-config parser. Registered: ['hf', 'mistral']",
    ),
    ("--tokenizer-worker-num<1", "Tokenizer worker num must >= 1"),
    ("--detokenizer-worker-num<1", "Detokenizer worker num must >= 1"),
    ("--mm-processor-worker-num<0", "Multimodal processor worker num must >= 0"),
    ("--mm-io-worker-num<0", "Multimodal I/O worker num must >= 0"),
    ("--base-gpu-id<0", "base_gpu_id must be non-negative"),
    ("--gpu-id-step<1", "gpu_id_step must be positive"),
    ("--pp-max-micro-batch-size<1", "pp_max_micro_batch_size must be a positive integer or None (for auto-compute)."),
    ("--max-loras-per-batch<1", "max_loras_per_batch must be positive"),
    ("--schedule-conservativeness<0", "schedule_conservativeness must be non-negative"),
    ("--attn-dp-size<1", "--attn-dp-size must be positive"),
    ("--dcp-size<1", "Decode context parallel size (--dcp-size / --decode-context-parallel-size) must be >= 1"),
    ("--sampling-mask-max-tokens<1", "--sampling-mask-max-tokens must be positive"),
    ("--prefill-decode-interval<0", "--prefill-decode-interval must be non-negative."),
    ("--prefill-decode-interval-min-bs<0", "--prefill-decode-interval-min-bs must be non-negative."),
    ("--asr-max-buffer-seconds<1", "--asr-max-buffer-seconds must be positive"),
    ("--asr-max-concurrent-sessions<1", "--asr-max-concurrent-sessions must be positive"),
    ("--grpc-response-timeout-secs<1e-300", "--grpc-response-timeout-secs must be positive"),
    ("--mamba-max-states-per-path=0", STATES),
    ("--mamba-max-states-per-path<-1", STATES),
    (
        "--enable-mamba-cache-stochastic-rounding !--mamba-ssm-dtype=float16",
        "Stochastic rounding for the Mamba SSM cache requires --mamba-ssm-dtype float16.",
    ),
    (
        "--enable-mamba-cache-stochastic-rounding --mamba-backend=triton @before-blackwell",
        "Stochastic rounding for the Mamba SSM cache with --mamba-backend triton requires SM100 with CUDA >= 12.8",
    ),
    (
        "--enable-return-aux-hidden-states !--speculative-algorithm=EAGLE3|DFLASH|DSPARK",
        "--enable-return-aux-hidden-states needs --speculative-algorithm EAGLE3, DFLASH or DSPARK to name the capture convention",
    ),
    ("--mamba-cache-philox-rounds<0", "--mamba-cache-philox-rounds must be non-negative."),
    ("--hicache-host-memory-fraction<1e-300", "--hicache-host-memory-fraction must be in (0, 1]."),
    ("--hicache-host-memory-fraction>1", "--hicache-host-memory-fraction must be in (0, 1]."),
    (
        "--enable-hierarchical-cache !@keeps-prefixes",
        "The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive and cannot be used at the same time. Please use only one of them.",
    ),
    (
        "--enable-lmcache --enable-hierarchical-cache",
        "--enable-lmcache and --enable-hierarchical-cache are mutually exclusive",
    ),
    ("--enable-lmcache !@keeps-prefixes", "--enable-lmcache requires radix cache to be enabled"),
    ("--enable-lmcache --speculative-algorithm", "LMCacheUnifiedRadixCache does not yet support speculative decoding"),
    ("--enable-lmcache @attn-dp", "LMCacheUnifiedRadixCache does not yet support DP attention"),
    (
        "--enable-lmcache --dcp-size>1",
        "--enable-lmcache with --dcp-size > 1 is not supported: LMCache has no DCP-aware index translation",
    ),
    (
        "--enable-lmcache !--disaggregation-mode=null",
        "LMCacheUnifiedRadixCache currently supports colocated prefill/decode scheduling only",
    ),
    (
        "--disable-cuda-graph-padding --enable-torch-compile",
        "--disable-cuda-graph-padding is incompatible with --enable-torch-compile.",
    ),
    ("--enable-prefill-cp !--cp-strategy", "--cp-strategy must be set when --enable-prefill-cp is enabled."),
    ("--moe-dp-size>1 !--attn-cp-size>1", "attn_cp_size != moe_dp_size is only supported when moe_dp_size == 1"),
    ("--dcp-replicate-q-proj !--dcp-size>1", "--dcp-replicate-q-proj requires --dcp-size > 1."),
    (
        "--dcp-comm-backend=a2a|fi_a2a !--dcp-size>1",
        "--dcp-comm-backend only affects the decode context-parallel attention reduction and therefore requires --dcp-size / --decode-context-parallel-size > 1",
    ),
    ("--enable-dp-lm-head --dp-size>1 !@attn-dp", "--enable-dp-lm-head requires attention DP (--attn-dp-size)."),
    (
        "--enable-tp-lm-head-all-to-all !@attn-dp",
        "--enable-tp-lm-head-all-to-all requires attention DP (--attn-dp-size).",
    ),
    (
        "--enable-two-batch-overlap --moe-a2a-backend=none !@attn-dp",
        "When enabling two batch overlap without an EP a2a backend (moe_a2a_backend='none'), attention DP (--attn-dp-size) is required (DeepSeek-V4 non-EP DP TBO path).",
    ),
    (
        "--enable-eplb --moe-a2a-backend=none !--ep-size>1",
        "assert resolved_view(server_args).ep_size > 1: --enable-eplb moves experts between ranks",
    ),
    (
        "--ep-dispatch-algorithm=static|lp --moe-a2a-backend=none",
        "--ep-dispatch-algorithm picks a different physical replica per rank, which only holds up when an a2a backend routes each token to a single rank. Use --ep-dispatch-algorithm dynamic with --moe-a2a-backend none.",
    ),
    ("--max-ep-size !--elastic-ep-backend", "--max-ep-size requires --elastic-ep-backend to be set."),
    ("--elastic-ep-join-mode !--elastic-ep-backend", "--elastic-ep-join-mode requires --elastic-ep-backend to be set."),
    ("--min-free-slots-delay --pp-size>1", "--min-free-slots-delay is not supported with pipeline parallelism"),
    (
        "--enable-priority-scheduling !--schedule-policy=fcfs|lof",
        "To use priority scheduling, schedule_policy must be 'fcfs' or 'lof'.",
    ),
    (
        "--retraction-policy=priority !--enable-priority-scheduling",
        "--retraction-policy priority requires --enable-priority-scheduling",
    ),
    ("--enable-pdmux --pp-size>1", "PD-Multiplexing is only supported with pipeline parallelism disabled (pp_size=1)."),
    ("--enable-pdmux !--chunked-prefill-size=-1", "PD-Multiplexing is not compatible with chunked prefill."),
    ("--enable-pdmux !--disaggregation-mode=null", "PD-Multiplexing is not compatible with disaggregation mode."),
    ("--enable-pdmux !--disable-overlap-schedule", "PD-Multiplexing is not compatible with overlap schedule."),
    ("--enable-lora !--lora-paths !--max-lora-rank", WITHOUT_SHAPE),
    ("--enable-lora !--lora-paths !--lora-target-modules", WITHOUT_SHAPE),
    (
        "--disaggregation-decode-enable-offload-kvcache !--disaggregation-mode=decode",
        "The argument disaggregation-decode-enable-offload-kvcache is only supported for decode side.",
    ),
    (
        "--disaggregation-decode-enable-offload-kvcache !--hicache-storage-backend",
        "The argument disaggregation-decode-enable-offload-kvcache is only supported when hicache-storage-backend is provided.",
    ),
    (
        "--disaggregation-decode-retraction-backup=host_pool !--disaggregation-mode=decode",
        "--disaggregation-decode-retraction-backup=host_pool is only supported on a PD decode server.",
    ),
    (
        "--disaggregation-mode=prefill --disaggregation-transfer-backend=fake",
        "Prefill server does not support 'fake' as the transfer backend",
    ),
    (
        "--disaggregation-mode=decode --disaggregation-decode-enable-radix-cache --disaggregation-transfer-backend=fake",
        "--disaggregation-decode-enable-radix-cache is incompatible with --disaggregation-transfer-backend fake",
    ),
    (
        "--enable-response-store !--disaggregation-mode=null",
        "--enable-response-store is not supported with --disaggregation-mode=prefill or decode; response storage must remain disabled in PD mode.",
    ),
    (
        "--hicache-host-memory-mode=buffer_only --enable-hierarchical-cache !--hicache-storage-backend",
        "--hicache-host-memory-mode buffer_only requires a storage backend (--hicache-storage-backend)",
    ),
    (
        "--attention-backend=flex_attention --speculative-algorithm",
        "Speculative decoding is currently not supported with Flex Attention backend",
    ),
    ("--prefill-attention-backend=cutedsl_mla", "CuteDSL MLA only supports decoding for now"),
    ("--attention-backend=cutedsl_mla @before-blackwell", CUTEDSL),
    ("--decode-attention-backend=cutedsl_mla @before-blackwell", CUTEDSL),
    (
        "!--prefill-kv-cache-dequant-dtype=auto !--kv-cache-dtype=nvfp4",
        "--prefill-kv-cache-dequant-dtype applies only with --kv-cache-dtype=nvfp4.",
    ),
    ("--ssl-keyfile !--ssl-certfile", "--ssl-keyfile requires --ssl-certfile to be specified as well."),
    ("--ssl-certfile !--ssl-keyfile", "--ssl-certfile requires --ssl-keyfile to be specified as well."),
    ("--ssl-ca-certs !--ssl-certfile", "--ssl-ca-certs has no effect without --ssl-certfile and --ssl-keyfile."),
    (
        "--ssl-keyfile-password !--ssl-certfile",
        "--ssl-keyfile-password has no effect without --ssl-certfile and --ssl-keyfile.",
    ),
    (
        "--enable-ssl-refresh !--ssl-certfile",
        "--enable-ssl-refresh requires --ssl-certfile and --ssl-keyfile to be specified.",
    ),
    (
        "--enable-http-worker-reuseport --tokenizer-worker-num=1",
        "--enable-http-worker-reuseport requires --tokenizer-worker-num > 1 and has no effect with --enable-http2.",
    ),
    ("--sidecar-args !--sidecar", "--sidecar-args requires --sidecar."),
    ("--watermark-config !--enable-watermark", "--watermark-config requires --enable-watermark"),
    (
        "--tokenizer-metrics-allowed-custom-labels !--tokenizer-metrics-custom-labels-header",
        "Please set --tokenizer-metrics-custom-labels-header when setting --tokenizer-metrics-allowed-custom-labels.",
    ),
    (
        "--export-metrics-to-file !--export-metrics-to-file-dir",
        "--export-metrics-to-file-dir is required when --export-metrics-to-file is enabled",
    ),
    (
        "--enable-tokenizer-batch-encode --enable-dynamic-batch-tokenizer",
        "Cannot enable both --enable-tokenizer-batch-encode and --enable-dynamic-batch-tokenizer. Please choose one tokenizer batching approach.",
    ),
    ("--enable-quant-communications", "Communications quantization is only supported for NPU device"),
    ("--sampling-backend=intel_xpu", "--sampling-backend intel_xpu requires --device xpu"),
    (
        "--kv-canary-sweep-interval>0 --kv-canary=none",
        "--kv-canary-sweep-interval requires --kv-canary in {log, raise}",
    ),
    (
        "--return-aux-hidden-state-layer-ids !--enable-return-aux-hidden-states",
        "--return-aux-hidden-state-layer-ids requires --enable-return-aux-hidden-states.",
    ),
    (
        "--linear-attn-decode-backend=flashkda",
        "--linear-attn-decode-backend flashkda is not supported: FlashKDA is prefill-only.",
    ),
    ("--load-publish-endpoint !--kv-events-config", "--load-publish-endpoint requires --kv-events-config"),
    ("--enable-prefix-mm-cache !--encoder-only", "--enable-prefix-mm-cache requires --encoder-only to be enabled"),
    ("--encoder-only --language-only", "Cannot set --encoder-only and --language-only together"),
    ("--speculative-use-block-verification !--speculative-algorithm", BLOCKS),
    (
        "--enable-deterministic-inference --attention-backend !--attention-backend=ascend|fa3|fa4|flashinfer|intel_xpu|triton",
        "Currently only ['ascend', 'fa3', 'fa4', 'flashinfer', 'intel_xpu', 'triton'] attention backends are supported for deterministic inference",
    ),
    (
        "--enable-deterministic-inference @sparse",
        "Currently only ['ascend', 'fa3', 'fa4', 'flashinfer', 'intel_xpu', 'triton'] attention backends are supported for deterministic inference",
    ),
    ("--enable-deterministic-inference @deepseek_v2 --attention-backend=flashinfer", ABSORBED),
    ("--enable-deterministic-inference @deepseek_v3 --attention-backend=flashinfer", ABSORBED),
];

const WITHOUT_SHAPE: &str = "When no initial --lora-paths is provided, you need to specify both --max-lora-rank and --lora-target-modules for LoRA initialization.";
const ABSORBED: &str = "Currently only ['ascend', 'fa3', 'fa4', 'triton'] attention backends are supported for deterministic inference with absorbed-MLA models.";
const THRESHOLD: &str = "--disaggregation-decode-host-receive-threshold must be between 0 and 1";
const CUTEDSL: &str =
    "CuteDSL MLA backend is only supported on Blackwell GPUs (SM100). Please use a different backend.";
const BLOCKS: &str = "--speculative-use-block-verification only supports EAGLE / EAGLE3 / NEXTN / DFLASH / DSPARK.";

/// What counts, or what the model decides.
const RULES: &[Rule] = &[
    since(READ, &["--nnodes"], |case| {
        let ranks = case.size("--tp-size").saturating_mul(case.size("--pp-size"));
        let nodes = case.size("--nnodes").max(1);
        (!ranks.is_multiple_of(nodes)).then(|| "tp_size must be divisible by number of nodes".into())
    }),
    since(READ, &["--nnodes", "--dp-size"], |case| {
        let whole = case.size("--dp-size") > 1 && !case.is_on("--enable-dp-attention");
        (whole && case.size("--nnodes") > 1).then(|| {
            "multi-node data-parallel replicas are not supported; use attention DP (--attn-dp-size) across nodes".into()
        })
    }),
    since(READ, &["--moe-dp-size"], |case| {
        let divides = case.size("--tp-size").is_multiple_of(case.size("--moe-dp-size").max(1));
        (!divides).then(|| "tp_size must be divisible by moe_dp_size".into())
    }),
    since(READ, &["--moe-dense-tp-size"], |case| {
        let size =
            case.question.count("--moe-dense-tp-size").filter(|size| *size != 1 && *size != case.size("--tp-size"));
        size.map(|_| "moe_dense_tp_size only supports None, 1, or tp_size currently".into())
    }),
    since(READ, &[DRAFTS, "--pp-size"], |case| {
        let drafts = case.word(DRAFTS).map(str::to_uppercase).filter(|_| case.size("--pp-size") > 1)?;
        let says_it = case.question.has_on("SGLANG_ENABLE_PP_SPEC");
        match &*drafts {
            "EAGLE" | "NEXTN" if says_it || case.word(super::ROLE) == Some("prefill") => None,
            "EAGLE" | "NEXTN" => Some(
                "PP + speculative decoding (MTP) is only supported on prefill nodes (disaggregation-mode=prefill)"
                    .into(),
            ),
            // Its own handler says why.
            "DSPARK" => None,
            _ => {
                Some("Pipeline parallelism currently only supports EAGLE (non-multi-layer) speculative decoding".into())
            }
        }
    }),
    since(READ, &["--served-model-name"], |case| {
        let name = case.word("--served-model-name").filter(|name| name.contains(':'))?;
        Some(format!(
            "served_model_name cannot contain a colon (':') character. The colon is reserved for the 'model:adapter' syntax used in LoRA adapter specification. Invalid value: '{name}'"
        ))
    }),
    since(READ, &["--enable-mis"], |case| kernels::refuses_scoring(case).filter(|_| case.is_on("--enable-mis"))),
    since(READ, &["--linear-attn-backend", "--linear-attn-decode-backend"], kernels::refuses_linear),
    since(READ, &["--attention-backend"], |case| {
        const TAKES: &str = "fa3 triton trtllm_mha";
        let windows = lists("exaone4 exaone_moe", case.model_type()) && kernels::has_pattern(case.model);
        let other = case.word("--attention-backend").filter(|name| windows && !lists(TAKES, name))?;
        Some(format!("One of the attention backends in {TAKES} is required for {}, but got {other}", case.model_type()))
    }),
    since(READ, KERNELS, |case| {
        let of_type = |(models, _): &&(&str, &str)| lists(models, case.model_type());
        let (_, takes) = TAKES.iter().find(of_type)?;
        let stated = KERNELS.iter().find_map(|flag| case.word(flag).filter(|name| !lists(takes, name)))?;
        Some(format!("{} requires one of {takes} as attention backend, but got {stated}", case.model_type()))
    }),
    since(READ, KERNELS, kernels::refuses),
    since(READ, ALIKE, kernels::refuses_alike),
    since(READ, &[weights::FLAG, "--dtype"], weights::refuses),
    since(READ, FOUR_BITS, kernels::refuses_four_bits),
    since(READ, &["--language-model-only"], |case| {
        let named = super::share::class(case.model);
        let of_type = || case.model_type().starts_with("deepseek_v4") || case.model_type().starts_with("muse_glimmer");
        let takes = named.map_or_else(of_type, |class| lists(TEXT_ALONE, class));
        (case.is_on("--language-model-only") && !takes)
            .then(|| format!("--language-model-only does not support ['{}'].", named.unwrap_or(case.model_type())))
    }),
    since(READ, &[SENDS, "--attn-dp-size", "--chunked-prefill-size", "--moe-runner-backend"], |case| {
        const RUNNERS: &str =
            "flashinfer_cutlass flashinfer_cutedsl flashinfer_trtllm flashinfer_trtllm_routed deep_gemm";
        let sends = case.word(SENDS)?;
        let replicas = case.question.attention_replicas();
        let of_all = replicas > 1 && replicas == case.size("--tp-size");
        let whole =
            case.whole(super::CHUNK).is_some_and(|tokens| tokens <= 0) && case.word(super::ROLE) != Some("decode");
        let runner = case.word("--moe-runner-backend").unwrap_or("auto");
        // Checkpoints in four bits choose one of their own.
        let chosen = runner == "auto" && (case.is_stated("--quantization") || is_quantised(case));
        match sends {
            "flashinfer" if !of_all && case.model_type() != "muse_spark" => {
                Some("Flashinfer MoE A2A requires --attn-dp-size equal to --tp-size.".into())
            }
            "flashinfer_megamoe" if !of_all => {
                Some("FlashInfer MegaMOE is only supported with --attn-dp-size equal to --tp-size".into())
            }
            "flashinfer" if !chosen && !lists(RUNNERS, runner) => {
                Some(format!("FlashInfer MoE A2A is supported with {RUNNERS}, and not with {runner}."))
            }
            "flashinfer" if whole => {
                Some("FlashInfer MoE A2A requires chunked prefill: --chunked-prefill-size must be > 0.".into())
            }
            "pplx" if replicas < 2 => Some(
                "moe_a2a_backend='pplx' requires attention DP with at least 2 groups (--attn-dp-size >= 2).".into(),
            ),
            _ => None,
        }
    }),
    since(READ, &["--ep-size", "--moe-runner-backend", "--moe-a2a-backend"], |case| {
        const WHOLE: &str = "flashinfer_cutlass flashinfer_cutedsl";
        // Nemotron-H has a runner of its own (`model_overrides/nemotron_h.py`), and another on data center Blackwell and for four bits.
        let chooses = |case: &Case<'_>| {
            let four_bits = weights::method(case).is_some_and(|method| lists("modelopt_fp4 modelopt_mixed", &method));
            let others = (case.generation() == Some(10)
                && case.word("--moe-a2a-backend").is_none_or(|word| word == "none"))
                || (four_bits && matches!(case.generation(), Some(8 | 9)));
            lists("nemotron_h nemotron_h_puzzle", case.model_type()) && !others && case.generation().is_some()
        };
        let runner = match case.word("--moe-runner-backend").filter(|word| *word != "auto") {
            Some(word) => lists(WHOLE, word),
            None => chooses(case),
        };
        let (ep, tp) = (case.size("--ep-size"), case.size("--tp-size"));
        (runner && ep != 1 && ep != tp)
            .then(|| "The expert parallel size must be 1 or the same as the tensor parallel size".into())
    }),
    since(READ, &["--dsv4-attn-backend"], |case| {
        let told = case.word("--dsv4-attn-backend").filter(|_| case.model_type().starts_with("deepseek_v4"));
        let other = case.generation().is_some_and(|generation| generation != 10);
        match told {
            Some("trtllm") if other => {
                Some("--dsv4-attn-backend trtllm requires an SM100/SM103 (Blackwell) GPU.".into())
            }
            Some("flashmla_mega") if other || case.model_type() == "deepseek_v4" => {
                Some("--dsv4-attn-backend flashmla_mega requires DeepSeek-V4.1 on SM100/SM103.".into())
            }
            _ => None,
        }
    }),
    since(READ, &[DRAFTS, "--speculative-eagle-topk"], |case| {
        let word = case.word(DRAFTS).map(str::to_uppercase).filter(|_| case.model_type().starts_with("deepseek_v4"))?;
        match &*word {
            "DSPARK" | "NONE" => None,
            "EAGLE" if case.question.count("--speculative-eagle-topk") == Some(1) => None,
            "EAGLE" => {
                Some("Only EAGLE speculative algorithm with topk == 1 is supported for DeepseekV4ForCausalLM".into())
            }
            _ => Some("Only EAGLE and DSPARK speculative algorithms are supported for DeepseekV4ForCausalLM".into()),
        }
    }),
    since(READ, &["--language-only"], kernels::refuses_apart),
    since(READ, &["--attention-backend"], |case| {
        let lfm2 = lists("lfm2 lfm2_moe", case.model_type()) && case.word("--attention-backend") == Some("triton");
        lfm2.then(|| {
            "it does not support triton attention backend, as the first layer might not be an attention layer".into()
        })
    }),
    since(READ, &[STRATEGY, "--page-size", "--linear-attn-backend"], |case| {
        let pages = case.size("--page-size") > 1;
        (keeps_without_buffers(case) && pages).then(|| "no_buffer only supports page_size=1.".into())
    }),
    // Stages do not overlap anyway.
    since(READ, &[STRATEGY], |case| {
        let overlaps = !case.is_on(NO_OVERLAP) && case.size("--pp-size") == 1;
        let told = case.word(STRATEGY) == Some("no_buffer");
        (told && keeps_without_buffers(case) && overlaps)
            .then(|| "no_buffer do not support overlap schedule. Try to set disable_overlap_schedule=True.".into())
    }),
    since(READ, &[STRATEGY, "--linear-attn-backend"], |case| {
        (told_buffers(case) && keeps_states(case) && takes_no_buffers(case))
            .then(|| format!("extra_buffer is not supported for {}; use no_buffer.", case.model_type()))
    }),
    since(READ, &[NO_OVERLAP, STRATEGY], |case| {
        let lazy = case.word(STRATEGY) == Some("extra_buffer_lazy") && keeps_states(case);
        (lazy && case.is_on(NO_OVERLAP))
            .then(|| "Lazy extra buffer requires overlap schedule (--disable-overlap-schedule is incompatible)".into())
    }),
    since(READ, &[STRATEGY, super::ROLE], |case| {
        let lazy = case.word(STRATEGY) == Some("extra_buffer_lazy") && keeps_states(case);
        (lazy && case.word(super::ROLE).is_some_and(|role| role != "null")).then(|| {
            "extra_buffer_lazy unsupported under PD disaggregation; use --mamba-radix-cache-strategy extra_buffer."
                .into()
        })
    }),
    since(READ, &[INTERVAL, "--page-size"], |case| {
        let page = case.question.count("--page-size").filter(|page| *page > 0 && keeps_with_buffers(case))?;
        (!interval(case).is_multiple_of(page)).then(|| "assert view.mamba_track_interval % view.page_size == 0".into())
    }),
    since(READ, &[INTERVAL, "--speculative-num-draft-tokens"], |case| {
        let tokens = case.question.count("--speculative-num-draft-tokens").filter(|_| keeps_with_buffers(case))?;
        (interval(case) < tokens)
            .then(|| "assert view.mamba_track_interval >= view.speculative_num_draft_tokens".into())
    }),
    since(READ, &[STRATEGY], |case| {
        let buffers = case
            .word(STRATEGY)
            .filter(|_| told_buffers(case) && !case.has_states() && case.question.keeps_prefixes())?;
        Some(format!("--mamba-radix-cache-strategy {buffers} needs mamba state, got {}.", case.model_type()))
    }),
    since(READ, OBJECTS, |case| {
        let is_other = |flag: &&&str| {
            let said = case.word(flag).and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
            said.is_some_and(|said| !said.is_object())
        };
        OBJECTS.iter().find(is_other).map(|flag| format!("{flag} must be a JSON object"))
    }),
    // Kernels without states pass over both.
    since(READ, &["--max-mamba-cache-size"], |case| {
        let none = case.whole("--max-mamba-cache-size").is_some_and(|slots| slots <= 0);
        (none && case.has_states()).then(|| NO_SLOTS.into())
    }),
    since(READ, &["--mamba-full-memory-ratio"], |case| {
        let none = case.question.share("--mamba-full-memory-ratio").is_some_and(|ratio| ratio <= 0.0);
        (none && case.has_states() && !case.is_stated("--max-mamba-cache-size")).then(|| NO_SLOTS.into())
    }),
    since(READ, &[DRAFTS], |case| {
        let word = case.word(DRAFTS).map(str::to_uppercase)?;
        (!lists(ALGORITHMS, &word)).then(|| format!("Unknown speculative algorithm name: {word}"))
    }),
];

/// Flags whose JSON must be an object.
const OBJECTS: &[&str] = &["--default-chat-template-kwargs", "--mm-process-config", "--preferred-sampling-params"];
const NO_SLOTS: &str =
    "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=0";

/// Classes that can be served without what looks and listens (`LANGUAGE_MODEL_ONLY_ARCHITECTURES`).
const TEXT_ALONE: &str = "DeepseekV4ForCausalLM MuseGlimmerForConditionalGeneration Cosmos3ForConditionalGeneration Cosmos3EdgeForConditionalGeneration";
const ALIKE: &[&str] = &["--enable-deterministic-inference", "--rl-on-policy-target", "--attention-backend"];
const FOUR_BITS: &[&str] = &["--kv-cache-dtype", kernels::ALL, kernels::PREFILL, kernels::DECODE];
const KERNELS: &[&str] = &["--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"];
/// Models, and the kernels of attention that they take alone (`handle_model_specific_adjustments`).
const TAKES: [(&str, &str); 3] = [
    ("llama4 llama4_text", "fa3 aiter triton ascend trtllm_mha intel_xpu"),
    ("gpt_oss", "triton trtllm_mha fa3 fa4 ascend intel_amx intel_xpu aiter"),
    ("gemma4 gemma4_text gemma4_unified gemma4_unified_text", "trtllm_mha triton fa4 ascend intel_xpu intel_amx aiter"),
];

fn is_quantised(case: &Case<'_>) -> bool {
    case.model.model().is_some_and(|model| model.stated("quantization_config").is_some())
}

fn keeps_states(case: &Case<'_>) -> bool {
    case.has_states() && case.question.keeps_prefixes()
}

fn told_buffers(case: &Case<'_>) -> bool {
    matches!(case.word(STRATEGY), Some("extra_buffer" | "extra_buffer_lazy"))
}

/// Whether states are copied to no buffers, whatever is said.
fn takes_no_buffers(case: &Case<'_>) -> bool {
    let own = case.question.engine.slots_per_request(case.model_type(), true);
    own == Some(super::SLOTS_WITH_RADIX) || case.word("--linear-attn-backend").is_some_and(|word| word != "triton")
}

fn keeps_without_buffers(case: &Case<'_>) -> bool {
    keeps_states(case) && !told_buffers(case) && (case.word(STRATEGY) == Some("no_buffer") || takes_no_buffers(case))
}

fn keeps_with_buffers(case: &Case<'_>) -> bool {
    keeps_states(case) && case.question.slots_per_request().is_some_and(|slots| slots > super::SLOTS_WITH_RADIX)
}

/// Tokens between two copies of states.
fn interval(case: &Case<'_>) -> u64 {
    const USUAL: u64 = 256;
    case.question.count(INTERVAL).unwrap_or(USUAL)
}
