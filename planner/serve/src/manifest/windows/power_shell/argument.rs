//! The arguments of a command in PowerShell, where words need no quotes.

use super::super::super::engine;
use super::super::super::unknown::Why;
use super::expression::{Computed, NotComputed, Reader};
use super::touched;
use super::value::Value;

/// An argument.
pub(super) struct Argument {
    pub(super) value: Value,
    /// Whether it is several with commas between, in one word.
    pub(super) has_commas: bool,
    /// Whether blanks stand beside those.
    has_blanks: bool,
    pub(super) has_variable: bool,
    /// Whether it is a word without quotes.
    is_bare: bool,
}

/// What stands behind a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joint {
    End,
    And,
    Or,
    Pipe,
    /// A block that is handed to it.
    Block,
}

impl Argument {
    /// The word that a program gets of several with commas.
    pub(super) fn joined(&self) -> Value {
        match &self.value {
            Value::List(elements) if !self.has_blanks => {
                Value::Text(elements.iter().map(Value::text).collect::<Vec<_>>().join(","))
            }
            _ => Value::unknown(Why::Expression, "…, …"),
        }
    }
}

/// The value behind a name, of which case does not matter.
pub(super) fn named<'a>(arguments: &'a [Argument], name: &str) -> Option<&'a Argument> {
    let at =
        arguments.iter().position(|argument| argument.is_bare && argument.value.text().eq_ignore_ascii_case(name))?;
    arguments.get(at + 1)
}

/// An argument that stands behind no name.
pub(super) fn positional(arguments: &[Argument], index: usize) -> Option<&Argument> {
    const SWITCHES: [&str; 6] = ["-wait", "-passthru", "-nonewwindow", "-force", "-confirm", "-usenewenvironment"];
    let mut found = 0;
    let mut behind_name = false;
    for argument in arguments {
        let text = argument.value.text();
        if argument.is_bare && text.starts_with('-') {
            behind_name = !SWITCHES.contains(&&*text.to_ascii_lowercase());
        } else if !std::mem::take(&mut behind_name) {
            if found == index {
                return Some(argument);
            }
            found += 1;
        }
    }
    None
}

/// All arguments from here on, the program among them, and what stands behind them.
pub(super) fn all(reader: &mut Reader<'_>) -> (Vec<Argument>, Joint) {
    /// More than any command has.
    const MOST: usize = 20_000;
    let mut found: Vec<Argument> = Vec::new();
    loop {
        reader.skip(false);
        let rest = reader.rest();
        if found.len() == MOST {
            reader.at += touched::statement(rest);
            found.push(not_computed("…"));
            return (found, Joint::End);
        }
        match rest.chars().next() {
            None | Some('\n' | ';' | '}' | ')') => return (found, Joint::End),
            Some('#') => {
                reader.at += rest.find('\n').unwrap_or(rest.len());
                return (found, Joint::End);
            }
            Some('|') => {
                let is_or = rest.starts_with("||");
                reader.at += if is_or { 2 } else { 1 };
                return (found, if is_or { Joint::Or } else { Joint::Pipe });
            }
            Some('&') => {
                let is_and = rest.starts_with("&&");
                reader.at += if is_and { 2 } else { 1 };
                return (found, if is_and { Joint::And } else { Joint::End });
            }
            _ if redirect(reader) => continue,
            Some('{') => {
                // An engine's name stands among the first.
                let words: Vec<String> = found.iter().take(32).map(|argument| argument.value.text()).collect();
                if engine::start(&words).is_none() {
                    return (found, Joint::Block);
                }
                reader.at += touched::balanced(rest);
                found.push(not_computed("{…}"));
            }
            Some(',') => {
                // Behind an argument that is none of a list.
                reader.at += 1;
                found.push(not_computed("…, …"));
            }
            _ => found.push(argument(reader)),
        }
    }
}

fn not_computed(written: &str) -> Argument {
    let value = Value::unknown(Why::Expression, written);
    Argument { value, has_commas: false, has_blanks: false, has_variable: false, is_bare: false }
}

