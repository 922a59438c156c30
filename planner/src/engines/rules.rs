//! What an engine allocates: its versions, what it stores how, and its rules.

use cacheplan_handlers::DType;
use cacheplan_transforms::registry::Descriptor;
use cacheplan_transforms::{CacheDTypes, ModelInfo};

use super::caches::Storage;
use super::prediction::EnginePrediction;
use super::situation::Situation;
use super::stored::{Stored, Telling};
use super::version::Version;
use crate::budget::Budget;
use crate::error::{EngineRefusal, PlanError};

/// What one engine goes by where it divides its memory.
pub(crate) struct EngineRules {
    /// Its name on the command line and in plans.
    pub(crate) name: &'static str,
    /// How it numbers its versions.
    pub(crate) numbering: Numbering,
    /// The versions whose rules were read in its sources, oldest first; the last is used where none is named.
    pub(crate) read: &'static [Version],
    /// The oldest version that is modelled: its flags or its log were read.
    pub(crate) oldest: Version,
    /// The dtypes that it chooses where nobody states them: of keys and values, and of convolution states, whatever the
    /// model's own is; of recurrent states where the model states none. The number is the compute capability, times ten; the
    /// last dtype is what is asked for convolution states.
    pub(super) dtypes: fn(&ModelInfo, Version, u32, Option<DType>) -> CacheDTypes,
    /// Whether it has no architecture for a model type.
    pub(super) lacks: fn(&str) -> bool,
    /// What it keeps of ops of such a model where that is not what the op needs.
    pub(super) descriptors: fn(&ModelInfo) -> Option<Descriptor>,
    /// Whether its rules for compressed entries, such as DeepSeek-V4's, were read.
    pub(super) compresses: bool,
    /// Whether its rules for rings of what such an entry is formed of were read.
    pub(super) forms_entries: bool,
    /// Model types whose convolutions beside attention it keeps by rules that were read.
    pub(super) convolves: fn(&str) -> bool,
    /// Its options: the keys of `[engine]` that its rules go by, besides those that all go by.
    pub(crate) consumes: &'static [&'static str],
    /// The sizes of `[parallel]` that divide the tokens of a sequence in it: of `dcp` and `cp` those that it has.
    pub(crate) divides_tokens: &'static [&'static str],
    /// What of these rules changed, oldest first.
    pub(crate) changes: &'static [RuleChange],
    /// Whether it groups the layers of all pipeline stages together.
    pub(crate) divides_whole_models: bool,
    /// Whether what it captures of steps takes bytes beside those of a step.
    pub(crate) captures_apart: bool,
    /// Whether its weights of fewer bits are GGML's blocks.
    pub(crate) weights_in_blocks: bool,
    /// Bytes of a logit while a token is chosen.
    pub(crate) logit_bytes: fn(Version) -> u64,
    /// Whether it measures a prompt's delta rules in kernels over chunks of tokens.
    pub(crate) chunks_delta_rules: bool,
    /// Longest sequences whose keys its buffer for an indexer holds.
    pub(crate) indexed_sequences: u64,
    /// What it stores in a way of its own.
    pub(super) storage: Storage,
    /// How it stores latents that it is told of so; none of a model without them, and where that is not known.
    pub(super) stored: fn(&Telling<'_>) -> Result<Option<Stored>, EngineRefusal>,
    /// Why it does not run the model so.
    pub(super) refuses: fn(&Situation<'_>) -> Option<EngineRefusal>,
    /// What it would allocate on a rank of its stage, and the sequences that the ranks of all stages hold: each runs on every one.
    pub(super) predict: fn(&Situation<'_>) -> Result<EnginePrediction, PlanError>,
    /// What its server is told so that it allocates what is predicted; none where it does not start without a GPU.
    pub(crate) arguments: Option<fn(&EnginePrediction, &Budget) -> Vec<String>>,
}

/// The first version that goes by another rule, and that rule in words.
pub(crate) type RuleChange = (Version, &'static str);

/// How an engine numbers its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbering {
    /// `0.33.0`; what is above the newest that was read is refused.
    Releases,
    /// `b11549`, one every few hours; rules hold until a change is read.
    Builds,
}
