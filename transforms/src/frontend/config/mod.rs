//! Hugging Face `config.json`: the keys' meaning is in architecture descriptions, the rest is here.

mod architectures;
mod assume;
mod blocks;
mod check;
mod classes;
mod coverage;
mod described_block;
mod description;
mod dims;
mod expr;
mod json;
mod layers;
mod modules;
mod names;
mod not_said;
mod primes;
mod quantization;
mod stored;
mod towers;
mod unread;
mod values;

use std::cell::RefCell;
use std::sync::Arc;

use cacheplan_handlers::DType;
use serde_json::{Map, Value};

use self::classes::Class;
use self::described_block::Block;
use self::description::Description;
use self::dims::LayerContext;
use self::expr::Expr;
use self::layers::LayerKinds;
use self::values::{Number, Values};
use super::{FrontendError, ReadOptions};
use crate::builder::GraphBuilder;
use crate::model::{Fact, Model};
use crate::near::near_of;

pub use assume::Assumption;
pub(super) use values::TENSORS;

/// Whether models of such a type of `config.json` are described here, and need no description of the caller's.
pub fn is_built_in(model_type: &str) -> bool {
    !model_type.starts_with("gguf:") && description::known_model_types().any(|known| known == model_type)
}

/// The most decoder layers that are read; the deepest models have some 130.
const MAX_LAYERS: u64 = 1_024;

/// Reads the text of a config, and that of a calibration beside it; `file` stands for it in errors.
pub(super) fn read(
    file: &str,
    text: &str,
    calibration: Option<(&str, &str)>,
    options: &ReadOptions,
) -> Result<Model, FrontendError> {
    let mut json = json::parse(file, text)?;
    if let Some((file, text)) = calibration {
        quantization::merge(&mut json, json::parse(file, text)?);
    }
    let mut values = Values::new(file, json);
    for assumption in &options.assume {
        assumption.apply(&mut values);
    }
    let description = find_description(&mut values, options)?;
    let mut model = describe(values, &description, options)?;
    let mut hash = blake3::Hasher::new();
    hash.update(text.as_bytes()).update(calibration.map_or("", |(_, text)| text).as_bytes());
    model.info.fingerprint = hash.finalize().to_hex().to_string();
    model.source = format!("{file} (config.json)");
    Ok(model)
}

/// Reads a table of keys whose meaning the description of `model_type` tells.
pub(super) fn read_table(
    file: &str,
    table: Map<String, Value>,
    model_type: String,
    options: &ReadOptions,
) -> Result<Model, FrontendError> {
    let mut values = Values::new(file, table);
    Assumption::refuse_repeated(&options.assume)?;
    for assumption in &options.assume {
        assumption.apply(&mut values);
    }
    let description = description::find(file, &model_type, &options.descriptions)?;
    values.model_type = model_type;
    describe(values, &description, options)
}

fn describe(values: Values<'_>, description: &Description, options: &ReadOptions) -> Result<Model, FrontendError> {
    described(values, description, options).map_err(|error| description::located(error, &options.descriptions))
}

