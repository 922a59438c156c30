//! Expressions of PowerShell: what is simple is computed.

use std::collections::HashMap;

use super::super::super::unknown::Why;
use super::super::super::variables::Variables;
use super::touched::in_braces;
use super::value::{Value, number};
use crate::secret;

/// Parentheses in each other.
const DEPTH: usize = 32;

/// What the values of the variables in an expression may take.
const ROOM: usize = 1 << 20;

/// What an expression is not computed for.
pub(super) struct NotComputed;

pub(super) type Computed<T> = Result<T, NotComputed>;

/// The variables of a script.
#[derive(Default)]
pub(super) struct Scope {
    /// By their names in small letters.
    pub(super) variables: HashMap<String, Value>,
    /// Those of `$env:`, in capitals.
    pub(super) environment: Variables,
}

impl Scope {
    /// What it costs to copy the value of a variable.
    fn weight(&self, name: &str) -> usize {
        let low = name.to_ascii_lowercase();
        let of_environment = low.strip_prefix("env:").and_then(|name| self.environment.get(&name.to_ascii_uppercase()));
        let length = of_environment.and_then(<[String]>::first).map_or(0, String::len);
        64 + length + self.variables.get(own(&low)).map_or(0, Value::weight)
    }

    /// The value of a variable as it is written behind the dollar sign.
    pub(super) fn value(&self, name: &str) -> Value {
        let low = name.to_ascii_lowercase();
        let hidden = |value: Value| match value {
            Value::Text(text) if !text.is_empty() && secret::is_secret(name) => Value::Text(secret::HIDDEN.to_owned()),
            value => value,
        };
        let written = format!("${name}");
        if let Some(name) = low.strip_prefix("env:") {
            let value = self.environment.seen(&name.to_ascii_uppercase(), || written.clone());
            return match value.as_deref().and_then(<[String]>::first) {
                Some(value) if value.contains(super::super::super::unknown::MARKS) => Value::Unknown(value.clone()),
                Some(value) => hidden(Value::Text(value.clone())),
                None => Value::unknown(Why::NotInScript, &written),
            };
        }
        match (self.variables.get(own(&low)), own(&low)) {
            (Some(value), _) => hidden(value.clone()),
            (None, "true") => Value::Bool(true),
            (None, "false") => Value::Bool(false),
            (None, "null") => Value::Null,
            (None, "args") => Value::unknown(Why::Positional, &written),
            (None, "psscriptroot" | "pscommandpath" | "pwd" | "home" | "pid" | "myinvocation") => {
                Value::unknown(Why::Running, &written)
            }
            (None, _) => Value::unknown(Why::NotInScript, &written),
        }
    }
}

/// The name of a variable without its scope.
pub(super) fn own(name: &str) -> &str {
    let scoped = ["script:", "global:", "local:", "private:", "variable:", "using:"].iter();
    scoped.into_iter().find_map(|scope| name.strip_prefix(scope)).unwrap_or(name)
}

