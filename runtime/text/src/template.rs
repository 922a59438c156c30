//! Conversations to prompts, as the template beside the model says.
//!
//! Templates are programs of strangers: they get a bounded number of steps and a bounded text.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;
use std::thread;

use cacheplan_files::{Limit, Source, SourceError};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::TextError;
use crate::guarded::guarded;
use crate::jinja::prepare;
use crate::python;
use crate::syntax::translated;
use crate::vocabulary::{TEMPLATE as GGUF_KEY, Vocabulary};

const CONFIG: &str = "tokenizer_config.json";
const FILE: &str = "chat_template.jinja";
const KEY: &str = "chat_template";

/// Instructions that a template may take; the longest known ones take a few thousand for each message.
const FUEL: u64 = 20_000_000;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who says it: `system`, `user`, `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// What somebody says.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: content.into() }
    }
}

/// What a chat template is made of, so that another process can run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateSource {
    /// Where it stands, in the words of an error.
    pub file: String,
    /// Its text.
    pub text: String,
    /// `bos_token`, `eos_token` and their like.
    pub special: BTreeMap<String, String>,
}

impl TemplateSource {
    /// The stack that it is run on. The library goes down a sum of many parts part by part: of the longest template that
    /// takes some 100 MiB.
    #[must_use]
    pub fn stack_bytes(&self) -> usize {
        (16 << 20) + (2 << 10) * self.text.len()
    }
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    source: TemplateSource,
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// That of a model's folder: `chat_template.jinja`, or what stands in `tokenizer_config.json`.
    ///
    /// # Errors
    /// None there; one that cannot be read, or is not of its language.
    pub fn beside(folder: &Path) -> Result<Self, TextError> {
        let source = Source::beside(folder, CONFIG)?;
        let config: Map<String, Value> =
            source.as_ref().map(|source| source.json(Limit::CONFIG)).transpose()?.unwrap_or_default();
        let special = config.iter().filter(|(key, _)| key.ends_with("_token"));
        let special = special.filter_map(|(key, value)| Some((key.clone(), token_text(value)?))).collect();
        if let Some(own) = Source::beside(folder, FILE)? {
            return Self::new(own.name(), &own.text(Limit::TEMPLATE)?, special);
        }
        let none = || TextError::NoTemplate { folder: folder.display().to_string() };
        let source = source.ok_or_else(none)?;
        let text = stated(config.get(KEY).unwrap_or(&Value::Null)).map_err(|found| TextError::Value {
            file: source.name().to_owned(),
            key: KEY,
            found,
            known: "a template, or a list of named templates, one of them `default`",
        })?;
        Self::new(&format!("{}: {KEY}", source.name()), text.ok_or_else(none)?, special)
    }

    /// That of a GGUF file's own keys.
    ///
    /// # Errors
    /// None there; one that is not of its language.
    pub fn embedded(
        file: &str,
        keys: &Map<String, Value>,
        mut words: HashMap<String, Vec<String>>,
    ) -> Result<Self, TextError> {
        let vocabulary = Vocabulary::new(file, keys, &mut words);
        let text = vocabulary.template()?.ok_or_else(|| TextError::NoTemplate { folder: file.to_owned() })?;
        Self::new(&format!("{file}: {GGUF_KEY}"), text, vocabulary.special()?)
    }

    fn new(file: &str, text: &str, special: BTreeMap<String, String>) -> Result<Self, TextError> {
        Self::from_source(TemplateSource { file: file.to_owned(), text: text.to_owned(), special })
    }

    /// That of a text and what belongs to it.
    ///
    /// # Errors
    /// One that is too long, or not of its language.
    pub fn from_source(source: TemplateSource) -> Result<Self, TextError> {
        let TemplateSource { file, text, .. } = &source;
        if text.len() as u64 > Limit::TEMPLATE.bytes {
            return Err(SourceError::TooLong { name: file.clone(), limit: Limit::TEMPLATE }.into());
        }
        let mut environment = Environment::empty();
        // As transformers sets them.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        prepare(&mut environment);
        environment.add_function("raise_exception", |message: &minijinja::Value| -> Result<(), Error> {
            Err(Error::new(ErrorKind::InvalidOperation, python::text(message)?))
        });
        environment.add_function("strftime_now", |format: String| now(&format));
        let text = translated(text).map_err(|wrong| TextError::Template {
            file: file.clone(),
            line: Some(wrong.line),
            reason: format!("syntax error: {}", wrong.reason),
        })?;
        let added = deep(source.stack_bytes(), || guarded(|| environment.add_template_owned(KEY, text)));
        added.map_err(|reason| failed(file, reason))?.map_err(|error| template_error(file, &error))?;
        Ok(Self { source, environment })
    }

    /// What it is made of.
    pub fn source(&self) -> &TemplateSource {
        &self.source
    }

    /// The prompt of a conversation that the model is to answer.
    ///
    /// # Errors
    /// A template that fails at these messages, never ends, or makes too long a text of them. One that means harm may take
    /// any memory, or all of its stack, which ends the process: run it in another, see [`ChatTemplate::source`].
    pub fn render(&self, messages: &[Message]) -> Result<String, TextError> {
        #[derive(Serialize)]
        struct Context<'a> {
            messages: &'a [Message],
            add_generation_prompt: bool,
            tools: Option<()>,
            documents: Option<()>,
            #[serde(flatten)]
            special: &'a BTreeMap<String, String>,
        }
        let TemplateSource { file, special, .. } = &self.source;
        let wrong = |error| template_error(file, &error);
        let template = self.environment.get_template(KEY).map_err(wrong)?;
        let context = Context { messages, add_generation_prompt: true, tools: None, documents: None, special };
        let mut prompt = Bounded(Vec::new());
        let render = || guarded(|| template.render_captured_to(context, &mut prompt).map(drop));
        deep(self.source.stack_bytes(), render).map_err(|reason| failed(file, reason))?.map_err(wrong)?;
        String::from_utf8(prompt.0).map_err(|_| {
            let error = Error::new(ErrorKind::InvalidOperation, "the prompt is no text");
            template_error(file, &error)
        })
    }
}

/// `datetime.now().strftime(format)`, which has no zone, and its dates as C's locale writes them.
fn now(format: &str) -> Result<String, Error> {
    let mut own = String::new();
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        match (character, if character == '%' { rest.next() } else { None }) {
            ('%', Some('x')) => own += "%m/%d/%y",
            ('%', Some('X')) => own += "%H:%M:%S",
            ('%', Some('c')) => own += "%a %b %e %H:%M:%S %Y",
            ('%', Some('r')) => own += "%I:%M:%S %p",
            ('%', Some('f')) => own += "%6f",
            ('%', Some('z' | 'Z')) => {}
            ('%', Some(other)) => own.extend(['%', other]),
            (other, _) => own.push(other),
        }
    }
    jiff::fmt::strtime::format(&own, &jiff::Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// A special token is stated as its text, or as an object with its text in `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// The template of a config; what was found instead, if it is none.
