//! What a plan is made from.

use std::borrow::Cow;

use cacheplan_transforms::{ModelInfo, Resources};
use serde::{Deserialize, Serialize};

use crate::speculation;
use crate::{Agreement, Budget, CachePlan, Parallel, PlanError, Speculation, plan, ranks};

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
    /// The draft model's caches, where it has its own.
    pub draft: Option<&'a Resources>,
    /// The pipeline stage to plan for; 0 without pipeline parallelism.
    pub stage: u32,
    /// What all ranks can serve; [`crate::plan_ranks`] finds it.
    pub agreement: Option<Agreement>,
}

impl<'a> PlanRequest<'a> {
    /// A request for one device that nobody described.
    pub const fn new(model: &'a ModelInfo, resources: &'a Resources, budget: &'a Budget) -> Self {
        Self { model, resources, budget, device: None, measurement: None, draft: None, stage: 0, agreement: None }
    }

    /// The caches that one rank holds: those of the model with its speculation, divided over the ranks.
    pub(crate) fn held(&self) -> Result<Cow<'a, Resources>, PlanError> {
        self.divided(|speculation| speculation::extend(self.resources, speculation, self.draft, self.model.dtype))
    }

    /// The same without what speculation adds to states, for which every engine has its own buffers.
    pub(crate) fn held_by_engine(&self) -> Result<Cow<'a, Resources>, PlanError> {
        self.divided(|speculation| speculation::with_drafts(self.resources.clone().into(), speculation, self.draft))
    }

    fn divided(
        &self,
        speculate: impl FnOnce(&Speculation) -> Result<Resources, PlanError>,
    ) -> Result<Cow<'a, Resources>, PlanError> {
        let mut held = Cow::Borrowed(self.resources);
        if let Some(speculation) = &self.budget.speculation {
            held = Cow::Owned(speculate(speculation)?);
        } else if self.draft.is_some() {
            return Err(PlanError::Budget(
                "a draft model is given, but `[speculation]` (--draft-tokens) is not".into(),
            ));
        }
        if self.budget.parallel != Parallel::default() {
            held = Cow::Owned(ranks::split(&held, self.model.layers, self.budget.parallel, self.stage)?);
        }
        Ok(held)
    }
}

/// A device, as someone who may read it described it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// `NVIDIA H200`, `cpu`.
    pub name: String,
    /// All its memory, in bytes.
    pub total_bytes: u64,
    /// What is free before the model's weights are loaded, in bytes.
    pub free_bytes: u64,
    /// What sort of memory it has.
    pub kind: DeviceKind,
}

/// What sort of memory a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The host's own memory.
    Cpu,
    /// A GPU with memory of its own.
    Cuda,
    /// A GPU that shares the host's memory.
    Integrated,
}

/// What a profiled forward showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measurement {
    /// Bytes that stay resident without the caches: weights and what the process needs.
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
