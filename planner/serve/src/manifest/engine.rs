//! Which words start an engine.

use cacheplan_planner::Target;

use super::unknown::MARKS;
use crate::started::base;

/// What a command starts, from one of its words on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Engine,
    /// `sh -c script`.
    Shell,
    /// `docker run`.
    Container,
}

/// Programs that start what stands behind them, after options of their own.
pub(super) const WRAPPERS: [&str; 34] = [
    "exec",
    "nohup",
    "env",
    "sudo",
    "time",
    "command",
    "setsid",
    "nice",
    "ionice",
    "stdbuf",
    "timeout",
    "numactl",
    "taskset",
    "uv",
    "uvx",
    "poetry",
    "conda",
    "tini",
    "dumb-init",
    "mpirun",
    "srun",
    "trtllm-llmapi-launch",
    "nsys",
    "nvidia_entrypoint.sh",
    "chrt",
    "apptainer",
    "singularity",
    "micromamba",
    "pixi",
    "pipenv",
    "pdm",
    "screen",
    "ssh",
    "wsl",
];

const MODULES: [&str; 8] = [
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.api_server",
    "vllm.entrypoints.cli.main",
    "sglang.launch_server",
    "dynamo.vllm",
    "dynamo.sglang",
    "dynamo.trtllm",
    "tensorrt_llm.commands.serve",
];

/// The word with which something starts, and what it is.
pub(super) fn start(words: &[String]) -> Option<(usize, Start)> {
    let wraps = WRAPPERS.contains(&base(words.first()?));
    let last = if wraps { words.len() } else { 1 };
    (0..last).find_map(|index| Some((index, starts(&words[index..])?)))
}

/// The word that may say that a program which has other commands too serves, where that is not known: `vllm $ARGUMENTS`.
pub(super) fn open(words: &[String]) -> Option<&str> {
    let wraps = WRAPPERS.contains(&base(words.first()?));
    let last = if wraps { words.len() } else { 1 };
    let is_open = |pair: &&[String]| matches!(base(&pair[0]), "vllm" | "sglang") && pair[1].starts_with(MARKS);
    words.windows(2).take(last).find(is_open).map(|pair| pair[1].as_str())
}

fn starts(words: &[String]) -> Option<Start> {
    let second = words.get(1).map(String::as_str);
    let name = base(words.first()?);
    match name.split_once('@').map_or(name, |(name, _)| name) {
        "vllm" if second == Some("serve") => Some(Start::Engine),
        "sglang" if second == Some("serve") => Some(Start::Engine),
        "llama-server" | "trtllm-serve" => Some(Start::Engine),
        "sh" | "bash" | "dash" | "ash" | "zsh" => script(words).map(|_| Start::Shell),
        "docker" | "podman" | "nerdctl" => container_arguments(words).map(|_| Start::Container),
        program if program.strip_prefix("python").is_some_and(is_version) => {
            let module = words.iter().take(5).position(|word| word == "-m")?;
            let options = words[1..module].iter().all(|word| word.starts_with('-'));
            let module = words.get(module + 1)?;
            (options && MODULES.contains(&module.as_str())).then_some(Start::Engine)
        }
        _ => None,
    }
}

/// Whether words that start nothing which is read name an engine's command: those behind a program that may run them, `tmux new vllm
/// serve m`, a text among them, `su -c 'vllm serve m'`, an image, `apptainer run docker://vllm/vllm-openai`.
pub(super) fn is_named(words: &[String]) -> bool {
    let Some((program, rest)) = words.split_first() else { return false };
    if shows(program) {
        return false;
    }
    let is_command = |words: &[&str]| match *words {
        [program, "serve", _, ..] => matches!(base(program), "vllm" | "sglang"),
        [program, next, ..] if next.starts_with('-') && next != "-m" => matches!(base(program), "llama-server"),
        [program, "-m", next, ..] => base(program) == "llama-server" || MODULES.contains(&next),
        _ => false,
    };
    let is_in = |words: &[&str]| (0..words.len()).any(|at| is_command(&words[at..words.len().min(at + 3)]));
    let whole: Vec<&str> = rest.iter().map(String::as_str).collect();
    let is_image = |word: &String| word.split_once("://").is_some_and(|(_, image)| !entrypoint(image, &[]).is_empty());
    is_in(&whole) || rest.iter().any(|word| is_image(word) || is_in(&word.split_whitespace().collect::<Vec<_>>()))
}

