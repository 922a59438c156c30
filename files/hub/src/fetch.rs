//! The description of a model that is not on this disk.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cacheplan_files::{Limit, Source};
use serde::Deserialize;

use crate::client::{Client, Part, Whole};
use crate::description::Description;
use crate::fetched::Fetched;
use crate::head::Head;
use crate::name::{Name, is_commit, is_path, is_plain};
use crate::settings::Settings;
use crate::{DESCRIBING, HubError, INDEX, cache};

/// What is read of a file whose header may be longer. Most headers are not.
const FIRST: u64 = 64 << 10;
/// Files that are asked for at once.
const AT_ONCE: usize = 8;
/// Files whose headers are read of one model; the largest has some 200.
const MOST_FILES: usize = 1_000;

/// What the hub says of a model.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

pub(crate) fn fetch(settings: Settings, cache: Option<&Path>, name: Name<'_>) -> Result<Description, HubError> {
    let model = name.model;
    if let Some(file) = name.file.filter(|file| !file.ends_with(".gguf")) {
        let found = format!("{file} is not fetched");
        let instead =
            format!("a model is, by its name alone, and a file in GGUF; `hf download {model} {file}` gets this one");
        return Err(HubError::NoModel { name: model.to_owned(), found, instead });
    }
    let client = Arc::new(Client::new(settings));
    let path = format!("/api/models/{model}/revision/{}", name.revision.replace('/', "%2F"));
    let listed = client.whole(&path, Limit::LISTING)?.bytes;
    let wrong = |why: String| HubError::Malformed { url: path.clone(), why };
    let listing: Listing = Limit::LISTING.parse_json(&listed).map_err(|error| wrong(error.to_string()))?;
    if !is_commit(&listing.sha) {
        return Err(wrong("no commit is stated".to_owned()));
    }
    let repository = Repository { client, model, commit: &listing.sha, files: &listing.siblings };
    let (file, whole, heads) = name.file.map_or_else(|| repository.folder(), |file| repository.gguf(file))?;
    let shown = |file: &str| format!("{model}/{file}");
    let mut sources: Vec<Source> = heads.iter().map(|(name, head)| head.source(shown(name))).collect();
    let named = file.map(|at| sources.remove(at));
    sources.extend(whole.iter().map(|(name, whole)| Source::memory(shown(name), whole.bytes.clone())));
    let revision = format!("{model}@{}", listing.sha);
    let folder = cache.map(|cache| cache::of_model(cache, model));
    let fetched = Fetched { folder, revision: name.revision.to_owned(), commit: listing.sha.clone(), whole, heads };
    Ok(Description { fetched: Some(fetched), ..Description::of(revision, named, sources) })
}

type Wholes = Vec<(&'static str, Whole)>;
type Heads = Vec<(String, Head)>;

struct Repository<'a> {
    client: Arc<Client>,
    model: &'a str,
    commit: &'a str,
    files: &'a [Sibling],
}

