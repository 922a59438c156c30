//! Hugging Face `config.json`: the keys' meaning is in architecture descriptions, the rest is here.

mod architectures;
mod assume;
mod blocks;
mod description;
mod expr;
mod json;
mod layers;
mod quantization;
mod values;

use cacheplan_handlers::DType;
use serde_json::Value;

use self::blocks::{Block, LayerContext};
use self::description::Description;
use self::expr::Expr;
use self::layers::LayerKinds;
use self::values::Values;
use super::{FrontendError, ReadOptions};
use crate::builder::GraphBuilder;
use crate::model::{Model, ModelInfo};

pub use assume::Assumption;

/// The most decoder layers that are read, far above any real model.
const MAX_LAYERS: u64 = 20_000;

/// Reads the text of a config; `file` stands for it in errors.
pub(super) fn read(file: &str, text: &str, options: &ReadOptions) -> Result<Model, FrontendError> {
    let json = json::parse(text).map_err(|source| FrontendError::Json { file: file.to_owned(), source })?;
    let mut values = Values::new(file, json);
    for assumption in &options.assume {
        assumption.apply(&mut values);
    }
    let description = find_description(&mut values, options)?;
    let invalid = |reason: String| FrontendError::Description { model_type: values.model_type.clone(), reason };

    let hidden_size = number(&values, "hidden_size", &description.hidden_size, invalid)?;
    let layers = number(&values, "layers", &description.layers, invalid)?;
    let layers = u32::try_from(layers).ok().filter(|&layers| u64::from(layers) <= MAX_LAYERS).ok_or_else(|| {
        let expected = format!("at most {MAX_LAYERS} layers are read");
        FrontendError::BadValue { file: file.to_owned(), key: "layers".to_owned(), found: layers.to_string(), expected }
    })?;
    let dtype = activation_dtype(&values)?;
    let kinds = LayerKinds::read(&description, &values, layers, &options.assume)?;

    let mut builder = GraphBuilder::new(values.model_type.clone(), hidden_size, dtype);
    let dtypes = [state_dtype(&values)?, quantization::kv_dtype(&values)?];
    let weight_dtype = quantization::weight_dtype(&values);
    builder.weight_dtype(weight_dtype.ok().flatten().unwrap_or(dtype));
    let shared = values.eval(&Expr::Key(SHARED_LAYERS.to_owned()), 0)?.map_or(0, |number| number.value);
    let owners = u32::try_from(u64::from(layers).saturating_sub(shared)).unwrap_or(layers);
    let mut blocks: Vec<Option<Vec<Block>>> = kinds.names().iter().map(|_| None).collect();
    for index in 0..layers {
        builder.layer();
        let kind = kinds.of(index);
        let first = blocks[kind].is_none();
        let name = &kinds.names()[kind];
        // A layer behind the owners reads the keys and values of the last owner of its own kind.
        let shares_layer = if index < owners { None } else { kinds.last_alike(index, owners) };
        let context = LayerContext { layer: index, first, shares_layer, dtypes };
        let blocks = match &mut blocks[kind] {
            Some(blocks) => blocks,
            empty => empty.insert(blocks_of(name, &description).map_err(invalid)?),
        };
        for block in blocks.iter() {
            block.emit(&mut builder, &values, context)?;
        }
    }
    let vocab_size = values.eval(&Expr::Key("vocab_size".to_owned()), 0)?.map(|number| number.value);
    if let Some(vocab_size) = vocab_size {
        let tied = values.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false);
        builder.vocabulary(vocab_size, tied);
    }
    let (graph, weights) = builder.into_graph();
    let longest = values.eval(&Expr::parse(CONTEXT_LENGTH).map_err(invalid)?, 0)?;
    let info = ModelInfo {
        model_type: values.model_type.clone(),
        layers,
        dtype,
        max_position_embeddings: longest.map(|number| number.value),
        // Without a vocabulary the sum would lack a part, and a wrong number is worse than none.
        weights: weights.filter(|_| vocab_size.is_some() && weight_dtype.is_ok() && description.weights),
        fingerprint: blake3::hash(text.as_bytes()).to_hex().to_string(),
    };
    let mut model = Model::new(info, graph);
    model.source = format!("{file} (config.json)");
    model.layer_kinds = (0..layers).map(|index| kinds.names()[kinds.of(index)].clone()).collect();
    (model.config, model.facts) = values.into_parts();
    Ok(model)
}

const CONTEXT_LENGTH: &str =
    "max_position_embeddings ?? model_max_length ?? max_seq_len ?? n_positions ?? context_length ?? seq_length";

/// How many layers at the end read the keys and values of earlier ones.
const SHARED_LAYERS: &str = "num_kv_shared_layers";

fn find_description(values: &mut Values<'_>, options: &ReadOptions) -> Result<Description, FrontendError> {
    let stated = values.text("model_type").map(str::to_owned);
    let recognised = || description::recognise(|key| values.get(key).is_some());
    let Some(model_type) = stated.or_else(recognised) else {
        return Err(FrontendError::UnknownModelType {
            file: values.file.to_owned(),
            found: "(none)".to_owned(),
            near: "none".to_owned(),
        });
    };
    values.model_type = model_type;
    description::find(values.file, &values.model_type, &options.descriptions)
}

fn number(
    values: &Values<'_>,
    what: &str,
    text: &str,
    invalid: impl Fn(String) -> FrontendError,
) -> Result<u64, FrontendError> {
    let expr = Expr::parse(text).map_err(invalid)?;
    match values.eval(&expr, 0)? {
        Some(number) if number.value > 0 => {
            values.remember(what, &number);
            Ok(number.value)
        }
        Some(_) => Err(values.bad(&expr.keys().join(", "), &Value::from(0), "at least 1 was expected")),
        None => Err(values.missing(what, &expr)),
    }
}

fn activation_dtype(values: &Values<'_>) -> Result<DType, FrontendError> {
    Ok(match values.dtype(&["dtype", "torch_dtype"])? {
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
    let found = values.dtype(&["mamba_ssm_cache_dtype", "mamba_ssm_dtype"])?;
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
