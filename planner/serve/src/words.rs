//! Words of a command.

use cacheplan_planner::logs::Logged;

use crate::secret;

/// `NAME=value`.
pub(crate) fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
    is_name.then_some((name, value))
}

/// Writes words as a shell reads them. Variables that a script leaves to its shell stay what that fills.
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| filled(word).unwrap_or_else(|| quoted(word))).collect::<Vec<String>>().join(" ")
}

/// A word with variables alone that a shell fills; not with commands, which it would run for whoever wrote them as text.
fn filled(word: &str) -> Option<String> {
    let is_name =
        |at: usize| word[at + 1..].starts_with(|next: char| next.is_ascii_alphanumeric() || "_{".contains(next));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+$ {}".contains(&byte);
    let fills = word.contains('$') && word.match_indices('$').all(|(at, _)| is_name(at));
    (fills && word.bytes().all(plain)).then(|| format!("\"{word}\""))
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    // `shlex` quotes `=` too, which every other flag has.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    if word.ends_with(secret::HIDDEN) || (!word.is_empty() && word.bytes().all(plain)) {
        return word.to_owned();
    }
    // Only a word with a zero byte has no quoted form.
    shlex::try_quote(word).map_or_else(|_| word.replace('\0', ""), std::borrow::Cow::into_owned)
}

/// A number, or both ends of what it lies between.
pub(crate) fn range(number: Logged) -> String {
    if number.low == number.high { number.low.to_string() } else { format!("{}..{}", number.low, number.high) }
}

/// So many of something.
pub(crate) fn counted(number: Logged, what: &str) -> String {
    format!("{} {what}{}", range(number), if number == Logged::exact(1) { "" } else { "s" })
}

/// Text in lines of at most 96 letters; those behind the first are set in.
pub(crate) fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let indent = if lines.is_empty() { "" } else { "  " };
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= 96) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(format!("{indent}{word}")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a b", "'a b'")]
    #[case("$HOST:80", "\"$HOST:80\"")]
    #[case("$1", "\"$1\"")]
    #[case("${RANK}", "\"${RANK}\"")]
    #[case("$(hostname)", "'$(hostname)'")]
    #[case("a\"$X", "'a\"$X'")]
    #[case("5$", "'5$'")]
    fn a_word_is_written_as_a_shell_reads_it(#[case] word: &str, #[case] expected: &str) {
        assert_eq!(line(&[word.to_owned()]), expected);
    }
}
