//! What of a plan a session would not use.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_kernels::Backend;
use cacheplan_managers::ManagerError;
use cacheplan_managers::book::{CacheBook, NoReuse};
use cacheplan_managers::prefix::PrefixReuse;
use cacheplan_planner::{Budget, CachePlan, Override};

use super::{allowed, strategy};
use crate::device::compute_dtype;
use crate::features::{Feature, UnusedFeature, refuse_unused};

/// What decides which plans a session uses all of.
#[derive(Clone)]
pub(super) struct Uses {
    pub(super) budget: Budget,
    pub(super) on: Backend,
    pub(super) reuse_prefixes: bool,
    /// Whether the model has prediction layers that are computed.
    pub(super) predicts: bool,
    /// Whether the model's latents can be computed by Ascend's operator, where the budget asks for that.
    pub(super) preprocesses: bool,
    /// Whether exported graphs compute in place of the model's layers.
    pub(super) by_graphs: bool,
}

impl Uses {
    /// Whether prefixes can be kept, as the books alone tell; `None` where reuse is switched off.
    pub(super) fn prefixes(&self, plan: &CachePlan) -> Result<Option<Result<PrefixReuse, NoReuse>>, ManagerError> {
        let reuse = || Ok(PrefixReuse::new(plan, &mut CacheBook::new(plan)?, strategy(plan, &self.budget))?);
        self.reuse_prefixes.then(|| allowed(reuse())).transpose()
    }

    /// Refuses a plan that holds more than the session would use.
    pub(super) fn refuse_unused(
        &self,
        plan: &CachePlan,
        settings: &[Override],
        prefixes: Option<&Result<PrefixReuse, NoReuse>>,
    ) -> Result<(), Box<UnusedFeature>> {
        refuse_unused(plan, settings, |feature| match feature {
            Feature::MlaCacheMode if !self.preprocesses => {
                Some("a run computes by the operator for models of type deepseek_v3 only".into())
            }
            feature => unused(feature, prefixes, plan, &self.budget, &self.on, self.predicts)
                .or_else(|| unused_by_graphs(feature, plan).filter(|_| self.by_graphs)),
        })
    }
}

/// Why a session does not use a feature of a plan; `None` where it does.
fn unused(
    feature: Feature,
    prefixes: Option<&Result<PrefixReuse, NoReuse>>,
    plan: &CachePlan,
    budget: &Budget,
    on: &Backend,
    predicts: bool,
) -> Option<String> {
    let predicting = budget.speculation.as_ref().map_or(0, |speculation| speculation.mtp_layers);
    let (stored, computed) = (plan.model.dtype, compute_dtype(plan.model.dtype, on));
    match feature {
        Feature::MlaCacheMode => None,
        Feature::KvDtype => {
            let dtype = feature.uncomputed(plan)?;
            Some(format!("a run computes no keys and values in {dtype}; int8, fp8_e4m3, q8_0 and q4_0 would do"))
        }
        Feature::StateDtype | Feature::ConvDtype => {
            let dtype = feature.uncomputed(plan)?;
            Some(format!("a run computes states in f32, f16 and bf16, and none in {dtype}"))
        }
        Feature::Ranks => Some("a run has the whole model on one device".into()),
        Feature::PredictionLayers if !predicts && predicting > 0 => Some(
            "a run guesses by a draft model or by looking up the prompt, and has no prediction layers of this model (GGUF files' are not read)"
                .into(),
        ),
        Feature::PredictionLayers if predicting > 1 => {
            Some("a run guesses with one prediction layer, one token after the other; state `mtp_layers = 1`".into())
        }
        // Snapshots are the default. Inputs that are kept in fewer bits than they have would move states elsewhere.
        Feature::Speculation
            if plan.rollback.is_some_and(|scheme| scheme != Default::default())
                && plan.resources.iter().any(|resource| resource.handler.is_state())
                && DType::F32 != stored
                && computed == candle_core::DType::F32 =>
        {
            Some(format!(
                "replay keeps inputs in {stored} and the run computes in f32; `speculation.scheme = \"snapshots\"` would do"
            ))
        }
        Feature::Speculation | Feature::PredictionLayers => None,
        // Whoever makes way waits there.
        Feature::HostTier if plan.limits.max_batch_size > 1 => None,
        Feature::HostTier | Feature::Checkpoints | Feature::Int8Checkpoints => match prefixes {
            Some(Ok(_)) => None,
            Some(Err(reason)) => Some(format!("no prefix can be kept ({reason})")),
            None => Some("reuse of prefixes is switched off".into()),
        },
    }
}

/// The same of an exported graph, which computes with the plan's caches in place of the model's layers.
fn unused_by_graphs(feature: Feature, plan: &CachePlan) -> Option<String> {
    match feature {
        // States are renewed where they lie, and nothing is kept of them.
        Feature::Speculation => Some("an exported graph verifies no drafts".into()),
        Feature::KvDtype => {
            let handlers =
                plan.resources.iter().map(|resource| &resource.handler).filter(|handler| !handler.is_state());
            let is_float = |dtype: &DType| matches!(dtype, DType::F32 | DType::F16 | DType::Bf16 | DType::Int32);
            let dtype = handlers.map(ResourceHandler::dtype).find(|dtype| !is_float(dtype))?;
            Some(format!("an exported graph is given keys and values in f32, f16 and bf16, and none in {dtype}"))
        }
        _ => None,
    }
}
