//! Models that were downloaded before: the folders of Hugging Face's cache.

use std::fs;
use std::path::{Path, PathBuf};

use cacheplan_files::{Limit, Source};

use crate::Place;

/// The newest snapshot of each model in the cache at `hub`, by name. A cache that cannot be read has none.
pub fn hub_cache(hub: &Path) -> Vec<Place> {
    let mut places: Vec<Place> = names(hub).iter().flat_map(|folder| of_model(hub, folder)).collect();
    places.sort_by(|left, right| left.name.cmp(&right.name));
    places
}

/// A folder `models--org--name`: its config, else each of its GGUF files.
fn of_model(hub: &Path, folder: &str) -> Vec<Place> {
    let Some(name) = folder.strip_prefix("models--").map(|name| name.replace("--", "/")) else { return Vec::new() };
    let Some(snapshot) = snapshot(&hub.join(folder)) else { return Vec::new() };
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
    let main = Source::beside(&model.join("refs"), "main").ok().flatten();
    let main = main.and_then(|file| file.text(Limit::TOML).ok()).map(|commit| commit.trim().to_owned());
    let known = names(&snapshots);
    let commit = main.filter(|commit| known.contains(commit)).or_else(|| known.first().cloned())?;
    Some(snapshots.join(commit))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let found: Vec<(String, String)> = hub_cache(hub.path())
            .into_iter()
            .map(|place| (place.name, place.path.replace(&hub.path().display().to_string(), "")))
            .collect();
        let expected = [("a/b", "/models--a--b/snapshots/2"), ("c/d d.gguf", "/models--c--d/snapshots/3/d.gguf")];
        assert_eq!(found, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
    }
}