/// `> file`, `2>&1`, `*>> file`, which are no arguments.
fn redirect(reader: &mut Reader<'_>) -> bool {
    let rest = reader.rest();
    let sign = rest.strip_prefix(['1', '2', '3', '4', '5', '6', '*']).unwrap_or(rest);
    let Some(behind) = sign.strip_prefix(">>").or_else(|| sign.strip_prefix(['>', '<'])) else { return false };
    reader.at += rest.len() - behind.len();
    if let Some(stream) = behind.strip_prefix('&') {
        reader.at += 1 + stream.chars().take_while(char::is_ascii_digit).count();
        return true;
    }
    reader.skip(false);
    if !reader.rest().starts_with(['\n', ';', '|', '&', '}']) && !reader.rest().is_empty() {
        argument(reader);
    }
    true
}

/// An argument, with those behind its commas.
fn argument(reader: &mut Reader<'_>) -> Argument {
    let begin = reader.at;
    let mut first = single(reader);
    let mut elements = Vec::new();
    loop {
        let behind = reader.at;
        reader.skip(false);
        if !reader.takes(",") {
            reader.at = behind;
            break;
        }
        let at = reader.at;
        first.has_blanks |= at != behind + 1;
        reader.skip(true);
        first.has_blanks |= reader.at != at;
        if elements.is_empty() {
            elements.push(std::mem::replace(&mut first.value, Value::Null));
        }
        if reader.rest().is_empty() {
            break;
        }
        elements.push(single(reader).value);
    }
    first.has_variable = reader.text[begin..reader.at].contains(['$', '@']);
    if !elements.is_empty() {
        (first.value, first.has_commas, first.is_bare) = (Value::List(elements), true, false);
    }
    first
}

/// One argument.
fn single(reader: &mut Reader<'_>) -> Argument {
    let begin = reader.at;
    let is_bare = !reader.rest().starts_with(['"', '\'', '$', '@', '(']);
    let value = match value(reader) {
        Ok(value) => value,
        Err(NotComputed) => {
            // Up to a blank that stands in nothing.
            reader.at = begin + touched::argument(&reader.text[begin..]).max(1);
            while !reader.text.is_char_boundary(reader.at) {
                reader.at += 1;
            }
            let written: String = reader.text[begin..reader.at].chars().take_while(|c| !"\"'(".contains(*c)).collect();
            Value::unknown(Why::Expression, if written.is_empty() { "(…)" } else { &written })
        }
    };
    Argument { value, has_commas: false, has_blanks: false, has_variable: false, is_bare }
}

fn value(reader: &mut Reader<'_>) -> Computed<Value> {
    let rest = reader.rest();
    let second = rest.chars().nth(1);
    match rest.chars().next().ok_or(NotComputed)? {
        '\'' => reader.single().map(Value::Text),
        '"' => reader.double().map(Value::Text),
        '(' => reader.operand(),
        '@' if matches!(second, Some('(' | '"' | '\'')) => reader.operand(),
        // The elements of a list under its name.
        '@' if second.is_some_and(|c| c.is_alphabetic() || c == '_') => {
            let name =
                rest[1..].split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next().unwrap_or_default();
            reader.at += 1 + name.len();
            reader.value(name)
        }
        '@' | '[' if second == Some('{') => Err(NotComputed),
        '$' if second == Some('(') => reader.operand(),
        '$' => {
            let begin = reader.at;
            let name = reader.name().ok_or(NotComputed)?;
            match reader.peek() {
                Some('.' | '[') => {
                    reader.at = begin;
                    let value = reader.operand()?;
                    if reader.peek().is_none_or(ends) { Ok(value) } else { Err(NotComputed) }
                }
                Some('(') => Err(NotComputed),
                next if next.is_none_or(ends) => reader.value(name),
                _ => {
                    let text = reader.value(name)?.text();
                    bare(reader, text)
                }
            }
        }
        _ => bare(reader, String::new()),
    }
}

/// What ends a word without quotes.
fn ends(character: char) -> bool {
    character.is_whitespace() || ";|&<>(){},".contains(character)
}

/// A word without quotes, behind what it begins with.
fn bare(reader: &mut Reader<'_>, mut text: String) -> Computed<Value> {
    while let Some(character) = reader.peek().filter(|character| !ends(*character)) {
        match character {
            '\'' => text += &reader.single()?,
            '"' => text += &reader.double()?,
            '`' if reader.rest().starts_with("`\n") || reader.rest().starts_with("`\r\n") => break,
            _ => reader.piece(&mut text)?,
        }
    }
    Ok(Value::Text(text))
}