/// Reads a text from its beginning to its end.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    pub(super) scope: &'a Scope,
    depth: usize,
    /// What the values of variables may still take.
    room: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn of(text: &'a str, at: usize, scope: &'a Scope) -> Self {
        Self { text, at, scope, depth: DEPTH, room: ROOM }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn bump(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += character.len_utf8();
        Some(character)
    }

    pub(super) fn takes(&mut self, text: &str) -> bool {
        let takes = self.rest().starts_with(text);
        self.at += if takes { text.len() } else { 0 };
        takes
    }

    /// Goes behind blanks and comments, and behind lines' ends where a line goes on or all of them mean nothing.
    pub(super) fn skip(&mut self, lines: bool) {
        loop {
            let rest = self.rest();
            let length = match rest.chars().next() {
                Some(' ' | '\t' | '\r') => 1,
                Some('\n') if lines => 1,
                Some('`') => ["`\n", "`\r\n"].iter().find(|end| rest.starts_with(**end)).map_or(0, |end| end.len()),
                Some('<') if rest.starts_with("<#") => rest.find("#>").map_or(rest.len(), |end| end + 2),
                Some('#') if lines => rest.find('\n').unwrap_or(rest.len()),
                _ => 0,
            };
            if length == 0 {
                return;
            }
            self.at += length;
        }
    }

    /// The value of a variable.
    pub(super) fn value(&mut self, name: &str) -> Computed<Value> {
        let weight = self.scope.weight(name);
        self.room = self.room.checked_sub(weight).ok_or(NotComputed)?;
        Ok(self.scope.value(name))
    }

    /// An expression whose operators bind more tightly than `least`.
    pub(super) fn expression(&mut self, least: u8, lines: bool) -> Computed<Value> {
        self.depth = self.depth.checked_sub(1).ok_or(NotComputed)?;
        let mut value = self.unary(lines)?;
        loop {
            self.skip(lines);
            let rest = self.rest();
            let mut characters = rest.chars();
            let sign = characters.next().unwrap_or('\n');
            let behind = characters.next().unwrap_or('\n');
            let binds = match sign {
                ',' => 8,
                '*' | '/' | '%' if behind != '=' => 5,
                '+' if behind != '=' && behind != '+' => 4,
                '-' if behind.is_ascii_alphabetic() => 3,
                '-' if behind != '=' && behind != '-' => 4,
                _ => 0,
            };
            if binds <= least {
                break;
            }
            if binds == 3 {
                value = self.named(value, lines)?;
                continue;
            }
            self.at += 1;
            self.skip(true);
            if sign == ',' {
                let mut elements = vec![value];
                loop {
                    elements.push(self.unary(lines)?);
                    self.skip(lines);
                    if !self.takes(",") {
                        break;
                    }
                    self.skip(true);
                }
                value = Value::List(elements);
                continue;
            }
            let other = self.expression(binds, lines)?;
            value = Value::applied(sign, value, other).ok_or(NotComputed)?;
        }
        self.depth += 1;
        Ok(value)
    }

    /// An operator that is a word: `-join` alone is followed.
    fn named(&mut self, value: Value, lines: bool) -> Computed<Value> {
        let word = self.rest()[1..].split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        if !word.eq_ignore_ascii_case("join") {
            return Err(NotComputed);
        }
        self.at += 1 + word.len();
        self.skip(true);
        let between = self.expression(3, lines)?.text();
        let texts: Vec<String> = value.elements().iter().map(Value::text).collect();
        Ok(Value::Text(texts.join(&between)))
    }

    fn unary(&mut self, lines: bool) -> Computed<Value> {
        self.skip(lines);
        self.depth = self.depth.checked_sub(1).ok_or(NotComputed)?;
        let value = if self.takes("-") {
            let value = self.unary(lines)?;
            Value::applied('-', Value::Int(0), value).ok_or(NotComputed)
        } else if self.takes("+") {
            self.unary(lines)
        } else if self.takes(",") {
            self.unary(lines).map(|value| Value::List(vec![value]))
        } else if self.peek() == Some('[') {
            self.cast(lines)
        } else {
            self.operand()
        };
        self.depth += 1;
        value
    }

    /// `[type]` in front of a value.
    fn cast(&mut self, lines: bool) -> Computed<Value> {
        let name = self.type_name().ok_or(NotComputed)?;
        if self.rest().starts_with("::") {
            return Err(NotComputed);
        }
        self.unary(lines)?.cast(name).ok_or(NotComputed)
    }

    /// The name in `[name]`, `[name[]]`.
    pub(super) fn type_name(&mut self) -> Option<&'a str> {
        let inside = self.rest().strip_prefix('[')?;
        let length = inside.find(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).unwrap_or(inside.len());
        let length = length + if inside[length..].starts_with("[]") { 2 } else { 0 };
        let name = inside.get(..length).filter(|_| length > 0 && inside[length..].starts_with(']'))?;
        self.at += length + 2;
        Some(name)
    }

    /// A value without operators around it.
    pub(super) fn operand(&mut self) -> Computed<Value> {
        let mut value = match self.peek().ok_or(NotComputed)? {
            '\'' => Value::Text(self.single()?),
            '"' => Value::Text(self.double()?),
            '(' => {
                self.at += 1;
                let value = self.expression(0, true)?;
                self.skip(true);
                self.takes(")").then_some(value).ok_or(NotComputed)?
            }
            '@' => {
                let rest = self.rest();
                match rest.as_bytes().get(1) {
                    Some(b'(') => {
                        self.at += 2;
                        Value::List(self.statements()?)
                    }
                    Some(b'"' | b'\'') => Value::Text(self.document()?),
                    _ => return Err(NotComputed),
                }
            }
            '$' if self.rest().starts_with("$(") => {
                self.at += 2;
                let mut values = self.statements()?;
                if values.len() == 1 { values.remove(0) } else { Value::List(values) }
            }
            '$' => {
                let name = self.name().ok_or(NotComputed)?;
                self.value(name)?
            }
            '0'..='9' | '.' => {
                let rest = self.rest();
                let mut length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).unwrap_or(rest.len());
                // `1e-3`; `1..3` is a range.
                if rest[..length].ends_with(['e', 'E'])
                    && !rest.starts_with("0x")
                    && rest[length..].starts_with(['+', '-'])
                {
                    let digits = &rest[length + 1..];
                    length += 1 + digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
                }
                self.at += length;
                number(&rest[..length]).ok_or(NotComputed)?
            }
            _ => return Err(NotComputed),
        };
        loop {
            if self.takes("[") {
                let index = self.expression(0, true)?;
                self.skip(true);
                let (true, Value::Int(index)) = (self.takes("]"), index) else { return Err(NotComputed) };
                value = match value {
                    Value::List(elements) => {
                        let from_end = if index < 0 { i64::try_from(elements.len()).ok() } else { Some(0) };
                        let place = from_end.and_then(|from| usize::try_from(from + index).ok());
                        place.and_then(|place| elements.get(place).cloned()).ok_or(NotComputed)?
                    }
                    value @ Value::Unknown(_) => value,
                    _ => return Err(NotComputed),
                };
                continue;
            }
            let behind = self.rest().strip_prefix('.');
            let is_member = behind.is_some_and(|behind| behind.starts_with(|c: char| c.is_ascii_alphabetic()));
            if is_member || self.rest().starts_with("::") || self.rest().starts_with("..") {
                return Err(NotComputed);
            }
            return Ok(value);
        }
    }

    /// The values up to the parenthesis that closes here: each statement gives one, or the elements of a list.
    fn statements(&mut self) -> Computed<Vec<Value>> {
        let mut values = Vec::new();
        loop {
            self.skip(true);
            if self.takes(")") {
                return Ok(values);
            }
            if self.takes(";") {
                continue;
            }
            values.extend(self.expression(0, false)?.elements());
            self.skip(false);
            if !matches!(self.peek(), Some('\n' | ';' | ')' | '#')) {
                return Err(NotComputed);
            }
        }
    }

    /// The name of the variable whose dollar sign stands here.
    pub(super) fn name(&mut self) -> Option<&'a str> {
        let inside = self.rest().strip_prefix('$')?;
        if inside.starts_with('{') {
            let name = in_braces(inside)?;
            self.at += name.len() + 3;
            return Some(name);
        }
        let plain = |text: &str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
        let mut length = plain(inside);
        if length == 0 {
            return None;
        }
        // A scope, such as `env:`; two colons name a member.
        let behind = &inside[length..];
        if behind.starts_with(':') && !behind.starts_with("::") && plain(&behind[1..]) > 0 {
            length += 1 + plain(&behind[1..]);
        }
        self.at += length + 1;
        Some(&inside[..length])
    }

    /// A text in single quotes, in which two of them are one.
    pub(super) fn single(&mut self) -> Computed<String> {
        let mut text = String::new();
        self.at += 1;
        loop {
            match self.bump().ok_or(NotComputed)? {
                '\'' if !self.takes("'") => return Ok(text),
                character => text.push(character),
            }
        }
    }

    /// A text in double quotes.
    pub(super) fn double(&mut self) -> Computed<String> {
        let mut text = String::new();
        self.at += 1;
        loop {
            match self.peek().ok_or(NotComputed)? {
                '"' if self.rest().starts_with("\"\"") => {
                    self.at += 2;
                    text.push('"');
                }
                '"' => {
                    self.at += 1;
                    return Ok(text);
                }
                _ => self.piece(&mut text)?,
            }
        }
    }

    /// `@"`, lines, `"@` at the beginning of one.
    fn document(&mut self) -> Computed<String> {
        let rest = self.rest();
        let (quote, end) = if rest.starts_with("@'") { ('\'', "\n'@") } else { ('"', "\n\"@") };
        let begin = rest.find('\n').filter(|begin| rest[2..*begin].trim().is_empty()).ok_or(NotComputed)?;
        let length = rest[begin..].find(end).ok_or(NotComputed)?;
        let inside = rest[begin..begin + length].strip_prefix('\n').unwrap_or("").trim_end_matches('\r');
        self.at += begin + length + end.len();
        if quote == '\'' {
            return Ok(inside.to_owned());
        }
        let mut reader = Reader { text: inside, at: 0, ..*self };
        let mut text = String::new();
        while reader.peek().is_some() {
            reader.piece(&mut text)?;
        }
        Ok(text)
    }

    /// A character of a text, or what stands for some: a variable, an escape.
    pub(super) fn piece(&mut self, text: &mut String) -> Computed<()> {
        match self.bump().ok_or(NotComputed)? {
            '`' => text.push(match self.bump().ok_or(NotComputed)? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                '0' | 'a' | 'b' | 'e' | 'f' | 'u' | 'v' => return Err(NotComputed),
                character => character,
            }),
            '$' if self.rest().starts_with('(') => {
                self.at += 1;
                self.depth = self.depth.checked_sub(1).ok_or(NotComputed)?;
                *text += &Value::List(self.statements()?).text();
                self.depth += 1;
            }
            '$' => {
                self.at -= 1;
                match self.name() {
                    Some(name) => *text += &self.value(name)?.text(),
                    // Such as `$?`.
                    None if self.rest()[1..].starts_with(['$', '?', '^', '_']) => return Err(NotComputed),
                    None => text.extend(self.bump()),
                }
            }
            character => text.push(character),
        }
        Ok(())
    }
}
