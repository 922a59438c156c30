//! Text to token ids and back, as the model's `tokenizer.json` says.

use std::fmt;
use std::path::Path;

use cacheplan_files::{Limit, Source, SourceError};

use crate::error::TextError;
use crate::guarded::guarded;
use crate::patterns::Patterns;

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
        // The library takes its own files for well-formed, and patterns for short.
        let well_formed = Limit::TOKENIZER.parse_json::<Patterns>(&bytes);
        well_formed.map_err(|source| SourceError::Json { name: file.clone(), source })?;
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string()))
            .flatten()
            .map_err(|reason| TextError::NotATokenizer { file: file.clone(), reason })?;
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
        self.guarded(|inner| Ok(inner.encode_fast(text, special)?.get_ids().to_vec()))
    }

    /// The text of tokens, without those that only steer a model. What is no UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// Tokens that the tokenizer refuses.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.guarded(|inner| inner.decode(tokens, true))
    }

    fn guarded<T>(&self, call: impl FnOnce(&tokenizers::Tokenizer) -> tokenizers::Result<T>) -> Result<T, TextError> {
        guarded(|| call(&self.inner).map_err(|error| error.to_string()))
            .flatten()
            .map_err(|reason| TextError::Refused { file: self.file.clone(), reason })
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("file", &self.file).finish_non_exhaustive()
    }
}
