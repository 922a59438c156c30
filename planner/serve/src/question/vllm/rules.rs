//! What vLLM refuses behind its parser, by the words of the versions that were read: 0.8.5, 0.11.0, 0.24.0 and 0.33.0.

use cacheplan_handlers::Kind;
use cacheplan_planner::engines::{Version, vllm};
use cacheplan_planner::logs::failures::NOTHING_LEFT;
use serde_json::Value;

use super::super::rules::{Case, Rule, listed, lists, since, within};
use super::super::{speculation, speculative};
use super::attention;
use super::graphs::Graphs;
use super::names::{BACKENDS_OF_0_11, FORMATS, REASONING, TOOLS};

const READ: Version = Version(0, 33, 0);
/// Read in 0.27.1 too, where a variable says what the flag says since.
const RETAINS: Version = Version(0, 29, 0);
/// Read in 0.22.0 to 0.33.0.
const SMALL_BATCHES: Version = Version(0, 22, 0);
const EARLIER: Version = Version(0, 24, 0);
const OLD: Version = Version(0, 11, 0);
const BEHIND_OLD: Version = Version(0, 12, 0);
const OLDEST: Version = Version(0, 8, 5);

const COMPILE: &str = "--compilation-config";
const SPECULATIVE: &str = "--speculative-config";
const SIZES: &str = "--cudagraph-capture-sizes";
const LARGEST: &str = "--max-cudagraph-capture-size";
const EXPERTS: &str = "--enable-expert-parallel";
const NODES: &str = "--nnodes";
const RANK: &str = "--node-rank";
const REPLICAS: &str = "--data-parallel-size";
const LOCAL: &str = "--data-parallel-size-local";
const REPLICA: &str = "--data-parallel-rank";
const HYBRID: &str = "--data-parallel-hybrid-lb";
const EXTERNAL: &str = "--data-parallel-external-lb";
const BY: &str = "--data-parallel-backend";
const SERVERS: &str = "--api-server-count";
const START: &str = "--data-parallel-start-rank";
const MANY_PORTS: &str = "--data-parallel-multi-port-external-lb";
const EXECUTOR: &str = "--distributed-executor-backend";
const STAGES: &str = "--pipeline-parallel-size";
const FAULTS: &str = "--enable-fault-tolerance";
const MASK: &str = "--return-sampling-mask";
const TRANSFER: &str = "--kv-transfer-config";
const PORT: &str = "--grpc-port";
const BACKEND: &str = "--attention-backend";
const STATE_DTYPE: &str = "--mamba-ssm-cache-dtype";
const ROUNDING: &str = "--enable-mamba-cache-stochastic-rounding";
const INTERLEAVE: [&str; 2] = ["--dcp-kv-cache-interleave-size", "--cp-kv-cache-interleave-size"];
const PROMPTS: &str = "--max-num-partial-prefills";
const LONG_PROMPTS: &str = "--max-long-partial-prefills";

const ACTIVE: &str = super::ACTIVE;

/// How what it says of replicas and nodes begins.
const LAUNCH: &str = "Invalid data-parallel launch options:";

