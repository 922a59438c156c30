//! Words as the engine's parser takes them.

use std::collections::BTreeMap;

use cacheplan_files::Shown;
use cacheplan_planner::engines::Version;
use cacheplan_planner::{Engine, EngineSpec};
use serde_json::Value;

use super::elsewhere::elsewhere;
use super::fields;
use super::meaning::{Meaning, meaning};
use super::table::{Arity, Flag, Kind, flags, newest_with, took_value};
use super::values::{human_int, is_negative, refuses, whole, without_units};
use crate::error::ServeError;
use crate::remedy::Remedy;
use crate::secret;

/// A flag with its value, as it stands in the words.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) flag: &'static Flag,
    /// False where the form was written that says the opposite.
    pub(crate) on: bool,
    pub(crate) values: Vec<String>,
}

/// What a command says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parsed {
    /// Each flag once, as it was stated last.
    pub(crate) settings: BTreeMap<&'static str, Setting>,
    /// JSON of which the parts were stated one by one: together they stand above what was stated whole.
    parts: BTreeMap<&'static str, (&'static Flag, Value)>,
    /// Words that belong to no flag, with their places.
    pub(crate) positional: Vec<(usize, String)>,
    /// Flags that are written in part, and their whole names.
    pub(crate) short: Vec<(String, &'static str)>,
}

impl Setting {
    /// The value as a whole number, as the engine's parser reads it.
    pub(crate) fn whole(&self) -> Option<i64> {
        whole(self.flag.kind, self.value())
    }

    /// The value, of a switch `true` or `false`.
    pub(crate) fn value(&self) -> &str {
        match self.values.first() {
            Some(value) => value,
            None => {
                if self.on {
                    "true"
                } else {
                    "false"
                }
            }
        }
    }
}

/// How an engine's parser reads words.
struct Grammar {
    engine: EngineSpec,
    flags: Vec<&'static Flag>,
    /// `--max_model_len` is `--max-model-len`.
    joins: bool,
    /// `--max-model` is, where nothing else begins so.
    abbreviates: bool,
    /// `--config.key value` is a part of JSON.
    dotted: bool,
    /// `--flag=value`.
    equals: bool,
}

/// What starts an engine, for its messages.
pub(crate) fn program(engine: Engine) -> &'static str {
    match engine.name() {
        "vllm" => "vllm serve",
        "sglang" => "sglang.launch_server",
        "tensorrt-llm" => "trtllm-serve",
        _ => "llama-server",
    }
}

/// Reads `words` from `start` on, under `env`.
pub(crate) fn parse(
    engine: EngineSpec,
    words: &[String],
    start: usize,
    env: &BTreeMap<String, String>,
) -> Result<Parsed, ServeError> {
    let name = engine.engine.name();
    let is_vllm = name == "vllm";
    let argparse = is_vllm || name == "sglang";
    let grammar = Grammar {
        engine,
        flags: flags(engine.engine, engine.version),
        joins: is_vllm || name == "llama.cpp",
        abbreviates: argparse,
        dotted: is_vllm,
        equals: name != "llama.cpp",
    };
    let mut parsed = Parsed::default();
    grammar.variables(env, &mut parsed)?;
    let mut at = start;
    let mut only_words = false;
    while let Some(word) = words.get(at) {
        if only_words || !word.starts_with('-') || is_negative(word) || word == "-" {
            parsed.positional.push((at, word.clone()));
            at += 1;
        } else if word == "--" {
            only_words = true;
            at += 1;
        } else {
            at = grammar.flag(words, at, &mut parsed)?;
        }
    }
    for (name, (flag, whole)) in std::mem::take(&mut parsed.parts) {
        parsed.settings.insert(name, Setting { flag, on: true, values: vec![whole.to_string()] });
    }
    Ok(parsed)
}

