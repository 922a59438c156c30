//! JSON values as YAML 1.2 in block style.

use cacheplan_files::Shown;
use serde_json::Value;

use crate::plan::CachePlan;

impl CachePlan {
    /// The plan as YAML, with the keys of its JSON.
    pub fn yaml(&self) -> String {
        // Plain data always has a JSON value.
        yaml(&serde_json::to_value(self).unwrap_or_default())
    }
}

/// One document, ending with a newline.
pub(crate) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    if is_block(value) {
        block(value, 0, &mut text);
    } else {
        text = scalar(value) + "\n";
    }
    text
}

/// Whether it takes lines of its own.
fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => items.iter().any(|item| item.is_object() || item.is_array()),
        _ => false,
    }
}

fn block(value: &Value, depth: usize, text: &mut String) {
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            for (key, item) in map {
                text.push_str(&format!("{pad}{}:", string(key)));
                // A list may stand as deep as its key.
                let inner = if item.is_array() { depth } else { depth + 1 };
                entry(item, inner, " ", text);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut lines = String::new();
                entry(item, depth + 1, "", &mut lines);
                // The first line stands behind the dash.
                text.push_str(&format!("{pad}- {}", lines.trim_start()));
            }
        }
        _ => {}
    }
}

/// What stands behind a key or a dash.
fn entry(value: &Value, depth: usize, gap: &str, text: &mut String) {
    if is_block(value) {
        text.push('\n');
        block(value, depth, text);
    } else {
        text.push_str(&format!("{gap}{}\n", scalar(value)));
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        Value::Array(items) => format!("[{}]", items.iter().map(scalar).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// A text without quotes where no reader could take it for anything else, else as in JSON, which is YAML too.
pub(crate) fn string(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    let starts = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    // Old readers take these for booleans and nothing, `.inf` and hexadecimal cannot start with a letter.
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    if starts && text.bytes().all(plain) && !reserved.contains(&text.to_lowercase().as_str()) {
        text.to_owned()
    } else {
        // The escapes of JSON are YAML's as well.
        Shown::printable(&Value::from(text).to_string()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(json!({ "a": 1, "b": [], "c": {} }), "a: 1\nb: []\nc: {}\n")]
    #[case(json!({ "a": { "b": [1, 2] } }), "a:\n  b: [1, 2]\n")]
    #[case(json!({ "a": [{ "b": 1, "c": [[1], [2]] }] }), "a:\n- b: 1\n  c:\n  - [1]\n  - [2]\n")]
    #[case(json!(["no", "1.5", "a: b", "ssm.0", "", "by-key"]), "[\"no\", \"1.5\", \"a: b\", ssm.0, \"\", by-key]\n")]
    #[case(json!(null), "null\n")]
    fn values_are_written_in_blocks(#[case] value: Value, #[case] text: &str) {
        assert_eq!(yaml(&value), text);
    }

    #[test]
    fn hostile_keys_and_texts_read_back_as_they_are() {
        let controls = (0..=0x9fu32).chain([0x2028, 0x2029, 0x202e, 0x2066, 0xfeff, 0xffff]).filter_map(char::from_u32);
        let words =
            ["yes", "null", "~", "1e3", "1_000", "2024-01-01", "- x", "? x", "a: b", "# x", "'", "\"", "*a", "{", "|"];
        let texts: Vec<String> = controls.map(|c| format!("a{c}b: 1")).chain(words.map(String::from)).collect();
        let keys: serde_json::Map<String, Value> =
            texts.iter().map(|text| (text.clone(), json!({ text.as_str(): [text, [text]] }))).collect();
        let value = json!({ "keys": keys, "texts": texts });
        assert_eq!(serde_yaml_ng::from_str::<Value>(&yaml(&value)).unwrap(), value);
    }
}
