//! Caches of engines that multiply out what a model could keep small: a key and a value for every head.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_transforms::Op;
use cacheplan_transforms::registry::{Cache, DescribeError, Descriptor, OpView};

/// Latent attention run as full attention; `width` is a value's as the engine keeps it, of a key's and a value's own.
pub(super) fn latents(width: fn(u64, u64) -> u64) -> Descriptor {
    Descriptor::new(Op::MLA, move |op| {
        let heads = op.dim("num_heads", "query", 2)?;
        let key = op.dim("head_dim", "query", 3)?;
        let rope = op.dim("qk_rope_head_dim", "rope_key", 2)?;
        // For each head what a key has beside the rope, and a value.
        let value = (op.dim("kv_up", "up", 1)? / heads.max(1)).saturating_sub(key.saturating_sub(rope));
        let (value, dtype) = (width(key, value), op.kv_dtype("latent")?);
        keys_and_values(heads, key, value, dtype)
    })
}

/// Attention in which every query head has a key and a value of its own.
pub(super) fn heads() -> Descriptor {
    Descriptor::new(Op::ATTENTION, |op: &mut OpView<'_>| {
        let heads = op.dim("num_heads", "query", 2)?;
        let (key, value) = (op.dim("head_dim", "key", 3)?, op.dim("value head_dim", "value", 3)?);
        let dtype = op.kv_dtype("key")?;
        keys_and_values(heads, key, value, dtype)
    })
}

/// Keys and values that differ in width have a cache each.
const KEYS: &str = "key_cache";
const VALUES: &str = "value_cache";

/// Whether a cache of that name holds keys alone, or values alone.
pub(super) fn is_part(name: &str) -> bool {
    name.starts_with(KEYS) || is_of_values(name)
}

pub(super) fn is_of_values(name: &str) -> bool {
    name.starts_with(VALUES)
}

fn keys_and_values(heads: u64, key: u64, value: u64, dtype: DType) -> Result<Vec<Cache>, DescribeError> {
    if key == value {
        let handler = ResourceHandler::kv_paged(heads, key, dtype)?;
        return Ok(vec![Cache { suffix: "kv_cache".into(), handler }]);
    }
    let part = |suffix: &'static str, width: u64| -> Result<Cache, DescribeError> {
        let handler = ResourceHandler::kv_paged(heads, width, dtype)?.with_kv_factor(1)?;
        Ok(Cache { suffix: suffix.into(), handler })
    };
    Ok(vec![part(KEYS, key)?, part(VALUES, value)?])
}
