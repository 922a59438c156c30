//! Architecture descriptions: what a config's keys mean, as data.

use std::collections::BTreeMap;

use cacheplan_files::{Source, TomlError};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::architectures::BUILT_IN;
use crate::frontend::error::Untold;
use crate::frontend::{DescriptionPlace, FrontendError};
use crate::near::{Near, near};

/// One architecture, as its TOML file says. `docs/adding-a-model.md` explains the format.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    /// The `model_type`s that it describes.
    pub(super) model_types: Vec<String>,
    /// Keys that give it away where a config has no `model_type`.
    #[serde(default)]
    pub(super) signature: Vec<String>,
    /// How many decoder layers there are.
    #[serde(default = "default_layers")]
    pub(super) layers: String,
    /// Channels of the residual stream.
    #[serde(default = "default_hidden_size")]
    pub(super) hidden_size: String,
    /// How many layers at the end read the keys and values of the last layer of their kind before them.
    pub(super) shared_layers: Option<String>,
    /// Numbers that the architecture takes for keys that are absent.
    #[serde(default)]
    pub(super) defaults: BTreeMap<String, u64>,
    /// Where the kind of each layer is found; the first source whose keys are there counts.
    #[serde(default)]
    pub(super) pattern: Vec<Pattern>,
    /// What must hold for every layer, or the model is not covered.
    #[serde(default)]
    pub(super) requires: Vec<Requirement>,
    /// Keys that mean nothing here, although elsewhere they change what is cached; `KEY=WORD` for one word of a list.
    #[serde(default)]
    pub(super) ignores: Vec<String>,
    /// Spellings of layer kinds.
    #[serde(default)]
    pub(super) names: BTreeMap<String, String>,
    /// Which blocks a layer of each kind has.
    #[serde(default)]
    pub(super) kinds: BTreeMap<String, Vec<String>>,
    /// How many weights embeddings and head have, where they are not of the model's width.
    pub(super) vocabulary: Option<String>,
    /// How many weights there are outside the layers, embeddings and head not counted.
    #[serde(default = "default_hidden_size")]
    pub(super) more: String,
    /// Whether the blocks describe all weights, so that their sum estimates the model's size.
    #[serde(default = "default_true")]
    pub(super) weights: bool,
    /// Whether layers that predict further tokens look at a window.
    #[serde(default)]
    pub(super) windowed_prediction: bool,
    /// Blocks whose dimensions differ from the usual keys.
    #[serde(default)]
    pub(super) blocks: BTreeMap<String, BTreeMap<String, String>>,
    /// What is otherwise in one of the model types.
    #[serde(default)]
    types: BTreeMap<String, Changes>,
    /// The model type whose decoder runs this one, where it is not its own.
    pub(super) decoder: Option<String>,
    /// Keys that this decoder reads, each with the path at which the config has it.
    #[serde(default)]
    decoder_keys: BTreeMap<String, String>,
    /// Keys that this decoder reads, each with an expression for it where it is a number that no key states.
    #[serde(default)]
    pub(super) decoder_numbers: BTreeMap<String, String>,
    /// Keys that this decoder reads, each with its value where the config does not state it; a table fills what is there.
    #[serde(default)]
    decoder_values: BTreeMap<String, Value>,
    /// Whether it is the caller's.
    #[serde(skip)]
    pub(super) custom: bool,
}

/// What one model type of a description has of its own; an entry takes the place of the description's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Changes {
    vocabulary: Option<String>,
    more: Option<String>,
    weights: Option<bool>,
    #[serde(default)]
    defaults: BTreeMap<String, u64>,
    #[serde(default)]
    ignores: Vec<String>,
    #[serde(default)]
    blocks: BTreeMap<String, BTreeMap<String, String>>,
}

impl Description {
    /// The description with what is otherwise in `model_type`.
    fn of_type(mut self, model_type: &str) -> Self {
        let Some(changes) = self.types.remove(model_type) else { return self };
        self.vocabulary = changes.vocabulary.or(self.vocabulary);
        self.more = changes.more.unwrap_or(self.more);
        self.weights = changes.weights.unwrap_or(self.weights);
        self.defaults.extend(changes.defaults);
        self.ignores.extend(changes.ignores);
        for (block, dims) in changes.blocks {
            self.blocks.entry(block).or_default().extend(dims);
        }
        self
    }

    /// The expressions of its blocks, each with the names on the way to it.
    pub(super) fn expressions(&self) -> impl Iterator<Item = ([&str; 2], &str)> {
        self.blocks.iter().flat_map(|(block, dims)| {
            let expressions = dims.iter().filter(|(key, _)| !matches!(key.as_str(), "block" | "dtype"));
            expressions.map(move |(key, text)| ([block.as_str(), key.as_str()], text.as_str()))
        })
    }

