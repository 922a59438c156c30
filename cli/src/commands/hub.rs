//! Models by their names on the Hugging Face hub: `org/name`, `org/name@revision`, `org/name/file.gguf`.

use std::path::{Path, PathBuf};

use cacheplan::files::Shown;
use cacheplan::transforms::{FrontendError, Model, ReadOptions};
use cacheplan_hub::{Description, Hub, HubError};
use cacheplan_web::DiskModel;
use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::failure::note;

/// What a MODEL argument says: a path, or what the cache has under a name.
pub(crate) fn model() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| find(&path))
}

/// The same for what is typed elsewhere.
pub(crate) fn find(path: &Path) -> PathBuf {
    Hub::from_env().located(path)
}

/// What to do about a model that is not there; `None` for what is neither a link nor a name on the hub.
pub(crate) fn advice(path: &Path) -> Option<String> {
    if let Ok(target) = path.read_link() {
        return Some(format!("this link leads to {}, and there is no such file or folder", Shown(target.display())));
    }
    // llama.cpp and Ollama choose among the files of a model by a tag.
    if let Some((model, tag)) = path.to_str().and_then(|text| text.split_once(':'))
        && Hub::model_of(Path::new(model)).is_some()
    {
        return Some(format!(
            "`:{tag}` chooses among the files of a model; name the file itself, such as {model}/FILE.gguf"
        ));
    }
    let model = Hub::model_of(path)?;
    let hub = Hub::from_env();
    Some(format!(
        "there is no such file or folder, and no such model in {}; weights are never fetched: `hf download {model}` \
         puts them there",
        hub.cache()?.display()
    ))
}

/// A model that is here and has nearly that name: a file or folder in the same place, or one of the hub's cache.
pub(crate) fn near(path: &Path) -> Option<String> {
    near_in(&Hub::from_env(), path)
}

fn near_in(hub: &Hub, path: &Path) -> Option<String> {
    let mut near = PathBuf::new();
    let is_here = !path.as_os_str().is_empty()
        && path.components().all(|part| {
            let next = near.join(part);
            let beside = if near.as_os_str().is_empty() { Path::new(".") } else { near.as_path() };
            // What a link leads to may not be there.
            let there = || names(Some(beside)).into_iter().filter(|name| near.join(name).exists());
            let meant = || Shown(part.as_os_str().to_str()?).nearest(there()).map(|name| near.join(name));
            let found = if next.exists() { Some(next) } else { meant() };
            found.map(|found| near = found).is_some()
        });
    if is_here {
        return Some(near.display().to_string());
    }
    let said = path.to_str()?;
    let cached: Vec<String> = names(hub.cache()).iter().filter_map(|folder| name_of(folder)).collect();
    let whole =
        cached.iter().find(|name| name.split('/').next_back().is_some_and(|last| last.eq_ignore_ascii_case(said)));
    whole.cloned().or_else(|| Shown(said).nearest(cached))
}

/// The model of a folder `models--org--name`.
fn name_of(folder: &str) -> Option<String> {
    folder.strip_prefix("models--").map(|name| name.replace("--", "/"))
}

/// How to get the weights of a model in the cache.
pub(crate) fn advice_on_weights(path: &Path) -> Option<String> {
    let revision = Hub::from_env().revision(path)?;
    let (model, commit) = revision.split_once('@')?;
    Some(format!("weights are never fetched: `hf download {model} --revision {commit}` gets what is not there"))
}

/// Reads a model's description: from a path, else as the hub has it. What was fetched is said and kept.
pub(crate) fn read(path: &Path, options: &ReadOptions) -> Result<Result<Model, FrontendError>, HubError> {
    let hub = Hub::from_env();
    let Some(described) = hub.open(path)? else {
        return Ok(Model::read(path, options).map(|model| at(model, hub.revision(path))));
    };
    let read = match &described.file {
        Some(file) => Model::read_source(file, &described.beside, options),
        None => Model::read_sources(&described.beside, options),
    };
    Ok(read.map(|model| {
        say_and_keep(&described);
        at(model, Some(described.revision))
    }))
}

fn at(mut model: Model, revision: Option<String>) -> Model {
    if let Some((name, _)) = revision.as_deref().and_then(|revision| revision.split_once('@')) {
        model.info.name = Some(name.to_owned());
    }
    model.info.revision = revision;
    model
}

fn say_and_keep(described: &Description) {
    if described.is_fetched() {
        note(&format!("{} was fetched: its description, no weights", described.revision));
        if let Err(error) = described.keep() {
            note(&format!("what was fetched cannot be kept, and is fetched again next time: {error}"));
        }
    }
}

/// The newest snapshot of each model in the cache, by name. A cache that cannot be read has none.
pub(crate) fn places() -> Vec<DiskModel> {
    places_in(&Hub::from_env())
}

fn places_in(hub: &Hub) -> Vec<DiskModel> {
    let mut places: Vec<DiskModel> = names(hub.cache()).iter().flat_map(|folder| of_model(hub, folder)).collect();
    places.sort_by(|left, right| left.name.cmp(&right.name));
    places
}

/// A folder `models--org--name`: its config, else each of its GGUF files.
fn of_model(hub: &Hub, folder: &str) -> Vec<DiskModel> {
    let Some(name) = name_of(folder) else { return Vec::new() };
    let Some(snapshot) = hub.snapshot(folder) else { return Vec::new() };
    if snapshot.join("config.json").exists() {
        return vec![DiskModel { name, path: snapshot.display().to_string(), named: false }];
    }
    let files = names(Some(&snapshot)).into_iter().filter(|file| file.ends_with(".gguf"));
    files
        .map(|file| DiskModel {
            name: format!("{name} {file}"),
            path: snapshot.join(&file).display().to_string(),
            named: false,
        })
        .collect()
}

fn names(folder: Option<&Path>) -> Vec<String> {
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_was_probably_meant_is_named() {
        let here = tempfile::tempdir().unwrap();
        let cache = here.path().join("hub");
        fs::create_dir_all(cache.join("models--Qwen--Qwen3-8B/snapshots/1")).unwrap();
        fs::create_dir_all(here.path().join("models/Llama-3.1-8B")).unwrap();
        let hub = Hub::from_variables([("HF_HUB_CACHE".into(), cache.into())]);
        let near = |path: &str| near_in(&hub, Path::new(path));
        let beside = here.path().join("model/llama-3.1-8b");
        assert_eq!(near_in(&hub, &beside), Some(here.path().join("models/Llama-3.1-8B").display().to_string()));
        assert_eq!(near("Qwen/Qwen3-9B").as_deref(), Some("Qwen/Qwen3-8B"));
        assert_eq!(near("qwen3-8b").as_deref(), Some("Qwen/Qwen3-8B"));
        assert_eq!(near("mistralai/Mistral-7B-v0.1"), None);
        assert_eq!(near(""), None);
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("nowhere", here.path().join("models/link")).unwrap();
            assert_eq!(near_in(&hub, &here.path().join("models/link")), None);
        }
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
        let found: Vec<(String, String)> =
            places_in(&Hub::from_variables([("HF_HUB_CACHE".into(), hub.path().into())]))
                .into_iter()
                .map(|place| (place.name, place.path.replace(&hub.path().display().to_string(), "")))
                .collect();
        let expected = [("a/b", "/models--a--b/snapshots/2"), ("c/d d.gguf", "/models--c--d/snapshots/3/d.gguf")];
        assert_eq!(found, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
    }
}
