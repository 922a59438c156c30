//! Keys of a config that nothing reads: by their names and values some could mean caches, which is refused.
//!
//! Next season's keys are not in any list, so that words decide: what loops, shares, compresses, slides or recurs.

use cacheplan_files::Shown;
use serde_json::Value;

use super::classes::Class;
use super::coverage;
use super::description::Description;
use super::expr::Expr;
use super::not_said::{misnamed, not_said};
use super::values::Values;
use crate::frontend::FrontendError;

/// Words of keys that say how often layers run, whose caches they read, what they see, or what they keep.
const OF_CACHES: &[&str] = &[
    "cache",
    "candidate",
    "chunk",
    "chunked",
    "cla",
    "compress",
    "compressed",
    "compression",
    "compressor",
    "conv",
    "csa",
    "cycles",
    "delta",
    "deltanet",
    "dilation",
    "donor",
    "downsample",
    "engram",
    "every",
    "gdn",
    "gla",
    "global",
    "hybrid",
    "hyena",
    "index",
    "indexer",
    "interval",
    "iterations",
    "kda",
    "kv",
    "latent",
    "lightning",
    "linear",
    "local",
    "lookback",
    "loop",
    "looped",
    "loops",
    "lru",
    "mamba",
    "memory",
    "mixer",
    "ngram",
    "passes",
    "pattern",
    "ple",
    "pooled",
    "recurrence",
    "recurrent",
    "recursion",
    "recursive",
    "repeat",
    "repeated",
    "repeats",
    "retention",
    "retnet",
    "reuse",
    "ring",
    "rnn",
    "share",
    "shared",
    "sharing",
    "shortconv",
    "sink",
    "sinks",
    "sliding",
    "source",
    "sources",
    "span",
    "sparse",
    "ssm",
    "state",
    "states",
    "stride",
    "summary",
    "swa",
    "tail",
    "types",
    "unroll",
    "unrolls",
    "window",
    "windows",
    "yoco",
];

/// Words of keys that speak of weights, positions, training or other parts, whatever else they say.
const NOT_OF_CACHES: &[&str] = &[
    "act",
    "activation",
    "alpha",
    "audio",
    "aux",
    "batch",
    "beta",
    "bias",
    "dropout",
    "embedding",
    "embeddings",
    "eps",
    "expert",
    "experts",
    "fused",
    "image",
    "init",
    "initializer",
    "intermediate",
    "kernels",
    "layernorm",
    "lora",
    "loss",
    "mlp",
    "moe",
    "mtp",
    "norm",
    "output",
    "path",
    "proj",
    "rms",
    "rope",
    "rotary",
    "router",
    "sampling",
    "scale",
    "scaling",
    "scheduler",
    "silu",
    "step",
    "swiglu",
    "token",
    "train",
    "training",
    "video",
    "vision",
];

/// Words that speak of caches whatever [`LOOSE`] words stand beside them: `recurrence_steps`, `kv_embedding_layers`.
const SURE: &[&str] =
    &["cycles", "kv", "loop", "looped", "loops", "passes", "recurrence", "recurrent", "recursion", "swa", "yoco"];

/// Words of [`NOT_OF_CACHES`] that also stand in names of what loops, shares or slides.
const LOOSE: &[&str] = &["embedding", "embeddings", "output", "path", "scale", "step", "token", "train"];

/// Words of counts of which 1 says nothing.
const OF_COUNTS: &[&str] = &["factor", "loop", "loops", "num", "repeat", "repeats"];

/// How words end that are written together.
const ENDS: &[&str] = &["cache", "conv", "loops", "mamba", "ssm", "window"];

/// Words of values that name a kind of layer.
const KINDS: &[&str] =
    &["sliding", "linear", "mamba", "conv", "recurrent", "chunked", "compressed", "sparse", "window"];

/// Shorter names are a letter off too many others.
const SHORTEST: usize = 6;

/// How deep objects in a config are looked into.
const DEPTH: usize = 4;

