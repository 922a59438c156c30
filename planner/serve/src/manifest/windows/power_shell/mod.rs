//! Scripts for PowerShell: statement by statement, variables with what is computed of them. A statement that is not understood makes every
//! variable that it assigns one that is not known.

mod argument;
mod expression;
mod touched;
mod value;

use super::super::command;
use super::super::engine;
use super::super::error::ManifestError;
use super::super::origin::Origin;
use super::super::passed_over::pass_over;
use super::super::unknown::{self, Why};
use super::super::variables::bounded;
use super::{DEPTH, without_folder};
use crate::Launch;
use crate::started::base;

use argument::{Argument, Joint};
use expression::{Reader, Scope, own};
use touched::touched;
use value::Value;

/// The engines that a script starts.
pub(super) fn launches(text: &str, origin: Origin<'_>) -> Result<Vec<Launch>, ManifestError> {
    let mut script = Script::of(text, origin, Scope::default(), DEPTH);
    script.run()?;
    Ok(script.launches)
}

struct Script<'a> {
    text: &'a str,
    at: usize,
    origin: Origin<'a>,
    /// Where lines begin.
    lines: Vec<usize>,
    scope: Scope,
    /// The blocks around, and of each the outermost up to it that may not run.
    blocks: Vec<Option<&'static str>>,
    /// Whether the statement runs only where something else failed.
    is_alternative: bool,
    /// Whether all in front of it on its line succeeds.
    is_certain: bool,
    has_ended: bool,
    launches: Vec<Launch>,
    depth: usize,
}

/// A variable that something is assigned to.
struct Target<'a> {
    types: Vec<&'a str>,
    name: &'a str,
    operator: &'a str,
}

const OPERATORS: [&str; 9] = ["??=", "+=", "-=", "*=", "/=", "%=", "++", "--", "="];

