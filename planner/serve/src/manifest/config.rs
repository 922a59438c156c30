//! The file of options that an engine's command names: flags of vLLM and SGLang, `LlmArgs` of TensorRT-LLM.

use cacheplan_files::{Limit, Source};
use serde_json::Value as Json;

use super::error::{ManifestError, Place};
use super::reading::{Reading, Spot};
use super::unknown;
use super::yaml::{self, Node, Value};
use crate::Launch;
use crate::secret::{self, HIDDEN};

/// Flags that name such a file.
const FLAGS: [&str; 4] = ["--config", "--extra-llm-api-options", "--extra-engine-args", "--llm-api-options"];

impl Launch {
    /// The file of options that the command names: `--config` and its like.
    pub fn config_file(&self) -> Option<&str> {
        self.config_flag().map(|(_, _, path)| path)
    }

    /// Reads the file of options that the command names, as the engine would: those of vLLM and SGLang become words in
    /// front of the others, so that these win; those of TensorRT-LLM become [`Launch::config`]. The flag is taken away.
    ///
    /// # Errors
    /// A file that is no map in YAML within the limits, or with values in it that are templates.
    pub fn with_config(mut self, name: &str, text: &str) -> Result<Self, ManifestError> {
        let text = Source::memory(name, text).text(Limit::MANIFEST)?;
        let reading = Reading::new(name);
        let documents = yaml::documents(name, &text)?;
        let Some(root) = documents.first() else { return Ok(self) };
        let root = reading.root(root);
        if let Some((from, to, _)) = self.config_flag() {
            self.words.drain(from..to);
        }
        if self.is_tensorrt_llm() {
            settings(&root, "", &mut self.config)?;
            return Ok(self);
        }
        let program = self.program_words();
        let has_model = self.words.get(program).is_some_and(|word| !secret::is_flag(word)) && self.is_vllm_serve();
        let mut words = Vec::new();
        for (key, value) in root.entries()? {
            match key {
                "model" if self.is_vllm_serve() => {
                    if !has_model {
                        self.words.insert(program, literal(&value)?);
                    }
                }
                _ => flag(key, &value, &mut words)?,
            }
        }
        // Behind the model, if there is one now.
        let model = self.words.get(program).is_some_and(|word| !secret::is_flag(word)) && self.is_vllm_serve();
        let at = program + usize::from(model);
        self.words.splice(at..at, words);
        Ok(self)
    }

    /// The words from which to which the flag stands, and its value.
    fn config_flag(&self) -> Option<(usize, usize, &str)> {
        let is_config = |flag: &str| FLAGS.contains(&flag.replace('_', "-").as_str());
        self.words.iter().enumerate().find_map(|(index, word)| match word.split_once('=') {
            Some((flag, path)) if is_config(flag) => Some((index, index + 1, path)),
            None if is_config(word) => Some((index, index + 2, self.words.get(index + 1)?.as_str())),
            _ => None,
        })
    }

    fn is_tensorrt_llm(&self) -> bool {
        let engine = &self.words[..self.program_words().min(self.words.len())];
        engine
            .iter()
            .any(|word| word.ends_with("trtllm-serve") || word == "dynamo.trtllm" || word.starts_with("tensorrt_llm"))
    }

    fn is_vllm_serve(&self) -> bool {
        self.words.get(1).is_some_and(|word| word == "serve") && self.words[0].ends_with("vllm")
    }

    /// The words that name the engine: `vllm serve`, `python -m sglang.launch_server`.
    fn program_words(&self) -> usize {
        let module = self.words.iter().take(6).position(|word| word == "-m");
        match module {
            Some(index) => (index + 2).min(self.words.len()),
            None if self.words.get(1).is_some_and(|word| word == "serve") => 2,
            None => 1.min(self.words.len()),
        }
    }
}

