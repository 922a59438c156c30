//! Python's rules for values, which chat templates are written against: what `str`, `repr`, `%`, `round` and `int` make of
//! them, and tuples, views and ranges, which are printed otherwise than lists.

use std::fmt::Write;

use cacheplan_files::Limit;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

mod access;
mod format;
mod items;
mod json;
pub(crate) mod methods;
pub(crate) mod operators;

pub(crate) use access::{attribute, item};
pub(crate) use format::printf;
use items::{Items, Kind, of_tuple};
pub(crate) use items::{first, generator, group, iterate, length, range, slice, tuple, type_of};
pub(crate) use json::dumps;

/// Values inside each other; as many as Python bears.
const DEEPEST: usize = 1000;

/// What Python would raise.
pub(crate) fn raised(said: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, said.into())
}

/// The most bytes of a text, or the most items of a list, that a template makes at once: asked before they are made.
const MOST: usize = Limit::PROMPT.bytes as usize;

/// That no more than [`MOST`] is made.
pub(crate) fn bounded(length: Option<usize>) -> Result<usize, Error> {
    length
        .filter(|length| *length <= MOST)
        .ok_or_else(|| raised(format!("a value of more than {MOST} bytes or items is not made")))
}

/// The pairs of a dict.
pub(crate) fn pairs(value: &Value) -> Vec<(Value, Value)> {
    let object = value.as_object().filter(|_| value.kind() == ValueKind::Map);
    object.and_then(|object| Some(object.try_iter_pairs()?.collect())).unwrap_or_default()
}

/// `str(value)`.
pub(crate) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => repr(value),
    }
}

/// `repr(value)`.
pub(crate) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(raised("values stand too deep in each other"));
    }
    let list = |out: &mut String, [open, close]: [&str; 2]| {
        *out += open;
        for (place, item) in value.try_iter()?.enumerate() {
            *out += if place > 0 { ", " } else { "" };
            write_repr(out, &item, depth + 1)?;
        }
        *out += close;
        Ok::<_, Error>(())
    };
    match value.kind() {
        ValueKind::Undefined => *out += "Undefined",
        ValueKind::None => *out += "None",
        ValueKind::Bool => *out += if value.is_true() { "True" } else { "False" },
        ValueKind::Number => *out += &number(value)?,
        ValueKind::String => quote(out, value.as_str().unwrap_or_default()),
        ValueKind::Map if type_of(value) == "dict" => {
            *out += "{";
            for (place, (key, value)) in pairs(value).into_iter().enumerate() {
                *out += if place > 0 { ", " } else { "" };
                write_repr(out, &key, depth + 1)?;
                *out += ": ";
                write_repr(out, &value, depth + 1)?;
            }
            *out += "}";
        }
        ValueKind::Seq | ValueKind::Iterable => match value.downcast_object_ref().map(|items: &Items| &items.kind) {
            Some(Kind::Range(range)) => *out += range,
            Some(Kind::View(name)) => return list(out, [&format!("{name}(["), "])"]),
            Some(Kind::Tuple | Kind::Group) => {
                return list(out, ["(", if value.len() == Some(1) { ",)" } else { ")" }]);
            }
            Some(Kind::Generator(_) | Kind::Method(_)) | None => return list(out, ["[", "]"]),
        },
        _ => return Err(raised(format!("a {} has no text that is the same whenever it is printed", type_of(value)))),
    }
    Ok(())
}

/// A value with its dicts in the order of their keys.
pub(crate) fn sorted_dicts(value: &Value) -> Result<Value, Error> {
    Ok(match type_of(value) {
        "dict" => {
            let items = operators::sorted(pairs(value), false)?.into_iter();
            items
                .map(|(key, value)| Ok((key, sorted_dicts(&value)?)))
                .collect::<Result<Vec<_>, Error>>()?
                .into_iter()
                .collect()
        }
        "list" => iterate(value)?.iter().map(sorted_dicts).collect::<Result<Vec<_>, _>>()?.into(),
        "tuple" => tuple(iterate(value)?.iter().map(sorted_dicts).collect::<Result<Vec<_>, _>>()?),
        _ => value.clone(),
    })
}

/// A number as Python prints it.
fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() { Ok(value.to_string()) } else { f64::try_from(value.clone()).map(float) }
}

/// `repr` of a float: the shortest digits that mean it, with an exponent where it is far from 1.
fn float(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string().to_lowercase();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    match value.to_string() {
        _ if !(-4..16).contains(&exponent) => format!("{digits}e{exponent:+03}"),
        plain if plain.contains('.') => plain,
        whole => whole + ".0",
    }
}

/// Whether `repr` shows a character as it is.
fn is_printable(character: char) -> bool {
    // Behind a letter only what cannot be printed is escaped, and not what is drawn over it.
    matches!(character, '\\' | '\'' | '"') || format!("a{character}").escape_debug().skip(1).eq([character])
}

/// `repr` of a str.
fn quote(out: &mut String, text: &str) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for character in text.chars() {
        match character {
            '\n' => *out += "\\n",
            '\r' => *out += "\\r",
            '\t' => *out += "\\t",
            '\\' => *out += "\\\\",
            _ if character == mark => out.extend(['\\', mark]),
            _ if is_printable(character) => out.push(character),
            _ => escape(out, character),
        }
    }
    out.push(mark);
}