/// Whether a program shows or looks for words.
fn shows(program: &str) -> bool {
    const SHOW: [&str; 14] = [
        "echo", "printf", "print", "log", "info", "warn", "error", "die", "usage", "grep", "kill", "sed", "awk", "git",
    ];
    SHOW.iter().any(|word| base(program).contains(word)) || matches!(base(program), "[" | "[[" | "test" | "cat")
}

/// Flags that no other program has; of TensorRT-LLM's with dashes.
const OWN_FLAGS: [&str; 19] = [
    "--max-model-len",
    "--gpu-memory-utilization",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--kv-cache-dtype",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--mem-fraction-static",
    "--max-running-requests",
    "--chunked-prefill-size",
    "--disable-radix-cache",
    "--kv-cache-free-gpu-memory-fraction",
    "--free-gpu-memory-fraction",
    "--extra-llm-api-options",
    "--n-gpu-layers",
    "--cache-type-k",
    "--cache-type-v",
];

/// The first flag of an engine among words that start nothing which is read; none where they are those of an engine's other programs,
/// `vllm bench latency`.
pub(super) fn own_flag(words: &[String]) -> Option<&str> {
    const OTHER: [&str; 6] = ["vllm.", "sglang.", "tensorrt_llm.", "dynamo.", "llama-", "trtllm-"];
    let is_other = |word: &String| {
        let word = base(word);
        matches!(word, "vllm" | "sglang") || OTHER.iter().any(|name| word.starts_with(name))
    };
    let first = words.iter().position(|word| word.starts_with("--")).unwrap_or(words.len());
    if words.first().is_none_or(|program| shows(program)) || words[..first].iter().any(is_other) {
        return None;
    }
    let flag = |word: &str| word.split('=').next().unwrap_or_default().replace('_', "-");
    let is_own = |word: &&String| word.starts_with("--") && OWN_FLAGS.contains(&&*flag(word));
    words.iter().find(is_own).and_then(|word| word.split('=').next())
}

/// Whether a text has the name of an engine, or a flag that engines alone have: no other holds a command.
pub(super) fn is_in(text: &str) -> bool {
    const NAMES: [&str; 5] = ["vllm", "sglang", "trtllm", "tensorrt", "llama"];
    let text = text.to_ascii_lowercase().replace('_', "-");
    NAMES.iter().chain(&OWN_FLAGS).any(|name| text.contains(name))
}

