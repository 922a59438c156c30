//! Sizes in bytes and counts of tokens as people write them: `"24GiB"`, `"80GB"`, `"32k"`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// A number of bytes that reads from `"24GiB"`, `"1.5 gib"`, `"10GB"` or an integer.
///
/// Units are those of Kubernetes, with or without their `B`: `Gi` is 2^30 and `G` is 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ByteSize(pub u64);

/// A text that is no byte size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadByteSize {
    /// It is no number with a unit.
    #[error(
        "`{0}` is not a byte size; write an integer of bytes or a number with a unit, such as \"24GiB\" or \"10GB\""
    )]
    NoSize(String),
    /// More bytes than sums of such sizes can be counted of.
    #[error("`{0}` is too large; sizes are at most 1048576TiB, which is 2^60 bytes")]
    TooLarge(String),
    /// A number without a unit that is meant in GiB.
    #[error("`{0}` has no unit; write \"{0}GiB\", or \"{0}B\" for bytes")]
    NoUnit(u64),
    /// A unit that is of 1,000 to some and of 1,024 to others.
    #[error(
        "`{text}` is {number} {decimal} to some and {number} {binary} to others; write \"{number}{binary}\" or \"{number}{decimal}\""
    )]
    Ambiguous {
        /// What was written.
        text: String,
        /// The number in it.
        number: String,
        /// The unit of 1,024.
        binary: &'static str,
        /// The unit of 1,000.
        decimal: &'static str,
    },
}

/// So many sequences, in words.
pub(crate) fn sequences(count: u64) -> String {
    counted(count, "sequence")
}

/// So many of something.
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The units of bytes, largest first: of 1,024, of 1,000, and the power of either.
pub(crate) const UNITS: [(&str, &str, u32); 4] =
    [("TiB", "TB", 4), ("GiB", "GB", 3), ("MiB", "MB", 2), ("KiB", "KB", 1)];

/// What devices have in GiB, and no budget in bytes: whoever writes 80 forgot the unit.
const MEANT_AS_GIB: std::ops::Range<u64> = 1..4096;

impl ByteSize {
    /// The most that may be stated: sums of as many as a plan has stay below 2^64.
    pub(crate) const MOST: u64 = 1 << 60;

    /// A number that was written without a unit.
    ///
    /// # Errors
    /// One that nobody means in bytes, or beyond what is counted.
    pub(crate) fn without_unit(bytes: u64) -> Result<Self, BadByteSize> {
        if MEANT_AS_GIB.contains(&bytes) { Err(BadByteSize::NoUnit(bytes)) } else { Self::stated_as(bytes, bytes) }
    }

    /// So many bytes that were stated as `text`.
    fn stated_as(bytes: u64, text: impl fmt::Display) -> Result<Self, BadByteSize> {
        if bytes > Self::MOST { Err(BadByteSize::TooLarge(text.to_string())) } else { Ok(Self(bytes)) }
    }

    /// The size as a budget states it exactly: bytes, with a unit where they are refused without.
    pub fn stated(self) -> String {
        let unit = if MEANT_AS_GIB.contains(&self.0) { "B" } else { "" };
        format!("{}{unit}", self.0)
    }
}

/// The bytes of one unit, however it is capitalised; `None` for what is none.
fn scale(text: &str, number: &str, unit: &str) -> Option<Result<u64, BadByteSize>> {
    if unit.eq_ignore_ascii_case("B") {
        return Some(Ok(1));
    }
    UNITS.iter().find_map(|&(binary, decimal, power)| {
        let is = |name: &str| unit.eq_ignore_ascii_case(name);
        if is(binary) || is(&binary[..2]) {
            return Some(Ok(1 << (10 * power)));
        }
        if is(decimal) || unit == &decimal[..1] {
            return Some(Ok(1000u64.pow(power)));
        }
        // Docker's `g` is Kubernetes' `Gi`.
        let ambiguous = || BadByteSize::Ambiguous { text: text.to_owned(), number: number.to_owned(), binary, decimal };
        is(&decimal[..1]).then(|| Err(ambiguous()))
    })
}

impl FromStr for ByteSize {
    type Err = BadByteSize;

    fn from_str(text: &str) -> Result<Self, BadByteSize> {
        let bad = || BadByteSize::NoSize(text.to_owned());
        let too_large = || BadByteSize::TooLarge(text.to_owned());
        let trimmed = text.trim();
        let end = trimmed.find(|char: char| !(char.is_ascii_digit() || char == '.')).unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..end], trimmed[end..].trim_start());
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || whole.is_empty() || !digits(fraction) || fraction.len() > 9 {
            return Err(bad());
        }
        let scale = if unit.is_empty() { 1 } else { scale(trimmed, number, unit).ok_or_else(bad)?? };
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let denominator = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| bad())?);
        let numerator: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| bad())? };
        let bytes = u128::from(whole) * u128::from(scale) + numerator * u128::from(scale) / denominator;
        let bytes = u64::try_from(bytes).map_err(|_| too_large())?;
        if unit.is_empty() { Self::without_unit(bytes) } else { Self::stated_as(bytes, text) }
    }
}

