//! What people write as prompts, as the token ids of a model.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use cacheplan_text::{ChatTemplate, Message, TextError, Tokenizer};
use cacheplan_transforms::Model;
use serde_json::{Map, Value};

/// A prompt as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids, as they are.
    Ids(Vec<u32>),
    /// Text that the model goes on with.
    Text(String),
    /// A conversation that the model answers.
    Chat(Vec<Message>),
}

/// Turns prompts into token ids, with the tokenizer and the chat template beside a model, or those in its GGUF file where
/// there are none. Each is read when it is needed first: ids need neither.
#[derive(Debug)]
pub struct Prompts {
    folder: PathBuf,
    /// The model's file, if it may have a tokenizer inside.
    gguf: Option<PathBuf>,
    vocab_size: usize,
    tokenizer: OnceCell<Tokenizer>,
    template: OnceCell<ChatTemplate>,
}

impl Prompts {
    /// Those of the model in `path`, a folder or a file in it, which knows `vocab_size` tokens.
    #[must_use]
    pub fn of_model(path: &Path, vocab_size: usize) -> Self {
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let gguf = path.extension().is_some_and(|extension| extension == "gguf").then(|| path.to_owned());
        Self { folder: folder.to_owned(), gguf, vocab_size, tokenizer: OnceCell::new(), template: OnceCell::new() }
    }

    /// The token ids of a prompt.
    ///
    /// # Errors
    /// A tokenizer or a template that is not there, is another model's, or fails.
    pub fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>, TextError> {
        match prompt {
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Text(text) => self.tokenizer()?.encode(text, true),
            // The template has written what stands around a text.
            Prompt::Chat(messages) => self.tokenizer()?.encode(&self.template()?.render(messages)?, false),
        }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// As [`Tokenizer::beside`] and [`Tokenizer::of_gguf`].
    pub fn tokenizer(&self) -> Result<&Tokenizer, TextError> {
        once(&self.tokenizer, || match (Tokenizer::beside(&self.folder, self.vocab_size), &self.gguf) {
            (Err(none @ TextError::NoTokenizer { .. }), Some(gguf)) => match inside(gguf)? {
                keys if keys.is_empty() => Err(none),
                keys => Tokenizer::of_gguf(&gguf.display().to_string(), &keys, self.vocab_size),
            },
            (beside, _) => beside,
        })
    }

    fn template(&self) -> Result<&ChatTemplate, TextError> {
        once(&self.template, || match (ChatTemplate::beside(&self.folder), &self.gguf) {
            (Err(none @ TextError::NoTemplate { .. }), Some(gguf)) => {
                ChatTemplate::of_gguf(&gguf.display().to_string(), &inside(gguf)?)?.ok_or(none)
            }
            (beside, _) => beside,
        })
    }
}

/// What a GGUF file says of its tokenizer.
fn inside(gguf: &Path) -> Result<Map<String, Value>, TextError> {
    let file = || gguf.display().to_string();
    Model::gguf_tokenizer(gguf).map_err(|error| TextError::NotATokenizer { file: file(), reason: error.to_string() })
}

fn once<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T, TextError>) -> Result<&T, TextError> {
    match cell.get() {
        Some(made) => Ok(made),
        None => {
            let made = make()?;
            Ok(cell.get_or_init(|| made))
        }
    }
}
