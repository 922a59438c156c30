//! JSON of strangers: what its values would take is known before any of them is kept, and no key stands twice.

use std::cell::Cell;
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::Limit;
use crate::Shown;

/// Text that is not read as JSON.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JsonError {
    /// It is none.
    #[error("not valid JSON: {}", Shown(.0))]
    Invalid(serde_json::Error),
    /// A key stands twice in an object, or its values take too much.
    #[error("{}", Shown(.0))]
    Refused(serde_json::Error),
    /// It is JSON of something else.
    #[error("JSON of another kind: {}", Shown(.0))]
    OtherKind(serde_json::Error),
}

impl JsonError {
    /// Tells whether the text is JSON that says something else than was expected.
    pub fn is_other_kind(&self) -> bool {
        matches!(self, Self::OtherKind(_))
    }
}

impl Limit {
    /// Reads a value from the JSON of a stranger, which is charged against [`Limit::MEMORY`] with each of its values.
    ///
    /// # Errors
    /// No JSON, JSON of another kind, a key that stands twice in an object, or more than the memory that reading may take;
    /// each with its line and column.
    pub fn parse_json<T: DeserializeOwned>(self, text: &[u8]) -> Result<T, JsonError> {
        walk(text, self)?;
        serde_json::from_slice(text).map_err(JsonError::OtherKind)
    }
}

/// What is read from an object alone; a struct by itself is read from a list too, its fields by their order.
#[derive(Clone, Copy, Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// Looks at every value and keeps none.
fn walk(text: &[u8], limit: Limit) -> Result<(), JsonError> {
    let left = Cell::new(Limit::MEMORY.saturating_sub(text.len() as u64));
    let walk = Walk { left: &left, per_value: limit.per_value, hasher: &RandomState::new() };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    walk.deserialize(&mut deserializer).and_then(|()| deserializer.end()).map_err(|error| match error.is_data() {
        true => JsonError::Refused(error),
        false => JsonError::Invalid(error),
    })
}

/// Walks over a value and keeps nothing but a hash of each key of the objects it is in.
#[derive(Clone, Copy)]
struct Walk<'a> {
    left: &'a Cell<u64>,
    per_value: u64,
    hasher: &'a RandomState,
}

/// What a hash takes in a set that has grown by doubling.
const PER_KEY: u64 = 24;

impl Walk<'_> {
    fn charge<E: Error>(&self, bytes: u64) -> Result<(), E> {
        let left = self.left.get().checked_sub(bytes);
        let left = left.ok_or_else(|| E::custom(format_args!("its values take more than {} bytes", Limit::MEMORY)))?;
        self.left.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.charge(self.per_value)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        if self.per_value > 0 { self.charge(text.len() as u64) } else { Ok(()) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while map.next_key_seed(Key { walk: self, seen: &mut seen })?.is_some() {
            map.next_value_seed(self)?;
        }
        // The set goes, and with it what it was charged with.
        self.left.set(self.left.get() + PER_KEY * seen.len() as u64);
        Ok(())
    }
}

/// Reads a key that must not be among those that were seen.
struct Key<'a, 's> {
    walk: Walk<'a>,
    seen: &'s mut HashSet<u64>,
}

impl<'de> DeserializeSeed<'de> for Key<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<(), E> {
        self.walk.charge(PER_KEY)?;
        self.walk.visit_str::<E>(key)?;
        match self.seen.insert(self.walk.hasher.hash_one(key)) {
            true => Ok(()),
            false => Err(E::custom(format_args!("the key `{}` is stated twice", Shown(key)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Limit;
    use rstest::rstest;
    use serde_json::Value;

    fn read(text: &str) -> Result<Value, String> {
        Limit::CONFIG.parse_json(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case(r#"{"a": 1, "b": {"a": [1.5, -2, null, true, "x"]}, "c": {"a": {}}}"#)]
    #[case("[]")]
    fn json_of_any_kind_is_read(#[case] text: &str) {
        assert_eq!(read(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }

    #[rstest]
    #[case::twice(r#"{"a": 1, "a": 2}"#, "the key `a` is stated twice at line 1 column 12")]
    #[case::escaped(r#"{"a": 1, "\u0061": 2}"#, "the key `a` is stated twice")]
    #[case::further_in("{\"b\": [{\"a\": 1,\n\"a\": 2}]}", "the key `a` is stated twice at line 2 column 3")]
    #[case::hostile(r#"{"\u001b[2J": 1, "\u001b[2J": 2}"#, r"the key `\u001b[2J` is stated twice")]
    #[case::cut(r#"{"a": "#, "EOF while parsing")]
    #[case::more("{} {}", "trailing characters")]
    fn other_text_is_refused_with_its_place(#[case] text: &str, #[case] expected: &str) {
        let error = read(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn depth_is_limited() {
        assert!(read(&"[".repeat(1 << 20)).unwrap_err().contains("recursion limit"));
    }

    #[rstest]
    #[case::values(format!("[{}0]", "0,".repeat(1 << 20)))]
    #[case::texts(format!("[{}0]", "\"\",".repeat(1 << 20)))]
    #[case::objects(format!("[{}0]", "{},".repeat(1 << 20)))]
    fn more_values_than_memory_are_refused(#[case] text: String) {
        assert!(read(&text).unwrap_err().contains("more than 58720256 bytes"));
    }
}