fn stated(value: &Value) -> Result<Option<&str>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        Value::Array(named) => {
            let default = named.iter().find(|named| named["name"] == "default");
            let text = default.and_then(|default| default["template"].as_str());
            text.map(Some).ok_or_else(|| format!("a list of {} without `default`", named.len()))
        }
        other => Err(other.to_string()),
    }
}

/// Calls on a stack of so many bytes; what is not used of it takes no memory.
fn deep<T: Send>(stack: usize, call: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(stack).spawn_scoped(scope, call);
        let thread = thread.map_err(|error| format!("there is no memory for its stack: {error}"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Of a template that the library does not bear.
fn failed(file: &str, reason: String) -> TextError {
    TextError::Template { file: file.to_owned(), line: None, reason }
}

fn template_error(file: &str, error: &Error) -> TextError {
    let mut reason = error.kind().to_string();
    let source = std::error::Error::source(error).map(ToString::to_string);
    for more in error.detail().map(str::to_owned).into_iter().chain(source) {
        reason += &format!(": {more}");
    }
    TextError::Template { file: file.to_owned(), line: error.line(), reason }
}

/// As much text as a prompt may have.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > Limit::PROMPT.bytes as usize {
            return Err(io::Error::other(format!("the prompt has more than {} bytes", Limit::PROMPT.bytes)));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
