//! What the shell puts into words. What it could not know is marked.

use std::borrow::Cow;

use super::super::error::{ManifestError, Place};
use super::super::reading::Reading;
use super::super::unknown::{MARKS, Why};
use super::super::variables::{Variables, bounded};
use super::lex::Cursor;
use super::word::{Piece, Word};
use crate::secret;

/// Defaults within defaults.
const DEPTH: usize = 8;

/// The values that words are expanded with.
pub(super) struct Expansion<'a> {
    pub(super) variables: &'a Variables,
    pub(super) reading: &'a Reading<'a>,
    pub(super) at: &'a Place,
}

impl Expansion<'_> {
    /// The words that a word becomes.
    pub(super) fn words(&self, word: &Word) -> Result<Vec<String>, ManifestError> {
        // `"${NAME[@]}"` of no words is none.
        let is_all = |piece: &Piece| matches!(piece, Piece::All { .. });
        let begun = word.quoted && (word.pieces.is_empty() || !word.pieces.iter().all(is_all));
        let mut fields = Fields { done: Vec::new(), now: String::new(), begun };
        self.pieces(&word.pieces, true, DEPTH, &mut fields)?;
        fields.end();
        Ok(fields.done)
    }

    /// The value that a word is where it is assigned: nothing is split, and no files are looked for.
    pub(super) fn value(&self, word: &Word) -> Result<String, ManifestError> {
        let mut fields = Fields { done: Vec::new(), now: String::new(), begun: true };
        self.pieces(&word.pieces, false, DEPTH, &mut fields)?;
        Ok(fields.now)
    }

    fn seen(&self, name: &str) -> Option<Cow<'_, [String]>> {
        self.variables.seen(name, || format!("${name}"))
    }

    fn pieces(&self, pieces: &[Piece], splits: bool, depth: usize, fields: &mut Fields) -> Result<(), ManifestError> {
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.put(text, fields)?,
                Piece::Unknown(why, written) => self.put(&why.mark(written), fields)?,
                Piece::Pattern(sign) if splits => self.put(&Why::Pattern.mark(&sign.to_string()), fields)?,
                Piece::Pattern(sign) => self.put(&sign.to_string(), fields)?,
                Piece::Variable { name, default, of_empty, quoted, .. } => {
                    // A value that is empty is one to `${NAME-default}`.
                    let has_one = !of_empty && self.seen(name).is_some();
                    let value = self.variable(name, default.as_deref().filter(|_| !has_one), depth)?;
                    if splits && !quoted { self.split(&value, fields)? } else { self.put(&value, fields)? }
                }
                Piece::All { name, quoted } => match self.seen(name).as_deref() {
                    None if name == "@" => self.put(&Why::Positional.mark("$@"), fields)?,
                    None => self.put(&Why::NotSet.mark(&format!("${name}")), fields)?,
                    Some(words) if splits => {
                        for (index, word) in words.iter().enumerate() {
                            if index > 0 {
                                fields.end();
                            }
                            if *quoted {
                                self.put(word, fields)?;
                            } else {
                                self.split(word, fields)?;
                            }
                            fields.begun |= quoted;
                        }
                    }
                    Some(words) => self.put(&words.join(" "), fields)?,
                },
            }
        }
        Ok(())
    }

    fn variable(&self, name: &str, default: Option<&str>, depth: usize) -> Result<String, ManifestError> {
        // The first word of an array stands for it.
        let value = self.seen(name).map(|words| words.first().cloned().unwrap_or_default());
        match (value, default) {
            (Some(value), _) if !value.is_empty() && secret::is_secret(name) => Ok(secret::HIDDEN.to_owned()),
            (Some(value), None) => Ok(value),
            (Some(value), Some(_)) if !value.is_empty() => Ok(value),
            (_, Some(default)) if depth > 0 => {
                let mut word = Word::default();
                let mut cursor = Cursor::new(default, 0);
                if cursor.default_value(&mut word).is_err() {
                    return Ok(Why::Operator.mark(&format!("${{{name}…}}")));
                }
                let mut fields = Fields { done: Vec::new(), now: String::new(), begun: true };
                self.pieces(&word.pieces, false, depth - 1, &mut fields)?;
                Ok(fields.now)
            }
            (_, Some(_)) => Ok(Why::Operator.mark(&format!("${{{name}…}}"))),
            (None, None) if name.starts_with(|c: char| c.is_ascii_digit()) => {
                Ok(Why::Positional.mark(&format!("${name}")))
            }
            (None, None) => Ok(Why::NotSet.mark(&format!("${name}"))),
        }
    }

    fn put(&self, text: &str, fields: &mut Fields) -> Result<(), ManifestError> {
        // A word takes room even if it is empty.
        self.reading.charge(text.len() + 8, self.at)?;
        bounded(fields.now.len() + text.len(), self.at)?;
        fields.now += text;
        fields.begun |= !text.is_empty();
        Ok(())
    }

    /// A value without quotes: what `IFS` has ends words, blanks where nothing sets it, and its patterns are names of files.
    fn split(&self, value: &str, fields: &mut Fields) -> Result<(), ManifestError> {
        const BLANKS: &str = " \t\n";
        let ends = self.variables.get("IFS").and_then(<[String]>::first).map_or(BLANKS, String::as_str);
        if ends != BLANKS && (ends.contains(MARKS) || value.contains(MARKS)) {
            return self.put(if ends.contains(MARKS) { ends } else { value }, fields);
        }
        // Whether a blank has ended a word, which the sign behind it does not do again.
        let mut behind_blank = false;
        for part in value.split_inclusive(|character| ends.contains(character)) {
            let end = part.chars().next_back().filter(|character| ends.contains(*character));
            let part = &part[..part.len() - end.map_or(0, char::len_utf8)];
            let is_pattern = part.contains(['*', '?']) && !part.contains(MARKS);
            if is_pattern {
                self.put(&Why::Pattern.mark(part), fields)?;
            } else {
                self.put(part, fields)?;
            }
            let Some(end) = end else { break };
            let is_blank = BLANKS.contains(end);
            if !part.is_empty() || fields.begun {
                fields.end();
                behind_blank = is_blank;
            } else if !is_blank && !std::mem::take(&mut behind_blank) {
                fields.begun = true;
                fields.end();
            }
        }
        Ok(())
    }
}

struct Fields {
    done: Vec<String>,
    now: String,
    begun: bool,
}

impl Fields {
    fn end(&mut self) {
        if std::mem::take(&mut self.begun) {
            self.done.push(std::mem::take(&mut self.now));
        }
    }
}
