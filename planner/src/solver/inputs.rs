//! What the plan of one pipeline stage follows from, once the request is settled: read by the planner and by the checker.

use std::borrow::Cow;

use cacheplan_transforms::model::PredictionLayer;
use cacheplan_transforms::{ModelInfo, Resource, Resources};

use crate::budget::{Budget, Speculation};
use crate::device::DeviceInfo;
use crate::error::PlanError;
use crate::forward_profile::ForwardProfile;
use crate::measured::MeasuredLedger;
use crate::overheads::EngineAssumptions;
use crate::parallel::{Agreement, Parallel};
use crate::solver::divisible::Divisible;
use crate::solver::step::StepBytes;
use crate::solver::{ranks, speculation};
use crate::stated::Stated;

/// Everything that the plan of one stage depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs<'a> {
    /// What is known of the model besides its caches.
    pub(crate) model: &'a ModelInfo,
    /// Its caches.
    pub(crate) resources: &'a Resources,
    /// Memory, limits, dtypes.
    pub(crate) budget: &'a Budget,
    /// The device; needed where the budget states a fraction.
    pub(crate) device: Option<&'a DeviceInfo>,
    /// What a profiled forward showed; replaces the assumptions.
    pub(crate) measurement: Option<&'a ForwardProfile>,
    /// What an engine logged of the same model; replaces assumptions line by line.
    pub(crate) measured: Option<&'a MeasuredLedger>,
    /// The draft model, where speculation has one.
    pub(crate) draft: Option<Draft<'a>>,
    /// The pipeline stage; 0 without pipeline parallelism.
    pub(crate) stage: u32,
    /// What the ranks of all stages can serve, where there are several.
    pub(crate) agreement: Option<Agreement>,
    /// The largest live set of a step, where the model's layers tell it.
    pub(crate) step: Option<StepBytes>,
    /// The model's layers that predict further tokens.
    pub(crate) prediction: PredictionLayer,
    /// How the model can be divided over ranks, where its layers tell it.
    pub(crate) divisible: Option<Divisible>,
    /// The engine that is to run the model, of whose logs captured graphs and the context are assumed.
    pub(crate) engine: Option<EngineAssumptions>,
    /// How the budget was stated, in whose words changes to it are suggested.
    pub(crate) stated: Stated,
}

/// A model that drafts what another verifies, on the same ranks.
///
/// Its caches are planned with those of the other, named `draft.…`. Its layers and weights are divided over the ranks as
/// the other's are; with fewer layers than pipeline stages the last stages hold nothing of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    /// What is known of it besides its caches; its weights are counted in the ledger.
    pub(crate) model: &'a ModelInfo,
    /// Its caches.
    pub(crate) resources: &'a Resources,
}

impl<'a> Inputs<'a> {
    /// Those of one device that nobody described.
    pub(crate) const fn new(model: &'a ModelInfo, resources: &'a Resources, budget: &'a Budget) -> Self {
        Self {
            model,
            resources,
            budget,
            device: None,
            measurement: None,
            measured: None,
            draft: None,
            stage: 0,
            agreement: None,
            step: None,
            prediction: PredictionLayer { weights: None, windowed: false },
            divisible: None,
            engine: None,
            stated: Stated::Keys,
        }
    }

    /// The caches that one rank holds: those of the model with its speculation, divided over the ranks.
    pub(crate) fn held(&self) -> Result<RankResources<'a>, PlanError> {
        self.divided(|speculation| speculation::extend(self.resources, speculation, self.model.dtype))
    }

    /// The same without what speculation adds to states, for which every engine has its own buffers.
    pub(crate) fn held_by_engine(&self) -> Result<RankResources<'a>, PlanError> {
        self.divided(|_| Ok(self.resources.clone()))
    }

    fn divided(
        &self,
        extend: impl FnOnce(&Speculation) -> Result<Resources, PlanError>,
    ) -> Result<RankResources<'a>, PlanError> {
        let parallel = self.budget.parallel;
        let admits = |parallel: Parallel| ranks::divides(self.resources, parallel);
        if let Some(refused) = self.divisible.and_then(|divisible| divisible.refuses(parallel, admits)) {
            return Err(PlanError::Layout(refused));
        }
        if parallel != Parallel::default() {
            parallel.refuse_stage(self.stage, self.model.layers)?;
        }
        let of_rank = |resources: Cow<'a, Resources>, layers: u32| match parallel == Parallel::default() {
            true => Ok::<_, PlanError>(resources),
            false => ranks::split(&resources, layers, parallel, self.stage).map(Cow::Owned),
        };
        let Some(speculation) = &self.budget.speculation else {
            if self.draft.is_some() {
                let reason = "a draft model is given, but `[speculation]` (--draft-tokens) is not";
                return Err(PlanError::Budget(reason.into()));
            }
            return Ok(RankResources::without_draft(of_rank(Cow::Borrowed(self.resources), self.model.layers)?));
        };
        let mut held = RankResources::without_draft(of_rank(Cow::Owned(extend(speculation)?), self.model.layers)?);
        let longest = self.budget.max_seq_len_for(self.model);
        let head = speculation::head(self.resources, speculation, longest, self.prediction.windowed)?;
        held.add_drafting(&*of_rank(Cow::Owned(head), self.model.layers)?)?;
        if let Some(draft) = self.draft {
            held.add_drafting(&*of_rank(Cow::Borrowed(draft.resources), draft.model.layers)?)?;
        }
        Ok(held)
    }
}

/// What one rank holds: the model's caches, then those of its prediction head and its draft model, named `draft.…`.
pub(crate) struct RankResources<'a> {
    pub(crate) resources: Cow<'a, Resources>,
    /// How many of them are the model's own.
    own: usize,
}

impl<'a> RankResources<'a> {
    fn without_draft(resources: Cow<'a, Resources>) -> Self {
        Self { own: resources.len(), resources }
    }

    fn add_drafting(&mut self, drafting: &Resources) -> Result<(), PlanError> {
        for resource in drafting {
            let resource = Resource { name: format!("draft.{}", resource.name), ..resource.clone() };
            let added = self.resources.to_mut().push(resource);
            added.map_err(|error| PlanError::Budget(error.to_string()))?;
        }
        Ok(())
    }

    /// Each resource, and whether it drafts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Resource, bool)> {
        self.resources.iter().enumerate().map(|(at, resource)| (resource, at >= self.own))
    }
}
