//! The hub's cache on this disk. Its layout is that of `huggingface_hub`: `models--org--name/refs/REVISION` holds a
//! commit, and `models--org--name/snapshots/COMMIT` its files, which are links to `blobs`.
//!
//! Beginnings of files are no files: they are ours, in `models--org--name/.headers/COMMIT`, and go with the model.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use cacheplan_files::{Limit, Source};

use crate::head::Head;
use crate::name::{Name, is_commit, is_plain};

/// The cache's folder, as `huggingface_hub` finds it.
pub(crate) fn folder(variable: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).map(PathBuf::from);
    path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")).or_else(|| Some(home(variable)?.join("hub")))
}

/// The folder of all that the hub's tools keep.
pub(crate) fn home(variable: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).map(PathBuf::from);
    let cache = || Some(path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")))?.join("huggingface"));
    path("HF_HOME").or_else(cache)
}

/// A model's folder.
pub(crate) fn of_model(cache: &Path, model: &str) -> PathBuf {
    cache.join(format!("models--{}", model.replace('/', "--")))
}

/// What the cache has under a name.
pub(crate) fn find(cache: &Path, name: Name<'_>) -> Option<PathBuf> {
    let folder = of_model(cache, name.model);
    let commit = commit(&folder, name.revision)?;
    let snapshot = folder.join("snapshots").join(commit);
    let found = name.file.map_or_else(|| snapshot.clone(), |file| snapshot.join(file));
    // A snapshot that somebody began to fill is not there yet.
    let is_there = if name.file.is_some() { found.exists() } else { has_model(&found) };
    is_there.then_some(found)
}

/// A tokenizer that somebody fetched alone is no model.
fn has_model(snapshot: &Path) -> bool {
    let is_weights = |name: &str| [".gguf", ".onnx", ".safetensors"].iter().any(|end| name.ends_with(end));
    names(snapshot).iter().any(|name| name == "config.json" || is_weights(name) || snapshot.join(name).is_dir())
}

/// What a branch or a tag of a model is at; a commit is itself.
pub(crate) fn commit(model: &Path, revision: &str) -> Option<String> {
    let said = Source::open(&model.join("refs").join(revision)).and_then(|file| file.text(Limit::TOML));
    let commit = said.map_or_else(|_| revision.to_owned(), |commit| commit.trim().to_owned());
    Some(commit).filter(|commit| is_plain(commit))
}

/// The model and the commit of a path in the cache: `org/name@commit`.
pub(crate) fn origin(cache: &Path, path: &Path) -> Option<(String, String)> {
    let mut parts = path.strip_prefix(cache).ok()?.iter().map(|part| part.to_str());
    let model = parts.next()??.strip_prefix("models--")?.replace("--", "/");
    let commit = parts.next()?.filter(|&part| part == "snapshots").and(parts.next()?)?;
    is_commit(commit).then(|| (model, commit.to_owned()))
}

/// The beginnings of files that were kept of a commit, by their names in `folder` of it.
pub(crate) fn heads(cache: &Path, model: &str, commit: &str, folder: &str) -> Vec<(String, Head)> {
    let place = headers(cache, model, commit).join(folder);
    let kept = |name: String| {
        let bytes = Source::open(&place.join(&name)).and_then(|file| file.bytes(Limit::KEPT_HEADER)).ok()?;
        Some((name, Head::of_kept(bytes)?))
    };
    names(&place).into_iter().filter_map(kept).collect()
}

pub(crate) fn headers(cache: &Path, model: &str, commit: &str) -> PathBuf {
    of_model(cache, model).join(".headers").join(commit)
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(&[("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b")], Some("/a"))]
    #[case(&[("HF_HOME", "/b"), ("HOME", "/h")], Some("/b/hub"))]
    #[case(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/x/huggingface/hub"))]
    #[case(&[("HOME", "/h")], Some("/h/.cache/huggingface/hub"))]
    #[case(&[], None)]
    fn the_cache_is_where_the_hubs_own_tools_have_it(
        #[case] variables: &[(&str, &str)],
        #[case] expected: Option<&str>,
    ) {
        let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        assert_eq!(folder(&variable), expected.map(PathBuf::from));
    }

    #[rstest]
    #[case("models--a--b/snapshots/0123456789abcdef0123456789abcdef01234567", Some("a/b"))]
    #[case("models--a--b/snapshots/0123456789abcdef0123456789abcdef01234567/x.gguf", Some("a/b"))]
    #[case("models--a--b/snapshots/main", None)]
    #[case("models--a--b/blobs/0123456789abcdef0123456789abcdef01234567", None)]
    #[case("elsewhere", None)]
    fn a_path_in_the_cache_tells_its_model(#[case] path: &str, #[case] expected: Option<&str>) {
        let found = origin(Path::new("/c"), &Path::new("/c").join(path));
        assert_eq!(found.map(|(model, _)| model).as_deref(), expected);
    }
}
