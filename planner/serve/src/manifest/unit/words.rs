//! Words as systemd cuts them.

/// What a backslash says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Escapes {
    /// `\n`, `\x20`, as in C; what is no such escape stays as it is.
    OfC,
    /// The character behind it, and a quote needs no end.
    Plain,
}

/// The words of a text, without their quotes.
pub(super) struct Words<'a> {
    pub(super) rest: &'a str,
    escapes: Escapes,
}

const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

impl<'a> Words<'a> {
    pub(super) const fn of(text: &'a str, escapes: Escapes) -> Self {
        Self { rest: text, escapes }
    }

    /// Goes behind a word that stands here without quotes.
    pub(super) fn takes(&mut self, word: &str) -> bool {
        let behind = self.rest.strip_prefix(word).filter(|behind| behind.is_empty() || behind.starts_with(BLANKS));
        behind.into_iter().for_each(|behind| self.rest = behind.trim_start_matches(BLANKS));
        behind.is_some()
    }
}

impl Iterator for Words<'_> {
    /// A word, unless its quote has no end.
    type Item = Result<String, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        let text = self.rest.trim_start_matches(BLANKS);
        self.rest = "";
        if text.is_empty() {
            return None;
        }
        let (mut word, mut quote) = (String::new(), None);
        let mut at = 0;
        while let Some(character) = text[at..].chars().next() {
            at += character.len_utf8();
            match character {
                '\\' => {
                    let (escaped, length) = self.escapes.escaped(&text[at..]);
                    word += &escaped;
                    at += length;
                }
                '\'' | '"' if quote.is_none() => quote = Some(character),
                _ if quote == Some(character) => quote = None,
                _ if quote.is_none() && BLANKS.contains(&character) => {
                    self.rest = text[at..].trim_start_matches(BLANKS);
                    return Some(Ok(word));
                }
                _ => word.push(character),
            }
        }
        Some(if quote.is_some() && self.escapes == Escapes::OfC { Err(()) } else { Ok(word) })
    }
}

impl Escapes {
    /// What a backslash in front of a text stands for, and the bytes behind it that it takes.
    fn escaped(self, text: &str) -> (String, usize) {
        let Some(first) = text.chars().next() else {
            return (if self == Self::OfC { "\\" } else { "" }.to_owned(), 0);
        };
        if self == Self::Plain {
            return (first.into(), first.len_utf8());
        }
        let simple = |character: char| (String::from(character), 1);
        let coded = |from: usize, digits: usize, radix: u32| {
            let code = text.get(from..from + digits).filter(|code| code.chars().all(|digit| digit.is_digit(radix)));
            let character = code.and_then(|code| u32::from_str_radix(code, radix).ok()).and_then(char::from_u32);
            character.filter(|character| *character != '\0').map(|character| (character.into(), from + digits))
        };
        let found = match first {
            'a' => Some(simple('\u{7}')),
            'b' => Some(simple('\u{8}')),
            'f' => Some(simple('\u{c}')),
            'n' => Some(simple('\n')),
            'r' => Some(simple('\r')),
            't' => Some(simple('\t')),
            'v' => Some(simple('\u{b}')),
            's' => Some(simple(' ')),
            '\\' | '"' | '\'' => Some(simple(first)),
            'x' => coded(1, 2, 16),
            'u' => coded(1, 4, 16),
            'U' => coded(1, 8, 16),
            '0'..='7' => coded(0, 3, 8),
            _ => None,
        };
        found.unwrap_or_else(|| (format!("\\{first}"), first.len_utf8()))
    }
}
