//! Where a command stands, and the engine's own command that is made of its words there.

use std::rc::Rc;

use super::engine;
use super::error::{ManifestError, Place};
use super::reading::{Reading, Spot};
use super::unknown::{self, Why};
use super::variables::{Unread, Variables, name_length};
use super::wheel::{Told, Wheels};
use crate::started::started;
use crate::{Launch, secret, visible};

/// Where a command stands, and what is around it.
#[derive(Clone)]
pub(super) struct Origin<'a> {
    pub(super) reading: &'a Reading<'a>,
    pub(super) at: Place,
    /// The object that it belongs to, such as `Deployment qwen, container vllm`; empty for a script.
    pub(super) object: String,
    /// The image that it runs in.
    pub(super) image: Option<String>,
    pub(super) gpus: Option<u32>,
    /// Whether a scheduler gives it several nodes.
    pub(super) several_nodes: bool,
    pub(super) device: Option<String>,
    /// Files that are written out in the same file, by their paths.
    pub(super) files: Vec<(Rc<str>, Rc<str>)>,
    /// The last words as they stand in a list, where no shell has read them.
    pub(super) items: Vec<Spot<'a>>,
    /// Whether a shell has read the words.
    pub(super) through_shell: bool,
    /// Whether the lines of a script are those of the file.
    pub(super) is_file: bool,
    /// Whether that is a Dockerfile, whose container has what was installed in front of it.
    pub(super) is_dockerfile: bool,
    /// Engines that are installed there.
    pub(super) wheels: Wheels,
}

impl<'a> Origin<'a> {
    pub(super) fn new(reading: &'a Reading<'a>, at: Place, object: String) -> Self {
        Self {
            reading,
            at,
            object,
            image: None,
            gpus: None,
            several_nodes: false,
            device: None,
            files: Vec::new(),
            items: Vec::new(),
            through_shell: false,
            is_file: false,
            is_dockerfile: false,
            wheels: Wheels::default(),
        }
    }

    /// What sets variables here and is not read.
    pub(super) fn unread(&self, what: &str) -> Unread {
        Unread::new(what, Why::Sourced, self.at.line)
    }

    /// What a script starts, which has to stand in no block that may not run.
    pub(super) fn unconditional(&self, found: Vec<Launch>, block: Option<&str>) -> Result<Vec<Launch>, ManifestError> {
        let Some(block) = block.filter(|_| !found.is_empty()) else { return Ok(found) };
        let what = format!("a command that starts an engine under a condition (`{block}`)");
        Err(ManifestError::NotRead { at: self.at.clone(), what, instead: "state the command alone" })
    }
}

/// An engine's own command, in which everything has to be known that it needs.
pub(super) fn launch(words: &[String], variables: &Variables, origin: &Origin<'_>) -> Result<Launch, ManifestError> {
    origin.reading.count_launch(&origin.at)?;
    let marked = words.iter().map(|word| match origin.through_shell {
        true => unknown::mark_templates(word),
        false => mark_variables(&unknown::mark_templates(word)),
    });
    let marked = marked.map(|word| word.replace(unknown::DOLLAR, "$"));
    let place = |index: usize| match (index + origin.items.len()).checked_sub(words.len()) {
        Some(index) if !origin.through_shell => origin.items.get(index).map_or_else(|| origin.at.clone(), Spot::place),
        _ => origin.at.clone(),
    };
    let words = unknown::settle(&marked.collect::<Vec<_>>(), place)?;
    if let Some(value) = variables.unknown(visible::is_read) {
        unknown::known(value, &origin.at)?;
    }
    let cautions = cautions(&words, variables);
    let mut env = variables.exported();
    for (name, value) in &mut env {
        *value = secret::hidden_value(name, value).replace(unknown::DOLLAR, "$");
    }
    let place = match (origin.object.as_str(), origin.at.line) {
        ("", Some(line)) => format!("{}:{line}", origin.reading.file),
        ("", None) => origin.reading.file.to_owned(),
        (object, _) => format!("{}: {object}", origin.reading.file),
    };
    let (gpus, device) = (origin.gpus, origin.device.clone());
    let image = origin.image.as_deref().map(unknown::written);
    let of_image = image.as_deref().and_then(engine::version);
    let engine = started(&words).map_or("", |(engine, _)| engine.name());
    let Told { version, open } = origin.wheels.of(engine, of_image.as_deref());
    let version = version.or(of_image);
    let launch =
        Launch { words, env, place, version, image, gpus, device, cautions, installs: open, ..Launch::default() };
    let named = launch.config_file().map(|path| path.trim_start_matches("./"));
    let file = origin.files.iter().rev().find(|(path, _)| Some(path.trim_start_matches("./")) == named);
    match file {
        Some((path, text)) => {
            unknown::known(text, &origin.at)?;
            // Each of its words takes more than itself.
            origin.reading.charge(16 * text.len(), &origin.at)?;
            launch.with_config(&format!("{}: {path}", origin.reading.file), text)
        }
        None => Ok(launch),
    }
}

/// What an answer hangs on that is not read, or does not reach the engine.
fn cautions(words: &[String], variables: &Variables) -> Vec<String> {
    let Some((engine, _)) = started(words) else { return Vec::new() };
    let mut cautions = Vec::new();
    let read = visible::read_by(engine, words);
    let (unread, names) = variables.may_be_set(read.iter().copied());
    if !unread.is_empty() && !names.is_empty() {
        let place = |line: usize| format!(" (line {line})");
        let what =
            unread.iter().map(|Unread { what, line, .. }| format!("`{what}`{}", line.map_or(String::new(), place)));
        let (what, names) = (what.collect::<Vec<_>>().join(", "), names.join(", "));
        cautions.push(format!(
            "what {what} sets is not read, and is taken to be none of {names}: state those of them that it sets beside the command"
        ));
    }
    let lost: Vec<&str> = read.into_iter().filter(|name| variables.is_reset(name)).collect();
    if !lost.is_empty() {
        let names = lost.join(",");
        cautions.push(format!(
            "`sudo` starts a program without the script's variables, {names} among them: `sudo --preserve-env={names}` hands on what is exported"
        ));
    }
    cautions
}

/// Marks `$NAME`, `${NAME}` and `$(NAME)` where nobody puts a value for it.
fn mark_variables(word: &str) -> String {
    let mut marked = String::with_capacity(word.len());
    let mut rest = word;
    // The last of each: where none is left none is looked for, which would take the square of the word.
    let (brace, parenthesis) = (word.rfind('}'), word.rfind(')'));
    while let Some((before, behind)) = rest.split_once('$') {
        marked += before;
        let closed = |sign: char, last: Option<usize>| {
            let is_left = last.is_some_and(|last| last >= word.len() - behind.len());
            if is_left { behind.find(sign).map_or(0, |end| end + 1) } else { 0 }
        };
        let length = match behind.chars().next() {
            Some('{') => closed('}', brace),
            Some('(') => closed(')', parenthesis),
            _ => name_length(behind),
        };
        match length {
            0 => marked.push('$'),
            _ => {
                let why = if behind.starts_with('(') { Why::NotSet } else { Why::NoShell };
                marked += &why.mark(&format!("${}", &behind[..length]));
            }
        }
        rest = &behind[length..];
    }
    marked + rest
}
