//! Text from outside, made harmless for a terminal and for whoever reads line by line.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write};

/// Shows what a stranger wrote (a name, a key, an argument, a path) on one line: whatever would steer a terminal, break
/// the line or turn the direction of writing is escaped as `\u001b`, and what is longer than [`Shown::LENGTH`] is cut.
#[derive(Clone, Copy, Debug)]
pub struct Shown<T>(pub T);

impl Shown<()> {
    /// The most characters that are shown of one text.
    pub const LENGTH: usize = 500;
}

impl<T: Display> Display for Shown<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut line = Line { out: f, left: Shown::LENGTH };
        match write!(line, "{}", self.0) {
            // The text was cut: what it is made of need not be written to its end.
            Err(_) if line.left == 0 => f.write_char('…'),
            result => result,
        }
    }
}

impl Shown<&str> {
    /// Counts the letters to change, leave out or put in to make another name of it; only the first 64 characters count, which bounds the work on hostile input.
    pub fn distance(self, other: &str) -> usize {
        self.distances(other).last().copied().unwrap_or(0)
    }

    /// The same to each beginning of it, the empty one first.
    pub fn distances(self, other: &str) -> Vec<usize> {
        let right: Vec<char> = other.chars().take(64).collect();
        let mut row: Vec<usize> = (0..=right.len()).collect();
        for (i, l) in self.0.chars().take(64).enumerate() {
            let mut diagonal = row[0];
            row[0] = i + 1;
            for (j, &r) in right.iter().enumerate() {
                let substituted = diagonal + usize::from(l != r);
                diagonal = row[j + 1];
                row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
            }
        }
        row
    }

    /// The known name that was probably meant, however it is capitalised.
    pub fn nearest<T: AsRef<str>>(self, known: impl IntoIterator<Item = T>) -> Option<T> {
        let meant = self.0.to_lowercase();
        let far = |known: &T| Shown(&*meant).distance(&known.as_ref().to_lowercase());
        let near = known.into_iter().map(|known| (far(&known), known));
        let near = near.filter(|(far, known)| *far * 3 <= known.as_ref().len());
        near.min_by(|(one, a), (other, b)| (one, a.as_ref()).cmp(&(other, b.as_ref()))).map(|(_, known)| known)
    }
}

struct Line<'a, 'b> {
    out: &'a mut Formatter<'b>,
    left: usize,
}

impl Write for Line<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            match steers(character) {
                true => write!(self.out, "{}", Escape(character))?,
                false => self.out.write_char(character)?,
            }
        }
        Ok(())
    }
}

impl Shown<()> {
    /// The text with everything escaped that steers a terminal, but for the ends of lines and tabs.
    ///
    /// It is the last thing that happens to all that is printed. The escapes are those of JSON, YAML and TOML strings, so
    /// that data in these formats stays the same data.
    pub fn printable(text: &str) -> Cow<'_, str> {
        let harmful = |character: char| steers(character) && !matches!(character, '\n' | '\t');
        if !text.contains(harmful) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + 16);
        for character in text.chars() {
            match harmful(character) {
                true => out.push_str(&Escape(character).to_string()),
                false => out.push(character),
            }
        }
        Cow::Owned(out)
    }

    /// The text with everything escaped that would be markup in HTML and XML, or end an attribute.
    pub fn markup(text: &str) -> String {
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
    }
}

/// Control characters, marks and overrides of the writing direction, separators of lines and paragraphs, marks of byte
/// order and what is no character, which YAML does not allow.
fn steers(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

struct Escape(char);

impl Display for Escape {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        // None of them lies beyond four digits.
        write!(f, "\\u{:04x}", u32::from(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::colours("\u{1b}[31mred", r"\u001b[31mred")]
    #[case::clipboard("\u{1b}]52;c;QQ==\u{7}", r"\u001b]52;c;QQ==\u0007")]
    #[case::one_byte_escapes("\u{9b}2J", r"\u009b2J")]
    #[case::lines("a\nb\r\u{85}\u{2028}\u{2029}", r"a\u000ab\u000d\u0085\u2028\u2029")]
    #[case::directions("\u{202e}gpj.\u{2066}\u{61c}", r"\u202egpj.\u2066\u061c")]
    #[case::ordinary("Qwen3 8B – 模型", "Qwen3 8B – 模型")]
    fn what_steers_a_terminal_is_escaped(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(Shown(text).to_string(), expected);
    }

    #[test]
    fn long_text_is_cut_at_the_stated_length() {
        let whole = "x".repeat(Shown::LENGTH);
        assert_eq!(Shown(&whole).to_string(), whole);
        assert_eq!(Shown("x".repeat(20 << 20)).to_string(), whole + "…");
    }

    #[test]
    fn what_is_printed_keeps_its_lines_and_stays_the_same_data() {
        let names = ["\u{9b}2J", "\u{202e}", "\u{2028}", "\u{7f}", "a\nb"];
        let json = serde_json::to_string_pretty(&names).unwrap();
        let printed = Shown::printable(&json);
        assert!(!printed.contains(['\u{9b}', '\u{202e}', '\u{2028}', '\u{7f}']), "{printed}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&printed).unwrap(), names);
        assert!(matches!(Shown::printable("a\n\tb"), Cow::Borrowed("a\n\tb")));
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(Shown::markup(r#"<a b="c">&"#), "&lt;a b=&quot;c&quot;&gt;&amp;");
    }

    #[test]
    fn the_distance_of_names_is_in_letters() {
        assert_eq!(Shown("kitten").distance("sitting"), 3);
        assert_eq!(Shown("same").distance("same"), 0);
        assert_eq!(Shown("qwen3-8B").nearest(["Qwen3-14B", "Qwen3-8B", "Qwen2-7B"]), Some("Qwen3-8B"));
        assert_eq!(Shown("x").nearest(["Qwen3-14B"]), None);
    }
}
