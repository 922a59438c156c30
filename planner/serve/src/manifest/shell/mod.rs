//! Scripts: what is assigned is followed, what starts an engine is found. Nothing is run.

mod builtins;
mod expand;
mod lex;
mod statements;
mod word;

use std::collections::{BTreeMap, BTreeSet};

use super::engine;
use super::error::{ManifestError, Place};
use super::origin::Origin;
use super::reading::Reading;
use super::unknown::{self, MARKS, Why};
use super::variables::Variables;
use super::wheel;
use crate::{Launch, secret};

use expand::Expansion;
use statements::{ARITHMETIC, Join, Statement, statements};
use word::{Piece, Word, assigned};

pub(super) use word::computed;

/// Texts of `eval` within each other.
const DEPTH: usize = 5;

/// What a function sets that runs what is not read: no variable is called so.
const UNREAD: &str = ".";

/// What finds the engines of a command.
type Run<'a> = &'a dyn Fn(&[String], Variables, &Origin<'_>) -> Result<Vec<Launch>, ManifestError>;

/// The engines that a script starts; `run` finds those of a command in it.
pub(super) fn launches(
    script: &str,
    variables: Variables,
    origin: &Origin<'_>,
    run: Run<'_>,
) -> Result<Vec<Launch>, ManifestError> {
    let is_file = origin.is_file;
    let first = if is_file { 1 } else { origin.at.line.unwrap_or(1) };
    let statements = statements(script, first).map_err(|(line, reason)| {
        let line = if is_file { Some(line) } else { origin.at.line };
        ManifestError::Syntax { at: Place { line, ..origin.at.clone() }, reason: reason.to_owned() }
    })?;
    origin.reading.charge(16 * origin.files.len(), &origin.at)?;
    let mut shell = Shell {
        variables,
        origin: Origin { through_shell: true, ..origin.clone() },
        run,
        blocks: Vec::new(),
        is_certain: true,
        is_alternative: false,
        outer: Vec::new(),
        functions: BTreeMap::new(),
        defining: Vec::new(),
        ending: BTreeSet::new(),
        has_body_below: false,
        alone: String::new(),
        integers: BTreeSet::new(),
        fixed: BTreeSet::new(),
        has_ended: false,
        evaluated: 0,
        launches: Vec::new(),
    };
    for statement in &statements {
        shell.take(statement)?;
    }
    Ok(shell.launches)
}

/// What is around a subshell.
struct Outer {
    variables: Variables,
    /// The compound commands that it stands in, itself among them where it is the body of a function.
    blocks: usize,
    is_body: bool,
}

struct Shell<'a> {
    variables: Variables,
    origin: Origin<'a>,
    run: Run<'a>,
    /// The compound commands around, and of each the outermost up to it that may not run.
    blocks: Vec<Option<&'static str>>,
    /// Whether what follows `&&` runs for certain.
    is_certain: bool,
    /// Whether it runs only where something else failed.
    is_alternative: bool,
    /// The subshells that it is in.
    outer: Vec<Outer>,
    /// The functions that are defined, with the variables that each sets.
    functions: BTreeMap<String, BTreeSet<String>>,
    /// Those whose bodies it is in, with the compound commands around each.
    defining: Vec<(usize, String)>,
    /// Functions that end the script.
    ending: BTreeSet<String>,
    has_body_below: bool,
    /// The word that a command was alone, behind which a body may stand.
    alone: String,
    /// Variables that hold whole numbers, to which others are added.
    integers: BTreeSet<String>,
    /// Variables that nothing changes any more.
    fixed: BTreeSet<String>,
    /// Whether nothing behind runs any more.
    has_ended: bool,
    /// Texts of `eval` that it is in.
    evaluated: usize,
    launches: Vec<Launch>,
}

