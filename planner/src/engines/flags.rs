//! What engines are told: each flag with the key of the budget that it is, and how the plan's value is said.
//!
//! vLLM: read in `engine/arg_utils.py` and `config/cache.py` of each version. SGLang: in `server_args.py` and `arg_groups`.
//! llama.cpp: in `common/arg.cpp`. TensorRT-LLM, whose keys are the arguments of its Python API: in its `KvCacheConfig` of September 2026.

use cacheplan_handlers::{DType, Growth, Kind};
use serde_json::{Value, json};

use super::known::{llama_cpp, sglang, vllm};
use super::version::Version;
use crate::budget::{Budget, EngineOptions};
use crate::devices::Devices;
use crate::export::dialect::{Dialect, dtype, flag, own, plan};
use crate::export::file::{comment, nested, quoted};
use crate::export::input::{Class, DTypeName, Input, Sourced, listed};
use crate::export::serving::Setting;
use crate::export::target_file::TargetFile;
use crate::parallel::Parallel;
use crate::plan::{Pool, Unit};
use crate::size::ByteSize;

const EVER: Version = Version::EVER;
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

pub(crate) static SGLANG: Dialect = Dialect {
    name: "SGLang",
    versions: &["0.5.16", "0.5.18", "0.5.23"],
    keys: &[
        plan("tp-size", "parallel.tp"),
        plan("pp-size", "parallel.pp"),
        flag(MAX_TOTAL_TOKENS, "engine.max_total_tokens", max_total_tokens),
        own("mem-fraction-static", |input| {
            let why = "tokens and slots cap the pools; weights and caches must only be below this share of the device";
            let why =
                input.least_device().map_or(why.into(), |device| format!("{why}, which then has {device} at least"));
            Input::not_binding_fraction(&why)
        }),
        flag("max-running-requests", "max_batch_size", running),
        plan("context-length", "max_seq_len"),
        flag("chunked-prefill-size", "max_num_tokens", whole_pages),
        flag("page-size", "engine.block_size", |input| input.tokens_per_block().filter(|_| !input.has_states())),
        dtype(
            "kv-cache-dtype",
            Class::Kv,
            Some("auto"),
            &[
                (DType::Bf16, "bf16", EVER),
                (DType::Bf16, "bfloat16", EVER),
                (DType::F8E4m3, "fp8_e4m3", EVER),
                (DType::F8E5m2, "fp8_e5m2", EVER),
                (DType::Nvfp4, "nvfp4", EVER),
                (DType::Nvfp4, "fp4_e2m1", EVER),
            ],
        ),
        flag("swa-full-tokens-ratio", "engine.window_ratio", window_ratio),
        // With the radix cache a running request holds several slots for states, for which a plan without checkpoints has none.
        flag("disable-radix-cache", "!engine.prefix_caching", |input| {
            let each = sglang::slots_per_request(&input.plan.model.model_type, true, input.version);
            let why = format!("the plan has no slots for checkpoints; with the cache a request would hold {each}");
            has_no_checkpoints(input).then(|| (json!(true), why))
        }),
        flag("max-mamba-cache-size", "engine.state_slots", |input| {
            let slots = input.plan.slots;
            let source = format!("{} running sequences and {} checkpoints", slots.live, slots.checkpoints);
            input.has_states().then(|| (json!(slots.live + slots.checkpoints), source))
        }),
        dtype("mamba-ssm-dtype", Class::Ssm, None, STATES),
        own("enable-hierarchical-cache", |input| {
            host_size(input).map(|_| (json!(true), "host.bytes is stated".into()))
        }),
        own("hicache-size", host_size),
    ],
    gaps: &[
        |input| {
            let bytes: u64 = input.pools().map(|pool| pool.bytes).sum();
            let why = "SGLang has no flag in bytes, so that tokens and slots stand for them";
            Some(format!("{bytes} bytes of caches: {why}"))
        },
        |input| {
            (input.has_states() && input.tokens_per_block().is_some())
                .then(|| "tokens_per_block: with states SGLang's pages are of one token".into())
        },
        |input| {
            let full = || full(input).map(|pool| pool.id.as_str());
            (full().count() > 1)
                .then(|| format!("the sizes of {}: one count of tokens serves them all", listed(full())))
        },
        |input| {
            let windows = || windows(input).map(|pool| pool.id.as_str());
            let one = "one ratio, at most 1, of tokens in windows to tokens in full attention";
            (windows().count() > 0 && window_ratio(input).is_none() && !keeps_all_tokens(input))
                .then(|| format!("the sizes of {}: {one}", listed(windows())))
        },
        |input| {
            let slots = || input.pools().filter(|pool| pool.unit == Unit::Slot).map(|pool| pool.id.as_str());
            (slots().count() > 1)
                .then(|| format!("the sizes of {} one by one: one count of slots serves them all", listed(slots())))
        },
        |input| {
            let why = match has_no_checkpoints(input) {
                true => "SGLang has none without its radix cache, for which the plan has no slots of states",
                false => "hicache-size is in whole GB",
            };
            input.no_host_tier(why).filter(|_| host_size(input).is_none())
        },
        |input| {
            let nvfp4 = input.resources().any(|resource| resource.dtype == DType::Nvfp4);
            nvfp4.then(|| "the GPU: SGLang starts with keys and values in nvfp4 on Blackwell alone".into())
        },
        |input| {
            let Parallel { dp, ep, .. } = input.parallel();
            let states = if input.has_states() { ", --max-mamba-cache-size" } else { "" };
            (dp > 1 && ep > 1).then(|| {
                format!("--max-running-requests, --chunked-prefill-size{states} of all: with --enable-dp-attention SGLang divides them by {dp}; those here are of one replica")
            })
        },
        |input| nodes(input, "--nnodes, --node-rank and --dist-init-addr"),
    ],
    chooses_dtypes: true,
    refuses: |input| {
        let before = sglang::PAYS_LARGEST_STAGE;
        if input.version < before && input.parallel().pp > 1 && input.has_states() {
            return Some(format!(
                "before {before} a slot pays for the states of all pipeline stages, and a plan has those of one; export to a newer one, or plan for one stage"
            ));
        }
        let (slots, each) = with_radix(input).filter(|(slots, each)| slots < each)?;
        Some(format!(
            "a request takes {each} slots for states beside the radix cache, and it has {slots}; plan for more checkpoints, or for none"
        ))
    },
};

