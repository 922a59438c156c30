//! What a registry shows of each crate: its own documentation, which stands alone.
//!
//! `cacheplan` and its command have the README of the repository.

use crate::files::{at, text};
use std::fs;
use std::path::Path;

/// The folders of the crates that have one of their own.
const CRATES: [&str; 13] = [
    "files",
    "files/hub",
    "handlers",
    "transforms",
    "planner",
    "planner/serve",
    "managers",
    "managers/index",
    "kernels",
    "runtime",
    "runtime/graphs",
    "runtime/text",
    "cli/web",
];

/// Writes them all anew.
pub(crate) fn run() -> Result<(), String> {
    CRATES.iter().try_for_each(|folder| {
        let file = Path::new(folder).join("README.md");
        fs::write(&file, readme(Path::new(folder))?).map_err(at(&file))
    })
}

fn readme(folder: &Path) -> Result<String, String> {
    let read = |file: &str| text(folder.join(file));
    let (manifest, library) = (read("Cargo.toml")?, read("src/lib.rs")?);
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let name = name.ok_or_else(|| format!("{}: no name", folder.display()))?;
    let documented = library.lines().map_while(|line| line.strip_prefix("//!"));
    let documented: Vec<&str> = documented.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let part = "Part of [cacheplan](https://crates.io/crates/cacheplan), which plans, proves, allocates and runs the caches of \
                LLM inference.\nThe crate `cacheplan` has all of them under one roof, `cacheplan-cli` is the command.";
    let licence = "MIT or Apache-2.0, at your choice.";
    Ok(format!(
        "<!-- written by `cargo xtask readmes` of src/lib.rs -->\n# {name}\n\n{}\n{part}\n\n{licence}\n<!-- end of written -->\n",
        markdown(&documented)
    ))
}

/// Documentation of Rust as any reader of Markdown shows it: no hidden lines of examples, and no links to items.
fn markdown(documented: &[&str]) -> String {
    let (mut text, mut code) = (String::new(), false);
    for line in documented {
        match line.strip_prefix("```") {
            Some(_) => {
                text.push_str(if code { "```" } else { "```rust" });
                code = !code;
            }
            None if code && (*line == "#" || line.starts_with("# ")) => continue,
            None if code => text.push_str(line),
            None => text.push_str(&without_items(line)),
        }
        text.push('\n');
    }
    text
}

/// A line whose links to items are their words: `[`Plan`](crate::Plan)` is `` `Plan` ``.
fn without_items(line: &str) -> String {
    let Some((before, rest)) = line.split_once('[') else { return line.to_owned() };
    let Some((words, rest)) = rest.split_once(']') else { return line.to_owned() };
    let target = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    match target {
        Some((target, rest)) if target.starts_with("http") => {
            format!("{before}[{words}]({target}){}", without_items(rest))
        }
        Some((_, rest)) => format!("{before}{words}{}", without_items(rest)),
        None => format!("{before}{words}{}", without_items(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("A [`Plan`](crate::Plan) of [`Pool`]s", "A `Plan` of `Pool`s")]
    #[case("see [it](https://a.b)", "see [it](https://a.b)")]
    #[case("nothing", "nothing")]
    fn links_to_items_are_their_words(#[case] line: &str, #[case] expected: &str) {
        assert_eq!(without_items(line), expected);
    }

    #[test]
    fn hidden_lines_of_examples_stay_hidden() {
        assert_eq!(markdown(&["a", "```no_run", "# use b;", "c", "```"]), "a\n```rust\nc\n```\n");
    }

    /// Each is what its crate's documentation says; `cargo xtask readmes` writes it anew.
    #[test]
    fn each_crate_has_the_readme_of_its_documentation() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for folder in CRATES {
            let folder = root.join(folder);
            assert_eq!(fs::read_to_string(folder.join("README.md")).ok(), readme(&folder).ok(), "{}", folder.display());
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a crate has one");
            assert!(manifest.contains("\nreadme = \"README.md\"\n"), "{}", folder.display());
        }
    }
}
