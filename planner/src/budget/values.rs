//! Values that a budget states in a form of their own.

use std::fmt;

use cacheplan_handlers::DType;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::size::TokenCount;

/// An exact share between 0 and 1, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "f64")]
pub struct Fraction {
    millionths: u32,
}

impl Fraction {
    /// Everything.
    pub const ONE: Self = Self { millionths: 1_000_000 };

    /// So many hundredths.
    pub(crate) const fn percent(percent: u32) -> Self {
        Self { millionths: percent * 10_000 }
    }

    /// The share nearest to `value`; `None` outside (0, 1] or with more than six decimals.
    pub fn new(value: f64) -> Option<Self> {
        let scaled = value * 1e6;
        let rounded = scaled.round();
        // A value with at most six decimals is within rounding error of a whole number of millionths.
        let exact = (scaled - rounded).abs() < 1e-6 && (1.0..=1e6).contains(&rounded);
        exact.then_some(Self { millionths: rounded as u32 })
    }

    /// The share of `bytes`, rounded down.
    pub fn of(self, bytes: u64) -> u64 {
        // At most `bytes`, so it fits.
        (u128::from(bytes) * u128::from(self.millionths) / 1_000_000) as u64
    }
}

impl From<Fraction> for f64 {
    fn from(fraction: Fraction) -> Self {
        Self::from(fraction.millionths) / 1e6
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Self::new(value).ok_or_else(|| {
            D::Error::custom(format!("fraction {value} is not above 0 and at most 1, with at most six decimals"))
        })
    }
}

/// What one part gets for each that another gets, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "f64")]
pub struct Ratio {
    millionths: u64,
}

impl Ratio {
    /// The largest; nothing is left of the other part there.
    pub(crate) const MOST: f64 = 1e6;

    pub(crate) const fn millionths(self) -> u64 {
        self.millionths
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> Self {
        ratio.millionths as Self / 1e6
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        let millionths = (value * 1e6).round();
        let fits = millionths >= 1.0 && value <= Self::MOST;
        fits.then_some(Self { millionths: millionths as u64 })
            .ok_or_else(|| D::Error::custom(format!("ratio {value} is not between a millionth and {}", Self::MOST)))
    }
}

/// Reads the dtype of keys and values.
pub(super) fn kv_dtype<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DType>, D::Error> {
    dtype(deserializer, "keys and values", |dtype| dtype != DType::Int32, "")
}

/// Reads the dtype of states.
pub(super) fn state_dtype<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DType>, D::Error> {
    let kept = "; what is kept of them for reuse can be, with `workload.checkpoint_dtype = \"int8\"`";
    dtype(deserializer, "live states", DType::holds_states, kept)
}

/// Reads the name of an element type that such caches can have.
fn dtype<'de, D: Deserializer<'de>>(
    deserializer: D,
    of: &str,
    can_be: fn(DType) -> bool,
    of_int8: &str,
) -> Result<Option<DType>, D::Error> {
    let Some(name) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let dtype: DType = name.parse().map_err(D::Error::custom)?;
    if can_be(dtype) {
        return Ok(Some(dtype));
    }
    let names: Vec<&str> = DType::ALL.into_iter().filter(|&dtype| can_be(dtype)).map(DType::name).collect();
    let otherwise = if dtype == DType::Int8 { of_int8 } else { "" };
    Err(D::Error::custom(format!("no {of} are stored in `{name}`; write one of {}{otherwise}", names.join(", "))))
}

/// Reads a count of tokens: an integer, or a text such as `32k`.
pub(super) fn tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Tokens;

    impl<'de> Visitor<'de> for Tokens {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            // As of other counts, in whose words it is told.
            f.write_str("u64")
        }

        fn visit_u64<E: Error>(self, tokens: u64) -> Result<Option<u64>, E> {
            Ok(Some(tokens))
        }

        fn visit_i64<E: Error>(self, tokens: i64) -> Result<Option<u64>, E> {
            let unsigned = u64::try_from(tokens);
            unsigned.map(Some).map_err(|_| E::invalid_value(Unexpected::Signed(tokens), &self))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Option<u64>, E> {
            text.parse().map(|TokenCount(tokens)| Some(tokens)).map_err(E::custom)
        }

        fn visit_none<E: Error>(self) -> Result<Option<u64>, E> {
            Ok(None)
        }

        fn visit_unit<E: Error>(self) -> Result<Option<u64>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u64>, D::Error> {
            deserializer.deserialize_any(self)
        }
    }

    deserializer.deserialize_option(Tokens)
}
