//! Weights of what stands beside a decoder: towers for images and sound, and what leads from them to the decoder.
//!
//! `towers.toml` has a count for each kind of tower and for each model type that has some, as expressions.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::MAX_LAYERS;
use super::classes::Class;
use super::expr::Expr;
use super::values::Values;
use crate::builder::GraphBuilder;

static TOWERS: LazyLock<Result<Towers, String>> = LazyLock::new(|| {
    cacheplan_files::Source::parse_toml(include_str!("towers.toml")).map_err(|error| error.to_string())
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Towers {
    /// Pieces of counts, by names that stand for them in others.
    pieces: BTreeMap<String, String>,
    /// Weights of a tower, by the model type of its own config, over that config's keys.
    towers: BTreeMap<String, String>,
    /// Of these, what ranks divide.
    divided: BTreeMap<String, String>,
    /// Model types with towers.
    models: BTreeMap<String, Parts>,
}

/// The towers of one model type.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    /// Paths of the towers' configs, each with the type that it is of where it does not say.
    #[serde(default)]
    towers: BTreeMap<String, String>,
    /// Those of the paths without which there is no tower; the others have the defaults of their class.
    #[serde(default)]
    optional: Vec<String>,
    /// Weights between towers and decoder, over the whole config's keys, the decoder's as `text_config`.
    #[serde(default = "none")]
    more: String,
}

fn none() -> String {
    "0".to_owned()
}

/// Parts of names that say that an object is the config of a tower.
const NAMED: [&str; 12] = [
    "vision",
    "visual",
    "image",
    "video",
    "audio",
    "speech",
    "codec",
    "talker",
    "encoder",
    "projector",
    "tower",
    "vit_",
];

impl Towers {
    /// The count that a text stands for, with those of the pieces and towers that it names.
    fn expr(&self, text: &str) -> Result<Expr, String> {
        let expr = Expr::parse(text)?;
        let mut named = BTreeMap::new();
        for key in expr.keys() {
            if let Some(piece) = self.pieces.get(key).or_else(|| self.towers.get(key)) {
                named.insert(key, self.expr(piece)?);
            }
        }
        Ok(expr.with(&|key| named.get(key)))
    }
}

/// Adds the weights beside the decoder, or says that they are not known.
pub(super) fn add(builder: &mut GraphBuilder, values: &Values<'_>) {
    match count(values) {
        Ok([divided, whole]) => {
            builder.more_weights("tower.matrices", divided);
            builder.more_weights("tower", whole);
        }
        Err(why) => builder.forget_weights(|| why),
    }
}

/// What ranks divide, and what each has as a whole.
fn count(values: &Values<'_>) -> Result<[u64; 2], String> {
    let model_type = values.wrapper.as_ref().unwrap_or(&values.model_type);
    let described = TOWERS.as_ref().map_err(Clone::clone)?;
    let named = |key: &str| NAMED.iter().any(|name| key.contains(name));
    let Some(parts) = described.models.get(model_type) else {
        if !values.is_nested() && !values.parts().any(|(key, _)| named(key)) {
            return Ok([0; 2]);
        }
        return Err(format!("of `{model_type}` what stands beside the decoder is not described; its safetensors tell"));
    };
    let more = described.expr(&parts.more)?;
    let reached = parts.towers.keys().map(String::as_str).chain(more.keys()).map(|path| path.split('.').next());
    let is_config = |key: &str| key.ends_with("_config") && named(key);
    if let Some((key, _)) =
        values.parts().find(|&(key, _)| is_config(key) && !reached.clone().any(|of| of == Some(key)))
    {
        return Err(format!("of `{model_type}` what `{key}` tells is not described; its safetensors tell"));
    }
    let [mut sum, mut divided] = [0u64; 2];
    let mut defaults = BTreeMap::new();
    for (key, usual) in &parts.towers {
        let stated = values.part_at(key);
        if stated.is_none() && parts.optional.contains(key) {
            continue;
        }
        let kind = stated.and_then(|part| part.get("model_type")).and_then(Value::as_str);
        // Published files call a tower as the whole model, or not at all.
        let kind = kind.filter(|kind| kind != model_type && !kind.is_empty()).unwrap_or(usual);
        let Some(weights) = described.towers.get(kind) else {
            return Err(format!("the weights of a tower of type `{kind}` are not described; its safetensors tell"));
        };
        let of_class: BTreeMap<String, u64> =
            Class::of(kind).into_iter().flat_map(Class::defaults).map(|(name, of)| (name.to_owned(), of)).collect();
        defaults.extend(of_class.iter().map(|(name, of)| (format!("{key}.{name}"), *of)));
        let mut part = values.part(key, of_class);
        part.find_overrides(MAX_LAYERS as u32).map_err(|error| error.to_string())?;
        sum = sum.saturating_add(evaluate(&part, &described.expr(weights)?, kind)?);
        if let Some(matrices) = described.divided.get(kind) {
            divided = divided.saturating_add(evaluate(&part, &described.expr(matrices)?, kind)?);
        }
    }
    defaults.extend(values.defaults.iter().map(|(key, of)| (key.clone(), *of)));
    let more = evaluate(&values.whole(defaults), &more, "what leads from its towers to the decoder")?;
    let whole = sum.checked_sub(divided).ok_or("more of its towers is divided than there is")?;
    Ok([divided, whole.saturating_add(more)])
}

fn evaluate(values: &Values<'_>, expr: &Expr, what: &str) -> Result<u64, String> {
    match values.eval(expr, 0) {
        Ok(Some(number)) => Ok(number.value),
        Ok(None) => Err(values.absent(what, &expr.keys(), 0)),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_is_an_expression_of_a_described_tower() {
        let described = TOWERS.as_ref().unwrap();
        let counts = described.towers.values().chain(described.divided.values());
        for text in counts.chain(described.models.values().map(|parts| &parts.more)) {
            assert!(described.expr(text).is_ok(), "{text}");
        }
        let usual = described.models.values().flat_map(|parts| parts.towers.values());
        let mut all = usual.chain(described.divided.keys());
        assert!(all.all(|kind| described.towers.contains_key(kind)));
    }
}
