//! What can go wrong between text and tokens.

use cacheplan_files::{Shown, SourceError};
use thiserror::Error;

/// A tokenizer or a chat template that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file that cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// No tokenizer in the model's folder, nor in its file.
    #[error(
        "{}: there is no tokenizer.json here, nor a vocabulary in a GGUF file, which prompts of text and stop \
         strings need; give token ids alone",
        Shown(.folder)
    )]
    NoTokenizer {
        /// The folder.
        folder: String,
    },
    /// A file that is no tokenizer.
    #[error("{}: not a tokenizer: {}", Shown(.file), Shown(.reason))]
    NotATokenizer {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tokenizer of another model.
    #[error(
        "{}: it is not this model's tokenizer: token `{}` has the id {id}, and the model knows {vocab_size} tokens",
        Shown(.file), Shown(.token)
    )]
    Vocabulary {
        /// The tokenizer's file.
        file: String,
        /// The token with the highest id.
        token: String,
        /// Its id.
        id: u32,
        /// How many tokens the model knows.
        vocab_size: usize,
    },
    /// Text that the tokenizer refuses, or tokens.
    #[error("{}: {}", Shown(.file), Shown(.reason))]
    Refused {
        /// The tokenizer's file.
        file: String,
        /// Why.
        reason: String,
    },
    /// Text that has far more tokens than a sequence may have.
    #[error("a prompt of {bytes} bytes has more than the {most} tokens that a sequence may have")]
    TooLong {
        /// The text.
        bytes: usize,
        /// The most tokens.
        most: u64,
    },
    /// No chat template in the model's folder.
    #[error(
        "{}: there is no chat template here (chat_template.jinja, `chat_template` in tokenizer_config.json, \
         `tokenizer.chat_template` of a GGUF file); \
         give the prompt as the model expects it instead",
        Shown(.folder)
    )]
    NoTemplate {
        /// The folder.
        folder: String,
    },
    /// A chat template that is not of its language, or that fails at these messages.
    #[error("{}{}: {}", Shown(.file), line.map_or_else(String::new, |line| format!(", line {line}")), Shown(.reason))]
    Template {
        /// Where the template stands.
        file: String,
        /// The line in it, where it is one line's fault.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// A value that is none of those that would do.
    #[error("{}: `{key}` is {}; known is {known}", Shown(.file), Shown(.found))]
    Value {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// What was found.
        found: String,
        /// What would do.
        known: &'static str,
    },
}
