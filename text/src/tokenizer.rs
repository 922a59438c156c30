//! Text to token ids and back, as the model's `tokenizer.json` says.

use std::fmt;
use std::path::Path;

use cacheplan_files::{Limit, Source};

use crate::error::TextError;

const FILE: &str = "tokenizer.json";

/// A model's tokenizer.
pub struct Tokenizer {
    file: String,
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// That of a model's folder, for a model that knows `vocab_size` tokens.
    ///
    /// # Errors
    /// None there; one that cannot be read, or is another model's.
    pub fn beside(folder: &Path, vocab_size: usize) -> Result<Self, TextError> {
        match Source::beside(folder, FILE)? {
            Some(source) => Self::read(&source, vocab_size),
            None => Err(TextError::NoTokenizer { folder: folder.display().to_string() }),
        }
    }

    /// As [`Tokenizer::beside`] from wherever it lies.
    ///
    /// # Errors
    /// One that cannot be read, or is another model's.
    pub fn read(source: &Source, vocab_size: usize) -> Result<Self, TextError> {
        let file = source.name().to_owned();
        let bytes = source.bytes(Limit::TOKENIZER)?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|error| TextError::NotATokenizer { file: file.clone(), reason: error.to_string() })?;
        // Prompts are neither cut nor filled up, whatever the tokenizer was trained with.
        inner.with_padding(None);
        if let Err(error) = inner.with_truncation(None) {
            return Err(TextError::NotATokenizer { file, reason: error.to_string() });
        }
        // Tokens that were added may lie beyond what a model knows (Gemma's for images do); a prompt that uses one is
        // refused with its id.
        if let Some((token, id)) = inner.get_vocab(false).into_iter().max_by_key(|(_, id)| *id)
            && id as usize >= vocab_size
        {
            return Err(TextError::Vocabulary { file, token, id, vocab_size });
        }
        Ok(Self { file, inner })
    }

    /// The token ids of a text. `special` adds what the tokenizer puts around a text, which a chat template has put
    /// there already.
    ///
    /// # Errors
    /// Text that the tokenizer refuses.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self.inner.encode_fast(text, special).map_err(|error| self.refused(&*error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without those that only steer a model. What is no UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// Tokens that the tokenizer refuses.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.inner.decode(tokens, true).map_err(|error| self.refused(&*error))
    }

    fn refused(&self, error: &dyn std::error::Error) -> TextError {
        TextError::Refused { file: self.file.clone(), reason: error.to_string() }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("file", &self.file).finish_non_exhaustive()
    }
}