/// `1,234,567`.
pub(crate) fn separated(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl fmt::Display for ByteSize {
    /// Binary units with two decimals, `24.00 GiB`; bytes below 1 KiB.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().map(|(unit, _, power)| (unit, 10 * power)).find(|(_, bits)| self.0 >> bits > 0) {
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
                ByteSize::stated_as(bytes, bytes).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                let unsigned = u64::try_from(bytes).map_err(|_| E::custom(BadByteSize::NoSize(bytes.to_string())))?;
                self.visit_u64(unsigned)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Bytes)
    }
}

/// Reads bytes as [`ByteSize`] does.
pub(crate) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    ByteSize::deserialize(deserializer).map(|size| size.0)
}

/// A count of tokens that reads from `"32768"`, `"32k"` or `"1m"`, where `k` and `m` are binary, or an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCount(pub u64);

/// A text that is no count of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a number of tokens; write one such as 32768, 32k (of 1,024) or 1m")]
pub struct BadTokenCount(String);

impl FromStr for TokenCount {
    type Err = BadTokenCount;

    fn from_str(text: &str) -> Result<Self, BadTokenCount> {
        let trimmed = text.trim();
        let (number, scale) = match (trimmed.strip_suffix(['k', 'K']), trimmed.strip_suffix(['m', 'M'])) {
            (Some(number), _) => (number, 1 << 10),
            (_, Some(number)) => (number, 1 << 20),
            _ => (trimmed, 1),
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let count = number.parse::<u64>().ok().filter(|_| is_number).and_then(|count| count.checked_mul(scale));
        count.map(Self).ok_or_else(|| BadTokenCount(text.to_owned()))
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
    #[case("5120", 5120)]
    #[case("7B", 7)]
    #[case("24b", 24)]
    #[case("24gib", 24 << 30)]
    #[case("24Gi", 24 << 30)]
    #[case("24gi", 24 << 30)]
    #[case("80 GB", 80_000_000_000)]
    #[case("80gb", 80_000_000_000)]
    #[case("80G", 80_000_000_000)]
    #[case("1.5T", 1_500_000_000_000)]
    #[case("1048576TiB", 1 << 60)]
    fn sizes_read_exactly(#[case] text: &str, #[case] bytes: u64) {
        assert_eq!(text.parse(), Ok(ByteSize(bytes)));
    }

    #[rstest]
    #[case("")]
    #[case("GiB")]
    #[case("-1GiB")]
    #[case("0.9x")]
    #[case("1e9")]
    fn what_is_no_size_is_an_error(#[case] text: &str) {
        assert_eq!(text.parse::<ByteSize>(), Err(BadByteSize::NoSize(text.to_owned())));
    }

    #[rstest]
    #[case("18446744073709551616")]
    #[case("99999999999TiB")]
    #[case("16777215TiB")]
    #[case("1152921504606846977")]
    #[case("1152921504606846977B")]
    fn what_is_too_large_is_said_to_be(#[case] text: &str) {
        assert_eq!(text.parse::<ByteSize>(), Err(BadByteSize::TooLarge(text.to_owned())));
    }

    #[rstest]
    #[case("24", "`24` has no unit; write \"24GiB\", or \"24B\" for bytes")]
    #[case("80g", "`80g` is 80 GB to some and 80 GiB to others; write \"80GiB\" or \"80GB\"")]
    #[case("1.5 k", "`1.5 k` is 1.5 KB to some and 1.5 KiB to others; write \"1.5KiB\" or \"1.5KB\"")]
    fn what_people_mean_differently_says_what_would_do(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(text.parse::<ByteSize>().unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_size_reads_back_from_how_it_is_stated() {
        for bytes in [0, 1, 8, 80, 4095, 4096, 24 << 30] {
            assert_eq!(ByteSize(bytes).stated().parse(), Ok(ByteSize(bytes)));
        }
    }

    #[rstest]
    #[case("32768", Some(32_768))]
    #[case("32k", Some(32_768))]
    #[case(" 128K ", Some(131_072))]
    #[case("1m", Some(1 << 20))]
    #[case("1.5k", None)]
    #[case("k", None)]
    #[case("+1", None)]
    #[case("-1", None)]
    #[case("32kb", None)]
    #[case("99999999999999999999m", None)]
    fn tokens_read_in_binary_thousands(#[case] text: &str, #[case] tokens: Option<u64>) {
        assert_eq!(text.parse().ok(), tokens.map(TokenCount), "{text}");
    }

    #[rstest]
    #[case(1023, "1023 B")]
    #[case(1536, "1.50 KiB")]
    #[case(25_769_803_776, "24.00 GiB")]
    fn sizes_print_in_binary_units(#[case] bytes: u64, #[case] text: &str) {
        assert_eq!(ByteSize(bytes).to_string(), text);
    }
}
