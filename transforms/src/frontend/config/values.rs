//! A config's values: looked up, checked and remembered, so that every number can say where it came from.

mod untold;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;

use cacheplan_handlers::DType;
use serde_json::{Map, Value};

use super::expr::{Expr, written};
use super::primes;
use crate::frontend::FrontendError;
use crate::model::Fact;

/// The largest number accepted for any dimension or count.
const MAX_NUMBER: u64 = 1 << 40;

/// The most layers that a sum of an expression has.
const MAX_PLACES: u32 = 1_024;

/// The most steps of all expressions of a model: operands that are looked at, each time that they are. A sum looks at its
/// own once for each of its layers, so that the limit of one bounds nothing of sums inside of sums.
const MAX_STEPS: u64 = 1 << 20;

/// Entries of a list that are looked through in one step.
const ENTRIES_PER_STEP: usize = 16;

/// Steps in which a prime number is found.
const STEPS_PER_PRIME: u64 = 64;

/// Keys under which multimodal models keep the config of their decoder.
const NESTED: [&str; 5] = ["thinker_config", "vlm_config", "text_config", "llm_config", "language_config"];

/// Keys that a multimodal model states of its decoder outside of that decoder's config, where it lacks them; all others
/// are of its other parts.
const OF_THE_WHOLE: [&str; 14] = [
    "architectures",
    "bos_token_id",
    "compression_config",
    "dtype",
    "eos_token_id",
    "max_position_embeddings",
    "model_type",
    "pad_token_id",
    "quantization_config",
    "tie_embedding",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "vocab_size",
];

/// Says whether the head is the token embeddings.
const TIED: &str = "tie_word_embeddings";

/// Where a table of keys has the names of its file's tensors.
pub(in crate::frontend) const TENSORS: &str = "tensors";

/// An object of layer numbers, each with the keys that differ there.
const PER_LAYER: &str = "per_layer_config";

pub(super) struct Values<'a> {
    pub(super) file: &'a str,
    pub(super) model_type: String,
    /// The model type that a nested config states for the decoder alone.
    pub(super) decoder_type: Option<String>,
    /// The model type of a wrapper that nobody knows, where its decoder's stands in `model_type`.
    pub(super) wrapper: Option<String>,
    map: Map<String, Value>,
    /// What stands around a nested config, the configs of other parts included; empty where nothing is nested.
    around: Map<String, Value>,
    /// Numbers that the architecture takes for keys that are absent; a null is not.
    pub(super) defaults: BTreeMap<String, u64>,
    /// Where [`PER_LAYER`] has keys of their own for a layer.
    overrides: HashMap<u32, String>,
    facts: RefCell<Vec<Fact>>,
    /// Keys that the caller stated, until something reads them.
    unread: RefCell<Vec<String>>,
    /// Steps that expressions took so far.
    steps: Cell<u64>,
}

/// A number and what it rests on.
#[derive(Clone, Debug)]
pub(super) struct Number<'e> {
    pub(super) value: u64,
    /// The keys that gave it; empty if it is a default.
    keys: Vec<&'e str>,
    /// Whether it is a key's own `true` or `false`, which no size is.
    flag: bool,
}

impl<'e> Number<'e> {
    fn counted(key: &'e str, length: usize) -> Self {
        Self { value: length as u64, keys: vec![key], flag: false }
    }

    const fn literal(value: u64) -> Self {
        Self { value, keys: Vec::new(), flag: false }
    }
}

fn shortened(value: &Value) -> String {
    let mut text = value.to_string();
    if let Some((cut, _)) = text.char_indices().nth(60) {
        text.truncate(cut);
        text.push('…');
    }
    text
}

fn is_stated(value: &Value) -> bool {
    !value.is_null() && value != "auto" && value.as_i64() != Some(-1)
}

