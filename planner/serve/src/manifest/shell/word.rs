//! A word of a script.

use super::super::unknown::Why;
use super::super::variables::name_length;

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    /// `$NAME`, `${NAME:-default}`; without quotes its value is split into words.
    Variable {
        name: String,
        default: Option<String>,
        /// Whether the default becomes its value.
        assigns: bool,
        quoted: bool,
    },
    /// `"$@"`, `"${NAME[@]}"`: each of its words as a word.
    All(String),
    /// What is not followed.
    Unknown(Why, String),
    /// A sign that stands for names of files, except where a value is assigned.
    Pattern(char),
}

/// A word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) pieces: Vec<Piece>,
    /// An empty word is one only in quotes.
    pub(super) quoted: bool,
    /// The words of `NAME=(a b)`.
    pub(super) array: Option<Vec<Word>>,
}

impl Word {
    pub(super) fn push(&mut self, character: char) {
        match self.pieces.last_mut() {
            Some(Piece::Text(text)) => text.push(character),
            _ => self.pieces.push(Piece::Text(character.into())),
        }
    }

    /// The text of a word in which nothing is quoted or expanded.
    pub(super) fn bare(&self) -> Option<&str> {
        match &*self.pieces {
            [Piece::Text(text)] if !self.quoted => Some(text),
            _ => None,
        }
    }
}

/// The name of `NAME=value` or `NAME+=value`, whether it adds, and the value.
pub(super) fn assigned(text: &str) -> Option<(&str, bool, &str)> {
    let (name, behind) = text.split_at(name_length(text));
    let (adds, value) = match behind.strip_prefix("+=") {
        Some(value) => (true, value),
        None => (false, behind.strip_prefix('=')?),
    };
    (!name.is_empty()).then_some((name, adds, value))
}
