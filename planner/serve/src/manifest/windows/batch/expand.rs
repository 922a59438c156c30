//! What `cmd.exe` puts for variables.

use super::super::super::error::{ManifestError, Place};
use super::super::super::reading::Reading;
use super::super::super::unknown::{MARKS, Why};
use super::super::super::variables::{Variables, bounded};
use crate::secret;

/// Stands for a secret until words are cut: what is written for one has signs in it.
pub(super) const SECRET: char = '\u{4}';

/// A line with what stands between percent signs; one percent sign alone is nothing.
pub(super) fn percents(
    line: &str,
    variables: &Variables,
    reading: &Reading<'_>,
    at: &Place,
) -> Result<String, ManifestError> {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once('%') {
        out += before;
        rest = behind;
        let first = behind.chars().next();
        if first == Some('%') {
            out.push('%');
            rest = &behind[1..];
        } else if let Some(length) = argument(behind) {
            let written = &behind[..length];
            let is_folder = written.ends_with('0') && written.starts_with('~');
            let why = if is_folder { Why::Running } else { Why::Positional };
            out += &why.mark(&format!("%{written}"));
            // A folder ends with what stands in front of names.
            let ends = is_folder && written[1..].bytes().all(|letter| b"dDpP0".contains(&letter));
            out.extend(ends.then_some('\\'));
            rest = &behind[length..];
        } else if let Some((inside, after)) = behind.split_once('%') {
            out += &value(inside, '%', variables, reading, at)?;
            rest = after;
        }
        bounded(out.len(), at)?;
    }
    Ok(out + rest)
}

/// A text with what stands between exclamation marks.
pub(super) fn delayed(
    text: &str,
    variables: &Variables,
    reading: &Reading<'_>,
    at: &Place,
) -> Result<String, ManifestError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('!') {
        out += before;
        rest = behind;
        if let Some((inside, after)) = behind.split_once('!') {
            out += &value(inside, '!', variables, reading, at)?;
            rest = after;
        }
        bounded(out.len(), at)?;
    }
    Ok(out + rest)
}

/// The bytes of `1`, `*`, `~dp0`, with which the arguments of a script are named.
fn argument(text: &str) -> Option<usize> {
    let letters = text
        .strip_prefix('~')
        .map_or(0, |rest| 1 + rest.bytes().take_while(|letter| b"fdpnxsatzFDPNXSATZ".contains(letter)).count());
    let digit = text[letters..].chars().next()?;
    (digit.is_ascii_digit() || (digit == '*' && letters == 0)).then_some(letters + 1)
}

/// The value of `NAME`, `NAME:~from,length`, `NAME:old=new`.
fn value(
    inside: &str,
    sign: char,
    variables: &Variables,
    reading: &Reading<'_>,
    at: &Place,
) -> Result<String, ManifestError> {
    let (name, change) = inside.split_once(':').map_or((inside, None), |(name, change)| (name, Some(change)));
    let mark = |why: Why| why.mark(&format!("{sign}{name}{sign}"));
    let upper = name.to_uppercase();
    let seen = variables.seen(&upper, || format!("{sign}{name}{sign}"));
    let Some(value) = seen.as_deref().and_then(<[String]>::first) else { return Ok(mark(Why::NotInScript)) };
    reading.charge(value.len() + 8, at)?;
    Ok(match change {
        _ if secret::is_secret(name) => SECRET.into(),
        None => value.clone(),
        Some(_) if value.contains(MARKS) => value.clone(),
        Some(change) => changed(value, change).unwrap_or_else(|| mark(Why::Operator)),
    })
}

/// What a value is behind `~from,length` or `old=new`; none where it is neither.
fn changed(value: &str, change: &str) -> Option<String> {
    if let Some(slice) = change.strip_prefix('~') {
        let (from, length) = slice.split_once(',').map_or((slice, None), |(from, length)| (from, Some(length)));
        let all = i64::try_from(value.chars().count()).ok()?;
        let number = |text: &str| if text.trim().is_empty() { Some(0) } else { text.trim().parse::<i64>().ok() };
        // Counted from the end where it is negative.
        let place =
            |number: i64, from: i64| if number < 0 { all.saturating_add(number) } else { from.saturating_add(number) };
        let begin = place(number(from)?, 0).clamp(0, all);
        let end = length.map_or(Some(all), |length| Some(place(number(length)?, begin)))?.clamp(begin, all);
        let of = |number: i64| usize::try_from(number).ok();
        return Some(value.chars().skip(of(begin)?).take(of(end - begin)?).collect());
    }
    let (old, new) = change.split_once('=')?;
    if old.is_empty() {
        return None;
    }
    // Of letters case does not matter, whose length is the same then only among these.
    let (low, old_low) = (value.to_ascii_lowercase(), old.to_ascii_lowercase());
    if let Some(up_to) = old_low.strip_prefix('*') {
        let found = low.find(up_to).filter(|_| !up_to.is_empty());
        return Some(found.map_or_else(|| value.to_owned(), |at| format!("{new}{}", &value[at + up_to.len()..])));
    }
    let (mut out, mut from) = (String::new(), 0);
    for (at, found) in low.match_indices(&old_low) {
        out += &value[from..at];
        out += new;
        from = at + found.len();
    }
    Some(out + &value[from..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("~0,4", Some("2048"))]
    #[case("~2", Some("48tok"))]
    #[case("~-3", Some("tok"))]
    #[case("~0,-3", Some("2048"))]
    #[case("~1,99", Some("048tok"))]
    #[case("~9,1", Some(""))]
    #[case("TOK=x", Some("2048x"))]
    #[case("tok=", Some("2048"))]
    #[case("*48=", Some("tok"))]
    #[case("z=y", Some("2048tok"))]
    #[case("~a", None)]
    #[case("x", None)]
    fn a_value_is_changed_as_cmd_changes_it(#[case] change: &str, #[case] expected: Option<&str>) {
        assert_eq!(changed("2048tok", change).as_deref(), expected);
    }
}
