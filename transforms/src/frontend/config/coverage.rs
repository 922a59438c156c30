//! Whether a description covers the model: what it requires holds, and it says what each key means that can change what
//! is cached.

use serde_json::Value;

use super::described_block::Block;
use super::description::Description;
use super::expr::Expr;
use super::layers::{self, check_lists};
use super::not_said::not_said;
use super::values::Values;
use crate::frontend::FrontendError;

/// Keys that change what is cached in at least one architecture.
///
/// A model that has one of them while nothing says what it means there is refused: its caches would be wrong unnoticed.
const CHANGE_CACHES: &[&str] = &[
    "_sliding_window_pattern",
    "attention_chunk_size",
    "attention_types",
    "attention_window_size",
    "attn_layer_indices",
    "attn_layer_period",
    "attn_type_list",
    "block_configs",
    "block_types",
    "compress_rates",
    "compress_ratios",
    "cross_attention_layers",
    "fa_interval",
    "full_attention_interval",
    "full_attn_idxs",
    "global_attn_every_n_layers",
    "global_head_dim",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "index_head_dim",
    "indexer_head_dim",
    "interleaved_sliding_window",
    "kv_lora_rank",
    "kv_source_layers",
    "layer_group_size",
    "layer_types",
    "layers_block_type",
    "linear_attn_config",
    "linear_num_value_heads",
    "local_attention",
    "local_layer_ids",
    "num_global_key_value_heads",
    "prefix_dense_sliding_window_pattern",
    "sliding_window",
    "sliding_window_pattern",
    "sliding_window_size",
    "sparse_attention_config",
    "swa_head_dim",
    "swa_num_key_value_heads",
    "swa_v_head_dim",
    "use_bidirectional_attention",
    "use_cla",
    "use_hybrid_layers",
    "use_mla",
    "v_head_dim",
    "window_size",
    "yoco_cross_layers",
];

pub(super) fn check(description: &Description, values: &Values<'_>, layers: u32) -> Result<(), FrontendError> {
    let invalid = |reason: String| FrontendError::description(&values.model_type, reason);
    for requirement in &description.requires {
        let that = Expr::parse(&requirement.that).map_err(invalid)?;
        check_lists(&that, values, layers)?;
        for layer in 0..layers {
            if values.eval(&that, layer)?.is_some_and(|number| number.value == 0) {
                return Err(values.not_covered(&that.keys(), &requirement.because));
            }
        }
    }
    match first_not_read(description, values).map_err(invalid)? {
        Some(key) => Err(not_said(description, values, key)),
        None => Ok(()),
    }
}

/// The first of [`CHANGE_CACHES`] that the config has and the description does not read.
pub(super) fn first_not_read(description: &Description, values: &Values<'_>) -> Result<Option<&'static str>, String> {
    for &key in CHANGE_CACHES {
        let Some(found) = values.get(key) else { continue };
        let ignored = |word: &str| description.ignores.iter().any(|entry| entry.split_once('=') == Some((key, word)));
        if !changes_nothing(found, &ignored) && !mentions(description, key)? {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// Whether it stands for no window, no pattern or full attention everywhere, whatever the key.
pub(super) fn changes_nothing(value: &Value, ignored: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64().is_some_and(|number| number <= 0.0),
        Value::String(word) => matches!(word.as_str(), "" | "attention" | "full_attention") || ignored(word),
        Value::Array(list) => list.iter().all(|entry| changes_nothing(entry, ignored)),
        Value::Object(object) => object.is_empty(),
        Value::Null => true,
    }
}

/// The keys that sizes of blocks are read from, and done without where they are not there.
pub(super) fn optional_keys(description: &Description) -> Result<Vec<String>, String> {
    let mut keys = Vec::new();
    for name in layers::possible_blocks(description) {
        let block = Block::new(name, description.blocks.get(name))?;
        keys.extend(block.dims().flat_map(Expr::optional_keys).map(str::to_owned));
    }
    keys.sort();
    keys.dedup();
    Ok(keys)
}

/// Whether a key of this name changes what is cached in an architecture.
pub(super) fn changes_caches(key: &str) -> bool {
    CHANGE_CACHES.contains(&key)
}

/// Whether an expression of the description reads the key, or a usual one of a block that its layers can have.
pub(super) fn mentions(description: &Description, key: &str) -> Result<bool, String> {
    reads(description, |path| path.split('.').next() == Some(key))
}

/// Whether it does so of one of these paths.
pub(super) fn reads(description: &Description, wanted: impl Fn(&str) -> bool) -> Result<bool, String> {
    let reads = |expr: &Expr| expr.keys().into_iter().any(&wanted);
    let named = description.pattern.iter().flat_map(|pattern| [&pattern.key, &pattern.counts]).flatten();
    let joined = description.pattern.iter().flat_map(|pattern| &pattern.joined);
    if named.chain(&description.ignores).any(|named| wanted(named))
        || joined.flat_map(|part| part.split(" * ")).any(&wanted)
    {
        return Ok(true);
    }
    let conditions = description.pattern.iter().flat_map(|pattern| [&pattern.when, &pattern.choose]).flatten();
    let required = description.requires.iter().map(|requirement| &requirement.that);
    for text in conditions.chain(required) {
        if reads(&Expr::parse(text)?) {
            return Ok(true);
        }
    }
    for name in layers::possible_blocks(description) {
        let block = Block::new(name, description.blocks.get(name))?;
        if block.dims().any(reads) || block.dtype_keys().any(&wanted) {
            return Ok(true);
        }
    }
    Ok(false)
}