const STATES: &[DTypeName] =
    &[(DType::F32, "float32", EVER), (DType::Bf16, "bfloat16", EVER), (DType::F16, "float16", EVER)];

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

/// llama.cpp's server: read in `common/arg.cpp`. Each slot has cells of its own where the plan's pages hold its sequences whole; else
/// they share them as sequences share pages.
pub(crate) static LLAMA_CPP: Dialect = Dialect {
    name: "llama.cpp",
    versions: &["b11549"],
    keys: &[
        flag("ctx-size", "engine.context", cells).beside("kv-unified"),
        own("kv-unified", |input| {
            let shares = whole_cells(input).is_none();
            shares.then(|| (json!(true), "slots share the cells, as sequences share pages".into()))
        }),
        plan("parallel", "max_batch_size"),
        plan("batch-size", "max_num_tokens"),
        flag("ubatch-size", "engine.ubatch", tokens_of_pass),
        own("n-gpu-layers", |_| Some((json!(99), "all layers lie on the device, where the plan's caches do".into()))),
        dtype("cache-type-k", Class::Kv, None, LLAMA_CPP_KV),
        dtype("cache-type-v", Class::Kv, None, LLAMA_CPP_KV),
        // Values of fewer bits are read by no other attention.
        own("flash-attn", |input| {
            let few = input.resources().any(|it| it.handler.kind().is_kv() && it.dtype.elements_per_block() > 1);
            few.then(|| (json!("on"), "values of fewer than 16 bits are read by no other attention".into()))
        }),
    ],
    gaps: &[
        |input| {
            let limit = input.plan.limits.max_seq_len;
            let shares = whole_cells(input).is_none();
            shares.then(|| format!("max_seq_len {limit}: slots share the cells, so that one alone may take more"))
        },
        |input| {
            let pools = || input.pools().map(|pool| format!("{} ({} units)", pool.id, pool.units));
            let why = "one count of cells serves them all";
            (pools().count() > 1).then(|| format!("the sizes of {}: {why}", listed(pools())))
        },
        |input| input.no_host_tier("its prompt cache on the host has a size of its own, --cache-ram"),
    ],
    chooses_dtypes: true,
    refuses: |input| {
        let ranks = input.parallel().world_size();
        (ranks > 1).then(|| format!("{ranks} ranks: it divides a model over devices by its layers alone"))
    },
};

