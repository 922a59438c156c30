//! Scripts for `cmd.exe`: first variables are put into a line, then it is cut at the signs that join commands, and a program is handed what
//! is left of it as one text.

mod arithmetic;
mod expand;
mod line;

use std::collections::HashMap;

use super::super::command;
use super::super::error::ManifestError;
use super::super::origin::Origin;
use super::super::passed_over::pass_over;
use super::super::unknown::Why;
use super::super::variables::{Variables, bounded};
use super::{DEPTH, arguments, without_folder};
use crate::{Launch, secret};

use line::{Joint, Line};

/// The engines that a script starts.
pub(super) fn launches(text: &str, origin: Origin<'_>) -> Result<Vec<Launch>, ManifestError> {
    let state = State { variables: Variables::default(), delayed: false, scopes: Vec::new(), is_certain: true };
    let mut batch = Batch::of(text, origin, state, DEPTH);
    batch.run()?;
    Ok(batch.launches)
}

/// What is known where some line of the script runs.
#[derive(Clone)]
struct State {
    variables: Variables,
    /// Whether `!NAME!` is a variable.
    delayed: bool,
    /// What `endlocal` goes back to.
    scopes: Vec<(Variables, bool)>,
    /// Whether it is not only where some condition has jumped to.
    is_certain: bool,
}

struct Batch<'a> {
    origin: Origin<'a>,
    lines: Vec<&'a str>,
    next: usize,
    /// The last line of each label.
    labels: HashMap<String, usize>,
    /// The last line in which something may be set.
    last_set: usize,
    /// None behind what ends the script or jumps away.
    state: Option<State>,
    /// What is known where a label below is jumped from.
    jumps: HashMap<String, State>,
    /// The blocks around, and of each the outermost up to it that may not run.
    blocks: Vec<Option<&'static str>>,
    /// The variables where the outermost block begins: they are put into all its lines.
    before_block: Option<Variables>,
    launches: Vec<Launch>,
    depth: usize,
}

/// How a command stands in its line.
#[derive(Clone, Copy)]
struct Stand {
    /// What says that it may not run.
    when: Option<&'static str>,
    /// Whether all in front of it succeeds.
    is_certain: bool,
    /// Whether what it sets is lost.
    is_apart: bool,
}