impl<'a> Values<'a> {
    /// The config, or its nested text config with what the rest says of the whole model.
    pub(super) fn new(file: &'a str, mut map: Map<String, Value>) -> Self {
        let mut decoder_type = None;
        let mut around = Map::new();
        for key in NESTED {
            if let Some(Value::Object(mut inner)) = map.remove(key) {
                decoder_type =
                    inner.remove("model_type").and_then(|word| word.as_str().map(str::to_owned)).or(decoder_type);
                around.extend(map.clone());
                map.retain(|key, _| OF_THE_WHOLE.contains(&key.as_str()) || NESTED.contains(&key.as_str()));
                // The head stands outside of the decoder, and follows what is said there.
                if map.get(TIED).is_some_and(is_stated) {
                    inner.remove(TIED);
                }
                // An absent or null inner value leaves the outer one in force.
                for (key, value) in inner {
                    if value.is_null() {
                        map.entry(key).or_insert(value);
                    } else {
                        map.insert(key, value);
                    }
                }
            }
        }
        let (model_type, wrapper, defaults, overrides, facts, unread, steps) = Default::default();
        Self { file, model_type, decoder_type, wrapper, map, around, defaults, overrides, facts, unread, steps }
    }

    /// Whether the decoder's config is nested in that of a larger model.
    pub(super) fn is_nested(&self) -> bool {
        !self.around.is_empty()
    }

