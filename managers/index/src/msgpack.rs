//! As much of MessagePack as events are made of. Nothing is allocated by a length that a message states.

use crate::Error;

/// A place in a message.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// What is read, for errors.
    pub(crate) event: &'static str,
    pub(crate) field: &'static str,
}

/// A value, or the beginning of one with parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Nil,
    Unsigned(u64),
    /// A negative integer, as its two's complement.
    Negative(u64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
    Float(f64),
    /// What no field of an event is: a truth value, an extension.
    Other,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, event: "batch", field: "the batch" }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(Error::Ends { at: self.bytes.len(), field: self.field })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// An unsigned integer of so many bytes, at most eight.
    fn unsigned(&mut self, bytes: usize) -> Result<u64, Error> {
        Ok(self.take(bytes)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Result<usize, Error> {
        // A length of 32 bits that this machine cannot count is one that the message does not have.
        Ok(usize::try_from(self.unsigned(bytes)?).unwrap_or(usize::MAX))
    }

    fn signed(&mut self, bytes: usize) -> Result<Value<'a>, Error> {
        let shift = 64 - 8 * bytes;
        let value = (self.unsigned(bytes)? << shift).cast_signed() >> shift;
        Ok(if value < 0 { Value::Negative(value.cast_unsigned()) } else { Value::Unsigned(value.cast_unsigned()) })
    }

    pub(crate) fn value(&mut self) -> Result<Value<'a>, Error> {
        let first = self.take(1)?[0];
        Ok(match first {
            0x00..=0x7f => Value::Unsigned(u64::from(first)),
            0x80..=0x8f => Value::Map(usize::from(first & 0x0f)),
            0x90..=0x9f => Value::Array(usize::from(first & 0x0f)),
            0xa0..=0xbf => Value::Text(self.take(usize::from(first & 0x1f))?),
            0xc0 => Value::Nil,
            0xc1..=0xc3 => Value::Other,
            0xc4..=0xc6 => {
                let length = self.length(1 << (first - 0xc4))?;
                Value::Bytes(self.take(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(1 << (first - 0xc7))?;
                self.take(1)?;
                self.take(length)?;
                Value::Other
            }
            0xca => Value::Float(f32::from_bits(self.unsigned(4)? as u32).into()),
            0xcb => Value::Float(f64::from_bits(self.unsigned(8)?)),
            0xcc..=0xcf => Value::Unsigned(self.unsigned(1 << (first - 0xcc))?),
            0xd0..=0xd3 => self.signed(1 << (first - 0xd0))?,
            0xd4..=0xd8 => {
                self.take(1 + (1 << (first - 0xd4)))?;
                Value::Other
            }
            0xd9..=0xdb => {
                let length = self.length(1 << (first - 0xd9))?;
                Value::Text(self.take(length)?)
            }
            0xdc | 0xdd => Value::Array(self.length(if first == 0xdc { 2 } else { 4 })?),
            0xde | 0xdf => Value::Map(self.length(if first == 0xde { 2 } else { 4 })?),
            0xe0..=0xff => Value::Negative(i64::from(first.cast_signed()).cast_unsigned()),
        })
    }

    /// Passes a value with all its parts, however deep.
    pub(crate) fn skip(&mut self) -> Result<(), Error> {
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            left = left.saturating_add(match self.value()? {
                Value::Array(parts) => parts,
                Value::Map(parts) => parts.saturating_mul(2),
                _ => 0,
            });
        }
        Ok(())
    }

    pub(crate) fn wrong<T>(&self, found: Value<'_>, wanted: &'static str) -> Result<T, Error> {
        let found = match found {
            Value::Nil => "nothing".to_owned(),
            Value::Unsigned(value) => value.to_string(),
            Value::Negative(value) => value.cast_signed().to_string(),
            Value::Text(text) => format!("`{}`", String::from_utf8_lossy(&text[..text.len().min(40)])),
            Value::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Value::Array(parts) => format!("a list of {parts}"),
            Value::Map(parts) => format!("a map of {parts}"),
            Value::Float(value) => value.to_string(),
            Value::Other => "a value of another type".to_owned(),
        };
        Err(Error::Field { event: self.event, field: self.field, found, wanted })
    }

    pub(crate) fn array(&mut self) -> Result<usize, Error> {
        match self.value()? {
            Value::Array(parts) => Ok(parts),
            other => self.wrong(other, "a list"),
        }
    }

    pub(crate) fn text(&mut self) -> Result<Option<&'a [u8]>, Error> {
        match self.value()? {
            Value::Text(text) => Ok(Some(text)),
            Value::Nil => Ok(None),
            other => self.wrong(other, "a text"),
        }
    }

    pub(crate) fn number(&mut self) -> Result<Option<u32>, Error> {
        match self.value()? {
            Value::Unsigned(value) if value <= u64::from(u32::MAX) => Ok(Some(value as u32)),
            Value::Nil => Ok(None),
            other => self.wrong(other, "a number below 2^32"),
        }
    }

    /// A block's hash: an integer, or bytes of which the last eight count, as vLLM makes integers of them.
    pub(crate) fn hash(&mut self) -> Result<Option<u64>, Error> {
        match self.value()? {
            Value::Unsigned(value) | Value::Negative(value) => Ok(Some(value)),
            Value::Bytes(bytes) if bytes.len() >= 8 => {
                Ok(Some(bytes[bytes.len() - 8..].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))))
            }
            Value::Nil => Ok(None),
            other => self.wrong(other, "a block's hash"),
        }
    }
}
