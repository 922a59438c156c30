//! What a plan is made from.

use cacheplan_transforms::{ModelInfo, Resources};
use serde::{Deserialize, Serialize};

use crate::{Budget, CachePlan, PlanError, plan};

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
