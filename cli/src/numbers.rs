//! Numbers of flags, and what is said of a word that is none.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// A whole number of a range.
pub(crate) fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text: &str| {
        let (least, most) = (range.start(), range.end());
        let number: u64 = text.parse().map_err(|_| format!("a whole number from {least} on was expected"))?;
        let found = range.contains(&number).then(|| T::try_from(number).ok()).flatten();
        found.ok_or_else(|| format!("{number} is not in {least}..={most}"))
    }
}

/// A number of any kind.
pub(crate) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "a number was expected".to_owned())
}

/// A number of 32 bits, or one of the words `inf` and `NaN`: digits that are beyond it become no such word.
pub(crate) fn single(text: &str) -> Result<f32, String> {
    let found: f32 = number(text)?;
    let is_beyond = found.is_infinite() && text.contains(|letter: char| letter.is_ascii_digit());
    if is_beyond { Err(format!("at most {:?} was expected", f32::MAX)) } else { Ok(found) }
}
