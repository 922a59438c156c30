//! Which managers hold the tensors of a plan: the paged pools alone, or with the state pools beside them.

use cacheplan_kernels::Backend;
use cacheplan_planner::CachePlan;

use super::kv::KvCacheManager;
use super::mamba::MambaCacheManager;
use super::pool::PoolTensor;
use crate::BookError;
use crate::book::{Indexing, Layout};
use crate::device::error::Result;

/// Holds the pools of a plan with states: those of its pages, and those of its slots.
#[derive(Debug)]
pub struct MambaHybridCacheManager {
    kv: KvCacheManager,
    mamba: MambaCacheManager,
}

impl MambaHybridCacheManager {
    /// The paged pools.
    pub fn kv(&self) -> &KvCacheManager {
        &self.kv
    }

    /// The state pools.
    pub fn mamba(&self) -> &MambaCacheManager {
        &self.mamba
    }
}

/// The manager that serves a plan.
#[derive(Debug)]
pub enum Manager {
    /// Of a plan without states.
    Kv(KvCacheManager),
    /// Of a plan with states.
    MambaHybrid(MambaHybridCacheManager),
}

/// The tensors of a plan.
#[derive(Debug)]
pub(super) struct Pools {
    pub(super) manager: Manager,
    pub(super) fixed: Vec<(usize, PoolTensor)>,
}

impl Pools {
    pub(super) fn allocate(plan: &CachePlan, layout: &Layout, on: &Backend) -> Result<Self> {
        let mut fixed = Vec::new();
        for (index, pool) in plan.pools.iter().enumerate() {
            if layout.indexing[index] == Indexing::Fixed {
                fixed.push((index, PoolTensor::allocate(pool, on)?));
            }
        }
        let kv = KvCacheManager::allocate(plan, layout, on)?;
        let states = layout.indexing.iter().any(|indexing| matches!(indexing, Indexing::Slots | Indexing::DraftRows));
        let manager = if states {
            let mamba = MambaCacheManager::allocate(plan, layout, on)?;
            Manager::MambaHybrid(MambaHybridCacheManager { kv, mamba })
        } else {
            Manager::Kv(kv)
        };
        Ok(Self { manager, fixed })
    }

    pub(super) fn kv(&self) -> &KvCacheManager {
        match &self.manager {
            Manager::Kv(kv) => kv,
            Manager::MambaHybrid(hybrid) => &hybrid.kv,
        }
    }

    pub(super) fn mamba(&self) -> Option<&MambaCacheManager> {
        match &self.manager {
            Manager::Kv(_) => None,
            Manager::MambaHybrid(hybrid) => Some(&hybrid.mamba),
        }
    }

    /// The state pools, for an operation on a state.
    pub(super) fn states(&self) -> Result<&MambaCacheManager, BookError> {
        self.mamba().ok_or_else(|| BookError::UnknownPool("slots".into()))
    }

    /// All pools with their index in the plan.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &PoolTensor)> {
        let states = self.mamba().into_iter().flat_map(MambaCacheManager::pools);
        self.kv().pools().chain(states).chain(self.fixed.iter().map(|(index, pool)| (*index, pool)))
    }

    /// As [`Pools::iter`], in the same order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut PoolTensor)> {
        let (kv, mamba) = match &mut self.manager {
            Manager::Kv(kv) => (kv, None),
            Manager::MambaHybrid(hybrid) => (&mut hybrid.kv, Some(&mut hybrid.mamba)),
        };
        let states = mamba.into_iter().flat_map(MambaCacheManager::pools_mut);
        kv.pools_mut().chain(states).chain(self.fixed.iter_mut().map(|(index, pool)| (*index, pool)))
    }
}