    /// Adds to a config the keys of its decoder in that decoder's spelling.
    pub(super) fn translate(&self, config: &mut Map<String, Value>) {
        for (key, path) in &self.decoder_keys {
            let mut path = path.split('.');
            let first = path.next().and_then(|key| config.get(key));
            if let Some(value) = path.fold(first, |value, key| value?.get(key)).cloned() {
                config.insert(key.clone(), value);
            }
        }
        fill(config, self.decoder_values.iter());
    }
}

/// Adds what is not stated, also inside of what is.
fn fill<'a>(config: &mut Map<String, Value>, values: impl Iterator<Item = (&'a String, &'a Value)>) {
    for (key, value) in values {
        match (config.get_mut(key), value) {
            (Some(Value::Object(stated)), Value::Object(value)) => fill(stated, value.iter()),
            (None | Some(Value::Null), value) => drop(config.insert(key.clone(), value.clone())),
            _ => {}
        }
    }
}

fn default_layers() -> String {
    "num_hidden_layers ?? n_layer ?? len(layer_types) ?? len(layers_block_type)".to_owned()
}

fn default_true() -> bool {
    true
}

fn default_hidden_size() -> String {
    "hidden_size ?? d_model ?? n_embd".to_owned()
}

/// A condition on the model, such as that no layer reads another's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Requirement {
    /// An expression that must not be 0; one whose keys are absent holds.
    pub(super) that: String,
    /// What is not covered where it is 0.
    pub(super) because: String,
}

/// One way to tell the kind of each layer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pattern {
    /// It counts only where this expression is there and not 0.
    pub(super) when: Option<String>,
    /// A list with one kind per layer, or a text with one character per layer; a shorter one is repeated if `repeat`.
    pub(super) key: Option<String>,
    /// Whether the list is one period of the pattern.
    #[serde(default)]
    pub(super) repeat: bool,
    /// Lists that follow each other, each a key, or a key and the key that says how often it is there: `block * blocks`.
    #[serde(default)]
    pub(super) joined: Vec<String>,
    /// An object that says how many layers of each kind there are, but not where.
    pub(super) counts: Option<String>,
    /// The layers of the second of `kinds` in the architecture's own default, which no key states.
    pub(super) layers: Option<Vec<u32>>,
    /// An expression for each layer: its value is a position in `kinds`, the last one for anything larger.
    pub(super) choose: Option<String>,
    /// The kinds to choose from; of one kind all layers are.
    #[serde(default)]
    pub(super) kinds: Vec<String>,
}

/// What a pattern tells, in the words of an error.
pub(super) const KINDS: &str = "the kinds of the layers";

/// The description of `model_type`; the caller's come first.
pub(super) fn find(file: &str, model_type: &str, custom: &[String]) -> Result<Description, FrontendError> {
    for (which, text) in custom.iter().enumerate() {
        let custom = Custom { text, which };
        let mut description = parse(text, model_type).map_err(|error| custom.located(error))?;
        description.custom = true;
        if description.model_types.iter().any(|known| known == model_type) {
            return Ok(description.of_type(model_type));
        }
    }
    let quoted = format!("\"{model_type}\"");
    match BUILT_IN.iter().find(|text| first_line(text).contains(&quoted)) {
        Some(text) => parse(text, model_type).map(|description: Description| description.of_type(model_type)),
        None => Err(FrontendError::UnknownModelType {
            file: file.to_owned(),
            found: model_type.to_owned(),
            near: String::new(),
        }),
    }
}

/// The model type that a config without one must be, told by its other keys.
pub(super) fn recognise(has_key: impl Fn(&str) -> bool) -> Option<String> {
    let signed = BUILT_IN.iter().filter(|text| text.contains("\nsignature = "));
    let mut descriptions = signed.filter_map(|text| parse(text, "").ok());
    let found = descriptions.find(|description| description.signature.iter().all(|key| has_key(key)))?;
    found.model_types.into_iter().next()
}

/// All model types with a built-in description.
pub(super) fn known_model_types() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().flat_map(|text| first_line(text).split('"').skip(1).step_by(2))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

fn parse(text: &str, model_type: &str) -> Result<Description, FrontendError> {
    Source::parse_toml(text).map_err(|TomlError { message, span, line }| FrontendError::Description {
        model_type: if model_type.is_empty() { first_line(text) } else { model_type }.to_owned(),
        place: Box::new(DescriptionPlace { span, line, ..DescriptionPlace::default() }),
        reason: with_hint(message),
    })
}

