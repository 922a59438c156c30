//! Vocabularies in GGUF files, beside what llama.cpp makes of the same ones.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cacheplan_runtime::{Prompt, Prompts};
use cacheplan_text::{Message, Tokenizer};
use cacheplan_transforms::Model;
use rstest::rstest;
use serde::Deserialize;
use serde_json::{Value, json};

/// Tokens that either file knows at most.
const TOKENS: usize = 1000;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf/vocabularies").join(name)
}

#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    merges: HashMap<String, Vec<Vec<u32>>>,
    pieces: Pieces,
    begun: Vec<u32>,
}

#[derive(Deserialize)]
struct Pieces {
    ids: Vec<Vec<u32>>,
    begun: Vec<u32>,
}

fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read(fixture("golden.json")).unwrap()).unwrap()
}

/// The tokenizer of a file, some of whose keys below `tokenizer.ggml` are others, or gone: null.
fn tokenizer(file: &str, other: &[(&str, Value)]) -> Result<Tokenizer, String> {
    let mut found = Model::gguf_tokenizer(&fixture(file)).unwrap();
    for (key, value) in other {
        let key = format!("tokenizer.ggml.{key}");
        found.keys.remove(&key);
        found.words.remove(&key);
        found.numbers.remove(&key);
        match value {
            Value::Null => {}
            Value::Array(list) if list.iter().all(Value::is_number) => {
                let numbers = list.iter().map(|number| number.as_f64().unwrap()).collect();
                found.numbers.insert(key, numbers);
            }
            Value::Array(list) => {
                let words = list.iter().map(|word| word.as_str().unwrap().to_owned()).collect();
                found.words.insert(key, words);
            }
            value => drop(found.keys.insert(key, value.clone())),
        }
    }
    Tokenizer::embedded(file, &found.keys, found.words, found.numbers, TOKENS).map_err(|error| error.to_string())
}

#[rstest]
fn a_text_is_cut_and_merged_as_llama_cpp_does(
    #[values(
        "gpt-2",
        "olmo",
        "smollm",
        "llama-bpe",
        "dbrx",
        "minicpm5",
        "qwen2",
        "qwen35",
        "seed-coder",
        "gpt-4o",
        "tekken",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3"
    )]
    pre: &str,
) {
    let Golden { texts, merges, .. } = golden();
    let tokenizer = tokenizer("merges.gguf", &[("pre", json!(pre))]).unwrap();
    assert_same(&tokenizer, &texts, &merges[pre]);
}

#[test]
fn pieces_are_joined_as_llama_cpp_and_sentencepiece_do() {
    let Golden { texts, pieces, .. } = golden();
    assert_same(&tokenizer("pieces.gguf", &[]).unwrap(), &texts, &pieces.ids);
}

#[track_caller]
fn assert_same(tokenizer: &Tokenizer, texts: &[String], golden: &[Vec<u32>]) {
    assert_eq!(texts.len(), golden.len());
    let found = texts.iter().zip(golden).map(|(text, ids)| (text, ids, tokenizer.encode(text, false).unwrap()));
    let other: Vec<(&String, &Vec<u32>, Vec<u32>)> = found.filter(|(_, ids, found)| *ids != found).collect();
    assert!(other.is_empty(), "{other:?}");
}

#[rstest]
#[case("merges.gguf", &["<|user|>", "<|end|>"])]
#[case("pieces.gguf", &["<|user|>", "<|end|>", "</s>", "<s>"])]
fn tokens_are_text_again_but_for_those_that_steer(#[case] file: &str, #[case] steering: &[&str]) {
    let tokenizer = tokenizer(file, &[]).unwrap();
    for text in golden().texts {
        let mut expected = text.clone();
        steering.iter().for_each(|token| expected = expected.replace(token, ""));
        let found = tokenizer.decode(&tokenizer.encode(&text, true).unwrap()).unwrap();
        // Behind a token that steers stands a space more.
        let is_whole = expected == text;
        let plain = |text: &str| if is_whole { text.to_owned() } else { text.replace(' ', "") };
        assert_eq!(plain(&found), plain(&expected), "{text:?}");
    }
}

#[test]
fn a_text_begins_and_ends_as_the_keys_say() {
    let Golden { texts, merges, pieces, begun } = golden();
    let text = &texts[3];
    let encode = |file: &str, other: &[(&str, Value)]| tokenizer(file, other).unwrap().encode(text, true).unwrap();
    assert_eq!(encode("merges.gguf", &[("pre", json!("deepseek-v3"))]), begun);
    assert_eq!(encode("pieces.gguf", &[]), pieces.begun);
    let ends = [("add_bos_token", json!(false)), ("add_eos_token", json!(true))];
    assert_eq!(encode("merges.gguf", &ends), [&merges["llama-bpe"][3][..], &[2]].concat());
    // Where nothing is said of it, it is as the way of cutting has it.
    let unsaid = |pre: &str| encode("merges.gguf", &[("add_bos_token", Value::Null), ("pre", json!(pre))])[0];
    assert_eq!((unsaid("llama-bpe"), unsaid("qwen2")), (0, merges["qwen2"][3][0]));
    // Pieces have no space before a text where the keys say so.
    let words = encode("pieces.gguf", &[("add_space_prefix", json!(false))]);
    assert_ne!(words, pieces.begun);
    assert_eq!(tokenizer("pieces.gguf", &[("add_space_prefix", json!(false))]).unwrap().decode(&words).unwrap(), *text);
}

