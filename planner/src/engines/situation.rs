//! What an engine's rules look at, and how they say that it is too little.

use cacheplan_transforms::ModelInfo;

use super::caches::Caches;
use super::version::Version;
use crate::budget::{Budget, EngineOptions};
use crate::device::DeviceInfo;
use crate::error::{PlanError, Shortfall, Suggestion};
use crate::solver::demand::Load;
use crate::solver::step::StepBytes;
use crate::stated::Stated;

/// Everything that an engine's rules look at.
#[derive(Clone)]
pub(crate) struct Situation<'a> {
    /// The caches of this rank.
    pub(super) caches: Caches<'a>,
    /// What the ranks of each pipeline stage hold, and which of them this one is.
    pub(super) stages: Vec<Stage<'a>>,
    pub(super) stage: usize,
    /// Lengths in this engine's page sizes are derived from this.
    pub(super) load: Load,
    pub(super) options: &'a EngineOptions,
    pub(super) budget: &'a Budget,
    /// The device, where one is stated.
    pub(super) device: Option<&'a DeviceInfo>,
    pub(super) model: &'a ModelInfo,
    /// Bytes for caches; `None` if the budget states none.
    pub(super) bytes: Option<u64>,
    pub(super) draft_tokens: u64,
    /// Of a step, where the layers were read.
    pub(super) step: Option<StepBytes>,
    pub(super) version: Version,
    /// In whose words a change is suggested.
    pub(super) stated: Stated,
}

/// What a rank of one pipeline stage holds.
#[derive(Clone)]
pub(super) struct Stage<'a> {
    pub(super) caches: Caches<'a>,
    pub(super) bytes: Option<u64>,
}

impl Situation<'_> {
    pub(super) fn bytes(&self) -> Result<u64, PlanError> {
        let missing = "an engine divides bytes: state `[memory]` (--memory-bytes), a device (--device-memory), or its own cache bytes (--cache-bytes)";
        self.bytes.ok_or_else(|| PlanError::Budget(missing.into()))
    }

    /// The same of a rank that held all stages.
    pub(super) fn of_all_stages(&self) -> Self {
        let mut all = self.clone();
        all.caches = Caches::together(self.stages.iter().map(|stage| &stage.caches));
        all
    }

    /// The same on a rank of each stage.
    pub(super) fn of_each_stage(&self) -> impl Iterator<Item = Self> {
        self.stages.iter().cloned().enumerate().map(|(stage, Stage { caches, bytes })| Self {
            caches,
            bytes,
            stage,
            ..self.clone()
        })
    }

    pub(super) fn prefix_caching(&self) -> bool {
        self.options.prefix_caching.unwrap_or(false)
    }

    /// The same, where a sequence needs `needed` bytes and one of `longest` tokens would fit.
    pub(super) fn too_long(&self, what: &str, needed: u128, longest: u64) -> PlanError {
        let mut error = self.does_not_fit(what);
        if let PlanError::DoesNotFit(shortfall) = &mut error {
            shortfall.needed = u64::try_from(needed).unwrap_or(u64::MAX);
            let change = self.stated.setting("max_seq_len", &longest.to_string());
            let bytes = self.bytes.unwrap_or(0);
            shortfall.suggestions.extend((longest > 0).then_some(Suggestion { change, sequences: 1, bytes }));
        }
        error
    }

    /// Not one sequence: `what` is too small.
    pub(super) fn does_not_fit(&self, what: &str) -> PlanError {
        PlanError::DoesNotFit(Box::new(Shortfall {
            sequences: 1,
            max_seq_len: self.load.max_seq_len,
            needed: 0,
            available: self.bytes.unwrap_or(0),
            shortfall: 0,
            capped_by: what.into(),
            overdrawn: None,
            suggestions: Vec::new(),
        }))
    }
}
