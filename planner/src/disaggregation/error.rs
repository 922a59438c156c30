//! Why there is no answer.

use std::fmt;

use cacheplan_files::Shown;
use cacheplan_handlers::DType;
use serde::Serialize;
use thiserror::Error;

use crate::error::PlanError;

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Computes prompts.
    Prefill,
    /// Writes tokens.
    Decode,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// Why prefill and decode cannot be parted so.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum DisaggregationError {
    /// A link that carries nothing.
    #[error("a link of {0} bytes a second carries nothing; state a number above 0")]
    Link(f64),
    /// Lengths of which nothing is handed over.
    #[error(
        "of a prompt of {prompt} tokens and {output} written nothing is handed over: the first written token comes with the prompt; a prompt of at least 1 and an output of at least 2 were expected"
    )]
    Lengths {
        /// Tokens of the prompt.
        prompt: u64,
        /// Tokens that are written.
        output: u64,
    },
    /// A sequence beyond the longest.
    #[error("{role}: a request has {tokens} tokens there, and `{key}` is {most}; ask about a shorter one{advice}", advice = advice(key))]
    TooLong {
        /// The side.
        role: Role,
        /// Tokens of the request there.
        tokens: u64,
        /// The most.
        most: u64,
        /// Who states that.
        key: &'static str,
    },
    /// A side that cannot be planned.
    #[error("{role}: {error}")]
    Plan {
        /// The side.
        role: Role,
        /// Why.
        error: PlanError,
    },
    /// Groups of ranks of which none divides the other.
    #[error(
        "prefill has tp {prefill} and decode tp {decode}, of which none divides the other, so that no rank's heads are those of whole ranks of the other side; vLLM, SGLang and TensorRT-LLM refuse it too"
    )]
    Ranks {
        /// Tensor parallel ranks of the side that sends.
        prefill: u32,
        /// Those of the side that receives.
        decode: u32,
    },
    /// A cache that both sides keep in other dtypes.
    #[error(
        "`{cache}` is {prefill} where prompts are computed and {decode} where tokens are written, shown as such by {key}; no engine converts on the way: vLLM's handshake, SGLang's and TensorRT-LLM's refuse it. State one dtype for both", cache = Shown(.cache))]
    DTypes {
        /// The resource.
        cache: String,
        /// Its dtype where it is sent from.
        prefill: DType,
        /// Its dtype where it arrives.
        decode: DType,
        /// The key that states it.
        key: &'static str,
    },
    /// A cache that one side alone keeps, such as a draft's.
    #[error("`{cache}` is kept by {has} alone, so that it cannot be handed over; state one speculation for both sides", cache = Shown(.cache))]
    OneSided {
        /// The resource.
        cache: String,
        /// The side that keeps it.
        has: Role,
    },
}

fn advice(key: &str) -> &'static str {
    if key == "max_seq_len" { ", or raise it" } else { ", or state --max-seq-len" }
}

impl DisaggregationError {
    pub(super) fn plan(role: Role, error: PlanError) -> Self {
        Self::Plan { role, error }
    }

    /// The exit code of a command that ends with this error.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Plan { error, .. } => error.exit_code(),
            _ => 2,
        }
    }
}
