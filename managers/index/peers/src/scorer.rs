//! A scorer that is asked over HTTP: `POST /score` with `{"tokens": […]}` gives each worker the share of the prompt that it can
//! go on from, between 0 and 1 as scorers of llm-d's and the gateway's give it.

use cacheplan_index::{Index, Prompt, Trust};
use serde::{Deserialize, Serialize};

/// The longest body that is read: a prompt of a million tokens in decimal digits.
pub const MAX_BODY_BYTES: u64 = 8 << 20;

#[derive(Deserialize)]
struct Question {
    tokens: Vec<u32>,
}

/// What one worker can reuse.
#[derive(Debug, Serialize, PartialEq)]
pub struct Score {
    /// The worker, as it was named when the scorer started.
    pub worker: String,
    /// Its data-parallel rank.
    pub rank: u32,
    /// The share of the prompt that it can go on from.
    pub score: f64,
    /// The tokens of it.
    pub tokens: usize,
    /// Whether the engine counts the same; else a bound or an estimate.
    pub is_exact: bool,
}

/// Answers a question, or says what is wrong with it.
pub fn score(index: &Index, names: &[String], body: &[u8]) -> Result<Vec<Score>, String> {
    let question: Question = serde_json::from_slice(body).map_err(|error| format!("the question: {error}"))?;
    let of = question.tokens.len().max(1) as f64;
    let answers = index.ask(Prompt::Tokens(&question.tokens));
    Ok(answers
        .into_iter()
        .map(|answer| Score {
            worker: names.get(answer.who.worker as usize).cloned().unwrap_or_default(),
            rank: answer.who.rank,
            score: answer.reuse.tokens as f64 / of,
            tokens: answer.reuse.tokens,
            is_exact: answer.reuse.trust == Trust::Exact,
        })
        .collect())
}
