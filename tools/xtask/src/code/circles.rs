//! Circles of imports between files: `cargo xtask circles`.
//!
//! A file imports another where one of its paths, followed through re-exports, ends at what the other defines. A module and
//! its own child may name each other. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::sources::Sources;
use super::tree::{Read, Tree};

/// Circles that stay, as the files in them; docs/decisions.md has the reason of each. At most three.
const KEPT: &[&[&str]] = &[];

/// What a file imports of another, as it is spelled there.
type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

pub(crate) fn run() -> Result<(), String> {
    let mut imports = Imports::new();
    let sources = Sources::of(None)?;
    for root in sources.roots()? {
        imports.extend(imports_of(&root, &|file: &Path| sources.text(file))?);
    }
    let circles = circles(&imports);
    let (kept, found): (Vec<_>, Vec<_>) = circles.iter().partition(|circle| is_kept(circle));
    if kept.len() < KEPT.len() {
        return Err("a circle of KEPT is no more: take it off the list".into());
    }
    if found.is_empty() {
        return Ok(());
    }
    let files: usize = found.iter().map(|circle| circle.len()).sum();
    let told: String = found.iter().map(|circle| tell(circle, &imports)).collect();
    Err(format!("{} circles of imports, with {files} files in them\n{told}", found.len()))
}

fn is_kept(circle: &[&Path]) -> bool {
    KEPT.iter().any(|kept| kept.iter().map(Path::new).eq(circle.iter().copied()))
}

/// The imports between the files of the crate of this root.
fn imports_of(root: &Path, read: &Read<'_>) -> Result<Imports, String> {
    let tree = Tree::read(root, read)?;
    let mut imports = Imports::new();
    for (id, module) in tree.modules.iter().enumerate() {
        let mut found = |file: &Path, spelled: String| {
            if file != module.file && !tree.are_parent_and_child(file, &module.file) {
                let of = imports.entry(module.file.clone()).or_default().entry(file.to_owned()).or_default();
                of.insert(spelled);
            }
        };
        for path in module.written.imports.iter().map(|import| &import.path).chain(&module.written.paths) {
            tree.files(id, path).into_iter().for_each(|file| found(file, path.join("::")));
        }
        for name in &module.written.calls {
            tree.macro_files(id, name).into_iter().for_each(|file| found(file, format!("{name}!")));
        }
    }
    Ok(imports)
}

/// The sets of files of which each reaches every other by imports.
fn circles(imports: &Imports) -> Vec<Vec<&Path>> {
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        imports.keys().map(|file| (file.as_path(), reached(file, imports))).collect();
    let circles: BTreeSet<Vec<&Path>> = reached
        .iter()
        .filter(|(file, behind)| behind.contains(*file))
        .map(|(file, behind)| {
            behind.iter().copied().filter(|other| reached.get(other).is_some_and(|back| back.contains(file))).collect()
        })
        .collect();
    circles.into_iter().collect()
}

fn reached<'a>(file: &Path, imports: &'a Imports) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Path> = imports.get(file).into_iter().flat_map(BTreeMap::keys).map(PathBuf::as_path).collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(imports.get(file).into_iter().flat_map(BTreeMap::keys).map(PathBuf::as_path));
        }
    }
    reached
}

