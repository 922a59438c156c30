//! llama.cpp's Python package, started on files with true headers and a hole for the weights.
//!
//! It needs 120 MB in `target/oracles`, and as much memory as the largest of the caches that are asked about.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

use cacheplan_transforms::Model;
use cacheplan_transforms::layers::BlockSpec;

use super::{CONFIGS, answers, script, write};
use crate::files::{at, target, with_ending};
use crate::venv;

const VERSION: &str = "b11549";
/// What each model is asked; tests read the same.
const QUESTIONS: [&str; 6] = [
    r#""ctx":4096,"parallel":1"#,
    r#""ctx":5000,"parallel":3"#,
    r#""ctx":4096,"parallel":4,"unified":true"#,
    r#""ctx":4096,"parallel":2,"ubatch":1024,"type_k":"q8_0","type_v":"q8_0""#,
    r#""ctx":4096,"parallel":2,"ubatch":256,"type_k":"f32","type_v":"q4_0""#,
    r#""ctx":4096,"parallel":2,"swa_full":true,"type_k":"bf16""#,
];
/// What is asked besides where a layer has a window: sequences that outgrow any of the zoo.
const LONG: &str = r#""ctx":20480,"parallel":2"#;
/// What is asked besides where entries are compressed, whose keys are their values: what is asked above in two dtypes.
const COMPRESSED: [&str; 3] = [
    r#""ctx":4096,"parallel":2,"ubatch":256,"type_k":"f32","type_v":"f32""#,
    r#""ctx":4096,"parallel":2,"swa_full":true,"type_k":"bf16","type_v":"bf16""#,
    r#""ctx":20000,"parallel":3,"unified":true,"swa_full":true"#,
];

pub(super) fn run() -> Result<(), String> {
    let python = venv::environment("oracles/llama.cpp", "tools/xtask/oracle/llama_cpp.txt")?.join("bin/python");
    let file = target("oracles")?.join("skeleton.gguf");
    let (mut questions, mut said) = (String::new(), String::new());
    for config in with_ending(CONFIGS, "json")? {
        let model = Model::read(&config, &Default::default()).map_err(|error| error.to_string())?;
        // What cannot be written is not an architecture of llama.cpp, or not one that is known.
        let Ok(skeleton) = model.gguf_skeleton() else { continue };
        let mut out = File::create(&file).map_err(at(&file))?;
        out.write_all(&skeleton.header).and_then(|()| out.set_len(skeleton.length)).map_err(at(&file))?;
        let name = config.file_stem().unwrap_or_default().to_string_lossy();
        let of_model: String = asked(&model).map(|question| format!("{{\"model\":\"{name}\",{question}}}\n")).collect();
        said += &answers(Command::new(&python).arg(script("llama_cpp.py")).arg(&file), &of_model)?;
        questions += &of_model;
    }
    fs::remove_file(&file).map_err(at(&file))?;
    write("llama.cpp.jsonl", &questions)?;
    write(&format!("llama.cpp-{VERSION}.txt"), &said)
}

fn asked(model: &Model) -> impl Iterator<Item = &'static str> {
    let has = |of: fn(&BlockSpec) -> bool| model.layers.iter().flat_map(|layer| &layer.blocks).any(of);
    let is_compressed = has(|block| matches!(block, BlockSpec::CompressedAttention(_)));
    let has_window = has(|block| matches!(block, BlockSpec::Attention(attention) if attention.window.is_some()));
    let of_compressed = COMPRESSED.into_iter().filter(move |_| is_compressed);
    QUESTIONS.into_iter().chain((has_window || is_compressed).then_some(LONG)).chain(of_compressed)
}
