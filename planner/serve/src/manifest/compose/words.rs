//! Words as Compose cuts a text into them, which is no shell's way (mattn/go-shellwords): nothing is a comment, and all from the first sign
//! on that joins commands or redirects is left out.

/// Why a text is none: a quote without an end, a parenthesis.
pub(super) struct Broken;

/// The words of a text.
pub(super) fn words(text: &str) -> Result<Vec<String>, Broken> {
    let mut words = Vec::new();
    // The word so far, which an empty pair of quotes begins too.
    let (mut word, mut begun) = (String::new(), false);
    let mut open = Open::Nothing;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (open, character) {
            (Open::Single, '\'') | (Open::Double, '"') => (open, begun) = (Open::Nothing, true),
            (Open::Single, _) => word.push(character),
            (_, '\\') => {
                let escaped = characters.next().ok_or(Broken)?;
                match (open, escaped) {
                    (Open::Ticks | Open::Command, _) => word.extend(['\\', escaped]),
                    (_, 't') => word.push('\t'),
                    (_, 'n') => word.push('\n'),
                    _ => word.push(escaped),
                }
                begun = true;
            }
            (Open::Double, _) => word.push(character),
            (Open::Command, ')') | (Open::Ticks, '`') => {
                word.push(character);
                (open, begun) = (Open::Nothing, true);
            }
            (Open::Command, '(') => return Err(Broken),
            (Open::Command | Open::Ticks, _) => word.push(character),
            (Open::Nothing, ' ' | '\t' | '\r' | '\n') => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            (Open::Nothing, '\'') => open = Open::Single,
            (Open::Nothing, '"') => open = Open::Double,
            (Open::Nothing, '(') if word.ends_with('$') => {
                word.push(character);
                open = Open::Command;
            }
            (Open::Nothing, '(' | ')') => return Err(Broken),
            (Open::Nothing, ';' | '&' | '|' | '<' | '>') => {
                // The number of a stream.
                begun &= character != '>' || word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit());
                break;
            }
            (Open::Nothing, _) => {
                if character == '`' {
                    open = Open::Ticks;
                }
                word.push(character);
                begun = true;
            }
        }
    }
    if open != Open::Nothing {
        return Err(Broken);
    }
    words.extend(begun.then_some(word));
    Ok(words)
}

/// What a character stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Single,
    Double,
    Ticks,
    /// `$(`
    Command,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a 'b c' \"d e\"f", Some("a|b c|d ef"))]
    #[case("a # b\n-c 4", Some("a|#|b|-c|4"))]
    #[case("a 2048 && b", Some("a|2048"))]
    #[case("a 2048; b", Some("a|2048"))]
    #[case("a 2048>log", Some("a"))]
    #[case("a 2k>log", Some("a|2k"))]
    #[case("a 2>&1 b", Some("a"))]
    #[case("a 'x;y' \\; b", Some("a|x;y|;|b"))]
    #[case("a \"\" '' \\t", Some("a|||\t"))]
    #[case("a $(b c) d", Some("a|$(b c)|d"))]
    #[case("a '{\"b\": 1}'", Some("a|{\"b\": 1}"))]
    #[case("a \"\\\"b\\\"\"", Some("a|\"b\""))]
    #[case("a (b)", None)]
    #[case("a 'b", None)]
    #[case("a \\", None)]
    fn a_text_is_cut_as_compose_cuts_it(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(words(text).ok().map(|words| words.join("|")).as_deref(), expected);
    }
}
