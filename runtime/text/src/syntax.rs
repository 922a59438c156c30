//! What the library's language does otherwise than jinja2's, said in words of the library: `~`, `%` and `//` as Python has them,
//! tuples, and `{% generation %}`.

/// The text of its arguments, one after another: `~`.
pub(crate) const TEXT: &str = "__text";
/// `left % right`.
pub(crate) const REMAINDER: &str = "__remainder";
/// `left // right`.
pub(crate) const QUOTIENT: &str = "__quotient";
/// A tuple of its arguments.
pub(crate) const TUPLE: &str = "__tuple";

/// Arguments of a call, of which the library takes 2,000; it would take a long sum apart again at each of its parts.
const MOST: usize = 1000;

/// Words that an operand ends at, or that no call begins behind.
const WORDS: [&str; 17] = [
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "elif",
    "else",
    "set",
    "for",
    "with",
    "do",
    "print",
    "include",
    "import",
    "extends",
    "recursive",
];

/// A template in the library's language, with as many lines.
pub(crate) fn translated(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find('{') {
        out += &rest[..start];
        rest = &rest[start..];
        let taken = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map_or(rest.len(), |end| end + 2),
            Some(b'{') => expression(&mut out, rest, "}}"),
            Some(b'%') if is_word(rest, "raw") => {
                let mut blocks = rest.match_indices("{%").map(|(at, _)| at);
                blocks.find(|at| is_word(&rest[*at..], "endraw")).unwrap_or(rest.len())
            }
            Some(b'%') => expression(&mut out, rest, "%}"),
            _ => 1,
        };
        // What was not translated goes as it is.
        if !matches!(rest.as_bytes().get(1), Some(b'{' | b'%')) || is_word(rest, "raw") {
            out += &rest[..taken];
        }
        rest = &rest[taken..];
    }
    out + rest
}

/// Whether a block says this one word.
fn is_word(block: &str, word: &str) -> bool {
    let inner = block.get(2..).and_then(|inner| Some(&inner[..inner.find("%}")?]));
    inner.is_some_and(|inner| inner.trim_matches(['-', '+']).trim() == word)
}

/// A bracket that is open, or the whole expression.
struct Frame {
    /// Where it stands in what is written.
    bracket: usize,
    /// Whether it is one of values, not of a call's arguments.
    groups: bool,
    commas: usize,
    /// Where the operand of a `~`, and within it that of a `%` or `//`, begins.
    operand: usize,
    factor: usize,
    /// How many `~` have followed each other, and whether a `%` or `//` is open: in a call that the last operand ends.
    texts: usize,
    in_factor: bool,
}

impl Frame {
    fn new(out: &str, groups: bool) -> Self {
        let at = out.len();
        Self { bracket: at, groups, commas: 0, operand: at, factor: at, texts: 0, in_factor: false }
    }

    /// Ends a product.
    fn end_factor(&mut self, out: &mut String) {
        if std::mem::take(&mut self.in_factor) {
            out.push(')');
        }
    }

    /// Ends what `~` binds.
    fn end_operand(&mut self, out: &mut String) {
        self.end_factor(out);
        if std::mem::take(&mut self.texts) > 0 {
            out.push(')');
        }
    }

    fn begin_operand(&mut self, out: &str) {
        (self.operand, self.factor) = (out.len(), out.len());
    }
}

/// What a token leaves behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// A value: an operator follows, or a call.
    Value,
    /// An operator, a word or an opening bracket: a value follows.
    Operator,
    /// `is`, or `is not`: the name of a test follows.
    Is,
}