impl Shell<'_> {
    fn take(&mut self, statement: &Statement) -> Result<(), ManifestError> {
        if self.has_ended {
            return Ok(());
        }
        if self.origin.is_file {
            self.origin.at.line = Some(statement.line);
        }
        for _ in 0..statement.leaves {
            // What `case` ends a pattern with closes none: it stands in a compound command that is still open.
            if let Some(outer) = self.outer.pop_if(|outer| outer.blocks == self.blocks.len()) {
                self.variables = outer.variables;
                self.blocks.truncate(outer.blocks - usize::from(outer.is_body));
            }
        }
        // Behind the parenthesis of a pattern stands none.
        let mut is_function =
            (statement.join == Join::Parenthesis && statement.leaves == 0) || std::mem::take(&mut self.has_body_below);
        for _ in 0..statement.enters {
            self.origin.reading.charge(self.variables.weight(), &self.origin.at)?;
            let is_body = std::mem::take(&mut is_function);
            if is_body {
                self.open("(", false);
            }
            self.outer.push(Outer { variables: self.variables.clone(), blocks: self.blocks.len(), is_body });
        }
        match statement.join {
            Join::Next | Join::Pipe | Join::Parenthesis => (self.is_certain, self.is_alternative) = (true, false),
            Join::And => {}
            Join::Or => (self.is_certain, self.is_alternative) = (false, true),
        }
        let mut words = &*statement.words;
        while let Some(word) = words.first().and_then(Word::bare) {
            match word {
                // The last is the prompt of a command in a text.
                "then" | "else" | "elif" | "do" | "!" | "$" => {}
                "time" if words.get(1).is_some_and(|word| assignment(word).is_some()) => {}
                "if" => self.open("if", false),
                "for" | "select" => {
                    self.open("for", false);
                    if let Some(name) = words.get(1).and_then(Word::bare) {
                        self.forget_value(name, Why::Loop);
                    }
                }
                "case" => self.open("case", false),
                "{" => {
                    if is_function {
                        self.defining.push((self.blocks.len(), std::mem::take(&mut self.alone)));
                    }
                    self.open("{", !is_function);
                }
                "function" => {
                    words = &words[words.len().min(1)..];
                    is_function = true;
                    self.alone = words.first().and_then(Word::bare).unwrap_or_default().to_owned();
                    self.has_body_below = words.len() == 1;
                }
                "while" | "until" => {
                    let condition = words.get(1).and_then(Word::bare);
                    let forever = matches!((word, condition), ("while", Some("true" | ":")));
                    self.open("while", forever);
                }
                "fi" | "done" | "esac" | "}" => {
                    self.blocks.pop();
                    self.defining.pop_if(|(blocks, _)| *blocks >= self.blocks.len());
                }
                _ => break,
            }
            words = words.get(1..).unwrap_or(&[]);
        }
        if let Some(into) = &statement.into {
            let document = statement.document.as_ref().filter(|_| words.first().and_then(Word::bare) == Some("cat"));
            self.write(into, document, statement.appends)?;
        }
        if let [word] = words {
            word.bare().unwrap_or_default().clone_into(&mut self.alone);
        }
        if !statement.is_apart {
            return self.simple(words);
        }
        self.origin.reading.charge(self.variables.weight(), &self.origin.at)?;
        let before = self.variables.clone();
        self.simple(words)?;
        (self.variables, self.has_ended) = (before, false);
        Ok(())
    }

    /// Sets a variable; a function does so whenever it is called.
    fn put(&mut self, name: &str, words: Vec<String>, exported: bool) {
        if let Some((_, function)) = self.defining.last() {
            self.functions.entry(function.clone()).or_default().insert(name.to_owned());
        }
        self.variables.set(name, words, exported);
    }

    /// Whether what runs now runs for certain, and in the script's own shell.
    fn is_sure(&self) -> bool {
        self.condition().is_none() && self.is_certain && self.outer.is_empty()
    }

    /// A file that is written: known if it is a document for certain.
    fn write(&mut self, into: &Word, document: Option<&Word>, appends: bool) -> Result<(), ManifestError> {
        let path = self.expansion().value(into)?;
        let before = self.origin.files.iter().find(|(known, _)| **known == *path).map(|(_, text)| text.to_string());
        self.forget(std::slice::from_ref(&path))?;
        let is_certain = self.condition().is_none() && self.is_certain;
        if let (Some(document), true) = (document, is_certain) {
            let before = before.filter(|_| appends).unwrap_or_default();
            let text = before + &self.expansion().value(document)?;
            super::variables::bounded(text.len(), &self.origin.at)?;
            self.origin.reading.charge(text.len(), &self.origin.at)?;
            self.origin.files.push((path.into(), text.into()));
        }
        Ok(())
    }

    /// Forgets files that something may have changed.
    fn forget(&mut self, changed: &[String]) -> Result<(), ManifestError> {
        self.origin.reading.charge(self.origin.files.len() * changed.len(), &self.origin.at)?;
        self.origin.files.retain(|(known, _)| !changed.iter().any(|changed| **changed == **known));
        Ok(())
    }

    /// Goes into a compound command.
    fn open(&mut self, block: &'static str, is_certain: bool) {
        let outer = self.blocks.last().copied().flatten();
        self.blocks.push(outer.or((!is_certain).then_some(block)));
    }

    /// The block around, if it is not certain that it runs.
    fn condition(&self) -> Option<&'static str> {
        self.blocks.last().copied().flatten().or(self.is_alternative.then_some("||"))
    }

    /// `${NAME:=value}` sets what has no value.
    fn defaults(&mut self, words: &[Word]) -> Result<(), ManifestError> {
        for piece in words.iter().flat_map(|word| &word.pieces) {
            if let Piece::Unknown(Why::Arithmetic, text) = piece {
                computed(text).into_iter().for_each(|name| self.forget_value(name, Why::Arithmetic));
            }
            let Piece::Variable { name, of_empty, assigns: true, .. } = piece else { continue };
            let value = self.variables.seen(name, || format!("${name}"));
            let value = value.as_ref().map(|words| words.first().map_or("", String::as_str));
            if value.is_some_and(|value| !(*of_empty && value.is_empty())) {
                continue;
            }
            let word = Word { pieces: vec![piece.clone()], ..Word::default() };
            let value = match self.condition().is_some() || !self.is_certain {
                true => Why::Conditional.mark(&format!("${name}")),
                false => self.expansion().value(&word)?,
            };
            self.put(name, vec![value], false);
        }
        Ok(())
    }

    /// Assignments, and a command behind them.
    fn simple(&mut self, mut words: &[Word]) -> Result<(), ManifestError> {
        self.defaults(words)?;
        while let [Some("command" | "builtin"), Some(next)] = [0, 1].map(|at| words.get(at).and_then(Word::bare))
            && !next.starts_with('-')
            && !next.contains('=')
        {
            words = &words[1..];
        }
        if let Some(name) = words.first().and_then(element) {
            self.forget_value(name, Why::Operator);
            return Ok(());
        }
        let assignments = words.iter().take_while(|word| assignment(word).is_some()).count();
        let (assigning, words) = words.split_at(assignments);
        if words.is_empty() {
            return assigning.iter().try_for_each(|word| self.assign(word, false));
        }
        match words[0].bare() {
            Some(word @ ("export" | "declare" | "local" | "readonly" | "typeset")) => {
                return self.declare(word, &words[1..]);
            }
            Some("exit") => {
                self.has_ended = self.is_sure();
                if let Some((blocks, name)) = self.defining.last()
                    && self.blocks.len() == blocks + 1
                    && self.is_certain
                    && !self.is_alternative
                {
                    self.ending.insert(name.clone());
                }
                return Ok(());
            }
            Some(word @ ("read" | "getopts" | "mapfile" | "readarray" | "unset")) => {
                return self.change(word, &words[1..]);
            }
            Some("set") => return self.positional(&words[1..]),
            Some("shift") => return self.shift(&words[1..]),
            Some("source" | ".") => return self.source(&words[1..]),
            Some("eval") => return self.eval(&words[1..]),
            Some(ARITHMETIC | "let") => {
                for word in &words[1..] {
                    let text = self.expansion().value(word)?;
                    computed(&text).into_iter().for_each(|name| self.forget_value(name, Why::Arithmetic));
                }
                return Ok(());
            }
            Some("printf") if words.get(1).and_then(Word::bare) == Some("-v") => {
                return self.change("printf", &words[2..words.len().min(3)]);
            }
            Some("cd" | "echo" | "mkdir" | "true" | ":" | "sleep" | "ulimit") => return Ok(()),
            Some("pip") => {
                let expansion = self.expansion();
                let words: Result<Vec<_>, _> = words.iter().map(|word| expansion.words(word)).collect();
                self.install(&words?.concat());
                return Ok(());
            }
            // No program is called so: it was to go on with the command before it.
            Some(flag) if flag.starts_with("--") => {
                let name = flag.split('=').next().unwrap_or(flag);
                self.launches.last_mut().into_iter().for_each(|launch| launch.cut.push(name.to_owned()));
                return Ok(());
            }
            _ => {}
        }
        let is_sure = self.is_sure();
        self.start(assigning, words)?;
        // The program takes the shell's place, or a function ends it.
        let runs = words.get(1).is_some_and(|word| !word.bare().is_some_and(|word| word.starts_with('{')));
        let ends = words[0].bare().is_some_and(|name| (name == "exec" && runs) || self.ending.contains(name));
        self.has_ended = is_sure && ends;
        // Whether it succeeds is not known.
        self.is_certain = false;
        Ok(())
    }

    /// A variable has some value from here on that is not followed.
    fn forget_value(&mut self, name: &str, why: Why) {
        self.put(name, vec![why.mark(&format!("${name}"))], false);
    }

    /// The text that the words of `eval` are, as a part of the script.
    fn eval(&mut self, words: &[Word]) -> Result<(), ManifestError> {
        let mut text = Vec::new();
        for word in words {
            text.extend(self.expansion().words(word)?);
        }
        let text = text.join(" ");
        // What another command prints may set any variable; what puts programs in reach sets none of the script's.
        const HOOKS: [&str; 6] = ["conda", "mamba", "pyenv", "hook", "shellenv", "ssh-agent"];
        let printed = unknown::written(&text);
        if text.trim_start().starts_with(MARKS) && !HOOKS.iter().any(|hook| printed.contains(hook)) {
            self.unread("eval")?;
        }
        self.run_text(&text)
    }

    /// A text as a part of the script.
    fn run_text(&mut self, text: &str) -> Result<(), ManifestError> {
        if self.evaluated == DEPTH {
            return Err(ManifestError::TooMuch { at: self.origin.at.clone(), what: "texts of `eval`", most: DEPTH });
        }
        self.origin.reading.charge(text.len(), &self.origin.at)?;
        let line = self.origin.at.line.unwrap_or(1);
        let statements = statements(text, line)
            .map_err(|(_, reason)| ManifestError::Syntax { at: self.origin.at.clone(), reason: reason.to_owned() })?;
        self.evaluated += 1;
        // What is in it is no more certain than it is itself.
        let is_certain = self.is_certain && !self.is_alternative;
        for statement in statements {
            let join = if is_certain { statement.join } else { Join::And };
            self.take(&Statement { line, join, ..statement })?;
        }
        self.evaluated -= 1;
        Ok(())
    }

    /// A file of commands: what it sets is known where the script has written it. What puts programs in reach sets none of its variables.
    fn source(&mut self, words: &[Word]) -> Result<(), ManifestError> {
        const ENVIRONMENTS: [&str; 8] =
            ["activate", ".bashrc", ".bash_profile", ".profile", ".zshrc", "setvars.sh", "conda.sh", "profile"];
        let file = words.first().map(|word| self.expansion().value(word)).transpose()?.unwrap_or_default();
        if ENVIRONMENTS.contains(&crate::started::base(&file)) {
            return Ok(());
        }
        let written = self.origin.files.iter().rev().find(|(path, _)| **path == *file);
        if let Some(text) = written.map(|(_, text)| text.clone()) {
            return self.run_text(&text);
        }
        self.unread(&format!("source {}", if file.contains(MARKS) { "" } else { &file }))
    }

    /// Something may set any variable here; a function does so whenever it is called.
    fn unread(&mut self, what: &str) -> Result<(), ManifestError> {
        if let Some((_, function)) = self.defining.last() {
            self.functions.entry(function.clone()).or_default().insert(UNREAD.to_owned());
        }
        self.origin.reading.charge(self.variables.weight(), &self.origin.at)?;
        self.variables.unread(self.origin.unread(what));
        Ok(())
    }

    /// A command that may install one.
    fn install(&mut self, words: &[String]) {
        let is_certain = self.condition().is_none();
        let Origin { files, wheels, at, .. } = &mut self.origin;
        let files = &*files;
        let file = |path: &str| files.iter().rev().find(|(known, _)| **known == *path).map(|(_, text)| &**text);
        wheels.note(words, at.line, is_certain, file);
    }

    /// A command that may start an engine.
    fn start(&mut self, assigning: &[Word], words: &[Word]) -> Result<(), ManifestError> {
        if let Some(sets) = words[0].bare().and_then(|name| self.functions.get(name)) {
            self.origin.reading.charge(32 * sets.len(), &self.origin.at)?;
            for name in sets.clone() {
                match &*name {
                    UNREAD => self.unread(words[0].bare().unwrap_or_default())?,
                    name => self.forget_value(name, Why::Function),
                }
            }
        }
        let mut expanded = Vec::new();
        let expansion = self.expansion();
        let mut of_variables = Vec::new();
        for word in words {
            let begin = expanded.len();
            expanded.extend(expansion.words(word)?);
            of_variables.extend(std::iter::repeat_n(word.has_variable(), expanded.len() - begin));
        }
        if let Some((index, engine::Start::Engine)) = engine::start(&expanded) {
            secret::hide_again(&mut expanded[index..], &of_variables[index..]);
        }
        if wheel::is_install(&expanded) {
            self.install(&expanded);
            return self.forget(&expanded);
        }
        if engine::start(&expanded).is_none() && engine::open(&expanded).is_none() {
            super::passed_over::pass_over(&expanded, &self.origin)?;
            // `sed -i` and others change what they name.
            let changes = expanded.first().is_some_and(|program| program != "cat");
            return if changes { self.forget(&expanded) } else { Ok(()) };
        }
        self.origin.reading.charge(self.variables.weight(), &self.origin.at)?;
        let mut variables = self.variables.clone();
        for word in assigning {
            let (name, _, _) = assignment(word).unwrap_or_default();
            variables.set(name, vec![expansion.value(&behind(word))?], true);
        }
        let launches = (self.run)(&expanded, variables, &self.origin)?;
        self.launches.extend(self.origin.unconditional(launches, self.condition())?);
        Ok(())
    }

    fn assign(&mut self, word: &Word, exports: bool) -> Result<(), ManifestError> {
        let Some((name, adds, _)) = assignment(word).filter(|(name, ..)| !self.fixed.contains(*name)) else {
            return Ok(());
        };
        let expansion = self.expansion();
        let mut value = match &word.array {
            None => vec![expansion.value(&behind(word))?],
            Some(words) => {
                let words: Result<Vec<_>, _> = words.iter().map(|word| expansion.words(word)).collect();
                words?.concat()
            }
        };
        if self.condition().is_some() || !self.is_certain {
            value = vec![Why::Conditional.mark(&format!("${name}"))];
        } else if self.integers.contains(name) && (adds || !is_number(&value.concat())) {
            value = vec![Why::Arithmetic.mark(&format!("${name}"))];
        } else if adds {
            let mut before = self.variables.seen(name, || format!("${name}")).unwrap_or_default().into_owned();
            let length = before.iter().map(|word| word.len() + 24).sum();
            self.origin.reading.charge(length, &self.origin.at)?;
            match (&word.array, before.last_mut()) {
                (None, Some(last)) => {
                    last.push_str(&value.concat());
                    super::variables::bounded(last.len(), &self.origin.at)?;
                }
                _ => before.extend(value),
            }
            value = before;
        }
        self.put(name, value, exports);
        Ok(())
    }

    fn expansion(&self) -> Expansion<'_> {
        let reading: &Reading<'_> = self.origin.reading;
        Expansion { variables: &self.variables, reading, at: &self.origin.at }
    }
}

