//! YAML with a comment above each value, which serialisers do not write.

use serde_json::Value;

/// A value of a document.
pub(super) enum Node {
    Scalar(Value),
    Map(Vec<Entry>),
    List(Vec<Entry>),
}

/// An entry of a map, or of a list, where the key is empty.
pub(super) struct Entry {
    key: String,
    comment: Option<String>,
    node: Node,
}

impl Entry {
    pub(super) fn new(key: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { key: key.into(), comment: None, node: Node::Scalar(value.into()) }
    }

    pub(super) fn map(key: impl Into<String>, entries: Vec<Self>) -> Self {
        Self { key: key.into(), comment: None, node: Node::Map(entries) }
    }

    pub(super) fn list(key: impl Into<String>, items: Vec<Self>) -> Self {
        Self { key: key.into(), comment: None, node: Node::List(items) }
    }

    pub(super) fn item(value: impl Into<Value>) -> Self {
        Self::new("", value)
    }

    pub(super) fn about(self, comment: impl Into<String>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }
}

/// The entries as a document.
pub(super) fn document(entries: &[Entry]) -> String {
    let mut text = String::new();
    write(&mut text, entries, 0);
    text
}

fn write(text: &mut String, entries: &[Entry], indent: usize) {
    let margin = " ".repeat(indent);
    for entry in entries {
        if let Some(about) = &entry.comment {
            text.push_str(&comment(&margin, about));
        }
        let lead = if entry.key.is_empty() { "-".into() } else { format!("{}:", plain_or_quoted(&entry.key)) };
        match &entry.node {
            Node::Scalar(value) => text.push_str(&format!("{margin}{lead} {}\n", scalar(value))),
            Node::Map(children) | Node::List(children) => {
                let mut inner = String::new();
                write(&mut inner, children, indent + 2);
                match entry.key.is_empty() {
                    // The first line of a map in a list stands behind the dash.
                    true => text.push_str(&format!("{margin}- {}", inner.trim_start())),
                    false => text.push_str(&format!("{margin}{lead}\n{inner}")),
                }
            }
        }
    }
}

/// A comment of YAML and of shells; what breaks a line starts another comment.
pub(super) fn comment(margin: &str, text: &str) -> String {
    text.split(char::is_control).map(|line| format!("{margin}# {line}\n")).collect()
}

/// JSON is YAML in flow style.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => plain_or_quoted(text),
        other => other.to_string(),
    }
}

fn plain_or_quoted(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_lowercase().as_str());
    if plain { text.to_owned() } else { Value::from(text).to_string() }
}
