//! Files that were read, so that no output of the same command takes the place of one, however either is named.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// What a file is, whatever its name.
#[cfg(unix)]
type Identity = (u64, u64);
#[cfg(not(unix))]
type Identity = std::path::PathBuf;

static INPUTS: OnceLock<Mutex<HashSet<Identity>>> = OnceLock::new();

/// Remembers every file that is opened from now on, and the one that standard input is. A command calls it before anything
/// is read; who uses this as a library may read a file and write it anew.
pub fn remember_inputs() {
    let inputs = INPUTS.get_or_init(Mutex::default);
    #[cfg(unix)]
    if let Ok(stdin) = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned() {
        let stdin = File::from(stdin);
        if stdin.metadata().is_ok_and(|found| found.is_file()) {
            insert(inputs, &stdin, Path::new("-"));
        }
    }
    #[cfg(not(unix))]
    let _ = inputs;
}

/// Names of a model's files, whether a command reads all of them or not.
const OF_MODELS: [&str; 14] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "model.safetensors.index.json",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// Remembers the files of the model in `folder` as if they were opened.
pub fn remember_model(folder: &Path) {
    let Some(inputs) = INPUTS.get() else { return };
    let found = OF_MODELS.iter().filter_map(|name| identity_at(&folder.join(name)));
    inputs.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
}

/// Whether a path leads to a file that was read.
pub(crate) fn is_input(path: &Path) -> bool {
    let Some((inputs, identity)) = INPUTS.get().zip(identity_at(path)) else { return false };
    inputs.lock().unwrap_or_else(PoisonError::into_inner).contains(&identity)
}

/// Notes a file that was opened to be read.
pub(crate) fn opened(file: &File, path: &Path) {
    if let Some(inputs) = INPUTS.get() {
        insert(inputs, file, path);
    }
}

fn insert(inputs: &Mutex<HashSet<Identity>>, file: &File, path: &Path) {
    inputs.lock().unwrap_or_else(PoisonError::into_inner).extend(identity(file, path));
}

#[cfg(unix)]
fn identity(file: &File, _: &Path) -> Option<Identity> {
    file.metadata().ok().as_ref().map(of)
}

/// That of what a path leads to, without opening it.
#[cfg(unix)]
fn identity_at(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().as_ref().map(of)
}

#[cfg(unix)]
fn of(found: &std::fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

#[cfg(not(unix))]
fn identity(_: &File, path: &Path) -> Option<Identity> {
    identity_at(path)
}

#[cfg(not(unix))]
fn identity_at(path: &Path) -> Option<Identity> {
    path.canonicalize().ok()
}
