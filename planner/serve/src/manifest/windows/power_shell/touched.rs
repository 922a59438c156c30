//! Which variables a text of PowerShell changes, and where parts of one end, whatever they say.

/// The bytes of a text in quotes that begins here, or of one character.
fn step(text: &str) -> usize {
    let mut characters = text.char_indices();
    let Some((_, quote)) = characters.next() else { return 0 };
    if quote == '`' {
        return characters.next().map_or(1, |(at, character)| at + character.len_utf8());
    }
    for (open, end) in [("@\"", "\n\"@"), ("@'", "\n'@"), ("<#", "#>")] {
        if text.starts_with(open) {
            return text.find(end).map_or(text.len(), |at| at + end.len());
        }
    }
    if quote != '"' && quote != '\'' {
        return quote.len_utf8();
    }
    let mut escaped = false;
    for (at, character) in characters {
        match character {
            _ if escaped => escaped = false,
            '`' if quote == '"' => escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The bytes of a comment that begins here.
fn comment(text: &str, before: Option<char>) -> usize {
    let begins = before.is_none_or(|before| before.is_whitespace() || ";({|,".contains(before));
    if text.starts_with('#') && begins { text.find('\n').unwrap_or(text.len()) } else { 0 }
}

/// The bytes up to where what `stops` says stands in no brackets; it is told the last character in front that is no blank.
fn up_to(text: &str, stops: impl Fn(&str, Option<char>) -> bool) -> usize {
    let (mut at, mut depth, mut before, mut last) = (0, 0usize, None, None);
    while at < text.len() {
        let rest = &text[at..];
        if depth == 0 && stops(rest, last) {
            return at;
        }
        let length = match comment(rest, before) {
            0 => step(rest),
            length => length,
        };
        match rest.chars().next() {
            Some('(' | '[' | '{') => depth += 1,
            Some(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += length.max(1);
        before = text[..at].chars().next_back();
        last = before.filter(|before| !matches!(before, ' ' | '\t' | '\r')).or(last);
    }
    text.len()
}

/// The beginning of a text, where nothing that is near ends behind it.
pub(super) fn near(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// The name in braces that a text begins with.
pub(super) fn in_braces(text: &str) -> Option<&str> {
    Some(near(text.strip_prefix('{')?, 256).split_once('}')?.0)
}

/// The bytes of what stands in the brackets that open here, with them.
pub(super) fn balanced(text: &str) -> usize {
    let inside = text.get(1..).unwrap_or("");
    let end = up_to(inside, |rest, _| rest.starts_with([')', ']', '}']));
    (end + 2).min(text.len())
}

/// The bytes of a statement up to what ends it, or to a block that something is handed.
pub(super) fn statement(text: &str) -> usize {
    up_to(text, |rest, before| {
        let is_block = rest.starts_with('{') && !matches!(before, Some('$' | '@'));
        let goes_on = matches!(before, Some('|' | ',' | '='));
        rest.starts_with([';', '}', ')']) || is_block || (rest.starts_with('\n') && !goes_on)
    })
}

/// The bytes of an argument up to a blank in no brackets.
pub(super) fn argument(text: &str) -> usize {
    up_to(text, |rest, _| rest.starts_with(|c: char| c.is_whitespace() || ";|,)}".contains(c)))
}

/// The names of variables that a text assigns to, counts up or down, or calls a method of.
pub(super) fn touched(text: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    // Those in front of a comma, of which several are assigned to together.
    let mut pending: Vec<&str> = Vec::new();
    let (mut at, mut before) = (0, "");
    while at < text.len() {
        let rest = &text[at..];
        let inside = rest.strip_prefix('$').and_then(|behind| Some((in_braces(behind)?, 3)));
        let plain =
            |text: &str| text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(text.len());
        let name = inside.or_else(|| rest.strip_prefix('$').map(|name| (name[..plain(name)].trim_end_matches(':'), 1)));
        let Some((name, signs)) = name.filter(|(name, _)| !name.is_empty()) else {
            let character = rest.chars().next().unwrap_or(' ');
            if !character.is_whitespace() && character != ',' {
                pending.clear();
            }
            let length = match comment(rest, text[..at].chars().next_back()) {
                0 => step(rest).max(1),
                length => length,
            };
            before = &text[..at + length];
            at += length;
            continue;
        };
        at += name.len() + signs;
        let behind = text[at..].trim_start_matches([' ', '\t']);
        let (place, is_closed) = member(behind);
        let operator = behind[place..].trim_start_matches([' ', '\t']);
        let is_call = place > 0 && operator.starts_with('(');
        const SETS: [&str; 8] = ["??=", "+=", "-=", "*=", "/=", "%=", "++", "--"];
        let is_set = SETS.iter().any(|sign| operator.starts_with(sign)) || operator.starts_with('=');
        let is_counted = before.ends_with("++") || before.ends_with("--") || is_reference(before);
        if is_set || is_call || is_counted || !is_closed {
            found.append(&mut pending);
            found.push(name);
        } else if behind.starts_with(',') {
            pending.push(name);
        } else {
            pending.clear();
        }
    }
    found
}

/// Whether a text ends with what hands a variable on to be set.
fn is_reference(before: &str) -> bool {
    const REFERENCE: &str = "[ref]";
    let end = before.len().saturating_sub(REFERENCE.len());
    before.get(end..).is_some_and(|end| end.eq_ignore_ascii_case(REFERENCE))
}

/// The bytes of members and indices behind a variable, `.Name`, `[0]`, and whether all of them end near.
fn member(text: &str) -> (usize, bool) {
    const NEAR: usize = 64;
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let length = match rest.as_bytes().first() {
            Some(b'[') => {
                // What has another index in it is not looked through.
                let inside = near(&rest[1..], NEAR);
                let Some(length) = inside.find(['[', ']']).filter(|end| inside[*end..].starts_with(']')) else {
                    return (at, false);
                };
                length + 2
            }
            Some(b'.') => {
                let name = &rest[1..];
                let length = name.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(name.len());
                if length == 0 { 0 } else { length + 1 }
            }
            _ => 0,
        };
        if length == 0 {
            return (at, true);
        }
        at += length;
    }
}
