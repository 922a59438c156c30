//! What a plan gives to the prefix cache.

use cacheplan_handlers::Growth;
use cacheplan_planner::{CachePlan, Pool, Unit};

use super::config::{CheckpointFormat, TreeConfig};
use super::error::PrefixError;
use super::host::HostTier;
use super::shape::Shape;

/// The pools of a plan as the prefix cache uses them.
///
/// The tree knows one block per page of full attention, one per page of the sliding windows, and one state per
/// checkpoint. A plan may have several pools for each; then unit `k` of all of them together is unit `k` to the tree.
#[derive(Debug)]
pub(crate) struct Provision {
    /// Page, window, components, checkpoint format and host tier.
    pub(crate) tree: TreeConfig,
    /// Blocks of full attention, for running requests and the tree; 0 if the model has none.
    pub(crate) blocks: u32,
    /// Blocks of sliding windows, likewise.
    pub(crate) windows: u32,
    /// States that the tree may hold.
    pub(crate) checkpoints: u32,
    /// The bytes of each.
    pub(crate) shape: Shape,
}

impl Provision {
    /// Reads a plan. `chunk` is the number of tokens per chunk of the model's scan, which no plan states.
    ///
    /// # Errors
    /// [`PrefixError::Plan`] for pools that cannot share an index.
    pub(crate) fn of_plan(plan: &CachePlan, chunk: usize) -> Result<Self, PrefixError> {
        let paged = |windowed: bool| {
            plan.pools.iter().filter(move |pool| pool.unit == Unit::Block && pool.window.is_some() == windowed)
        };
        let full = Group::new(plan, paged(false).collect())?;
        let windows = Group::new(plan, paged(true).collect())?;
        let apart: Vec<&Pool> = plan.pools.iter().filter(|pool| pool.checkpoints_of.is_some()).collect();
        let checkpoints = if apart.is_empty() { CheckpointFormat::Native } else { CheckpointFormat::Int8 };
        let held = plan.pools.iter().filter(|pool| is_state(plan, pool)).collect();
        let states = Group::new(plan, if apart.is_empty() { held } else { apart })?;
        let pages: Vec<(&str, u64)> = [&full, &windows].into_iter().flat_map(Group::pages).collect();
        let page = pages.first().map_or(1, |(_, page)| *page);
        if let Some((pool, other)) = pages.iter().find(|(_, other)| *other != page) {
            return Err(PrefixError::Plan {
                pool: (*pool).to_owned(),
                what: "tokens per block",
                found: *other,
                expected: page,
            });
        }
        let host = plan.host.as_ref().map(|_| HostTier {
            blocks: full.host_units,
            slots: states.host_units,
            windows: windows.host_units,
        });
        let tree = TreeConfig {
            page: page as usize,
            chunk,
            window: windows.pools.iter().filter_map(|pool| pool.window).max().map(|window| window as usize),
            states: !states.pools.is_empty(),
            checkpoints,
            host,
            ..TreeConfig::default()
        };
        Ok(Self {
            tree,
            blocks: full.units,
            windows: windows.units,
            checkpoints: u32::try_from(plan.checkpoints()).unwrap_or(u32::MAX),
            shape: Shape {
                block_bytes: full.unit_bytes,
                window_bytes: windows.unit_bytes,
                state_bytes: states.unit_bytes,
            },
        })
    }
}

/// Pools whose unit `k` is one unit to the tree.
struct Group<'a> {
    pools: Vec<&'a Pool>,
    units: u32,
    host_units: u32,
    unit_bytes: usize,
}

impl<'a> Group<'a> {
    fn new(plan: &CachePlan, pools: Vec<&'a Pool>) -> Result<Self, PrefixError> {
        let least = |units: u64| u32::try_from(units).unwrap_or(u32::MAX);
        let host = |pool: &&Pool| {
            let share = plan.host.iter().flat_map(|host| &host.pools).find(|share| share.pool == pool.id);
            share.map_or(0, |share| share.units)
        };
        let unit_bytes = pools.iter().fold(0_u64, |sum, pool| sum.saturating_add(pool.unit_bytes));
        Ok(Self {
            units: least(pools.iter().map(|pool| pool.units.saturating_sub(pool.reserved)).min().unwrap_or(0)),
            host_units: least(pools.iter().map(host).min().unwrap_or(0)),
            unit_bytes: usize::try_from(unit_bytes).map_err(|_| PrefixError::Plan {
                pool: pools.first().map(|pool| pool.id.clone()).unwrap_or_default(),
                what: "bytes per unit",
                found: unit_bytes,
                expected: usize::MAX as u64,
            })?,
            pools,
        })
    }

    fn pages(&self) -> impl Iterator<Item = (&'a str, u64)> {
        self.pools.iter().filter_map(|pool| Some((pool.id.as_str(), pool.tokens_per_block?)))
    }
}

/// Whether a pool holds what a running sequence carries along.
fn is_state(plan: &CachePlan, pool: &Pool) -> bool {
    let growth = |name: &str| plan.resource(name).map(|resource| resource.handler.growth());
    pool.checkpoints_of.is_none()
        && pool
            .members
            .iter()
            .any(|member| matches!(growth(&member.resource), Some(Growth::PerSequence | Growth::PerSlotToken)))
}
