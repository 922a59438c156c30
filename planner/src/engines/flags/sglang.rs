//! What SGLang is told: read in `server_args.py` and `arg_groups`.

use cacheplan_handlers::DType;
use serde_json::json;

use super::{EVER, STATES, full, has_no_checkpoints, nodes, taken, tokens, windows};
use crate::engines::known::sglang;
use crate::export::dialect::{Dialect, dtype, flag, own, plan};
use crate::export::file::quoted;
use crate::export::input::{Class, Input, Sourced, listed};
use crate::export::serving::Setting;
use crate::export::target_file::TargetFile;
use crate::parallel::Parallel;
use crate::plan::{Pool, Unit};

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

/// A script that starts SGLang's `sglang.launch_server`.
pub(crate) static SGLANG_FILE: TargetFile = TargetFile::new("sglang", "sglang.sh", &SGLANG, |file| {
    let lines = file.argument_lines();
    let start = format!("exec python3 -m sglang.launch_server --model-path {}", quoted(file.model));
    let body = format!("args=(\n{lines})\n{start} \"${{args[@]}}\"\n");
    format!("#!/usr/bin/env bash\n{}", file.commented("bash FILE", &body))
});

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
