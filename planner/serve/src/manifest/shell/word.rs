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
        /// Whether the default stands for an empty value too.
        of_empty: bool,
        /// Whether the default becomes its value.
        assigns: bool,
        quoted: bool,
    },
    /// `"$@"`, `"${NAME[@]}"`: each of its words as a word, which is split again without quotes.
    All {
        name: String,
        quoted: bool,
    },
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
    /// A text as it stands.
    pub(super) fn of(text: &str) -> Self {
        Self { pieces: vec![Piece::Text(text.to_owned())], ..Self::default() }
    }

    /// Whether a variable's value is in it.
    pub(super) fn has_variable(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Variable { .. } | Piece::All { .. }))
    }

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

/// The variables that a text of arithmetic sets: those behind which an assignment stands, or beside which `++` or `--` does.
pub(in super::super) fn computed(text: &str) -> Vec<&str> {
    const SETS: [&str; 12] = ["<<=", ">>=", "+=", "-=", "*=", "/=", "%=", "&=", "^=", "|=", "++", "--"];
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let length = name_length(&text[at..]);
        if length == 0 {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        let (before, name, behind) = (&text[..at], &text[at..at + length], text[at + length..].trim_start());
        let is_set = SETS.iter().any(|sign| behind.starts_with(sign))
            || (behind.starts_with('=') && !behind.starts_with("=="))
            || ["++", "--"].iter().any(|sign| before.trim_end().ends_with(sign));
        found.extend(is_set.then_some(name));
        at += length;
    }
    found
}
