//! Values as the engines' parsers read them.

use serde_json::Value;

use super::python::{float, python_int};
use super::si::si_int;
use super::table::{Flag, Kind};

/// What a value must be, in words; none where it is that.
pub(crate) fn refuses(flag: &Flag, value: &str) -> Option<String> {
    if !flag.choices.is_empty() && !flag.choices.contains(&value) {
        return Some(format!("one of {}", flag.choices.join(", ")));
    }
    let fits = match flag.kind {
        Kind::Switch | Kind::Text => true,
        Kind::Int | Kind::CInt | Kind::HumanInt | Kind::HumanIntOrAuto | Kind::SiInt => {
            whole(flag.kind, value).is_some()
        }
        Kind::Float => float(value).is_some(),
        Kind::Json => serde_json::from_str::<Value>(value).is_ok() || value.parse::<u8>().is_ok(),
    };
    (!fits).then(|| expected(flag.kind).to_owned())
}

const fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Int => "a whole number below 2^63",
        Kind::CInt => "a whole number between -2^31 and 2^31 - 1",
        Kind::HumanInt => "a whole number below 2^63, or one such as 32k (32,000) or 32K (32,768)",
        Kind::HumanIntOrAuto => "a whole number below 2^63, one such as 32k (32,000) or 32K (32,768), or auto",
        Kind::SiInt => "a whole number, or one such as 32k (32,000) or 32Ki (32,768)",
        Kind::Float => "a number",
        Kind::Json => "JSON",
        Kind::Switch | Kind::Text => "a text",
    }
}

/// A whole number as the parser of its kind reads it; of a text by whoever reads that, as vLLM does.
pub(crate) fn whole(kind: Kind, value: &str) -> Option<i64> {
    match kind {
        Kind::Int => python_int(value),
        Kind::CInt => stoi(value),
        Kind::SiInt => si_int(value),
        Kind::HumanIntOrAuto if is_auto(value) => Some(-1),
        _ => human_int(value),
    }
}

/// Whether vLLM is to find the longest sequence that fits.
pub(crate) fn is_auto(value: &str) -> bool {
    value.trim() == "-1" || value.trim().eq_ignore_ascii_case("auto")
}

/// vLLM's `human_readable_int`: `1k` is 1,000, `1K` is 1,024, `25.6k` is 25,600; without a unit it is Python's `int`.
pub(crate) fn human_int(value: &str) -> Option<i64> {
    let value = value.trim();
    let Some((at, unit)) = value.char_indices().next_back().filter(|(_, unit)| "kmgtKMGT".contains(*unit)) else {
        return python_int(value);
    };
    let (number, power) = (&value[..at], "kmgt".find(unit.to_ascii_lowercase())? as u32 + 1);
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match number.split_once('.') {
        None if is_digits(number) && unit.is_ascii_uppercase() => {
            number.parse::<i64>().ok()?.checked_mul(1 << (10 * power))
        }
        parts if parts.map_or(is_digits(number), |(whole, part)| is_digits(whole) && is_digits(part)) => {
            let product = number.parse::<f64>().ok()? * 1000f64.powi(power as i32);
            (unit.is_ascii_lowercase() && product < 1e18).then_some(product as i64)
        }
        _ => None,
    }
}

/// JSON in which numbers outside texts have units, written out as vLLM does before it reads it (`_expand_json_human_readable_numbers`).
pub(crate) fn without_units(json: &str) -> String {
    let is_word = |char: char| char.is_alphanumeric() || char == '_';
    let (mut out, mut quoted, mut escaped) = (String::with_capacity(json.len()), false, false);
    let mut rest = json;
    while let Some(char) = rest.chars().next() {
        let begins = !quoted && char.is_ascii_digit() && !out.ends_with(|char| is_word(char) || char == '.');
        let length = rest.find(|char: char| !(char.is_ascii_digit() || char == '.')).unwrap_or(rest.len());
        let unit = rest[length..].chars().next().filter(|unit| begins && "kmgtKMGT".contains(*unit));
        let end = length + 1;
        if let Some(number) = unit.filter(|_| !rest[end..].starts_with(is_word)).and_then(|_| human_int(&rest[..end])) {
            out += &number.to_string();
            rest = &rest[end..];
            continue;
        }
        (quoted, escaped) = match char {
            _ if escaped => (quoted, false),
            '\\' => (quoted, quoted),
            '"' => (!quoted, false),
            _ => (quoted, false),
        };
        out.push(char);
        rest = &rest[char.len_utf8()..];
    }
    out
}

/// C++'s `std::stoi`: the number that a text begins with, in 32 bits; what stands behind it is passed over.
pub(crate) fn stoi(value: &str) -> Option<i64> {
    let value = value.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let digits = value.strip_prefix(['+', '-']).unwrap_or(value);
    let behind = digits.trim_start_matches(|char: char| char.is_ascii_digit());
    value[..value.len() - behind.len()].parse::<i32>().ok().map(i64::from)
}

