//! A command that starts an engine, before any engine's parser has read it.

use std::collections::BTreeMap;
use std::fmt;

use cacheplan_files::Shown;
use cacheplan_planner::EngineSpec;

use crate::secret;
use crate::words::quoted;

/// The words of a command, with the environment in which they run. Whoever shows it sees no secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Launch {
    /// The program and its arguments, as a shell would hand them over.
    pub words: Vec<String>,
    /// The variables that are stated beside it.
    pub env: BTreeMap<String, String>,
    /// What the file of options says that the command names, for an engine whose files are not flags: the keys with dots
    /// between them, such as `kv_cache_config.dtype`, and the values as they are written.
    pub config: Vec<(String, String)>,
    /// Whether that is read; the words name the file all the same.
    pub has_config: bool,
    /// Where it stands, such as `deployment.yaml: Deployment qwen, container vllm`.
    pub place: String,
    /// The engine's version, where its image says it.
    pub version: Option<String>,
    /// What installs its engine and does not settle the version.
    pub installs: Option<String>,
    /// Its image.
    pub image: Option<String>,
    /// GPUs that its container asks for; those of all its nodes together where it has several.
    pub gpus: Option<u32>,
    /// The nodes that its controller joins, where they are several.
    pub nodes: Option<u32>,
    /// GPUs of all pods of its group, where each asks for some: those that Ray finds.
    pub group_gpus: Option<u32>,
    /// The GPU that its node has, as the manifest names it.
    pub device: Option<String>,
    /// Flags that begin lines behind it, where a line's end or a blank line has ended the command before them.
    pub cut: Vec<String>,
    /// What the answer hangs on that the file leaves open.
    pub cautions: Vec<String>,
}

impl Launch {
    /// The same of a pod on each of so many nodes, which are joined for it.
    pub(crate) fn on_nodes(self, nodes: u32) -> Self {
        let gpus = self.gpus.map(|gpus| gpus.saturating_mul(nodes.max(1)));
        Self { gpus, nodes: Some(nodes).filter(|nodes| *nodes > 1), ..self }
    }

    /// The shortest command by which an engine serves a model.
    pub fn serving(engine: EngineSpec, model: &str) -> Self {
        let words = engine.program().split_whitespace().chain([model]);
        Self { words: words.map(str::to_owned).collect(), ..Self::default() }
    }

    /// That its image does not say the version at which it is answered.
    pub(crate) fn image_note(&self, engine: EngineSpec) -> Option<String> {
        let image = self.image.as_ref().filter(|_| self.version.is_none() && self.installs.is_none())?;
        let version = engine.version_name();
        let said = format!("the tag of {image:.200} does not say the engine's version");
        Some(format!("{said}: {version} is taken; state another with --engine-version"))
    }

    /// That what installs it does not say the version at which it is answered, or may not run.
    pub(crate) fn wheel_note(&self, engine: EngineSpec) -> Option<String> {
        let (what, version) = (self.installs.as_ref()?, engine.version_name());
        Some(format!(
            "{what} does not settle which version of {} runs: {version} is taken; state another with --engine-version",
            engine.engine
        ))
    }

    /// That lines behind it were meant for it, which no shell hands it.
    pub(crate) fn cut_note(&self) -> Option<String> {
        let first = secret::hidden(self.cut.get(..1)?).concat();
        let (lines, begins) = match self.cut.len() {
            1 => ("1 line after the command is".to_owned(), "it begins"),
            several => (format!("{several} lines after the command are"), "the first begins"),
        };
        Some(format!(
            "{lines} not read: {begins} with {first}, and a line's end without `\\`, or a blank line in a \
             folded text, ends a command"
        ))
    }

    pub(crate) fn shown_env(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().map(|(name, value)| (name.as_str(), secret::hidden_value(name, value)))
    }

    fn shown_config(&self) -> impl Iterator<Item = (&str, &str)> {
        self.config.iter().map(|(key, value)| (key.as_str(), secret::hidden_value(key, value)))
    }
}

/// Shows the command on one line, as a shell takes it; secrets are hidden.
impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = String::new();
        for (name, value) in self.shown_env() {
            line += &format!("{name}={} ", quoted(value));
        }
        let words: Vec<String> = secret::hidden(&self.words).iter().map(|word| quoted(word)).collect();
        Shown(line + &words.join(" ")).fmt(f)
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Launch");
        shown
            .field("words", &secret::hidden(&self.words))
            .field("env", &self.shown_env().collect::<BTreeMap<_, _>>())
            .field("config", &self.shown_config().collect::<Vec<_>>())
            .field("has_config", &self.has_config)
            .field("place", &self.place)
            .field("version", &self.version)
            .field("image", &self.image)
            .field("gpus", &self.gpus)
            .field("nodes", &self.nodes)
            .field("group_gpus", &self.group_gpus)
            .field("device", &self.device);
        if let Some(installs) = &self.installs {
            shown.field("installs", installs);
        }
        if !self.cut.is_empty() {
            shown.field("cut", &secret::hidden(&self.cut));
        }
        if !self.cautions.is_empty() {
            shown.field("cautions", &self.cautions);
        }
        shown.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_way_to_show_a_launch_shows_a_secret() {
        let words = ["vllm", "serve", "m", "--api-key", "open sesame", "--port=1"].map(String::from).to_vec();
        let env = BTreeMap::from([("HF_TOKEN".to_owned(), "sesame".to_owned()), ("A".to_owned(), "b c".to_owned())]);
        let config = vec![("auth.token".to_owned(), "sesame".to_owned())];
        let launch = Launch { words, env, config, ..Launch::default() };
        assert_eq!(launch.to_string(), "A='b c' HF_TOKEN=<hidden> vllm serve m --api-key <hidden> --port=1");
        let debug = format!("{launch:?} {launch:#?}");
        assert!(!debug.contains("sesame") && debug.contains("HF_TOKEN"), "{debug}");
    }
}
