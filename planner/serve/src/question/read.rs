//! What the words of a command say, one by one.

use cacheplan_handlers::DType;
use cacheplan_planner::engines::FlagMeaning;

use super::{Question, ReadFlag, llama_cpp, sglang, speculation, tensorrt_llm};
use crate::error::ServeError;
use crate::flags::meaning::{Meaning, meaning};
use crate::flags::parse::{Setting, program};
use crate::flags::python::float;
use crate::flags::table::{Arity, Flag, Kind};
use crate::flags::values::is_auto;
use crate::remedy::Remedy;
use crate::secret;

impl Question {
    /// Whether a variable says yes, as `EnvBool` of SGLang's `srt/environ.py` reads it.
    pub(super) fn has_on(&self, variable: &str) -> bool {
        self.env
            .get(variable)
            .is_some_and(|value| ["true", "1", "yes", "y"].contains(&value.trim().to_lowercase().as_str()))
    }

    /// What the flags say, one by one.
    pub(super) fn read_flags(&mut self) -> Result<(), ServeError> {
        let settings: Vec<Setting> = self.parsed.settings.values().cloned().collect();
        let mut profiled = Vec::new();
        for setting in settings {
            let flag = setting.flag;
            let value = secret::hidden_value(flag.name, &setting.values.join(" ")).to_owned();
            let meaning = meaning(self.engine.engine, flag);
            if !matches!(meaning, Meaning::None | Meaning::Profiled) {
                self.refuse_negative(&setting)?;
            }
            let says = match meaning {
                _ if self.states_default(&setting) => "its default".to_owned(),
                Meaning::None if flag.name == tensorrt_llm::FILE && !self.config.is_empty() => {
                    "options that are read with the flags".to_owned()
                }
                Meaning::None => "no cache depends on it".to_owned(),
                Meaning::Profiled => {
                    profiled.push(flag.name);
                    "what is measured beside caches".to_owned()
                }
                Meaning::Weights => {
                    self.needs_weights(flag)?;
                    "what weights take".to_owned()
                }
                Meaning::Model | Meaning::Revision => "the model".to_owned(),
                Meaning::Own => {
                    // As its parser understands it: 16k is 16000 of vLLM's.
                    let number = setting.whole().filter(|number| *number >= 0 && flag.kind != Kind::Text);
                    let number = number.map(|number| number.to_string()).filter(|number| *number != value);
                    // `stoi` stops at the first sign that is no digit.
                    let is_cut = flag.kind == Kind::CInt && !value.ends_with(|last: char| last.is_ascii_digit());
                    if let Some(number) = number.as_ref().filter(|_| is_cut) {
                        self.cautions.push(format!("{} {value} is {number} to its parser", flag.name));
                    }
                    let number = number.map(|number| number + ", ").unwrap_or_default();
                    format!("{number}read by the engine's own rule")
                }
                Meaning::Key(path) => self.state(path, number(&setting), flag),
                Meaning::Planner(FlagMeaning::Key(path)) => self.state(path, number(&setting), flag),
                Meaning::Planner(FlagMeaning::NotKey(path)) => self.state(path, (!setting.on).to_string(), flag),
                Meaning::Planner(FlagMeaning::DType { path, own, names }) => {
                    let word = setting.value();
                    let known = names.iter().find(|(_, name, _)| *name == word).map(|(dtype, ..)| *dtype);
                    let known = known
                        .or_else(|| word.parse().ok().filter(|dtype: &DType| names.iter().any(|(of, ..)| of == dtype)));
                    match known {
                        Some(dtype) => self.state(path, format!("\"{dtype}\""), flag),
                        None if own == Some(word) => "the model's own".to_owned(),
                        None => return Err(unread_value(flag, word, own)),
                    }
                }
                Meaning::Unread(_) if !setting.on => "left off".to_owned(),
                Meaning::Unread(why) => return Err(unread(flag, why)),
                Meaning::Planner(_) => return Err(unread(flag, "nobody read what it does to caches")),
            };
            let shown = if setting.on { flag.name } else { flag.negated.first().copied().unwrap_or(flag.name) };
            self.read.push(ReadFlag { flag: shown.into(), value, says });
        }
        if !profiled.is_empty() {
            self.notes.push(format!(
                "{} change what is measured beside caches, of which the bytes are not known exactly",
                profiled.join(", ")
            ));
        }
        Ok(())
    }

    /// Whether a flag says what holds without it; what llama.cpp's parser takes without them is in no table.
    pub(super) fn states_default(&self, setting: &Setting) -> bool {
        /// What engines decide where nobody says, and what is on.
        const DECIDED: [&str; 3] = ["--enable-prefix-caching", "--async-scheduling", "--enable-chunked-prefill"];
        let flag = setting.flag;
        let unsaid = self.engine.engine.name() != "llama.cpp";
        let is_off = flag.values == Arity::Exactly(0)
            && !setting.on
            && flag.default.map_or(unsaid, |default| default == "false");
        let is_default = !setting.values.is_empty() && flag.default == Some(setting.value());
        (is_off && !DECIDED.contains(&flag.name)) || is_default
    }