/// C++'s `std::stof`: the same of a number with a point or an exponent.
pub(crate) fn stof(value: &str) -> Option<f32> {
    let value = value.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let number = value.strip_prefix(['+', '-']).unwrap_or(value);
    let lowered = number.get(..3).map(str::to_ascii_lowercase);
    if let Some("inf" | "nan") = lowered.as_deref() {
        return value[..value.len() - number.len() + 3].parse().ok();
    }
    let whole = digits(number);
    let part = number[whole..].strip_prefix('.').map_or(0, |part| 1 + digits(part));
    let exponent = number[whole + part..].strip_prefix(['e', 'E']).map_or(0, |exponent| {
        let sign = usize::from(exponent.starts_with(['+', '-']));
        let power = digits(&exponent[sign..]);
        if power > 0 { 1 + sign + power } else { 0 }
    });
    let end = value.len() - number.len() + whole + part + exponent;
    value[..end].parse().ok().filter(|number: &f32| number.is_finite())
}

/// Whether argparse takes a word that begins with `-` for a number rather than for a flag.
pub(crate) fn is_negative(word: &str) -> bool {
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    word.strip_prefix('-').is_some_and(|number| match number.split_once('.') {
        None => !number.is_empty() && is_digits(number),
        Some((whole, part)) => !part.is_empty() && is_digits(whole) && is_digits(part),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("32768", Some(32_768))]
    #[case("32k", Some(32_000))]
    #[case("32K", Some(32_768))]
    #[case("02k", Some(2_000))]
    #[case("25.6k", Some(25_600))]
    #[case("1_000", Some(1_000))]
    #[case("-5", Some(-5))]
    #[case("2G", Some(2 << 30))]
    #[case("1.5K", None)]
    #[case("1_0k", None)]
    #[case("1e3k", None)]
    #[case(".5k", None)]
    #[case("+5k", None)]
    #[case("-5k", None)]
    #[case("infk", None)]
    #[case("k", None)]
    #[case("", None)]
    #[case("99999999999T", None)]
    fn numbers_are_those_of_vllm(#[case] text: &str, #[case] expected: Option<i64>) {
        assert_eq!(human_int(text), expected);
    }

    #[rstest]
    #[case(r#"{"a":80g}"#, r#"{"a":80000000000}"#)]
    #[case(r#"{"a": [2K, 1.5m],"b":"80g","c\"d":1k}"#, r#"{"a": [2048, 1500000],"b":"80g","c\"d":1000}"#)]
    #[case(r#"{"a":80gb,"b":x8k,"c":1.5K}"#, r#"{"a":80gb,"b":x8k,"c":1.5K}"#)]
    fn numbers_in_json_are_those_of_vllm(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(without_units(text), expected);
    }

    #[rstest]
    #[case("02", Some(2))]
    #[case(" 1_000 ", Some(1_000))]
    #[case("+7", Some(7))]
    #[case("-0_5", Some(-5))]
    #[case("_1", None)]
    #[case("1__0", None)]
    #[case("1_", None)]
    #[case("-_1", None)]
    #[case("1.0", None)]
    #[case("0x10", None)]
    #[case("9223372036854775808", None)]
    fn numbers_are_those_of_python(#[case] text: &str, #[case] expected: Option<i64>) {
        assert_eq!(whole(Kind::Int, text), expected);
    }

    #[rstest]
    #[case("4096", Some(4096))]
    #[case("-5", Some(-5))]
    #[case(" +7", Some(7))]
    #[case("32k", Some(32))]
    #[case("1_000", Some(1))]
    #[case("4.5", Some(4))]
    #[case("2147483647", Some(2_147_483_647))]
    #[case("2147483648", None)]
    #[case("4294967295", None)]
    #[case("- 5", None)]
    #[case("k", None)]
    #[case("", None)]
    fn numbers_are_those_of_stoi(#[case] text: &str, #[case] expected: Option<i64>) {
        assert_eq!(whole(Kind::CInt, text), expected);
    }

    #[rstest]
    #[case("0.9_5", Some(0.95))]
    #[case(" .5 ", Some(0.5))]
    #[case("1e-1", Some(0.1))]
    #[case("inf", Some(f64::INFINITY))]
    #[case("0_.9", None)]
    #[case("90%", None)]
    #[case("", None)]
    fn shares_are_those_of_python(#[case] text: &str, #[case] expected: Option<f64>) {
        assert_eq!(float(text), expected);
    }

    #[rstest]
    #[case("-5", true)]
    #[case("-.5", true)]
    #[case("-0.5", true)]
    #[case("-5.", false)]
    #[case("-1e5", false)]
    #[case("-inf", false)]
    #[case("-", false)]
    #[case("5", false)]
    fn argparse_takes_few_words_for_negative_numbers(#[case] word: &str, #[case] expected: bool) {
        assert_eq!(is_negative(word), expected);
    }
}
