//! What to simulate.

use cacheplan_planner::CachePlan;
use serde::{Deserialize, Serialize};

use crate::prefix::{CheckpointFormat, Eviction, HostTier, PrefixError, Provision, Strategy};

/// A way to place and to evict checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// [`Strategy::NO_BUFFER`], least recently used state first.
    NoBuffer,
    /// [`Strategy::double_buffered`] with an interval of 256, least recently used state first.
    DoubleBuffered,
    /// [`Strategy::complete`] with an interval of 64, least recently used state first.
    CompleteLru,
    /// [`Strategy::complete`], least coverage first.
    Coverage,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NoBuffer, Self::DoubleBuffered, Self::CompleteLru, Self::Coverage];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoBuffer => "no-buffer",
            Self::DoubleBuffered => "double-buffered",
            Self::CompleteLru => "complete-lru",
            Self::Coverage => "coverage",
        }
    }

    pub(super) fn strategy(self) -> Strategy {
        match self {
            Self::NoBuffer => Strategy::NO_BUFFER,
            Self::DoubleBuffered => Strategy::double_buffered(256),
            Self::CompleteLru | Self::Coverage => Strategy::complete(Some(64)),
        }
    }

    pub(super) fn eviction(self) -> Eviction {
        if self == Self::Coverage { Eviction::Coverage } else { Eviction::Lru }
    }
}

/// Sizes and policies of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// How checkpoints are placed and evicted.
    pub policy: Policy,
    /// Slots for states in the tree, beside those of running requests. `None`: as many as it takes.
    pub checkpoints: Option<usize>,
    /// Whether the model has states. Without them every page of resident KV is a hit.
    pub states: bool,
    /// How states lie in the tree.
    pub format: CheckpointFormat,
    /// Host memory for what the device has no room for.
    pub host: Option<HostTier>,
    /// Tokens that the KV pool holds, for running requests and for the tree. `None`: as many as it takes.
    pub kv_tokens: Option<usize>,
    /// Tokens per KV block.
    pub page: usize,
    /// Tokens per chunk of the model's scan.
    pub chunk: usize,
    /// Tokens per forward of a prefill.
    pub prefill_chunk: usize,
    /// Requests that run at a time: each ends when so many later ones have been prefilled.
    pub concurrency: usize,
    /// Tenants with equal shares.
    pub tenants: u16,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            policy: Policy::Coverage,
            checkpoints: Some(64),
            states: true,
            format: CheckpointFormat::Native,
            host: None,
            kv_tokens: None,
            page: 1,
            chunk: 64,
            prefill_chunk: 8192,
            concurrency: 4,
            tenants: 1,
        }
    }
}

impl Scenario {
    /// The sizes that a plan gives. `chunk` is the model's. Sliding windows are taken to be there.
    ///
    /// # Errors
    /// Pools that cannot share an index.
    pub fn of_plan(plan: &CachePlan, chunk: usize) -> Result<Self, PrefixError> {
        let Provision { tree, blocks, checkpoints, .. } = Provision::of_plan(plan, chunk)?;
        Ok(Self {
            checkpoints: Some(checkpoints as usize),
            states: tree.states,
            format: tree.checkpoints,
            host: tree.host,
            kv_tokens: Some((blocks as usize).saturating_mul(tree.page)).filter(|&tokens| tokens > 0),
            page: tree.page,
            chunk,
            prefill_chunk: usize::try_from(plan.limits.max_num_tokens.max(1)).unwrap_or(usize::MAX),
            concurrency: usize::try_from(plan.slots.live.max(1)).unwrap_or(usize::MAX),
            ..Self::default()
        })
    }
}