fn described(mut values: Values<'_>, description: &Description, options: &ReadOptions) -> Result<Model, FrontendError> {
    let model_type = values.model_type.clone();
    check::check(description, &model_type)?;
    // What an absent flag stands for its class says, and how long a sequence may be; sizes are taken of decoders in
    // wrappers alone, for elsewhere a size is rarely left out by intent.
    let class = Class::of(values.wrapper.as_ref().unwrap_or(&model_type));
    values.defaults = class.into_iter().flat_map(Class::defaults).map(|(key, of)| (key.to_owned(), of)).collect();
    if let Some(sizes) = values.decoder_type.as_deref().and_then(classes::sizes) {
        values.defaults.extend(sizes.iter().map(|&(key, of)| (key.to_owned(), of)));
    }
    values.defaults.extend(description.defaults.clone());
    let invalid = |reason: String| FrontendError::description(&model_type, reason);
    let hidden_size = Expr::parse(&description.hidden_size).map_err(invalid)?;
    let hidden_size = number(&values, "hidden_size", &hidden_size)?.value;
    let layers = layer_count(&values, description, invalid)?;
    values.find_overrides(layers)?;
    self::layers::refuse_misspelt(description, &values)?;
    coverage::check(description, &values, layers)?;
    unread::check(description, &values, layers)?;
    let dtype = activation_dtype(&values)?;
    let kinds = LayerKinds::read(description, &values, layers, &options.assume)?;

    let mut builder = GraphBuilder::new(values.model_type.clone(), hidden_size, dtype);
    if !description.weights {
        let model_type = &values.model_type;
        builder
            .forget_weights(|| format!("of `{model_type}` not all weights are described here; its safetensors tell"));
    }
    let count = |text: &str| -> Result<Option<u64>, FrontendError> {
        Ok(values.eval(&Expr::parse(text).map_err(invalid)?, 0)?.map(|number| number.value))
    };
    let size = |what: &str, text: &str| -> Result<Option<u64>, FrontendError> {
        let expr = Expr::parse(text).map_err(invalid)?;
        let number = values.eval(&expr, 0)?;
        number.iter().try_for_each(|number| values.check_count(what, number))?;
        Ok(number.map(|number| number.value))
    };
    let vocab_size = size("vocab_size", "vocab_size ?? padded_vocab_size")?;
    match (vocab_size, &description.vocabulary) {
        (Some(vocab_size), Some(weights)) => {
            builder.vocabulary_of(vocab_size, size("vocabulary", weights)?.unwrap_or(0));
        }
        (Some(vocab_size), None) => {
            let tied = count("tie_word_embeddings ?? tie_embedding ?? tie_embeddings")?.is_some_and(|tied| tied > 0);
            builder.vocabulary(vocab_size, tied);
        }
        (None, _) => {}
    }
    let more = Expr::parse(&description.more).map_err(invalid)?;
    match (vocab_size, values.eval(&more, 0)) {
        (Some(_), Ok(Some(more))) => builder.more_weights("more", more.value),
        (None, _) => builder.forget_weights(|| values.lacking(&["vocab_size"], 0)),
        (_, Ok(None)) => builder.forget_weights(|| values.absent("weights outside the layers", &more.keys(), 0)),
        (_, Err(error)) => builder.forget_weights(|| error.to_string()),
    }
    towers::add(&mut builder, &values);
    add_layers(&mut builder, &values, description, &kinds, layers)?;
    match stored::read(&values) {
        Ok(scheme) => builder.store(|name| scheme.of(name)),
        Err(why) => builder.forget_weights(|| why),
    }
    let longest = longest(&values)?;
    let mut decoder_numbers = Vec::new();
    for (key, expr) in &description.decoder_numbers {
        if let Some(number) = count(expr)? {
            decoder_numbers.push((key.clone(), number));
        }
    }
    let draft_layers = Expr::parse(DRAFT_LAYERS).map_err(invalid)?;
    if let Some(layers) = values.eval(&draft_layers, 0)?.filter(|layers| layers.value > 0) {
        values.remember("draft layers", &layers);
    }

    if let Some(key) = values.unread() {
        let reason = format!("nothing reads that key of model_type `{}`", values.model_type);
        return Err(FrontendError::Assumption { text: key, reason });
    }
    let mut model = builder.build();
    model.prediction.windowed = description.windowed_prediction;
    model.doubts.extend(quantization::named_only(&values));
    model.info.max_position_embeddings = longest;
    if let Some(decoder) = &description.decoder {
        model.decoder.clone_from(decoder);
    }
    (model.config, model.around, model.facts) = values.into_parts();
    for (key, number) in decoder_numbers {
        model.config.entry(key).or_insert(number.into());
    }
    description.translate(&mut model.config);
    Ok(model)
}

fn add_layers(
    builder: &mut GraphBuilder,
    values: &Values<'_>,
    description: &Description,
    kinds: &LayerKinds,
    layers: u32,
) -> Result<(), FrontendError> {
    let dtypes = [state_dtype(values)?, quantization::kv_dtype(values)?];
    let invalid = |reason| FrontendError::description(&values.model_type, reason);
    let shared = description.shared_layers.as_deref().map(Expr::parse).transpose().map_err(invalid)?;
    let readers = shared.as_ref().map(|expr| values.eval(expr, 0)).transpose()?.flatten();
    let readers = readers.map_or(0, |number| number.value);
    let owners = u32::try_from(u64::from(layers).saturating_sub(readers)).unwrap_or(layers);
    let no_owner = |layer: u32| {
        let keys = shared.as_ref().map(Expr::keys).unwrap_or_default();
        let key = keys.first().copied().unwrap_or_default();
        let expected = format!("layer {layer} would share keys, but none of the first {owners} layers is of its kind");
        values.bad(key, &values.get(key).cloned().unwrap_or_default(), &expected)
    };
    let mut described: Vec<Option<LayerKind>> = kinds.names().iter().map(|_| None).collect();
    for layer in 0..layers {
        builder.layer();
        let kind = kinds.of(layer);
        let name = &kinds.names()[kind];
        // A layer behind the owners reads the keys and values of the last owner of its own kind.
        let owner = || kinds.last_alike(layer, owners).ok_or_else(|| no_owner(layer));
        let shares_layer = if layer < owners { None } else { Some(owner()?) };
        let mut context = LayerContext { layer, layers, notes: None, shares_layer, dtypes };
        if let Some(LayerKind { blocks, known }) = &described[kind] {
            blocks.iter().try_for_each(|block| block.emit(builder, values, context))?;
            builder.explain(name, known);
            continue;
        }
        let blocks = blocks_of(name, description).map_err(invalid)?;
        blocks.iter().try_for_each(|block| block.check_lists(values, layers))?;
        let notes = RefCell::default();
        context.notes = Some(&notes);
        blocks.iter().try_for_each(|block| block.emit(builder, values, context))?;
        let known = notes.into_inner().into();
        builder.explain(name, &known);
        described[kind] = Some(LayerKind { blocks, known });
    }
    Ok(())
}

