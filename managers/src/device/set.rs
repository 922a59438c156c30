//! Everything that a plan allocates on one device, from allocation over resizes to shutdown.

use cacheplan_kernels::Backend;
use cacheplan_planner::{CachePlan, Owner};
use serde::Serialize;

use super::host::HostMemory;
use super::hybrid::Pools;
use super::manager::CacheManager;
use super::prefix::PrefixHost;
use crate::ManagerError;
use crate::book::{CacheBook, Windows};
use crate::device::error::Result;
use crate::prefix::{PrefixReuse, Strategy};

/// The pools of one plan on one device.
#[derive(Debug)]
pub struct CacheSet {
    plan: CachePlan,
    windows: Windows,
    on: Backend,
    generation: u32,
    /// Absent after a shutdown.
    manager: Option<CacheManager>,
}

/// Planned beside actual bytes of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolBytes {
    /// The pool.
    pub id: String,
    /// Bytes that the plan gives it.
    pub planned_bytes: u64,
    /// Bytes that the allocator or the device counted for it; absent if nobody counts.
    pub actual_bytes: Option<u64>,
}

impl CacheSet {
    /// Allocates every pool of a plan, zeroed.
    ///
    /// # Errors
    /// A plan that contradicts itself, or a device without the memory.
    pub fn allocate(plan: &CachePlan, on: impl Into<Backend>) -> Result<Self> {
        Self::with_windows(plan, Windows::Sliding, on)
    }

    /// As [`CacheSet::allocate`] with a choice for windowed pools.
    ///
    /// # Errors
    /// As [`CacheSet::allocate`].
    pub fn with_windows(plan: &CachePlan, windows: Windows, on: impl Into<Backend>) -> Result<Self> {
        let mut set = Self { plan: plan.clone(), windows, on: on.into(), generation: 0, manager: None };
        set.assemble(plan, CacheBook::with_windows(plan, windows)?, HostMemory::default())?;
        Ok(set)
    }

    /// The manager.
    ///
    /// # Errors
    /// [`ManagerError::ShutDown`] after a shutdown.
    pub fn manager(&self) -> Result<&CacheManager> {
        self.manager.as_ref().ok_or(ManagerError::ShutDown)
    }

    /// The manager, for changes.
    ///
    /// # Errors
    /// [`ManagerError::ShutDown`] after a shutdown.
    pub fn manager_mut(&mut self) -> Result<&mut CacheManager> {
        self.manager.as_mut().ok_or(ManagerError::ShutDown)
    }

    /// A prefix cache over the pools, with the memory of its host tier; what an earlier one had there is given up.
    ///
    /// # Errors
    /// As [`PrefixReuse::new`]; no memory.
    pub fn prefix_reuse(&mut self, strategy: Strategy) -> Result<PrefixReuse> {
        self.prefix_reuse_for(strategy, vec![1], 0)
    }

    /// As [`CacheSet::prefix_reuse`] with the relative shares of several tenants, and room in the host tier that is left
    /// for so many offloaded sequences.
    ///
    /// # Errors
    /// As [`PrefixReuse::for_tenants`].
    pub fn prefix_reuse_for(&mut self, strategy: Strategy, tenants: Vec<u32>, offloaded: u64) -> Result<PrefixReuse> {
        let manager = self.manager.as_mut().ok_or(ManagerError::ShutDown)?;
        manager.settle()?;
        let mut plan = self.plan.clone();
        if let Some(host) = &mut plan.host {
            let left = host.sequences.saturating_sub(offloaded);
            for pool in &mut host.pools {
                pool.units = pool.units.saturating_mul(left) / host.sequences.max(1);
            }
        }
        // Refused while another one has the host tier.
        let reuse = PrefixReuse::for_tenants(&plan, &mut manager.book, strategy, tenants)?;
        manager.host.prefixes = PrefixHost::default();
        if let Some(tier) = reuse.host() {
            manager.host.prefixes = PrefixHost::allocate(manager.kv(), manager.mamba(), manager.book.layout(), tier)?;
        }
        Ok(reuse)
    }

    /// Bytes of host memory that prefixes take.
    ///
    /// # Errors
    /// [`ManagerError::ShutDown`] after a shutdown.
    pub fn prefix_host_bytes(&self) -> Result<u64> {
        Ok(self.manager()?.host.prefixes.bytes())
    }

    /// The plan that was allocated last.
    pub fn plan(&self) -> &CachePlan {
        &self.plan
    }

    /// Names of the resources that no manager owns, in the plan's order.
    pub fn unmanaged(&self) -> impl Iterator<Item = &str> {
        let local = self.plan.resources.iter().filter(|resource| resource.owner == Owner::Local);
        local.map(|resource| resource.name.as_str())
    }

