//! What a plan holds, a run uses or refuses: memory that nobody uses is never allocated in silence.

use std::fmt;

use cacheplan_handlers::{DType, Kind};
use cacheplan_planner::{CachePlan, Override, Parallel};
use thiserror::Error;

/// A part of a plan that serves only those who use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// The share of one rank of several.
    Ranks,
    /// Room for drafted tokens, what takes them back, and the caches of a draft.
    Speculation,
    /// Prediction layers of the model itself, which draft.
    PredictionLayers,
    /// Host memory for what the device has no room for.
    HostTier,
    /// Room for states that later prompts start from.
    Checkpoints,
    /// The same in 8 bits.
    Int8Checkpoints,
    /// Latents and rope keys as Ascend's operator writes them.
    MlaCacheMode,
    /// Keys and values of a dtype that nothing attends to rightly.
    KvDtype,
    /// Recurrent states of a dtype that no scan reads.
    StateDtype,
    /// Convolution states of a dtype that no convolution reads.
    ConvDtype,
}

impl Feature {
    /// Those that a budget asks for most plainly come first, so that they are named first.
    const ALL: [Self; 10] = [
        Self::Ranks,
        Self::KvDtype,
        Self::StateDtype,
        Self::ConvDtype,
        Self::MlaCacheMode,
        Self::PredictionLayers,
        Self::Speculation,
        Self::HostTier,
        Self::Int8Checkpoints,
        Self::Checkpoints,
    ];

    /// The key of the budget that asks for it, or the section of keys.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Ranks => "parallel",
            Self::Speculation => "speculation",
            Self::PredictionLayers => "speculation.mtp_layers",
            Self::HostTier => "host",
            Self::Checkpoints => "workload.checkpoints_per_sequence",
            Self::Int8Checkpoints => "workload.checkpoint_dtype",
            Self::MlaCacheMode => "mla_cache_mode",
            Self::KvDtype => "dtypes.kv",
            Self::StateDtype => "dtypes.ssm",
            Self::ConvDtype => "dtypes.conv",
        }
    }

    fn is_in(self, plan: &CachePlan) -> bool {
        match self {
            Self::Ranks => plan.parallel != Parallel::default(),
            Self::Speculation | Self::PredictionLayers => plan.limits.draft_positions > 1,
            Self::HostTier => plan.host.is_some(),
            Self::Checkpoints => plan.checkpoints() > 0,
            Self::Int8Checkpoints => plan.pools.iter().any(|pool| pool.checkpoints_of.is_some()),
            Self::MlaCacheMode => has(plan, &Kind::MlaPaged),
            // Exported graphs compute with fewer than the model's own layers do.
            Self::KvDtype => true,
            Self::StateDtype | Self::ConvDtype => self.uncomputed(plan).is_some(),
        }
    }

    /// The dtype of a cache that this feature is about and that no kernel of a run computes with.
    pub(crate) fn uncomputed(self, plan: &CachePlan) -> Option<DType> {
        // Ascend's operator has the scales of its int8 latents from the checkpoint.
        let by_operator = has(plan, &Kind::MlaRope);
        let found = plan.resources.iter().find(|resource| {
            let (kind, dtype) = (resource.handler.kind(), resource.handler.dtype());
            let of = match kind {
                Kind::CausalConv | Kind::IntermediateCausalConv => Self::ConvDtype,
                _ if resource.handler.is_state() => Self::StateDtype,
                _ => Self::KvDtype,
            };
            of == self
                && match (self, dtype) {
                    (_, DType::F32 | DType::F16 | DType::Bf16) => false,
                    // Numbers of tokens, with which nothing is computed.
                    (_, DType::Int32) => !matches!(kind, Kind::State | Kind::IntermediateState),
                    (Self::KvDtype, DType::Int8) => !by_operator,
                    (Self::KvDtype, DType::Int8PerTokenHead | DType::F8E4m3 | DType::F8E5m2) => false,
                    (Self::KvDtype, DType::Nvfp4 | DType::Mxfp4 | DType::Q8_0 | DType::Q4_0) => false,
                    _ => true,
                }
        });
        found.map(|resource| resource.handler.dtype())
    }
}

fn has(plan: &CachePlan, kind: &Kind) -> bool {
    plan.resources.iter().any(|resource| resource.handler.kind() == kind)
}

/// A part of a plan that a run would allocate and nobody would use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {reason}; leave it out of the budget", Asked { feature: *feature, by: asked_by.as_ref() })]
pub struct UnusedFeature {
    /// Which.
    pub feature: Feature,
    /// The key that asked for it, its value and where it was stated, as far as that is known.
    pub asked_by: Option<Override>,
    /// Why this run does not use it.
    pub reason: String,
}

impl UnusedFeature {
    /// The exit code of a command that ends with this error: 2 where a flag asked for it, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.asked_by.as_ref().and_then(Override::stated_by).is_some() { 2 } else { 1 }
    }
}

/// The key as it was stated, with the place, or the key alone.
struct Asked<'a> {
    feature: Feature,
    by: Option<&'a Override>,
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            Some(Override { key, value, origin }) => write!(f, "{origin}: `{key} = {value}`"),
            None => write!(f, "the budget: `{}`", self.feature.key()),
        }
    }
}

/// Refuses a plan that holds more than a run uses.
///
/// `unused` says why the run does not use a feature, or `None` where it does. `settings` are the budget's values with
/// their origins, where they are known.
pub(crate) fn refuse_unused(
    plan: &CachePlan,
    settings: &[Override],
    unused: impl Fn(Feature) -> Option<String>,
) -> Result<(), Box<UnusedFeature>> {
    let held = Feature::ALL.into_iter().filter(|feature| feature.is_in(plan));
    let Some((feature, reason)) = held.into_iter().find_map(|feature| Some((feature, unused(feature)?))) else {
        return Ok(());
    };
    let key = feature.key();
    let asks = |setting: &&Override| {
        let rest = setting.key.strip_prefix(key);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) && !setting.is_default()
    };
    Err(Box::new(UnusedFeature { feature, asked_by: settings.iter().find(asks).cloned(), reason }))
}
