//! Lines of product code by part: `cargo xtask lines [COMMIT]`.
//!
//! A line counts where it has code: neither blank, nor comment, nor documentation. Tests, benches, examples, fixtures, and what
//! is built do not count, whatever their language.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

use super::product::product;
use super::sources::Sources;
use super::tree::Tree;
use crate::files::at;

/// Folders of what is no product: tests, what is fed to them, what is built.
const APART: [&str; 7] = ["tests", "benches", "examples", "fixtures", "fuzz", "browser", "dist"];

/// The ending of each language but Rust, and what its comments begin with.
const LANGUAGES: [(&str, &[&str]); 10] = [
    ("py", &["#"]),
    ("pyi", &["#"]),
    ("ts", &["//", "/*", "*"]),
    ("mjs", &["//", "/*", "*"]),
    ("js", &["//", "/*", "*"]),
    ("html", &["<!--"]),
    ("css", &["/*"]),
    ("cu", &["//"]),
    ("cuh", &["//"]),
    ("sh", &["#"]),
];

pub(crate) fn run(then: Option<&str>) -> Result<(), String> {
    let now = count(None)?;
    let then = then.map(|commit| count(Some(commit))).transpose()?;
    print(&now, then.as_ref());
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a command-line tool speaks to its user")]
fn print(now: &BTreeMap<String, usize>, then: Option<&BTreeMap<String, usize>>) {
    let parts: BTreeSet<&String> = now.keys().chain(then.into_iter().flat_map(BTreeMap::keys)).collect();
    let sums = |of: &BTreeMap<String, usize>| of.values().sum::<usize>();
    let rows = parts.into_iter().map(|part| {
        let of = |counts: &BTreeMap<String, usize>| counts.get(part).copied().unwrap_or(0);
        (part.as_str(), of(now), then.map(of))
    });
    for (part, now, then) in rows.chain([("all", sums(now), then.map(sums))]) {
        match then {
            None => println!("{part:<12}{now:>8}"),
            Some(then) => println!("{part:<12}{then:>8}{now:>8}{:>+8}", now.cast_signed() - then.cast_signed()),
        }
    }
}

/// The lines of each part, of this folder or as they were committed.
fn count(commit: Option<&str>) -> Result<BTreeMap<String, usize>, String> {
    let sources = Sources::of(commit)?;
    if sources.text(Path::new("rustfmt.toml")).as_deref() != Some(include_str!("../../../../rustfmt.toml")) {
        return Err("formatted by another rustfmt.toml: the lines cannot be compared".into());
    }
    let mut counts = BTreeMap::new();
    for file in product_files(&sources)? {
        let Some(text) = sources.text(&file) else { continue };
        let lines = lines(&file, &text).map_err(at(&file))?;
        let part = file.iter().next().map(|part| part.to_string_lossy().into_owned()).unwrap_or_default();
        *counts.entry(part).or_insert(0) += lines;
    }
    Ok(counts)
}

/// Of Rust what the crates' roots declare, of other languages what lies in no folder of tests.
fn product_files(sources: &Sources<'_>) -> Result<BTreeSet<PathBuf>, String> {
    let is_apart = |file: &Path| file.iter().any(|part| APART.iter().any(|apart| part == *apart));
    let ending = |file: &Path| file.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_owned();
    let is_other = |file: &Path| LANGUAGES.iter().any(|(of, _)| ending(file) == *of);
    let mut files: BTreeSet<PathBuf> =
        sources.files.iter().filter(|file| is_other(file) && !is_apart(file)).cloned().collect();
    for root in sources.roots()?.into_iter().filter(|root| !is_apart(root)) {
        let tree = Tree::read(&root, &|file: &Path| sources.text(file))?;
        files.extend(tree.modules.into_iter().map(|module| module.file));
    }
    Ok(files)
}

fn lines(file: &Path, text: &str) -> Result<usize, String> {
    let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if ending == "rs" {
        let mut lines = BTreeSet::new();
        lines_of(product(text)?, &mut lines);
        return Ok(lines.len());
    }
    let comments = LANGUAGES.iter().find(|(of, _)| *of == ending).map_or(&[][..], |(_, comments)| comments);
    let is_code = |line: &&str| !line.is_empty() && !comments.iter().any(|comment| line.starts_with(comment));
    Ok(text.lines().map(str::trim).filter(is_code).count())
}

/// The lines on which tokens stand.
fn lines_of(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                lines.extend([group.span_open().start().line, group.span_close().end().line]);
                lines_of(group.stream(), lines);
            }
            other => lines.extend(other.span().start().line..=other.span().end().line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::comments("//! A.\n\n/// B.\n// C.\nfn d() {\n    /* E. */\n}\n", 2)]
    #[case::texts("const T: &str = \"a\n\n// b\n\";", 4)]
    #[case::tests(
        "fn a() {}\n#[cfg(test)]\nuse b::{\n    c,\n};\n#[cfg(test)]\nmod tests {\n    fn d() {}\n}\nfn e() {}\n",
        2
    )]
    #[case::declared_tests("#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests;\nmod a;\n", 1)]
    #[case::whole_files("#![cfg(all(test, unix))]\nfn a() {}\n", 0)]
    #[case::fields("struct A {\n    #[cfg(test)]\n    b: Vec<u8>,\n    c: u8,\n}\n", 3)]
    #[case::features("#[cfg(any(test, feature = \"a\"))]\nfn a() {}\n", 2)]
    fn lines_of_code_count(#[case] text: &str, #[case] count: usize) {
        assert_eq!(lines(Path::new("a.rs"), text), Ok(count));
    }

    #[test]
    fn other_languages_count_but_for_blank_lines_and_comments() {
        assert_eq!(lines(Path::new("a.py"), "# A.\n\nb = 1\n"), Ok(1));
    }
}
