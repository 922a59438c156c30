//! What people write as prompts, as the token ids of a model.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use cacheplan_text::{ChatTemplate, Message, TextError, Tokenizer};

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

/// Turns prompts into token ids, with the tokenizer and the chat template beside a model. Each is read when it is needed
/// first: ids need neither.
#[derive(Debug)]
pub struct Prompts {
    folder: PathBuf,
    vocab_size: usize,
    tokenizer: OnceCell<Tokenizer>,
    template: OnceCell<ChatTemplate>,
}

impl Prompts {
    /// Those of the model in `path`, a folder or a file in it, which knows `vocab_size` tokens.
    #[must_use]
    pub fn of_model(path: &Path, vocab_size: usize) -> Self {
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        Self { folder: folder.to_owned(), vocab_size, tokenizer: OnceCell::new(), template: OnceCell::new() }
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
    /// As [`Tokenizer::beside`].
    pub fn tokenizer(&self) -> Result<&Tokenizer, TextError> {
        once(&self.tokenizer, || Tokenizer::beside(&self.folder, self.vocab_size))
    }

    fn template(&self) -> Result<&ChatTemplate, TextError> {
        once(&self.template, || ChatTemplate::beside(&self.folder))
    }
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
