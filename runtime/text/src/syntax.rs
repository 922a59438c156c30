//! jinja2's language, said in that of the library: every operator, attribute and item of an expression becomes a call of a
//! function of ours, which does what Python does. What stands between expressions is the library's.

mod expression;
mod tokens;

use expression::Parser;
pub(crate) use expression::names;
use tokens::tokens;

/// Why a template is not of its language.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) line: usize,
    pub(crate) reason: String,
}

impl Wrong {
    /// Of what stands behind a text.
    fn behind(text: &str, reason: String) -> Self {
        Self { line: 1 + newlines(text), reason }
    }
}

fn newlines(text: &str) -> usize {
    text.matches('\n').count()
}

/// A template in the library's language, with as many lines.
pub(crate) fn translated(template: &str) -> Result<String, Wrong> {
    // As jinja2 reads it.
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(template.len());
    let (mut rest, mut before) = (template.as_str(), 0);
    while let Some(start) = rest.find('{') {
        out += &rest[..start];
        before += newlines(&rest[..start]);
        rest = &rest[start..];
        let is_block = rest.starts_with("{%");
        let taken = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map_or(rest.len(), |end| end + 2),
            Some(b'%') if is_word(rest, "raw") => {
                let mut blocks = rest.match_indices("{%").map(|(at, _)| at);
                blocks.find(|at| is_word(&rest[*at..], "endraw")).unwrap_or(rest.len())
            }
            // The end of what is raw.
            Some(b'%') if is_word(rest, "endraw") => rest.find("%}").map_or(rest.len(), |end| end + 2),
            Some(b'%' | b'{') => {
                let further = move |wrong: Wrong| Wrong { line: wrong.line + before, ..wrong };
                let sign = rest.get(2..3).filter(|sign| matches!(*sign, "-" | "+")).unwrap_or("");
                let end = if is_block { "%}" } else { "}}" };
                let (tokens, end_sign, length) = tokens(&rest[2 + sign.len()..], end).map_err(further)?;
                let length = 2 + sign.len() + length;
                let mut parser = Parser::new(tokens);
                let codes = if is_block { parser.block() } else { parser.output().map(|code| vec![code]) };
                let codes = codes.map_err(|reason| further(Wrong::behind("", reason)))?;
                let sign = if is_block { sign } else { sign.trim_end_matches('+') };
                let lines = newlines(&rest[..length]);
                before += lines;
                let lines = "\n".repeat(lines);
                out += &format!("{}{sign} {} {lines}{end_sign}{end}", &rest[..2], codes.join(" %}{% "));
                rest = &rest[length..];
                continue;
            }
            _ => 1,
        };
        out += &rest[..taken];
        before += newlines(&rest[..taken]);
        rest = &rest[taken..];
    }
    Ok(out + rest)
}

/// Whether a block says this one word.
fn is_word(block: &str, word: &str) -> bool {
    let inner = block.get(2..).and_then(|inner| Some(&inner[..inner.find("%}")?]));
    inner.is_some_and(|inner| inner.trim_matches(['-', '+']).trim() == word)
}
