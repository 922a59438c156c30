//! What is asked of a model, and what came of it.

use std::time::Duration;

use candle_core::Tensor;
use serde::Serialize;

use crate::error::RequestError;
use crate::sampling::Sampling;

/// A prompt and how far to go on from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Token ids.
    pub prompt: Vec<u32>,
    /// The most tokens to generate; a token that ends texts ends them too, and is the last of them.
    pub max_new_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// When it comes, from the start of the run on.
    pub arrival: Duration,
    /// Whose it is: prefixes that make way are first those of whoever has most of them.
    pub tenant: u16,
}

/// Why a sequence has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// A token or a string that ends texts.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The request or the run was given up before it was done.
    #[default]
    Cancelled,
    /// It could not go on; the others do.
    Error,
}

/// What became of a request.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// `[tokens.len(), vocab_size]` on the CPU: the logits that each token was chosen from, if they were asked for; before
    /// penalties and temperature.
    pub logits: Option<Tensor>,
    /// Tokens of the prompt whose caches were already there.
    pub cached_tokens: usize,
    /// Times that it gave up its caches to make room.
    pub preemptions: u32,
    /// Why it ended.
    pub finish: Finish,
    /// Why it could not go on, where that is why it ended.
    pub error: Option<RequestError>,
    /// How long it took.
    pub times: Times,
}

/// How long a request took from its arrival on; `None` for what it did not come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// To its admission.
    pub queued: Option<Duration>,
    /// To its first token.
    pub first_token: Option<Duration>,
    /// To its end.
    pub total: Option<Duration>,
}

impl Request {
    /// The most likely `max_new_tokens` tokens after `prompt`.
    #[must_use]
    pub fn new(prompt: Vec<u32>, max_new_tokens: usize) -> Self {
        Self { prompt, max_new_tokens, ..Self::default() }
    }

    /// That a model of `vocab_size` tokens can serve it in `max_seq_len` tokens; `place` stands for it in errors.
    pub(crate) fn check(&self, place: usize, vocab_size: usize, max_seq_len: u64) -> Result<(), RequestError> {
        let request = place;
        if self.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt { request });
        }
        if let Some(&token) = self.prompt.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(RequestError::Token { request, token, vocab_size });
        }
        if self.max_new_tokens == 0 {
            return Err(RequestError::NoNewTokens { request });
        }
        let (prompt, new) = (self.prompt.len(), self.max_new_tokens);
        if (prompt as u64).saturating_add(new as u64) > max_seq_len {
            return Err(RequestError::TooLong { request, prompt, new, limit: max_seq_len });
        }
        self.sampling.check().map_err(|source| RequestError::Sampling { request, source })
    }
}