    /// What changes weights is answered only beside bytes that are stated.
    fn needs_weights(&self, flag: &'static Flag) -> Result<(), ServeError> {
        if self.is_stated("memory.weights") || self.is_stated("engine.cache_bytes") {
            return Ok(());
        }
        // vLLM and SGLang refuse another quantisation than the files have, so that naming theirs changes nothing; that is looked at with the
        // model.
        if flag.name == "--quantization" {
            return Ok(());
        }
        Err(ServeError::weights_unknown(flag.name, Remedy::Remove(flag.name)))
    }

    /// Refuses a flag that counts something and says less than nothing.
    fn refuse_negative(&self, setting: &Setting) -> Result<(), ServeError> {
        // llama.cpp counts without a sign what its parser took with one; -1 is a word of vLLM's for the longest that fits, and of
        // SGLang's for prompts that are not cut; it runs one request where fewer are stated.
        let flag = setting.flag;
        let is_word = [sglang::CHUNK, sglang::RUNNING].contains(&flag.name)
            || flag.kind == Kind::HumanIntOrAuto && is_auto(setting.value());
        let counts = !matches!(flag.kind, Kind::CInt | Kind::Text | Kind::Json | Kind::Switch) && !is_word;
        match setting.whole().filter(|number| counts && *number < 0) {
            Some(number) => {
                let said = format!("{} must not be negative (it is {number})", flag.name);
                Err(self.refused(said, [Remedy::Remove(flag.name)]))
            }
            None => Ok(()),
        }
    }

    pub(super) fn read_model(&mut self, all: &[String], start: usize) -> Result<(), ServeError> {
        let engine = self.engine.engine.name();
        let by_word = match engine {
            // `_normalize_positional_model_path`, which `launch_server` has not.
            "sglang" => {
                all[..start].ends_with(&["serve".to_owned()])
                    && self.parsed.positional.first().is_some_and(|(at, _)| *at == start)
            }
            engine => matches!(engine, "vllm" | "tensorrt-llm"),
        };
        let program = program(self.engine.engine);
        let mut words = self.parsed.positional.iter().cloned();
        // vLLM's parser takes `--model` for the word, so that another word is one too many.
        let by_word = by_word && !(engine == "vllm" && self.parsed.settings.contains_key("--model"));
        let mut model = if by_word { words.next().map(|(_, word)| word) } else { None };
        if let Some((at, stray)) = words.next() {
            let said = format!("error: unrecognized arguments: {}", secret::hidden(all)[at]);
            return Err(ServeError::Parser { program, said, remedies: vec![Remedy::Drop(stray)] });
        }
        let named = |name: &str| self.parsed.settings.get(name).map(|setting| setting.value().to_owned());
        let by_flag = match engine {
            "vllm" => named("--model"),
            "sglang" => named("--model-path"),
            "llama.cpp" => llama_cpp::model(self)?,
            _ => None,
        };
        model = by_flag.or(model);
        let flag = match engine {
            "vllm" | "tensorrt-llm" => "it behind `serve`, or with --model",
            "sglang" => "--model-path",
            _ => "--model FILE, or --hf-repo with --hf-file",
        };
        let model = model.filter(|model| !model.is_empty()).ok_or(ServeError::NoModel { program, flag })?;
        self.model = match named("--revision") {
            Some(revision) if !model.contains('@') => format!("{model}@{revision}"),
            _ => model,
        };
        self.draft = match engine {
            "vllm" => speculation::draft(self)?,
            "sglang" => named("--speculative-draft-model-path"),
            "llama.cpp" => named("--model-draft"),
            _ => None,
        };
        Ok(())
    }
}

/// A value as the budget writes it.
fn number(setting: &Setting) -> String {
    let value = setting.value();
    match setting.flag.kind {
        Kind::Int | Kind::CInt | Kind::HumanInt | Kind::HumanIntOrAuto | Kind::SiInt => {
            setting.whole().map_or(value.to_owned(), |count| count.to_string())
        }
        Kind::Float => float(value).map_or(value.to_owned(), |number| format!("{number:?}")),
        _ => value.to_owned(),
    }
}

fn unread(flag: &'static Flag, why: &str) -> ServeError {
    ServeError::unread(flag.name, why, [Remedy::Remove(flag.name)])
}

fn unread_value(flag: &'static Flag, word: &str, own: Option<&'static str>) -> ServeError {
    let why = format!("caches in `{word}` were not read");
    let remedies = own.map(|own| Remedy::Set(flag.name, own.to_owned())).into_iter().chain([Remedy::Remove(flag.name)]);
    ServeError::unread(flag.name, why, remedies)
}
