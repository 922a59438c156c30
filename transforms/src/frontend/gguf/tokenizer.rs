//! The tokenizer that a GGUF file has of its own: its keys as they stand, long lists included.

use std::collections::HashMap;
use std::path::Path;

use cacheplan_files::{Limit, Source};
use serde_json::{Map, Value};

use super::reader::{LIST, TEXT, open};
use crate::frontend::FrontendError;
use crate::model::Model;

/// What all keys of a tokenizer begin with.
const PREFIX: &str = "tokenizer.";

/// What the keys of templates begin with; of other keys long texts are left out.
const TEMPLATE: &str = "tokenizer.chat_template";

/// The keys of a file's tokenizer.
#[derive(Debug, Default)]
pub struct GgufTokenizer {
    /// Texts, numbers and switches.
    pub keys: Map<String, Value>,
    /// Lists of words: tokens, merges.
    pub words: HashMap<String, Vec<String>>,
    /// Lists of numbers that have four bytes: scores, kinds of tokens.
    pub numbers: HashMap<String, Vec<f64>>,
}

impl Model {
    /// The keys of the tokenizer in the GGUF file at `path`; of a model that was split the first file has them.
    ///
    /// # Errors
    /// A malformed header, a key that is there twice, words that are no short text, a template that is too long.
    pub fn gguf_tokenizer(path: &Path) -> Result<GgufTokenizer, FrontendError> {
        let source = Source::open(path)?;
        let (mut reader, _, keys) = open(&source)?;
        let mut found = GgufTokenizer::default();
        for _ in 0..keys {
            let key = reader.name()?;
            let kind = reader.u32()?;
            if !key.starts_with(PREFIX) {
                reader.value(kind)?;
                continue;
            }
            let is_first = match kind {
                TEXT => {
                    let length = reader.u64()?;
                    match reader.string(length, Limit::TEMPLATE.bytes)? {
                        Some(text) => reader.keep_in(&mut found.keys, &key, text.into())?,
                        None if key.starts_with(TEMPLATE) => {
                            let expected = format!("text of at most {} bytes was expected", Limit::TEMPLATE.bytes);
                            return Err(reader.bad(&key, &format!("{length} bytes long"), &expected));
                        }
                        None => true,
                    }
                }
                LIST => match (reader.u32()?, reader.u64()?) {
                    (TEXT, length) => {
                        let (mut words, mut unread) = (Vec::new(), None);
                        reader.words(length, |place, word| match word {
                            Some(word) => words.push(word),
                            None => unread = unread.or(Some(place)),
                        })?;
                        if let Some(place) = unread {
                            let found = format!("no short UTF-8 at place {place}");
                            return Err(reader.bad(&key, &found, "a list of words was expected"));
                        }
                        found.words.insert(key.clone(), words).is_none()
                    }
                    (kind @ 4..=6, length) => {
                        let numbers = reader.numbers(kind, length)?;
                        found.numbers.insert(key.clone(), numbers).is_none()
                    }
                    (kind, length) => reader.list(kind, length).map(|_| true)?,
                },
                _ => {
                    let value = reader.scalar(kind)?;
                    reader.keep_in(&mut found.keys, &key, value)?
                }
            };
            if !is_first {
                return Err(reader.bad(&key, "there twice", "a key may stand once"));
            }
        }
        Ok(found)
    }
}