impl Grammar {
    /// Reads the flag at `at`; gives the place of the next word.
    fn flag(&self, words: &[String], at: usize, parsed: &mut Parsed) -> Result<usize, ServeError> {
        let word = &words[at];
        if self.engine.engine.name() == "vllm"
            && let Some((level, next)) = optimization_level(words, at, || self.named("-O").is_err())
        {
            let Ok((flag, _)) = self.named("--optimization-level") else {
                return self.level(parsed, level).map(|()| next);
            };
            return self.put(parsed, Setting { flag, on: true, values: vec![level.to_owned()] }).map(|()| next);
        }
        let (name, stuck) = match word.split_once('=') {
            Some((name, value)) if self.equals => (name, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let (name, path) = match name.split_once('.') {
            Some((name, path)) if self.dotted => (name, Some(path)),
            _ => (name, None),
        };
        let (name, stuck) = match self.short(name) {
            Some((known, value)) => (known, value.or(stuck)),
            None => (name, stuck),
        };
        let (flag, on) = match self.named(name) {
            Err(_) if self.prints(name) => return Err(self.only_prints(name)),
            Ok((flag, _)) if self.prints(flag.name) => return Err(self.only_prints(name)),
            found => found?,
        };
        parsed.short.extend(self.whole(flag, name).map(|whole| (name.to_owned(), whole)));
        if self.engine.engine.name() == "llama.cpp"
            && flag.values == Arity::Exactly(0)
            && took_value(self.engine, flag.name)
        {
            return Err(self.parser(
                &format!("while handling argument \"{name}\": the argument has been removed"),
                [Remedy::Drop(name.to_owned())],
            ));
        }
        if let Some(path) = path {
            let next = at + 1 + usize::from(stuck.is_none());
            let value = match stuck {
                Some(value) => value,
                None => words.get(at + 1).cloned().ok_or_else(|| self.no_value(flag))?,
            };
            return self.put_part(parsed, flag, path, &value).map(|()| next);
        }
        let mut next = at + 1;
        let mut values: Vec<String> = stuck.into_iter().collect();
        let is_value = |at: usize| words.get(at).filter(|word| !self.is_flag(word)).cloned();
        let (least, most) = match flag.values {
            Arity::Exactly(count) => (count, count),
            Arity::Optional => (0, 1),
            Arity::AtLeast(least) => (least, usize::MAX),
        };
        if values.is_empty() {
            while values.len() < most {
                let Some(value) = is_value(next) else { break };
                values.push(value);
                next += 1;
            }
        } else if most == 0 {
            let shown = secret::hidden_value(flag.name, &values[0]);
            let said = format!("argument {name}: ignored explicit argument '{shown}'");
            return Err(self.parser(&said, [Remedy::Remove(flag.name)]));
        }
        if values.len() < least {
            return Err(self.no_value(flag));
        }
        self.put(parsed, Setting { flag, on, values }).map(|()| next)
    }

    /// A word that argparse takes for a flag rather than for a value; others take any word behind a flag.
    fn is_flag(&self, word: &str) -> bool {
        self.abbreviates && word.starts_with('-') && !is_negative(word) && word.len() > 1 && !word.contains(' ')
    }

    /// What argparse makes of a word with one dash that is no flag: the only flag that begins so, or one of a letter with its value.
    fn short(&self, name: &str) -> Option<(&'static str, Option<String>)> {
        if !self.abbreviates || name.starts_with("--") || self.flags.iter().any(|flag| on_as(flag, name).is_some()) {
            return None;
        }
        let letter = name.get(..2)?;
        let names = self.flags.iter().flat_map(|flag| flag.names());
        let mut found = names.filter(|known| *known == letter || known.starts_with(name));
        let (known, None) = (found.next()?, found.next()) else { return None };
        Some((known, (known == letter).then(|| name[2..].to_owned())))
    }

    /// Whether a flag only prints something, and the program ends behind it.
    fn prints(&self, name: &str) -> bool {
        match self.engine.engine.name() {
            "llama.cpp" => {
                matches!(name, "--usage" | "--version" | "--completion-bash" | "--cache-list" | "--list-devices")
            }
            "tensorrt-llm" => name == "--help",
            _ => matches!(name, "--help" | "-h"),
        }
    }

    fn only_prints(&self, name: &str) -> ServeError {
        let said = format!("{name} prints something and ends, and no engine starts");
        let remedies = vec![Remedy::Drop(name.to_owned())];
        ServeError::Parser { program: program(self.engine.engine), said, remedies }
    }

    /// What a level is where no flag is called so: a part of the configuration of compilation, or all of it where that is no JSON yet.
    fn level(&self, parsed: &mut Parsed, level: &str) -> Result<(), ServeError> {
        let flag = self.named("-O")?.0;
        match flag.kind {
            Kind::Json => self.put_part(parsed, flag, "level", level),
            _ => self.put(parsed, Setting { flag, on: true, values: vec![level.to_owned()] }),
        }
    }

    fn no_value(&self, flag: &'static Flag) -> ServeError {
        self.parser(&format!("argument {}: expected one argument", flag.name), [Remedy::Remove(flag.name)])
    }

    fn parser(&self, said: &str, remedies: impl IntoIterator<Item = Remedy>) -> ServeError {
        let program = program(self.engine.engine);
        ServeError::Parser { program, said: format!("error: {said}"), remedies: remedies.into_iter().collect() }
    }

    /// The flag that is written so, and whether it says that it is on.
    fn named(&self, written: &str) -> Result<(&'static Flag, bool), ServeError> {
        let name = self.joined(written);
        let exact = self.flags.iter().find_map(|flag| Some((*flag, on_as(flag, &name)?)));
        if let Some(found) = exact {
            return Ok(found);
        }
        let long = name.len() > 2 && name.starts_with("--");
        let of = |flag: &&'static Flag| flag.names().find(|known| known.starts_with(&name)).map(|known| (*flag, known));
        let begun: Vec<(&Flag, &str)> = self.flags.iter().filter_map(of).filter(|_| self.abbreviates && long).collect();
        match begun.as_slice() {
            [(flag, known)] => Ok((flag, on_as(flag, known).unwrap_or(true))),
            [] => Err(self.unknown(written)),
            several => {
                let mut several = several.to_vec();
                // What says nothing of caches is probably not meant by who asks here, nor a name of which little is written.
                several.sort_by_key(|(flag, known)| (meaning(self.engine.engine, flag) == Meaning::None, known.len()));
                let names: Vec<&str> = several.iter().map(|(_, known)| *known).collect();
                let shown = secret::shown_flag(self.engine.engine, written);
                let said = format!("ambiguous option: {shown} could match {}", names.join(", "));
                let renamed = names.iter().map(|known| Remedy::Rename(written.to_owned(), (*known).to_owned()));
                Err(self.parser(&said, renamed.take(4).collect::<Vec<_>>()))
            }
        }
    }

    /// The name of a flag that is written in part.
    fn whole(&self, flag: &'static Flag, written: &str) -> Option<&'static str> {
        let name = self.joined(written);
        let begins = |known: &&str| known.starts_with(&name);
        flag.names().all(|known| known != name).then(|| flag.names().find(begins)).flatten()
    }

    /// A name with the signs that it has in the table.
    fn joined(&self, written: &str) -> String {
        if self.joins && written.starts_with("--") { written.replace('_', "-") } else { written.to_owned() }
    }

    fn unknown(&self, written: &str) -> ServeError {
        let known = self.flags.iter().flat_map(|flag| flag.names());
        let spelled = known.filter_map(|known| Some((distance(written, known)?, known)));
        // One dash and a name's first word mean that name, and no other of as many letters: `-ctx` is `--ctx-size`, not `-ctk`.
        let begun = |known: &&str| known.strip_prefix(&format!("-{written}")).is_some_and(|rest| rest.starts_with('-'));
        let begun = self.flags.iter().flat_map(|flag| flag.names()).filter(begun);
        let begun = begun.filter(|_| !written.starts_with("--")).min_by_key(|known| known.len());
        let name = self.joined(written);
        let near = elsewhere(self.engine.engine, &self.flags, &name);
        let near = near.or(begun).or(spelled.min_by_key(|(far, _)| *far).map(|(_, known)| known));
        let shown = secret::shown_flag(self.engine.engine, written);
        let said = match self.engine.engine.name() {
            "llama.cpp" => format!("invalid argument: {shown}"),
            "tensorrt-llm" => format!("No such option: {shown}"),
            _ => format!("unrecognized arguments: {shown}"),
        };
        let said = match (newest_with(self.engine.engine, &name), near) {
            (Some(version), _) => {
                let [has, not] = [EngineSpec { version, ..self.engine }, self.engine].map(EngineSpec::version_name);
                format!("{said} ({has} has it, {not} has not; state the engine's version)")
            }
            (None, Some(near)) => format!("{said} (near {near})"),
            (None, None) => said,
        };
        let renamed = near.map(|near| Remedy::Rename(written.to_owned(), near.to_owned()));
        self.parser(&said, renamed.into_iter().chain([Remedy::Drop(written.to_owned())]))
    }

    /// Keeps a setting whose values are of its kind; the last one wins.
    fn put(&self, parsed: &mut Parsed, mut setting: Setting) -> Result<(), ServeError> {
        /// Those that add to what they said before.
        const ADDS: [&str; 1] = ["--override-kv"];
        let flag = setting.flag;
        if self.is_none(&setting) {
            parsed.settings.remove(flag.name);
            return Ok(());
        }
        if self.reads_units(flag) {
            setting.values.iter_mut().for_each(|value| *value = without_units(value));
        }
        // A manifest may leave open what no cache depends on: `--port $PORT`.
        let is_needed = meaning(self.engine.engine, flag) != Meaning::None;
        for value in setting.values.iter().filter(|value| is_needed || !value.contains('$')) {
            if let Some(expected) = refuses(flag, value) {
                return Err(self.wrong(flag, value, &expected));
            }
        }
        if ADDS.contains(&flag.name)
            && let Some(known) = parsed.settings.get(flag.name)
        {
            setting.values.splice(0..0, known.values.clone());
        }
        parsed.settings.insert(flag.name, setting);
        Ok(())
    }

    /// Whether a value says that the flag says nothing (`optional_type`).
    fn is_none(&self, setting: &Setting) -> bool {
        let says_none = matches!(&*setting.values, [value] if value.is_empty() || value == "None");
        self.dotted && self.engine.version >= fields::READ && says_none && fields::may_be_none(setting.flag)
    }

    /// Whether numbers within the JSON of a flag may have units: of what is a configuration of its own, read in 0.33.0 alone.
    fn reads_units(&self, flag: &Flag) -> bool {
        const READ: Version = Version(0, 33, 0);
        const DICTIONARIES: [&str; 4] =
            ["--speculative-config", "--additional-config", "--override-generation-config", "--quantization-config"];
        self.dotted
            && self.engine.version >= READ
            && flag.kind == Kind::Json
            && flag.name.ends_with("-config")
            && !DICTIONARIES.contains(&flag.name)
    }

    fn wrong(&self, flag: &'static Flag, value: &str, expected: &str) -> ServeError {
        let shown = secret::hidden_value(flag.name, value);
        let said = format!("argument {}: invalid value: '{shown}' ({expected} was expected)", flag.name);
        let near = flag.choices.iter().filter(|known| Shown(value).distance(known) * 2 <= known.len());
        let near = near
            .min_by_key(|known| (!known.starts_with(value), Shown(value).distance(known)))
            .map(|known| Remedy::Set(flag.name, (*known).to_owned()));
        let number = mended(flag.kind, value).map(|value| Remedy::Set(flag.name, value));
        self.parser(&said, near.into_iter().chain(number).chain([Remedy::Remove(flag.name)]))
    }

    /// Puts a part of JSON beside the other parts.
    fn put_part(&self, parsed: &mut Parsed, flag: &'static Flag, path: &str, value: &str) -> Result<(), ServeError> {
        const DEEPEST: usize = 16;
        let path: Vec<&str> = path.trim_end_matches('+').split('.').collect();
        if flag.kind != Kind::Json || path.len() > DEEPEST {
            let said = format!("argument {}: takes no parts", flag.name);
            return Err(self.parser(&said, [Remedy::Remove(flag.name)]));
        }
        let said = serde_json::from_str(value).ok().or_else(|| human_int(value).map(Value::from));
        let said = path.iter().rev().fold(said.unwrap_or_else(|| value.into()), |inner, key| {
            Value::Object(std::iter::once(((*key).to_owned(), inner)).collect())
        });
        let (_, whole) = parsed.parts.entry(flag.name).or_insert_with(|| (flag, Value::Object(Default::default())));
        merge(whole, said);
        Ok(())
    }

    /// What variables state, which flags stand above.
    fn variables(&self, env: &BTreeMap<String, String>, parsed: &mut Parsed) -> Result<(), ServeError> {
        for flag in &self.flags {
            // Whatever a variable of the opposite says, it is that, and stands above the other.
            let own = flag.env.filter(|name| !flag.negated.is_empty() && !name.contains("_NO_"));
            let opposite =
                own.and_then(|name| name.strip_prefix("LLAMA_ARG_")).map(|name| format!("LLAMA_ARG_NO_{name}"));
            if opposite.is_some_and(|name| env.contains_key(&name)) {
                self.put(parsed, Setting { flag, on: false, values: Vec::new() })?;
                continue;
            }
            let Some(value) = flag.env.and_then(|name| env.get(name)) else { continue };
            let truthy = ["1", "on", "true", "enabled"].contains(&value.as_str());
            let is_switch = flag.values == Arity::Exactly(0);
            // Older builds of llama.cpp have variables of `--no-x` alone, whose flag is `--x` here.
            let negates = !flag.name.starts_with("--no-") && flag.env.is_some_and(|name| name.contains("_NO_"));
            if is_switch && !truthy && (negates || flag.negated.is_empty()) {
                continue;
            }
            let values = if is_switch { Vec::new() } else { vec![value.clone()] };
            self.put(parsed, Setting { flag, on: !is_switch || truthy && !negates, values })?;
        }
        Ok(())
    }
}

/// vLLM's `-O3`, `-O=3` and, where `-O` is no flag of its own, `-O 3`, with the place of the word behind.
fn optimization_level(words: &[String], at: usize, may_stand_apart: impl Fn() -> bool) -> Option<(&str, usize)> {
    let level = words[at].strip_prefix("-O")?;
    if !level.is_empty() {
        return Some((level.trim_start_matches('='), at + 1));
    }
    let level =
        words.get(at + 1).filter(|level| matches!(level.as_str(), "0" | "1" | "2" | "3") && may_stand_apart())?;
    Some((level, at + 2))
}

/// How many letters make another name of it, if few: of names that begin alike the rest tells which is meant.
fn distance(written: &str, known: &str) -> Option<usize> {
    const BEGINNINGS: [&str; 3] = ["--enable-", "--disable-", "--no-"];
    let rest = |begin: &&str| Some((written.strip_prefix(begin)?, known.strip_prefix(begin)?));
    let (written, known) = BEGINNINGS.iter().find_map(rest).unwrap_or((written, known));
    let far = Shown(written).distance(known);
    (far * 4 <= known.len().max(4)).then_some(far)
}

/// Whether `name` says that the flag is on; none where it is no name of it.
fn on_as(flag: &Flag, name: &str) -> Option<bool> {
    if flag.negated.contains(&name) { Some(false) } else { flag.names().any(|known| known == name).then_some(true) }
}

/// A value of the kind that was probably meant.
fn mended(kind: Kind, value: &str) -> Option<String> {
    let number =
        value.trim().trim_end_matches(|unit: char| unit.is_ascii_alphabetic() || unit == '%').replace([',', '_'], "");
    match kind {
        Kind::Int | Kind::CInt | Kind::HumanInt | Kind::HumanIntOrAuto | Kind::SiInt => {
            let whole = human_int(&value.replace([',', '_'], ""))
                .or_else(|| number.parse::<f64>().ok().filter(|number| *number >= 1.0).map(|number| number as i64))?;
            Some(whole.to_string())
        }
        Kind::Float => {
            let number: f64 = number.replace(',', ".").parse().ok()?;
            Some(if number > 1.0 { number / 100.0 } else { number }.to_string())
        }
        _ => None,
    }
}

fn merge(whole: &mut Value, part: Value) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.into_iter().for_each(|(key, value)| merge(whole.entry(key).or_insert(Value::Null), value));
        }
        (whole, part) => *whole = part,
    }
}
