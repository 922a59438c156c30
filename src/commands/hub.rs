//! Models by their names on the Hugging Face hub, where its own tools have put them on this disk: `org/name`,
//! `org/name@revision`, `org/name/file.gguf`.
//!
//! The cache's layout is that of `huggingface_hub`: `models--org--name/refs/REVISION` holds a commit, and
//! `models--org--name/snapshots/COMMIT` its files.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use cacheplan::files::{Limit, Source};
use cacheplan_web::Place;
use clap::builder::{PathBufValueParser, TypedValueParser};

/// What a MODEL argument says: a path, or what the cache has under a name.
pub(crate) fn model() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| find(&path))
}

/// The same for what is typed elsewhere.
pub(crate) fn find(path: &Path) -> PathBuf {
    located(path, folder().as_deref())
}

/// What to do about a model that is not there; `None` for what is no name on the hub.
pub(crate) fn advice(path: &Path) -> Option<String> {
    let Name { model, .. } = Name::parse(path)?;
    let cache = folder()?;
    Some(format!(
        "there is no such file or folder, and no such model in {}; nothing is downloaded: \
         `hf download {model}` puts it there, and for a plan its config.json is enough",
        cache.display()
    ))
}

/// The cache's folder, as `huggingface_hub` finds it.
fn folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    folder_of(variable)
}

fn folder_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).map(PathBuf::from);
    let home = || Some(path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")))?.join("huggingface"));
    path("HF_HUB_CACHE").or_else(|| Some(path("HF_HOME").or_else(home)?.join("hub")))
}

fn located(path: &Path, cache: Option<&Path>) -> PathBuf {
    let cached = || {
        let name = Name::parse(path)?;
        let folder = cache?.join(format!("models--{}", name.model.replace('/', "--")));
        let commit = commit(&folder, name.revision).unwrap_or_else(|| name.revision.to_owned());
        let snapshot = Some(folder.join("snapshots").join(&commit)).filter(|_| is_plain(&commit))?;
        let found = name.file.map_or_else(|| snapshot.clone(), |file| snapshot.join(file));
        found.exists().then_some(found)
    };
    // What lies here comes first.
    if path.exists() { path.to_owned() } else { cached().unwrap_or_else(|| path.to_owned()) }
}

/// What a branch or a tag of a model is at.
fn commit(model: &Path, revision: &str) -> Option<String> {
    let said = Source::open(&model.join("refs").join(revision)).and_then(|file| file.text(Limit::TOML));
    said.ok().map(|commit| commit.trim().to_owned())
}

/// The newest snapshot of each model in the cache, by name. A cache that cannot be read has none.
pub(crate) fn places() -> Vec<Place> {
    folder().map(|cache| places_in(&cache)).unwrap_or_default()
}

fn places_in(cache: &Path) -> Vec<Place> {
    let mut places: Vec<Place> = names(cache).iter().flat_map(|folder| of_model(cache, folder)).collect();
    places.sort_by(|left, right| left.name.cmp(&right.name));
    places
}

/// A folder `models--org--name`: its config, else each of its GGUF files.
fn of_model(cache: &Path, folder: &str) -> Vec<Place> {
    let Some(name) = folder.strip_prefix("models--").map(|name| name.replace("--", "/")) else { return Vec::new() };
    let Some(snapshot) = snapshot(&cache.join(folder)) else { return Vec::new() };
    if snapshot.join("config.json").exists() {
        return vec![Place { name, path: snapshot.display().to_string() }];
    }
    let files = names(&snapshot).into_iter().filter(|file| file.ends_with(".gguf"));
    files
        .map(|file| Place { name: format!("{name} {file}"), path: snapshot.join(&file).display().to_string() })
        .collect()
}

/// The snapshot that the branch `main` is at, else any.
fn snapshot(model: &Path) -> Option<PathBuf> {
    let snapshots = model.join("snapshots");
    let known = names(&snapshots);
    let main = commit(model, "main").filter(|commit| known.contains(commit));
    Some(snapshots.join(main.or_else(|| known.first().cloned())?))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A name on the hub.
struct Name<'a> {
    /// `org/name`.
    model: &'a str,
    /// A branch, a tag or a commit.
    revision: &'a str,
    file: Option<&'a str>,
}

