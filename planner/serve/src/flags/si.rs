//! SGLang's numbers with units, the same in 0.5.10, 0.5.12, 0.5.15 and 0.5.23 (`human_readable_int`).

use super::python::python_int;

/// Suffixes of SI, and those of IEC, as they are written alone.
const SI: [(&str, u32); 4] = [("k", 3), ("M", 6), ("G", 9), ("T", 12)];
const IEC: [(&str, u32); 4] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];

/// `8k` is 8,000, `8Ki` is 8,192, `1.5k` is 1,500; without a suffix it is Python's `int`.
pub(crate) fn si_int(value: &str) -> Option<i64> {
    let value = value.trim();
    let behind = |(suffix, power): &(&str, u32)| value.strip_suffix(*suffix).map(|number| (number.to_owned(), *power));
    if let Some((number, power)) = IEC.iter().find_map(behind) {
        return digits(&number)?.checked_mul(1 << power);
    }
    let Some((number, power)) = SI.iter().find_map(behind) else {
        return python_int(value);
    };
    let (whole, part) = number.split_once('.').unwrap_or((number.as_str(), "0"));
    digits(part)?;
    // What stands behind so many decimals is less than one.
    let part: String = part.chars().chain(std::iter::repeat('0')).take(power as usize).collect();
    digits(whole)?.checked_mul(10i64.pow(power))?.checked_add(digits(&part)?)
}

/// A number of ASCII digits alone.
fn digits(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Decimals may be more than a number holds, of which the first are taken later.
    is_number.then(|| text.parse().unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("8192", Some(8192))]
    #[case("8_000", Some(8000))]
    #[case("-1", Some(-1))]
    #[case("8k", Some(8000))]
    #[case("8M", Some(8_000_000))]
    #[case("1.5k", Some(1500))]
    #[case("25.6789k", Some(25_678))]
    #[case("0.00000000000000000000001T", Some(0))]
    #[case("8Ki", Some(8192))]
    #[case(" 2Gi ", Some(2 << 30))]
    #[case("1.5Ki", None)]
    #[case("8K", None)]
    #[case("8m", None)]
    #[case("8ki", None)]
    #[case(".5k", None)]
    #[case("1.k", None)]
    #[case("-5k", None)]
    #[case("_1", None)]
    #[case("1_", None)]
    #[case("k", None)]
    #[case("", None)]
    #[case("99999999999T", None)]
    fn numbers_are_those_of_sglang(#[case] text: &str, #[case] expected: Option<i64>) {
        assert_eq!(si_int(text), expected);
    }
}
