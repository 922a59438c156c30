//! What a manifest leaves open: it is marked in the text where it would stand, and judged only where an engine needs it.

use super::error::{ManifestError, Place};
use crate::secret::{self, HIDDEN, Hides, Watch};

/// The characters of a mark: they stand in no text that is read.
pub(super) const MARKS: [char; 3] = [BEGIN, MIDDLE, END];
const BEGIN: char = '\u{1}';
const MIDDLE: char = '\u{2}';
const END: char = '\u{3}';

/// A dollar sign that stands for itself where `$(NAME)` would be read: Kubernetes' `$$(NAME)`.
pub(super) const DOLLAR: char = '\u{5}';

pub(super) const RENDER: &str = "render it first (`helm template`, `envsubst`), or write the value";
const STATE: &str = "state its value in the manifest";
const WRITE: &str = "write the value";

/// Why something is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    NotSet,
    Secret,
    Cluster,
    Conditional,
    Positional,
    Command,
    Arithmetic,
    Pattern,
    Braces,
    Operator,
    Template,
    NoShell,
    Interpolated,
    Specifier,
    Loop,
    Sourced,
    InFile,
    NotInUnit,
    NotInScript,
    Running,
    Expression,
    Function,
    Later,
}

impl Why {
    const ALL: [Self; 23] = [
        Self::NotSet,
        Self::Secret,
        Self::Cluster,
        Self::Conditional,
        Self::Positional,
        Self::Command,
        Self::Arithmetic,
        Self::Pattern,
        Self::Braces,
        Self::Operator,
        Self::Template,
        Self::NoShell,
        Self::Interpolated,
        Self::Specifier,
        Self::Loop,
        Self::Sourced,
        Self::InFile,
        Self::NotInUnit,
        Self::NotInScript,
        Self::Running,
        Self::Expression,
        Self::Function,
        Self::Later,
    ];

    /// What a message says of it: why, and what would do.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NotSet => {
                ("is not set", "state it with `export NAME=value`, `env:` or `environment:` in the same file")
            }
            Self::Secret => ("comes from a secret of the cluster", STATE),
            Self::Cluster => ("is known only in the cluster", STATE),
            Self::Conditional => ("is set under a condition", "set it without one"),
            Self::Positional => ("is an argument of the script", WRITE),
            Self::Command => ("is what another command prints, or a variable that nothing sets", WRITE),
            Self::Arithmetic => ("is computed by the shell", WRITE),
            Self::Pattern => ("is a pattern of names of files", "write the name, or put it in quotes"),
            Self::Braces => ("is expanded by the shell", "write out the words, or put them in quotes"),
            Self::Operator => ("is more than a variable or its default", WRITE),
            Self::Template => ("is a template", RENDER),
            Self::NoShell => ("is no variable, since no shell reads it", "write `$(NAME)` in Kubernetes, or the value"),
            Self::Interpolated => ("is not set", "write the value, or a default (`${NAME:-value}`)"),
            Self::Specifier => ("is a specifier of systemd", WRITE),
            Self::Loop => ("is another value in each round of a loop", "write out the command of one of them"),
            Self::Sourced => {
                ("may be set by a file that is sourced or called", "set it behind that, or write the value")
            }
            Self::InFile => ("may be set by a file of variables, or an object, that is not read", WRITE),
            Self::NotInUnit => ("is not set in the unit", "state it with `Environment=`, or write the value"),
            Self::NotInScript => ("is not set in the script", "set it there, or write the value"),
            Self::Running => ("is known only where the script runs", WRITE),
            Self::Function => ("is set by a function that is called", "set it behind the call, or write the value"),
            Self::Later => ("is set only behind what names it in `env`", "set it in front of that"),
            Self::Expression => ("is an expression that this reader does not compute", WRITE),
        }
    }

    /// A text that stands for what is not known; `name` is what is written there. It is spelt in letters that mean nothing
    /// to a shell, which may read it again.
    pub(super) fn mark(self, name: &str) -> String {
        let index = Self::ALL.iter().position(|why| *why == self).unwrap_or(0);
        let index = char::from(b'a' + index as u8);
        let name: String = name.chars().take(80).map(|character| format!("{:x}.", u32::from(character))).collect();
        format!("{BEGIN}{index}{MIDDLE}{name}{END}")
    }

    /// The same of what a line has made so, which a message names.
    pub(super) fn mark_of(self, name: &str, line: usize) -> String {
        let name: String = name.chars().take(60).collect();
        self.mark(&format!("{name}{LINE}{line}"))
    }
}

/// What stands between a name and the line that has made it unknown.
const LINE: char = '\n';

/// What is written where a mark stands, and the line that has made it unknown.
fn spelt(name: &str) -> (String, Option<String>) {
    let character = |code: &str| u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
    let name: String = name.split('.').filter_map(character).collect();
    name.split_once(LINE).map_or_else(|| (name.clone(), None), |(name, line)| (name.to_owned(), Some(line.to_owned())))
}

/// Marks the templates of Helm and of others in a text.
pub(super) fn mark_templates(text: &str) -> String {
    let mut marked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("{{") {
        let (template, after) = behind.split_once("}}").unwrap_or((behind, ""));
        marked += before;
        marked += &Why::Template.mark(&format!("{{{{{template}}}}}"));
        rest = after;
    }
    marked + rest
}

/// A thing that is not known.
struct Unknown {
    /// As it is written.
    name: String,
    why: Why,
    line: Option<String>,
}

