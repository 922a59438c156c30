//! What the files that engines read are made of.

use std::borrow::Cow;

use cacheplan_files::Shown;
use serde_json::{Map, Value, json};
use shlex::Quoter;

use super::serving::Setting;
use crate::parallel::Parallel;

/// A file on its way to an engine.
pub(crate) struct File<'a> {
    /// The engine that reads the values and its version, `vLLM 0.33.0`.
    pub(crate) engine: &'a str,
    /// The name or path that the engine loads the model by.
    pub(crate) model: &'a str,
    pub(crate) model_type: &'a str,
    pub(crate) tool_version: &'a str,
    pub(crate) parallel: Parallel,
    pub(crate) settings: &'a [Setting],
    pub(crate) not_expressed: &'a [String],
}

impl File<'_> {
    /// A file of YAML: what it is for, how it is used, where its values come from, the values, and what they cannot say.
    ///
    /// The values are JSON, which is YAML: only there is a text a text to every reader, `no`, `1e3` and `2024-01-01` too.
    pub(crate) fn yaml(&self, usage: &str, document: &Value) -> String {
        let sources: String =
            self.settings.iter().map(|setting| comment("", &format!("{}: {}", setting.key, setting.source))).collect();
        self.commented(usage, &format!("{sources}{}\n", Shown::printable(&format!("{document:#}"))))
    }

    /// The settings as lines of a shell's array, each below where it comes from.
    pub(crate) fn argument_lines(&self) -> String {
        let line = |setting: &Setting| comment("  ", &setting.source) + &format!("  {}\n", quoted(&argument(setting)));
        self.settings.iter().map(line).collect()
    }

    /// What a container of Kubernetes states of GPUs.
    pub(crate) fn gpus(&self) -> Value {
        // Replicas that the engine is told to run are in the container.
        let replicas = self.settings.iter().any(|setting| setting.key == "data-parallel-size");
        let dp = if replicas { u64::from(self.parallel.dp) } else { 1 };
        let gpus = u64::from(self.parallel.tp) * u64::from(self.parallel.pp) * dp;
        json!({ "nvidia.com/gpu": gpus.to_string() })
    }

    /// `body` below what it is for and how it is used, above what it cannot say.
    pub(crate) fn commented(&self, usage: &str, body: &str) -> String {
        let about =
            format!("For {}, by cacheplan {} from a plan for {}.", self.engine, self.tool_version, self.model_type);
        let head = comment("", &about) + &comment("", usage);
        let tail: String = self.not_expressed.iter().map(|gap| comment("", &format!("- {gap}"))).collect();
        format!("{head}{body}# What the plan says and the engine cannot be told:\n{tail}")
    }
}

/// A comment of YAML and of shells, on one line.
pub(crate) fn comment(margin: &str, text: &str) -> String {
    format!("{margin}# {}\n", Shown(text))
}

/// Settings as JSON, sections as objects.
pub(crate) fn nested(settings: &[Setting]) -> Value {
    let mut root = Map::new();
    for setting in settings {
        let value = setting.value.clone();
        match setting.key.split_once('.') {
            Some((section, key)) => {
                let inside = root.entry(section).or_insert_with(|| json!({}));
                inside[key] = value;
            }
            None => drop(root.insert(setting.key.clone(), value)),
        }
    }
    Value::Object(root)
}

/// `--key=value`, or the bare flag where the value is `true`.
pub(crate) fn argument(setting: &Setting) -> String {
    match &setting.value {
        Value::Bool(true) => format!("--{}", setting.key),
        Value::String(text) => format!("--{}={text}", setting.key),
        other => format!("--{}={other}", setting.key),
    }
}

/// All of them, as the arguments of a container.
pub(crate) fn arguments(settings: &[Setting]) -> impl Iterator<Item = String> {
    settings.iter().map(argument)
}

/// One word of a shell.
pub(crate) fn quoted(word: &str) -> Cow<'_, str> {
    // Only what is allowed here could fail; no name with it is taken.
    Quoter::new().allow_nul(true).quote(word).unwrap_or_default()
}