/// What `-ctk` and `-ctv` take, by the names that they have in ggml.
const LLAMA_CPP_KV: &[DTypeName] = &{
    let mut names = [(DType::F32, "", EVER); llama_cpp::KV_DTYPES.len()];
    let mut at = 0;
    while at < names.len() {
        let dtype = llama_cpp::KV_DTYPES[at];
        names[at] = (dtype, dtype.name(), EVER);
        at += 1;
    }
    names
};

/// llama.cpp computes so many tokens at a time, of a step that may have more.
fn tokens_of_pass(input: &Input<'_>) -> Sourced {
    let step = input.plan.limits.max_num_tokens.min(llama_cpp::DEFAULT_UBATCH);
    Some((json!(step), "of the plan's max_num_tokens as many as it computes at a time".into()))
}

/// The pool whose tokens are llama.cpp's cells: the least.
fn of_cells<'a>(input: &Input<'a>) -> Option<&'a Pool> {
    let pools: Vec<&Pool> = if full(input).count() > 0 { full(input).collect() } else { windows(input).collect() };
    pools.into_iter().min_by_key(|pool| tokens(pool))
}

/// The cells of slots that each have a whole sequence's; none where the plan's pages do not hold as many.
fn whole_cells(input: &Input<'_>) -> Option<u64> {
    let (slots, _) = input.max_batch_size()?;
    let each = input.plan.limits.max_seq_len.checked_next_multiple_of(llama_cpp::CELLS)?;
    let all = slots.as_u64()?.checked_mul(each)?;
    full(input).next()?;
    of_cells(input).filter(|pool| tokens(pool) >= all).map(|_| all)
}

/// llama.cpp's cells: those of whole sequences, else the tokens of the plan's pages, in the steps in which it takes them.
fn cells(input: &Input<'_>) -> Sourced {
    if let Some(cells) = whole_cells(input) {
        let source = format!("the plan's sequences, each in steps of {} cells", llama_cpp::CELLS);
        return Some((json!(cells), source));
    }
    let step = |tokens: u64| (tokens / llama_cpp::CELLS).max(1) * llama_cpp::CELLS;
    Some(match of_cells(input) {
        Some(least) => {
            let source = format!("tokens in {} beside its padding, in steps of {} cells", least.id, llama_cpp::CELLS);
            (json!(step(tokens(least))), source)
        }
        None => {
            let tokens = input.plan.capacity.sequences.saturating_mul(input.plan.limits.max_seq_len);
            (json!(tokens), "the plan's sequences, of which it counts tokens that no cache holds".into())
        }
    })
}

