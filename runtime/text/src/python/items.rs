//! Sequences that are no lists, and what is gone over and cut out of values.

use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::{bounded, integer, pairs, raised};

/// What is a sequence, and no list.
#[derive(Debug)]
pub(crate) struct Items {
    pub(super) kind: Kind,
    pub(super) items: Vec<Value>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Tuple,
    /// Of `groupby`: a tuple with names.
    Group,
    /// Of a dict, with what Python calls it.
    View(&'static str),
    /// How it is asked for.
    Range(String),
    /// How much of it was taken.
    Generator(AtomicUsize),
    /// A method, of its only item.
    Method(String),
}

pub(crate) fn tuple(items: impl Into<Vec<Value>>) -> Value {
    Value::from_object(Items { kind: Kind::Tuple, items: items.into() })
}

/// A group of `groupby`.
pub(crate) fn group(grouper: Value, list: Value) -> Value {
    Value::from_object(Items { kind: Kind::Group, items: vec![grouper, list] })
}

/// `dict_keys` and its like.
pub(crate) fn view(name: &'static str, items: Vec<Value>) -> Value {
    Value::from_object(Items { kind: Kind::View(name), items })
}

/// What can be gone over once.
pub(crate) fn generator(items: Vec<Value>) -> Value {
    Value::from_object(Items { kind: Kind::Generator(AtomicUsize::new(0)), items })
}

/// `range`, with the most that jinja2's sandbox makes.
pub(crate) fn range(args: &[Value]) -> Result<Value, Error> {
    const MOST: usize = 100_000;
    let whole = |value: Option<&Value>| {
        let number = value.map(|value| integer(value).and_then(|number| i64::try_from(number).ok()));
        number.map(|number| number.ok_or_else(|| raised("range() wants integers"))).transpose()
    };
    if args.is_empty() || args.len() > 3 {
        return Err(raised("range() wants one to three integers"));
    }
    let (first, second, step) = (whole(args.first())?.unwrap_or(0), whole(args.get(1))?, whole(args.get(2))?);
    let (start, stop) = second.map_or((0, first), |second| (first, second));
    let by = step.unwrap_or(1);
    if by == 0 {
        return Err(raised("range() arg 3 must not be zero"));
    }
    let next = |at: &i64| at.checked_add(by);
    let items = std::iter::successors(Some(start), next).take_while(|at| if by > 0 { *at < stop } else { *at > stop });
    let items: Vec<Value> = items.take(MOST + 1).map(Value::from).collect();
    if items.len() > MOST {
        return Err(raised(format!("a range of more than {MOST} is not made")));
    }
    let step = step.filter(|step| *step != 1).map_or_else(String::new, |step| format!(", {step}"));
    Ok(Value::from_object(Items { kind: Kind::Range(format!("range({start}, {stop}{step})")), items }))
}

/// The items of a tuple.
pub(super) fn of_tuple(value: &Value) -> Option<&[Value]> {
    let items: &Items = value.downcast_object_ref()?;
    matches!(items.kind, Kind::Tuple | Kind::Group).then_some(&items.items)
}

/// What Python calls a value's type.
pub(crate) fn type_of(value: &Value) -> &'static str {
    match (value.kind(), value.downcast_object_ref::<Items>().map(|items| &items.kind)) {
        (_, Some(Kind::Tuple | Kind::Group)) => "tuple",
        (_, Some(Kind::View(name))) => name,
        (_, Some(Kind::Range(_))) => "range",
        (_, Some(Kind::Generator(_))) => "generator",
        (_, Some(Kind::Method(_))) => "method",
        (ValueKind::Undefined, _) => "Undefined",
        (ValueKind::None, _) => "NoneType",
        (ValueKind::Bool, _) => "bool",
        (ValueKind::Number, _) if value.is_integer() => "int",
        (ValueKind::Number, _) => "float",
        (ValueKind::String, _) => "str",
        (ValueKind::Seq | ValueKind::Iterable, _) => "list",
        (ValueKind::Map, _) if is_library(value) => "object",
        (ValueKind::Map, _) => "dict",
        _ => "object",
    }
}

/// An object of the library's, as the one of a loop, and a namespace: no dict.
fn is_library(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        ["Namespace", "Loop", "Macro", "Module", "Closure"].iter().any(|name| object.type_name().ends_with(name))
    })
}

