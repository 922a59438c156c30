//! Values that a budget states in a form of their own.

use cacheplan_handlers::DType;
use serde::{Deserialize, Deserializer, Serialize};

/// An exact share between 0 and 1, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "f64")]
pub struct Fraction {
    millionths: u32,
}

impl Fraction {
    /// Everything.
    pub const ONE: Self = Self { millionths: 1_000_000 };

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
            serde::de::Error::custom(format!(
                "fraction {value} is not above 0 and at most 1, with at most six decimals"
            ))
        })
    }
}

/// Reads the name of an element type.
pub(super) fn dtype<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DType>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    name.map(|name| name.parse()).transpose().map_err(serde::de::Error::custom)
}