/// A script that starts llama.cpp's server, whose parser takes no `=` between a flag and its value.
pub(crate) static LLAMA_CPP_FILE: TargetFile = TargetFile {
    gaps: |_| vec!["the file: llama.cpp loads a model from a GGUF file, which --model names".into()],
    ..TargetFile::new("llama.cpp", "llama-server.sh", &LLAMA_CPP, |file| {
        let words = file.settings.iter().map(|setting| {
            let value = match &setting.value {
                Value::Bool(true) => String::new(),
                Value::String(word) => format!(" {}", quoted(word)),
                number => format!(" {number}"),
            };
            comment("  ", &setting.source) + &format!("  --{}{value}\n", setting.key)
        });
        let start = format!("exec llama-server --model {}", quoted(file.model));
        let body = format!("args=(\n{})\n{start} \"${{args[@]}}\"\n", words.collect::<String>());
        format!("#!/usr/bin/env bash\n{}", file.commented("bash FILE", &body))
    })
};

/// vLLM's `vllm serve --config`: keys are the flags without their dashes.
pub(crate) static VLLM_FILE: TargetFile = TargetFile {
    names_model: false,
    ..TargetFile::new("vllm", "vllm.yaml", &VLLM, |file| {
        file.yaml(&format!("vllm serve {} --config FILE", quoted(file.model)), &nested(file.settings))
    })
};

/// A script that starts SGLang's `sglang.launch_server`.
pub(crate) static SGLANG_FILE: TargetFile = TargetFile::new("sglang", "sglang.sh", &SGLANG, |file| {
    let lines = file.argument_lines();
    let start = format!("exec python3 -m sglang.launch_server --model-path {}", quoted(file.model));
    let body = format!("args=(\n{lines})\n{start} \"${{args[@]}}\"\n");
    format!("#!/usr/bin/env bash\n{}", file.commented("bash FILE", &body))
});

/// TensorRT-LLM's `trtllm-serve --config`: the arguments of its Python API as YAML.
pub(crate) static TENSORRT_LLM_FILE: TargetFile = TargetFile {
    names_model: false,
    ..TargetFile::new("tensorrt-llm", "tensorrt-llm.yaml", &TENSORRT_LLM, |file| {
        file.yaml(&format!("trtllm-serve {} --config FILE", quoted(file.model)), &nested(file.settings))
    })
};

/// The dtypes of keys and values that vLLM's kernels read: Triton converts from e4m3 on compute capability 8.9 and above, and vLLM
/// takes it below too after 0.11.0 (vllm-project/vllm#26431, on an RTX 3090).
pub(super) fn vllm_kv_dtypes(version: Version, capability: u32) -> Vec<DType> {
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

/// A number of the plan's as the engine takes it, which may be another.
fn taken((value, source): (Value, String), to: impl Fn(u64) -> Option<u64>, why: &str) -> Sourced {
    let planned = value.as_u64()?;
    match to(planned).filter(|number| *number != planned) {
        Some(number) => Some((json!(number), format!("{source} {planned}, {why}"))),
        None => Some((value, source)),
    }
}

/// SGLang's step, which ends at a page's end: the plan's, or the most whole pages below it.
fn whole_pages(input: &Input<'_>) -> Sourced {
    let page = input.tokens_per_block().filter(|_| !input.has_states()).and_then(|(page, _)| page.as_u64());
    let page = page.unwrap_or(1).max(1);
    taken(
        input.max_num_tokens()?,
        |tokens| Some((tokens / page * page).max(page)),
        &format!("in whole pages of {page}"),
    )
}

/// What an engine must be told where its ranks are more than one node has GPUs.
fn nodes(input: &Input<'_>, how: &str) -> Option<String> {
    let ranks = input.parallel().world_size();
    (ranks > Devices::USUAL_NODE.into()).then(|| {
        let node = Devices::USUAL_NODE;
        format!("the nodes: {ranks} ranks are more than the {node} GPUs of a usual one; start it on each with {how}")
    })
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

/// Whether nothing has room for the states that reuse would keep.
fn has_no_checkpoints(input: &Input<'_>) -> bool {
    input.has_states() && input.plan.checkpoints() == 0
}

fn full<'a>(input: &Input<'a>) -> impl Iterator<Item = &'a Pool> {
    input.paged().filter(|pool| pool.window.is_none())
}

