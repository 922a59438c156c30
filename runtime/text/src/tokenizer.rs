//! Text to token ids and back, as the model's `tokenizer.json` says, or the vocabulary in its GGUF file.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use cacheplan_files::{Limit, Source, SourceError};
use serde_json::{Map, Value};

use crate::error::TextError;
use crate::guarded::guarded;
use crate::patterns::Patterns;
use crate::vocabulary::{Cutter, Made, Vocabulary};

const FILE: &str = "tokenizer.json";

/// A model's tokenizer.
pub struct Tokenizer {
    file: String,
    cutter: Cutter,
    /// What a text begins with, where the library does not put it there.
    first: Option<u32>,
    /// What it ends with.
    last: Option<u32>,
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

    /// That of a GGUF file's own keys: texts and numbers, lists of words, lists of numbers.
    ///
    /// # Errors
    /// None there; one that cuts words in a way that is not known, lacks what it needs, or is another model's.
    pub fn embedded(
        file: &str,
        keys: &Map<String, Value>,
        mut words: HashMap<String, Vec<String>>,
        mut numbers: HashMap<String, Vec<f64>>,
        vocab_size: usize,
    ) -> Result<Self, TextError> {
        let vocabulary = Vocabulary::new(file, keys, &mut words);
        let Made { cutter, first, last } = vocabulary.make(&mut words, &mut numbers, vocab_size)?;
        Ok(Self { file: file.to_owned(), cutter, first, last })
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
        Ok(Self { file, cutter: Cutter::Library(Box::new(inner)), first: None, last: None })
    }

    /// The token ids of a text. `special` adds what the tokenizer puts around a text, which a chat template has put
    /// there already.
    ///
    /// # Errors
    /// Text that the tokenizer refuses.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TextError> {
        let ids = self.guarded(|| match &self.cutter {
            Cutter::Library(library) => Ok(library.encode_fast(text, special)?.get_ids().to_vec()),
            Cutter::Pieces(pieces) => Ok(pieces.encode_fast(text, special)?.get_ids().to_vec()),
        })?;
        let around = |token: Option<u32>| token.filter(|_| special);
        Ok(around(self.first).into_iter().chain(ids).chain(around(self.last)).collect())
    }

    /// The text of tokens, without those that only steer a model. What is no UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// Tokens that the tokenizer refuses.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.guarded(|| match &self.cutter {
            Cutter::Library(library) => library.decode(tokens, true),
            Cutter::Pieces(pieces) => pieces.decode(tokens, true),
        })
    }

    fn guarded<T>(&self, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TextError> {
        guarded(|| call().map_err(|error| error.to_string()))
            .flatten()
            .map_err(|reason| TextError::Refused { file: self.file.clone(), reason })
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("file", &self.file).finish_non_exhaustive()
    }
}
