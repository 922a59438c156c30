//! The paths and imports that tokens spell, macros' bodies included.

use proc_macro2::{Delimiter, TokenTree};

use super::product::is_punct;

/// What a `use` brings into scope.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// The name it is given; none for `*` and `_`.
    pub(super) name: Option<String>,
    pub(super) glob: bool,
}

/// Reads a path that begins at `at`; says where it ends.
pub(super) fn path(tokens: &[TokenTree], at: usize) -> (Vec<String>, usize) {
    let (mut path, mut at) = (Vec::new(), at);
    while let Some(TokenTree::Ident(word)) = tokens.get(at) {
        path.push(word.to_string());
        at += 1;
        if !(is_double_colon(tokens, at) && matches!(tokens.get(at + 2), Some(TokenTree::Ident(_)))) {
            break;
        }
        at += 2;
    }
    (path, at)
}

pub(super) fn is_double_colon(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')
}

/// The imports of a `use` tree behind `prefix`; a leading `::` names another crate, and yields none.
pub(super) fn imports(tokens: &[TokenTree], prefix: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    for tree in tokens.split(|token| is_punct(Some(token), ',')) {
        let (mut path, at) = {
            let (own, at) = self::path(tree, 0);
            (prefix.iter().cloned().chain(own).collect::<Vec<_>>(), at)
        };
        let behind = if at > 0 && is_double_colon(tree, at) { at + 2 } else { at };
        match tree.get(behind) {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                found.extend(imports(&inner, &path));
            }
            Some(TokenTree::Punct(star)) if star.as_char() == '*' => {
                found.push(Import { path, name: None, glob: true });
            }
            other => {
                if path.len() == prefix.len() {
                    continue;
                }
                if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                    path.pop();
                }
                let renamed = matches!(other, Some(TokenTree::Ident(word)) if word == "as");
                let name = match (renamed, tree.get(behind + 1)) {
                    (true, Some(TokenTree::Ident(name))) => Some(name.to_string()).filter(|name| name != "_"),
                    _ => path.last().cloned(),
                };
                found.push(Import { path, name, glob: false });
            }
        }
    }
    found
}