fn windows<'a>(input: &Input<'a>) -> impl Iterator<Item = &'a Pool> {
    input.paged().filter(|pool| pool.window.is_some())
}

/// Tokens that a pool holds beside its padding.
fn tokens(pool: &Pool) -> u64 {
    (pool.units - pool.reserved) * pool.tokens_per_block.unwrap_or(0)
}

/// Whether SGLang keeps every token of a window.
fn keeps_all_tokens(input: &Input<'_>) -> bool {
    windows(input).count() > 0 && !sglang::WITH_WINDOWS.contains(&input.plan.model.model_type.as_str())
}

const MAX_TOTAL_TOKENS: &str = "max-total-tokens";

/// SGLang's pool of tokens: the plan's, or less where SGLang divides the plan's bytes so.
fn max_total_tokens(input: &Input<'_>) -> Sourced {
    if input.has_states() && input.paged().count() == 0 {
        let tokens = input.plan.capacity.sequences.saturating_mul(input.plan.limits.max_seq_len);
        return Some((json!(tokens), "the plan's sequences, of which SGLang counts tokens that no cache holds".into()));
    }
    let pools: Vec<&Pool> = if full(input).count() > 0 { full(input).collect() } else { windows(input).collect() };
    let least = pools.into_iter().min_by_key(|pool| tokens(pool))?;
    let planned = tokens(least);
    // More than it makes of them by itself it would not find.
    let others = SGLANG.keys.iter().filter(|key| key.name != MAX_TOTAL_TOKENS);
    let others: Vec<Setting> = others.filter_map(|key| key.setting(input)).collect();
    let divided = input.predicted(SGLANG.told(&others)).and_then(|divided| divided.ok()?.tokens);
    Some(match divided.filter(|divided| *divided < planned) {
        Some(divided) => (json!(divided), "what SGLang makes of the plan's bytes".into()),
        None => (json!(planned), format!("tokens in {} beside its padding", least.id)),
    })
}

/// SGLang's pool of windows beside that of full attention, for which it has a share of its own where nobody says.
fn window_ratio(input: &Input<'_>) -> Sourced {
    if !sglang::WITH_WINDOWS.contains(&input.plan.model.model_type.as_str()) {
        return None;
    }
    let least = full(input).map(tokens).min()?;
    let Some(window) = windows(input).max_by_key(|pool| tokens(pool)) else {
        return Some((json!(1.0), "no sequence outgrows a window".into()));
    };
    // Rounded up, so that the windows do not become the cap; more than the full pool is not allowed.
    let millionths = (u128::from(tokens(window)) * 1_000_000).div_ceil(u128::from(least.max(1))).min(1_000_000);
    Some((json!(millionths as f64 / 1e6), format!("tokens in {} to tokens in full attention", window.id)))
}

/// SGLang's batch: the plan's, or what its slots admit with the radix cache.
fn running(input: &Input<'_>) -> Sourced {
    match with_radix(input).filter(|(slots, each)| slots / each < input.plan.slots.live) {
        Some((slots, each)) => {
            let source = format!("a request for every {each} slots of states, as the radix cache has it");
            Some((json!(slots / each), source))
        }
        None => input.max_batch_size(),
    }
}

/// The slots for states and those that a request takes of them, where the radix cache keeps some.
fn with_radix(input: &Input<'_>) -> Option<(u64, u64)> {
    let slots = input.plan.slots;
    let each = sglang::slots_per_request(&input.plan.model.model_type, true, input.version);
    (input.has_states() && input.plan.checkpoints() > 0).then_some((slots.live + slots.checkpoints, each))
}

/// SGLang's host tier, in whole GB; it has none without its radix cache.
fn host_size(input: &Input<'_>) -> Sourced {
    if has_no_checkpoints(input) {
        return None;
    }
    let size = input.serving.host_bytes? / 1_000_000_000;
    (size > 0).then(|| (json!(size), "whole GB of host.bytes, per rank".into()))
}

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
