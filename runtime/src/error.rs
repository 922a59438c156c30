//! What can go wrong between a model folder and its tokens.

use std::fmt;
use std::path::PathBuf;

use cacheplan_files::Shown;
use cacheplan_graphs::GraphError;
use cacheplan_managers::BookError;
use serde_json::{Map, Value};
use thiserror::Error;

pub use crate::cache_use::Unplanned;
pub use crate::features::{Feature, UnusedFeature};
use crate::sampling::SamplingError;
use crate::weights::WeightError;

/// A model that cannot be loaded or run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The config cannot be turned into a decoder.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A layer that the model's decoder cannot run.
    #[error("layer {layer} is {found}; the decoder of `{decoder}` runs {known}", found = Shown(.found), decoder = Shown(.decoder))]
    Layer {
        /// The absolute layer.
        layer: u32,
        /// The model type whose decoder it is.
        decoder: String,
        /// The layer's kind, its blocks, and how their dimensions are known.
        found: String,
        /// What would do.
        known: &'static str,
    },
    /// Latent attention that Ascend's operator cannot prepare.
    #[error("layer {layer} cannot run by Ascend's MLA operator: {shown}", shown = Shown(.reason))]
    Preprocess {
        /// The absolute layer.
        layer: u32,
        /// Why, and what would do.
        reason: String,
    },
    /// A decoder that keeps other caches than are planned.
    #[error(transparent)]
    Unplanned(#[from] Box<Unplanned>),
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
    /// A folder for prefixes without a bound.
    #[error("prefixes are to be kept in files, and nothing says how many bytes; state `disk.bytes` (--disk-bytes)")]
    NoDiskBytes,
    /// A folder for prefixes where none can be kept.
    #[error("no prefix can be kept in files: {shown}", shown = Shown(.reason))]
    NoPrefixesOnDisk {
        /// Why.
        reason: String,
    },
    /// A request cannot be served.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A tokenizer or a chat template that cannot be used.
    #[error(transparent)]
    Text(#[from] cacheplan_text::TextError),
    /// A draft model with another vocabulary.
    #[error("the draft model knows {found} tokens, the model {expected}; a draft must have the model's vocabulary")]
    DraftVocabulary {
        /// Tokens that it knows.
        found: usize,
        /// Tokens that the model knows.
        expected: usize,
    },
    /// Guesses that cannot branch.
    #[error("--draft-tree: {0}")]
    DraftTree(&'static str),
    /// A draft model with states.
    #[error(
        "the draft model keeps the state {name}, and no plan takes states of a draft back; one of attention alone would do",
        name = Shown(.name)
    )]
    DraftState {
        /// Its resource.
        name: String,
    },
    /// A file that cannot be written.
    #[error(transparent)]
    Replace(#[from] cacheplan_files::ReplaceError),
    /// Logits that do not make a safetensors file.
    #[error("the logits cannot be written: {shown}", shown = Shown(.0))]
    Logits(Box<safetensors::SafeTensorError>),
    /// A device of another name.
    #[error("unknown device `{shown}`; name `cpu` or `cuda:N`", shown = Shown(.0))]
    UnknownDevice(String),
    /// A CUDA device in a build without CUDA.
    #[error("this build has no CUDA; rebuild with `--features cuda`")]
    WithoutCuda,
    /// A graph that cannot be run.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An exported graph that is no model of text whose states can be carried.
    #[error("{file}: {what}: {reason}", file = Shown(.file), what = Shown(.what), reason = Shown(.reason))]
    Exported {
        /// The graph's file.
        file: String,
        /// What of it.
        what: String,
        /// Why.
        reason: String,
    },
    /// A folder that an export is not written to.
    #[error("{}: {reason}", Shown(path.display()))]
    Output {
        /// The folder, or the file in it.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// An output that was asked for in the place of what is read.
    #[error("{}: {reason}", Shown(path.display()))]
    InPlace {
        /// The file.
        path: PathBuf,
        /// What it is.
        reason: &'static str,
    },
    /// A sequence that the fixed caches of an exported graph have no room for.
    #[error("a sequence of {tokens} tokens is longer than the {limit} that the exported graph's caches hold")]
    BeyondGraph {
        /// Tokens of the sequence.
        tokens: usize,
        /// Tokens that there is room for.
        limit: usize,
    },
    /// A size of an export that it cannot have.
    #[error("{what} of {found} {unit} cannot be exported; it must be from 1 to {most}, {bound}")]
    OutOfRange {
        /// Of what.
        what: &'static str,
        /// The size.
        found: u64,
        /// What it counts.
        unit: &'static str,
        /// The most that would do.
        most: u64,
        /// What bounds it.
        bound: &'static str,
    },
    /// Tokens that no exported graph takes.
    #[error(
        "no exported graph takes {tokens} tokens behind {past}; there are graphs of {sizes:?} tokens (None takes any number); export one of 1"
    )]
    NoBucket {
        /// Tokens that are to be computed.
        tokens: usize,
        /// Tokens that are there already.
        past: usize,
        /// The graphs' sizes.
        sizes: Vec<Option<usize>>,
    },
    /// A pool that an exported graph cannot read.
    #[error("an exported graph reads caches of f32, f16 and bf16; leave other dtypes out of the budget")]
    NotFloat,
    /// A budget that asks for what a run does not use.
    #[error(transparent)]
    Unused(#[from] Box<UnusedFeature>),
    /// Nothing counts the device's bytes.
    #[error("nobody counts allocations; install `CountingAllocator` as the global allocator")]
    Unmeasured,
    /// A forward in a library that allocates by itself.
    #[error("nobody counts what ONNX Runtime allocates, so that a forward in it cannot be measured")]
    Uncounted,
    /// A kernel refused its operands.
    #[error(transparent)]
    Kernel(#[from] cacheplan_kernels::KernelError),
    /// Candle failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl From<BookError> for RuntimeError {
    fn from(refused: BookError) -> Self {
        Self::Manager(refused.into())
    }
}

impl RuntimeError {
    /// The exit code of a command that ends with this error: 2 where a size cannot be had, 3 where the budget is too
    /// small, 4 where the model is of a kind that is not known, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Plan(error) => error.exit_code(),
            Self::Unused(error) => error.exit_code(),
            Self::Frontend(error) if error.is_unsupported() => 4,
            Self::Graph(GraphError::Source(_) | GraphError::OnnxRuntime { .. }) => 1,
            Self::Graph(_) | Self::Exported { .. } => 4,
            Self::OutOfRange { .. } | Self::DraftTree(_) | Self::NoDiskBytes | Self::InPlace { .. } => 2,
            Self::Weights(WeightError::Rounded { .. }) | Self::Request(RequestError::Beams { .. }) => 2,
            Self::Passes(_) | Self::Layer { .. } | Self::Config(ConfigError::Unsupported { .. }) => 4,
            _ => 1,
        }
    }
}

