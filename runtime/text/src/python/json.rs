//! `json.dumps`, which is `tojson` in chat templates: not the one for web pages.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::{DEEPEST, Items, Kind, bind, integer, number, pairs, raised, type_of};

/// The most spaces of a level.
const WIDEST: i128 = 64;

struct Style {
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    between: String,
    colon: String,
}

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn dumps(value: &Value, args: &[Value]) -> Result<String, Error> {
    let [ascii, indent, separators, sorted] = bind(args, ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let truth = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let stated = |value: Option<Value>| value.filter(|value| !value.is_none());
    let indent = match stated(indent) {
        None => None,
        Some(indent) => Some(match (indent.as_str(), integer(&indent)) {
            (Some(text), _) if text.len() as i128 <= WIDEST => text.to_owned(),
            (None, Some(spaces)) if spaces <= WIDEST => " ".repeat(spaces.max(0) as usize),
            _ => return Err(raised(format!("an indent is a text, or a number up to {WIDEST}"))),
        }),
    };
    let (between, colon) = match stated(separators) {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(two) => {
            let two: Vec<Value> = two.try_iter()?.collect();
            let [Some(between), Some(colon)] = [0, 1].map(|place| two.get(place).and_then(Value::as_str)) else {
                return Err(raised("separators are two texts"));
            };
            (between.to_owned(), colon.to_owned())
        }
    };
    let style = Style { ascii: truth(ascii), sorted: truth(sorted), indent, between, colon };
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(raised("values stand too deep in each other"));
        }
        match value.kind() {
            ValueKind::None => *out += "null",
            ValueKind::Bool => *out += if value.is_true() { "true" } else { "false" },
            ValueKind::Number => *out += &json_number(value)?,
            ValueKind::String => self.quote(out, value.as_str().unwrap_or_default()),
            ValueKind::Map if type_of(value) == "dict" => {
                let items = pairs(value).into_iter().map(|(key, value)| Ok((key_text(&key)?, key, value)));
                let mut items = items.collect::<Result<Vec<_>, Error>>()?;
                if self.sorted {
                    let kinds = |kind| items.iter().all(|(_, key, _)| key.kind() == kind);
                    if !items.is_empty() && !kinds(ValueKind::String) && !kinds(ValueKind::Number) {
                        return Err(raised("keys of several types have no order"));
                    }
                    items.sort_by(|(_, one, _), (_, other, _)| one.cmp(other));
                }
                self.list(out, ["{", "}"], items, depth, |out, (text, _, value)| {
                    self.quote(out, &text);
                    *out += &self.colon;
                    self.write(out, &value, depth + 1)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable if is_list(value) => {
                let items = value.try_iter()?.collect();
                self.list(out, ["[", "]"], items, depth, |out, item| self.write(out, &item, depth + 1))?;
            }
            _ => return Err(raised(format!("Object of type {} is not JSON serializable", type_of(value)))),
        }
        Ok(())
    }

    fn list<T>(
        &self,
        out: &mut String,
        [open, close]: [&str; 2],
        items: Vec<T>,
        depth: usize,
        mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| *out += indent);
            }
        };
        *out += open;
        let empty = items.is_empty();
        for (place, item) in items.into_iter().enumerate() {
            *out += if place > 0 { &self.between } else { "" };
            new_line(out, depth + 1);
            write(out, item)?;
        }
        if !empty {
            new_line(out, depth);
        }
        *out += close;
        Ok(())
    }

    fn quote(&self, out: &mut String, text: &str) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => *out += "\\\"",
                '\\' => *out += "\\\\",
                '\n' => *out += "\\n",
                '\r' => *out += "\\r",
                '\t' => *out += "\\t",
                '\u{8}' => *out += "\\b",
                '\u{c}' => *out += "\\f",
                ' '..='~' => out.push(character),
                '\u{7f}'.. if !self.ascii => out.push(character),
                _ => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        // Writing to a String does not fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
            }
        }
        out.push('"');
    }
}

/// A list or a tuple; a view or a range is none.
fn is_list(value: &Value) -> bool {
    let items: Option<&Items> = value.downcast_object_ref();
    items.is_none_or(|items| matches!(items.kind, Kind::Tuple | Kind::Group))
}

fn json_number(value: &Value) -> Result<String, Error> {
    Ok(match number(value)?.as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        number => number.into(),
    })
}

fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number => json_number(key)?,
        other => return Err(raised(format!("keys must be str, int, float, bool or None, not {other}"))),
    })
}