/// A circle with the imports that hold it together.
fn tell(circle: &[&Path], imports: &Imports) -> String {
    let mut text = format!("\n{} files\n", circle.len());
    for file in circle {
        for (other, names) in imports[*file].iter().filter(|(other, _)| circle.contains(&other.as_path())) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let _ = writeln!(text, "  {} -> {}: {}", file.display(), other.display(), names.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate of these files, each as the names of its files.
    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let read = |file: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == file);
            found.map(|(_, text)| (*text).to_owned())
        };
        let imports = imports_of(Path::new("lib.rs"), &read).unwrap();
        let named = |circle: Vec<&Path>| {
            let names: Vec<String> = circle.iter().map(|file| file.display().to_string()).collect();
            names.join(" ")
        };
        circles(&imports).into_iter().map(named).collect()
    }

    #[test]
    fn re_exports_are_followed_to_the_file_that_defines() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::Thing; pub use b::{self, inner::Other as Renamed};"),
            ("a.rs", "use crate::Renamed; pub struct Thing;"),
            ("b/mod.rs", "pub mod inner;"),
            ("b/inner.rs", "pub struct Other(crate::Thing);"),
        ];
        assert_eq!(circles_of(&files), ["a.rs b/inner.rs"]);
    }

    #[rstest::rstest]
    #[case::full_paths("pub fn one() { crate::b::two() }", "pub fn two() { super::a::one() }")]
    #[case::globs("use super::b::*; pub fn one() { two() }", "use crate::a::*; pub fn two() { one() }")]
    #[case::macros_bodies(
        "macro_rules! m { () => { $crate::b::Two } } pub struct One;",
        "pub struct Two(crate::a::One);"
    )]
    #[case::calls_of_macros(
        "#[macro_export] macro_rules! m { () => { crate::b::Two } }",
        "pub struct Two; fn f() { m!() }"
    )]
    #[case::items_of_macros("kinds! { pub enum One { A } } use crate::b::Two;", "pub struct Two(crate::a::One);")]
    #[case::attributes("pub fn one() {} use crate::b::Two;", "#[serde(with = \"crate::a::one\")] pub struct Two;")]
    #[case::functions("pub fn one() { use crate::b::Two; }", "pub struct Two; fn f() { vec![crate::a::one()] }")]
    #[case::a_module_and_a_function_of_one_name("pub fn a() { crate::b::Two }", "use crate::both; pub struct Two;")]
    #[case::variants("pub enum One { A } use crate::b::Two;", "use crate::a::One::*; pub struct Two;")]
    #[case::own_name("pub fn one() { me::b::two() }", "pub fn two() { me::a::one() }")]
    fn every_spelling_of_an_import_counts(#[case] a: &str, #[case] b: &str) {
        let root = "extern crate self as me; mod a; mod b; mod c; pub use a::a as both;";
        assert_eq!(circles_of(&[("lib.rs", root), ("a.rs", a), ("b.rs", b), ("c.rs", "use crate::a;")]), ["a.rs b.rs"]);
    }

    #[rstest::rstest]
    #[case::one_way("use crate::b::Two;", "pub struct Two;")]
    #[case::tests(
        "use crate::b::Two; pub struct One;",
        "pub struct Two; #[cfg(test)] mod tests { use crate::a::One; }"
    )]
    #[case::documentation("use crate::b::Two; pub struct One;", "/// As [`crate::a::One`].\npub struct Two;")]
    #[case::visibility("use crate::b::Two; pub struct One;", "pub(in crate::a) struct Two;")]
    #[case::fields("use crate::b::*; pub fn f(x: X) { x.two() }", "use crate::a::*; pub fn two(x: X) { x.f }")]
    #[case::text(
        "use crate::b::Two; pub struct One;",
        "pub struct Two; const T: &str = \"crate::a::One\"; // crate::a::One"
    )]
    fn what_is_no_import_does_not_count(#[case] a: &str, #[case] b: &str) {
        assert_eq!(circles_of(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]), Vec::<String>::new());
    }

    #[test]
    fn a_module_and_its_own_child_may_name_each_other() {
        let own = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; use b::Two; pub struct One;"),
            ("a/b.rs", "use super::One; pub struct Two;"),
        ];
        assert_eq!(circles_of(&own), Vec::<String>::new());
        let through_another = [
            ("lib.rs", "mod a; mod c;"),
            ("a.rs", "mod b; use crate::c::Three; pub struct One;"),
            ("a/b.rs", "pub struct Two;"),
            ("c.rs", "use crate::a::One; pub struct Three;"),
        ];
        assert_eq!(circles_of(&through_another), ["a.rs c.rs"]);
    }
}