    /// The keys that are there, with their values.
    pub(super) fn stated(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.map.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The values that are no objects, with the dotted paths to them; what a file's tensors are called is none of them.
    pub(super) fn leaves(&self) -> Vec<(String, &Value)> {
        let mut leaves = Vec::new();
        let mut open: Vec<(String, &Value)> =
            self.stated().filter(|(key, _)| *key != TENSORS).map(|(key, value)| (key.to_owned(), value)).collect();
        while let Some((path, value)) = open.pop() {
            match value {
                Value::Object(inner) => open.extend(inner.iter().map(|(key, value)| (format!("{path}.{key}"), value))),
                value => leaves.push((path, value)),
            }
        }
        leaves.sort_by(|(left, _), (right, _)| left.cmp(right));
        leaves
    }

    /// The objects beside the decoder's keys, with their keys: configs of towers and other parts, and what else is nested.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&str, &Map<String, Value>)> {
        let outer = if self.is_nested() { &self.around } else { &self.map };
        outer.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_object()?)))
    }

    /// The part at a dotted path.
    pub(super) fn part_at(&self, path: &str) -> Option<&Map<String, Value>> {
        let mut keys = path.split('.');
        let first = keys.next()?;
        let part = self.parts().find(|(name, _)| *name == first)?.1;
        keys.try_fold(part, |part, key| part.get(key)?.as_object())
    }

    /// The numbers of the part at a path, with `defaults` where it lacks them.
    pub(super) fn part(&self, path: &str, defaults: BTreeMap<String, u64>) -> Values<'a> {
        let map = self.part_at(path).cloned().unwrap_or_default();
        Values { defaults, ..Values::new(self.file, map) }
    }

    /// The numbers of the whole model: what stands around the decoder, and the decoder's own as `text_config`.
    pub(super) fn whole(&self, defaults: BTreeMap<String, u64>) -> Values<'a> {
        let mut whole = Values { defaults, ..Values::new(self.file, Map::new()) };
        whole.map = if self.is_nested() { self.around.clone() } else { self.map.clone() };
        whole.map.insert("text_config".to_owned(), Value::Object(self.map.clone()));
        whole
    }

    /// Finds the layers that have keys of their own.
    pub(super) fn find_overrides(&mut self, layers: u32) -> Result<(), FrontendError> {
        // Whoever states it at all, a null too, says that no other key has the sizes of some layers.
        if let Some(none @ Value::Null) = self.map.get_mut(PER_LAYER) {
            *none = Value::Object(Map::new());
        }
        let per_layer = match self.map.get(PER_LAYER) {
            None => return Ok(()),
            Some(Value::Object(per_layer)) => per_layer,
            Some(other) => {
                return Err(self.bad(
                    PER_LAYER,
                    other,
                    "an object of keys by layer was expected, such as {\"31\": {\"sliding_window\": 4096}}",
                ));
            }
        };
        for (key, keys) in per_layer {
            let Some(layer) = key.parse().ok().filter(|&layer: &u32| layer < layers) else {
                return Err(self.bad(PER_LAYER, &Value::from(key.as_str()), &format!("the model has {layers} layers")));
            };
            if let Some(skipped) = keys.get("skip") {
                let key = format!("{PER_LAYER}.{key}.skip");
                return Err(self.bad(&key, skipped, "layers without some of their blocks are not understood"));
            }
            self.overrides.insert(layer, key.clone());
        }
        Ok(())
    }

    /// The keys that layers have of their own, with their places.
    pub(super) fn of_layers(&self) -> impl Iterator<Item = (String, &str, &Value)> {
        let layers = self.map.get(PER_LAYER).and_then(Value::as_object).into_iter().flatten();
        let keys = layers.filter_map(|(layer, keys)| Some((layer, keys.as_object()?)));
        keys.flat_map(|(layer, keys)| {
            keys.iter().map(move |(key, value)| (format!("{PER_LAYER}.{layer}.{key}"), key.as_str(), value))
        })
    }

    /// Puts what the caller states at a dotted path, over whatever is there.
    pub(super) fn set(&mut self, path: &str, value: Value) {
        self.unread.get_mut().push(path.to_owned());
        let mut level = &mut self.map;
        let mut keys = path.split('.').peekable();
        while let Some(key) = keys.next() {
            if keys.peek().is_none() {
                level.insert(key.to_owned(), value);
                return;
            }
            let entry = level.entry(key).or_insert(Value::Null);
            if !entry.is_object() {
                *entry = Value::Object(Map::new());
            }
            let Value::Object(next) = entry else { return };
            level = next;
        }
    }

    /// A key that the caller stated and that nothing read.
    pub(super) fn unread(&self) -> Option<String> {
        self.unread.borrow().first().cloned()
    }

    fn mark_read(&self, path: &str) {
        self.unread.borrow_mut().retain(|key| key != path);
    }

    pub(super) fn into_parts(self) -> (Map<String, Value>, Map<String, Value>, Vec<Fact>) {
        (self.map, self.around, self.facts.into_inner())
    }

    pub(super) fn note(&self, what: impl Into<String>, value: &dyn Display, from: impl Into<String>, assumed: bool) {
        self.add(Fact { what: what.into(), value: value.to_string(), from: from.into(), assumed });
    }

    fn add(&self, fact: Fact) {
        let mut facts = self.facts.borrow_mut();
        // Layers of several kinds share blocks, and then their facts.
        if !facts.contains(&fact) {
            facts.push(fact);
        }
    }

    /// The value at a dotted path that needs no layer; null and "auto" count as absent.
    pub(super) fn get(&self, path: &str) -> Option<&Value> {
        self.mark_read(path);
        let mut keys = path.split('.');
        let mut value = self.map.get(keys.next()?)?;
        for key in keys {
            value = value.get(key)?;
        }
        is_stated(value).then_some(value)
    }

    /// The text that a list has for a layer.
    pub(super) fn entry(&self, key: &str, layer: u32) -> Option<&str> {
        self.get(key)?.get(layer as usize)?.as_str()
    }

    /// The dtype under the first of `keys` that is there, with that key.
    pub(super) fn dtype(&self, keys: &[&str]) -> Result<Option<(DType, String)>, FrontendError> {
        for key in keys {
            let Some(value) = self.get(key) else { continue };
            // Some files annotate the value: the first word counts.
            let Some(word) = value.as_str().and_then(|text| text.split_whitespace().next()) else {
                return Err(self.bad(key, value, "the name of a dtype was expected"));
            };
            let dtype = word.parse().map_err(|source| FrontendError::UnknownDType {
                file: self.file.to_owned(),
                key: (*key).to_owned(),
                source,
            })?;
            return Ok(Some((dtype, (*key).to_owned())));
        }
        Ok(None)
    }

    /// The value of an expression for one layer; `None` if a key that it cannot do without is absent.
    pub(super) fn eval<'e>(&self, expr: &'e Expr, layer: u32) -> Result<Option<Number<'e>>, FrontendError> {
        self.take(1)?;
        Ok(match expr {
            Expr::Number(value) => Some(Number::literal(*value)),
            Expr::Layer => Some(Number::literal(u64::from(layer))),
            Expr::Key(key) => self.number_at(key, layer)?,
            Expr::Len(key) => match self.get(key) {
                None => None,
                Some(Value::Array(list)) => Some(Number::counted(key, list.len())),
                Some(Value::String(text)) => Some(Number::counted(key, text.chars().count())),
                Some(Value::Object(object)) => Some(Number::counted(key, object.len())),
                // A number where others have a list: the length is absent.
                Some(Value::Number(_)) => None,
                Some(other) => return Err(self.bad(key, other, "a list, text or object was expected")),
            },
            Expr::In(key, base) => self.layer_list(key)?.map(|list| {
                let wanted = u64::from(layer).saturating_add(*base);
                let value = u64::from(list.iter().any(|entry| entry.as_u64() == Some(wanted)));
                Number { value, keys: vec![key], flag: false }
            }),
            Expr::Last(key) => {
                let up_to = self.layer_list(key)?.unwrap_or_default().iter().filter_map(Value::as_u64);
                let last = up_to.filter(|&entry| entry <= layer.into()).max();
                last.map(|value| Number { value, keys: vec![key], flag: false })
            }
            Expr::Of(values, key) => self.paired(values, key, layer)?,
            Expr::Scaled(size, factor) => self.scaled(size, factor, layer)?,
            Expr::Is(key, word) => {
                let text = match self.get(key) {
                    None => None,
                    Some(Value::Array(list)) => {
                        let missing = || self.bad(key, &Value::Null, &format!("it has no entry for layer {layer}"));
                        Some(list.get(layer as usize).ok_or_else(missing)?)
                    }
                    Some(one) => Some(one),
                };
                text.map(|text| Number { value: u64::from(text.as_str() == Some(word)), keys: vec![key], flag: false })
            }
            Expr::Or(left, right) => match self.eval(left, layer)? {
                Some(number) => Some(number),
                None => self.eval(right, layer)?,
            },
            Expr::Binary(operator, left, right) => {
                let (Some(left), Some(right)) = (self.eval(left, layer)?, self.eval(right, layer)?) else {
                    return Ok(None);
                };
                Some(self.combine(operator, left, right)?)
            }
            Expr::Sum(count, each) => {
                let Some(mut sum) = self.eval(count, layer)? else { return Ok(None) };
                for at in 0..self.place(&sum)? {
                    let Some(number) = self.eval(each, at)? else { return Ok(None) };
                    sum = if at == 0 { Number { flag: false, ..number } } else { self.combine("+", sum, number)? };
                }
                Some(sum)
            }
            Expr::At(at, what) => match self.eval(at, layer)? {
                Some(at) => self.eval(what, self.place(&at)?)?,
                None => None,
            },
        })
    }

    /// Counts steps, and refuses more than the most.
    fn take(&self, steps: u64) -> Result<(), FrontendError> {
        self.steps.set(self.steps.get().saturating_add(steps));
        if self.steps.get() <= MAX_STEPS {
            return Ok(());
        }
        let reason = format!(
            "its expressions take more than {MAX_STEPS} steps over all layers; put fewer sums inside of sums, and let them add fewer layers"
        );
        Err(FrontendError::description(&self.model_type, reason))
    }

    /// A number of layers, or a layer.
    fn place(&self, number: &Number<'_>) -> Result<u32, FrontendError> {
        let expected = || self.bad_number("layers of a sum", number, &format!("at most {MAX_PLACES} were expected"));
        u32::try_from(number.value).ok().filter(|&place| place <= MAX_PLACES).ok_or_else(expected)
    }

    fn combine<'e>(&self, operator: &str, left: Number<'e>, right: Number<'e>) -> Result<Number<'e>, FrontendError> {
        let (a, b) = (left.value, right.value);
        // Two flags say no size, however they are multiplied.
        let flag = operator == "*" && left.flag && right.flag;
        let mut keys = left.keys;
        for key in right.keys {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let result = match operator {
            "+" => a.checked_add(b),
            "-" => a.checked_sub(b),
            "*" => a.checked_mul(b),
            "%" => a.checked_rem(b),
            "//" => a.checked_div(b),
            "==" => Some(u64::from(a == b)),
            "<" => Some(u64::from(a < b)),
            "power" => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            "primes" => {
                self.take(b.min(primes::MOST) * STEPS_PER_PRIME)?;
                primes::primes_above(a, b)
            }
            _ => a.checked_div(b).filter(|quotient| quotient.checked_mul(b) == Some(a)),
        };
        match result.filter(|&value| value <= MAX_NUMBER) {
            Some(value) => Ok(Number { value, keys, flag }),
            None if keys.is_empty() => {
                let reason = format!("`{}` is not a whole number in range", written(operator, a, b));
                Err(FrontendError::description(&self.model_type, reason))
            }
            None => Err(FrontendError::BadValue {
                file: self.file.to_owned(),
                key: keys.join(", "),
                found: written(operator, a, b),
                expected: "the result is not a whole number in range".to_owned(),
            }),
        }
    }

    /// The whole part of a size times a fraction.
    fn scaled<'e>(&self, size: &'e str, factor: &'e str, layer: u32) -> Result<Option<Number<'e>>, FrontendError> {
        let (Some(number), Some(stated)) = (self.number_at(size, layer)?, self.get(factor)) else { return Ok(None) };
        let fraction = stated.as_f64().filter(|fraction| (0.0..=64.0).contains(fraction));
        let fraction = fraction.ok_or_else(|| self.bad(factor, stated, "a number from 0 to 64 was expected"))?;
        // Sizes are below 2^40, so that the product is exact enough for its whole part.
        let value = (number.value as f64 * fraction) as u64;
        Ok(Some(Number { value, keys: vec![size, factor], flag: false }))
    }

    /// What `values` has for the layer, one for each layer that `key` lists.
    fn paired<'e>(&self, values: &'e str, key: &'e str, layer: u32) -> Result<Option<Number<'e>>, FrontendError> {
        let layers = self.layer_list(key)?.unwrap_or_default();
        let Some(place) = layers.iter().position(|entry| entry.as_u64() == Some(layer.into())) else { return Ok(None) };
        let Some(list) = self.get(values) else { return Ok(None) };
        let entry = list.get(place).ok_or_else(|| {
            self.bad(values, list, &format!("it has no entry for layer {layer}, which `{key}` has at place {place}"))
        })?;
        let number = entry.as_u64().filter(|&number| number <= MAX_NUMBER);
        let number = number.ok_or_else(|| self.bad(values, entry, "a whole number was expected"))?;
        Ok(Some(Number { value: number, keys: vec![values, key], flag: false }))
    }

    /// A list of layer numbers.
    pub(super) fn layer_list(&self, key: &str) -> Result<Option<&[Value]>, FrontendError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => {
                self.take((list.len() / ENTRIES_PER_STEP) as u64)?;
                Ok(Some(list))
            }
            Some(other) => Err(self.bad(key, other, "a list of layers was expected")),
        }
    }

    /// What stands at a dotted path for a layer, be it null.
    fn value_at(&self, path: &str, layer: u32) -> Result<Option<&Value>, FrontendError> {
        let mut keys = path.split('.');
        let first = keys.next().unwrap_or_default();
        let own = self.overrides.get(&layer).and_then(|own| self.map.get(PER_LAYER)?.get(own)?.get(first));
        let mut found = own.or_else(|| self.map.get(first));
        loop {
            let Some(mut value) = found else { return Ok(None) };
            if let Value::Array(list) = value {
                let missing = || self.bad(path, value, &format!("it has no entry for layer {layer}"));
                value = list.get(layer as usize).ok_or_else(missing)?;
            }
            match keys.next() {
                None => return Ok(Some(value)),
                Some(key) => found = key.parse().map_or_else(|_| value.get(key), |place: usize| value.get(place)),
            }
        }
    }

    fn number_at<'e>(&self, path: &'e str, layer: u32) -> Result<Option<Number<'e>>, FrontendError> {
        self.mark_read(path);
        let Some(value) = self.value_at(path, layer)? else {
            return Ok(self.defaults.get(path).map(|&value| Number::literal(value)));
        };
        if !is_stated(value) {
            return Ok(None);
        }
        let number = match value {
            Value::Bool(flag) => Some(u64::from(*flag)),
            Value::Number(number) => number.as_u64().or_else(|| {
                // `2.0` is a 2; fractions and negative numbers are not.
                let float = number.as_f64()?;
                (float.fract() == 0.0 && (0.0..=MAX_NUMBER as f64).contains(&float)).then_some(float as u64)
            }),
            _ => None,
        };
        match number.filter(|&number| number <= MAX_NUMBER) {
            Some(number) => Ok(Some(Number { value: number, keys: vec![path], flag: value.is_boolean() })),
            None => Err(self.bad(path, value, &format!("a whole number from 0 to {MAX_NUMBER} was expected"))),
        }
    }

    /// Writes down where a number came from, and says it.
    pub(super) fn remember(&self, what: &str, number: &Number<'_>) -> Fact {
        let assumed = number.keys.is_empty();
        let from = if assumed { "the architecture's default".to_owned() } else { number.keys.join(", ") };
        let fact = Fact { what: what.to_owned(), value: number.value.to_string(), from, assumed };
        self.add(fact.clone());
        fact
    }

    pub(super) fn bad(&self, key: &str, found: &Value, expected: &str) -> FrontendError {
        FrontendError::BadValue {
            file: self.file.to_owned(),
            key: key.to_owned(),
            found: shortened(found),
            expected: expected.to_owned(),
        }
    }

    /// Keys whose values the architecture's description does not cover; the first that is there is named.
    pub(super) fn not_covered(&self, keys: &[&str], reason: &str) -> FrontendError {
        let stated = keys.iter().find_map(|key| Some((*key, self.get(key)?)));
        let (key, found) = stated.unwrap_or((keys.first().copied().unwrap_or_default(), &Value::Null));
        FrontendError::NotCovered {
            file: self.file.to_owned(),
            model_type: self.model_type.clone(),
            key: key.to_owned(),
            found: shortened(found),
            reason: reason.into(),
        }
    }

    /// Refuses `true` and `false` where a count or a size was expected.
    pub(super) fn check_count(&self, what: &str, number: &Number<'_>) -> Result<(), FrontendError> {
        if !number.flag {
            return Ok(());
        }
        let flag = Value::Bool(number.value > 0);
        Err(self.bad(&number.keys.join(", "), &flag, &format!("`{what}` is a number")))
    }

    /// Refuses a list where one number for the whole model was expected.
    pub(super) fn check_one(&self, what: &str, number: &Number<'_>, expr: &Expr) -> Result<(), FrontendError> {
        let list = |key: &&str| !expr.counts(key) && self.get(key).is_some_and(Value::is_array);
        let Some(key) = number.keys.iter().copied().find(list) else { return Ok(()) };
        let found = self.get(key).unwrap_or(&Value::Null);
        Err(self.bad(key, found, &format!("`{what}` is one number for the whole model")))
    }

    /// A number that makes no sense as `what`.
    pub(super) fn bad_number(&self, what: &str, number: &Number<'_>, expected: &str) -> FrontendError {
        let key = if number.keys.is_empty() { format!("{what}, by default") } else { number.keys.join(", ") };
        self.bad(&key, &Value::from(number.value), expected)
    }
}