#[rstest]
#[case::pre("merges.gguf", &[("pre", json!("superbpe"))],
    "merges.gguf: `tokenizer.ggml.pre` is superbpe; known is `gpt-2`, `llama-bpe`")]
#[case::no_pre("merges.gguf", &[("pre", Value::Null)], "`tokenizer.ggml.pre` is absent")]
#[case::model("merges.gguf", &[("model", json!("rwkv"))], "`tokenizer.ggml.model` is rwkv; known is `gpt2` and `llama`")]
#[case::no_model("merges.gguf", &[("model", Value::Null)], "nor a vocabulary in a GGUF file")]
#[case::no_tokens("merges.gguf", &[("tokens", Value::Null)], "`tokenizer.ggml.tokens` is absent")]
#[case::twice("pieces.gguf", &[("tokens", json!(["a", "b", "a"])), ("scores", json!([1, 2, 3])),
    ("token_type", json!([1, 1, 1]))], "not a tokenizer: the tokens 0 and 2 are the same word")]
#[case::merge("merges.gguf", &[("merges", json!(["a b", "ab"]))], "not a tokenizer: the merge `ab` is not of two")]
#[case::merge_of_nothing("merges.gguf", &[("merges", json!(["q zzz"]))], "not a tokenizer: Token `zzz` out of vocabulary")]
#[case::kinds("merges.gguf", &[("token_type", json!([1, 1]))], "`tokenizer.ggml.token_type` is a list of 2")]
#[case::scores("pieces.gguf", &[("scores", Value::Null)], "`tokenizer.ggml.scores` is a list of 0")]
#[case::no_bos("merges.gguf", &[("bos_token_id", Value::Null)], "`tokenizer.ggml.bos_token_id` is absent")]
#[case::bos("merges.gguf", &[("bos_token_id", json!(70_000))], "`tokenizer.ggml.bos_token_id` is 70000; known is the id of a token")]
#[case::add_bos("merges.gguf", &[("add_bos_token", json!(1))], "`tokenizer.ggml.add_bos_token` is 1; known is true and false")]
fn a_vocabulary_that_cannot_be_used_is_refused_by_its_key(
    #[case] file: &str,
    #[case] other: &[(&str, Value)],
    #[case] message: &str,
) {
    let error = tokenizer(file, other).unwrap_err();
    assert!(error.contains(message), "{error}");
}

#[test]
fn a_vocabulary_larger_than_the_model_is_refused_with_its_last_token() {
    let found = Model::gguf_tokenizer(&fixture("merges.gguf")).unwrap();
    let error = Tokenizer::embedded("m.gguf", &found.keys, found.words, found.numbers, 100).unwrap_err().to_string();
    let expected =
        "m.gguf: it is not this model's tokenizer: token `[PAD1]` has the id 709, and the model knows 100 tokens";
    assert_eq!(error, expected);
}

#[test]
fn a_byte_without_a_token_is_the_unknown_one_or_refused() {
    let tokens = json!(["<unk>", "▁", "a"]);
    let lists = [("tokens", tokens), ("scores", json!([0, 0, 0])), ("token_type", json!([2, 1, 1]))];
    let with = |more: &[(&'static str, Value)]| tokenizer("pieces.gguf", &[&lists[..], more].concat()).unwrap();
    assert_eq!(with(&[]).encode("aé", false).unwrap(), [1, 2, 0, 0]);
    let unknown = [("unknown_token_id", Value::Null), ("model", json!("llama"))];
    assert_eq!(with(&unknown).encode("é", false).unwrap(), [1, 0, 0], "the first token is it by custom");
}

#[test]
fn one_file_has_the_prompt_and_the_chat() {
    let prompts = Prompts::of_model(&fixture("merges.gguf"), TOKENS);
    let Golden { texts, begun, .. } = golden();
    assert_eq!(prompts.ids(&Prompt::Text(texts[3].clone())).unwrap(), begun);
    let chat = prompts.ids(&Prompt::Chat(vec![Message::new("user", "Hello")])).unwrap();
    let text = "<|text|><|user|>Hello<|end|><|user|>";
    assert_eq!(chat, prompts.tokenizer().unwrap().encode(text, false).unwrap());
    assert_eq!((chat[0], chat[1]), (0, 1));
    // Of a folder nobody says which file is meant.
    let of_folder = Prompts::of_model(&fixture(""), TOKENS).ids(&Prompt::Text(String::new())).unwrap_err();
    assert!(of_folder.to_string().contains("there is no tokenizer.json here"), "{of_folder}");
}

#[test]
fn a_tokenizer_beside_the_file_goes_before_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    std::fs::copy(fixture("merges.gguf"), &file).unwrap();
    let own = Prompts::of_model(&file, TOKENS).ids(&Prompt::Text("the cat".into())).unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("text/tests/fixtures/tiny/tokenizer.json");
    std::fs::copy(tiny, folder.path().join("tokenizer.json")).unwrap();
    assert_ne!(Prompts::of_model(&file, TOKENS).ids(&Prompt::Text("the cat".into())).unwrap(), own);
}
