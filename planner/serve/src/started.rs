//! Which engine words start.

use cacheplan_planner::Engine;

/// The name of a program, of Windows too.
pub(crate) fn base(word: &str) -> &str {
    word.rsplit(['/', '\\']).next().unwrap_or("").trim_end_matches(".exe")
}

/// The engine that words start, and the place of its first argument.
pub(crate) fn started(words: &[String]) -> Option<(Engine, usize)> {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let name = base(word(0));
    let found = match (name, word(1)) {
        ("vllm", "serve") => Some(("vllm", 2)),
        ("sglang", "serve") => Some(("sglang", 2)),
        ("trtllm-serve", "serve") => Some(("tensorrt-llm", 2)),
        ("trtllm-serve", _) => Some(("tensorrt-llm", 1)),
        ("llama-server", _) => Some(("llama.cpp", 1)),
        _ if name.starts_with("python") => {
            let module = (1..6).find(|at| word(*at) == "-m");
            module.and_then(|module| match word(module + 1) {
                // Dynamo's workers take the engine's own flags, and some beside them.
                "vllm.entrypoints.openai.api_server" | "dynamo.vllm" => Some(("vllm", module + 2)),
                "vllm.entrypoints.cli.main" if word(module + 2) == "serve" => Some(("vllm", module + 3)),
                "sglang.launch_server" | "dynamo.sglang" => Some(("sglang", module + 2)),
                "dynamo.trtllm" => Some(("tensorrt-llm", module + 2)),
                _ => None,
            })
        }
        _ => None,
    };
    let known = |name: &str| Engine::all().iter().copied().find(|known| known.name() == name);
    found.and_then(|(name, start)| Some((known(name)?, start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("vllm serve m", "vllm", 2)]
    #[case("/opt/venv/bin/vllm serve m", "vllm", 2)]
    #[case("python3 -u -m vllm.entrypoints.openai.api_server --model m", "vllm", 4)]
    #[case("python -m sglang.launch_server --model-path m", "sglang", 3)]
    #[case("python3 -m dynamo.vllm --model m", "vllm", 3)]
    #[case("python3 -m dynamo.sglang --model-path m", "sglang", 3)]
    #[case("trtllm-serve m --tp_size 2", "tensorrt-llm", 1)]
    #[case("python3 -m dynamo.trtllm --model m", "tensorrt-llm", 3)]
    #[case("./build/bin/llama-server -m a.gguf", "llama.cpp", 1)]
    #[case("'C:\\llama\\llama-server.exe' -m a.gguf", "llama.cpp", 1)]
    fn a_program_is_found_with_its_first_argument(#[case] text: &str, #[case] engine: &str, #[case] start: usize) {
        let (found, at) = started(&shlex::split(text).unwrap()).unwrap();
        assert_eq!((found.name(), at), (engine, start));
    }

    #[rstest]
    #[case("vllm bench latency")]
    #[case("python server.py")]
    #[case("")]
    fn another_program_is_refused(#[case] text: &str) {
        assert_eq!(started(&shlex::split(text).unwrap()), None);
    }
}
