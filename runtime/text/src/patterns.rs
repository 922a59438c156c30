//! How long the patterns of a tokenizer's file are: the library compiles them whatever they take, some kilobytes for each
//! byte.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The most bytes of all patterns; those of known tokenizers have some hundred.
const MOST: usize = 16 << 10;

/// Any JSON, of which only the lengths of its patterns are kept.
#[derive(Default)]
pub(crate) struct Patterns {
    bytes: usize,
    /// The length of what is a text.
    text: usize,
}

impl Patterns {
    fn with<E: Error>(self, more: usize) -> Result<Self, E> {
        let bytes = self.bytes + more;
        match bytes > MOST {
            true => Err(E::custom(format_args!("its patterns have more than {MOST} bytes"))),
            false => Ok(Self { bytes, text: 0 }),
        }
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = Patterns;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Patterns, E> {
        Ok(Patterns { bytes: 0, text: text.len() })
    }

    fn visit_bool<E>(self, _: bool) -> Result<Patterns, E> {
        Ok(Patterns::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Patterns, E> {
        Ok(Patterns::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Patterns, E> {
        Ok(Patterns::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Patterns, E> {
        Ok(Patterns::default())
    }

    fn visit_unit<E>(self) -> Result<Patterns, E> {
        Ok(Patterns::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Patterns, A::Error> {
        let mut sum = Patterns::default();
        while let Some(value) = list.next_element::<Patterns>()? {
            sum = sum.with(value.bytes)?;
        }
        Ok(sum)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Patterns, A::Error> {
        let mut sum = Patterns::default();
        while let Some(key) = map.next_key::<Key>()? {
            sum = match key {
                // Of a vocabulary nothing is a pattern.
                Key::Vocabulary => {
                    map.next_value::<IgnoredAny>()?;
                    sum
                }
                Key::Pattern => {
                    let value = map.next_value::<Patterns>()?;
                    sum.with(value.bytes + value.text)?
                }
                Key::Other => sum.with(map.next_value::<Patterns>()?.bytes)?,
            };
        }
        Ok(sum)
    }
}

/// What a key is of.
enum Key {
    Pattern,
    Vocabulary,
    Other,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl Visitor<'_> for Name {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E>(self, name: &str) -> Result<Key, E> {
                Ok(match name {
                    "Regex" | "String" => Key::Pattern,
                    "vocab" | "merges" => Key::Vocabulary,
                    _ => Key::Other,
                })
            }
        }

        deserializer.deserialize_str(Name)
    }
}
