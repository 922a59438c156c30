//! Byte sizes as people write them: `"24GiB"`, `"512MiB"`, or an integer of bytes.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// A number of bytes that reads from `"24GiB"`, `"1.5GiB"`, `"10GB"` or an integer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ByteSize(pub u64);

/// A text that is no byte size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a byte size; write an integer of bytes or a number with a unit, such as \"24GiB\" or \"10GB\"")]
pub struct BadByteSize(String);

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = BadByteSize;

    fn from_str(text: &str) -> Result<Self, BadByteSize> {
        let bad = || BadByteSize(text.to_owned());
        let trimmed = text.trim();
        let (number, scale) = UNITS
            .iter()
            .find_map(|(unit, scale)| trimmed.strip_suffix(unit).map(|number| (number.trim_end(), *scale)))
            .unwrap_or((trimmed, 1));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
            return Err(bad());
        }
        let whole: u64 = whole.parse().map_err(|_| bad())?;
        let denominator = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| bad())?);
        let numerator: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| bad())? };
        let bytes = u128::from(whole) * u128::from(scale) + numerator * u128::from(scale) / denominator;
        u64::try_from(bytes).map(Self).map_err(|_| bad())
    }
}

impl fmt::Display for ByteSize {
    /// Binary units with two decimals, `24.00 GiB`; bytes below 1 KiB.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale =
            [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)].into_iter().find(|(_, bits)| self.0 >> bits > 0);
        match scale {
            // Hundredths are rounded in integers, so that the same bytes print the same text everywhere.
            Some((unit, bits)) => {
                let hundredths = (u128::from(self.0) * 100 + (1 << (bits - 1))) >> bits;
                f.pad(&format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100))
            }
            None => f.pad(&format!("{} B", self.0)),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer of bytes or a text such as \"24GiB\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::custom(BadByteSize(bytes.to_string())))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("24GiB", 24 << 30)]
    #[case("1.5 GiB", 3 << 29)]
    #[case("10GB", 10_000_000_000)]
    #[case("512", 512)]
    #[case("7B", 7)]
    fn sizes_read_exactly(#[case] text: &str, #[case] bytes: u64) {
        assert_eq!(text.parse(), Ok(ByteSize(bytes)));
    }

    #[rstest]
    #[case("")]
    #[case("GiB")]
    #[case("-1GiB")]
    #[case("0.9x")]
    #[case("1e9")]
    #[case("99999999999TiB")]
    fn what_is_no_size_is_an_error(#[case] text: &str) {
        assert_eq!(text.parse::<ByteSize>(), Err(BadByteSize(text.to_owned())));
    }

    #[rstest]
    #[case(1023, "1023 B")]
    #[case(1536, "1.50 KiB")]
    #[case(25_769_803_776, "24.00 GiB")]
    fn sizes_print_in_binary_units(#[case] bytes: u64, #[case] text: &str) {
        assert_eq!(ByteSize(bytes).to_string(), text);
    }
}
