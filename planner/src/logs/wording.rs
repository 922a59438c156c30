//! What an engine writes of one thing: fixed text around numbers.

use super::fact::{Fact, Unit};
use crate::size::UNITS;

/// A line as an engine words it: `{}` stands where a value does, `*` where anything may.
///
/// Runs of spaces count as one, and a value may have spaces before it.
pub(crate) struct Wording {
    pub(crate) text: &'static str,
    /// What each `{}` is; `None` for a number that says nothing new.
    pub(crate) facts: &'static [Option<Fact>],
    pub(crate) fold: Fold,
}

/// What a process says twice of one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    /// The first holds; what comes later is another's, such as a draft model's.
    First,
    /// The last holds; what came before was tried and given up.
    Last,
    /// The least holds, since it is what all ranks can serve.
    Least,
    /// They are parts of one thing.
    Sum,
    /// They are parts of one thing on the device that the text stands behind; those on the host do not count.
    SumOnDevice,
}

/// What a log says of a number: every value that prints as it stands there, the first and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Logged {
    /// The least value that prints so.
    pub low: u64,
    /// The greatest.
    pub high: u64,
}

/// A number of a recognised line that no computer has so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Where the text stands in the line, and the values.
pub(super) struct Found {
    pub(super) at: usize,
    pub(super) values: Vec<Logged>,
}

impl Logged {
    /// A number that was printed in full.
    pub const fn exact(value: u64) -> Self {
        Self { low: value, high: value }
    }

    /// Whether the two have a value in common.
    pub const fn meets(self, other: Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }

    /// The value in the middle, which is the printed one.
    pub const fn middle(self) -> u64 {
        self.low + (self.high - self.low) / 2
    }

    /// Both together.
    pub(super) const fn plus(self, other: Self) -> Self {
        Self { low: self.low.saturating_add(other.low), high: self.high.saturating_add(other.high) }
    }
}

impl Wording {
    /// The fixed text that a line must have.
    pub(super) fn beginning(&self) -> &'static str {
        literal(self.text).0
    }

    /// Where `line` says this.
    pub(super) fn find(&self, line: &str) -> Result<Option<Found>, TooLarge> {
        let (first, rest) = literal(self.text);
        for (at, _) in line.match_indices(first).take(MAX_TRIES) {
            if let Some(values) = self.values(rest, &line[at + first.len()..])? {
                return Ok(Some(Found { at, values }));
            }
        }
        Ok(None)
    }

    fn values(&self, mut text: &str, mut line: &str) -> Result<Option<Vec<Logged>>, TooLarge> {
        let mut values = Vec::with_capacity(self.facts.len());
        while !text.is_empty() {
            if let Some(rest) = text.strip_prefix("{}") {
                let unit = self.facts.get(values.len()).copied().flatten().map(Fact::unit);
                let Some((value, behind)) = value(line, unit)? else { return Ok(None) };
                values.push(value);
                (text, line) = (rest, behind);
            } else if let Some(rest) = text.strip_prefix('*') {
                let (wanted, _) = literal(rest);
                let Some(at) = line.find(wanted) else { return Ok(None) };
                (text, line) = (rest, &line[at..]);
            } else {
                let (wanted, rest) = literal(text);
                let Some(behind) = line.strip_prefix(wanted) else { return Ok(None) };
                (text, line) = (rest, behind);
            }
        }
        Ok(Some(values))
    }
}

/// The fixed text that `text` begins with, and what follows it.
fn literal(text: &str) -> (&str, &str) {
    text.split_at(text.find(['{', '*']).unwrap_or(text.len()))
}

/// Places in a line at which a wording is tried; a line that only looks like one has no more of them.
const MAX_TRIES: usize = 16;

/// The unit that a text begins with, and what follows it. What engines print as GB is GiB.
fn unit_of(text: &str) -> Option<(u64, &str)> {
    let known = UNITS.iter().flat_map(|(binary, decimal, power)| [(binary, 10 * power), (decimal, 10 * power)]);
    known.chain([(&"bytes", 0)]).find_map(|(name, bits)| Some((1 << bits, text.strip_prefix(*name)?)))
}

/// More digits than any number that is logged has.
const MAX_DIGITS: usize = 19;
/// Engines round sizes to two decimals, and some leave out the zeros behind.
const DECIMALS: u32 = 2;

/// The value that `line` begins with, and what follows it. A number that nobody asked for has no unit.
fn value(line: &str, unit: Option<Unit>) -> Result<Option<(Logged, &str)>, TooLarge> {
    let line = line.trim_start_matches(' ');
    if unit == Some(Unit::Switch) {
        let words = [("True", 1), ("False", 0), ("true", 1), ("false", 0)];
        let said = words.iter().find_map(|(word, on)| Some((Logged::exact(*on), line.strip_prefix(word)?)));
        return Ok(said);
    }
    let Some((mantissa, decimals, rest)) = number(line)? else { return Ok(None) };
    match unit {
        None => {
            // Whatever it counts, its unit is passed over too.
            let passed = unit_of(rest.trim_start_matches(' ')).map_or(rest, |(_, behind)| behind);
            Ok(Some((Logged::exact(0), passed)))
        }
        Some(Unit::Bytes) => {
            let Some((scale, behind)) = unit_of(rest.trim_start_matches(' ')) else { return Ok(None) };
            // There are no parts of a byte.
            let whole = scale > 1 || decimals == 0;
            if whole { Ok(Some((printed(mantissa, decimals, scale)?, behind))) } else { Ok(None) }
        }
        Some(Unit::Hundredths) => match decimals {
            0..=2 => {
                let hundredths = u128::from(mantissa) * 10u128.pow(2 - decimals);
                Ok(Some((Logged::exact(u64::try_from(hundredths).map_err(|_| TooLarge)?), rest)))
            }
            _ => Ok(None),
        },
        Some(Unit::Count | Unit::Switch) if decimals == 0 => Ok(Some((Logged::exact(mantissa), rest))),
        Some(Unit::Count | Unit::Switch) => Ok(None),
    }
}