/// What is not read of a config.
#[derive(Default)]
pub(super) struct Unread {
    /// Keys that could mean caches.
    pub(super) of_caches: Vec<String>,
    /// Keys that are a letter off one that is read of caches and is not there, with that.
    pub(super) misspelt: Vec<(String, String)>,
    /// Places of layers' own keys that nothing reads.
    pub(super) of_layers: Vec<String>,
    /// The others, where the class of the type has no such key.
    pub(super) others: Vec<String>,
}

/// The keys that neither the description nor the class of `model_type`, or of the decoder inside of it, has.
pub(super) fn find(
    description: &Description,
    model_type: &str,
    values: &Values<'_>,
    layers: u32,
) -> Result<Unread, String> {
    let classes: Vec<Class> =
        [Some(model_type), values.decoder_type.as_deref()].into_iter().flatten().filter_map(Class::of).collect();
    let sizes = [&description.layers, &description.hidden_size].into_iter().chain(&description.shared_layers);
    let sizes = sizes.map(|text| Expr::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let of_sizes: Vec<&str> = sizes.iter().flat_map(Expr::keys).collect();
    let mut unread = Unread::default();
    let is_read = |key: &str| {
        Ok::<bool, String>(coverage::mentions(description, key)? || classes.iter().any(|class| class.has(key)))
    };
    let optional = coverage::optional_keys(description)?;
    let stated = |key: &str| values.stated().any(|(known, value)| known == key && !value.is_null());
    for (place, key, value) in values.of_layers() {
        if !is_read(key)? && !says_nothing(key, value) {
            unread.of_layers.push(place);
        }
    }
    for (key, value) in values.stated() {
        let known = classes.iter().any(|class| class.has(key))
            || Class::common().has(key)
            || super::reads(key)
            || of_sizes.contains(&key);
        if known || coverage::mentions(description, key)? {
            continue;
        }
        if let Some(known) = optional.iter().find(|known| is_nearly(key, known) && !stated(known)) {
            unread.misspelt.push((key.to_owned(), known.clone()));
        } else if says_nothing(key, value) || says_nothing_more(key, description, values)? {
            // Whoever states that passes over the key, which is read by that.
            values.get(key);
        } else if could_mean_caches(key, value, layers, DEPTH) {
            unread.of_caches.push(key.to_owned());
        } else if !classes.is_empty() && !key.starts_with('_') && !key.ends_with("_config") {
            unread.others.push(key.to_owned());
        }
    }
    Ok(unread)
}

/// Whether a key is a letter off another, which is long enough to tell.
fn is_nearly(key: &str, known: &str) -> bool {
    known.len() >= SHORTEST && Shown(key).distance(known) == 1
}

/// Whether a key of Qwen's files, which others copy, says nothing beside what is read: the list of layers has the last word,
/// and where windows begin counts only if they are used.
fn says_nothing_more(key: &str, description: &Description, values: &Values<'_>) -> Result<bool, String> {
    let listed = || {
        Ok(values.get("layer_types").is_some_and(Value::is_array) && coverage::mentions(description, "layer_types")?)
    };
    match key {
        "max_window_layers" if values.get("use_sliding_window") != Some(&Value::Bool(true)) => Ok(true),
        "max_window_layers" | "use_sliding_window" => listed(),
        _ => Ok(false),
    }
}

/// Whether a description reads every key of a config that could mean caches, so that its type may be proposed.
pub(super) fn reads_all(description: &Description, model_type: &str, values: &Values<'_>) -> bool {
    find(description, model_type, values, 0).is_ok_and(|unread| unread.of_caches.is_empty())
        && coverage::first_not_read(description, values).is_ok_and(|key| key.is_none())
}

/// Refuses a config of whose keys one could mean caches that nobody described.
pub(super) fn check(description: &Description, values: &Values<'_>, layers: u32) -> Result<(), FrontendError> {
    let invalid = |reason: String| FrontendError::description(&values.model_type, reason);
    // The keys of a GGUF file are a table of its own spelling, of which no class says what there is.
    if values.model_type.starts_with("gguf:") {
        return match unread_path(description, values, layers).map_err(invalid)? {
            Some(path) => Err(not_said(description, values, &path)),
            None => Ok(()),
        };
    }
    let unread = find(description, &values.model_type, values, layers).map_err(invalid)?;
    if let Some((key, known)) = unread.misspelt.first() {
        let reason = format!("it is nearly `{known}`, which is read of caches and is not there");
        return Err(misnamed(description, values, key).unwrap_or_else(|| values.not_covered(&[key], &reason)));
    }
    if let Some(place) = unread.of_layers.first() {
        return Err(values.not_covered(&[place], "no block reads it"));
    }
    if let Some(key) = unread.of_caches.first() {
        return Err(not_said(description, values, key));
    }
    if !unread.others.is_empty() {
        values.note("not read", &unread.others.join(", "), "keys that its class does not have", false);
    }
    Ok(())
}

/// The first path of a table that could mean caches and that the description does not read.
fn unread_path(description: &Description, values: &Values<'_>, layers: u32) -> Result<Option<String>, String> {
    let sizes = [&description.layers, &description.hidden_size].into_iter().chain(&description.shared_layers);
    let sizes = sizes.map(|text| Expr::parse(text)).collect::<Result<Vec<_>, _>>()?;
    for (path, value) in values.leaves() {
        if sizes.iter().any(|size| size.keys().contains(&path.as_str()))
            || coverage::reads(description, |known| known == path)?
        {
            continue;
        }
        if says_nothing(&path, value) {
            // Whoever states that passes over the key, which is read by that.
            values.get(&path);
            continue;
        }
        let last = path.rsplit('.').next().unwrap_or(&path);
        let is_of_heads = has(last, &["key", "value"]) && has(last, &["length"]);
        if is_of_heads || coverage::changes_caches(last) || could_mean_caches(&path, value, layers, 0) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric()).map(str::to_ascii_lowercase)
}

fn has(text: &str, listed: &[&str]) -> bool {
    words(text).any(|word| listed.contains(&word.as_str()))
}

fn says_nothing(key: &str, value: &Value) -> bool {
    coverage::changes_nothing(value, &|_| false) || (has(key, OF_COUNTS) && value.as_u64() == Some(1))
}

fn could_mean_caches(key: &str, value: &Value, layers: u32, depth: usize) -> bool {
    let excused =
        |word: &String| NOT_OF_CACHES.contains(&word.as_str()) && !(has(key, SURE) && LOOSE.contains(&word.as_str()));
    if words(key).any(|word| excused(&word)) {
        return false;
    }
    if has(key, OF_CACHES) || has(key, SURE) || words(key).any(|word| ENDS.iter().any(|end| word.ends_with(end))) {
        return true;
    }
    // Which layers attend how: `attn_layer_map`.
    if has(key, &["attn", "attention"]) && has(key, &["layer", "layers", "kind", "kinds", "schedule", "type"]) {
        return true;
    }
    match value {
        Value::String(word) => has(word, KINDS),
        // One entry for each layer, unless they are fractions.
        Value::Array(list) if list.len() == layers as usize && layers > 1 => !list.iter().any(Value::is_f64),
        Value::Array(list) => list.iter().any(|entry| entry.as_str().is_some_and(|word| has(word, KINDS))),
        Value::Object(inner) if depth > 0 => inner
            .iter()
            .any(|(key, value)| !says_nothing(key, value) && could_mean_caches(key, value, layers, depth - 1)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("num_loops", json!(2), true)]
    #[case("num_loops", json!(1), false)]
    #[case("kv_source_layer_ids", json!([2, 8]), true)]
    #[case("swa_bounded_replay", json!(true), true)]
    #[case("n_recurrent_loops", json!(3), true)]
    #[case("whatever", json!(["sliding_attention", "full_attention"]), true)]
    #[case("whatever", json!([0, 1, 0, 1]), true)]
    #[case("whatever", json!([0.5, 1.0, 0.5, 1.0]), false)]
    #[case("attention_other_setting", json!({"attention_type": "sliding_attention"}), true)]
    #[case("mamba_rms_norm", json!(true), false)]
    #[case("n_shared_experts", json!(2), false)]
    #[case("pretraining_tp", json!(4), false)]
    #[case("ring_size", json!(null), false)]
    fn keys_that_could_mean_caches_are_told_by_words(#[case] key: &str, #[case] value: Value, #[case] expected: bool) {
        assert_eq!(!says_nothing(key, &value) && could_mean_caches(key, &value, 4, DEPTH), expected);
    }
}