/// The command of a file that says all that an engine needs.
pub(super) fn alone(root: &Spot<'_>) -> Result<Option<Launch>, ManifestError> {
    let keys: Vec<String> = root.entries()?.iter().map(|(key, _)| key.replace('_', "-")).collect();
    let has = |known: &[&str]| keys.iter().any(|key| known.contains(&key.as_str()));
    let words: &[&str] = if has(&TENSORRT_LLM) {
        &["trtllm-serve"]
    } else if has(&["model-path"]) {
        &["python3", "-m", "sglang.launch_server"]
    } else if has(&["model"]) || has(&VLLM) {
        &["vllm", "serve"]
    } else {
        return Ok(None);
    };
    let mut words: Vec<String> = words.iter().map(ToString::to_string).collect();
    let place = root.reading.file.to_owned();
    let mut launch = Launch { place, ..Launch::default() };
    if words[0] == "trtllm-serve" {
        words.extend(root.get("model").map(|model| literal(&model)).transpose()?);
        settings(root, "", &mut launch.config)?;
    } else {
        let is_vllm = words[0] == "vllm";
        if let (true, Some(model)) = (is_vllm, root.get("model")) {
            words.push(literal(&model)?);
        }
        for (key, value) in root.entries()?.iter().filter(|(key, _)| !is_vllm || *key != "model") {
            flag(key, value, &mut words)?;
        }
    }
    root.reading.count_launch(&root.place())?;
    launch.words = unknown::settle(&words, |_| root.place())?;
    Ok(Some(launch))
}

/// Keys that TensorRT-LLM alone has.
const TENSORRT_LLM: [&str; 8] = [
    "kv-cache-config",
    "cuda-graph-config",
    "max-num-tokens",
    "moe-config",
    "enable-attention-dp",
    "moe-expert-parallel-size",
    "cache-transceiver-config",
    "print-iter-log",
];
const VLLM: [&str; 5] =
    ["max-model-len", "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens", "served-model-name"];

/// A key of a file as vLLM turns it into words.
pub(super) fn flag(key: &str, value: &Spot<'_>, words: &mut Vec<String>) -> Result<(), ManifestError> {
    if secret::is_secret(key) {
        words.extend([format!("--{key}"), HIDDEN.to_owned()]);
        return Ok(());
    }
    match &value.node.value {
        Value::Text { text, plain: true } if truth(text) == Some(true) => words.push(format!("--{key}")),
        Value::Text { text, plain: true } if truth(text) == Some(false) => words.push(format!("--no-{key}")),
        Value::Text { .. } => words.extend([format!("--{key}"), literal(value)?]),
        Value::List(_) => {
            words.push(format!("--{key}"));
            for item in value.items()? {
                words.push(match &item.node.value {
                    Value::Text { .. } => literal(&item)?,
                    _ => json(item.node, &item.place())?.to_string(),
                });
            }
        }
        Value::Map(_) => words.extend([format!("--{key}"), json(value.node, &value.place())?.to_string()]),
    }
    Ok(())
}

/// The settings of a map, with dots between the keys.
fn settings(map: &Spot<'_>, prefix: &str, found: &mut Vec<(String, String)>) -> Result<(), ManifestError> {
    for (key, value) in map.entries()? {
        let name = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
        map.reading.charge(name.len(), &map.place())?;
        match &value.node.value {
            Value::Map(_) => settings(&value, &name, found)?,
            _ if secret::is_secret(key) => found.push((name, HIDDEN.to_owned())),
            Value::List(_) => found.push((name, json(value.node, &value.place())?.to_string())),
            Value::Text { .. } => found.push((name, literal(&value)?)),
        }
    }
    Ok(())
}

/// A text that is no template of a shell either.
fn literal(value: &Spot<'_>) -> Result<String, ManifestError> {
    let text = value.known()?;
    match text.find("${") {
        Some(start) => {
            let template: String = text[start..].chars().take(60).take_while(|c| *c != '}').collect();
            unknown::known(&unknown::Why::Template.mark(&format!("{template}}}")), &value.place())
        }
        None => Ok(text),
    }
}

/// A scalar of YAML 1.1 that is true or false.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// A value as JSON, which is what a flag takes for a map.
fn json(node: &Node, at: &Place) -> Result<Json, ManifestError> {
    Ok(match &node.value {
        _ if node.is_null() => Json::Null,
        Value::Text { text, plain } => match (plain, truth(text), serde_json::from_str(text)) {
            (true, Some(truth), _) => Json::Bool(truth),
            (true, None, Ok(number @ Json::Number(_))) => number,
            _ => Json::String(unknown::known(&unknown::mark_templates(text), at)?),
        },
        Value::List(items) => Json::Array(items.iter().map(|item| json(item, at)).collect::<Result<_, _>>()?),
        Value::Map(entries) => {
            let entry = |(key, value): &(String, Node)| {
                let value = if secret::is_secret(key) { Json::String(HIDDEN.to_owned()) } else { json(value, at)? };
                Ok::<_, ManifestError>((key.clone(), value))
            };
            Json::Object(entries.iter().map(entry).collect::<Result<_, _>>()?)
        }
    })
}