/// Digits without their thousands separators and point, how many are decimals, and what follows.
fn number(line: &str) -> Result<Option<(u64, u32, &str)>, TooLarge> {
    let digits_of = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = digits_of(line);
    if end == 0 {
        return Ok(None);
    }
    let mut digits = line[..end].to_owned();
    if end <= 3 {
        while line[end..].starts_with(',') && digits_of(&line[end + 1..]) == 3 {
            digits.push_str(&line[end + 1..end + 4]);
            end += 4;
        }
    }
    let mut decimals = 0;
    if line[end..].starts_with('.') {
        decimals = digits_of(&line[end + 1..]);
        // A point without decimals ends a sentence.
        if decimals > 0 {
            digits.push_str(&line[end + 1..end + 1 + decimals]);
            end += 1 + decimals;
        }
    }
    if digits.trim_start_matches('0').len() > MAX_DIGITS || decimals > MAX_DIGITS {
        return Err(TooLarge);
    }
    let mantissa = digits.parse().map_err(|_| TooLarge)?;
    Ok(Some((mantissa, decimals as u32, &line[end..])))
}

/// The bytes that round to `mantissa / 10^decimals` units of `scale` bytes.
fn printed(mantissa: u64, decimals: u32, scale: u64) -> Result<Logged, TooLarge> {
    if scale == 1 {
        return Ok(Logged::exact(mantissa));
    }
    // Where there is no decimal at all, none was printed.
    let missing = if decimals == 0 { 0 } else { DECIMALS.saturating_sub(decimals) };
    let twice = 2 * u128::from(mantissa) * 10u128.pow(missing);
    let denominator = 2 * 10u128.pow(decimals + missing);
    let bytes = |numerator: u128| numerator.checked_mul(scale.into()).ok_or(TooLarge);
    let low = bytes(twice.saturating_sub(1))?.div_ceil(denominator);
    let high = bytes(twice + 1)? / denominator;
    let narrow = |bytes: u128| u64::try_from(bytes).map_err(|_| TooLarge);
    // So many decimals may name a part of a byte.
    Ok(Logged { low: narrow(low)?, high: narrow(high.max(low))? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const GIB: f64 = 1_073_741_824.0;

    fn bytes(text: &str) -> Option<Logged> {
        value(text, Some(Unit::Bytes)).unwrap().map(|(value, _)| value)
    }

    #[rstest]
    #[case("20.27 GiB", 20.265, 20.275)]
    #[case("41.6 GiB", 41.595, 41.605)]
    #[case("2.23 GB,", 2.225, 2.235)]
    #[case("0.07GB", 0.065, 0.075)]
    #[case("67.7229 GB", 67.72285, 67.72295)]
    #[case("1024.00 MiB", 0.999_995_1, 1.000_004_9)]
    #[case("15 GiB", 14.5, 15.5)]
    #[case("2.321474836470 GiB", 2.321_474_8, 2.321_474_8)]
    fn a_size_is_every_size_that_rounds_to_it(#[case] text: &str, #[case] low: f64, #[case] high: f64) {
        let size = bytes(text).unwrap();
        assert!((size.low as f64 - low * GIB).abs() < 100.0, "{size:?}");
        assert!((size.high as f64 - high * GIB).abs() < 100.0, "{size:?}");
        assert!((size.low..=size.high).contains(&size.middle()), "{size:?}");
    }

    #[test]
    fn a_size_in_bytes_is_exact() {
        assert_eq!(bytes("59212694937 bytes"), Some(Logged::exact(59_212_694_937)));
    }

    #[rstest]
    #[case("165,792 tokens", Some((165_792, " tokens")))]
    #[case("1,048,576", Some((1_048_576, "")))]
    #[case("8192.", Some((8192, ".")))]
    #[case("263008)", Some((263_008, ")")))]
    #[case("12,34", Some((12, ",34")))]
    #[case("1234,567", Some((1234, ",567")))]
    #[case("  42", Some((42, "")))]
    #[case("-1", None)]
    #[case("None", None)]
    #[case("{X} tokens", None)]
    #[case("", None)]
    fn counts_have_thousands_separators_or_none(#[case] text: &str, #[case] expected: Option<(u64, &str)>) {
        let found = value(text, Some(Unit::Count)).unwrap();
        assert_eq!(found.map(|(value, rest)| (value.low, rest)), expected);
    }

    #[rstest]
    #[case("99999999999999999999999", Unit::Count)]
    #[case("99999999999999.99 TiB", Unit::Bytes)]
    #[case("0.0000000000000000000000001 GiB", Unit::Bytes)]
    #[case("9999999999999999999x", Unit::Hundredths)]
    fn a_number_that_is_too_large_is_an_error(#[case] text: &str, #[case] unit: Unit) {
        assert_eq!(value(text, Some(unit)).map(|_| ()), Err(TooLarge));
    }

    #[test]
    fn a_wording_is_found_behind_a_first_try_that_fails() {
        let wording = Wording {
            text: "size = {} ({} cells,*K (*): {}, V",
            facts: &[Some(Fact::KvBytes), None, None],
            fold: Fold::Sum,
        };
        let line = "size = none, size = 256.00 MiB ( 8192 cells, 8 layers, 1/1 seqs), K (f16): 128.00 MiB, V (f16)";
        let found = wording.find(line).unwrap().unwrap();
        assert_eq!((found.at, found.values.len()), (13, 3));
        assert_eq!(found.values[0].middle(), 256 << 20);
    }
}
