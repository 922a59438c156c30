//! TOML of strangers, and where in it something is wrong.

use std::fmt::{self, Display, Formatter};
use std::ops::Range;

use serde::de::DeserializeOwned;

use crate::Source;

/// Text that is not read as TOML, on one line.
#[derive(Debug)]
pub struct TomlError {
    /// What is wrong.
    pub message: String,
    /// The bytes that are, where that is known.
    pub span: Option<Range<usize>>,
    /// Their line, from 1.
    pub line: Option<usize>,
}

impl std::error::Error for TomlError {}

impl Display for TomlError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.line.map_or(Ok(()), |line| write!(f, "line {line}: "))?;
        f.write_str(&self.message)
    }
}

/// The most dots of a line. A key of as many parts makes tables that deep, which are dropped one inside the other, and
/// the stack of a thread holds no more than some ten thousand.
const MOST_DOTS: usize = 100;

impl Source {
    /// Reads TOML, of no more than [`Limit::TOML`](crate::Limit::TOML).
    ///
    /// # Errors
    /// No TOML, or TOML of something else, with its line.
    pub fn parse_toml<T: DeserializeOwned>(text: &str) -> Result<T, TomlError> {
        parse(text)
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, TomlError> {
    let too_deep = text.lines().position(|line| line.matches('.').count() > MOST_DOTS);
    if let Some(before) = too_deep {
        let message = format!("there are more than {MOST_DOTS} dots; no key has so many parts");
        return Err(TomlError { message, span: None, line: Some(before + 1) });
    }
    toml::from_str(text).map_err(|error| {
        let (message, span) = match error.span() {
            // Of a key with too many parts the parser does not say where it is.
            None if error.message() == "recursion limit" => ("a key has too many parts".to_owned(), most_dots(text)),
            span => (error.message().to_owned(), span),
        };
        let line = span.as_ref().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        TomlError { message, span, line }
    })
}

/// The line with the most dots.
fn most_dots(text: &str) -> Option<Range<usize>> {
    let mut start = 0;
    let lines = text.split_inclusive('\n').map(|line| {
        start += line.len();
        (line.matches('.').count(), start - line.len())
    });
    lines.max().map(|(_, start)| start..start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a = 1\nb =\n", "line 2: ")]
    #[case("a = 1\na = 2\n", "line 2: duplicate key")]
    #[case(&format!("\n\na = {}", "[".repeat(1000)), "line 3: cannot recurse further")]
    #[case(&format!("b = 1.5\n\na{} = 1\nc = 1\n", ".a".repeat(90)), "line 3: a key has too many parts")]
    #[case(&format!("b = 1.5\n\n[a{}]\n", ".a".repeat(60_000)), "line 3: there are more than 100 dots")]
    fn what_is_wrong_has_a_line(#[case] text: &str, #[case] expected: &str) {
        let error = parse::<toml::Table>(text).unwrap_err().to_string();
        assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
    }
}