/// What layers of one kind have in common.
struct LayerKind {
    blocks: Vec<Block>,
    /// How their dimensions are known.
    known: Arc<[Fact]>,
}

fn layer_count(
    values: &Values<'_>,
    description: &Description,
    invalid: impl Fn(String) -> FrontendError,
) -> Result<u32, FrontendError> {
    let expr = Expr::parse(&description.layers).map_err(invalid)?;
    let layers = number(values, "layers", &expr)?;
    let counted = u32::try_from(layers.value).ok().filter(|_| layers.value <= MAX_LAYERS);
    counted.ok_or_else(|| values.bad_number("layers", &layers, &format!("at most {MAX_LAYERS} layers are read")))
}

/// The longest sequence: Cohere's key stands above the others, of which the least counts, then the class's own; as vLLM's
/// `_get_and_verify_max_len` has it. No scaling is applied, by which engines differ.
fn longest(values: &Values<'_>) -> Result<Option<u64>, FrontendError> {
    let stated = |key: &str| -> Result<Option<u64>, FrontendError> {
        // Tokenizers state no limit as 10^30.
        let beyond = |value: &Value| value.as_f64().is_some_and(|tokens| tokens > LONGEST);
        if values.get(key).is_none_or(beyond) {
            return Ok(None);
        }
        let expr = Expr::Key(key.to_owned());
        let number = values.eval(&expr, 0)?;
        number.iter().try_for_each(|number| values.check_count(LENGTH, number))?;
        Ok(number.map(|number| number.value).filter(|&tokens| tokens > 0))
    };
    if let Some(tokens) = stated(LENGTH_ABOVE_ALL)? {
        return Ok(Some(tokens));
    }
    let mut least = None;
    for key in LENGTHS {
        least = [least, stated(key)?].into_iter().flatten().min();
    }
    // A decoder in a wrapper has its own class.
    let decoder = values.decoder_type.as_deref().and_then(Class::of);
    let of_decoder = || decoder?.defaults().find_map(|(key, tokens)| (key == LENGTH).then_some(tokens));
    let of_class = || of_decoder().or_else(|| values.defaults.get(LENGTH).copied());
    Ok(least.or_else(of_class))
}

/// The longest sequence that anybody states.
const LONGEST: f64 = (1_u64 << 40) as f64;
const LENGTH: &str = "max_position_embeddings";
const LENGTH_ABOVE_ALL: &str = "model_max_length";
const LENGTHS: [&str; 9] = [
    LENGTH,
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
    "context_length",
];

/// How many layers draft tokens; they have caches only while they are used, as the budget states.
const DRAFT_LAYERS: &str = "num_nextn_predict_layers ?? mtp_num_hidden_layers ?? num_mtp_layers ?? num_mtp_modules";

/// The dtype of recurrent states, the first that a config has.
const STATE_DTYPES: [&str; 3] = ["mamba_ssm_cache_dtype", "mamba_ssm_dtype", "recurrent_state_dtype"];

/// Whether a key is read whatever the architecture.
fn reads(key: &str) -> bool {
    const KEYS: [&str; 10] = [
        "cache_implementation",
        "compression_config",
        "conv_state_dtype",
        "expert_dtype",
        "kv_cache_dtype",
        "mlp_layer_types",
        "per_layer_config",
        "tie_embedding",
        "tie_embeddings",
        "tie_word_embeddings",
    ];
    KEYS.contains(&key)
        || STATE_DTYPES.contains(&key)
        || LENGTHS.contains(&key)
        || key == LENGTH_ABOVE_ALL
        || DRAFT_LAYERS.split(' ').any(|word| word == key)
}