/// What serde says of a key that there is none of, with the nearest of those that it lists, and of a number in the place of
/// an expression.
fn with_hint(message: String) -> String {
    let number =
        message.strip_prefix("invalid type: integer `").and_then(|rest| rest.strip_suffix("`, expected a string"));
    if let Some(number) = number {
        return format!("an expression is a text; write \"{number}\" for {number}");
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let Some(found) = quoted.next().filter(|_| message.starts_with("unknown field")) else { return message };
    let (near, known) = (near(found, quoted.clone()), quoted.collect::<Vec<_>>().join(", "));
    format!("unknown key `{found}`{}; known are {known}", Near(&near))
}

/// A description of the caller's.
struct Custom<'a> {
    text: &'a str,
    which: usize,
}

impl Custom<'_> {
    /// The error, with where its key stands.
    fn located(&self, mut error: FrontendError) -> FrontendError {
        let FrontendError::Description { place, .. } = &mut error else { return error };
        place.which = Some(self.which);
        if place.span.is_none() && !place.key.is_empty() {
            let found = Source::find_toml(self.text, &place.key, &place.word);
            (place.span, place.line) = found.map_or((None, None), |(span, line)| (Some(span), Some(line)));
        }
        error
    }
}

/// What an error of a description that [`find`] found says of where it lies, if it is the caller's.
pub(super) fn located(error: FrontendError, custom: &[String]) -> FrontendError {
    let (FrontendError::Description { model_type, .. }
    | FrontendError::Missing { model_type, .. }
    | FrontendError::UnknownLayerKind { model_type, .. }) = &error
    else {
        return error;
    };
    let is_its = |text: &&String| {
        parse(text, model_type).is_ok_and(|description| description.model_types.iter().any(|known| known == model_type))
    };
    match custom.iter().enumerate().find(|(_, text)| is_its(text)) {
        Some((which, text)) => Custom { text, which }.located(sought_by(error, text)),
        None => error,
    }
}

/// A key that is not there and that a caller's description names, or a kind that it does not: which of the two is wrong only
/// the caller knows.
fn sought_by(error: FrontendError, text: &str) -> FrontendError {
    let is_there = |key: &String| Source::find_toml(text, key, "").is_some();
    let (model_type, place, reason) = match &error {
        FrontendError::Missing { file, model_type, what, keys, unsaid, near } => {
            let key = if **what == *KINDS { "pattern".to_owned() } else { format!("blocks.{what}") };
            if !is_there(&key) {
                return error;
            }
            let place = format!("in {file}");
            let untold = Untold::new(keys, near, unsaid, &place);
            let reason = format!("{untold}; correct it, state it there, or pass --assume KEY=VALUE");
            let first = if keys.is_empty() { unsaid } else { keys };
            (model_type, DescriptionPlace::of(&[key.as_str()]).at(first.split('`').nth(1).unwrap_or_default()), reason)
        }
        FrontendError::UnknownLayerKind { file, model_type, layer, found, near, known } => {
            let near_keys = near.split(", ").flat_map(|near| ["names", "kinds"].map(|table| format!("{table}.{near}")));
            let tables = ["names", "kinds", "pattern"].map(str::to_owned);
            let key = near_keys.chain(tables).find(is_there).unwrap_or_default();
            let reason = format!(
                "layer {layer} is of unknown kind `{found}`{} by {file}; what this describes is {known}: correct it, \
                 name the kind in [names] or [kinds], or pass --assume layer.{layer}=KIND",
                Near(near)
            );
            (model_type, DescriptionPlace::of(&[key.as_str()]), reason)
        }
        _ => return error,
    };
    FrontendError::Description { model_type: model_type.clone(), place: Box::new(place), reason }
}

/// A model type that none of the caller's descriptions has, but nearly: it is one of those that are wrong.
pub(super) fn nearly_of(file: &str, found: &str, custom: &[String]) -> Option<FrontendError> {
    custom.iter().enumerate().find_map(|(which, text)| {
        let types = parse(text, "").ok()?.model_types;
        let near = near(found, types.iter().map(String::as_str));
        let meant = near.split(", ").next().filter(|near| !near.is_empty())?;
        let place = Box::new(DescriptionPlace::of(&["model_types"]).at(meant));
        let near = Near(&near);
        let reason = format!(
            "unknown model_type `{found}`{near} in {file}; correct one of them, or pass --assume model_type=NAME"
        );
        let error = FrontendError::Description { model_type: meant.to_owned(), place, reason };
        Some(Custom { text, which }.located(error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_description_is_found_by_each_of_its_model_types() {
        let mut seen = std::collections::BTreeSet::new();
        for text in BUILT_IN {
            let description = parse(text, "").unwrap();
            assert!(!description.model_types.is_empty());
            let own = description.types.keys().find(|own| !description.model_types.contains(own));
            assert_eq!(own, None, "nothing is described for a type that is not listed");
            for model_type in description.model_types {
                assert!(find("", &model_type, &[]).is_ok(), "{model_type} is not on the first line");
                assert!(seen.insert(model_type.clone()), "{model_type} is described twice");
            }
        }
    }
}