/// The name that a word assigns to, whether it adds to it, and the beginning of the value.
fn assignment(word: &Word) -> Option<(&str, bool, &str)> {
    match word.pieces.first()? {
        Piece::Text(text) => assigned(text),
        _ => None,
    }
}

/// The name of an array that `NAME[0]=value` changes.
fn element(word: &Word) -> Option<&str> {
    match &*word.pieces {
        [Piece::Text(name), Piece::Pattern('['), Piece::Text(rest), ..] if rest.contains("]=") => Some(name),
        _ => None,
    }
}

/// Whether arithmetic makes the same of a text: zeros in front would make it a number of eight.
fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'))
}

/// The value of an assignment, as a word.
fn behind(word: &Word) -> Word {
    let mut value = word.clone();
    if let (Some((_, _, rest)), Some(first)) = (assignment(word), value.pieces.first_mut()) {
        *first = Piece::Text(rest.to_owned());
    }
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Where nothing is expanded, words are those that `shlex` cuts.
        #[test]
        fn plain_words_are_those_of_shlex(text in "[ab=./:,%^~_\\-'\" \\\\]{0,40}") {
            let script = format!("vllm serve {text}");
            let found = crate::manifest::read("m", script.as_bytes());
            match shlex::split(&script) {
                Some(words) => prop_assert_eq!(&found.unwrap()[0].words, &words),
                None => prop_assert!(found.is_err() || text.ends_with('\\')),
            }
        }
    }
}
