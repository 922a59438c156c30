//! What engines refuse at start of words that their parsers take, in their own words.

#[path = "../common/mod.rs"]
mod common;
mod sglang;
mod tensorrt_llm;
mod vllm;

use cacheplan_serve::{Options, ServeError, answer};

use common::{launch, models, on};

const LLAMA: &str = "meta-llama__Llama-3.1-8B-Instruct";
const DEEPSEEK: &str = "deepseek-ai__DeepSeek-V3";
const OSS: &str = "openai__gpt-oss-120b";
const NEXT: &str = "Qwen__Qwen3-Next-80B-A3B-Thinking";
const NEMOTRON: &str = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16";
const GEMMA: &str = "google__gemma-4-26B-A4B";
const KIMI: &str = "moonshotai__Kimi-Linear-48B-A3B-Instruct";

fn said(command: &str, model: &str, version: &str) -> Option<String> {
    let options = Options { version: Some(version.into()), ..on("8xh200") };
    match answer(&launch(command), models(model), &options) {
        Err(error @ (ServeError::Engine { .. } | ServeError::Parser { .. })) => Some(error.to_string()),
        Err(error) => panic!("{command}: {error}"),
        Ok(_) => None,
    }
}