    /// Planned beside actual bytes of every pool, in the plan's order.
    ///
    /// # Errors
    /// [`ManagerError::ShutDown`] after a shutdown.
    pub fn bytes(&self) -> Result<Vec<PoolBytes>> {
        let mut pools: Vec<_> = self.manager()?.pools().collect();
        pools.sort_unstable_by_key(|(index, _)| *index);
        let bytes = pools.into_iter().map(|(_, pool)| PoolBytes {
            id: pool.id.clone(),
            planned_bytes: pool.planned_bytes,
            actual_bytes: pool.actual_bytes,
        });
        Ok(bytes.collect())
    }

    /// Replaces the pools by those of another plan, and makes every route stale.
    ///
    /// The old pools are freed before the new ones are allocated, so that the peak is the larger of the two.
    ///
    /// # Errors
    /// Pools in which something lives, or offloaded sequences that do not fit the plan; then nothing has changed.
    /// A plan that cannot be allocated; then the pools are as before but for routes, which are stale. Only if the
    /// device does not give back what it had just freed, the set is shut down.
    pub fn resize(&mut self, plan: &CachePlan) -> Result<()> {
        // Proves the plan before anything is given up.
        let fresh = CacheBook::with_windows(plan, self.windows)?;
        if let Some(manager) = &self.manager {
            manager.book().ensure_idle()?;
            manager.check_offloaded(&fresh)?;
        }
        self.replace(plan, fresh)
    }

    /// Gives up the pools for those of `plan`, or for new ones as they were.
    fn replace(&mut self, plan: &CachePlan, fresh: CacheBook) -> Result<()> {
        self.generation += 1;
        let Some(manager) = self.manager.take() else {
            return self.assemble(plan, fresh, HostMemory::default());
        };
        let (book, host) = manager.into_parts();
        match Pools::allocate(plan, fresh.layout(), &self.on) {
            Ok(pools) => {
                self.adopt(plan.clone(), book.replaced_by(fresh), pools, host);
                Ok(())
            }
            Err(error) => {
                self.assemble(&self.plan.clone(), book, host)?;
                Err(error)
            }
        }
    }

    /// Moves capacity between the pools while sequences live in them: `plan` has the same pools with other units.
    ///
    /// Units keep their numbers and sequences stay as they are; routes become stale. On the CPU a pool's memory itself
    /// grows or shrinks; elsewhere what is held in a pool waits in host memory, so that no pool is there twice.
    /// Pools that shrink come first, so that the device never holds more than before or after.
    ///
    /// # Errors
    /// A plan with other pools, or units in use that would be cut off; nothing has changed then.
    /// A device without the memory for a pool: what has moved stays moved, and the smaller of both sizes holds.
    pub fn rebalance(&mut self, plan: &CachePlan) -> Result<()> {
        self.generation += 1;
        let generation = self.generation;
        self.manager_mut()?.rebalance(plan, generation)?;
        self.plan = plan.clone();
        Ok(())
    }

    /// Moves every pool, unmanaged ones included, to another device; sequences stay as they are, routes become stale.
    ///
    /// The old pools are freed when all the new ones are there and filled.
    ///
    /// # Errors
    /// A device without the memory, or one that fails; then nothing has changed.
    pub fn to_device(&mut self, on: impl Into<Backend>) -> Result<()> {
        let on = on.into();
        if on.device().same_device(&self.on.device()) {
            return self.manager().map(|_| ());
        }
        self.move_to(on)
    }

    pub(super) fn move_to(&mut self, on: Backend) -> Result<()> {
        let generation = self.generation + 1;
        self.manager_mut()?.move_to(&on, generation)?;
        (self.generation, self.on) = (generation, on);
        Ok(())
    }

    /// Allocates the pools of a plan for books that suit it.
    fn assemble(&mut self, plan: &CachePlan, book: CacheBook, host: HostMemory) -> Result<()> {
        let allocation = tracing::debug_span!("allocation", pools = plan.pools.len(), generation = self.generation);
        let pools = allocation.in_scope(|| Pools::allocate(plan, book.layout(), &self.on))?;
        self.adopt(plan.clone(), book, pools, host);
        Ok(())
    }

    fn adopt(&mut self, plan: CachePlan, book: CacheBook, pools: Pools, host: HostMemory) {
        let manager = CacheManager::new(plan.manager, book, pools, host, self.generation);
        self.manager = Some(manager);
        self.plan = plan;
    }

    /// Frees every pool. Handles and routes are errors from now on; [`CacheSet::resize`] allocates anew.
    ///
    /// # Errors
    /// Pools in which something lives; then nothing has changed.
    pub fn shutdown(&mut self) -> Result<()> {
        self.manager()?.book().ensure_idle()?;
        self.manager = None;
        Ok(())
    }
}
