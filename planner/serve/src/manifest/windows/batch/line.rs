//! A line of a batch file, cut into its commands.

/// What may stand between words.
pub(super) const DELIMITERS: [char; 6] = [' ', '\t', ',', ';', '=', '@'];

/// What stands behind a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joint {
    End,
    /// `&`
    Next,
    And,
    Or,
    Pipe,
    /// The end of the block around, which is left where it stands.
    Close,
}

/// A line that is read from its beginning to its end.
pub(super) struct Line {
    characters: Vec<char>,
    at: usize,
    in_quotes: bool,
}

impl Line {
    pub(super) fn of(text: &str) -> Self {
        Self { characters: text.chars().collect(), at: 0, in_quotes: false }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    pub(super) fn bump(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += 1;
        Some(character)
    }

    fn takes(&mut self, character: char) -> bool {
        let takes = self.peek() == Some(character);
        self.at += usize::from(takes);
        takes
    }

    pub(super) fn skip_delimiters(&mut self) {
        while self.peek().is_some_and(|character| DELIMITERS.contains(&character)) {
            self.at += 1;
        }
    }

    /// Goes behind a word of the shell's own.
    pub(super) fn takes_word(&mut self, word: &str) -> bool {
        let mut letters = self.characters[self.at..].iter();
        let is_same = word.chars().all(|letter| letters.next().is_some_and(|own| own.eq_ignore_ascii_case(&letter)));
        let ends = letters.next().is_none_or(|behind| ends_word(*behind));
        if is_same && ends {
            self.at += word.chars().count();
        }
        is_same && ends
    }

    /// A word with its quotes.
    fn word(&mut self, ends: impl Fn(&Self) -> bool) -> String {
        let (mut word, mut in_quotes) = (String::new(), false);
        while let Some(character) = self.peek() {
            if !in_quotes && (character.is_whitespace() || ends(self)) {
                break;
            }
            in_quotes ^= character == '"';
            word.push(character);
            self.at += 1;
        }
        word
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    /// Goes behind what `if` asks.
    pub(super) fn skip_condition(&mut self) {
        const OPERATORS: [&str; 6] = ["equ", "neq", "lss", "leq", "gtr", "geq"];
        loop {
            self.skip_blanks();
            if !self.takes_word("/i") && !self.takes_word("not") {
                break;
            }
        }
        let is_compared = |line: &Self| line.characters[line.at..].starts_with(&['=', '=']);
        if ["exist", "defined", "errorlevel", "cmdextversion"].iter().any(|asks| self.takes_word(asks)) {
            self.skip_blanks();
            self.word(|_| false);
            return;
        }
        self.word(is_compared);
        self.skip_blanks();
        if is_compared(self) {
            self.at += 2;
        } else if !OPERATORS.iter().any(|operator| self.takes_word(operator)) {
            return;
        }
        self.skip_blanks();
        self.word(|line| line.peek() == Some('('));
    }

    /// Goes behind the `do` of a loop.
    pub(super) fn skip_loop(&mut self) {
        while self.peek().is_some() {
            self.skip_blanks();
            if self.takes_word("do") {
                return;
            }
            if self.word(|line| matches!(line.peek(), Some('(' | ')'))).is_empty() {
                self.bump();
            }
        }
    }

    /// Goes behind redirections that stand here.
    pub(super) fn skip_redirects(&mut self) {
        loop {
            self.skip_blanks();
            let digits = self.characters[self.at..].iter().take_while(|character| character.is_ascii_digit()).count();
            if !matches!(self.characters.get(self.at + digits), Some('<' | '>')) {
                return;
            }
            self.at += digits;
            self.redirect();
        }
    }

    /// `> file`, `>> file`, `>&1`.
    fn redirect(&mut self) {
        let sign = self.bump().unwrap_or('>');
        self.takes(sign);
        if self.takes('&') {
            while self.peek().is_some_and(|digit| digit.is_ascii_digit()) {
                self.at += 1;
            }
            return;
        }
        self.skip_delimiters();
        self.word(|line| line.peek().is_some_and(|character| ",;=&|<>)".contains(character)));
    }

    /// Adds the text of a command that begins here; none where the line goes on with the next.
    pub(super) fn command(&mut self, text: &mut String, in_block: bool) -> Option<Joint> {
        while let Some(character) = self.bump() {
            match character {
                '"' => {
                    self.in_quotes = !self.in_quotes;
                    text.push(character);
                }
                _ if self.in_quotes => text.push(character),
                '^' => text.push(self.bump()?),
                '&' => return Some(if self.takes('&') { Joint::And } else { Joint::Next }),
                '|' => return Some(if self.takes('|') { Joint::Or } else { Joint::Pipe }),
                '<' | '>' => {
                    // The number of a stream stands alone.
                    let mut last = text.chars().rev();
                    let is_stream = last.next().is_some_and(|digit| digit.is_ascii_digit())
                        && last.next().is_none_or(|before| DELIMITERS.contains(&before));
                    if is_stream {
                        text.pop();
                    }
                    self.at -= 1;
                    self.redirect();
                }
                ')' if in_block => {
                    self.at -= 1;
                    return Some(Joint::Close);
                }
                _ => text.push(character),
            }
        }
        // Quotes end with the line.
        self.in_quotes = false;
        Some(Joint::End)
    }

    /// Goes on with the next line, whose first character means itself.
    pub(super) fn go_on(&mut self, next: &str, text: &mut String) {
        self.go_to(next);
        text.extend(self.bump());
    }

    pub(super) fn go_to(&mut self, next: &str) {
        (self.characters, self.at) = (next.chars().collect(), 0);
    }
}

/// Whether a word of the shell's own ends in front of this.
fn ends_word(behind: char) -> bool {
    behind.is_whitespace() || ",;=/\"()&|<>.:+".contains(behind)
}

/// What stands behind the colon of a line that is a label.
pub(super) fn label(line: &str) -> Option<&str> {
    line.trim_start_matches(DELIMITERS).strip_prefix(':')
}

/// The word of the shell's own that a text begins with, in small letters, and what stands behind it.
pub(super) fn first_word(text: &str) -> (String, &str) {
    let (word, rest) = text.split_at(text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len()));
    // `start.exe` and `set\x` are programs.
    let is_word = rest.chars().next().is_none_or(|behind| behind != '.' && ends_word(behind));
    let is_echo = word.eq_ignore_ascii_case("echo");
    (if is_word || is_echo { word.to_ascii_lowercase() } else { String::new() }, rest)
}

/// What stands behind a switch, and behind those in front of it; quotes around all of it are taken away.
pub(super) fn behind_switch<'a>(text: &'a str, switches: &[&str]) -> Option<&'a str> {
    let mut rest = text.trim_start();
    while rest.starts_with('/') {
        let (switch, behind) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
        rest = behind.trim_start();
        if switches.iter().any(|known| known.eq_ignore_ascii_case(switch)) {
            let inside = rest.strip_prefix('"').and_then(|inside| inside.trim_end().strip_suffix('"'));
            return Some(inside.unwrap_or(rest));
        }
    }
    None
}

/// What `start` starts: behind a title, the first word in quotes, and options on either side of it.
pub(super) fn behind_options(text: &str) -> &str {
    /// Those with a value behind them.
    const WITH_VALUE: [&str; 3] = ["/d", "/node", "/affinity"];
    let word = |text: &str| {
        let mut in_quotes = false;
        text.find(|c: char| {
            in_quotes ^= c == '"';
            c.is_whitespace() && !in_quotes
        })
        .unwrap_or(text.len())
    };
    let (mut rest, mut has_title) = (text.trim_start(), false);
    loop {
        let is_title = rest.starts_with('"') && !has_title;
        if !is_title && !rest.starts_with('/') {
            return rest;
        }
        has_title |= is_title;
        let (option, behind) = rest.split_at(word(rest));
        rest = behind.trim_start();
        if WITH_VALUE.contains(&&*option.to_ascii_lowercase()) {
            rest = rest[word(rest)..].trim_start();
        }
    }
}
