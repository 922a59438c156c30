//! JSON as Python writes it: with bare `Infinity` and `NaN`.

use std::borrow::Cow;

use cacheplan_files::{Limit, SourceError};
use serde_json::{Map, Value};

/// Parses a JSON object; bare `Infinity`, `-Infinity` and `NaN` become strings.
pub(super) fn parse(file: &str, text: &str) -> Result<Map<String, Value>, SourceError> {
    let parsed = Limit::CONFIG.parse_json(quote_non_numbers(text).as_bytes());
    parsed.map_err(|source| SourceError::Json { name: file.to_owned(), source })
}

fn quote_non_numbers(text: &str) -> Cow<'_, str> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !text.contains("Infinity") && !text.contains("NaN") {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    // Outside strings a word is quoted; strings are copied whole.
    while let Some(position) = rest.find(['"', '-', 'I', 'N']) {
        out.push_str(&rest[..position]);
        rest = &rest[position..];
        let taken = if rest.starts_with('"') {
            string_length(rest)
        } else if let Some(word) = WORDS.iter().find(|word| rest.starts_with(**word)) {
            out.push('"');
            out.push_str(word);
            out.push('"');
            rest = &rest[word.len()..];
            continue;
        } else {
            1
        };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Bytes of the string literal that `text` starts with, quotes included.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (position, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return position + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(r#"{"a": Infinity}"#, r#"{"a": "Infinity"}"#)]
    #[case(r#"{"a": [0.0, -Infinity, NaN]}"#, r#"{"a": [0.0, "-Infinity", "NaN"]}"#)]
    #[case(r#"{"Infinity": "NaN \" Infinity"}"#, r#"{"Infinity": "NaN \" Infinity"}"#)]
    #[case(r#"{"a": -3, "b": "Infinity"}"#, r#"{"a": -3, "b": "Infinity"}"#)]
    fn bare_words_become_strings_and_nothing_else_changes(#[case] text: &str, #[case] same_as: &str) {
        assert_eq!(parse("c", text).unwrap(), parse("c", same_as).unwrap());
    }
}
