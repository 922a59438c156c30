//! Cuts a script into words, with what the shell would put into them.

use super::super::unknown::Why;
use super::super::variables::name_length;
use super::word::{Piece, Word, assigned};

/// Why a script cannot be cut into words.
pub(super) type Broken = &'static str;

/// A text that is read from its beginning to its end.
pub(super) struct Cursor<'a> {
    pub(super) rest: &'a str,
    pub(super) line: usize,
    /// The words and what is in them, which take far more room than their text.
    pub(super) parts: usize,
}

/// The longest scripts have a tenth of it.
const PARTS: usize = 50_000;

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str, line: usize) -> Self {
        Self { rest: text, line, parts: 0 }
    }

    fn count(&mut self) -> Result<(), Broken> {
        self.parts += 1;
        if self.parts > PARTS { Err("a script of more than 50000 words and variables is not read") } else { Ok(()) }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    pub(super) fn bump(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.skip(character.len_utf8());
        Some(character)
    }

    /// Goes on by so many bytes.
    pub(super) fn skip(&mut self, bytes: usize) -> &'a str {
        let (skipped, rest) = self.rest.split_at(bytes);
        self.line += skipped.bytes().filter(|byte| *byte == b'\n').count();
        self.rest = rest;
        skipped
    }

    pub(super) fn takes(&mut self, text: &str) -> bool {
        let takes = self.rest.starts_with(text);
        if takes {
            self.skip(text.len());
        }
        takes
    }

    /// Goes behind the next `end`, and gives what stands in front of it.
    fn until(&mut self, end: char, broken: Broken) -> Result<&'a str, Broken> {
        let found = self.rest.find(end).ok_or(broken)?;
        let text = self.skip(found);
        self.bump();
        Ok(text)
    }

    /// A word that begins here.
    pub(super) fn word(&mut self) -> Result<Word, Broken> {
        let mut word = Word::default();
        self.count()?;
        while let Some(character) = self.peek() {
            match character {
                '<' => match self.placeholder() {
                    Some(text) => self.skip(text.len()).chars().for_each(|character| word.push(character)),
                    None => break,
                },
                '(' if word.bare().is_some_and(is_assignment) => {
                    self.bump();
                    word.array = Some(self.array()?);
                    break;
                }
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '>' | '(' | ')' => break,
                '\\' => {
                    self.bump();
                    // A line goes on behind it, with either way to end one.
                    if !(self.takes("\n") || self.takes("\r\n")) {
                        word.quoted = true;
                        word.push(self.bump().unwrap_or('\\'));
                    }
                }
                '\'' => {
                    self.bump();
                    word.quoted = true;
                    let text = self.until('\'', "a single quote has no end")?;
                    text.chars().for_each(|character| word.push(character));
                }
                '"' => {
                    self.bump();
                    word.quoted = true;
                    self.quoted(Some('"'), &mut word)?;
                }
                '$' => self.dollar(false, &mut word)?,
                '`' => self.backticks(&mut word)?,
                '*' | '?' | '[' => {
                    self.bump();
                    self.count()?;
                    word.pieces.push(Piece::Pattern(character));
                }
                '{' if self.is_brace_expansion() => {
                    self.count()?;
                    let end = self.rest.find([' ', '\t', '\n']).unwrap_or(self.rest.len());
                    let text = self.skip(end).to_owned();
                    word.pieces.push(Piece::Unknown(Why::Braces, text));
                }
                _ => {
                    self.bump();
                    word.push(character);
                }
            }
        }
        Ok(word)
    }

    /// `<drive>` as people write it for what they leave out. A shell would read from a file of that name and write into what is
    /// behind it, which nobody means.
    pub(super) fn placeholder(&self) -> Option<&'a str> {
        let inside = self.rest.strip_prefix('<')?;
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        let length = inside.bytes().take_while(is_plain).count();
        let found = inside.starts_with(|c: char| c.is_ascii_alphabetic()) && inside[length..].starts_with('>');
        found.then(|| &self.rest[..length + 2])
    }

    /// `{a,b}` without blanks; of braces in braces the inner ones are looked at too.
    fn is_brace_expansion(&self) -> bool {
        let end = self.rest[1..].find(|c: char| c.is_whitespace() || c == '{' || c == '}');
        let inside = &self.rest[1..end.map_or(self.rest.len(), |end| end + 1)];
        inside.contains(',') || inside.contains("..")
    }

    /// The words of an array up to its parenthesis.
    fn array(&mut self) -> Result<Vec<Word>, Broken> {
        let mut words = Vec::new();
        loop {
            match self.peek() {
                None => return Err("an array has no end"),
                Some(')') => {
                    self.bump();
                    return Ok(words);
                }
                Some('#') => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.skip(end);
                }
                Some('\\') if self.takes("\\\n") || self.takes("\\\r\n") => {}
                Some(' ' | '\t' | '\r' | '\n') => {
                    self.bump();
                }
                Some(';' | '&' | '|' | '<' | '>' | '(') => return Err("an array has an operator in it"),
                Some(_) => words.push(self.word()?),
            }
        }
    }

    /// What stands in double quotes, or in a document whose end has no quotes.
    pub(super) fn quoted(&mut self, end: Option<char>, word: &mut Word) -> Result<(), Broken> {
        loop {
            match self.peek() {
                None if end.is_none() => return Ok(()),
                None => return Err("a double quote has no end"),
                found if found == end => {
                    self.bump();
                    return Ok(());
                }
                Some('\\') => {
                    self.bump();
                    match self.peek() {
                        Some('\n') => {
                            self.bump();
                        }
                        Some(character @ ('$' | '`' | '"' | '\\')) => {
                            self.bump();
                            word.push(character);
                        }
                        _ => word.push('\\'),
                    }
                }
                Some('$') => self.dollar(true, word)?,
                Some('`') => self.backticks(word)?,
                Some(character) => {
                    self.bump();
                    word.push(character);
                }
            }
        }
    }

    fn backticks(&mut self, word: &mut Word) -> Result<(), Broken> {
        self.bump();
        self.count()?;
        let text = self.until('`', "a backtick has no end")?;
        word.pieces.push(Piece::Unknown(Why::Command, format!("`{text}`")));
        Ok(())
    }

    /// The text of `((...))`, where one begins here.
    pub(super) fn arithmetic(&mut self) -> Option<&'a str> {
        if !self.rest.starts_with("((") {
            return None;
        }
        let end = balanced(self.rest, '(', ')').filter(|end| self.rest[..*end].ends_with("))"))?;
        let text = self.skip(end);
        Some(&text[2..text.len() - 2])
    }

    /// What begins with a dollar sign.
    fn dollar(&mut self, quoted: bool, word: &mut Word) -> Result<(), Broken> {
        self.bump();
        self.count()?;
        let piece = match self.peek() {
            Some('(') => {
                let text = self.skip(balanced(self.rest, '(', ')').ok_or("a `$(` has no end")?);
                let why = if text.starts_with("((") { Why::Arithmetic } else { Why::Command };
                Piece::Unknown(why, format!("${text}"))
            }
            Some('{') => {
                let text = self.skip(balanced(self.rest, '{', '}').ok_or("a `${` has no end")?);
                in_braces(&text[1..text.len() - 1], quoted)
            }
            Some('\'') if !quoted => {
                self.bump();
                self.until('\'', "a single quote has no end")?;
                Piece::Unknown(Why::Operator, "$'…'".to_owned())
            }
            // A text of which there may be another in the user's language.
            Some('"') if !quoted => return Ok(()),
            Some('*') if quoted => {
                self.bump();
                Piece::Unknown(Why::Operator, "$*".to_owned())
            }
            Some('@' | '*') => {
                self.bump();
                Piece::All { name: "@".to_owned(), quoted }
            }
            Some(character @ ('0'..='9' | '#' | '?' | '$' | '!')) => {
                self.bump();
                Piece::Variable { name: character.into(), default: None, of_empty: false, assigns: false, quoted }
            }
            Some(character) if character == '_' || character.is_ascii_alphabetic() => {
                let length = name_length(self.rest);
                Piece::Variable {
                    name: self.skip(length).to_owned(),
                    default: None,
                    of_empty: false,
                    assigns: false,
                    quoted,
                }
            }
            _ => Piece::Text("$".to_owned()),
        };
        word.pieces.push(piece);
        Ok(())
    }
}

