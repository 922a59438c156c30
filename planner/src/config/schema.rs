//! The JSON Schema of budget files, for editors.

use serde_json::{Map, Value, json};

use crate::budget::key::{BudgetKey, Values};
use crate::budget::{Budget, Ratio};
use crate::size::ByteSize;

/// The JSON Schema (draft 2020-12) of budget files, ending with a newline.
pub(super) fn budget_schema() -> String {
    let mut properties = object(Budget::KEYS);
    for section in Budget::SECTIONS {
        let required: Vec<&str> = section.keys.iter().filter(|key| key.required).map(BudgetKey::name).collect();
        let mut schema = json!({
            "type": "object",
            "description": section.help,
            "additionalProperties": false,
            "properties": object(section.keys),
        });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        properties.insert(section.name.to_owned(), schema);
    }
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cacheplan budget",
        "description": "What memory there is, what limits hold, and how caches are stored.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "$defs": { "bytes": bytes(), "lengths": lengths() },
    });
    format!("{schema:#}\n")
}

fn object(keys: &[BudgetKey]) -> Map<String, Value> {
    keys.iter().map(|key| (key.name().to_owned(), property(key))).collect()
}

fn property(key: &BudgetKey) -> Value {
    let mut schema = match key.values {
        Values::Count(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Values::Tokens(least, most) => json!({
            "anyOf": [
                { "type": "integer", "minimum": least, "maximum": most },
                { "type": "string", "pattern": "^\\s*[0-9]+[kKmM]?\\s*$" },
            ],
        }),
        Values::Bytes => json!({ "$ref": "#/$defs/bytes" }),
        Values::Fraction => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }),
        Values::Ratio => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": Ratio::MOST }),
        Values::DType => json!({ "type": "string" }),
        Values::Choice(names) => json!({ "enum": names.iter().map(|(name, _)| name).collect::<Vec<_>>() }),
        Values::Switch => json!({ "type": "boolean" }),
        Values::Lengths => json!({ "$ref": "#/$defs/lengths" }),
    };
    schema["description"] = json!(format!("{} Default: {}.", key.help, key.default));
    schema
}

fn bytes() -> Value {
    json!({
        "description": "An integer of bytes or a number with a unit.",
        "anyOf": [
            { "type": "integer", "minimum": 0, "maximum": ByteSize::MOST },
            { "type": "string", "pattern": "^\\s*[0-9]+(\\.[0-9]{0,9})?\\s*([KMGT]|[KMGTkmgt][iI]?[bB]|[KMGTkmgt][iI]|[bB])?\\s*$" },
        ],
    })
}

fn lengths() -> Value {
    let count = json!({ "type": "integer", "minimum": 0 });
    let one = |name: &str, schema: Value| json!({ "type": "object", "additionalProperties": false, "required": [name], "properties": { name: schema } });
    let uniform = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["min", "max"],
        "properties": { "min": count, "max": count },
    });
    let lognormal = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["median"],
        "properties": {
            "median": { "type": "integer", "minimum": 1 },
            "sigma": { "type": "number", "minimum": 0, "maximum": 4 },
        },
    });
    let pair = json!({ "type": "array", "items": count, "minItems": 2, "maxItems": 2 });
    json!({
        "description": "A distribution of lengths in tokens.",
        "oneOf": [
            one("fixed", count.clone()),
            one("uniform", uniform),
            one("lognormal", lognormal),
            one("histogram", json!({ "type": "array", "items": pair, "minItems": 1 })),
            one("file", json!({ "type": "string" })),
        ],
    })
}