impl<'a> Script<'a> {
    fn of(text: &'a str, origin: Origin<'a>, scope: Scope, depth: usize) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self {
            text,
            at: 0,
            origin,
            lines: ends.collect(),
            scope,
            blocks: Vec::new(),
            is_alternative: false,
            is_certain: true,
            has_ended: false,
            launches: Vec::new(),
            depth,
        }
    }

    fn run(&mut self) -> Result<(), ManifestError> {
        loop {
            let before = self.at;
            self.read(|reader| reader.skip(true));
            // `|` hands on, and what stands behind it is a command too.
            if self.rest().starts_with([';', ')', '|']) {
                self.at += 1;
                continue;
            }
            if self.has_ended || self.rest().is_empty() {
                return Ok(());
            }
            if self.origin.is_file {
                self.origin.at.line = Some(self.line());
            }
            self.statement()?;
            if self.at == before {
                self.at += self.rest().chars().next().map_or(1, char::len_utf8);
            }
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn line(&self) -> usize {
        self.lines.partition_point(|begin| *begin <= self.at) + 1
    }

    /// Reads on from here.
    fn read<T>(&mut self, read: impl FnOnce(&mut Reader<'_>) -> T) -> T {
        let mut reader = Reader::of(self.text, self.at, &self.scope);
        let found = read(&mut reader);
        self.at = reader.at;
        found
    }

    fn statement(&mut self) -> Result<(), ManifestError> {
        if self.rest().starts_with('}') {
            self.at += 1;
            self.blocks.pop();
            return Ok(());
        }
        if self.rest().starts_with('{') {
            self.at += 1;
            self.open("{", false);
            return Ok(());
        }
        let begin = self.at;
        if let Some(target) = self.target() {
            return self.assignment(begin, &target);
        }
        let word = self.rest().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("");
        let is_word = !self.rest()[word.len()..].starts_with(['-', '.', '\\', '/', ':', '_', '=']);
        if is_word && self.keyword(word)? {
            return Ok(());
        }
        let is_call =
            self.rest().strip_prefix(['&', '.']).is_some_and(|rest| rest.starts_with([' ', '"', '\'', '$', '\t']));
        let is_flag =
            self.rest().strip_prefix("--").is_some_and(|flag| flag.starts_with(|c: char| c.is_ascii_alphabetic()));
        let is_path = self.rest().starts_with(['.', '\\', '/', '~']) && !is_call;
        if is_flag {
            // No program is called so: it was to go on with the command before it.
            let name = self.rest().split(|c: char| c.is_whitespace() || c == '=').next().unwrap_or("").to_owned();
            if let Some(launch) = self.launches.last_mut() {
                launch.cut.push(name);
            }
        } else if is_call || is_path || !word.is_empty() {
            return self.command();
        } else {
            self.environment()?;
        }
        self.pass_over(Why::Expression);
        Ok(())
    }

    /// `[Environment]::SetEnvironmentVariable("NAME", "value")`, which of the process alone is seen by what it starts.
    fn environment(&mut self) -> Result<(), ManifestError> {
        const CALL: &str = "::SetEnvironmentVariable(";
        let begin = self.at;
        let found = self.read(|reader| {
            let mut name = reader.type_name()?;
            if name.eq_ignore_ascii_case("void") {
                reader.skip(false);
                name = reader.type_name()?;
            }
            let is_environment = ["Environment", "System.Environment"].iter().any(|own| own.eq_ignore_ascii_case(name));
            let is_call = reader.rest().get(..CALL.len()).is_some_and(|call| call.eq_ignore_ascii_case(CALL));
            if !is_environment || !is_call {
                return None;
            }
            let end = reader.at + CALL.len() - 1 + touched::balanced(&reader.rest()[CALL.len() - 1..]);
            reader.at += CALL.len();
            let mut given = Vec::new();
            loop {
                reader.skip(true);
                // A name of who sees it is no value.
                let Ok(value) = reader.expression(8, true) else { break };
                given.push(value);
                reader.skip(true);
                if !reader.takes(",") {
                    break;
                }
            }
            let rest = reader.text.get(reader.at..end).unwrap_or_default().to_owned();
            reader.at = end;
            Some((given, rest))
        });
        let Some((given, rest)) = found else {
            self.at = begin;
            return Ok(());
        };
        let of = given.get(2).map_or(rest, Value::text).trim_end_matches([')', ' ']).to_ascii_lowercase();
        let Some(name) = given.first().filter(|_| !of.ends_with("user") && !of.ends_with("machine")) else {
            return Ok(());
        };
        let name = format!("env:{}", name.text());
        match given.get(1).filter(|_| of.is_empty() || of.ends_with("process")) {
            Some(value) => self.set(&name, value.clone()),
            None => {
                self.forget(&name, Why::Expression);
                Ok(())
            }
        }
    }

    /// Whether a word begins a compound statement, which is gone into then.
    fn keyword(&mut self, word: &str) -> Result<bool, ManifestError> {
        let word = word.to_ascii_lowercase();
        let begin = self.at;
        self.at += word.len();
        match &*word {
            "if" | "elseif" | "while" | "switch" | "for" | "foreach" | "until" => {
                let kind = match &*word {
                    "if" | "elseif" => "if",
                    "switch" => "switch",
                    "while" | "until" => "while",
                    _ => "for",
                };
                self.read(|reader| reader.skip(true));
                if !self.rest().starts_with(['(', '-']) {
                    // A command of that name: `foreach` behind a pipe.
                    self.at = begin;
                    return Ok(false);
                }
                let group = self.rest();
                let group = &group
                    [..touched::near(group, 256).find('(').map_or(0, |open| open + touched::balanced(&group[open..]))];
                self.at += group.len();
                if word == "foreach" {
                    let name =
                        group.split_once('$').map(|(_, name)| name.split(|c: char| !(c.is_alphanumeric() || c == '_')));
                    name.and_then(|mut parts| parts.next()).into_iter().for_each(|name| self.forget(name, Why::Loop));
                }
                touched(group).into_iter().for_each(|name| self.forget(name, Why::Expression));
                let condition = group.trim_matches(['(', ')', ' ']);
                let forever = word == "while" && (condition.eq_ignore_ascii_case("$true") || condition == "1");
                self.enter(kind, forever);
            }
            "else" | "catch" | "trap" => self.enter(if word == "else" { "else" } else { "catch" }, false),
            "try" | "finally" | "begin" | "process" | "end" | "do" => self.enter("{", true),
            "function" | "filter" | "class" | "enum" | "configuration" | "workflow" => self.enter("function", false),
            "param" => {
                self.read(|reader| reader.skip(true));
                let group = Some(self.rest()).filter(|rest| rest.starts_with('(')).unwrap_or_default();
                let group = &group[..touched::balanced(group)];
                self.at += group.len();
                let names = group
                    .split('$')
                    .skip(1)
                    .filter_map(|name| name.split(|c: char| !(c.is_alphanumeric() || c == '_')).next());
                names.for_each(|name| self.forget(name, Why::Positional));
            }
            "return" | "exit" | "throw" | "break" | "continue" => {
                self.has_ended = self.condition().is_none() && self.is_certain;
                self.pass_over(Why::Expression);
            }
            _ => {
                self.at = begin;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes into the block that is the next.
    fn enter(&mut self, block: &'static str, is_certain: bool) {
        /// What stands between the word and the block: a name, types.
        const HEAD: usize = 128;
        let brace = |(_, character): &(usize, char)| matches!(character, '{' | ';');
        let Some((length, '{')) = self.rest().char_indices().take(HEAD).find(brace) else { return };
        self.at += length + 1;
        self.open(block, is_certain);
    }

    fn open(&mut self, block: &'static str, is_certain: bool) {
        let outer = self.blocks.last().copied().flatten();
        self.blocks.push(outer.or((!is_certain).then_some(block)));
    }

    /// What is around, if it is not certain that it runs.
    fn condition(&self) -> Option<&'static str> {
        self.blocks.last().copied().flatten().or(self.is_alternative.then_some("||"))
    }

    /// Goes behind a statement; what it assigns is not known.
    fn pass_over(&mut self, why: Why) {
        let length = touched::statement(self.rest());
        let passed = &self.rest()[..length];
        touched(passed).into_iter().for_each(|name| self.forget(name, why));
        self.at += length;
        (self.is_alternative, self.is_certain) = (false, true);
    }

    /// The variable that is assigned to here; else it stays where it is.
    fn target(&mut self) -> Option<Target<'a>> {
        let begin = self.at;
        let text = self.text;
        let (at, found) = {
            let mut reader = Reader::of(text, begin, &self.scope);
            let mut types = Vec::new();
            while let Some(name) = reader.type_name() {
                types.push(name);
                reader.skip(false);
            }
            let name = reader.name();
            reader.skip(false);
            let operator = OPERATORS.iter().find(|operator| reader.takes(operator));
            // Names of scopes borrow from the text, which outlives the reader.
            (reader.at, name.zip(operator.copied()).map(|(name, operator)| (types, name, operator)))
        };
        let (types, name, operator) = found?;
        self.at = at;
        let place = |part: &str| part.as_ptr() as usize - text.as_ptr() as usize;
        let whole = |part: &str| &text[place(part)..place(part) + part.len()];
        Some(Target { types: types.into_iter().map(whole).collect(), name: whole(name), operator })
    }

    fn assignment(&mut self, begin: usize, target: &Target<'_>) -> Result<(), ManifestError> {
        let value = self.assigned(target)?;
        let value = match value {
            Some(value) => value,
            None => {
                // All that it assigns, this among them.
                self.at = begin;
                self.pass_over(Why::Expression);
                return Ok(());
            }
        };
        self.set(target.name, value)?;
        (self.is_alternative, self.is_certain) = (false, true);
        Ok(())
    }

    /// The value that is assigned; none where it is not computed.
    fn assigned(&mut self, target: &Target<'_>) -> Result<Option<Value>, ManifestError> {
        let was = self.scope.value(target.name);
        if let "++" | "--" = target.operator {
            let sign = if target.operator == "++" { '+' } else { '-' };
            return Ok(Value::applied(sign, was, Value::Int(1)));
        }
        self.read(|reader| reader.skip(true));
        let word = self.rest().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("").to_ascii_lowercase();
        if matches!(&*word, "if" | "switch" | "foreach" | "for" | "while" | "try") {
            let line = self.line();
            self.keyword(&word)?;
            return Ok(Some(Value::Unknown(Why::Conditional.mark_of(&format!("${}", target.name), line))));
        }
        let is_call = self.rest().strip_prefix(['&', '.']).is_some_and(|rest| rest.starts_with([' ', '"', '\'', '$']));
        if !word.is_empty() || is_call {
            let line = self.line();
            self.command()?;
            return Ok(Some(Value::Unknown(Why::Command.mark_of(&format!("${}", target.name), line))));
        }
        let value = match self.target() {
            // Which of both values it is depends on the side that the sign stands at.
            Some(Target { operator: "++" | "--", .. }) => return Ok(None),
            Some(inner) => {
                let Some(value) = self.assigned(&inner)? else { return Ok(None) };
                self.set(inner.name, value.clone())?;
                value
            }
            None => match self.read(|reader| reader.expression(0, false)) {
                Ok(value) => value,
                Err(_) => return Ok(None),
            },
        };
        self.read(|reader| reader.skip(false));
        if !(self.rest().is_empty() || self.rest().starts_with(['\n', ';', '}', ')', '#'])) {
            return Ok(None);
        }
        let value = match target.operator.chars().next() {
            Some('=') => value,
            Some(sign @ ('+' | '-' | '*' | '/' | '%')) => match Value::applied(sign, was, value) {
                Some(value) => value,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(target.types.iter().rev().try_fold(value, |value, name| value.cast(name)))
    }

    /// Sets a variable.
    fn set(&mut self, name: &str, value: Value) -> Result<(), ManifestError> {
        let value = match self.condition().is_some() || !self.is_certain {
            true => Value::Unknown(Why::Conditional.mark_of(&format!("${name}"), self.line())),
            false => value,
        };
        self.origin.reading.charge(value.weight(), &self.origin.at)?;
        let low = name.to_ascii_lowercase();
        match low.strip_prefix("env:") {
            // Which it sets is in a file, or anywhere else.
            Some(name) if name.contains(unknown::MARKS) => {
                self.scope.environment.unread(self.origin.unread("$env:"));
            }
            Some(name) => {
                let text = value.text();
                bounded(text.len(), &self.origin.at)?;
                let name = name.to_ascii_uppercase();
                match text.is_empty() {
                    true => self.scope.environment.unset(&name),
                    false => self.scope.environment.set(&name, vec![text], true),
                }
            }
            None => {
                self.scope.variables.insert(own(&low).to_owned(), value);
            }
        }
        Ok(())
    }

    /// A variable has some value from here on that is not followed.
    fn forget(&mut self, name: &str, why: Why) {
        let mark = why.mark_of(&format!("${name}"), self.line());
        let low = name.to_ascii_lowercase();
        match low.strip_prefix("env:") {
            Some(name) if name.contains(unknown::MARKS) => {
                self.scope.environment.unread(self.origin.unread("$env:"));
            }
            Some(name) => self.scope.environment.set(&name.to_ascii_uppercase(), vec![mark], true),
            None => {
                self.scope.variables.insert(own(&low).to_owned(), Value::Unknown(mark));
            }
        }
    }

    /// A command with its arguments.
    fn command(&mut self) -> Result<(), ManifestError> {
        let begin = self.at;
        let is_sourced = self.rest().starts_with(". ");
        let is_called = self.rest().starts_with('&') || is_sourced;
        self.at += usize::from(is_called);
        let (arguments, joint) = self.read(argument::all);
        let mut weight = 0;
        for argument in &arguments {
            weight += argument.value.weight();
        }
        self.origin.reading.charge(weight, &self.origin.at)?;
        let written = &self.text[begin..self.at];
        let is_engine = self.launch(&arguments, is_sourced)?;
        touched(written).into_iter().for_each(|name| self.forget(name, Why::Expression));
        if joint == Joint::Block && !is_engine {
            self.at += 1;
            self.open("{", false);
        }
        match joint {
            Joint::And => self.is_certain = false,
            Joint::Or => (self.is_certain, self.is_alternative) = (false, true),
            Joint::Block | Joint::Pipe | Joint::End => (self.is_certain, self.is_alternative) = (true, false),
        }
        Ok(())
    }

    /// What a command does; whether it starts an engine.
    fn launch(&mut self, given: &[Argument], is_sourced: bool) -> Result<bool, ManifestError> {
        let Some(program) = given.first() else { return Ok(false) };
        let program = program.value.text();
        let name = base(&program).to_ascii_lowercase();
        if is_sourced || name.ends_with(".ps1") {
            if is_sourced && name != "activate.ps1" {
                self.origin.reading.charge(64 * self.scope.variables.len(), &self.origin.at)?;
                let line = self.line();
                for (name, value) in &mut self.scope.variables {
                    *value = Value::Unknown(Why::Sourced.mark_of(&format!("${name}"), line));
                }
                self.scope.environment.unread(self.origin.unread(&format!(". {}", unknown::written(&program))));
            }
            return Ok(false);
        }
        let arguments = &given[1..];
        match &*name {
            "set-variable" | "sv" | "new-variable" | "nv" | "clear-variable" | "clv" | "remove-variable" | "rv" => {
                let named = argument::named(arguments, "-name").or_else(|| argument::positional(arguments, 0));
                named.map(|name| name.value.text()).into_iter().for_each(|name| self.forget(&name, Why::Expression));
            }
            "set-item" | "si" | "new-item" | "ni" | "set-content" | "remove-item" | "ri" | "clear-item" => {
                let path = argument::named(arguments, "-path").or_else(|| argument::positional(arguments, 0));
                let path = path.map(|path| path.value.text().to_ascii_lowercase()).unwrap_or_default();
                let is_variable = ["env:", "variable:"].iter().any(|drive| path.starts_with(drive));
                if is_variable {
                    let name = path.trim_start_matches("variable:").replace(['\\', '/'], "");
                    let value = argument::named(arguments, "-value").or_else(|| argument::positional(arguments, 1));
                    match value
                        .map(|value| value.value.clone())
                        .filter(|_| name.starts_with("env:") && !name.contains('*'))
                    {
                        Some(value) => self.set(&name, value)?,
                        None => self.forget(&name, Why::Expression),
                    }
                }
            }
            "invoke-expression" | "iex" => {
                let text = arguments.last().map(|argument| argument.value.text()).unwrap_or_default();
                self.evaluate(&text)?;
            }
            "start-process" | "saps" => return self.start_process(arguments),
            _ => {
                for flag in ["-outvariable", "-ov", "-pipelinevariable", "-pv"] {
                    let named = argument::named(arguments, flag).map(|name| name.value.text());
                    named.into_iter().for_each(|name| self.forget(name.trim_start_matches('+'), Why::Command));
                }
                let mut words = Vec::new();
                let mut of_variables = Vec::new();
                for argument in given {
                    let value = argument.value.clone();
                    // What stands between commas is one word.
                    let values = if argument.has_commas { vec![argument.joined()] } else { value.elements() };
                    words.extend(values.iter().map(Value::text));
                    of_variables.resize(words.len(), argument.has_variable);
                }
                return self.program(words, &of_variables);
            }
        }
        Ok(false)
    }

    /// A program with its arguments; whether it is an engine.
    fn program(&mut self, mut words: Vec<String>, of_variables: &[bool]) -> Result<bool, ManifestError> {
        without_folder(&mut words);
        if engine::start(&words).is_none() && engine::open(&words).is_none() {
            self.origin.wheels.note(&words, self.origin.at.line, false, |_| None);
            pass_over(&words, &self.origin)?;
            return Ok(false);
        }
        self.origin.reading.charge(self.scope.environment.weight(), &self.origin.at)?;
        let found = command::of_program(words, of_variables, self.scope.environment.clone(), &self.origin)?;
        let is_engine = !found.is_empty();
        self.found(found)?;
        Ok(is_engine)
    }

    fn found(&mut self, found: Vec<Launch>) -> Result<(), ManifestError> {
        self.launches.extend(self.origin.unconditional(found, self.condition())?);
        Ok(())
    }

    /// `Start-Process -FilePath program -ArgumentList "a", "b"`: the arguments are one text, of which the program makes words.
    fn start_process(&mut self, arguments: &[Argument]) -> Result<bool, ManifestError> {
        let program = argument::named(arguments, "-filepath").or_else(|| argument::positional(arguments, 0));
        let is_first = argument::named(arguments, "-filepath").is_some();
        let list = ["-argumentlist", "-args"].iter().find_map(|flag| argument::named(arguments, flag));
        let list = list.or_else(|| argument::positional(arguments, usize::from(!is_first)));
        let Some(program) = program else { return Ok(false) };
        let text = list.map(|list| list.value.text()).unwrap_or_default();
        let mut words = vec![program.value.text()];
        words.extend(super::arguments(&format!("x {text}")).into_iter().skip(1));
        let of_variables = vec![list.is_some_and(|list| list.has_variable); words.len()];
        self.program(words, &of_variables)
    }

    /// A text as a part of the script.
    fn evaluate(&mut self, text: &str) -> Result<(), ManifestError> {
        let Some(depth) = self.depth.checked_sub(1) else {
            return Err(ManifestError::TooMuch {
                at: self.origin.at.clone(),
                what: "a nesting of commands",
                most: DEPTH,
            });
        };
        self.origin.reading.charge(text.len(), &self.origin.at)?;
        let origin = Origin { is_file: false, ..self.origin.clone() };
        let scope = std::mem::take(&mut self.scope);
        let mut inner = Script::of(text, origin, scope, depth);
        inner.blocks.extend(self.condition().map(Some));
        let ran = inner.run();
        let found = std::mem::take(&mut inner.launches);
        self.scope = inner.scope;
        ran?;
        self.found(found)
    }
}

#[cfg(test)]
mod tests;
