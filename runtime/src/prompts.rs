//! What people write as prompts, as the token ids of a model.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use cacheplan_text::{ChatTemplate, Message, TextError, Tokenizer};
use cacheplan_transforms::Model;

use crate::error::Result;

/// A prompt as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids, as they are.
    Ids(Vec<u32>),
    /// Text that the model goes on with.
    Text(String),
    /// A conversation that the model answers.
    Chat(Vec<Message>),
    /// The text that a chat template has made of one.
    Rendered(String),
}

/// Turns prompts into token ids, with the tokenizer and the chat template beside a model, or those in its GGUF file. Each
/// is read when it is needed first: ids need neither.
#[derive(Debug)]
pub struct Prompts {
    folder: PathBuf,
    /// The model's own file, where it may have a tokenizer in it.
    gguf: Option<PathBuf>,
    vocab_size: usize,
    /// The most tokens of a sequence.
    most: u64,
    tokenizer: OnceCell<Tokenizer>,
    template: OnceCell<ChatTemplate>,
}

/// The most bytes of text for each token, on average. Where a vocabulary has runs of blanks, few tokens have a hundred; to
/// cut a text takes a hundred times its bytes, so that one which cannot fit is refused before.
const LONGEST_TOKEN: u64 = 256;

impl Prompts {
    /// Those of the model in `path`, a folder or a file in it, which knows `vocab_size` tokens.
    #[must_use]
    pub fn of_model(path: &Path, vocab_size: usize) -> Self {
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let gguf =
            (path != folder && path.extension().is_some_and(|extension| extension == "gguf")).then(|| path.into());
        let (tokenizer, template) = Default::default();
        Self { folder: folder.to_owned(), gguf, vocab_size, most: u64::MAX, tokenizer, template }
    }

    /// The same for sequences of at most so many tokens: a text that is far longer is refused before it is cut.
    #[must_use]
    pub fn within(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// The token ids of a prompt.
    ///
    /// # Errors
    /// A tokenizer or a template that is not there, is another model's, or fails.
    pub fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        Ok(match prompt {
            Prompt::Ids(ids) => ids.clone(),
            Prompt::Text(text) => self.cut(text, true)?,
            // The template has written what stands around a text.
            Prompt::Chat(messages) => self.cut(&self.template()?.render(messages)?, false)?,
            Prompt::Rendered(text) => self.cut(text, false)?,
        })
    }

    fn cut(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        match text.len() as u64 > self.most.saturating_mul(LONGEST_TOKEN) {
            true => Err(TextError::TooLong { bytes: text.len(), most: self.most }.into()),
            false => Ok(self.tokenizer()?.encode(text, special)?),
        }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// As [`Tokenizer::beside`], and [`Tokenizer::embedded`] where none lies beside a GGUF file.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        once(&self.tokenizer, || match (Tokenizer::beside(&self.folder, self.vocab_size), &self.gguf) {
            (Err(TextError::NoTokenizer { .. }), Some(file)) => {
                let own = Model::gguf_tokenizer(file)?;
                let name = file.display().to_string();
                Ok(Tokenizer::embedded(&name, &own.keys, own.words, own.numbers, self.vocab_size)?)
            }
            (found, _) => Ok(found?),
        })
    }

    /// The chat template, a program of strangers: see [`ChatTemplate::render`].
    ///
    /// # Errors
    /// None there; one that cannot be read, or is not of its language.
    pub fn template(&self) -> Result<&ChatTemplate> {
        once(&self.template, || match (ChatTemplate::beside(&self.folder), &self.gguf) {
            (Err(TextError::NoTemplate { .. }), Some(file)) => {
                let own = Model::gguf_tokenizer(file)?;
                Ok(ChatTemplate::embedded(&file.display().to_string(), &own.keys, own.words)?)
            }
            (found, _) => Ok(found?),
        })
    }
}

fn once<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(made) => Ok(made),
        None => {
            let made = make()?;
            Ok(cell.get_or_init(|| made))
        }
    }
}
