//! SGLang's `sglang.launch_server` flags.
//!
//! Read in `server_args.py` and `arg_groups` of each version.

use cacheplan_handlers::DType;
use serde_json::json;

use crate::budget::{Budget, EngineOptions, Fraction};
use crate::export::deployment::Deployment;
use crate::export::dialect::{Dialect, Key, Told};
use crate::export::file::{File, comment, flag, quoted};
use crate::export::input::{Input, Sourced, is_conv, is_kv, is_ssm, listed};
use crate::export::serving::Setting;
use crate::plan::{Pool, Unit};

pub(crate) static DEPLOYMENT: Deployment = Deployment::new("sglang", "sglang.sh", &DIALECT, script);

pub(crate) static DIALECT: Dialect = Dialect {
    name: "SGLang",
    versions: &["0.5.16", "0.5.18", "0.5.23"],
    keys: &[
        Key { name: "tp-size", since: 0, value: |input| input.tensor_parallel() },
        Key { name: "pp-size", since: 0, value: |input| input.pipeline_parallel() },
        Key { name: "max-total-tokens", since: 0, value: max_total_tokens },
        Key { name: "mem-fraction-static", since: 0, value: fraction },
        Key { name: "max-running-requests", since: 0, value: running },
        Key { name: "context-length", since: 0, value: |input| input.max_seq_len() },
        Key { name: "chunked-prefill-size", since: 0, value: |input| input.max_num_tokens() },
        Key { name: "page-size", since: 0, value: |input| input.tokens_per_block().filter(|_| !input.has_states()) },
        Key { name: "kv-cache-dtype", since: 0, value: kv_dtype },
        Key { name: "swa-full-tokens-ratio", since: 0, value: window_ratio },
        Key { name: "disable-radix-cache", since: 0, value: no_radix_cache },
        Key { name: "max-mamba-cache-size", since: 0, value: state_slots },
        Key { name: "mamba-ssm-dtype", since: 0, value: ssm_dtype },
        Key { name: "enable-hierarchical-cache", since: 0, value: hierarchical_cache },
        Key { name: "hicache-size", since: 0, value: host_size },
    ],
    ranks: &[],
    gaps: &[
        |input| {
            let bytes: u64 = input.pools().map(|pool| pool.bytes).sum();
            Some(format!(
                "{bytes} bytes of caches: SGLang has no flag in bytes, so that tokens and slots stand for them"
            ))
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
            (windows().count() > 0 && window_ratio(input).is_none() && !keeps_all_tokens(input)).then(|| {
                format!(
                    "the sizes of {}: one ratio, at most 1, of tokens in windows to tokens in full attention",
                    listed(windows())
                )
            })
        },
        |input| {
            let slots = || input.pools().filter(|pool| pool.unit == Unit::Slot).map(|pool| pool.id.as_str());
            (slots().count() > 1)
                .then(|| format!("the sizes of {} one by one: one count of slots serves them all", listed(slots())))
        },
        |input| {
            let too_small = host_size(input).is_none();
            input.no_host_tier("hicache-size is in whole GB").filter(|_| too_small)
        },
        |input| input.unnamed_dtype("keys and values", is_kv, &kv_dtype(input)),
        |input| input.unnamed_dtype("convolution states", is_conv, &None),
        |input| input.unnamed_dtype("recurrent states", is_ssm, &ssm_dtype(input)),
    ],
    refuses: |_| None,
    back: Some(told),
};

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

/// Whether every token of a window is kept.
fn keeps_all_tokens(input: &Input<'_>) -> bool {
    windows(input).count() > 0 && !super::WITH_WINDOWS.contains(&input.plan.model.model_type.as_str())
}

fn max_total_tokens(input: &Input<'_>) -> Sourced {
    if input.has_states() && input.paged().count() == 0 {
        let tokens = input.plan.capacity.sequences.saturating_mul(input.plan.limits.max_seq_len);
        return Some((json!(tokens), "the plan's sequences, of which SGLang counts tokens that no cache holds".into()));
    }
    let pools: Vec<&Pool> = if full(input).count() > 0 { full(input).collect() } else { windows(input).collect() };
    let least = pools.into_iter().min_by_key(|pool| tokens(pool))?;
    let planned = tokens(least);
    // How it divides the plan's bytes by itself; more it would not find.
    let without: Vec<Setting> = DIALECT
        .keys
        .iter()
        .filter(|key| key.name != "max-total-tokens" && key.since <= input.release)
        .filter_map(|key| (key.value)(input).map(|(value, source)| Setting { key: key.name.into(), value, source }))
        .collect();
    let divided = input.predicted(told(&Told(&without))).and_then(|divided| divided.ok()?.tokens);
    Some(match divided.filter(|divided| *divided < planned) {
        Some(divided) => (json!(divided), "what SGLang makes of the plan's bytes".into()),
        None => (json!(planned), format!("tokens in {} beside its padding", least.id)),
    })
}