pub(super) const RULES: &[Rule] = &[
    since(EARLIER, &["--optimization-level"], |case| {
        let level = case.unlisted("--optimization-level", "0 1 2 3")?;
        Some(format!("optimization_level: Input should be 0, 1, 2 or 3 (it is '{level}')"))
    }),
    since(READ, &[COMPILE], |case| {
        let is_number = case.word(COMPILE)?.trim().parse::<i64>().is_ok();
        is_number.then(|| "Input should be a dictionary or an instance of CompilationConfig".into())
    }),
    since(EARLIER, &[LARGEST, SIZES], |case| {
        let captures = Graphs::of(case.question) != Graphs::None;
        let stated = case.question.flag(SIZES).filter(|_| captures && !case.is_stated(COMPILE))?;
        let sizes = stated.values.iter().filter_map(|size| size.trim().parse::<u64>().ok());
        let most = sizes.filter(|size| *size <= case.limits.max_num_tokens).max()?;
        let largest = case.question.count(LARGEST).filter(|largest| *largest != most)?;
        Some(format!(
            "customized max_cudagraph_capture_size(={largest}) should be consistent with the max value of cudagraph_capture_sizes(={most})"
        ))
    }),
    since(OLD, &[SPECULATIVE], |case| {
        let config = drafts(case, |method| method == "ngram")?;
        let of = |key: &str| config.get(key).and_then(Value::as_u64);
        let (least, most) = (of("prompt_lookup_min")?, of("prompt_lookup_max")?);
        (least > most).then(|| format!("prompt_lookup_min={least} must be <= prompt_lookup_max={most}"))
    }),
    within(OLD..BEHIND_OLD, &[SPECULATIVE], |case| {
        // A drafter that learned from the model is known by its name.
        const LEARNED: [&str; 3] = ["eagle", "medusa", "mlp"];
        let config = speculative::config(case.question).ok()??;
        let name = config.get("model").and_then(Value::as_str)?.to_lowercase();
        let by_model =
            speculation::is_by_a_model(case.question).ok()? && !LEARNED.iter().any(|part| name.contains(part));
        by_model.then(|| {
            "Speculative decoding with draft model is not supported yet. Please consider using other speculative decoding methods such as ngram, medusa, eagle, or mtp."
                .into()
        })
    }),
    within(OLD..BEHIND_OLD, &["--async-scheduling"], |case| {
        let stages = case.is_on("--async-scheduling") && case.size("--pipeline-parallel-size") > 1;
        stages.then(|| "Async scheduling is not supported with pipeline-parallel-size > 1.".into())
    }),
    within(OLD..BEHIND_OLD, &["--async-scheduling", SPECULATIVE], |case| {
        let both = case.is_on("--async-scheduling") && case.is_stated(SPECULATIVE);
        both.then(|| "Currently, speculative decoding is not supported with async scheduling.".into())
    }),
    within(OLD..READ, &[LONG_PROMPTS], |case| {
        let (long, all) = (case.size(LONG_PROMPTS), case.size(PROMPTS));
        (long > all).then(|| {
            format!(
                "max_long_partial_prefills ({long}) must be less than or equal to max_num_partial_prefills ({all})."
            )
        })
    }),
    within(OLD..BEHIND_OLD, &[], |case| {
        let word = case.question.env.get("VLLM_ATTENTION_BACKEND")?;
        let is_known = lists(BACKENDS_OF_0_11, word.trim_end_matches("_VLLM_V1"));
        (!is_known).then(|| format!("Invalid attention backend: '{word}'. Valid backends are: {BACKENDS_OF_0_11}"))
    }),
    since(READ, &["--long-prefill-token-threshold"], |case| {
        let (tokens, most) = (case.question.count("--long-prefill-token-threshold")?, case.limits.max_seq_len);
        (tokens > most).then(|| {
            format!("long_prefill_token_threshold ({tokens}) cannot be greater than the max_model_len ({most}).")
        })
    }),
    since(OLDEST, &[EXPERTS], |case| {
        (case.is_on(EXPERTS) && case.is_dense())
            .then(|| "Number of experts in the model must be greater than 0 when expert parallelism is enabled.".into())
    }),
    since(READ, &[NODES, BY], |case| {
        let (nodes, by) = (case.size(NODES), case.word(BY).filter(|by| *by != "mp")?);
        (nodes > 1).then(|| {
            format!(
                "{LAUNCH} `--nnodes {nodes}` requires `--data-parallel-backend mp`; got `--data-parallel-backend {by}`. Use the MP backend or set `--nnodes 1`."
            )
        })
    }),
    since(READ, &[NODES], |case| {
        let (nodes, ranks) = (case.size(NODES), ranks(case));
        (nodes > 1 && !ranks.is_multiple_of(nodes))
            .then(|| format!("{LAUNCH} `--nnodes {nodes}` must evenly divide the total world size ({ranks})."))
    }),
    since(READ, &[RANK], |case| {
        let (nodes, rank) = (case.size(NODES), case.whole(RANK)?);
        let is_there = u64::try_from(rank).is_ok_and(|rank| rank < nodes);
        (nodes > 1 && !is_there).then(|| {
            format!(
                "{LAUNCH} `--node-rank` must be between 0 and {}; got `--node-rank {rank}`. Set it to this node's zero-based index.",
                nodes - 1
            )
        })
    }),
    since(EARLIER, &[REPLICA, EXTERNAL], |case| {
        let apart = (case.is_stated(REPLICA) || case.is_on(EXTERNAL)) && case.size(REPLICAS) > 1;
        (apart && case.is_dense()).then(|| {
            "Non-MoE models do not support external data parallel mode. For external load balancing, launch independent vLLM instances without --data-parallel-* arguments."
                .into()
        })
    }),
    since(READ, &[EXTERNAL, REPLICA, HYBRID, START, MANY_PORTS], |case| {
        let many = case.is_on(MANY_PORTS);
        let external = case.is_on(EXTERNAL) || case.is_stated(REPLICA);
        let hybrid = case.is_on(HYBRID) || (!many && case.is_stated(START));
        let modes = [many, external, hybrid].into_iter().filter(|mode| *mode).count();
        (modes > 1).then(|| {
            format!("Cannot use more than one data parallel load balancing mode. Choose one of: {MANY_PORTS}, {EXTERNAL} (or {REPLICA}), {HYBRID} (or {START}).")
        })
    }),
    since(READ, &[EXTERNAL], |case| {
        let finds_rank = case.size(NODES) > 1 && case.size(REPLICAS) > 1;
        (case.is_on(EXTERNAL) && !case.is_stated(REPLICA) && !finds_rank).then(|| {
            format!(
                "{LAUNCH} `--data-parallel-external-lb` requires a data-parallel rank. Set `--data-parallel-rank`, or set `--data-parallel-size` greater than 1 and use `--nnodes` with `--node-rank` so the rank can be inferred."
            )
        })
    }),
    since(READ, &[REPLICA, EXTERNAL, LOCAL], |case| {
        let local = case.question.count(LOCAL).filter(|local| *local != 1)?;
        (case.is_stated(REPLICA) || case.is_on(EXTERNAL)).then(|| {
            format!(
                "{LAUNCH} an external data-parallel rank requires `--data-parallel-size-local 1`; got {local}. Set it to 1 or omit it."
            )
        })
    }),
    since(READ, &[LOCAL], |case| {
        let (local, all) = (case.question.count(LOCAL)?, case.size(REPLICAS));
        (local > all).then(|| format!("data_parallel_size_local ({local}) must be <= data_parallel_size ({all})"))
    }),
    since(READ, &[REPLICA], |case| {
        let (rank, all) = (case.whole(REPLICA)?, case.size(REPLICAS));
        (all <= 1).then(|| "data_parallel_external_lb can only be set when data_parallel_size > 1".to_owned()).or_else(
            || {
                let is_one = u64::try_from(rank).is_ok_and(|rank| rank < all);
                (!is_one).then(|| format!("data_parallel_rank ({rank}) must be in the range [0, {all})"))
            },
        )
    }),
    since(READ, &[FAULTS], |case| {
        (case.is_on(FAULTS) && !case.is_stated(REPLICA) && !case.is_on(EXTERNAL)).then(|| {
            format!("Fault tolerance requires external load balancer mode ({EXTERNAL} or {REPLICA}). Internal LB mode is not supported.")
        })
    }),
    since(READ, &[], |case| {
        let replicas = case.question.env.get("VLLM_DP_SIZE").and_then(|size| size.trim().parse::<u64>().ok())?;
        (replicas > 1 && case.size(REPLICAS) <= 1 && case.is_dense())
            .then(|| "Offline data parallel mode is not supported/useful for dense models.".into())
    }),
    since(READ, &["--numa-bind-nodes", "--numa-bind-cpus"], |case| {
        let binds = case.is_stated("--numa-bind-nodes") || case.is_stated("--numa-bind-cpus");
        (binds && !case.is_on("--numa-bind"))
            .then(|| "numa_bind_nodes and numa_bind_cpus require numa_bind=True.".into())
    }),
    since(READ, &["--ray-workers-use-nsight"], |case| {
        let by_ray = case.word(EXECUTOR) == Some("ray") || case.word(BY) == Some("ray");
        (case.is_on("--ray-workers-use-nsight") && !by_ray)
            .then(|| "Unable to use nsight profiling unless workers run with Ray.".into())
    }),
    since(READ, &[MASK], |case| {
        let plain = case.word("--logprobs-mode") != Some("processed_logprobs");
        let said = match case.is_on(MASK) {
            true if case.is_stated("--logits-processors") => {
                "sampling distribution replay does not support custom logits processors"
            }
            true if plain => {
                "sampling distribution replay requires logprobs_mode='processed_logprobs' so that returned logprobs are normalized over the same nucleus as the sampling mask"
            }
            _ => return None,
        };
        Some(said.into())
    }),
    since(READ, &[PORT], |case| {
        let by_rust = case.question.env.get("VLLM_USE_RUST_FRONTEND").is_some_and(|value| value.trim() == "1");
        match case.is_stated(PORT) {
            true if case.is_on("--grpc") => Some("--grpc and --grpc-port are mutually exclusive.".into()),
            true if !by_rust => Some("--grpc-port requires VLLM_USE_RUST_FRONTEND=1 vllm serve".into()),
            _ => None,
        }
    }),
    since(READ, &["--prefix-match-unit"], |case| {
        let unit = case.question.count("--prefix-match-unit")?;
        let looks =
            case.question.flag("--enable-prefix-caching").is_none_or(|setting| setting.on) || case.is_stated(TRANSFER);
        let (stated, ranks) = (case.question.count("--block-size"), case.size("--decode-context-parallel-size"));
        // Blocks that nobody states are a multiple of what kernels read.
        let fits = match stated {
            Some(block) => unit == block.saturating_mul(ranks),
            None if case.generation() == Some(9) && !case.is_stated(BACKEND) => {
                unit == attention::READ.saturating_mul(ranks)
            }
            None => unit.is_multiple_of(attention::READ.saturating_mul(ranks)),
        };
        (looks && case.keeps_all_alike() && !fits).then(|| {
            let block = stated.map_or(String::new(), |block| format!(" ({})", block.saturating_mul(ranks)));
            format!(
                "Invalid prefix_match_unit={unit}; with a single KV cache group, prefix-cache hits land on the block size{block}. Unset it or set it to that."
            )
        })
    }),
    since(RETAINS, &[super::RETENTION, "--disable-hybrid-kv-cache-manager"], |case| {
        case.question.count(super::RETENTION).filter(|interval| *interval > 0 && !case.forgets())?;
        Some("prefix_cache_retention_interval is set but this model has no sliding-window or Mamba KV cache group, so retention has no effect. Set it to 0 (it only applies to sliding-window and Mamba attention).".into())
    }),
    since(READ, &[SIZES, COMPILE], |case| {
        let twice = case.is_stated(SIZES) && is_said(&case.object(COMPILE), "cudagraph_capture_sizes");
        twice.then(|| {
            "cudagraph_capture_sizes and compilation_config.cudagraph_capture_sizes are mutually exclusive".into()
        })
    }),
    since(READ, &[LARGEST, COMPILE], |case| {
        let twice = case.is_stated(LARGEST) && is_said(&case.object(COMPILE), "max_cudagraph_capture_size");
        twice.then(|| {
            "max_cudagraph_capture_size and compilation_config.max_cudagraph_capture_size are mutually exclusive".into()
        })
    }),
    since(READ, &[BACKEND, attention::FLAG], |case| {
        let twice = case.is_stated(BACKEND) && is_said(&case.object(attention::FLAG), "backend");
        twice.then(|| "attention_backend and attention_config.backend are mutually exclusive".into())
    }),
    since(READ, &[HYBRID], |case| {
        let says_more = [LOCAL, REPLICA, EXTERNAL].iter().any(|flag| case.is_stated(flag)) || case.size(NODES) > 1;
        (case.is_on(HYBRID) && !says_more).then(|| {
            format!(
                "{LAUNCH} `--data-parallel-hybrid-lb` requires `--data-parallel-size-local`. Set it to the number of data-parallel ranks on this node."
            )
        })
    }),
    since(EARLIER, &[SERVERS], |case| {
        let servers = case.question.count(SERVERS).filter(|servers| *servers > 0 && case.is_on("--headless"))?;
        Some(format!(
            "--api-server-count={servers} cannot be used with --headless (no API servers are started in headless mode)."
        ))
    }),
    since(READ, &["--headless", HYBRID], |case| {
        (case.is_on("--headless") && case.is_on(HYBRID))
            .then(|| "data_parallel_hybrid_lb is not applicable in headless mode".into())
    }),
    since(READ, &["--headless", LOCAL], |case| {
        (case.is_on("--headless") && case.question.count(LOCAL) == Some(0))
            .then(|| "data_parallel_size_local must be > 0 in headless mode".into())
    }),
    since(READ, &[NODES, EXECUTOR], |case| {
        (case.size(NODES) > 1 && case.word(EXECUTOR) == Some("ray")).then(|| {
            "nnodes > 1 can only be set when distributed executor backend is mp, uni or external_launcher.".into()
        })
    }),
    since(READ, &[FAULTS, SERVERS], |case| {
        let servers = case.question.count(SERVERS).filter(|servers| *servers > 1 && case.is_on(FAULTS))?;
        Some(format!("Fault tolerance requires a single API server process (--api-server-count=1), but got {servers}."))
    }),
    since(READ, &[EXECUTOR], |case| {
        let ranks = case.size("--tensor-parallel-size");
        (case.word(EXECUTOR) == Some("uni") && ranks > 1 && case.size(STAGES) == 1)
            .then(|| format!("one process of {ranks} ranks waits for others that nobody starts"))
    }),
    // From there on kernels are asked for all that they take.
    within(EARLIER..READ, &[BACKEND, attention::FLAG], |case| {
        // Kernels of DeepSeek-V4 have names of their own.
        let name = attention::named(case.question).filter(|_| !case.model_type().starts_with("deepseek_v4"))?;
        let reason = match (case.keeps(&Kind::MlaPaged), vllm::reads_latents(&name)?) {
            (true, false) => "MLA not supported",
            (false, true) => "non-MLA not supported",
            _ => return None,
        };
        Some(format!(
            "Selected backend AttentionBackendEnum.{name} is not valid for this configuration. Reason: ['{reason}']"
        ))
    }),
    since(EARLIER, &[ROUNDING], |case| {
        (case.is_on(ROUNDING) && case.word(STATE_DTYPE) != Some("float16")).then(|| {
            "Stochastic rounding for Mamba cache requires the SSM cache to be float16. Please set it explicitly, by specifying `--mamba-ssm-cache-dtype float16`, or disable stochastic rounding by not specifying `--enable-mamba-cache-stochastic-rounding`."
                .into()
        })
    }),
    since(READ, &["--mamba-backend"], |case| {
        let word = case.word("--mamba-backend")?.to_uppercase();
        (!lists("TRITON FLASHINFER CPU", &word))
            .then(|| format!("Unknown Mamba SSU backend: '{word}'. Valid options are: TRITON, FLASHINFER, CPU"))
    }),
    since(READ, &[STATE_DTYPE], |case| {
        let word =
            case.unlisted(STATE_DTYPE, "auto float32 bfloat16").filter(|_| case.model_type() == "kimi_linear")?;
        Some(format!("KDA recurrent state supports only auto, float32, and bfloat16; got {word}"))
    }),
    since(EARLIER, &INTERLEAVE, |case| {
        // Blocks that nobody states are powers of two, and not below this.
        const LEAST: u64 = 16;
        let by = INTERLEAVE.into_iter().filter_map(|flag| case.question.count(flag)).find(|by| *by > 1)?;
        let divided = case.size("--decode-context-parallel-size") > 1 && case.word("--kv-transfer-config").is_none();
        let stated = case.question.count("--block-size");
        let block = stated.unwrap_or_else(|| by.next_power_of_two().max(LEAST));
        (divided && !block.is_multiple_of(by)).then(|| {
            let block = stated.map(|block| format!("({block})")).unwrap_or_default();
            format!("Block_size{block} should be greater than or equal to and divisible by cp_kv_cache_interleave_size ({by}).")
        })
    }),
    since(EARLIER, &["--enable-auto-tool-choice"], |case| {
        let alone = case.is_on("--enable-auto-tool-choice") && !case.is_stated("--tool-call-parser");
        alone.then(|| "Error: --enable-auto-tool-choice requires --tool-call-parser".into())
    }),
    since(OLD, &["--enable-log-outputs"], |case| {
        let alone = case.is_on("--enable-log-outputs") && !case.is_on("--enable-log-requests");
        alone.then(|| "Error: --enable-log-outputs requires --enable-log-requests".into())
    }),
    since(READ, &["--tool-call-parser", "--enable-auto-tool-choice"], |case| {
        let looks = case.is_on("--enable-auto-tool-choice") && !case.is_stated("--tool-parser-plugin");
        let word = case.unlisted("--tool-call-parser", TOOLS).filter(|_| looks)?;
        Some(format!("invalid tool call parser: {word} (chose from {{ {} }})", listed(TOOLS)))
    }),
    since(READ, &["--reasoning-parser"], |case| {
        let looks = !case.is_stated("--reasoning-parser-plugin");
        let word = case.unlisted("--reasoning-parser", REASONING).filter(|word| looks && !word.is_empty())?;
        Some(format!("invalid reasoning parser: {word} (chose from {{ {} }})", listed(REASONING)))
    }),
    since(READ, &["--load-format"], |case| {
        let word = case.word("--load-format")?.to_lowercase();
        (!lists(FORMATS, &word)).then(|| format!("Load format `{word}` is not supported"))
    }),
    since(READ, &[ACTIVE, "--max-num-seqs"], |case| {
        let (active, most) = (case.question.count(ACTIVE)?, case.limits.max_batch_size?);
        (active > most).then(|| format!("max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({most})."))
    }),
    since(OLDEST, &["--num-gpu-blocks-override"], |case| {
        let is_none = case.whole("--num-gpu-blocks-override")? == 0;
        is_none
            .then(|| format!("{NOTHING_LEFT}. Try increasing `gpu_memory_utilization` when initializing the engine."))
    }),
    since(READ, &["--device-ids"], |case| {
        let mut ids: Vec<&str> = case.word("--device-ids")?.split(',').map(str::trim).collect();
        let all = ids.len();
        let numbers = ids.iter().filter(|id| id.parse::<i64>().is_ok()).count();
        ids.sort_unstable();
        ids.dedup();
        match ids.len() < all {
            true => Some("--device-ids must not contain duplicates".into()),
            false if 0 < numbers && numbers < all => Some("--device-ids must not mix integer IDs and UUIDs".into()),
            false => None,
        }
    }),
    since(READ, &[EXECUTOR], |case| {
        // Another is a class by its module.
        let word = case.unlisted(EXECUTOR, "ray mp uni external_launcher")?;
        (!word.contains('.'))
            .then(|| format!("{word} is no class by its module: not enough values to unpack (expected 2, got 1)"))
    }),
    since(READ, &[EXECUTOR, STAGES], |case| {
        (case.size(STAGES) > 1 && case.word(EXECUTOR) == Some("uni")).then(|| {
            "Pipeline Parallelism without Ray distributed executor or multiprocessing executor or external launcher is not supported. We recommend to remove Pipeline Parallelism without Ray distributed executor or multiprocessing executor or external launcher from your config."
                .into()
        })
    }),
    since(SMALL_BATCHES, &["--enable-dbo", "--ubatch-size"], |case| {
        // Not in 0.23.0.
        const BY_NIXL: Version = Version(0, 24, 0);
        const BY: &str = "deepep_low_latency deepep_high_throughput nixl_ep";
        let by = case.word("--all2all-backend").unwrap_or("allgather_reducescatter");
        let small = case.is_on("--enable-dbo") || case.size("--ubatch-size") > 1;
        let is_known = lists(BY, by) && (by != "nixl_ep" || case.question.engine.version >= BY_NIXL);
        (small && !is_known).then(|| {
            format!(
                "Microbatching currently only supports the {} all2all backends on this platform. {by} is not supported.",
                listed(BY)
            )
        })
    }),
];

fn is_said(object: &serde_json::Map<String, Value>, key: &str) -> bool {
    object.get(key).is_some_and(|value| !value.is_null())
}

/// Ranks of all replicas.
fn ranks(case: &Case<'_>) -> u64 {
    let sizes = ["--tensor-parallel-size", "--pipeline-parallel-size", REPLICAS];
    sizes.iter().fold(1, |ranks, flag| ranks.saturating_mul(case.size(flag)))
}

/// The speculative config of a method.
fn drafts(case: &Case<'_>, is_it: fn(&str) -> bool) -> Option<Value> {
    let config = speculative::config(case.question).ok()??;
    config.get("method").and_then(Value::as_str).is_some_and(is_it).then_some(config)
}
