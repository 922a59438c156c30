//! AIConfigurator: the keys of what its `estimate_kv_cache` answers, and `num_gpu_blocks` of `estimate_num_gpu_blocks`.
//!
//! Read in `aiconfigurator_core/sdk/memory.py` of 0.11.0. Both are answers, of one rank: it takes no such numbers.

use serde_json::json;

use super::dialect::{Dialect, own, plan};
use super::input::{Input, Sourced};
use super::simulators;
use super::target_file::TargetFile;

pub(super) static AICONFIGURATOR: TargetFile = TargetFile::json("aiconfigurator", "kv-cache-estimate.json", &DIALECT);

static DIALECT: Dialect = Dialect {
    name: "AIConfigurator",
    versions: &["0.11.0"],
    keys: &[
        plan("total_kv_size_bytes", "engine.cache_bytes"),
        own("kv_size_per_token_bytes", per_token),
        own("total_kv_size_tokens", tokens),
        own("num_gpu_blocks", simulators::blocks),
    ],
    gaps: &[
        |_| {
            Some("source: `native` and `naive_fallback` are AIConfigurator's own estimates, and this is neither".into())
        },
        |_| Some("memory_breakdown: the lines of a plan's ledger beside its caches are not proved by the plan".into()),
        |_| Some("total_gpu_capacity_bytes: a plan says what is divided, not what the device has".into()),
        |input| {
            let bytes = input.plan.totals.state_bytes_per_sequence;
            input.has_states().then(|| {
                format!("{bytes} bytes of states for each sequence: kv_size_per_token_bytes is of tokens alone")
            })
        },
    ],
    refuses: |_| None,
    chooses_dtypes: false,
};

fn per_token(input: &Input<'_>) -> Sourced {
    let bytes = input.plan.totals.kv_bytes_per_token;
    (bytes > 0).then(|| (json!(bytes), "the plan's kv_bytes_per_token".into()))
}

fn tokens(input: &Input<'_>) -> Sourced {
    let (blocks, source) = simulators::blocks(input)?;
    let size = input.tokens_per_block()?.0.as_u64()?;
    Some((json!(blocks.as_u64()?.checked_mul(size)?), format!("tokens in {source}")))
}
