//! What llama.cpp's server is told: read in `common/arg.cpp`.

use cacheplan_handlers::DType;
use serde_json::{Value, json};

use super::{EVER, full, tokens, windows};
use crate::engines::known::llama_cpp;
use crate::export::dialect::{Dialect, dtype, flag, own, plan};
use crate::export::file::{comment, quoted};
use crate::export::input::{Class, DTypeName, Input, Sourced, listed};
use crate::export::target_file::TargetFile;
use crate::plan::Pool;

/// llama.cpp's server: read in `common/arg.cpp`. Each slot has cells of its own where the plan's pages hold its sequences whole; else
/// they share them as sequences share pages.
static LLAMA_CPP: Dialect = Dialect {
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