fn is_version(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// The script of `sh -c`, and the arguments behind it: `$0`, `$1`...
pub(super) fn script(words: &[String]) -> Option<(&str, &[String])> {
    /// Options that may stand in front of it: each word of a command may be the program.
    const OPTIONS: usize = 32;
    let mut index = 1;
    for _ in 0..OPTIONS {
        let option = words.get(index)?.strip_prefix('-').filter(|option| !option.starts_with('-'))?;
        // The name of an option stands behind `-o`.
        index += if option.ends_with('o') { 2 } else { 1 };
        if option.contains('c') {
            return Some((words.get(index)?, &words[index + 1..]));
        }
    }
    None
}

/// What stands behind `docker run`.
pub(super) fn container_arguments(words: &[String]) -> Option<&[String]> {
    let words = &words[1..];
    let words = if words.first().is_some_and(|word| word == "container") { &words[1..] } else { words };
    words.first().filter(|word| matches!(word.as_str(), "run" | "create")).map(|_| &words[1..])
}

/// What an image runs in front of the arguments that it is given.
pub(super) fn entrypoint(image: &str, arguments: &[String]) -> Vec<String> {
    let (path, tag) = parts(image);
    let name = base(path);
    let words: &[&str] = if name.starts_with("vllm-openai") {
        &["vllm", "serve"]
    } else if name == "llm-d-cuda" {
        &["python", "-m", "vllm.entrypoints.openai.api_server"]
    } else if name == "llama.cpp" && tag.starts_with("server") {
        &["llama-server"]
    } else if name == "llama.cpp" && arguments.first().is_some_and(|word| word == "--server" || word == "-s") {
        // Of the image `full`, whose first argument names a tool.
        return std::iter::once("llama-server".to_owned()).chain(arguments[1..].iter().cloned()).collect();
    } else {
        &[]
    };
    words.iter().map(ToString::to_string).chain(arguments.iter().cloned()).collect()
}

/// The engine's version in an image, `0.8.5.post1` of `v0.8.5.post1-cu124`, `b5174` of `server-cuda-b5174`; none where the tag does
/// not say it.
pub(super) fn version(image: &str) -> Option<String> {
    let (path, tag) = parts(image);
    if path.contains("ai-dynamo/") {
        let of = base(path).strip_suffix("-runtime")?;
        let (_, target) = DYNAMO.iter().find(|(name, _)| *name == of)?;
        return target.parse::<Target>().ok()?.engine_in(tag).map(str::to_owned);
    }
    let is_engines = ENGINES.iter().any(|name| base(path).contains(name)) || path.contains("tensorrt-llm/");
    if !is_engines || (OWN_TAGS.iter().any(|owner| path.contains(owner)) && !path.contains("tensorrt-llm")) {
        return None;
    }
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if base(path).starts_with("llama.cpp") {
        return tag.split('-').find(|part| part.strip_prefix('b').is_some_and(digits)).map(str::to_owned);
    }
    let version = tag.split(['-', '_']).next()?.trim_start_matches('v');
    let is_version = version.contains('.') && version.split('.').take(2).all(digits);
    is_version.then(|| version.to_owned())
}

/// What an image is built for that does not run on CUDA, and one of the same engine that does.
pub(crate) fn other_build(image: &str) -> Option<(&'static str, String)> {
    let (path, tag) = parts(image);
    let name = base(path);
    let engine = ENGINES.iter().find(|engine| name.contains(*engine))?;
    let owner = path.rsplit('/').nth(1).filter(|owner| OWNERS.contains(owner));
    let words = name.split(['-', '_']).chain(tag.split(['-', '_'])).chain(owner);
    let is = |word: &str, known: &str| {
        word.strip_prefix(known)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(|char: char| char.is_ascii_digit()))
    };
    if words.clone().any(|word| is(word, "cuda") || is(word, "cu")) {
        return None;
    }
    let build = BUILDS.iter().find(|(known, _)| words.clone().any(|word| is(word, known))).map(|(_, build)| *build);
    let program = tag.split('-').next().filter(|first| LLAMA_CPP_TAGS.contains(first));
    let is_own = ["ggml-org/llama.cpp", "ggerganov/llama.cpp"].iter().any(|own| path.ends_with(own));
    // Its images of no word more are those for processors.
    let build = build.or_else(|| program.filter(|_| is_own).map(|_| PROCESSORS))?;
    let instead = match *engine {
        "llama.cpp" => format!("ghcr.io/ggml-org/llama.cpp:{}-cuda", program.unwrap_or(LLAMA_CPP_TAGS[0])),
        "sglang" => "lmsysorg/sglang".to_owned(),
        "vllm" => "vllm/vllm-openai".to_owned(),
        _ => return None,
    };
    Some((build, instead))
}