/// A config that no decoder can be built from.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key that is missing or not of its kind.
    #[error("config.json: {at}{source}", at = key.as_ref().map_or_else(String::new, |key| format!("`{key}`: ")), source = Shown(.source))]
    Json {
        /// The key, where one is there.
        key: Option<String>,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A file beside the config that cannot be read.
    #[error(transparent)]
    Source(#[from] cacheplan_files::SourceError),
    /// A key that the decoder needs.
    #[error("config.json: `{key}` is missing")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A key that the decoder needs and that says nothing.
    #[error("config.json: `{key}` is null, and the decoder needs it")]
    Null {
        /// The key.
        key: &'static str,
    },
    /// A value of `generation_config.json` that nothing can be sampled with.
    #[error("generation_config.json: {source}")]
    Generation {
        /// Which, and what is wrong with it.
        #[from]
        source: SamplingError,
    },
    /// A value that the decoder does not know.
    #[error("{file}: `{key}` is `{found}`; the runtime knows {known}", found = Shown(.found))]
    Unsupported {
        /// The file, `config.json` or `generation_config.json`.
        file: &'static str,
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// The values that would do.
        known: &'static str,
    },
}

/// What most of this crate's functions return.
pub(crate) type Result<T, E = RuntimeError> = std::result::Result<T, E>;

impl ConfigError {
    /// A value that the decoder does not know.
    pub(crate) fn unsupported(key: &'static str, found: impl fmt::Display, known: &'static str) -> Self {
        Self::unsupported_in("config.json", key, found, known)
    }

    /// The same of another file.
    pub(crate) fn unsupported_in(
        file: &'static str,
        key: &'static str,
        found: impl fmt::Display,
        known: &'static str,
    ) -> Self {
        Self::Unsupported { file, key, found: found.to_string(), known }
    }

    /// The same of a config in which a key may be null, or a number beyond those of 32 bits.
    pub(crate) fn stated_in(self, config: &Map<String, Value>) -> Self {
        let value = |path: &str| {
            let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
            rest.into_iter().flat_map(|rest| rest.split('.')).try_fold(config.get(first)?, |value, key| value.get(key))
        };
        match self {
            Self::Missing { key } if value(key).is_some_and(Value::is_null) => Self::Null { key },
            Self::Unsupported { file, key, found, .. } if found.ends_with("inf") && value(key).is_some() => {
                let stated = value(key).map_or(found, ToString::to_string);
                Self::Unsupported { file, key, found: stated, known: "numbers of 32 bits" }
            }
            other => other,
        }
    }

    /// A size of a config, unless it is beyond what any model has: what follows from it would not end.
    pub(crate) fn bounded(key: &'static str, found: usize, most: usize) -> Result<usize, Self> {
        let refused = || Self::unsupported(key, found, "sizes as models have them");
        (found <= most).then_some(found).ok_or_else(refused)
    }
}

/// A prompt that cannot be served.
#[derive(Clone, Debug, PartialEq, Error)]
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
    /// A value that nothing can be sampled with.
    #[error("request {request}: {source}")]
    Sampling {
        /// The request's place in the batch.
        request: usize,
        /// Which.
        source: SamplingError,
    },
    /// A beam search that is too wide, or has no width.
    #[error(
        "a beam search of width {width}: it must be from 1 to {most}, the sequences of a step and half of the vocabulary"
    )]
    Beams {
        /// What was asked for.
        width: usize,
        /// The most that would do.
        most: u64,
    },
    /// Logits that no token can be chosen from.
    #[error("request {request}: its logits are not numbers; check the model's weights")]
    NotANumber {
        /// The request's place in the batch.
        request: usize,
    },
}
