//! YAML as manifests use it: every value as it is written, within limits. Anchors, aliases, merges and tags of somebody's
//! own, which make a few bytes mean much or something else, are refused by name.

use std::collections::HashSet;

use cacheplan_files::Shown;
use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::error::{ManifestError, Place};
use crate::secret;

/// Kubernetes' own objects nest some 20 levels.
const DEPTH: usize = 64;
/// Values, keys and list items of a file.
const NODES: usize = 100_000;

/// A value and the line where it begins.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    /// A scalar as it is written, without its quotes; `plain` if it had none.
    Text {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Tells whether it says that there is nothing.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Text { text, plain: true } if matches!(&**text, "" | "~" | "null" | "Null" | "NULL"))
    }

    /// What a scalar without quotes is beside a text, to the YAML of Kubernetes (`sigs.k8s.io/yaml`).
    pub(super) fn other_than_text(&self) -> Option<&'static str> {
        const TRUTHS: [&str; 8] = ["y", "yes", "true", "on", "n", "no", "false", "off"];
        let Value::Text { text, plain: true } = &self.value else { return None };
        let (low, title) = (text.to_ascii_lowercase(), text.get(1..).unwrap_or(""));
        let is_word = *text == low || *text == text.to_ascii_uppercase() || *title == title.to_ascii_lowercase();
        let digits = text.trim_start_matches(['+', '-']).replace('_', "");
        let prefixed = |prefix: &str, radix: u32| {
            digits.strip_prefix(prefix).is_some_and(|rest| u64::from_str_radix(rest, radix).is_ok())
        };
        let is_real = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') && digits.parse::<f64>().is_ok();
        let is_number = is_real
            || prefixed("0x", 16)
            || prefixed("0o", 8)
            || prefixed("0b", 2)
            || matches!(&*digits, ".inf" | ".Inf" | ".INF")
            || matches!(&**text, ".nan" | ".NaN" | ".NAN");
        match is_number {
            true => Some("a number"),
            false => (is_word && TRUTHS.contains(&&*low)).then_some("true or false"),
        }
    }

    /// A key and its value, unless there is none.
    pub(super) fn entry(&self, key: &str) -> Option<(&str, &Self)> {
        let Value::Map(entries) = &self.value else { return None };
        let found = entries.iter().find(|(name, node)| name == key && !node.is_null());
        found.map(|(name, node)| (name.as_str(), node))
    }
}

/// The documents of a file.
pub(super) fn documents(file: &str, text: &str) -> Result<Vec<Node>, ManifestError> {
    let mut reader = Reader { file, text, open: Vec::new(), roots: Vec::new(), nodes: 0 };
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => reader.take(event, span)?,
            Err(error) => return Err(reader.syntax(error.marker().line(), error.info())),
        }
    }
    Ok(reader.roots)
}

/// What is being read.
struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    open: Vec<Open>,
    roots: Vec<Node>,
    nodes: usize,
}

enum Open {
    List { line: usize, items: Vec<Node> },
    Map { line: usize, entries: Vec<(String, Node)>, key: Option<String>, seen: HashSet<String> },
}

