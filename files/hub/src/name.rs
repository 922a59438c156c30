//! Names on the hub: `org/name`, `org/name@revision`, `org/name/folder/file.gguf`.

use std::path::Path;

/// A name on the hub.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    /// `org/name`.
    pub(crate) model: &'a str,
    /// A branch, a tag or a commit.
    pub(crate) revision: &'a str,
    pub(crate) file: Option<&'a str>,
}

impl<'a> Name<'a> {
    pub(crate) fn parse(path: &'a Path) -> Option<Self> {
        let text = path.to_str()?;
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let slashes: Vec<usize> = name.match_indices('/').map(|(at, _)| at).collect();
        let end = slashes.get(1).copied().unwrap_or(name.len());
        let (model, file) = (&name[..end], name.get(end + 1..));
        let is_name = !slashes.is_empty() && [Some(model), Some(revision), file].into_iter().flatten().all(is_path);
        is_name.then_some(Self { model, revision, file })
    }
}

/// The name in the address of a page of the hub, as a browser shows it: of a model, a branch or a file.
pub(crate) fn in_address(text: &str) -> Option<String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
    let rest = rest.strip_prefix("huggingface.co/").or_else(|| rest.strip_prefix("hf.co/"))?;
    let rest = rest.split(['?', '#']).next().unwrap_or(rest).trim_end_matches('/');
    let parts: Vec<&str> = rest.splitn(5, '/').collect();
    match *parts.as_slice() {
        [org, name] => Some(format!("{org}/{name}")),
        [org, name, "tree", revision] => Some(format!("{org}/{name}@{revision}")),
        [org, name, "blob" | "resolve", revision, file] => Some(format!("{org}/{name}/{file}@{revision}")),
        _ => None,
    }
}

/// Whether it is a path of plain parts.
pub(crate) fn is_path(text: &str) -> bool {
    text.split('/').all(is_plain)
}

/// Whether it is one part of a name, which leads nowhere else.
pub(crate) fn is_plain(part: &str) -> bool {
    let allowed = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    !part.is_empty() && !part.starts_with(['.', '-']) && part.chars().all(allowed)
}

/// Whether it is a commit, which stays what it is.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://huggingface.co/org/name", Some("org/name"))]
    #[case("https://huggingface.co/org/name/?library=vllm", Some("org/name"))]
    #[case("https://hf.co/org/name/tree/v2", Some("org/name@v2"))]
    #[case("https://huggingface.co/org/name/blob/main/q/m.gguf", Some("org/name/q/m.gguf@main"))]
    #[case("https://huggingface.co/org", None)]
    #[case("https://example.com/org/name", None)]
    #[case("org/name", None)]
    fn the_address_of_a_page_names_its_model(#[case] address: &str, #[case] name: Option<&str>) {
        assert_eq!(in_address(address).as_deref(), name);
    }
}
