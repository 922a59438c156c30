//! What can go wrong between a model folder and its tokens.

use std::path::PathBuf;

use thiserror::Error;

use crate::weights::WeightError;

/// A model that cannot be loaded or run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The config cannot be turned into a decoder.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The model's description cannot be read.
    #[error(transparent)]
    Frontend(#[from] cacheplan_transforms::FrontendError),
    /// The model's caches cannot be collected.
    #[error(transparent)]
    Passes(#[from] cacheplan_transforms::PassError),
    /// There is no plan for the budget.
    #[error(transparent)]
    Plan(#[from] cacheplan_planner::PlanError),
    /// The caches cannot be allocated or used.
    #[error(transparent)]
    Manager(#[from] cacheplan_managers::ManagerError),
    /// A request cannot be served.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A file that cannot be written.
    #[error("cannot write {file}: {source}")]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        source: Box<candle_core::Error>,
    },
    /// A device of another name.
    #[error("unknown device `{0}`; name `cpu` or `cuda:N`")]
    UnknownDevice(String),
    /// A CUDA device in a build without CUDA.
    #[error("this build has no CUDA; rebuild with `--features cuda`")]
    WithoutCuda,
    /// A budget that divides the model.
    #[error("the budget divides the model over ranks; a session runs it whole, so remove `[parallel]`")]
    ManyRanks,
    /// Nothing counts the device's bytes.
    #[error("nobody counts allocations; install `CountingAllocator` as the global allocator")]
    Unmeasured,
    /// A kernel refused its operands.
    #[error(transparent)]
    Kernel(#[from] cacheplan_kernels::KernelError),
    /// Candle failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl RuntimeError {
    /// The exit code of a command that ends with this error: 3 where the budget is too small, 4 where the model is of
    /// a kind that is not known, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Plan(error) => error.exit_code(),
            Self::Frontend(error) if error.is_unsupported() => 4,
            Self::Passes(_) | Self::Config(ConfigError::Unsupported { .. }) => 4,
            _ => 1,
        }
    }
}

/// A config that no decoder can be built from.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key that is missing or not of its kind.
    #[error("config.json: {at}{source}", at = key.as_ref().map_or_else(String::new, |key| format!("`{key}`: ")))]
    Json {
        /// The key, where one is there.
        key: Option<String>,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A file beside the config that cannot be used.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A key that the decoder needs.
    #[error("config.json: `{key}` is missing")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value that the decoder does not know.
    #[error("config.json: `{key}` is `{found}`; the runtime knows {known}")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// The values that would do.
        known: &'static str,
    },
}

/// A prompt that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nothing to start from.
    #[error("request {request}: the prompt is empty; give at least one token id")]
    EmptyPrompt {
        /// The request's place in the batch.
        request: usize,
    },
    /// Nothing to generate.
    #[error("request {request}: max_new_tokens is 0; ask for at least one")]
    NoNewTokens {
        /// The request's place in the batch.
        request: usize,
    },
    /// A token id that the model has no embedding for.
    #[error("request {request}: token id {token} is not below the vocabulary size {vocab_size}")]
    Token {
        /// The request's place in the batch.
        request: usize,
        /// The token id.
        token: u32,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
    /// A sequence that can never fit.
    #[error(
        "request {request}: {prompt} prompt tokens and {new} new ones exceed the plan's max_seq_len of {limit}; \
         shorten the request or raise max_seq_len in the budget"
    )]
    TooLong {
        /// The request's place in the batch.
        request: usize,
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens to generate.
        new: usize,
        /// The most that one sequence may have.
        limit: u64,
    },
    /// Logits that no token can be chosen from.
    #[error("request {request}: the model's logits are not numbers; check its weights")]
    NotANumber {
        /// The request's place in the batch.
        request: usize,
    },
}
