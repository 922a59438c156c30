//! Files that start engines: scripts, of Windows too, units of systemd, Dockerfiles, compose files, objects of Kubernetes, values of
//! charts, engines' own YAML.
//!
//! Everything is taken from the text: no file is opened, no variable of this process is looked at, nothing is run. What
//! would have to be, where an engine's command needs it, is refused by name.

mod command;
mod compose;
mod config;
mod docker;
mod dockerfile;
mod dynamo;
mod engine;
mod error;
mod helm;
mod kinds;
mod kserve;
mod kubernetes;
mod origin;
mod passed_over;
mod ray;
mod reading;
mod shell;
mod slurm;
mod unit;
mod unknown;
mod variables;
mod wheel;
mod windows;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};

use cacheplan_files::{Limit, Shown, Source};

pub(crate) use engine::other_build;
pub use error::{ManifestError, Place};
pub(crate) use kinds::GROUP;

use crate::Launch;
use kubernetes::Objects;
use origin::Origin;
use reading::{Reading, Spot};
use windows::Dialect;
use yaml::Value;

/// Reads the commands of a file that start engines; `name` stands for the file in places and messages.
///
/// # Errors
/// A file without such a command, or with one that depends on what the file does not say.
pub fn read(name: &str, bytes: &[u8]) -> Result<Vec<Launch>, ManifestError> {
    let text = Source::memory(name, bytes).text(Limit::MANIFEST)?;
    let reading = Reading::new(name);
    let dialect = Dialect::of(name, &text);
    let is_script = dialect.is_some() || unit::is(name, &text) || dockerfile::is(&text) || !is_yaml(name, &text);
    if is_script && text.contains(unknown::MARKS) {
        let at = Place { file: name.to_owned(), line: Some(1), path: String::new() };
        return Err(ManifestError::Syntax { at, reason: "a control character stands in it".to_owned() });
    }
    let nothing_else = |launches| (launches, String::new());
    let (mut launches, seen) = match dialect {
        Some(dialect) => nothing_else(windows::launches(dialect, &reading, &text)?),
        None if unit::is(name, &text) => nothing_else(unit::launches(&reading, &text)?),
        None if dockerfile::is(&text) => nothing_else(of_script(&reading, &dockerfile::script(&text), true)?),
        None if is_script => nothing_else(of_script(&reading, &text, false)?),
        None => of_yaml(&reading, &text)?,
    };
    let (passed, doubted) = (reading.passed(), reading.doubted());
    match (launches.is_empty(), doubted) {
        (true, Some(doubted)) => Err(doubted),
        (true, None) => {
            let seen = seen + &passed.map_or(String::new(), |passed| format!(" ({passed})"));
            Err(ManifestError::NoCommand { file: name.to_owned(), seen })
        }
        (false, doubted) => {
            let said = || passed.clone().into_iter().chain(doubted.as_ref().map(ToString::to_string));
            launches.iter_mut().for_each(|launch| launch.cautions.extend(said()));
            Ok(launches)
        }
    }
}

/// Whether a text may hold a command that starts an engine: whether it has the name of one, or a flag that they alone have.
pub fn may_hold(text: &str) -> bool {
    engine::is_in(text)
}

/// The commands that words start, which a shell has read; `env` has what it exports.
pub(crate) fn of_words(words: &[String], env: &BTreeMap<String, String>) -> Result<Vec<Launch>, ManifestError> {
    let reading = Reading::new("the command");
    let at = Place { file: reading.file.to_owned(), line: None, path: String::new() };
    command::of_words(words, env, &Origin { through_shell: true, ..Origin::new(&reading, at, String::new()) })
}

/// Whether a text is JSON that names the kind of an object, as a manifest does and no description of a model.
pub fn is_object(text: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Object {
        #[serde(rename = "kind")]
        _kind: String,
    }
    let text = text.trim_start_matches('\u{feff}').trim_start();
    // Others may follow it.
    let mut objects = serde_json::Deserializer::from_str(text).into_iter::<Object>();
    text.starts_with('{') && matches!(objects.next(), Some(Ok(_)))
}

/// Tells YAML from a script, by the first line that says anything where the name does not.
fn is_yaml(name: &str, text: &str) -> bool {
    if [".sh", ".bash", ".zsh"].iter().any(|extension| name.ends_with(extension)) {
        return false;
    }
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let Some(line) = lines.find(|line| line.starts_with("#!") || !line.trim_start().starts_with('#')) else {
        return false;
    };
    let key = line.split([' ', '\t', ':']).next().unwrap_or("");
    let is_key = !key.is_empty()
        && line[key.len()..].strip_prefix(':').is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
    is_key || is_flow(line) || line.starts_with('%') || line.starts_with("---") || line.starts_with("- ")
}

/// Whether a line begins a list or a map in braces, and neither a test nor a group of a shell, `[ -d x ]`, `{ vllm serve m; }`.
fn is_flow(line: &str) -> bool {
    let Some(inside) = line.strip_prefix(['{', '[']) else { return false };
    let word = inside.trim_start().split([' ', '\t']).next().unwrap_or("");
    let is_part = word.is_empty() || word.ends_with([':', ',']) || word.starts_with(['{', '}', ']', '\'', '"']);
    let is_shell = inside.starts_with([' ', '[']) && !is_part || line.starts_with("[ \"$") || line.starts_with("[[ ");
    !is_shell
}

fn of_script(reading: &Reading<'_>, text: &str, is_dockerfile: bool) -> Result<Vec<Launch>, ManifestError> {
    let at = Place { file: reading.file.to_owned(), line: Some(1), path: String::new() };
    let origin = Origin { is_file: true, is_dockerfile, ..Origin::new(reading, at, String::new()) };
    command::of_script(text, &slurm::of_script(text, origin))
}

/// The commands of documents, and what else they are.
fn of_yaml(reading: &Reading<'_>, text: &str) -> Result<(Vec<Launch>, String), ManifestError> {
    let nodes = yaml::documents(reading.file, text)?;
    let documents: Vec<Spot<'_>> = nodes.iter().map(|node| reading.root(node)).collect();
    let objects = Objects::of(&documents)?;
    reading.keep_config_maps(objects.config_maps()?);
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for object in objects.iter() {
        seen.insert(kubernetes::kind(object).unwrap_or("").to_owned());
        found.extend(kinds::launches(object, &objects)?);
    }
    let is_map = |root: &&Spot<'_>| matches!(root.node.value, Value::Map(_)) && !root.has("kind");
    for root in documents.iter().filter(is_map) {
        let is_service = ["decode", "prefill"].iter().any(|role| root.dig(&[role, "containers"]).is_some());
        if root.has("services") {
            seen.insert("services of Compose".to_owned());
            found.extend(compose::launches(root)?);
        } else if root.has("servingEngineSpec") {
            found.extend(helm::production_stack(root)?);
        } else if root.has("modelArtifacts") || is_service {
            found.extend(helm::model_service(root, &objects)?);
        } else if ray::is(root) {
            found.extend(ray::launches(root)?);
        } else {
            found.extend(config::alone(root, documents.len())?);
        }
    }
    let seen: Vec<String> = seen.iter().take(8).map(|kind| Shown(kind).to_string()).collect();
    let seen = if seen.is_empty() { String::new() } else { format!(" among {}", seen.join(", ")) };
    Ok((found, seen))
}
