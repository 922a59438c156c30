//! What people write as prompts, as the token ids of a model.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use cacheplan_text::{ChatTemplate, Message, TextError, Tokenizer};
use cacheplan_transforms::Model;

use crate::error::RuntimeError;

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

/// Turns prompts into token ids, with the tokenizer and the chat template beside a model, or those in its GGUF file. Each
/// is read when it is needed first: ids need neither.
#[derive(Debug)]
pub struct Prompts {
    folder: PathBuf,
    /// The model's own file, where it may have a tokenizer in it.
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
        let gguf =
            (path != folder && path.extension().is_some_and(|extension| extension == "gguf")).then(|| path.into());
        Self { folder: folder.to_owned(), gguf, vocab_size, tokenizer: OnceCell::new(), template: OnceCell::new() }
    }

    /// The token ids of a prompt.
    ///
    /// # Errors
    /// A tokenizer or a template that is not there, is another model's, or fails.
    pub fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>, RuntimeError> {
        Ok(match prompt {
            Prompt::Ids(ids) => ids.clone(),
            Prompt::Text(text) => self.tokenizer()?.encode(text, true)?,
            // The template has written what stands around a text.
            Prompt::Chat(messages) => self.tokenizer()?.encode(&self.template()?.render(messages)?, false)?,
        })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// As [`Tokenizer::beside`], and [`Tokenizer::embedded`] where none lies beside a GGUF file.
    pub fn tokenizer(&self) -> Result<&Tokenizer, RuntimeError> {
        once(&self.tokenizer, || match (Tokenizer::beside(&self.folder, self.vocab_size), &self.gguf) {
            (Err(TextError::NoTokenizer { .. }), Some(file)) => {
                let own = Model::gguf_tokenizer(file)?;
                let name = file.display().to_string();
                Ok(Tokenizer::embedded(&name, &own.keys, own.words, own.numbers, self.vocab_size)?)
            }
            (found, _) => Ok(found?),
        })
    }

    fn template(&self) -> Result<&ChatTemplate, RuntimeError> {
        once(&self.template, || match (ChatTemplate::beside(&self.folder), &self.gguf) {
            (Err(TextError::NoTemplate { .. }), Some(file)) => {
                let own = Model::gguf_tokenizer(file)?;
                Ok(ChatTemplate::embedded(&file.display().to_string(), &own.keys, own.words)?)
            }
            (found, _) => Ok(found?),
        })
    }
}

fn once<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T, RuntimeError>) -> Result<&T, RuntimeError> {
    match cell.get() {
        Some(made) => Ok(made),
        None => {
            let made = make()?;
            Ok(cell.get_or_init(|| made))
        }
    }
}