impl<'a> Name<'a> {
    fn parse(path: &'a Path) -> Option<Self> {
        let text = path.to_str()?;
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let slashes: Vec<usize> = name.match_indices('/').map(|(at, _)| at).collect();
        let end = slashes.get(1).copied().unwrap_or(name.len());
        let (model, file) = (&name[..end], name.get(end + 1..));
        let parts =
            model.split('/').chain(revision.split('/')).chain(file.into_iter().flat_map(|file| file.split('/')));
        (!slashes.is_empty() && parts.into_iter().all(is_plain)).then_some(Self { model, revision, file })
    }
}

/// Whether it is one part of a name, which leads nowhere else.
fn is_plain(part: &str) -> bool {
    let allowed = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    !part.is_empty() && !part.starts_with(['.', '-']) && part.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[rstest]
    #[case::main("org/name", Some("snapshots/0123456789abcdef0123456789abcdef01234567"))]
    #[case::branch("org/name@pr/1", Some("snapshots/0123456789abcdef0123456789abcdef01234567"))]
    #[case::commit(
        "org/name@0123456789abcdef0123456789abcdef01234567",
        Some("snapshots/0123456789abcdef0123456789abcdef01234567")
    )]
    #[case::file("org/name/m.gguf", Some("snapshots/0123456789abcdef0123456789abcdef01234567/m.gguf"))]
    #[case::no_file("org/name/other.gguf", None)]
    #[case::no_revision("org/name@other", None)]
    #[case::no_model("org/other", None)]
    #[case::no_owner("name", None)]
    #[case::outwards("org/name/../../x", None)]
    #[case::outwards_revision("org/name@../secret", None)]
    fn a_name_is_a_snapshot_of_the_cache(#[case] name: &str, #[case] expected: Option<&str>) {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--org--name");
        fs::create_dir_all(model.join("refs/pr")).unwrap();
        fs::create_dir_all(model.join("snapshots").join(COMMIT)).unwrap();
        fs::write(model.join("refs/main"), COMMIT).unwrap();
        fs::write(model.join("refs/pr/1"), format!("{COMMIT}\n")).unwrap();
        fs::write(model.join("secret"), "..").unwrap();
        fs::write(model.join("snapshots").join(COMMIT).join("m.gguf"), "").unwrap();
        let expected = expected.map_or_else(|| PathBuf::from(name), |path| model.join(path));
        assert_eq!(located(Path::new(name), Some(cache.path())), expected);
    }

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
        assert_eq!(folder_of(variable), expected.map(PathBuf::from));
    }

    #[test]
    fn a_file_that_lies_here_comes_first() {
        let here = tempfile::tempdir().unwrap();
        assert_eq!(located(here.path(), None), here.path());
    }

    #[test]
    fn models_of_the_cache_have_their_names_and_newest_snapshots() {
        let hub = tempfile::tempdir().unwrap();
        for (folder, file) in [
            ("models--a--b/snapshots/1", "config.json"),
            ("models--a--b/snapshots/2", "config.json"),
            ("models--c--d/snapshots/3", "d.gguf"),
            ("models--e--f/refs", "main"),
            ("datasets--g--h/snapshots/4", "config.json"),
        ] {
            fs::create_dir_all(hub.path().join(folder)).unwrap();
            fs::write(hub.path().join(folder).join(file), "{}").unwrap();
        }
        fs::create_dir_all(hub.path().join("models--a--b/refs")).unwrap();
        fs::write(hub.path().join("models--a--b/refs/main"), "2\n").unwrap();
        let found: Vec<(String, String)> = places_in(hub.path())
            .into_iter()
            .map(|place| (place.name, place.path.replace(&hub.path().display().to_string(), "")))
            .collect();
        let expected = [("a/b", "/models--a--b/snapshots/2"), ("c/d d.gguf", "/models--c--d/snapshots/3/d.gguf")];
        assert_eq!(found, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
    }
}