/// What is gone over with `for`.
pub(crate) fn iterate(value: &Value) -> Result<Vec<Value>, Error> {
    if let Some(Items { kind: Kind::Generator(taken), items }) = value.downcast_object_ref() {
        let before = taken.swap(items.len(), Ordering::Relaxed);
        return Ok(items[before..].to_vec());
    }
    match type_of(value) {
        "Undefined" => Ok(Vec::new()),
        "str" => {
            Ok(value.as_str().unwrap_or_default().chars().map(|character| Value::from(character.to_string())).collect())
        }
        "dict" => Ok(pairs(value).into_iter().map(|(key, _)| key).collect()),
        "list" | "tuple" | "range" | "dict_keys" | "dict_values" | "dict_items" => Ok(value.try_iter()?.collect()),
        other => Err(raised(format!("'{other}' object is not iterable"))),
    }
}

/// The next of a generator, or the first.
pub(crate) fn first(value: &Value) -> Result<Option<Value>, Error> {
    if let Some(Items { kind: Kind::Generator(taken), items }) = value.downcast_object_ref() {
        let next = items.get(taken.load(Ordering::Relaxed)).cloned();
        taken.fetch_add(usize::from(next.is_some()), Ordering::Relaxed);
        return Ok(next);
    }
    Ok(iterate(value)?.into_iter().next())
}

/// `len(value)`.
pub(crate) fn length(value: &Value) -> Result<usize, Error> {
    match type_of(value) {
        "Undefined" => Ok(0),
        "str" => Ok(value.as_str().unwrap_or_default().chars().count()),
        "list" | "tuple" | "range" | "dict" | "dict_keys" | "dict_values" | "dict_items" => {
            value.len().ok_or_else(|| raised("its length is not known"))
        }
        other => Err(raised(format!("object of type '{other}' has no len()"))),
    }
}

/// `value[start:stop:step]`.
pub(crate) fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let kind = type_of(value);
    if value.is_undefined() {
        return Err(ErrorKind::UndefinedError.into());
    }
    // Of a constant jinja2 makes undefined where Python raises for all others.
    if !matches!(kind, "str" | "list" | "tuple" | "range") {
        return Err(raised(format!("'{kind}' object cannot be sliced, and a constant one is not known here")));
    }
    let place = |value: &Value| match integer(value) {
        Some(place) => Ok(Some(place)),
        None if value.is_none() => Ok(None),
        None => Err(raised("slice indices must be integers or None")),
    };
    let step = place(step)?.unwrap_or(1);
    if step == 0 {
        return Err(raised("slice step cannot be zero"));
    }
    let length = length(value)? as i128;
    let (least, most) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound =
        |value: &Value, otherwise| {
            let place = place(value)?;
            Ok::<_, Error>(place.map_or(otherwise, |place| {
                if place < 0 { place.saturating_add(length) } else { place }.clamp(least, most)
            }))
        };
    let (from, to) = if step > 0 { (0, length) } else { (length - 1, -1) };
    let (from, to) = (bound(start, from)?, bound(stop, to)?);
    let next = |at: &i128| at.checked_add(step);
    let places = std::iter::successors(Some(from), next).take_while(|at| if step > 0 { *at < to } else { *at > to });
    let places = places.filter_map(|place| usize::try_from(place).ok());
    if kind == "range" {
        return Err(raised("a part of a range is not known here"));
    }
    if let Some(text) = value.as_str() {
        let characters: Vec<char> = text.chars().collect();
        return Ok(places.filter_map(|place| characters.get(place)).collect::<String>().into());
    }
    let all = iterate(value)?;
    let items: Vec<Value> = places.filter_map(|place| all.get(place).cloned()).collect();
    Ok(if kind == "tuple" { tuple(items) } else { Value::from(items) })
}

/// The same several times.
pub(super) fn repeated(value: &Value, times: i128) -> Result<Value, Error> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = value.as_str() {
        bounded(text.len().checked_mul(times))?;
        return Ok(text.repeat(times).into());
    }
    let all = iterate(value)?;
    bounded(all.len().checked_mul(times).and_then(|items| items.checked_mul(size_of::<Value>())))?;
    let items: Vec<Value> = (0..times).flat_map(|_| all.iter().cloned()).collect();
    Ok(if of_tuple(value).is_some() { tuple(items) } else { Value::from(items) })
}