/// What `${...}` says.
fn in_braces(text: &str, quoted: bool) -> Piece {
    let length = match name_length(text) {
        0 => text.chars().next().filter(|c| c.is_ascii_digit() || "@*#?".contains(*c)).map_or(0, char::len_utf8),
        length => length,
    };
    let (name, behind) = text.split_at(length);
    let default = [":-", "-", ":=", "="].iter().find_map(|operator| behind.strip_prefix(operator));
    match (name, behind) {
        ("*", "") if quoted => Piece::Unknown(Why::Operator, "${*}".to_owned()),
        ("@" | "*", "") => Piece::All { name: "@".to_owned(), quoted },
        ("", _) => Piece::Unknown(Why::Operator, "${…}".to_owned()),
        (_, "") => Piece::Variable { name: name.to_owned(), default: None, of_empty: false, assigns: false, quoted },
        // One word of all.
        (_, "[*]") if quoted => Piece::Unknown(Why::Operator, format!("${{{name}[*]}}")),
        (_, "[@]" | "[*]") => Piece::All { name: name.to_owned(), quoted },
        _ => match default {
            Some(default) => {
                let (of_empty, assigns) = (behind.starts_with(':'), behind.trim_start_matches(':').starts_with('='));
                Piece::Variable { name: name.to_owned(), default: Some(default.to_owned()), of_empty, assigns, quoted }
            }
            // What stands behind the name may be a secret.
            None => Piece::Unknown(Why::Operator, format!("${{{name}…}}")),
        },
    }
}

/// Tells whether a word so far is `NAME=` or `NAME+=`.
fn is_assignment(text: &str) -> bool {
    assigned(text).is_some_and(|(_, _, value)| value.is_empty())
}

/// The bytes from an opening sign up to behind the one that closes it. Signs in quotes count for nothing.
fn balanced(text: &str, open: char, close: char) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    for (index, character) in text.char_indices() {
        match (quote, character) {
            _ if escaped => escaped = false,
            (None | Some('"'), '\\') => escaped = true,
            (Some(end), _) if character == end => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, _) if character == open => depth += 1,
            (None, _) if character == close => {
                depth -= 1;
                if depth == 0 {
                    return Some(index + character.len_utf8());
                }
            }
            _ => {}
        }
    }
    None
}

impl Cursor<'_> {
    /// The default of `${NAME:-default}`: one word, whose blanks end nothing.
    pub(super) fn default_value(&mut self, word: &mut Word) -> Result<(), Broken> {
        while let Some(character) = self.peek() {
            match character {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' | '*' | '?' | '[' | '{' => {
                    self.bump();
                    word.push(character);
                }
                _ => word.pieces.extend(self.word()?.pieces),
            }
        }
        Ok(())
    }
}
