//! The tokens of a Rust file without its tests and its documentation.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The tokens of a file that are product; none where the whole file is a test.
pub(super) fn product(text: &str) -> Result<TokenStream, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
    Ok(without_tests(tokens))
}

fn without_tests(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let attributes = attributes(&tokens, at);
        let end = attributes.last().map_or(at, |last| last.end);
        if attributes.iter().any(|attribute| attribute.is_test(&tokens)) {
            if attributes.iter().any(|attribute| attribute.is_test(&tokens) && attribute.inner) {
                return TokenStream::new();
            }
            at = end_of_item(&tokens, end);
            continue;
        }
        let said = attributes.iter().filter(|attribute| attribute.name(&tokens).as_deref() != Some("doc"));
        kept.extend(said.flat_map(|attribute| tokens[attribute.start..attribute.end].to_vec()));
        at = end;
        if let Some(token) = tokens.get(at) {
            kept.push(match token {
                TokenTree::Group(group) => within(group),
                other => other.clone(),
            });
            at += 1;
        }
    }
    kept.into_iter().collect()
}

fn within(group: &Group) -> TokenTree {
    let mut inner = Group::new(group.delimiter(), without_tests(group.stream()));
    inner.set_span(group.span());
    inner.into()
}

/// The places of an attribute among tokens.
struct Attribute {
    start: usize,
    end: usize,
    inner: bool,
}

impl Attribute {
    fn content(&self, tokens: &[TokenTree]) -> Vec<TokenTree> {
        match &tokens[self.end - 1] {
            TokenTree::Group(group) => group.stream().into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn name(&self, tokens: &[TokenTree]) -> Option<String> {
        self.content(tokens).first().map(ToString::to_string)
    }

    /// Returns whether what follows is compiled for tests alone.
    fn is_test(&self, tokens: &[TokenTree]) -> bool {
        match self.content(tokens).as_slice() {
            [name] => name.to_string() == "test",
            [name, TokenTree::Group(of)] => name.to_string() == "cfg" && asks_for_test(&of.stream().to_string()),
            _ => false,
        }
    }
}

fn asks_for_test(condition: &str) -> bool {
    let condition: String = condition.chars().filter(|char| !char.is_whitespace()).collect();
    condition == "test"
        || condition.starts_with("all(test,")
        || condition.starts_with("all(") && condition.ends_with(",test)")
}

/// The attributes that stand at `at`, one behind the other.
fn attributes(tokens: &[TokenTree], at: usize) -> Vec<Attribute> {
    let (mut found, mut start) = (Vec::new(), at);
    while is_punct(tokens.get(start), '#') {
        let inner = is_punct(tokens.get(start + 1), '!');
        let group = start + 1 + usize::from(inner);
        match tokens.get(group) {
            Some(TokenTree::Group(of)) if of.delimiter() == Delimiter::Bracket => {
                found.push(Attribute { start, end: group + 1, inner });
                start = group + 1;
            }
            _ => break,
        }
    }
    found
}

/// Where the item that begins at `at` ends: behind its braces, its semicolon, or the comma of a field.
fn end_of_item(tokens: &[TokenTree], at: usize) -> usize {
    let ends_in_semicolon = tokens[at..].iter().find_map(|token| match token {
        TokenTree::Ident(word) if word == "pub" => None,
        TokenTree::Ident(word) => Some(["use", "static", "type", "let", "extern"].iter().any(|kind| word == kind)),
        _ => None,
    });
    let rest = tokens[at..].iter().position(|token| match token {
        TokenTree::Punct(punct) => {
            punct.as_char() == ';' || (punct.as_char() == ',' && ends_in_semicolon != Some(true))
        }
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && ends_in_semicolon != Some(true),
        _ => false,
    });
    rest.map_or(tokens.len(), |rest| at + rest + 1)
}

pub(super) fn is_punct(token: Option<&TokenTree>, of: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == of)
}