impl<'a> Batch<'a> {
    fn of(text: &'a str, origin: Origin<'a>, state: State, depth: usize) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let label = |(at, line): (usize, &&str)| Some((name_of(line::label(line)?), at));
        Self {
            origin,
            next: 0,
            labels: lines.iter().enumerate().filter_map(label).collect(),
            last_set: lines.iter().rposition(|line| line.to_ascii_lowercase().contains("set")).unwrap_or(0),
            lines,
            state: Some(state),
            jumps: HashMap::new(),
            blocks: Vec::new(),
            before_block: None,
            launches: Vec::new(),
            depth,
        }
    }

    fn run(&mut self) -> Result<(), ManifestError> {
        while let Some(line) = self.lines.get(self.next).copied() {
            let number = self.next + 1;
            self.next += 1;
            if self.origin.is_file {
                self.origin.at.line = Some(number);
            }
            match line::label(line) {
                Some(label) if self.blocks.is_empty() => self.label(label),
                Some(_) => {}
                None if self.state.is_some() => {
                    let text = self.expanded(line)?;
                    self.line(Line::of(&text))?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// A line with the values of its variables.
    fn expanded(&self, line: &str) -> Result<String, ManifestError> {
        let own = self.state.as_ref().map(|state| &state.variables);
        let Some(variables) = self.before_block.as_ref().or(own) else { return Ok(String::new()) };
        expand::percents(line, variables, self.origin.reading, &self.origin.at)
    }

    /// The line below one that ends with `^`.
    fn next_line(&mut self) -> Result<Option<String>, ManifestError> {
        let Some(line) = self.lines.get(self.next).copied() else { return Ok(None) };
        self.next += 1;
        self.expanded(line).map(Some)
    }

    /// What was known where a label is jumped from is what may be known there.
    fn label(&mut self, label: &str) {
        let Some(from) = self.jumps.remove(&name_of(label)) else { return };
        self.state = Some(match self.state.take() {
            None => from,
            Some(mut state) => {
                state.variables.mark_differing(&from.variables, |name| Why::Conditional.mark(&format!("%{name}%")));
                state.is_certain |= from.is_certain;
                state
            }
        });
    }

    fn jump(&mut self, label: &str, stand: Stand) -> Result<(), ManifestError> {
        let name = name_of(label);
        let is_sure = stand.when.is_none() && stand.is_certain;
        // What is behind a label above has been met, and runs again.
        if self.labels.get(&name).is_some_and(|line| *line >= self.next) {
            let Some(mut state) = self.state.clone() else { return Ok(()) };
            self.origin.reading.charge(state.weight(), &self.origin.at)?;
            state.is_certain &= is_sure;
            match self.jumps.get_mut(&name) {
                Some(other) => {
                    let mark = |name: &str| Why::Conditional.mark(&format!("%{name}%"));
                    other.variables.mark_differing(&state.variables, mark);
                    other.is_certain |= state.is_certain;
                }
                None => {
                    self.jumps.insert(name, state);
                }
            }
        }
        if is_sure {
            self.end();
        }
        Ok(())
    }

    /// Nothing behind runs, up to a label that is jumped to.
    fn end(&mut self) {
        self.state = None;
        self.blocks.clear();
        self.before_block = None;
    }

    fn line(&mut self, mut line: Line) -> Result<(), ManifestError> {
        // What says that the rest of the line may not run.
        let mut when: Option<&'static str> = None;
        let (mut is_certain, mut is_piped) = (true, false);
        while self.state.is_some() {
            line.skip_delimiters();
            match line.peek() {
                None => break,
                Some('(') => {
                    line.bump();
                    self.open(when)?;
                    continue;
                }
                Some(')') => {
                    line.bump();
                    if self.blocks.pop().is_none() {
                        break;
                    }
                    if self.blocks.is_empty() {
                        self.before_block = None;
                    }
                    line.skip_redirects();
                    if line.takes_word("else") {
                        when = Some("else");
                    }
                    continue;
                }
                Some(':') => break,
                _ => {}
            }
            if line.takes_word("rem") {
                break;
            }
            let mut calls = false;
            loop {
                line.skip_delimiters();
                if line.takes_word("if") {
                    line.skip_condition();
                    when = when.or(Some("if"));
                } else if line.takes_word("for") {
                    line.skip_loop();
                    when = when.or(Some("for"));
                } else if line.takes_word("call") {
                    calls = true;
                } else {
                    break;
                }
            }
            if matches!(line.peek(), Some('(' | ')')) {
                continue;
            }
            let (text, joint) = self.command_of(&mut line)?;
            let block = self.blocks.last().copied().flatten();
            let is_apart = is_piped || joint == Joint::Pipe;
            let stand = Stand { when: block.or(when), is_certain, is_apart };
            let text = if calls { self.expanded(&text)? } else { text };
            let may_fail = self.command(&text, stand, calls)?;
            is_piped = joint == Joint::Pipe;
            match joint {
                Joint::And => is_certain &= !may_fail,
                Joint::Or => when = when.or(Some("||")),
                Joint::Next | Joint::Pipe | Joint::Close | Joint::End => is_certain = true,
            }
        }
        Ok(())
    }

    /// The text of a command, and what stands behind it.
    fn command_of(&mut self, line: &mut Line) -> Result<(String, Joint), ManifestError> {
        let mut text = String::new();
        loop {
            let joint = line.command(&mut text, !self.blocks.is_empty());
            let Some(joint) = joint else {
                // The line goes on, and the first character of the next means itself: of an empty one that is its end.
                let Some(more) = self.next_line()? else { return Ok((text, Joint::End)) };
                line.go_on(&more, &mut text);
                if more.is_empty() {
                    text.push('\n');
                    let Some(more) = self.next_line()? else { return Ok((text, Joint::End)) };
                    line.go_to(&more);
                }
                continue;
            };
            bounded(text.len(), &self.origin.at)?;
            return Ok((text, joint));
        }
    }

    /// Goes into a block.
    fn open(&mut self, when: Option<&'static str>) -> Result<(), ManifestError> {
        if let (true, Some(state)) = (self.blocks.is_empty(), &self.state) {
            self.origin.reading.charge(state.variables.weight(), &self.origin.at)?;
            self.before_block = Some(state.variables.clone());
        }
        let outer = self.blocks.last().copied().flatten();
        self.blocks.push(outer.or(when));
        Ok(())
    }

    /// A command; whether it may fail.
    fn command(&mut self, text: &str, stand: Stand, calls: bool) -> Result<bool, ManifestError> {
        let text = match &self.state {
            Some(state) if state.delayed => {
                expand::delayed(text, &state.variables, self.origin.reading, &self.origin.at)?
            }
            _ => text.to_owned(),
        };
        let text = text.trim_start_matches(line::DELIMITERS);
        let (word, rest) = line::first_word(text);
        let behind = rest.trim_start();
        match &*word {
            "set" => self.set(rest, stand)?,
            "setlocal" if !stand.is_apart => self.enter(rest)?,
            "endlocal" if !stand.is_apart => {
                if let Some((state, (variables, delayed))) =
                    self.state.as_mut().and_then(|state| state.scopes.pop().map(|outer| (state, outer)))
                {
                    (state.variables, state.delayed) = (variables, delayed);
                }
            }
            "exit" if !stand.is_apart => self.jump("eof", stand)?,
            "goto" if !stand.is_apart => self.jump(behind.trim_start_matches(':'), stand)?,
            "echo" | "title" | "cd" | "chdir" | "pushd" | "popd" | "mkdir" | "md" | "pause" | "cls" | "color" => {}
            "start" => return self.start(line::behind_options(behind), stand),
            "cmd" => {
                let script = line::behind_switch(behind, &["/c", "/k"]);
                script.map_or(Ok(()), |script| self.nested(script, stand))?;
                return Ok(true);
            }
            _ if calls && text.starts_with(':') => self.called(text, stand)?,
            _ if text.starts_with("--") => {
                // No program is called so: it was to go on with the command before it.
                let name = text.split(['=', ' ', '\t']).next().unwrap_or(text);
                self.launches.last_mut().into_iter().for_each(|launch| launch.cut.push(name.to_owned()));
            }
            _ => return self.program(text, stand, calls),
        }
        Ok(false)
    }

    fn enter(&mut self, options: &str) -> Result<(), ManifestError> {
        let Some(state) = self.state.as_mut() else { return Ok(()) };
        self.origin.reading.charge(state.variables.weight() + 64, &self.origin.at)?;
        state.scopes.push((state.variables.clone(), state.delayed));
        let options = options.to_ascii_lowercase();
        state.delayed = match () {
            () if options.contains("enabledelayedexpansion") => true,
            () if options.contains("disabledelayedexpansion") => false,
            () => state.delayed,
        };
        Ok(())
    }

    /// `set "NAME=value"`, `set /a NAME=1+1`, `set /p NAME=prompt`.
    fn set(&mut self, rest: &str, stand: Stand) -> Result<(), ManifestError> {
        let rest = rest.trim_start_matches(line::DELIMITERS);
        let option = rest.get(..2).map(str::to_ascii_lowercase);
        match option.as_deref() {
            Some("/a") => self.compute(&rest[2..], stand),
            Some("/p") => {
                let name = rest[2..].trim_start().trim_start_matches('"').split('=').next().unwrap_or_default();
                self.assign(name, Err(Why::Command), stand)
            }
            _ => {
                // Within quotes it ends with the last of them.
                let stated = rest
                    .strip_prefix('"')
                    .map_or(rest, |inside| inside.rfind('"').map_or(inside, |end| &inside[..end]));
                match stated.split_once('=') {
                    // `for /f %%i in (.env) do set %%i`: which it sets is in the file.
                    found if found.map_or(stated, |(name, _)| name).starts_with('%') => self.unread("set"),
                    Some((name, value)) if !name.is_empty() => self.assign(name, Ok(value), stand),
                    _ => Ok(()),
                }
            }
        }
    }

    fn compute(&mut self, text: &str, stand: Stand) -> Result<(), ManifestError> {
        let text = text.replace('"', "");
        let Some(state) = &self.state else { return Ok(()) };
        let seen = |name: &str| state.variables.seen(&name.to_uppercase(), || format!("%{name}%"));
        let value = |name: &str| arithmetic::number(seen(name)?.first()?);
        let (names, is_computed): (Vec<(String, Option<i32>)>, bool) = match arithmetic::computed(&text, &value) {
            Some(assigned) => (assigned, true),
            None => {
                let names = super::super::shell::computed(&text).into_iter();
                (names.map(|name| (name.to_owned(), None)).collect(), false)
            }
        };
        for (name, number) in names {
            let value = number.filter(|_| is_computed).map(|number| number.to_string());
            self.assign(&name, value.as_deref().ok_or(Why::Expression), stand)?;
        }
        Ok(())
    }

    /// Sets a variable to a value, or to what is not known; no value takes it away.
    fn assign(&mut self, name: &str, value: Result<&str, Why>, stand: Stand) -> Result<(), ManifestError> {
        let Some(state) = self.state.as_mut().filter(|_| !stand.is_apart) else { return Ok(()) };
        let (name, line) = (name.to_uppercase(), self.origin.at.line.unwrap_or(1));
        let mark = |why: Why| why.mark_of(&format!("%{name}%"), line);
        let value = match value {
            _ if stand.when.is_some() || !stand.is_certain => mark(Why::Conditional),
            Ok("") => {
                state.variables.unset(&name);
                return Ok(());
            }
            Ok(value) => value.to_owned(),
            Err(why) => mark(why),
        };
        self.origin.reading.charge(name.len() + value.len(), &self.origin.at)?;
        bounded(value.len(), &self.origin.at)?;
        state.variables.set(&name, vec![value], super::super::variables::is_name(&name));
        Ok(())
    }

    /// A part of the script that is called runs where it stands, and what it sets is not known behind the call.
    fn called(&mut self, text: &str, stand: Stand) -> Result<(), ManifestError> {
        let label = text.trim_start_matches(':');
        let name = name_of(label);
        // It comes back, and so the jump ends nothing here.
        self.jump(label, Stand { when: stand.when.or(Some("call")), ..stand })?;
        let is_sure = stand.when.is_none() && stand.is_certain;
        self.jumps.get_mut(&name).filter(|_| is_sure).into_iter().for_each(|state| state.is_certain = true);
        if self.labels.get(&name).is_some_and(|line| *line <= self.last_set) {
            self.unread(&format!("call :{name}"))?;
        }
        Ok(())
    }

    /// Something that is called may set any variable.
    fn unread(&mut self, what: &str) -> Result<(), ManifestError> {
        let unread = self.origin.unread(what);
        let Some(state) = self.state.as_mut() else { return Ok(()) };
        self.origin.reading.charge(state.variables.weight(), &self.origin.at)?;
        state.variables.unread(unread);
        Ok(())
    }

    /// A text as a script of its own, which sets nothing here.
    fn nested(&mut self, script: &str, stand: Stand) -> Result<(), ManifestError> {
        let Some(depth) = self.depth.checked_sub(1) else {
            return Err(ManifestError::TooMuch {
                at: self.origin.at.clone(),
                what: "a nesting of commands",
                most: DEPTH,
            });
        };
        let Some(state) = self.state.clone() else { return Ok(()) };
        self.origin.reading.charge(state.weight(), &self.origin.at)?;
        let origin = Origin { is_file: false, ..self.origin.clone() };
        let mut inner = Batch::of(script, origin, State { is_certain: true, ..state }, depth);
        inner.run()?;
        let found = inner.launches;
        self.found(found, stand)
    }

    /// A program that `start` starts: the script does not wait for it.
    fn start(&mut self, text: &str, stand: Stand) -> Result<bool, ManifestError> {
        let (word, rest) = line::first_word(text);
        match line::behind_switch(rest.trim_start(), &["/c", "/k"]).filter(|_| word == "cmd") {
            Some(script) => self.nested(script, stand).map(|()| true),
            None => self.program(text, stand, true),
        }
    }

    /// A program; whether it may fail.
    fn program(&mut self, text: &str, stand: Stand, comes_back: bool) -> Result<bool, ManifestError> {
        let mut words = arguments(text);
        self.origin.reading.charge(words.iter().map(|word| 32 + word.len()).sum(), &self.origin.at)?;
        words.iter_mut().for_each(|word| *word = word.replace(expand::SECRET, secret::HIDDEN));
        without_folder(&mut words);
        let program = words[0].to_ascii_lowercase();
        if program.ends_with(".bat") || program.ends_with(".cmd") {
            const ENVIRONMENTS: [&str; 3] = ["activate.bat", "conda.bat", "setvars.bat"];
            match comes_back {
                // Another script takes the place of this one.
                false => self.jump("eof", stand)?,
                true if ENVIRONMENTS.contains(&crate::started::base(&program)) => {}
                true => self.unread(&format!("call {}", super::super::unknown::written(&words[0])))?,
            }
            return Ok(true);
        }
        if super::super::engine::start(&words).is_none() && super::super::engine::open(&words).is_none() {
            self.origin.wheels.note(&words, self.origin.at.line, false, |_| None);
            pass_over(&words, &self.origin)?;
            return Ok(true);
        }
        let Some(state) = &self.state else { return Ok(true) };
        self.origin.reading.charge(state.variables.weight(), &self.origin.at)?;
        let mut variables = state.variables.clone();
        variables.replace(expand::SECRET, secret::HIDDEN);
        let of_variables = variables.are_in(&words);
        let found = command::of_program(words, &of_variables, variables, &self.origin)?;
        self.found(found, stand)?;
        Ok(true)
    }

    /// Engines that a command starts, which has to run.
    fn found(&mut self, found: Vec<Launch>, stand: Stand) -> Result<(), ManifestError> {
        let is_jumped = self.state.as_ref().is_some_and(|state| !state.is_certain);
        self.launches.extend(self.origin.unconditional(found, stand.when.or(is_jumped.then_some("goto")))?);
        Ok(())
    }
}

impl State {
    /// What it costs to copy it.
    fn weight(&self) -> usize {
        64 + self.variables.weight() + self.scopes.iter().map(|(variables, _)| variables.weight()).sum::<usize>()
    }
}

/// The name of a label, of which case does not matter.
fn name_of(label: &str) -> String {
    let label = label.trim_start();
    let end = label.find(|c: char| c.is_whitespace() || ":+,;=&|<>()^".contains(c)).unwrap_or(label.len());
    label[..end].to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
