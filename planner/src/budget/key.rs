//! A key of the budget, and how a section declares its keys beside its fields.
//!
//! Flags, variables, the commented file, the schema, the reference, origins and ranges follow from the declaration.

use toml::Value;

use crate::limits::MAX_COUNT;
use crate::size::{ByteSize, TokenCount};

/// What environment variables start with: `CACHEPLAN__MEMORY__BYTES` is `memory.bytes`.
pub(crate) const PREFIX: &str = "CACHEPLAN__";

/// A key of the budget: one entry of the file, one environment variable, one flag.
#[derive(Clone, Debug)]
pub struct BudgetKey {
    /// Its dotted path, `memory.bytes`.
    pub path: &'static str,
    /// Its flag, `--memory-bytes`.
    pub flag: &'static str,
    /// What values it takes.
    pub values: Values,
    /// What holds where it is absent, in words or as a value.
    pub default: &'static str,
    /// Whether it must be stated where its section is.
    pub required: bool,
    /// A value that could be written, as TOML.
    pub(crate) example: &'static str,
    /// What it is, in one sentence.
    pub help: &'static str,
}

/// What values a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// A whole number from the first to the second.
    Count(u64, u64),
    /// Tokens, from the first to the second: an integer or a text such as `32k`.
    Tokens(u64, u64),
    /// An integer of bytes or a text such as `24GiB`.
    Bytes,
    /// A number above 0 and at most 1.
    Fraction,
    /// A number above 0.
    Ratio,
    /// The name of an element type.
    DType,
    /// One of these names, each with what it means.
    Choice(&'static [(&'static str, &'static str)]),
    /// `true` or `false`.
    Switch,
    /// A distribution of lengths.
    Lengths,
}

/// A count of tokens.
pub(crate) const TOKENS: Values = Values::Tokens(1, MAX_COUNT);

/// A count of a block's tokens, which books keep in 32 bits.
pub(crate) const BLOCK: Values = Values::Tokens(1, 1 << 31);

/// A count of sequences, slots or blocks.
pub(crate) const SEQUENCES: Values = Values::Count(1, MAX_COUNT);

/// A part of the budget with a name of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    pub(crate) name: &'static str,
    /// What it is, in one sentence.
    pub(crate) help: &'static str,
    pub(crate) keys: &'static [BudgetKey],
}

impl BudgetKey {
    /// The section it stands in; `None` outside all sections.
    pub fn section(&self) -> Option<&'static str> {
        Some(self.path.rsplit_once('.')?.0)
    }

    /// Its name within its section.
    pub(crate) fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The environment variable that sets it, `CACHEPLAN__MEMORY__BYTES`.
    pub fn variable(&self) -> String {
        PREFIX.to_owned() + &self.path.to_uppercase().replace('.', "__")
    }

    /// Why `value` is outside what the key takes; of what its type forbids the reader says more.
    pub(crate) fn refuses(&self, value: &Value) -> Option<String> {
        let count = match value {
            Value::String(text) if matches!(self.values, Values::Tokens(..)) => text.parse::<TokenCount>().ok()?.0,
            value => u64::try_from(value.as_integer()?).ok()?,
        };
        if matches!(self.values, Values::Bytes) {
            return ByteSize::without_unit(count).err().map(|error| format!("`{}`: {error}", self.path));
        }
        self.outside(count)
    }

    /// Why `count` is outside what the key takes.
    pub(crate) fn outside(&self, count: u64) -> Option<String> {
        let (Values::Count(least, most) | Values::Tokens(least, most)) = self.values else { return None };
        let outside = !(least..=most).contains(&count);
        outside.then(|| format!("`{}` is {count}; it must be between {least} and {most}", self.path))
    }
}

/// Declares a section of the budget. The first line above a field is what its key is; behind it stands either
/// `key(flag, values, default, example)`, with `needed` for a key that its section asks for, or, of a field that is a
/// section itself, `section(its type)`.
macro_rules! section {
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident under $prefix:literal {
            $(
                #[doc = $help:literal]
                $(key($flag:literal, $values:expr, $default:tt, $example:literal))?
                $(section($part:ty))?
                $(#[$meta:meta])*
                pub $field:ident: $type:ty,
            )*
        }
    ) => {
        $(#[$about])*
        $vis struct $name {
            $(
                #[doc = $help]
                $(
                    #[doc = ""]
                    #[doc = concat!("Where absent: ", $crate::budget::key::default!($default), ".")]
                )?
                $(#[$meta])*
                pub $field: $type,
            )*
        }

        impl $name {
            /// The keys of its own, in the order of the file.
            pub(crate) const KEYS: &'static [$crate::budget::key::BudgetKey] = &[
                $($(
                    $crate::budget::key::BudgetKey {
                        path: concat!($prefix, stringify!($field)),
                        flag: $flag,
                        values: $values,
                        default: $crate::budget::key::default!($default),
                        required: $crate::budget::key::is_needed!($default),
                        example: $example,
                        help: $help.trim_ascii_start(),
                    },
                )?)*
            ];

            /// The sections in it, likewise.
            #[allow(dead_code, reason = "only the whole budget has sections")]
            pub(crate) const SECTIONS: &'static [$crate::budget::key::Section] = &[
                $($(
                    $crate::budget::key::Section {
                        name: stringify!($field),
                        help: $help.trim_ascii_start(),
                        keys: <$part>::KEYS,
                    },
                )?)*
            ];
        }
    };
}

macro_rules! default {
    (needed) => {
        "not set"
    };
    ($default:literal) => {
        $default
    };
}

macro_rules! is_needed {
    (needed) => {
        true
    };
    ($default:literal) => {
        false
    };
}

pub(crate) use {default, is_needed, section};