fn fraction(_: &Input<'_>) -> Sourced {
    Input::not_binding_fraction(
        "tokens and slots cap the pools; weights and caches must only be below this share of the device",
    )
}

fn window_ratio(input: &Input<'_>) -> Sourced {
    if keeps_all_tokens(input) {
        return None;
    }
    let least = full(input).map(tokens).min()?;
    let window = windows(input).max_by_key(|pool| tokens(pool))?;
    // Rounded up, so that the windows do not become the cap; more than the full pool is not allowed.
    let millionths = (u128::from(tokens(window)) * 1_000_000).div_ceil(u128::from(least.max(1)));
    let ratio = (millionths <= 1_000_000).then_some(millionths as f64 / 1e6)?;
    Some((json!(ratio), format!("tokens in {} to tokens in full attention", window.id)))
}

fn state_slots(input: &Input<'_>) -> Sourced {
    let slots = input.plan.slots;
    let source = format!("{} running sequences and {} checkpoints", slots.live, slots.checkpoints);
    input.has_states().then(|| (json!(slots.live + slots.checkpoints), source))
}

/// With the radix cache a running request holds three slots for states, for which a plan without checkpoints has none.
fn no_radix_cache(input: &Input<'_>) -> Sourced {
    let alone = input.has_states() && input.plan.checkpoints() == 0;
    alone.then(|| {
        (json!(true), "the plan has no slots for checkpoints; with the cache a request would hold three".into())
    })
}

/// The plan's batch, or what its slots admit.
fn running(input: &Input<'_>) -> Sourced {
    let (batch, source) = input.max_batch_size()?;
    let slots = input.plan.slots;
    let version = DIALECT.versions[input.release].parse().unwrap_or(super::EXTRA_BUFFER);
    let each = super::slots_per_request(&input.plan.model.model_type, true, version);
    let most = (slots.live + slots.checkpoints) / each;
    if input.has_states() && input.plan.checkpoints() > 0 && most < slots.live {
        return Some((
            json!(most.max(1)),
            format!("a request for every {each} slots of states, as the radix cache has it"),
        ));
    }
    Some((batch, source))
}

/// The keys as what SGLang's model is told.
fn told(told: &Told<'_>) -> Budget {
    Budget {
        max_seq_len: told.number("context-length"),
        max_batch_size: told.number("max-running-requests"),
        max_num_tokens: told.number("chunked-prefill-size"),
        engine: EngineOptions {
            max_total_tokens: told.number("max-total-tokens"),
            block_size: told.number("page-size"),
            window_ratio: told.fraction("swa-full-tokens-ratio").and_then(Fraction::new),
            state_slots: told.number("max-mamba-cache-size"),
            prefix_caching: Some(told.switch("disable-radix-cache") != Some(true)),
            ..EngineOptions::default()
        },
        ..Budget::default()
    }
}

fn kv_dtype(input: &Input<'_>) -> Sourced {
    let names =
        [(DType::Bf16, "bfloat16"), (DType::F8E4m3, "fp8_e4m3"), (DType::F8E5m2, "fp8_e5m2"), (DType::Nvfp4, "nvfp4")];
    input.dtype_name(is_kv, Some("auto"), &names)
}

fn ssm_dtype(input: &Input<'_>) -> Sourced {
    let names = [(DType::F32, "float32"), (DType::Bf16, "bfloat16"), (DType::F16, "float16")];
    input.dtype_name(is_ssm, None, &names)
}

fn hierarchical_cache(input: &Input<'_>) -> Sourced {
    host_size(input).map(|_| (json!(true), "host.bytes is stated".into()))
}

fn host_size(input: &Input<'_>) -> Sourced {
    const GB: u64 = 1_000_000_000;
    let size = input.serving.host_bytes? / GB;
    (size > 0).then(|| (json!(size), "whole GB of host.bytes, per rank".into()))
}

/// A script that starts the server.
fn script(file: &File<'_>) -> String {
    let argument = |setting: &Setting| comment("  ", &setting.source) + &format!("  {}\n", quoted(&flag(setting)));
    let lines: String = file.settings.iter().map(argument).collect();
    let model = quoted(file.model);
    let body =
        format!("args=(\n{lines})\nexec python3 -m sglang.launch_server --model-path {model} \"${{args[@]}}\"\n");
    format!("#!/usr/bin/env bash\n{}", file.commented("bash FILE", &body))
}
