//! Values as the engines' parsers read them.

use serde_json::Value;

use super::si::si_int;
use super::table::{Flag, Kind};

/// What a value must be, in words; none where it is that.
pub(crate) fn refuses(flag: &Flag, value: &str) -> Option<String> {
    if !flag.choices.is_empty() && !flag.choices.contains(&value) {
        return Some(format!("one of {}", flag.choices.join(", ")));
    }
    let fits = match flag.kind {
        Kind::Switch | Kind::Text => true,
        Kind::Int => value.trim().parse::<i64>().is_ok(),
        Kind::HumanInt => human_int(value).is_some(),
        Kind::HumanIntOrAuto => is_auto(value) || human_int(value).is_some(),
        Kind::SiInt => si_int(value).is_some(),
        Kind::Float => value.trim().parse::<f64>().is_ok_and(f64::is_finite),
        Kind::Json => serde_json::from_str::<Value>(value).is_ok() || value.parse::<u8>().is_ok(),
    };
    (!fits).then(|| expected(flag.kind).to_owned())
}

const fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Int => "a whole number",
        Kind::HumanInt => "a whole number, or one such as 32k (32,000) or 32K (32,768)",
        Kind::HumanIntOrAuto => "a whole number, one such as 32k (32,000) or 32K (32,768), or auto",
        Kind::SiInt => "a whole number, or one such as 32k (32,000) or 32Ki (32,768)",
        Kind::Float => "a number",
        Kind::Json => "JSON",
        Kind::Switch | Kind::Text => "a text",
    }
}

/// Whether vLLM is to find the longest sequence that fits.
pub(crate) fn is_auto(value: &str) -> bool {
    value.trim() == "-1" || value.trim().eq_ignore_ascii_case("auto")
}

/// vLLM's `human_readable_int`: `1k` is 1,000, `1K` is 1,024, `25.6k` is 25,600.
pub(crate) fn human_int(value: &str) -> Option<u64> {
    let value = value.trim();
    let (number, power) = match value.char_indices().next_back()? {
        (at, unit @ ('k' | 'm' | 'g' | 't' | 'K' | 'M' | 'G' | 'T')) => {
            let power = "kmgt".find(unit.to_ascii_lowercase())? as u32 + 1;
            (&value[..at], Some((power, unit.is_ascii_lowercase())))
        }
        _ => (value, None),
    };
    match power {
        None => number.parse().ok(),
        Some((power, false)) => number.parse::<u64>().ok()?.checked_mul(1 << (10 * power)),
        Some((power, true)) => {
            let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
            let product = number * 1000f64.powi(power as i32);
            (product < 1e18).then_some(product as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("32768", Some(32_768))]
    #[case("32k", Some(32_000))]
    #[case("32K", Some(32_768))]
    #[case("25.6k", Some(25_600))]
    #[case("1.5K", None)]
    #[case("2G", Some(2 << 30))]
    #[case("-5", None)]
    #[case("k", None)]
    #[case("", None)]
    #[case("99999999999T", None)]
    fn numbers_are_those_of_vllm(#[case] text: &str, #[case] expected: Option<u64>) {
        assert_eq!(human_int(text), expected);
    }
}
