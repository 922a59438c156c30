//! What a plan is made from.

use std::borrow::Cow;

use cacheplan_transforms::{Model, ModelInfo, Resource, Resources};
use serde::{Deserialize, Serialize};

use crate::divisible::Divisible;
use crate::measured::Measured;
use crate::speculation;
use crate::step::StepBytes;
use crate::{Agreement, Budget, CachePlan, DeviceInfo, Engine, Parallel, PlanError, Speculation, ranks};

/// Everything that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// What is known of the model besides its caches.
    pub model: &'a ModelInfo,
    /// Its caches.
    pub resources: &'a Resources,
    /// Memory, limits, dtypes.
    pub budget: &'a Budget,
    /// The device; needed where the budget states a fraction.
    pub device: Option<&'a DeviceInfo>,
    /// What a profiled forward showed; replaces the assumptions.
    pub measurement: Option<&'a Measurement>,
    /// What an engine logged of the same model; replaces assumptions line by line.
    pub measured: Option<&'a Measured>,
    /// The draft model, where speculation has one.
    pub draft: Option<Draft<'a>>,
    /// The pipeline stage to plan for; 0 without pipeline parallelism.
    pub stage: u32,
    /// What all ranks can serve; [`RankPlans::of`](crate::RankPlans::of) finds it.
    pub agreement: Option<Agreement>,
    /// The largest live set of a step, where the model's layers tell it.
    pub step: Option<StepBytes>,
    /// How the model can be divided over ranks, where its layers tell it.
    pub divisible: Option<Divisible>,
    /// The engine that is to run the model, of whose logs captured graphs and the context are assumed.
    pub engine: Option<Engine>,
    /// How the budget was stated, in whose words changes to it are suggested.
    pub stated: Stated,
    /// What a device is called, `h100` of `8xh100`, where its number was stated with it: more of them are suggested so.
    pub counted_device: Option<&'a str>,
}

/// How a budget is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stated {
    /// As keys of a file: `max_seq_len = 4096`.
    #[default]
    Keys,
    /// As flags of the command: `--max-seq-len 4096`.
    Flags,
}

/// A model that drafts what another verifies, on the same ranks.
///
/// Its caches are planned with those of the other, named `draft.…`. Its layers and weights are divided over the ranks as
/// the other's are; with fewer layers than pipeline stages the last stages hold nothing of it.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// What is known of it besides its caches; its weights are counted in the ledger.
    pub model: &'a ModelInfo,
    /// Its caches.
    pub resources: &'a Resources,
}

impl<'a> PlanRequest<'a> {
    /// A request for one device that nobody described.
    pub const fn new(model: &'a ModelInfo, resources: &'a Resources, budget: &'a Budget) -> Self {
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
            divisible: None,
            engine: None,
            stated: Stated::Keys,
            counted_device: None,
        }
    }

    /// The same with what a step of `model` takes and how it can be divided, which its layers tell.
    #[must_use]
    pub fn with_step_of(self, model: &Model) -> Self {
        Self { step: StepBytes::of(model), divisible: Some(Divisible::of(&model.layers)), ..self }
    }

    /// The same with a draft model and its caches.
    #[must_use]
    pub const fn drafted_by(self, model: &'a ModelInfo, resources: &'a Resources) -> Self {
        Self { draft: Some(Draft { model, resources }), ..self }
    }

    /// The same of a budget that flags of the command state.
    #[must_use]
    pub const fn stated_in_flags(self) -> Self {
        Self { stated: Stated::Flags, ..self }
    }

    /// The caches that one rank holds: those of the model with its speculation, divided over the ranks.
    pub(crate) fn held(&self) -> Result<Held<'a>, PlanError> {
        self.divided(|speculation| speculation::extend(self.resources, speculation, self.model.dtype))
    }

    /// The same without what speculation adds to states, for which every engine has its own buffers.
    pub(crate) fn held_by_engine(&self) -> Result<Held<'a>, PlanError> {
        self.divided(|_| Ok(self.resources.clone()))
    }

    fn divided(
        &self,
        extend: impl FnOnce(&Speculation) -> Result<Resources, PlanError>,
    ) -> Result<Held<'a>, PlanError> {
        let parallel = self.budget.parallel;
        if let Some(refused) = self.divisible.and_then(|divisible| divisible.refuses(parallel)) {
            return Err(PlanError::Budget(refused));
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
            return Ok(Held::without_draft(of_rank(Cow::Borrowed(self.resources), self.model.layers)?));
        };
        let mut held = Held::without_draft(of_rank(Cow::Owned(extend(speculation)?), self.model.layers)?);
        let longest = self.budget.max_seq_len_for(self.model);
        let head = speculation::head(self.resources, speculation, longest, &self.model.model_type)?;
        held.add_drafting(&*of_rank(Cow::Owned(head), self.model.layers)?)?;
        if let Some(draft) = self.draft {
            held.add_drafting(&*of_rank(Cow::Borrowed(draft.resources), draft.model.layers)?)?;
        }
        Ok(held)
    }
}

/// What one rank holds: the model's caches, then those of its prediction head and its draft model, named `draft.…`.
pub(crate) struct Held<'a> {
    pub(crate) resources: Cow<'a, Resources>,
    /// How many of them are the model's own.
    own: usize,
}

impl<'a> Held<'a> {
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

/// What a profiled forward showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measurement {
    /// Bytes that stay resident without the caches: weights and what the process needs. The weights of a draft model are
    /// counted beside them.
    pub resident_bytes: u64,
    /// Peak bytes of one forward beyond the resident ones.
    pub forward_bytes: u64,
    /// Device bytes free once the weights are loaded and the first caches are dropped.
    pub free_bytes: u64,
}

impl PlanRequest<'_> {
    /// The plan for what was measured: `paged = (free - states - forward) * fraction`, the rest as before.
    ///
    /// # Errors
    /// As [`PlanRequest::plan`].
    pub fn resized(&self, measurement: &Measurement) -> Result<CachePlan, PlanError> {
        PlanRequest { measurement: Some(measurement), ..*self }.plan()
    }
}
