//! Why a command is no question, or why the engine would not start.

use cacheplan_files::Shown;
use cacheplan_planner::{Engine, PlanError};
use thiserror::Error;

use crate::manifest::ManifestError;
use crate::remedy::Remedy;
use crate::secret;

/// Why a command has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// No engine's program among the words.
    #[error(
        "`{found}` starts no engine that is known: `vllm serve`, `python -m vllm.entrypoints.openai.api_server`, `python -m sglang.launch_server`, `sglang serve`, `trtllm-serve` or `llama-server` was expected", found = Shown(.found))]
    Program {
        /// The word in its place.
        found: String,
    },
    /// Words that `manifest` refuses.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A variable in the words that has no value.
    #[error("`${name}` is not set; state it before the command, `{name}=… vllm serve …`", name = Shown(.name))]
    Unset {
        /// The variable.
        name: String,
    },
    /// What the engine's parser refuses, in its words.
    #[error("{program}: {said}", said = Shown(.said))]
    Parser {
        /// The engine's program.
        program: &'static str,
        /// Its message.
        said: String,
        /// What would do.
        remedies: Vec<Remedy>,
    },
    /// What the engine refuses when it has read the model, in its words.
    #[error("{engine} would not start: {said}", said = Shown(.said))]
    Engine {
        /// The engine.
        engine: Engine,
        /// Its message.
        said: String,
        /// What would do.
        remedies: Vec<Remedy>,
    },
    /// A flag of which nobody read what it does to caches.
    #[error("{flag}: {why}; nothing is answered rather than guessed", flag = Shown(.flag))]
    NotHandled {
        /// The flag.
        flag: String,
        /// What is missing.
        why: String,
        /// What would do.
        remedies: Vec<Remedy>,
    },
    /// A flag beside the command that nothing would consume.
    #[error("{flag}: {why}", flag = Shown(.flag), why = Shown(.why))]
    Unconsumed {
        /// The flag.
        flag: String,
        /// Why, with what would do.
        why: String,
    },
    /// No model among the words.
    #[error("the command names no model; {program} takes {flag}")]
    NoModel {
        /// The engine's program.
        program: &'static str,
        /// How it takes one.
        flag: &'static str,
    },
    /// Neither a device nor bytes for caches.
    #[error(
        "an engine divides the memory of a device: name it, such as --device h100, or state the bytes of caches with --cache-bytes"
    )]
    NoDevice,
    /// A device that a manifest names and whose memory is not known.
    #[error("{0}; state it with --device, or the bytes of caches with --cache-bytes")]
    Device(cacheplan_planner::device::BadDevice),
    /// An image whose build does not run on the devices.
    #[error("the image {image:.200} is built for {build}, and runs nothing on {device}; take {instead}", image = Shown(.image))]
    Image {
        /// The image.
        image: String,
        /// What it is built for.
        build: &'static str,
        /// The device.
        device: String,
        /// One that does.
        instead: String,
    },
    /// A version that is not modelled.
    #[error(transparent)]
    Version(#[from] cacheplan_planner::engines::UnknownEngine),
    /// A question that the planner refuses.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Values that contradict each other.
    #[error(transparent)]
    Budget(#[from] cacheplan_planner::BudgetError),
}

impl ServeError {
    /// No engine's program among these words.
    pub(crate) fn no_engine(words: &[String]) -> Self {
        Self::Program {
            found: secret::hidden(words).first().map_or_else(String::new, |word| word.clone().into_owned()),
        }
    }

    /// A flag of which nobody read what it does to caches.
    pub(crate) fn unread(flag: &str, why: impl Into<String>, remedies: impl IntoIterator<Item = Remedy>) -> Self {
        Self::NotHandled { flag: flag.into(), why: why.into(), remedies: remedies.into_iter().collect() }
    }

    /// A flag that changes the bytes of weights, which nobody states.
    pub(crate) fn weights_unknown(flag: &str, remedy: Remedy) -> Self {
        let why = "it changes what weights take; state that with --weights, or the bytes of caches with --cache-bytes";
        Self::unread(flag, why, [remedy])
    }

    /// The exit code of a command that ends with this error: 2 where the engine's parser refuses the words, 3 where it would not start,
    /// 4 where nobody read what a flag does, else as the planner's.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Engine { .. } | Self::Plan(PlanError::Layout(_)) => 3,
            Self::NotHandled { .. } => 4,
            Self::Plan(error) => error.exit_code(),
            Self::Budget(error) => error.exit_code(),
            _ => 2,
        }
    }

    /// What the engine says, where it refuses.
    pub fn said(&self) -> Option<&str> {
        match self {
            Self::Parser { said, .. } | Self::Engine { said, .. } => Some(said),
            _ => None,
        }
    }

    /// Whether it says that the engine would not start, and not that nobody knows.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Parser { .. }) || self.exit_code() == 3
    }

    /// What would do.
    pub(crate) fn remedies(&self) -> &[Remedy] {
        match self {
            Self::Parser { remedies, .. } | Self::Engine { remedies, .. } | Self::NotHandled { remedies, .. } => {
                remedies
            }
            _ => &[],
        }
    }
}