impl Repository<'_> {
    fn has(&self, file: &str) -> bool {
        self.files.iter().any(|known| known.rfilename == file)
    }

    fn path(&self, file: &str) -> String {
        format!("/{}/resolve/{}/{file}", self.model, self.commit)
    }

    /// The config, what stands beside it, and the headers of the weights.
    fn folder(&self) -> Result<(Option<usize>, Wholes, Heads), HubError> {
        if !self.has("config.json") {
            return Err(self.no_config());
        }
        let mut whole = Vec::new();
        for (file, limit) in DESCRIBING.into_iter().filter(|(file, _)| self.has(file)) {
            whole.push((file, self.client.whole(&self.path(file), limit)?));
        }
        let single = || ["model.safetensors".to_owned()].into_iter().filter(|file| self.has(file)).collect();
        let shards = if self.has(INDEX) { self.shards() } else { single() };
        Ok((None, whole, self.heads(&shards)?))
    }

    /// A file in GGUF, and those that it was split into.
    fn gguf(&self, file: &str) -> Result<(Option<usize>, Wholes, Heads), HubError> {
        let mut files = vec![file.to_owned()];
        // NAME-00001-of-00003.gguf
        if let Some((stem, count)) = file.rsplit_once("-of-").filter(|(stem, _)| stem.ends_with("-00001")) {
            let stem = stem.trim_end_matches("00001");
            let of_split = |known: &&str| {
                let number = known.strip_prefix(stem).and_then(|rest| rest.strip_suffix(&format!("-of-{count}")));
                number.is_some_and(|number| number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit()))
            };
            let others = self.files.iter().map(|known| &*known.rfilename).filter(of_split);
            files.extend(others.filter(|other| *other != file).map(str::to_owned));
        }
        Ok((Some(0), Vec::new(), self.heads(&files)?))
    }

    /// The files that an index speaks of, as far as their names tell; which of them it means is the reader's to say.
    fn shards(&self) -> Vec<String> {
        let names = self.files.iter().map(|file| &file.rfilename);
        // Mistral's own format is a second copy.
        let is_shard =
            |name: &&String| name.ends_with(".safetensors") && is_plain(name) && !name.starts_with("consolidated");
        names.filter(is_shard).cloned().collect()
    }

    /// The beginnings of files, several at once.
    fn heads(&self, files: &[String]) -> Result<Heads, HubError> {
        let malformed = |why: String| HubError::Malformed { url: self.path(""), why };
        if files.len() > MOST_FILES {
            return Err(malformed(format!("headers of more than {MOST_FILES} files are not read")));
        }
        if let Some(odd) = files.iter().find(|file| !is_path(file)) {
            return Err(malformed(format!("`{odd}` is no name of a file that is asked for")));
        }
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(files.len()) {
                scope.spawn(|| {
                    while let Some((at, file)) = {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        files.get(at).map(|file| (at, file))
                    } {
                        let head = self.head(file);
                        // After an error nothing more is asked for.
                        if head.is_err() {
                            next.store(files.len(), Ordering::Relaxed);
                        }
                        found.lock().unwrap_or_else(PoisonError::into_inner).push((at, head));
                    }
                });
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(at, head)| Ok((files[at].clone(), head?))).collect()
    }

    fn head(&self, file: &str) -> Result<Head, HubError> {
        let path = self.path(file);
        let Part { mut bytes, len } = self.client.part(&path, 0, FIRST)?;
        // The first eight bytes of safetensors say how long the header is.
        if let (true, Some(length)) = (file.ends_with(".safetensors"), bytes.first_chunk().copied()) {
            let (had, needed) = (bytes.len() as u64, u64::from_le_bytes(length).saturating_add(8));
            if needed <= Limit::SAFETENSORS.bytes + 8 && needed <= len {
                match had < needed {
                    true => bytes.extend(self.client.part(&path, had, needed)?.bytes),
                    false => bytes.truncate(needed as usize),
                }
            }
        }
        let client = Arc::clone(&self.client);
        Ok(Head::new(bytes, len, move |from, to| {
            let part = client.part(&path, from, to)?;
            let changed = || HubError::Malformed { url: path.clone(), why: "its length changed meanwhile".to_owned() };
            if part.len == len { Ok(part.bytes) } else { Err(changed()) }
        }))
    }

    fn no_config(&self) -> HubError {
        let model = self.model;
        let mut files: Vec<String> = self
            .files
            .iter()
            .filter(|file| file.rfilename.ends_with(".gguf") && is_path(&file.rfilename))
            .map(|file| format!("{model}/{}", file.rfilename))
            .collect();
        let more = if files.len() > 3 { ", …" } else { "" };
        files.truncate(3);
        let instead = match files.as_slice() {
            [] => "a model with one was expected, or a file in GGUF".to_owned(),
            files => format!("name one of its files instead: {}{more}", files.join(", ")),
        };
        HubError::NoModel { name: model.to_owned(), found: "there is no config.json".to_owned(), instead }
    }
}