/// Translates from `{{` or `{%` to its end; how much of `rest` that was.
fn expression(out: &mut String, rest: &str, end: &str) -> usize {
    *out += &rest[..2];
    let mut frames = vec![Frame::new(out, false)];
    let (mut at, mut behind, mut first, mut target) = (2, Behind::Operator, end == "%}", false);
    while at < rest.len() {
        let here = &rest[at..];
        let (dash, close) = here.split_at(usize::from(here.starts_with(['-', '+'])));
        let is_sign = at == 2 && !dash.is_empty();
        if frames.len() == 1 && !is_sign && close.starts_with(end) {
            let mut frame = frames.remove(0);
            frame.end_operand(out);
            *out += dash;
            *out += end;
            return at + dash.len() + end.len();
        }
        let Some(frame) = frames.last_mut() else { break };
        let length = token(here);
        let text = &here[..length];
        at += length;
        let before = behind;
        if text.trim().is_empty() {
            *out += text;
            continue;
        }
        let is_name = text.starts_with(|letter: char| letter.is_alphabetic() || letter == '_');
        behind = if is_name || text.starts_with(|mark: char| mark.is_ascii_digit() || "'\")]}".contains(mark)) {
            Behind::Value
        } else {
            Behind::Operator
        };
        match text {
            _ if is_sign => {
                *out += text;
                frame.begin_operand(out);
                continue;
            }
            "(" | "[" | "{" => {
                let groups = text == "(" && before == Behind::Operator && !target;
                frames.push(Frame::new(out, groups));
                *out += text;
                if let Some(frame) = frames.last_mut() {
                    frame.begin_operand(out);
                }
            }
            ")" | "]" | "}" => {
                frame.end_operand(out);
                if frames.len() > 1
                    && let Some(frame) = frames.pop()
                    && frame.groups
                    && (frame.commas > 0 || out[frame.bracket + 1..].trim().is_empty())
                {
                    out.insert_str(frame.bracket, &format!(" {TUPLE}"));
                }
                *out += text;
            }
            "~" => {
                frame.end_factor(out);
                if frame.texts == 0 {
                    // Apart from a word that stands before it.
                    out.insert_str(frame.operand, &format!(" {TEXT}("));
                }
                frame.texts += 1;
                *out += &if frame.texts.is_multiple_of(MOST) { format!(")~{TEXT}(") } else { ",".into() };
                frame.factor = out.len();
            }
            "%" | "//" => {
                frame.end_factor(out);
                let name = if text == "%" { REMAINDER } else { QUOTIENT };
                out.insert_str(frame.factor, &format!(" {name}("));
                frame.in_factor = true;
                out.push(',');
            }
            "*" | "/" if before == Behind::Value => {
                frame.end_factor(out);
                *out += text;
            }
            // A sign belongs to its number; the library has no plus.
            "-" if before != Behind::Value => *out += text,
            "+" if before != Behind::Value => out.push(' '),
            "**" if before == Behind::Value => *out += text,
            "." | "|" => {
                *out += text;
                // A name follows, not a word of the language.
                behind = Behind::Is;
            }
            _ if is_name && before == Behind::Is && text != "not" => *out += text,
            "not" if before == Behind::Is => {
                *out += text;
                behind = Behind::Is;
            }
            "is" if before == Behind::Value => {
                *out += text;
                behind = Behind::Is;
            }
            _ if is_name && !WORDS.contains(&text) => {
                *out += match (first, text) {
                    (true, "generation") if is_word(rest, text) => "if true",
                    (true, "endgeneration") if is_word(rest, text) => "endif",
                    _ => text,
                }
            }
            _ if behind == Behind::Value && !is_name => *out += text,
            // All else binds less than `~`.
            _ => {
                frame.end_operand(out);
                *out += text;
                frame.commas += usize::from(text == ",");
                frame.begin_operand(out);
                if is_name {
                    behind = Behind::Operator;
                }
                target = match text {
                    "set" | "for" if first => true,
                    "in" | "=" => false,
                    _ => target,
                };
            }
        }
        first = false;
    }
    // It never ends, which the library says.
    rest.len()
}

/// How long the token is that a text begins with.
fn token(text: &str) -> usize {
    let mut characters = text.char_indices();
    let Some((_, begin)) = characters.next() else { return 0 };
    let run = |is: fn(char) -> bool| text.find(|character| !is(character)).unwrap_or(text.len());
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    match begin {
        '\'' | '"' => {
            let mut escaped = false;
            for (at, character) in characters {
                match character {
                    _ if escaped => escaped = false,
                    '\\' => escaped = true,
                    end if end == begin => return at + 1,
                    _ => {}
                }
            }
            text.len()
        }
        '0'..='9' => {
            let mut at = run(is_word);
            loop {
                let next = |skip: usize| text.as_bytes().get(at + skip).is_some_and(u8::is_ascii_digit);
                let signed = text[..at].ends_with(['e', 'E']) && text[at..].starts_with(['+', '-']) && next(1);
                if !(signed || text[at..].starts_with('.') && next(1)) {
                    return at;
                }
                at += 1;
                at += text[at..].find(|character| !is_word(character)).unwrap_or(text.len() - at);
            }
        }
        _ if is_word(begin) => run(is_word),
        _ if begin.is_whitespace() => run(char::is_whitespace),
        _ => {
            let two = ["**", "//", "==", "!=", "<=", ">="];
            if two.iter().any(|two| text.starts_with(two)) { 2 } else { begin.len_utf8() }
        }
    }
}