/// The first thing in a text that is not known.
fn first(text: &str) -> Option<Unknown> {
    let behind = &text[text.find(BEGIN)? + BEGIN.len_utf8()..];
    let (index, behind) = behind.split_once(MIDDLE)?;
    let index = index.bytes().next()?.checked_sub(b'a')?;
    let (name, line) = spelt(behind.split_once(END)?.0);
    Some(Unknown { name, why: *Why::ALL.get(usize::from(index))?, line })
}

/// A text whose every part has to be known.
pub(super) fn known(text: &str, at: &Place) -> Result<String, ManifestError> {
    match first(text) {
        None => Ok(text.to_owned()),
        Some(Unknown { name, why, line }) => {
            let (why, instead) = why.words();
            let name = if secret::has_key(&name) { HIDDEN.to_owned() } else { name };
            let line = line.map_or(String::new(), |line| format!(" (line {line})"));
            Err(ManifestError::NotKnown { at: at.clone(), name: format!("`{name}`{line}"), why, instead })
        }
    }
}

/// All that is not known in a text.
fn unknown(text: &str) -> impl Iterator<Item = Unknown> {
    text.split(BEGIN).skip(1).filter_map(|mark| first(&format!("{BEGIN}{mark}")))
}

/// A text as it is written, with what is not known in it.
pub(super) fn written(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(Unknown { name, .. }) = first(rest) {
        let (before, behind) = rest.split_once(BEGIN).unwrap_or((rest, ""));
        out += before;
        out += &name;
        rest = behind.split_once(END).map_or("", |(_, after)| after);
    }
    out + rest
}

/// The words of an engine's command: known, but for addresses and the like, on which no byte depends; without secrets.
/// `at` says where the word of an index stands.
pub(super) fn settle(words: &[String], at: impl Fn(usize) -> Place) -> Result<Vec<String>, ManifestError> {
    let mut settled = Vec::with_capacity(words.len());
    let mut watch = Watch::of(words);
    // Of how many words behind a flag nothing depends.
    let mut harmless = 0usize;
    for (index, word) in words.iter().enumerate() {
        let hides = watch.sees(word);
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) if secret::is_flag(word) => (Some(flag), Some(value)),
            _ if secret::is_flag(word) => (Some(word.as_str()), None),
            _ => (None, Some(word.as_str())),
        };
        if let Some(flag) = flag {
            harmless = harmless_words(flag);
        }
        settled.push(match (hides, value) {
            (Hides::All, _) => HIDDEN.to_owned(),
            (Hides::From(from), _) => secret::hidden_from(word, from),
            (_, Some(_)) if harmless > 0 => {
                harmless -= 1;
                written(word)
            }
            _ if !word.contains(MARKS) => word.clone(),
            // No file is called so, and then a pattern stays what is written: `-ot blk.*=CPU`.
            _ if word.contains('=') && unknown(word).all(|found| found.why == Why::Pattern) => written(word),
            _ => known(word, &at(index))?,
        });
    }
    Ok(secret::hidden_keys(settled))
}

/// The words behind a flag that say where an engine is reached, what it is called, how it words a conversation.
fn harmless_words(flag: &str) -> usize {
    const EXACT: [&str; 6] = ["host", "alias", "seed", "node-rank", "data-parallel-start-rank", "chat-template"];
    const PARTS: [&str; 9] = ["addr", "address", "ip", "port", "log", "logs", "ssl", "namespace", "endpoint"];
    let name = flag.trim_start_matches('-').replace('_', "-");
    match name == "served-model-name" {
        true => usize::MAX,
        false => usize::from(EXACT.contains(&name.as_str()) || name.split('-').any(|part| PARTS.contains(&part))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(words: &[String]) -> Result<Vec<String>, String> {
        settle(words, |_| Place { file: "f".to_owned(), ..Place::default() }).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_known_is_refused_only_where_it_matters() {
        let unset = Why::NotSet.mark("$X");
        let words = |flag: &str| vec!["vllm".to_owned(), flag.to_owned(), format!("a{unset}")];
        assert_eq!(settled(&words("--host")).unwrap(), ["vllm", "--host", "a$X"]);
        assert_eq!(settled(&words("--data-parallel-address")).unwrap()[2], "a$X");
        assert_eq!(settled(&words("--api-key")).unwrap()[2], HIDDEN);
        let error = settled(&words("--max-model-len")).unwrap_err();
        assert!(error.starts_with("f: `$X` is not set; state it with"), "{error}");
        assert!(settled(&[format!("--tensor-parallel-size={unset}")]).is_err());
        let pattern = Why::Pattern.mark("*");
        assert_eq!(settled(&[format!("blk.{pattern}.w{pattern}=CPU")]).unwrap(), ["blk.*.w*=CPU"]);
        assert!(settled(&[format!("blk.{pattern}={unset}")]).is_err());
        assert!(settled(&[format!("{pattern}.gguf")]).is_err());
        assert!(settled(&["--port".to_owned(), "1".to_owned(), unset]).is_err());
    }

    #[test]
    fn a_mark_means_nothing_to_a_shell() {
        let mark = Why::Command.mark("$(a | b 'c' *)");
        assert!(!mark.contains(|c: char| " $()|'*{}=".contains(c)), "{mark:?}");
        assert_eq!(written(&mark), "$(a | b 'c' *)");
    }

    #[test]
    fn templates_are_marked_and_written_back() {
        let marked = mark_templates("a {{ .Values.x }} b {{ c");
        assert_eq!(written(&marked), "a {{ .Values.x }} b {{ c}}");
    }
}
