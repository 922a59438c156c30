//! One module as it is written: what it defines, imports and names.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::paths::{Import, imports, is_double_colon, path};
use super::product::is_punct;

/// A module's own words. Those of inline modules are in `inline`.
#[derive(Default, Debug)]
pub(super) struct Written {
    pub(super) items: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
    /// Paths of two segments or more, and single names that only a glob can have brought.
    pub(super) paths: BTreeSet<Vec<String>>,
    /// The macros that it calls by a name alone.
    pub(super) calls: BTreeSet<String>,
    /// The macros that it defines by rules, and whether their names stand at the crate's root.
    pub(super) macros: BTreeSet<(String, bool)>,
    /// Names by which the crate calls itself.
    pub(super) own_names: Vec<String>,
    pub(super) files: Vec<Declared>,
    pub(super) inline: Vec<(String, Written)>,
}

/// `mod name;`, with its `#[path]`.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) path: Option<String>,
}

const ITEMS: [&str; 8] = ["struct", "enum", "union", "trait", "type", "fn", "const", "static"];

/// Words that begin no path.
const KEYWORDS: [&str; 26] = [
    "as", "async", "await", "break", "const", "continue", "dyn", "else", "enum", "fn", "for", "if", "impl", "in",
    "let", "loop", "match", "move", "mut", "ref", "return", "static", "struct", "unsafe", "where", "while",
];

impl Written {
    pub(super) fn read(tokens: TokenStream) -> Self {
        let mut written = Self::default();
        written.walk(&tokens.into_iter().collect::<Vec<_>>(), true);
        written
    }

    /// Walks over tokens; `items` says whether they are a module's, or lie within one of its items.
    fn walk(&mut self, tokens: &[TokenTree], items: bool) {
        let (mut at, mut file, mut exported) = (0, None, false);
        while at < tokens.len() {
            let next = match &tokens[at] {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    let group = at + 1 + usize::from(is_punct(tokens.get(at + 1), '!'));
                    match tokens.get(group) {
                        Some(TokenTree::Group(of)) if of.delimiter() == Delimiter::Bracket => {
                            let inner: Vec<TokenTree> = of.stream().into_iter().collect();
                            exported |= inner.first().is_some_and(|name| name.to_string() == "macro_export");
                            file = stated_path(&inner).or(file);
                            self.attribute(&inner);
                            group + 1
                        }
                        _ => at + 1,
                    }
                }
                // A lifetime.
                TokenTree::Punct(quote) if quote.as_char() == '\'' => at + 2,
                TokenTree::Group(group) => {
                    let is_macro = items && at > 0 && group.delimiter() == Delimiter::Brace && is_invoked(tokens, at);
                    self.walk(&group.stream().into_iter().collect::<Vec<_>>(), is_macro);
                    at + 1
                }
                TokenTree::Ident(word) => self.word(&word.to_string(), tokens, at, items, &mut file, &mut exported),
                TokenTree::Punct(_) | TokenTree::Literal(_) => at + 1,
            };
            at = next;
        }
    }

    /// Reads what begins with a word; says where it ends.
    fn word(
        &mut self,
        word: &str,
        tokens: &[TokenTree],
        at: usize,
        items: bool,
        file: &mut Option<String>,
        exported: &mut bool,
    ) -> usize {
        match (word, tokens.get(at + 1), tokens.get(at + 2)) {
            ("pub", Some(TokenTree::Group(group)), _) if group.delimiter() == Delimiter::Parenthesis => at + 2,
            ("use", Some(_), _) if !is_punct(tokens.get(at + 1), '<') => {
                let end = tokens[at..].iter().position(|token| is_punct(Some(token), ';'));
                let end = end.map_or(tokens.len(), |end| at + end);
                self.imports.extend(imports(&tokens[at + 1..end], &[]));
                end
            }
            ("mod", Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) => {
                let mut inner = Self::default();
                inner.walk(&body.stream().into_iter().collect::<Vec<_>>(), true);
                self.inline.push((name.to_string(), inner));
                at + 3
            }
            ("mod", Some(TokenTree::Ident(name)), _) => {
                self.files.push(Declared { name: name.to_string(), path: file.take() });
                at + 2
            }
            ("extern", Some(TokenTree::Ident(kind)), Some(TokenTree::Ident(own)))
                if kind == "crate" && own == "self" =>
            {
                self.own_names.extend(tokens.get(at + 4).map(ToString::to_string));
                at + 5
            }
            ("macro_rules", _, Some(TokenTree::Ident(name))) => {
                self.macros.insert((name.to_string(), std::mem::take(exported)));
                at + 3
            }
            (_, Some(TokenTree::Ident(name)), _) if ITEMS.contains(&word) => {
                let is_item = items && !(at > 0 && [',', '<', '*'].iter().any(|of| is_punct(tokens.get(at - 1), *of)));
                // `const fn` and `unsafe extern "C" fn` are met again at their `fn`.
                if is_item && !ITEMS.contains(&name.to_string().as_str()) && name != "unsafe" && name != "mut" {
                    self.items.insert(name.to_string());
                    return at + 2;
                }
                at + 1
            }
            _ if KEYWORDS.contains(&word) => at + 1,
            _ => self.path(tokens, at),
        }
    }

    fn path(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let (path, end) = path(tokens, at);
        // A field or a method; a range is two points. `::a` is another crate's, `<T>::a` and `$a::b` a type's.
        let is_field = at > 0 && is_punct(tokens.get(at - 1), '.') && !(at > 1 && is_punct(tokens.get(at - 2), '.'));
        let is_behind = at > 1 && is_double_colon(tokens, at - 2);
        let is_variable = at > 0 && is_punct(tokens.get(at - 1), '$') && path[0] != "crate";
        if is_field || is_behind || is_variable {
            return end;
        }
        let is_called = match tokens.get(end) {
            Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Parenthesis,
            Some(TokenTree::Punct(punct)) => matches!(punct.as_char(), ':' | '<'),
            _ => false,
        };
        let is_macro = is_punct(tokens.get(end), '!') && !is_punct(tokens.get(end + 1), '=');
        if is_macro && path.len() == 1 {
            self.calls.extend(path);
        } else if path.len() > 1 || is_called || path[0].starts_with(char::is_uppercase) {
            self.paths.insert(path);
        }
        end
    }

    /// Attributes name functions and types, some in strings: `#[serde(with = "crate::bytes")]`.
    fn attribute(&mut self, tokens: &[TokenTree]) {
        self.walk(tokens, false);
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.attribute(&group.stream().into_iter().collect::<Vec<_>>()),
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    let text = text.trim_matches('"');
                    let is_path = |char: char| char.is_ascii_alphanumeric() || "_:".contains(char);
                    if text.contains("::") && text.chars().all(is_path) {
                        self.paths.insert(text.split("::").map(str::to_owned).collect());
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

/// `path = "file.rs"` of an attribute.
fn stated_path(tokens: &[TokenTree]) -> Option<String> {
    match tokens {
        [name, _, TokenTree::Literal(file)] if name.to_string() == "path" => {
            Some(file.to_string().trim_matches('"').to_owned())
        }
        _ => None,
    }
}

/// Whether the braces at `at` are a macro's: `name! { … }`, which may well hold a module's items.
fn is_invoked(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens.get(at - 1), '!')
}
