//! What is asked of tiers.

use cacheplan_planner::{CachePlan, StoredStates};

use super::error::TiersError;
use crate::simulate::{Compute, Links, Policy};

/// A plan, and tiers below its device of which the smallest are sought.
#[derive(Clone, Copy)]
pub struct TiersQuestion<'a> {
    /// Whose caches the device has.
    pub plan: &'a CachePlan,
    /// Tokens per chunk of the model's scan.
    pub chunk: usize,
    /// How states are placed and evicted.
    pub policy: Policy,
    /// Requests that run at a time; as many as the plan admits, and at most 16, where absent.
    pub running: Option<usize>,
    /// The most host memory, in bytes; 0 for none.
    pub host: u64,
    /// The most disk, in bytes; 0 for none.
    pub disk: u64,
    /// How states are stored in host memory and on the disk; converting them is taken to cost nothing.
    pub stored: StoredStates,
    /// The hit rate to reach.
    pub target: Option<f64>,
    /// How fast tiers are read.
    pub links: Links,
    /// What computing takes at best; every load counts where absent.
    pub compute: Option<Compute<'a>>,
    /// The price of a GiB of host memory, and of one of the disk.
    pub prices: Option<[f64; 2]>,
}

impl TiersQuestion<'_> {
    /// No tier is larger.
    const MOST: u64 = 1 << 50;

    pub(super) fn validate(&self) -> Result<(), TiersError> {
        let refuse = |what, found: String, expected| Err(TiersError::Value { what, found, expected });
        for (what, bytes) in [("host", self.host), ("disk", self.disk)] {
            if bytes > Self::MOST {
                return refuse(what, format!("{bytes} bytes"), "at most 1 PiB");
            }
        }
        if let Some(target) = self.target.filter(|target| !(*target > 0.0 && *target <= 1.0)) {
            return refuse("target-hit", target.to_string(), "more than 0 and at most 1");
        }
        for (what, rate) in [("host-rate", self.links.host), ("disk-rate", self.links.disk)] {
            if !(rate.is_finite() && rate > 0.0) {
                return refuse(what, rate.to_string(), "bytes each second, more than 0,");
            }
        }
        if let Some(price) = self.prices.into_iter().flatten().find(|price| !(price.is_finite() && *price >= 0.0)) {
            return refuse("prices", price.to_string(), "at least 0");
        }
        if self.plan.stored_state_bytes(self.stored).is_none() {
            return refuse("stored-states", self.stored.to_string(), "what is smaller than the plan's own states");
        }
        for (what, count) in [("running", self.running), ("chunk", Some(self.chunk))] {
            if let Some(count) = count.filter(|count| !(1..=1 << 20).contains(count)) {
                return refuse(what, count.to_string(), "1 to 1048576");
            }
        }
        Ok(())
    }
}
