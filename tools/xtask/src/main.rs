//! Contributor tools: `cargo xtask <command>`.
#![forbid(unsafe_code)]

mod check_arm;
mod check_cuda;
mod code;
mod command;
mod cuda_build;
mod cuda_prove;
mod cuda_toolkit;
mod dependencies;
mod dist;
mod engines;
mod files;
mod flags;
mod fuzz;
mod gpu;
mod gpu_all;
mod metadata;
mod onnx;
mod oracle;
mod python;
mod readmes;
mod rust_src;
mod semver;
mod soak;
mod stub;
mod transformers;
mod venv;
mod web;
mod wheel;

use std::process::ExitCode;

use command::{output, said, sh};

const HELP: &str = "\
Usage: cargo xtask <command>

Commands:
  circles           Find circles of imports between files, followed through re-exports
  lines [COMMIT]    Count the lines of product code by part, beside those of a commit
  words             Count the words of the docs, at most 30,000 without what commands write
  check-arm         Type-check all crates for AArch64; needs Debian's apt, and the network once
  check-cuda        Type-check and lint the CUDA path; needs no CUDA
  cuda-toolkit      Install the pinned CUDA compiler into target/; needs Python, and the network once
  cuda-prove        Build the CUDA kernels, check their machine code and prove them in the emulator
  cuda-prove-sample The same over a fixed sample of schedules and shapes, as `.ci/run` does
  gpu-kernels       Make the fat binaries of all kernels, in target/cuda; needs no GPU
  gpu-build         Build the runner `cacheplan-gpu`, which checks and measures kernels with the driver alone
  check-gpu         Build, lint and test the runner, and check every op with it in the emulator
  gpu [FOLDER]      All that a machine with a GPU is left for, into FOLDER (default target/gpu-results)
  gpu-models        Hold the product, built for CUDA, to the CPU's tokens and to the plan, on a GPU
  cuda-test-ptx     Compile the sources of the emulator's tests anew
  check-dependencies Check licences and sources of all dependencies against deny.toml
  check-semver      Compare the crates with the newest tag, if there is one; builds cargo-semver-checks once
  dist [TARGET]     Build the release: command, completions, manual pages and licences in one archive, with its hash
  check-dist        The same of the command as tests build it, installed by the shell installer
  wheel TARGET TAGS Build the wheel with library and command, for a target of which `dist` was built; needs maturin and,
                    for Linux, ziglang: `wheel x86_64-unknown-linux-gnu 2_28`
  check-wheel       The same of what tests build, installed and asked; needs maturin and wheel
  check-fuzz        Type-check and lint the fuzz targets; needs no nightly
  python            Build, install and test the Python package; needs Python, and the network once
  readmes           Write the README of each crate of its documentation
  engines           Start vLLM on this CPU under the guard, and drive SGLang's hooks; x86-64 Linux, CPython 3.11, 13 GB
  flags             Read the flags of engines' own parsers into tables; needs Python, and the network for 2 GB once
  onnx              Hold exported graphs to onnx.checker and ONNX Runtime; needs Python, and the network once
  transformers      Write down what transformers caches, counts and reads of each config; needs Python and 6 GB
  web               Build the page into cli/web/dist; needs Node and Debian's apt, and the network once
  check-web         Test the page in a browser, and that cli/web/dist is what its sources build
  oracle vllm [N]   Ask vLLM's own planners about the zoo, N random hybrids (default 1200) and exports; needs Python and 18 GB
  oracle vllm-commands [N]  Ask its parser, configuration and planner about commands, N of them random; needs the same
  oracle vllm-events  Record events of vLLM's block pool and the tokens that it reuses; needs what `oracle vllm` does
  oracle vllm-groups [N]  Fill vLLM's block pool under its own groups and ours, over the zoo, and count N random hybrids
  oracle sglang     Ask SGLang's own parser and pool sizes about the zoo's exports; needs Python and 6 GB
  oracle sglang-tiers, sglang-events  Record what its tree hits with host memory below, and its events; need the same
  oracle llama.cpp  Start llama.cpp on files without weights and keep what it logs of its caches; needs Python
  soak [SECONDS [KILLS]]  Serve 10,000 requests in too little room, give each reader mutated files for SECONDS (default
                    600) and kill KILLS writers (default 10000)
  soak-machines     Run the randomised tests of planner and managers long
  fuzz [SECONDS]    Run each fuzz target for SECONDS (default 600); needs nightly and cargo-fuzz, `soak` does not
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (command, [seconds, kills]) = match args.as_slice() {
        ["help" | "--help" | "-h"] => return usage(""),
        ["lines", commit] => return done(code::lines::run(Some(commit))),
        ["gpu", folder] => return done(gpu_all::run(folder)),
        ["dist", target] => return done(dist::run(Some(target))),
        ["wheel", target, tags] => return done(wheel::run(target, tags)),
        ["oracle", engine] => return done(oracle::run(engine, 1200)),
        ["oracle", engine, random] => match random.parse() {
            Ok(random) => return done(oracle::run(engine, random)),
            Err(_) => return usage(&format!("`{random}` is not a number of configs")),
        },
        [command] => (*command, [600, 10_000]),
        ["fuzz" | "soak", seconds] => match seconds.parse() {
            Ok(seconds) => (args[0], [seconds, 10_000]),
            Err(_) => return usage(&format!("`{seconds}` is not a number of seconds")),
        },
        ["soak", seconds, kills] => match (seconds.parse(), kills.parse()) {
            (Ok(seconds), Ok(kills)) => ("soak", [seconds, kills]),
            _ => return usage(&format!("`{seconds} {kills}` are not a number of seconds and one of kills")),
        },
        _ => return usage("unknown command"),
    };
    let result = match command {
        "circles" => code::circles::run(),
        "lines" => code::lines::run(None),
        "words" => code::words::run(),
        "check-arm" => check_arm::run(),
        "check-cuda" => check_cuda::run(),
        "cuda-toolkit" => cuda_toolkit::run(),
        "cuda-prove" => cuda_prove::run(true),
        "cuda-prove-sample" => cuda_prove::run(false),
        "cuda-test-ptx" => cuda_build::write_test_ptx(),
        "check-dependencies" => dependencies::run(),
        "dist" => dist::run(None),
        "check-wheel" => wheel::check(),
        "check-dist" => dist::check(),
        "engines" => engines::run(),
        "flags" => flags::run(),
        "onnx" => onnx::run(),
        "transformers" => transformers::run(),
        "python" => python::run(),
        "readmes" => readmes::run(),
        "web" => web::build(),
        "check-web" => web::check(),
        "check-semver" => semver::run(),
        "check-fuzz" => fuzz::check(),
        "gpu-kernels" => gpu::kernels(),
        "gpu-build" => gpu::build().map(drop),
        "check-gpu" => gpu::check(),
        "gpu" => gpu_all::run("target/gpu-results"),
        "gpu-models" => gpu_all::models(),
        "soak" => soak::requests().and_then(|()| soak::files(seconds, kills)),
        "soak-machines" => soak::machines(),
        "fuzz" => fuzz::run(seconds),
        _ => return usage("unknown command"),
    };
    done(result)
}

fn done(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(&message),
    }
}

#[expect(clippy::print_stderr, reason = "a command-line tool speaks to its user")]
fn fail(message: &str) -> ExitCode {
    eprintln!("error: {message}");
    ExitCode::FAILURE
}

#[expect(clippy::print_stderr, reason = "a command-line tool speaks to its user")]
fn usage(message: &str) -> ExitCode {
    if message.is_empty() {
        eprint!("{HELP}");
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {message}\n\n{HELP}");
    ExitCode::from(2)
}
