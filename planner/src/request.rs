//! What a plan is made from.

use std::borrow::Cow;

use cacheplan_transforms::{ModelInfo, Resources};
use serde::{Deserialize, Serialize};

use crate::speculation;
use crate::{Agreement, Budget, CachePlan, DeviceInfo, Parallel, PlanError, Speculation, plan, ranks};

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
    /// The draft model, where speculation has one.
    pub draft: Option<Draft<'a>>,
    /// The pipeline stage to plan for; 0 without pipeline parallelism.
    pub stage: u32,
    /// What all ranks can serve; [`crate::plan_ranks`] finds it.
    pub agreement: Option<Agreement>,
}

/// A model that drafts what another verifies, on the same ranks.
///
/// Its caches are planned with those of the other, named `draft.…`. Its layers and weights are divided over the ranks as
/// the other's are; with fewer layers than pipeline stages the last stages hold nothing of it.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// What is known of it besides its caches.
    pub model: &'a ModelInfo,
    /// Its caches.
    pub resources: &'a Resources,
}

impl<'a> PlanRequest<'a> {
    /// A request for one device that nobody described.
    pub const fn new(model: &'a ModelInfo, resources: &'a Resources, budget: &'a Budget) -> Self {
        Self { model, resources, budget, device: None, measurement: None, draft: None, stage: 0, agreement: None }
    }

    /// The caches that one rank holds: those of the model with its speculation, divided over the ranks.
    pub(crate) fn held(&self) -> Result<Cow<'a, Resources>, PlanError> {
        self.divided(|speculation| speculation::extend(self.resources, speculation, self.model.dtype))
    }

    /// The same without what speculation adds to states, for which every engine has its own buffers.
    pub(crate) fn held_by_engine(&self) -> Result<Cow<'a, Resources>, PlanError> {
        self.divided(|speculation| speculation::with_head(self.resources.clone().into(), speculation))
    }

    fn divided(
        &self,
        speculate: impl FnOnce(&Speculation) -> Result<Resources, PlanError>,
    ) -> Result<Cow<'a, Resources>, PlanError> {
        let all = match &self.budget.speculation {
            Some(speculation) => Cow::Owned(speculate(speculation)?),
            None if self.draft.is_some() => {
                let reason = "a draft model is given, but `[speculation]` (--draft-tokens) is not";
                return Err(PlanError::Budget(reason.into()));
            }
            None => Cow::Borrowed(self.resources),
        };
        let parallel = self.budget.parallel;
        if parallel != Parallel::default() {
            parallel.refuse_stage(self.stage, self.model.layers)?;
        }
        let of_rank = |resources: Cow<'a, Resources>, layers: u32| match parallel == Parallel::default() {
            true => Ok(resources),
            false => ranks::split(&resources, layers, parallel, self.stage).map(Cow::Owned),
        };
        let held = of_rank(all, self.model.layers)?;
        let Some(draft) = self.draft else { return Ok(held) };
        let drafting = of_rank(Cow::Borrowed(draft.resources), draft.model.layers)?;
        speculation::with_draft(held.into_owned(), &drafting).map(Cow::Owned)
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

/// The plan for what was measured: `paged = (free - states - forward) * fraction`, the rest as before.
///
/// # Errors
/// As [`plan`].
pub fn resize(request: &PlanRequest<'_>, measurement: &Measurement) -> Result<CachePlan, PlanError> {
    plan(&PlanRequest { measurement: Some(measurement), ..*request })
}
