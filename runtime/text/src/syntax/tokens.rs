//! The tokens of jinja2's expressions.

use super::Wrong;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    Text(String),
    Integer(u128),
    Float(f64),
    Mark(&'static str),
}

/// Longer ones first.
const MARKS: [&str; 26] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ":", "|", ",", ";", "(", ")",
    "[", "]", "{", "}",
];

/// The tokens up to `end` (`}}` or `%}`), the sign before it, and how many bytes that were.
pub(super) fn tokens(text: &str, end: &str) -> Result<(Vec<Token>, &'static str, usize), Wrong> {
    let (mut tokens, mut open, mut at) = (Vec::new(), Vec::new(), 0);
    let wrong = |at: usize, reason: String| Wrong::behind(&text[..at], reason);
    loop {
        let here = &text[at..];
        let Some(begin) = here.chars().next() else {
            return Err(wrong(at.min(text.len()), format!("`{end}` is missing")));
        };
        if open.is_empty() {
            for (sign, marked) in [("", end.to_owned()), ("-", format!("-{end}")), ("+", format!("+{end}"))] {
                if here.starts_with(&marked) && !(sign == "+" && end == "}}") {
                    return Ok((tokens, sign, at + marked.len()));
                }
            }
        }
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        if begin.is_whitespace() {
            at += begin.len_utf8();
        } else if matches!(begin, '\'' | '"') {
            let length = quoted(here).ok_or_else(|| wrong(at, "a text has no end".into()))?;
            let inner = unescaped(&here[1..length - 1]).map_err(|reason| wrong(at, reason))?;
            tokens.push(Token::Text(inner));
            at += length;
        } else if begin.is_ascii_digit() {
            let after_dot = tokens.last() == Some(&Token::Mark("."));
            let (token, length) = number(here, after_dot).map_err(|reason| wrong(at, reason))?;
            tokens.push(token);
            at += length;
        } else if is_word(begin) {
            let length = here.find(|character| !is_word(character)).unwrap_or(here.len());
            tokens.push(Token::Name(here[..length].to_owned()));
            at += length;
        } else {
            let mark = MARKS.into_iter().find(|mark| here.starts_with(mark));
            let mark = mark.ok_or_else(|| wrong(at, format!("`{begin}` was not expected")))?;
            match mark {
                "(" | "[" | "{" => open.push(mark),
                ")" | "]" | "}" => {
                    let opens = match mark {
                        ")" => "(",
                        "]" => "[",
                        _ => "{",
                    };
                    if open.pop() != Some(opens) {
                        return Err(wrong(at, format!("`{mark}` closes nothing")));
                    }
                }
                _ => {}
            }
            tokens.push(Token::Mark(mark));
            at += mark.len();
        }
    }
}

/// How long the text is that stands in quotes here.
fn quoted(text: &str) -> Option<usize> {
    let mut characters = text.char_indices();
    let (_, mark) = characters.next()?;
    let mut escaped = false;
    characters.find_map(|(at, character)| {
        let ends = !escaped && character == mark;
        escaped = !escaped && character == '\\';
        ends.then_some(at + 1)
    })
}

/// What Python reads of a text with escapes.
fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out += &rest[..at];
        rest = &rest[at + 1..];
        let Some(kind) = rest.chars().next() else { break };
        rest = &rest[kind.len_utf8()..];
        let digits = |most: usize, radix: u32| {
            rest.chars().take(most).take_while(|digit| digit.is_digit(radix)).map(char::len_utf8).sum::<usize>()
        };
        let mut code = |length: usize, radix: u32, digits: &str| {
            let character = (digits.len() == length).then(|| u32::from_str_radix(digits, radix).ok()).flatten();
            let character = character.and_then(char::from_u32);
            character.map(|character| out.push(character)).ok_or_else(|| format!("`\\{kind}{digits}` is no character"))
        };
        match kind {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(kind),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            'x' | 'u' | 'U' => {
                let length = match kind {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let end = digits(length, 16);
                code(length, 16, &rest[..end])?;
                rest = &rest[end..];
            }
            '0'..='7' => {
                let end = digits(2, 8);
                let all = format!("{kind}{}", &rest[..end]);
                code(all.len(), 8, &all)?;
                rest = &rest[end..];
            }
            'N' => return Err("characters by their names (`\\N`) are not known".into()),
            other => out.extend(['\\', other]),
        }
    }
    Ok(out + rest)
}

fn number(text: &str, after_dot: bool) -> Result<(Token, usize), String> {
    let run = |text: &str, radix: u32| {
        let end = text.find(|digit: char| !(digit.is_digit(radix) || digit == '_')).unwrap_or(text.len());
        text[..end].trim_end_matches('_').len()
    };
    let large = |digits: &str| format!("the number {digits} is larger than those that are known here");
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        let begins = text.get(..2).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix));
        if begins && run(&text[2..], radix) > 0 {
            let end = 2 + run(&text[2..], radix);
            let number = u128::from_str_radix(&text[2..end].replace('_', ""), radix);
            return number.map(|number| (Token::Integer(number), end)).map_err(|_| large(&text[..end]));
        }
    }
    let whole = run(text, 10);
    let mut end = whole;
    if !after_dot && text[end..].starts_with('.') && text[end + 1..].starts_with(|digit: char| digit.is_ascii_digit()) {
        end += 1 + run(&text[end + 1..], 10);
    }
    if !after_dot && text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        let digits = &text[end + 1 + sign..];
        if digits.starts_with(|digit: char| digit.is_ascii_digit()) {
            end += 1 + sign + run(digits, 10);
        }
    }
    let digits = text[..end].replace('_', "");
    if end > whole {
        return digits.parse().map(|number| (Token::Float(number), end)).map_err(|_| large(&digits));
    }
    if digits.len() > 1 && digits.starts_with('0') && !digits.trim_matches('0').is_empty() {
        return Err(format!("the number {digits} begins with 0"));
    }
    digits.parse().map(|number| (Token::Integer(number), end)).map_err(|_| large(&digits))
}
