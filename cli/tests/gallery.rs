//! The gallery shows what its commands print; `UPDATE_DOCS=1 cargo test -p cacheplan-cli --test gallery` writes it anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const BEGIN: &str = "<!-- written by a test -->\n";
const END: &str = "<!-- end of written -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What a block of shell prints, with what a failing command says and its exit code; files that it writes to go into `drawn`
/// instead.
fn ran(command: &str, drawn: &mut BTreeMap<String, String>) -> String {
    let (line, file) = match command.trim().split_once(" > ") {
        Some((line, file)) => (line, Some(file)),
        None => (command.trim(), None),
    };
    let line = line.replace("\\\n", " ");
    let mut words = line.split_whitespace();
    assert_eq!(words.next(), Some("cacheplan"), "{command}");
    let run = Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(words).current_dir(root()).output().unwrap();
    let (printed, said) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8(run.stderr).unwrap());
    if let Some(file) = file {
        assert!(run.status.success(), "{command}: {said}");
        drawn.insert(file.to_owned(), printed);
        return String::new();
    }
    match run.status.code() {
        Some(0) => printed,
        Some(code) => format!("{printed}{said}exit code {code}\n"),
        None => panic!("{command}: {}", run.status),
    }
}

/// The page with the output of each command below it.
fn written(page: &str, drawn: &mut BTreeMap<String, String>) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("```sh\n") {
        let (command, after) = after.split_once("```\n").expect("a block ends");
        let output = ran(command, drawn);
        text.push_str(&format!("{before}```sh\n{command}```\n"));
        rest = after
            .strip_prefix(&format!("\n{BEGIN}"))
            .map_or(after, |old| old.split_once(END).expect("what is written ends").1);
        if !output.is_empty() {
            text.push_str(&format!("\n{BEGIN}```text\n{output}```\n{END}"));
        }
    }
    text + rest
}

#[test]
fn the_gallery_shows_what_its_commands_print() {
    let path = root().join("docs/gallery.md");
    let page = fs::read_to_string(&path).unwrap();
    assert_eq!(page.matches("\n## ").count(), 10);
    let mut drawn = BTreeMap::new();
    let new = written(&page, &mut drawn);
    assert!(!drawn.is_empty());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, new).unwrap();
        drawn.iter().for_each(|(file, text)| fs::write(root().join(file), text).unwrap());
        return;
    }
    assert_eq!(page, new, "UPDATE_DOCS=1 writes docs/gallery.md anew");
    for (file, text) in drawn {
        assert!(fs::read_to_string(root().join(&file)).unwrap() == text, "UPDATE_DOCS=1 draws {file} anew");
    }
}