const PROCESSORS: &str = "processors";
const LLAMA_CPP_TAGS: [&str; 3] = ["server", "full", "light"];
/// Who has images for devices of its own alone.
const OWNERS: [&str; 2] = ["rocm", "intel"];
/// Words in names and tags of images, and what they are built for.
const BUILDS: [(&str, &str); 16] = [
    ("cpu", PROCESSORS),
    ("xeon", PROCESSORS),
    ("s390x", PROCESSORS),
    ("openvino", "OpenVINO"),
    ("rocm", "ROCm"),
    ("hip", "ROCm"),
    ("vulkan", "Vulkan"),
    ("musa", "MUSA"),
    ("intel", "Intel's devices"),
    ("xpu", "Intel's devices"),
    ("hpu", "Gaudi"),
    ("gaudi", "Gaudi"),
    ("npu", "Ascend"),
    ("cann", "Ascend"),
    ("tpu", "TPUs"),
    ("neuron", "Neuron"),
];

/// What names of images say that an engine is in them.
const ENGINES: [&str; 5] = ["vllm", "sglang", "llama.cpp", "tensorrt-llm", "trtllm"];

/// Who tags images of engines with versions of their own.
const OWN_TAGS: [&str; 6] = ["lmcache/", "llm-d/", "kserve/", "rayproject/", "nvcr.io/nvidia/", "intel/llm-scaler"];

/// Dynamo's images, and the targets of export that know which engine is in each release.
const DYNAMO: [(&str, &str); 3] =
    [("vllm", "dynamo"), ("sglang", "dynamo-sglang"), ("tensorrtllm", "dynamo-tensorrt-llm")];

