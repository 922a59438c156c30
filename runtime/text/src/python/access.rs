//! What attributes and items are of values, and what templates do with sequences that are no lists.

use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, ErrorKind, State, Value};

use super::items::{Items, Kind};
use super::operators::{find, hashable};
use super::{integer, length, methods, raised, type_of};

impl Object for Items {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match self.kind {
            Kind::Tuple | Kind::Group | Kind::Range(_) => ObjectRepr::Seq,
            Kind::View(_) => ObjectRepr::Iterable,
            Kind::Generator(_) | Kind::Method(_) => ObjectRepr::Plain,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match self.kind {
            Kind::Tuple | Kind::Group | Kind::Range(_) => self.items.get(usize::try_from(key.clone()).ok()?).cloned(),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match self.kind {
            Kind::Tuple | Kind::Group | Kind::Range(_) => Enumerator::Seq(self.items.len()),
            Kind::View(_) => Enumerator::Values(self.items.clone()),
            Kind::Generator(_) | Kind::Method(_) => Enumerator::NonEnumerable,
        }
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.items.is_empty() || matches!(self.kind, Kind::Generator(_))
    }

    fn call(self: &Arc<Self>, state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        match (&self.kind, self.items.first()) {
            (Kind::Method(name), Some(of)) => methods::call(state, of, name, args),
            _ => Err(raised("it is no function")),
        }
    }
}

/// `value.name`: a method where Python has one, then an item.
pub(crate) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(ErrorKind::UndefinedError.into());
    }
    if methods::names(type_of(value)).contains(&name) {
        let kind = Kind::Method(name.to_owned());
        return Ok(Value::from_object(Items { kind, items: vec![value.clone()] }));
    }
    match (value.downcast_object_ref(), name) {
        (Some(Items { kind: Kind::Group, items }), "grouper") => Ok(items[0].clone()),
        (Some(Items { kind: Kind::Group, items }), "list") => Ok(items[1].clone()),
        _ => key(value, &Value::from(name)),
    }
}

/// `value[key]`: an item, then an attribute; undefined where there is neither.
pub(crate) fn item(value: &Value, of: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(ErrorKind::UndefinedError.into());
    }
    let found = key(value, of)?;
    match of.as_str() {
        Some(name) if found.is_undefined() => attribute(value, name),
        _ => Ok(found),
    }
}

/// The item of a key or a place; undefined where there is none.
fn key(value: &Value, of: &Value) -> Result<Value, Error> {
    let kind = type_of(value);
    if !matches!(kind, "str" | "list" | "tuple" | "range") {
        if kind == "dict" && hashable(of) {
            return Ok(find(value, of).unwrap_or(Value::UNDEFINED));
        }
        return if kind == "object" { value.get_item(of) } else { Ok(Value::UNDEFINED) };
    }
    let Some(place) = integer(of) else { return Ok(Value::UNDEFINED) };
    let place = if place < 0 { place + length(value)? as i128 } else { place };
    let Ok(place) = usize::try_from(place) else { return Ok(Value::UNDEFINED) };
    Ok(match value.as_str().filter(|_| kind == "str") {
        Some(text) => text.chars().nth(place).map_or(Value::UNDEFINED, |character| Value::from(character.to_string())),
        None => value.get_item_by_index(place).unwrap_or(Value::UNDEFINED),
    })
}
