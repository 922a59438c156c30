//! What the crates offer their users, as one committed list: a change of it is a decision, not an accident.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const CRATES: [&str; 9] =
    ["files", "handlers", "transforms", "planner", "managers", "kernels", "graphs", "text", "runtime"];

/// Features that are off by default; what they add is listed, and not counted.
const FEATURES: [&str; 1] = ["prefix-tree"];

/// The committed list. After a change that is meant, run the test with `UPDATE_PUBLIC_API=1`.
const LIST: &str = "tests/public_api.txt";

#[test]
fn the_crates_export_what_the_list_says() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut list = String::new();
    for name in CRATES {
        let mut names = exports(&top.join(name).join("src/lib.rs"), "");
        names.sort();
        let count = names.iter().filter(|name| !name.contains(" with ")).count();
        writeln!(list, "{name}: {count}").unwrap();
        for name in names {
            writeln!(list, "  {name}").unwrap();
        }
    }
    if std::env::var_os("UPDATE_PUBLIC_API").is_some() {
        std::fs::write(top.join(LIST), &list).unwrap();
    }
    let committed = std::fs::read_to_string(top.join(LIST)).unwrap();
    let gone: Vec<&str> = committed.lines().filter(|line| !list.lines().any(|now| now == *line)).collect();
    let new: Vec<&str> = list.lines().filter(|line| !committed.lines().any(|was| was == *line)).collect();
    assert!(gone.is_empty() && new.is_empty(), "{LIST} differs; gone: {gone:#?}, new: {new:#?}");
}

/// The public names of a module's file and of the public modules in it.
///
/// It reads the text as rustfmt leaves it: items of a file start at the first column.
fn exports(file: &Path, module: &str) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut names = Vec::new();
    // `#[cfg(test)] pub use` does not occur.
    let mut rest = text.as_str();
    while let Some(start) = find_item(rest) {
        let condition = rest[..start].lines().last().unwrap_or_default();
        let feature = FEATURES.iter().find(|feature| {
            let (alone, or_test) = (format!("feature = \"{feature}\""), format!("any(test, feature = \"{feature}\")"));
            [alone, or_test].iter().any(|when| condition == format!("#[cfg({when})]"))
        });
        let first = names.len();
        rest = &rest[start..];
        let item = rest.strip_prefix("pub ").unwrap_or(rest);
        if let Some(tree) = item.strip_prefix("use ") {
            let end = tree.find(';').expect("a use ends");
            names.extend(leaves(&tree[..end]).into_iter().map(|leaf| format!("{module}{leaf}")));
        } else if let Some(name) = item.strip_prefix("mod ") {
            let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            names.extend(exports(&file_of(file, &name), &format!("{module}{name}::")));
        } else {
            let words = ["const fn ", "fn ", "struct ", "enum ", "trait ", "type ", "const ", "static "];
            let name = words.iter().find_map(|word| item.strip_prefix(word)).expect("an item of a known sort");
            names.push(format!("{module}{}", identifier(name)));
        }
        if let Some(feature) = feature {
            // A module's feature is that of what it exports, which may ask for it too.
            let bare = names[first..].iter_mut().filter(|name| !name.contains(" with "));
            bare.for_each(|name| name.push_str(&format!(" with {feature}")));
        }
        rest = &rest[4..];
    }
    names
}

fn find_item(text: &str) -> Option<usize> {
    if text.starts_with("pub ") { Some(0) } else { text.find("\npub ").map(|at| at + 1) }
}

fn identifier(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The names that a `use` brings in: `a::{b, c as d}` gives `b` and `d`.
fn leaves(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    match tree.find('{') {
        None => {
            let name = tree.rsplit(" as ").next().unwrap_or(tree);
            vec![name.rsplit("::").next().unwrap_or(name).trim().to_owned()]
        }
        Some(open) => {
            let inner = tree[open + 1..].trim_end().strip_suffix('}').expect("braces are closed");
            split_outside_braces(inner).iter().flat_map(|part| leaves(part)).collect()
        }
    }
}

fn split_outside_braces(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

/// The file of a module that `parent` declares.
fn file_of(parent: &Path, name: &str) -> PathBuf {
    let folder = parent.parent().expect("a file has a folder");
    let stem = parent.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = if matches!(stem, "lib" | "mod") { folder.to_owned() } else { folder.join(stem) };
    let flat = folder.join(format!("{name}.rs"));
    if flat.is_file() { flat } else { folder.join(name).join("mod.rs") }
}
