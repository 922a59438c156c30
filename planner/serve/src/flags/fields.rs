//! What pydantic takes for the fields of vLLM's configurations, by the table that `cargo xtask oracle vllm-commands` writes of 0.33.0:
//! a class, a field, its type and its bounds; `-` is the class of flags that are JSON.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use cacheplan_planner::engines::Version;
use serde_json::{Map, Value};

use super::table::Flag;

/// The version of the table.
pub(crate) const READ: Version = Version(0, 33, 0);

#[derive(Clone, Copy)]
struct Field {
    kind: &'static str,
    bounds: &'static str,
}

type Class = BTreeMap<&'static str, Field>;

static CLASSES: LazyLock<BTreeMap<&str, Class>> = LazyLock::new(|| {
    let mut classes: BTreeMap<&str, Class> = BTreeMap::new();
    for line in include_str!("vllm.fields.tsv").lines() {
        if let [class, field, kind, bounds] = line.split('\t').collect::<Vec<_>>()[..] {
            classes.entry(class).or_default().insert(field, Field { kind, bounds });
        }
    }
    classes
});

/// The flags that are JSON of a configuration, with its class.
pub(crate) fn flags() -> impl Iterator<Item = (&'static str, &'static str)> {
    CLASSES.get("-").into_iter().flatten().map(|(flag, field)| (*flag, field.kind.trim_end_matches('?')))
}

/// The field that a flag states, of the configuration whose name its group has.
fn field(flag: &Flag) -> Option<Field> {
    /// Which are parts of that of their group.
    const PARTS: [&str; 2] = ["PrefetchOffloadConfig", "UVAOffloadConfig"];
    let name = flag.name.trim_start_matches('-').replace('-', "_");
    let parts = PARTS.into_iter().filter(|_| flag.group == "OffloadConfig");
    [flag.group].into_iter().chain(parts).find_map(|class| CLASSES.get(class)?.get(&*name)).copied()
}

/// Whether a flag takes nothing, `""` or `None`, for none.
pub(crate) fn may_be_none(flag: &Flag) -> bool {
    let json = CLASSES.get("-").and_then(|flags| flags.get(flag.name)).copied();
    json.or_else(|| field(flag)).is_some_and(|field| field.kind.ends_with('?'))
}

/// What a flag takes that its parser chooses from or that must be an object, in place of a value; of another kind none.
pub(crate) fn expected_of(flag: &Flag, value: &Value) -> Option<String> {
    let kind = field(flag)?.kind;
    let is_looked_at = kind.starts_with("of:") || kind.trim_end_matches(['?', '~']) == "dict" && !value.is_null();
    expected(kind.trim_end_matches(['?', '~']), value).filter(|_| is_looked_at)
}

/// What the configuration of a flag's field refuses of a value, in its words.
pub(crate) fn refuses_field(flag: &Flag, value: &Value) -> Option<String> {
    let refused = field(flag)?.refuses(value)?;
    let name = flag.name.trim_start_matches('-').replace('-', "_");
    Some(format!("1 validation error for {}: {name}: {refused}", flag.group))
}

/// The bound that a number of a flag breaks.
pub(crate) fn out_of_bounds(flag: &Flag, number: f64) -> Option<String> {
    field(flag)?.out_of_bounds(number)
}

/// What a configuration refuses of an object.
pub(crate) fn refuses(class: &str, object: &Map<String, Value>) -> Option<String> {
    let fields = CLASSES.get(class)?;
    let lacks = |(name, field): &(&&str, &Field)| field.bounds.contains("required") && !object.contains_key(**name);
    if let Some((name, _)) = fields.iter().find(lacks) {
        return Some(format!("1 validation error for {class}: {name}: Field required"));
    }
    object.iter().find_map(|(key, value)| {
        let refused = match fields.get(&**key) {
            Some(field) => field.refuses(value)?,
            None => "Unexpected keyword argument".to_owned(),
        };
        Some(format!("1 validation error for {class}: {key}: {refused}"))
    })
}

impl Field {
    fn refuses(self, value: &Value) -> Option<String> {
        let (kind, may_be_none) = match self.kind.strip_suffix(['?', '~']) {
            Some(kind) => (kind, true),
            None => (self.kind, false),
        };
        if value.is_null() && may_be_none {
            return None;
        }
        expected(kind, value).or_else(|| self.out_of_bounds(number(value)?))
    }

    /// The bound that a number breaks.
    fn out_of_bounds(self, number: f64) -> Option<String> {
        self.bounds.split(' ').find_map(|bound| {
            let (sign, of) = bound.split_at_checked(2)?;
            let limit: f64 = of.parse().ok()?;
            let (keeps, words) = match sign {
                "ge" => (number >= limit, "greater than or equal to"),
                "gt" => (number > limit, "greater than"),
                "le" => (number <= limit, "less than or equal to"),
                "lt" => (number < limit, "less than"),
                _ => return None,
            };
            (!keeps).then(|| format!("Input should be {words} {of}"))
        })
    }
}

/// What pydantic expects in place of a value.
pub(crate) fn expected(kind: &'static str, value: &Value) -> Option<String> {
    const OFF_AND_ON: [&str; 12] = ["0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"];
    let of = |takes: bool, what: &str| (!takes).then(|| format!("Input should be {what}"));
    if let Some(words) = kind.strip_prefix("of:") {
        let is_one = value.as_str().is_some_and(|word| words.split(',').any(|known| known == word));
        return of(is_one, &words.replace(',', ", "));
    }
    if let Some(each) = kind.strip_prefix("list:") {
        let Some(all) = value.as_array() else { return of(false, "a valid list") };
        return all.iter().find_map(|value| Field { kind: each, bounds: "" }.refuses(value));
    }
    match kind {
        "int" => of(number(value).is_some_and(|number| number.fract() == 0.0), "a valid integer"),
        "float" => of(number(value).is_some(), "a valid number"),
        "bool" => {
            let word = value.as_str().map(str::to_lowercase);
            let is_word = word.is_some_and(|word| OFF_AND_ON.contains(&&*word));
            let is_number = value.as_f64().is_some_and(|number| number == 0.0 || number == 1.0);
            of(value.is_boolean() || is_word || is_number, "a valid boolean")
        }
        "str" => of(value.is_string(), "a valid string"),
        "dict" => of(value.is_object(), "a valid dictionary"),
        class if CLASSES.contains_key(class) => match value {
            Value::Object(object) => refuses(class, object),
            _ => of(false, &format!("a dictionary or an instance of {class}")),
        },
        _ => None,
    }
}

/// A number as pydantic takes one, also as a text or a boolean.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(is_on) => Some(f64::from(u8::from(*is_on))),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}