/// The path of an image and its tag.
fn parts(image: &str) -> (&str, &str) {
    let image = image.split('@').next().unwrap_or("");
    match image.rsplit_once(':') {
        // Behind a colon in front of a slash stands a port.
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (image, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(String::from).collect()
    }

    #[rstest]
    #[case("vllm serve m", Some((0, Start::Engine)))]
    #[case("/opt/venv/bin/vllm serve m", Some((0, Start::Engine)))]
    #[case("vllm bench serve", None)]
    #[case("python3 -u -m sglang.launch_server --tp 2", Some((0, Start::Engine)))]
    #[case("python3 -m pip install vllm", None)]
    #[case("sudo -E numactl --cpunodebind=0 trtllm-serve m", Some((4, Start::Engine)))]
    #[case("apptainer exec --nv vllm.sif vllm serve m", Some((4, Start::Engine)))]
    #[case("screen -dmS name vllm serve m", Some((3, Start::Engine)))]
    #[case("echo vllm serve m", None)]
    #[case("docker container run i", Some((0, Start::Container)))]
    #[case("docker ps", None)]
    #[case("bash -euxo pipefail -c x", Some((0, Start::Shell)))]
    #[case("bash start.sh -c x", None)]
    fn a_command_is_told_by_its_program(#[case] command: &str, #[case] expected: Option<(usize, Start)>) {
        assert_eq!(start(&words(command)), expected);
    }

    #[test]
    fn flags_of_engines_are_in_their_parsers() {
        let known = |name: &str| {
            let mut all =
                cacheplan_planner::Engine::all().iter().flat_map(|engine| crate::flags::table::all_flags(*engine));
            all.any(|flag| flag.names().any(|known| known.replace('_', "-") == name))
        };
        let others: Vec<_> = OWN_FLAGS.iter().filter(|name| !known(name)).collect();
        assert!(others.is_empty(), "{others:?}");
    }

    #[rstest]
    #[case("python serve.py --max-model-len 4096", Some("--max-model-len"))]
    #[case("--model m --max_num_seqs=4", Some("--max_num_seqs"))]
    #[case("sudo server --gpu-memory-utilization .9", Some("--gpu-memory-utilization"))]
    #[case("python train.py --batch-size 8 --dtype bf16", None)]
    #[case("vllm bench latency --tensor-parallel-size 2", None)]
    #[case("python -m sglang.bench_one_batch --mem-fraction-static .8", None)]
    #[case("echo --max-model-len", None)]
    fn a_flag_of_engines_is_told(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(own_flag(&words(text)), expected);
    }

    #[rstest]
    #[case("vllm/vllm-openai:v0.11.0", "vllm serve a")]
    #[case("localhost:5000/lmcache/vllm-openai", "vllm serve a")]
    #[case("ghcr.io/ggml-org/llama.cpp:server-cuda@sha256:00", "llama-server a")]
    #[case("ghcr.io/ggml-org/llama.cpp:full", "a")]
    #[case("lmsysorg/sglang:latest", "a")]
    fn an_image_runs_its_entrypoint(#[case] image: &str, #[case] expected: &str) {
        assert_eq!(entrypoint(image, &words("a")), words(expected));
    }

    #[rstest]
    #[case("ghcr.io/ggml-org/llama.cpp:server", Some(("processors", "ghcr.io/ggml-org/llama.cpp:server-cuda")))]
    #[case("ghcr.io/ggml-org/llama.cpp:full-b6900", Some(("processors", "ghcr.io/ggml-org/llama.cpp:full-cuda")))]
    #[case("ghcr.io/ggml-org/llama.cpp:server-rocm", Some(("ROCm", "ghcr.io/ggml-org/llama.cpp:server-cuda")))]
    #[case("ghcr.io/ggml-org/llama.cpp:server-vulkan", Some(("Vulkan", "ghcr.io/ggml-org/llama.cpp:server-cuda")))]
    #[case("ghcr.io/ggml-org/llama.cpp:server-cuda-b5174", None)]
    #[case("ghcr.io/ggml-org/llama.cpp:server-cuda12@sha256:00", None)]
    #[case("localhost:5000/own/llama.cpp:server", None)]
    #[case("vllm/vllm-openai-cpu:v0.33.0", Some(("processors", "vllm/vllm-openai")))]
    #[case("vllm/vllm-openai-rocm", Some(("ROCm", "vllm/vllm-openai")))]
    #[case("rocm/vllm:latest", Some(("ROCm", "vllm/vllm-openai")))]
    #[case("vllm/vllm-openai:v0.24.0-cu130", None)]
    #[case("cpu-team/vllm-openai:v0.24.0", None)]
    #[case("lmsysorg/sglang:v0.5.18-rocm700-mi35x", Some(("ROCm", "lmsysorg/sglang")))]
    #[case("lmsysorg/sglang:v0.5.18", None)]
    #[case("rocm/pytorch", None)]
    fn an_image_says_what_it_is_built_for(#[case] image: &str, #[case] expected: Option<(&str, &str)>) {
        assert_eq!(other_build(image), expected.map(|(build, instead)| (build, instead.to_owned())));
    }

    #[rstest]
    #[case("vllm/vllm-openai:v0.24.0-cu130", Some("0.24.0"))]
    #[case("lmsysorg/sglang:v0.5.23", Some("0.5.23"))]
    #[case("localhost:5000/vllm-openai:nightly", None)]
    #[case("nvcr.io/nvidia/vllm:26.01-py3", None)]
    #[case("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc1", Some("1.2.0rc1"))]
    #[case("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.5.1", Some("0.28.0"))]
    #[case("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.5.1", Some("0.5.18"))]
    #[case("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.5.1", Some("1.3.0rc25"))]
    #[case("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.4.0", None)]
    #[case("ghcr.io/ggml-org/llama.cpp:server-cuda", None)]
    #[case("ghcr.io/ggml-org/llama.cpp:server-cuda-b5174", Some("b5174"))]
    #[case("ghcr.io/ggml-org/llama.cpp:server-b6900", Some("b6900"))]
    #[case("vllm/vllm-openai:v0.8.5.post1", Some("0.8.5.post1"))]
    #[case("vllm/vllm-openai:v0.10.1.1", Some("0.10.1.1"))]
    #[case("vllm/vllm-openai:0.11", Some("0.11"))]
    #[case("lmsysorg/sglang:v0.4.9.post2-cu126", Some("0.4.9.post2"))]
    #[case("ghcr.io/llm-d/llm-d-cuda:v0.5.0", None)]
    #[case("lmcache/vllm-openai:v0.3.9", None)]
    fn an_image_says_its_version(#[case] image: &str, #[case] expected: Option<&str>) {
        assert_eq!(version(image).as_deref(), expected);
    }
}
