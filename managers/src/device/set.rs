//! Everything that a plan allocates on one device, from allocation over resizes to shutdown.

use cacheplan_planner::{CachePlan, Owner};
use candle_core::Device;
use serde::Serialize;

use super::hybrid::MambaHybridCacheManager;
use crate::ManagerError;
use crate::book::CacheBook;

/// The pools of one plan on one device.
#[derive(Debug)]
pub struct CacheSet {
    plan: CachePlan,
    device: Device,
    generation: u32,
    /// Absent after a shutdown.
    manager: Option<MambaHybridCacheManager>,
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
    pub fn allocate(plan: &CachePlan, device: &Device) -> Result<Self, ManagerError> {
        let manager = MambaHybridCacheManager::allocate(plan, CacheBook::new(plan)?, device, 0)?;
        Ok(Self { plan: plan.clone(), device: device.clone(), generation: 0, manager: Some(manager) })
    }

    /// The manager.
    ///
    /// # Errors
    /// [`ManagerError::ShutDown`] after a shutdown.
    pub fn manager(&self) -> Result<&MambaHybridCacheManager, ManagerError> {
        self.manager.as_ref().ok_or(ManagerError::ShutDown)
    }

    /// The manager, for changes.
    ///
    /// # Errors
    /// [`ManagerError::ShutDown`] after a shutdown.
    pub fn manager_mut(&mut self) -> Result<&mut MambaHybridCacheManager, ManagerError> {
        self.manager.as_mut().ok_or(ManagerError::ShutDown)
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
    pub fn bytes(&self) -> Result<Vec<PoolBytes>, ManagerError> {
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
    /// Pools in which something lives; then nothing has changed.
    /// A plan that cannot be allocated; then the set is shut down.
    pub fn resize(&mut self, plan: &CachePlan) -> Result<(), ManagerError> {
        // Proves the plan before anything is given up.
        let mut book = CacheBook::new(plan)?;
        if let Some(manager) = &self.manager {
            manager.book().ensure_idle()?;
        }
        if let Some(manager) = self.manager.take() {
            book = manager.into_book().replaced_by(book);
        }
        self.generation += 1;
        self.manager = Some(MambaHybridCacheManager::allocate(plan, book, &self.device, self.generation)?);
        self.plan = plan.clone();
        Ok(())
    }

    /// Frees every pool. Handles and routes are errors from now on; [`CacheSet::resize`] allocates anew.
    ///
    /// # Errors
    /// Pools in which something lives; then nothing has changed.
    pub fn shutdown(&mut self) -> Result<(), ManagerError> {
        self.manager()?.book().ensure_idle()?;
        self.manager = None;
        Ok(())
    }
}