fn find_description(values: &mut Values<'_>, options: &ReadOptions) -> Result<Description, FrontendError> {
    let stated = match values.get("model_type") {
        Some(Value::String(word)) => Some(word.clone()),
        Some(other) => return Err(values.bad("model_type", other, "the name of an architecture was expected")),
        None => None,
    };
    let recognised = || description::recognise(|key| values.get(key).is_some());
    let Some(model_type) = stated.or_else(recognised) else {
        return Err(FrontendError::NoModelType { file: values.file.to_owned() });
    };
    values.model_type = model_type;
    let found = description::find(values.file, &values.model_type, &options.descriptions);
    let (Err(FrontendError::UnknownModelType { .. }), Some(decoder)) = (&found, &values.decoder_type) else {
        return found.map_err(|error| propose(error, values, options));
    };
    // It drafts with the caches of another model, whose decoder it wraps.
    if values.model_type.ends_with("_assistant") {
        return found.map_err(|error| propose(error, values, options));
    }
    // A wrapper that nobody knows around a decoder that is known.
    let Ok(description) = description::find(values.file, decoder, &options.descriptions) else {
        return found.map_err(|error| propose(error, values, options));
    };
    values.note("decoder", decoder, "the nested model_type", false);
    values.wrapper = Some(std::mem::replace(&mut values.model_type, decoder.clone()));
    Ok(description)
}

/// Names only near types that read every key of the config that could mean caches.
fn propose(error: FrontendError, values: &Values<'_>, options: &ReadOptions) -> FrontendError {
    let FrontendError::UnknownModelType { file, found, .. } = error else { return error };
    if let Some(error) = description::nearly_of(&file, &found, &options.descriptions) {
        return error;
    }
    let reads_all = |model_type: &str| {
        description::find("", model_type, &[]).is_ok_and(|near| unread::reads_all(&near, model_type, values))
    };
    let near = near_of(&found, description::known_model_types(), reads_all);
    FrontendError::UnknownModelType { file, found, near }
}

fn number<'e>(values: &Values<'_>, what: &str, expr: &'e Expr) -> Result<Number<'e>, FrontendError> {
    match values.eval(expr, 0)? {
        Some(number) if number.value > 0 => {
            values.check_count(what, &number)?;
            values.check_one(what, &number, expr)?;
            values.remember(what, &number);
            Ok(number)
        }
        Some(number) => Err(values.bad_number(what, &number, "at least 1 was expected")),
        None => Err(values.missing(what, Some(expr), 0)),
    }
}

/// The dtype of a model, the first that a config has.
const DTYPES: [&str; 3] = ["dtype", "torch_dtype", "conv_state_dtype"];

/// Nothing computes in the 8 bits that some weights have: engines take bfloat16 there, vLLM's `_resolve_auto_dtype` too.
fn activation_dtype(values: &Values<'_>) -> Result<DType, FrontendError> {
    Ok(match values.dtype(&DTYPES)? {
        Some((dtype @ (DType::F8E4m3 | DType::F8E5m2), key)) => {
            values.note("dtype", &DType::Bf16, format!("{key}, whose {dtype} is that of weights alone"), true);
            DType::Bf16
        }
        Some((dtype, key)) => {
            values.note("dtype", &dtype, key, false);
            dtype
        }
        None => {
            values.note("dtype", &DType::Bf16, "no file states it", true);
            DType::Bf16
        }
    })
}

fn state_dtype(values: &Values<'_>) -> Result<Option<DType>, FrontendError> {
    let found = values.dtype(&STATE_DTYPES)?;
    if let Some((dtype, key)) = &found {
        values.note("state dtype", &dtype, key.as_str(), false);
    }
    Ok(found.map(|(dtype, _)| dtype))
}

/// The blocks of a layer kind; kinds that a description leaves out have their usual ones.
fn blocks_of(kind: &str, description: &Description) -> Result<Vec<Block>, String> {
    let block = |name: &str| Block::new(name, description.blocks.get(name));
    match (description.kinds.get(kind), layers::usual_blocks(kind)) {
        (Some(names), _) => names.iter().map(|name| block(name)).collect(),
        (None, Some(names)) => names.iter().map(|name| block(name)).collect(),
        (None, None) => Err(format!("[kinds] has no entry for `{kind}`")),
    }
}
