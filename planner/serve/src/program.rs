//! Which engine a command starts.

use std::collections::BTreeMap;

use cacheplan_planner::Engine;

use crate::error::ServeError;
use crate::words::assignment;

/// An engine's program among the words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) engine: Engine,
    /// The place of its first argument.
    pub(crate) start: usize,
    /// The version, where an image says it.
    pub(crate) version: Option<String>,
    /// Variables that stand among the words.
    pub(crate) env: BTreeMap<String, String>,
}

/// What may stand before a program without changing it.
const BEFORE: [&str; 8] = ["exec", "nohup", "sudo", "time", "env", "uvx", "stdbuf", "then"];

/// Images whose entry point is an engine's server, with a part of their names.
const IMAGES: [(&str, &str); 4] = [
    ("vllm/vllm-openai", "vllm"),
    ("lmsysorg/sglang", "sglang"),
    ("llama.cpp:server", "llama.cpp"),
    ("tensorrt-llm", "tensorrt-llm"),
];

impl Program {
    pub(crate) fn of(words: &[String]) -> Result<Self, ServeError> {
        let mut env = BTreeMap::new();
        let mut at = 0;
        while let Some(word) = words.get(at) {
            if let Some((name, value)) = assignment(word) {
                env.insert(name.to_owned(), value.to_owned());
            } else if !BEFORE.contains(&word.as_str()) {
                break;
            }
            at += 1;
        }
        let word = |ahead: usize| words.get(at + ahead).map_or("", String::as_str);
        let name = word(0).rsplit('/').next().unwrap_or_default();
        let found = |engine: &str, ahead: usize| {
            let engine = Engine::all().iter().copied().find(|known| known.name() == engine);
            engine.map(|engine| Self { engine, start: at + ahead, version: None, env: env.clone() })
        };
        let program = match (name, word(1)) {
            ("vllm", "serve") => found("vllm", 2),
            ("sglang", "serve") => found("sglang", 2),
            ("trtllm-serve", "serve") => found("tensorrt-llm", 2),
            ("trtllm-serve", _) => found("tensorrt-llm", 1),
            ("llama-server" | "llama-server.exe", _) => found("llama.cpp", 1),
            ("uv" | "poetry", "run") => return Self::behind(words, at + 2, env),
            ("docker" | "podman" | "nerdctl", "run") => return Self::of_image(words, at + 2, env),
            ("bash" | "sh", "-c") => return Err(ServeError::Program { found: format!("{name} -c") }),
            _ if name.starts_with("python") => {
                let module = (1..6).find(|ahead| word(*ahead) == "-m");
                module.and_then(|module| match word(module + 1) {
                    "vllm.entrypoints.openai.api_server" => found("vllm", module + 2),
                    "vllm.entrypoints.cli.main" if word(module + 2) == "serve" => found("vllm", module + 3),
                    "sglang.launch_server" => found("sglang", module + 2),
                    _ => None,
                })
            }
            _ => None,
        };
        program.ok_or_else(|| ServeError::Program { found: words.get(at).cloned().unwrap_or_default() })
    }

    fn behind(words: &[String], at: usize, env: BTreeMap<String, String>) -> Result<Self, ServeError> {
        let inner = Self::of(words.get(at..).unwrap_or_default())?;
        Ok(Self { start: inner.start + at, env: env.into_iter().chain(inner.env).collect(), ..inner })
    }

    /// `docker run … vllm/vllm-openai:v0.24.0 --model …`.
    fn of_image(words: &[String], at: usize, mut env: BTreeMap<String, String>) -> Result<Self, ServeError> {
        let options = words.iter().enumerate().skip(at);
        let image = options.clone().find_map(|(at, word)| {
            let known = IMAGES.iter().find(|(name, _)| word.contains(name) && !word.starts_with('-'));
            known.map(|(_, engine)| (at, *engine))
        });
        let (image, name) =
            image.ok_or_else(|| ServeError::Program { found: words[..at.min(words.len())].join(" ") })?;
        for (at, word) in options.take_while(|(at, _)| *at < image) {
            let stated = match word.as_str() {
                "-e" | "--env" => words.get(at + 1).map(String::as_str),
                word => word.strip_prefix("--env=").or_else(|| word.strip_prefix("-e").filter(|rest| !rest.is_empty())),
            };
            if let Some((name, value)) = stated.and_then(assignment) {
                env.insert(name.to_owned(), value.to_owned());
            }
        }
        let version = words[image].rsplit_once(":v").map(|(_, tag)| tag.split('-').next().unwrap_or(tag).to_owned());
        let next = words.get(image + 1).map_or("", String::as_str);
        if !next.is_empty() && !next.starts_with('-') && (name != "vllm" || Self::of(&words[image + 1..]).is_ok()) {
            let inner = Self::behind(words, image + 1, env)?;
            return Ok(Self { version, ..inner });
        }
        let engine = Engine::all().iter().copied().find(|known| known.name() == name);
        let engine = engine.ok_or_else(|| ServeError::Program { found: name.to_owned() })?;
        Ok(Self { engine, start: image + 1, version, env })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("vllm serve m", "vllm", 2, None)]
    #[case("CUDA_VISIBLE_DEVICES=0 exec /opt/venv/bin/vllm serve m", "vllm", 4, None)]
    #[case("python3 -u -m vllm.entrypoints.openai.api_server --model m", "vllm", 4, None)]
    #[case("python -m sglang.launch_server --model-path m", "sglang", 3, None)]
    #[case("uv run sglang serve --model-path m", "sglang", 4, None)]
    #[case("trtllm-serve m --tp_size 2", "tensorrt-llm", 1, None)]
    #[case("./build/bin/llama-server -m a.gguf", "llama.cpp", 1, None)]
    #[case("docker run --gpus all -e A=1 vllm/vllm-openai:v0.24.0 --model m", "vllm", 7, Some("0.24.0"))]
    fn a_program_is_found_with_its_first_argument(
        #[case] text: &str,
        #[case] engine: &str,
        #[case] start: usize,
        #[case] version: Option<&str>,
    ) {
        let found = Program::of(&shlex::split(text).unwrap()).unwrap();
        assert_eq!((found.engine.name(), found.start, found.version.as_deref()), (engine, start, version));
    }

    #[rstest]
    #[case("vllm bench latency")]
    #[case("python server.py")]
    #[case("")]
    fn another_program_is_refused(#[case] text: &str) {
        assert!(Program::of(&shlex::split(text).unwrap()).is_err());
    }
}
