//! What text is made of and made into: tokenizers, chat templates, prompts, requests.

use std::fs;

use cacheplan::files::{Limit, Source};
use cacheplan::runtime::RequestLine;
use cacheplan::text::{ChatTemplate, Message, Tokenizer};
use cacheplan::transforms::Model;

use crate::fixture;
use crate::limits::survive;

fn of_text(path: &str) -> Vec<u8> {
    fs::read(fixture("../../text/tests/fixtures").join(path)).unwrap()
}

/// The library that reads tokenizers takes up to 80 bytes for each of theirs.
const SHORT: Limit = Limit { bytes: 512 << 10, ..Limit::TOKENIZER };

#[test]
fn tokenizers() {
    let seeds = ["tiny", "byte_level", "byte_fallback"].map(|name| of_text(&format!("{name}/tokenizer.json")));
    let read = |bytes: &[u8]| Tokenizer::read(&Source::memory("tokenizer.json", bytes), 1 << 20).ok();
    survive("tokenizers", SHORT, &seeds, read, |tokenizer| {
        if let Ok(tokens) = tokenizer.encode("Über den Wolken\u{2028}\0 12345 🦀", true) {
            let _ = tokenizer.decode(&tokens);
        }
    });
}

#[test]
fn tokenizers_of_gguf() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    let limit = Limit { bytes: SHORT.bytes, ..Limit::GGUF };
    let read = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let keys = Model::gguf_tokenizer(&file).ok()?;
        let _ = ChatTemplate::of_gguf("m.gguf", &keys);
        Tokenizer::of_gguf("m.gguf", &keys, 1 << 20).ok()
    };
    survive("tokenizers of GGUF", limit, &[vocabulary("llama"), vocabulary("gpt2")], read, |tokenizer| {
        if let Ok(tokens) = tokenizer.encode("Über den Wolken\u{2028}\0 12345 🦀", true) {
            let _ = tokenizer.decode(&tokens);
        }
    });
}

/// A GGUF file of nothing but a vocabulary.
fn vocabulary(kind: &str) -> Vec<u8> {
    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }
    fn list(kind: u32, entries: &[Vec<u8>]) -> Vec<u8> {
        let head = [9u32.to_le_bytes(), kind.to_le_bytes()].concat();
        [head, (entries.len() as u64).to_le_bytes().to_vec(), entries.concat()].concat()
    }
    fn said(said: &str) -> Vec<u8> {
        [8u32.to_le_bytes().to_vec(), text(said)].concat()
    }
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab", "1", "Ġ"];
    let numbers = |numbers: [u32; 10]| numbers.map(|number| number.to_le_bytes().to_vec()).to_vec();
    let scores: Vec<_> = (0..10).map(|at| (-(at as f32)).to_le_bytes().to_vec()).collect();
    let keys = [
        ("model", said(kind)),
        ("pre", said("qwen2")),
        ("tokens", list(8, &tokens.map(text))),
        ("scores", list(6, &scores)),
        ("token_type", list(5, &numbers([2, 3, 3, 1, 1, 1, 1, 1, 1, 1]))),
        ("merges", list(8, &["a b", "▁ ab"].map(text))),
        ("bos_token_id", [4u32.to_le_bytes(), 1u32.to_le_bytes()].concat()),
    ];
    let mut file =
        [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &(keys.len() as u64).to_le_bytes()].concat();
    for (key, value) in keys {
        file.extend(text(&format!("tokenizer.ggml.{key}")));
        file.extend(value);
    }
    file
}

#[test]
fn chat_templates() {
    let known: Vec<serde_json::Value> = serde_json::from_slice(&of_text("templates.json")).unwrap();
    let seeds: Vec<Vec<u8>> = known.iter().filter_map(|entry| Some(entry["template"].as_str()?.into())).collect();
    let folder = tempfile::tempdir().unwrap();
    let read = |bytes: &[u8]| {
        fs::write(folder.path().join("chat_template.jinja"), bytes).unwrap();
        ChatTemplate::beside(folder.path()).ok()
    };
    survive("chat templates", Limit::TEMPLATE, &seeds, read, |template| {
        let _ = template.render(&[Message::new("system", "Be brief."), Message::new("user", "Why?")]);
    });
}

#[test]
fn prompts() {
    let seed = "Once upon a time, über allen Gipfeln…\n".repeat(10).into_bytes();
    let read = |bytes: &[u8]| Source::memory("a prompt", bytes).text(Limit::PROMPT).ok();
    survive("prompts", Limit::PROMPT, &[seed], read, |text| assert!(text.len() as u64 <= Limit::PROMPT.bytes));
}

#[test]
fn requests() {
    let seed = br#"{"prompt": "Once", "max_tokens": 8, "stop": ["\n", "."], "temperature": 0.7, "seed": 3}
{"id": "b", "prompt_ids": [1, 2, 3, 4, 5], "arrival": 0.25, "tenant": "t"}

{"messages": [{"role": "user", "content": "Why?"}], "stop": "x", "top_k": 4, "top_p": 0.9, "min_p": 0.1}
"#;
    let read = |bytes: &[u8]| RequestLine::read(&Source::memory("requests", bytes)).ok();
    survive("requests", Limit::REQUESTS, &[seed.to_vec()], read, |lines| assert!(!lines.is_empty()));
}
