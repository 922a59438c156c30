//! Scripts of Windows, each by the rules of its own shell: nothing is run, and what a reader does not compute is refused where an engine
//! needs it.

mod batch;
mod power_shell;

use super::error::{ManifestError, Place};
use super::origin::Origin;
use super::reading::Reading;
use crate::Launch;
use crate::started::base;

/// Whose script it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Batch,
    PowerShell,
}

impl Dialect {
    /// By the name of the file, or by the line that most of them begin with.
    pub(super) fn of(name: &str, text: &str) -> Option<Self> {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
        let first = text.trim_start().lines().next().unwrap_or("");
        match extension.as_deref() {
            Some("bat" | "cmd") => Some(Self::Batch),
            Some("ps1") => Some(Self::PowerShell),
            _ if first.get(..5).is_some_and(|word| word.eq_ignore_ascii_case("@echo")) => Some(Self::Batch),
            _ if first.starts_with("#!") && matches!(first.rsplit(['/', ' ']).next(), Some("pwsh" | "powershell")) => {
                Some(Self::PowerShell)
            }
            _ => None,
        }
    }
}

/// Scripts within each other.
const DEPTH: usize = 5;

/// The engines that a script starts.
pub(super) fn launches(dialect: Dialect, reading: &Reading<'_>, text: &str) -> Result<Vec<Launch>, ManifestError> {
    let at = Place { file: reading.file.to_owned(), line: Some(1), path: String::new() };
    let origin = Origin { through_shell: true, is_file: true, ..Origin::new(reading, at, String::new()) };
    match dialect {
        Dialect::Batch => batch::launches(text, origin),
        Dialect::PowerShell => power_shell::launches(text, origin),
    }
}

/// The words that a program makes of the line it is given, as the C runtime cuts it (`CommandLineToArgvW`): a backslash means itself but in
/// front of a quote.
fn arguments(line: &str) -> Vec<String> {
    const BLANKS: [char; 2] = [' ', '\t'];
    let line = line.trim_start_matches(BLANKS);
    let mut in_quotes = false;
    // In the program's name a backslash means itself anywhere.
    let end = line.find(|character: char| {
        in_quotes ^= character == '"';
        !in_quotes && BLANKS.contains(&character)
    });
    let (program, rest) = line.split_at(end.unwrap_or(line.len()));
    let mut words = vec![program.replace('"', "")];
    let mut characters = rest.chars().peekable();
    let (mut word, mut begun, mut in_quotes) = (String::new(), false, false);
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                let mut count = 1;
                while characters.next_if_eq(&'\\').is_some() {
                    count += 1;
                }
                let is_quoted = characters.peek() == Some(&'"');
                word.extend(std::iter::repeat_n('\\', if is_quoted { count / 2 } else { count }));
                if is_quoted && count % 2 == 1 {
                    word.extend(characters.next());
                }
                begun = true;
            }
            // Two within quotes are one.
            '"' if in_quotes && characters.next_if_eq(&'"').is_some() => word.push('"'),
            '"' => (in_quotes, begun) = (!in_quotes, true),
            _ if BLANKS.contains(&character) && !in_quotes => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => {
                word.push(character);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

/// A program that lies in a folder which is known only where the script runs: what it is called says which it is.
fn without_folder(words: &mut [String]) {
    if let Some(program) = words.first_mut().filter(|program| program.contains(super::unknown::MARKS)) {
        let name = base(program);
        if !name.contains(super::unknown::MARKS) {
            *program = name.to_owned();
        }
    }
}
