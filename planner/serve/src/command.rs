//! The words of a command that a shell has read already.

use std::collections::BTreeMap;

use crate::error::ServeError;
use crate::launch::Launch;

impl Launch {
    /// Takes the words of a command that a shell has read already; `env` is the environment in which it would run.
    ///
    /// # Errors
    /// A variable that was quoted and has no value.
    pub fn from_words(words: Vec<String>, env: &BTreeMap<String, String>) -> Result<Self, ServeError> {
        let words: Result<Vec<String>, ServeError> = words.into_iter().map(|word| expanded(&word, env)).collect();
        Ok(Self { words: words?, env: env.clone(), place: "the command".into(), ..Self::default() })
    }
}

/// `$NAME` and `${NAME}` in a word by their values.
fn expanded(word: &str, env: &BTreeMap<String, String>) -> Result<String, ServeError> {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        text += &rest[..at];
        let (name, behind) = variable(&rest[at + 1..]);
        match (name, env.get(name)) {
            ("", _) => text.push('$'),
            (_, Some(value)) => text += value,
            (name, None) => return Err(ServeError::Unset { name: name.to_owned() }),
        }
        rest = behind;
    }
    Ok(text + rest)
}

/// The name that a `$` is followed by, and what is behind; no name where it is none.
fn variable(text: &str) -> (&str, &str) {
    let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    if let Some((name, behind)) = text.strip_prefix('{').and_then(|rest| rest.split_once('}'))
        && !name.is_empty()
        && name.chars().all(is_name)
    {
        return (name, behind);
    }
    let end = text.find(|char| !is_name(char)).unwrap_or(text.len());
    if text.starts_with(|first: char| first.is_ascii_digit()) { ("", text) } else { text.split_at(end) }
}