impl Reader<'_> {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), ManifestError> {
        let line = span.start.line();
        match event {
            Event::Alias(_) => return Err(self.refuse(line, self.named(line, '*', "an alias"), WRITE_OUT)),
            Event::Scalar(text, style, anchor, tag) => {
                self.plain_node(line, anchor, tag.as_deref())?;
                self.scalar(line, text.into_owned(), style == ScalarStyle::Plain)?;
            }
            Event::SequenceStart(anchor, tag) => {
                self.plain_node(line, anchor, tag.as_deref())?;
                self.begin(Open::List { line, items: Vec::new() })?;
            }
            Event::MappingStart(anchor, tag) => {
                self.plain_node(line, anchor, tag.as_deref())?;
                self.begin(Open::Map { line, entries: Vec::new(), key: None, seen: HashSet::new() })?;
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { line, items }) => self.put(Node { line, value: Value::List(items) }),
                Some(Open::Map { line, entries, .. }) => self.put(Node { line, value: Value::Map(entries) }),
                None => {}
            },
            _ => {}
        }
        Ok(())
    }

    /// That a value is one more within the limits, and means what it says.
    fn plain_node(&mut self, line: usize, anchor: usize, tag: Option<&Tag>) -> Result<(), ManifestError> {
        self.nodes += 1;
        if self.nodes > NODES {
            return Err(ManifestError::TooMuch { at: self.at(line), what: "a manifest of values", most: NODES });
        }
        if anchor != 0 {
            return Err(self.refuse(line, self.named(line, '&', "an anchor"), WRITE_OUT));
        }
        match tag {
            Some(tag) if !tag.is_yaml_core_schema() || tag.suffix == "binary" => {
                let tag = format!("the tag `{}`", Shown(tag.to_string()));
                Err(self.refuse(line, tag, "write the value as a text"))
            }
            _ => Ok(()),
        }
    }

    fn scalar(&mut self, line: usize, text: String, plain: bool) -> Result<(), ManifestError> {
        if text.contains(super::unknown::MARKS) {
            return Err(self.refuse(line, "a control character".to_owned(), "leave it out"));
        }
        let Some(Open::Map { key: key @ None, seen, .. }) = self.open.last_mut() else {
            self.put(Node { line, value: Value::Text { text, plain } });
            return Ok(());
        };
        if plain && text == "<<" {
            return Err(self.refuse(line, "a merge (`<<`)".to_owned(), WRITE_OUT));
        }
        if !seen.insert(text.clone()) {
            let reason = format!("the key `{}` stands here twice; once was expected", Shown(&text));
            return Err(ManifestError::Syntax { at: self.at(line), reason });
        }
        *key = Some(text);
        Ok(())
    }

    fn begin(&mut self, open: Open) -> Result<(), ManifestError> {
        let (Open::List { line, .. } | Open::Map { line, .. }) = open;
        if matches!(self.open.last(), Some(Open::Map { key: None, .. })) {
            // `{{ .Values.x }}` without quotes is a map as a key.
            return Err(self.syntax(line, "a key that is a list or a map; a text was expected"));
        }
        if self.open.len() == DEPTH {
            return Err(ManifestError::TooMuch { at: self.at(line), what: "a nesting of levels", most: DEPTH });
        }
        self.open.push(open);
        Ok(())
    }

    fn put(&mut self, node: Node) {
        match self.open.last_mut() {
            None => self.roots.push(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => {
                if let Some(key) = key.take() {
                    entries.push((key, node));
                }
            }
        }
    }

    fn at(&self, line: usize) -> Place {
        let mut path = String::new();
        for open in &self.open {
            match open {
                Open::List { items, .. } => path += &format!("[{}]", items.len()),
                Open::Map { key: Some(key), .. } => path += &format!("{}{key}", if path.is_empty() { "" } else { "." }),
                Open::Map { key: None, .. } => {}
            }
        }
        Place { file: self.file.to_owned(), line: Some(line), path }
    }

    fn refuse(&self, line: usize, what: String, instead: &'static str) -> ManifestError {
        ManifestError::NotRead { at: self.at(line), what, instead }
    }

    /// What is no YAML; a template often is none.
    fn syntax(&self, line: usize, reason: &str) -> ManifestError {
        let template = self.text.lines().enumerate().find(|(_, line)| line.contains("{{"));
        match template {
            Some((index, found)) if index < line => {
                let end = found.find("{{").unwrap_or(0);
                let shown: String = found[end..].chars().take(60).collect();
                let shown = if secret::has_key(&shown) { secret::HIDDEN.to_owned() } else { shown };
                let what = format!("a template (`{}`)", Shown(shown));
                self.refuse(index + 1, what, super::unknown::RENDER)
            }
            _ => ManifestError::Syntax { at: self.at(line), reason: format!("this is no YAML: {}", Shown(reason)) },
        }
    }

    /// An anchor or alias with its name, as its line has it.
    fn named(&self, line: usize, sign: char, what: &str) -> String {
        let text = self.text.lines().nth(line.saturating_sub(1)).unwrap_or("");
        let name = text.split([' ', '\t', '[', ',', '{']).find(|word| word.len() > 1 && word.starts_with(sign));
        name.map_or_else(|| what.to_owned(), |name| format!("{what} (`{}`)", Shown(name)))
    }
}

const WRITE_OUT: &str = "write out what it stands for";
