//! TOML of strangers, and where in it something is wrong.

use std::fmt::{self, Display, Formatter};
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml_parser::lexer::TokenKind;

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

/// The most tables and arrays inside each other, counted over brackets and the parts of keys. They are dropped one
/// inside the other, on a thread's stack.
const MOST_NESTED: usize = 80;

impl Source {
    /// Reads TOML, of no more than [`Limit::TOML`](crate::Limit::TOML).
    ///
    /// # Errors
    /// No TOML, or TOML of something else, with its line.
    pub fn parse_toml<T: DeserializeOwned>(text: &str) -> Result<T, TomlError> {
        parse(text)
    }

    /// The bytes of a word in the value of a key of TOML, or of the key where its value has no such word, and their line from 1;
    /// `path` has dots between names.
    #[must_use]
    pub fn find_toml(text: &str, path: &str, word: &str) -> Option<(Range<usize>, usize)> {
        check_nesting(text).ok()?;
        let table = DeTable::parse(text).ok()?;
        let (mut level, mut found) = (table.get_ref(), None);
        for name in path.split('.') {
            let (key, value) = level.iter().find(|(key, _)| key.get_ref().as_ref() == name)?;
            found = Some(word_in(text, value, word).unwrap_or_else(|| key.span()));
            match value.get_ref() {
                DeValue::Table(inner) => level = inner,
                // Nothing is told apart within a list.
                _ => break,
            }
        }
        found.map(|span| (span.clone(), line(text, span.start)))
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, TomlError> {
    check_nesting(text).and_then(|()| {
        toml::from_str(text).map_err(|error| {
            let span = error.span();
            let line = span.as_ref().map(|span| line(text, span.start));
            TomlError { message: error.message().to_owned(), span, line }
        })
    })
}

/// Where a value has a whole word first.
fn word_in(text: &str, value: &Spanned<DeValue<'_>>, word: &str) -> Option<Range<usize>> {
    match value.get_ref() {
        DeValue::String(_) if !word.is_empty() => {
            let (from, own) = (value.span().start, text.get(value.span())?);
            let is_inside = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.');
            let (first, last) = (word.starts_with(is_inside), word.ends_with(is_inside));
            let is_whole = |&(at, _): &(usize, &str)| {
                let goes_on = last && own[at + word.len()..].starts_with(is_inside);
                let began_before = first && own[..at].ends_with(is_inside);
                !goes_on && !began_before
            };
            let (at, _) = own.match_indices(word).find(is_whole)?;
            Some(from + at..from + at + word.len())
        }
        DeValue::Array(list) => list.iter().find_map(|value| word_in(text, value, word)),
        DeValue::Table(table) => table.iter().find_map(|(_, value)| word_in(text, value, word)),
        _ => None,
    }
}

/// Refuses what is nested too deep, and brackets that do not match: where they do not, the parser guesses how to go on,
/// and its own limit loses count.
fn check_nesting(text: &str) -> Result<(), TomlError> {
    // Of each bracket that is open, and of none: what closes it, and the dots of the key that is being read in it.
    let mut open = vec![(None, 0)];
    for token in toml_parser::Source::new(text).lex() {
        let span = token.span();
        let wrong = |message: String| {
            Err(TomlError { message, span: Some(span.start()..span.end()), line: Some(line(text, span.start())) })
        };
        let (closes, dots) = open.last_mut().expect("what is outside all brackets stays");
        match token.kind() {
            TokenKind::Dot => *dots += 1,
            TokenKind::Comma | TokenKind::Newline => *dots = 0,
            TokenKind::LeftSquareBracket => open.push((Some(TokenKind::RightSquareBracket), 0)),
            TokenKind::LeftCurlyBracket => open.push((Some(TokenKind::RightCurlyBracket), 0)),
            kind @ (TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket) => {
                if *closes != Some(kind) {
                    return wrong(format!("{} closes nothing", kind.description()));
                }
                open.pop();
            }
            _ => {}
        }
        if open.len() - 1 + open.iter().map(|(_, dots)| dots).sum::<usize>() > MOST_NESTED {
            return wrong(format!("more than {MOST_NESTED} tables or arrays inside each other"));
        }
    }
    Ok(())
}

/// The line, from 1, of a byte.
fn line(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a = 1\nb =\n", "line 2: ")]
    #[case("a = 1\na = 2\n", "line 2: duplicate key")]
    #[case(&format!("\n\na = {}", "[".repeat(1000)), "line 3: more than 80 tables or arrays inside each other")]
    #[case(&format!("b = 1.5\n\na{} = 1\nc = 1\n", ".a".repeat(90)), "line 3: more than 80 tables")]
    #[case(&format!("b = 1.5\n\n[a{}]\n", ".a".repeat(60_000)), "line 3: more than 80 tables")]
    #[case(&"[a]\nb = { c = 1\n".repeat(2_000), "line 161: more than 80 tables")]
    #[case(&format!("a = {}", "{ [], b = ".repeat(2_000)), "line 1: more than 80 tables")]
    #[case(&"a = { b = 1 ]\n".repeat(2_000), "line 1: `]` closes nothing")]
    #[case("a = 1 }\n", "line 1: `}` closes nothing")]
    #[case("a = [1,\n2\n", "line 2: unclosed array")]
    fn what_is_wrong_has_a_line(#[case] text: &str, #[case] expected: &str) {
        let error = parse::<toml::Table>(text).unwrap_err().to_string();
        assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
    }

    #[rstest]
    #[case::a_key("a.b", "", "b", 2)]
    #[case::a_word_of_its_value("a.b", "rows", "rows", 2)]
    #[case::not_a_part_of_another("a.b", "row", "b", 2)]
    #[case::of_a_list("a.c", "two", "two", 4)]
    #[case::of_a_list_of_tables("d", "far", "far", 7)]
    #[case::a_whole_expression("a.b", "2 * rows", "2 * rows", 2)]
    fn a_key_or_a_word_of_its_value_has_a_place(
        #[case] path: &str,
        #[case] word: &str,
        #[case] found: &str,
        #[case] line: usize,
    ) {
        let text = "[a]\nb = \"2 * rows\"\nc = [\"one\",\n\"two\"]\n[[d]]\ne = 1\nf = \"far.away far\"\n";
        let (span, at) = Source::find_toml(text, path, word).unwrap();
        assert_eq!((&text[span], at), (found, line));
        assert_eq!(Source::find_toml(text, "a.x", word), None);
    }

    #[rstest]
    #[case::dots_in_values(&format!("a = \"{0}\" # {0}\nb = [{1}]\n", "....{{[[".repeat(100), "1.5, ".repeat(1000)))]
    #[case::many_tables(&"[[a]]\nb.c = { d = [1, 2], e.f = 1 }\n".repeat(1000))]
    #[case::nested(&format!("a = {}{}\n", "[".repeat(75), "]".repeat(75)))]
    fn what_is_long_and_flat_is_read(#[case] text: &str) {
        parse::<toml::Table>(text).unwrap();
    }
}
