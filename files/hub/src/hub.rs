//! The hub as this machine knows it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use cacheplan_files::{Source, SourceError};

use crate::HubError;
use crate::cache;
use crate::description::Description;
use crate::name::{self, Name};

/// The hub's cache on this disk, and the hub itself where it may be asked.
pub struct Hub {
    /// What the environment says, tokens included.
    #[cfg_attr(not(feature = "fetch"), expect(dead_code, reason = "who asks nobody needs only the cache"))]
    variables: BTreeMap<OsString, OsString>,
    cache: Option<PathBuf>,
}

impl Hub {
    /// As the environment says: `HF_HUB_CACHE`, `HF_HOME`, and for what is fetched `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_HUB_OFFLINE`, those that `huggingface_hub` has beside them, and `SSL_CERT_FILE`.
    pub fn from_env() -> Self {
        Self::from_variables(std::env::vars_os())
    }

    /// As these variables say.
    pub fn from_variables(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let variables: BTreeMap<OsString, OsString> =
            variables.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        let cache = cache::folder(&|name: &str| variables.get(OsStr::new(name)).cloned());
        Self { variables, cache }
    }

    /// The cache's folder; it need not be there.
    pub fn cache(&self) -> Option<&Path> {
        self.cache.as_deref()
    }

    /// Finds what the cache has under a name, or under the address of its page; the name itself where the cache has nothing, and
    /// the path where it is no name or where something lies there.
    pub fn located(&self, path: &Path) -> PathBuf {
        let named = path.to_str().and_then(name::in_address).map_or_else(|| path.to_owned(), PathBuf::from);
        let cached = || cache::find(self.cache.as_deref()?, Name::parse(&named)?);
        // What lies here comes first.
        if path.exists() { path.to_owned() } else { cached().unwrap_or(named) }
    }

    /// The snapshot of a model that the branch `main` is at, else any; `folder` is `models--org--name`.
    pub fn snapshot(&self, folder: &str) -> Option<PathBuf> {
        let model = self.cache.as_deref()?.join(folder);
        let snapshots = model.join("snapshots");
        let known = cache::names(&snapshots);
        let main = cache::commit(&model, "main").filter(|commit| known.contains(commit));
        Some(snapshots.join(main.or_else(|| known.first().cloned())?))
    }

    /// The model and the commit of a path in the cache, `org/name@commit`.
    pub fn revision(&self, path: &Path) -> Option<String> {
        let (model, commit) = cache::origin(self.cache.as_deref()?, path)?;
        Some(format!("{model}@{commit}"))
    }

    /// The model that a path would name on the hub, `org/name`.
    pub fn model_of(path: &Path) -> Option<&str> {
        Name::parse(path).map(|name| name.model)
    }

    /// The description of a model that is no path to read as it is: one of the cache of which more is known than its
    /// files, or one that is not there and is fetched.
    ///
    /// # Errors
    /// See [`HubError`]. Nobody is asked for what is in the cache.
    pub fn open(&self, path: &Path) -> Result<Option<Description>, HubError> {
        if path.exists() {
            return Ok(self.with_headers(path)?);
        }
        // Whoever mistypes a path has not asked for a model of that name.
        let is_of_hub = |name: &Name<'_>| name.model.split('/').next().is_some_and(|first| !Path::new(first).is_dir());
        let Some(name) = Name::parse(path).filter(is_of_hub) else { return Ok(None) };
        match self.headers_of(name) {
            Some(kept) => Ok(Some(kept)),
            None => self.fetch(name).map(Some),
        }
    }

    /// A snapshot of the cache with the headers that were fetched of its weights, where there are any.
    fn with_headers(&self, snapshot: &Path) -> Result<Option<Description>, SourceError> {
        let found = self.cache.as_deref().filter(|_| snapshot.is_dir());
        let Some((cache, (model, commit))) = found.and_then(|cache| Some((cache, cache::origin(cache, snapshot)?)))
        else {
            return Ok(None);
        };
        let names = cache::names(snapshot);
        let heads = cache::heads(cache, &model, &commit, "");
        let mut heads: Vec<Source> = heads
            .into_iter()
            .filter(|(name, _)| name.ends_with(".safetensors") && !names.contains(name))
            .map(|(name, head)| head.source(format!("{model}/{name}")))
            .collect();
        if heads.is_empty() {
            return Ok(None);
        }
        let read =
            |name: &&String| name.ends_with(".safetensors") || crate::DESCRIBING.iter().any(|(known, _)| known == name);
        for name in names.iter().filter(read) {
            heads.extend(Source::beside(snapshot, name)?);
        }
        Ok(Some(Description::of(format!("{model}@{commit}"), None, heads)))
    }

    /// The headers of a GGUF file that were kept.
    fn headers_of(&self, name: Name<'_>) -> Option<Description> {
        let file = name.file.filter(|file| file.ends_with(".gguf"))?;
        let cache = self.cache.as_deref()?;
        let commit = cache::commit(&cache::of_model(cache, name.model), name.revision)?;
        let (folder, file) = file.rsplit_once('/').unwrap_or(("", file));
        let mut heads: Vec<(String, Source)> = cache::heads(cache, name.model, &commit, folder)
            .into_iter()
            .map(|(file, head)| (file.clone(), head.source(format!("{}/{file}", name.model))))
            .collect();
        let at = heads.iter().position(|(known, _)| known == file)?;
        let (_, file) = heads.swap_remove(at);
        let beside = heads.into_iter().map(|(_, source)| source).collect();
        Some(Description::of(format!("{}@{commit}", name.model), Some(file), beside))
    }

    #[cfg(not(feature = "fetch"))]
    fn fetch(&self, name: Name<'_>) -> Result<Description, HubError> {
        Err(HubError::Offline { name: name.model.to_owned(), why: "this build fetches nothing" })
    }

    #[cfg(feature = "fetch")]
    fn fetch(&self, name: Name<'_>) -> Result<Description, HubError> {
        let settings = crate::settings::Settings::read(
            &|variable: &str| self.variables.get(OsStr::new(variable)).cloned(),
            name.model,
        )?;
        crate::fetch::fetch(settings, self.cache.as_deref(), name)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("cache", &self.cache).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use rstest::rstest;

    fn with_cache(cache: &Path) -> Hub {
        Hub::from_variables([("HF_HUB_CACHE".into(), cache.into())])
    }

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
    #[case::empty_snapshot("org/name@begun", None)]
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
        fs::create_dir_all(model.join("snapshots/begun")).unwrap();
        fs::write(model.join("secret"), "..").unwrap();
        fs::write(model.join("snapshots").join(COMMIT).join("m.gguf"), "").unwrap();
        let expected = expected.map_or_else(|| PathBuf::from(name), |path| model.join(path));
        assert_eq!(with_cache(cache.path()).located(Path::new(name)), expected);
    }

    #[test]
    fn a_file_that_lies_here_comes_first() {
        let here = tempfile::tempdir().unwrap();
        assert_eq!(Hub::from_variables([]).located(here.path()), here.path());
    }

    #[test]
    fn a_path_into_a_folder_that_is_here_is_no_name() {
        let hub = Hub::from_variables([]);
        assert!(hub.open(Path::new("src/nothing")).unwrap().is_none());
    }
}