/// A text for a page; as it is where it was escaped.
pub(crate) fn escaped(value: &Value) -> Result<String, Error> {
    let replaced = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;")];
    let text = text(value)?;
    if value.is_safe() {
        return Ok(text);
    }
    Ok(replaced.into_iter().fold(text, |text, (character, entity)| text.replace(character, entity)))
}

/// `\x..`, `\u....` or `\U........`.
fn escape(out: &mut String, character: char) {
    // Writing to a String does not fail.
    let _ = match u32::from(character) {
        code @ ..0x100 => write!(out, "\\x{code:02x}"),
        code @ ..0x10000 => write!(out, "\\u{code:04x}"),
        code => write!(out, "\\U{code:08x}"),
    };
}

/// `ascii(value)`.
fn ascii(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for character in repr(value)?.chars() {
        if character.is_ascii() { out.push(character) } else { escape(&mut out, character) }
    }
    Ok(out)
}

/// A whole number, as which a bool counts too.
pub(crate) fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// The same without a fraction.
fn truncated(value: f64) -> Option<i128> {
    const MOST: f64 = 1.7e38;
    (value.is_finite() && value.abs() < MOST).then_some(value as i128)
}

/// `round(value, digits)`: half goes to the even one, of what a float really is.
pub(crate) fn round(value: &Value, digits: i32) -> Result<Value, Error> {
    let whole = integer(value);
    if let Some(whole) = whole.filter(|_| digits >= 0) {
        return Ok(Value::from(whole));
    }
    let float = whole.map_or_else(|| f64::try_from(value.clone()), |whole| Ok(whole as f64))?;
    let Some(exact) = whole.or_else(|| truncated(float)) else { return Ok(value.clone()) };
    if digits >= 0 {
        let digits = digits.min(330) as usize;
        return Ok(Value::from(format!("{float:.digits$}").parse().unwrap_or(float)));
    }
    let Some(unit) = 10i128.checked_pow(digits.unsigned_abs()) else { return Ok(Value::from(0)) };
    let (down, rest) = (exact.div_euclid(unit), exact.rem_euclid(unit));
    let beyond = whole.is_none() && float.fract() > 0.0;
    let up = match (2 * rest).cmp(&unit) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => beyond || down % 2 != 0,
        std::cmp::Ordering::Greater => true,
    };
    let rounded = (down + i128::from(up)) * unit;
    Ok(if whole.is_some() { Value::from(rounded) } else { Value::from(rounded as f64) })
}

/// Digits without the `_` that may stand between two of them.
fn without_marks(text: &str) -> Option<String> {
    let marked = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    (!marked).then(|| text.replace('_', ""))
}

/// `int(text, base)`.
pub(crate) fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(methods::is_space);
    let (sign, digits) = text.strip_prefix('-').map_or((1, text.strip_prefix('+').unwrap_or(text)), |rest| (-1, rest));
    let prefix = digits.get(..2).map(str::to_ascii_lowercase);
    let of = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find(|(known, _)| prefix.as_deref() == Some(*known));
    let (base, digits) = match of {
        Some((_, of)) if base == of || base == 0 => (of, digits[2..].strip_prefix('_').unwrap_or(&digits[2..])),
        _ if base == 0 && digits.starts_with('0') && !digits.trim_matches(['0', '_']).is_empty() => return None,
        _ => (if base == 0 { 10 } else { base }, digits),
    };
    let digits = without_marks(digits).filter(|digits| !digits.starts_with(['+', '-']))?;
    (2..=36).contains(&base).then(|| i128::from_str_radix(&digits, base).ok())?.map(|number| sign * number)
}

/// `float(value)`; `None` where Python has none.
pub(crate) fn parse_float(value: &Value) -> Option<f64> {
    match (value.as_str(), integer(value)) {
        (Some(text), _) => without_marks(text.trim_matches(methods::is_space))?.parse().ok(),
        (None, Some(whole)) => Some(whole as f64),
        _ => f64::try_from(value.clone()).ok().filter(|_| value.kind() == ValueKind::Number),
    }
}

/// `int(value)`, as jinja2 asks for it: a text may also be a float's.
pub(crate) fn to_int(value: &Value, base: u32) -> Option<i128> {
    let whole = value.as_str().map_or_else(|| integer(value), |text| parse_int(text, base));
    whole.or_else(|| truncated(parse_float(value)?))
}

/// The arguments of a call by their names, in the order of its signature.
pub(crate) fn bind<const N: usize>(args: &[Value], names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let (given, named): (&[Value], Kwargs) = from_args(args)?;
    if given.len() > N {
        return Err(ErrorKind::TooManyArguments.into());
    }
    let mut bound = [const { None }; N];
    for (place, name) in names.into_iter().enumerate() {
        bound[place] = match given.get(place) {
            Some(value) => Some(value.clone()),
            None if named.has(name) => Some(named.get(name)?),
            None => None,
        };
    }
    named.assert_all_used()?;
    Ok(bound)
}
