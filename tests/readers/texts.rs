//! What text is made of and made into: tokenizers, chat templates, prompts, requests.

use std::fs;

use cacheplan::files::{Limit, Source};
use cacheplan::runtime::RequestLine;
use cacheplan::text::{ChatTemplate, Message, Tokenizer};
use cacheplan::transforms::Model;

use crate::fixture;
use crate::limits::survive;

fn of_text(path: &str) -> Vec<u8> {
    fs::read(fixture("../../runtime/text/tests/fixtures").join(path)).unwrap()
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

/// The keys of a GGUF file, which is as long as it likes behind them.
#[test]
fn vocabularies() {
    let seeds = ["merges", "pieces"].map(|name| {
        let mut file = fs::read(fixture(&format!("gguf/vocabularies/{name}.gguf"))).unwrap();
        // No tensors, so that mutations meet the keys.
        file[8..16].fill(0);
        file.truncate(24 << 10);
        file
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let own = Model::gguf_tokenizer(&path).ok()?;
        let template = ChatTemplate::embedded("m.gguf", &own.keys, own.words.clone());
        let tokenizer = Tokenizer::embedded("m.gguf", &own.keys, own.words, own.numbers, 1 << 20).ok()?;
        Some((tokenizer, template))
    };
    survive("vocabularies", Limit { bytes: SHORT.bytes, ..Limit::GGUF }, &seeds, read, |(tokenizer, template)| {
        if let Ok(tokens) = tokenizer.encode("Über den Wolken\u{2028}\0 12345 🦀", true) {
            let _ = tokenizer.decode(&tokens);
        }
        if let Ok(template) = template {
            let _ = template.render(&[Message::new("user", "Why?")]);
        }
    });
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
