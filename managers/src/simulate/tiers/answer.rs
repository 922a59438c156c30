//! What was found of tiers.

use cacheplan_planner::StoredStates;
use serde::Serialize;

use super::sizes::{Sizes, Split};
use crate::simulate::{Links, Moved};

/// One replay of the trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierPoint {
    /// Bytes of each tier, by kind.
    pub sizes: Sizes,
    /// How the device is divided.
    pub device_split: Split,
    /// How host memory and disk are divided.
    pub lower_split: Split,
    /// Tokens between two states that a prompt leaves.
    pub distance: usize,
    /// How states are stored below the device.
    pub stored: StoredStates,
    /// Tokens that were not computed over prompt tokens.
    pub hit_rate: f64,
    /// Prompt tokens that were not computed.
    pub hit_tokens: u64,
    /// What went over the links.
    pub moved: Moved,
}

impl TierPoint {
    /// Sums host memory.
    #[must_use]
    pub fn host(&self) -> u64 {
        self.sizes.host.bytes()
    }

    /// Sums the disk.
    #[must_use]
    pub fn disk(&self) -> u64 {
        self.sizes.disk.bytes()
    }
}

/// What more room brings in one place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// Which: `host states`.
    pub place: &'static str,
    /// Bytes that were added for the measurement.
    pub added: u64,
    /// How much of the hit rate a GiB of them brought on average.
    pub per_gib: f64,
}

/// The smallest tiers that do, and how it was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TiersAnswer {
    /// Requests that were replayed.
    pub requests: usize,
    /// Requests that are longer than the plan serves, and were left out.
    pub left_out: usize,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Tokens per page, at which prefixes end.
    pub page: usize,
    /// Bytes of a page, of a page of windows, and of a state.
    pub unit_bytes: [usize; 3],
    /// Bytes of a state below the device.
    pub stored_state_bytes: usize,
    /// Requests that run at a time.
    pub running: usize,
    /// How fast tiers are read.
    pub links: Links,
    /// Whether a tier counts only where loading beats computing.
    pub bounded: bool,
    /// The hit rate with room for everything.
    pub ceiling: f64,
    /// The device alone, divided as the plan has it.
    pub planned: TierPoint,
    /// Hit rates by growing tiers: the device alone, then host memory, then the disk.
    pub curve: Vec<TierPoint>,
    /// The hit rate that was asked for.
    pub target: Option<f64>,
    /// The smallest tiers that reach the target; without one, those after which more brings less than a hundredth.
    pub chosen: Option<TierPoint>,
    /// What more room brings beside the chosen tiers, or the largest where none does.
    pub gains: Vec<Gain>,
    /// The same tiers with states at other distances.
    pub distances: Vec<TierPoint>,
    /// The same tiers with states stored otherwise below the device.
    pub storages: Vec<TierPoint>,
    /// Price of the chosen tiers, where prices were stated.
    pub price: Option<f64>,
    /// How often the trace was replayed.
    pub replays: usize,
}

impl TiersAnswer {
    /// The tiers that the answer is about: the chosen, or the largest.
    #[must_use]
    pub fn point(&self) -> &TierPoint {
        self.chosen.as_ref().or(self.curve.last()).unwrap_or(&self.planned)
    }
}
