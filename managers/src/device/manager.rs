//! Books and tensors together: one handle owns a sequence's blocks and slot.

use std::sync::atomic::{AtomicU64, Ordering};

use cacheplan_handlers::Kind;
use cacheplan_kernels::Backend;
use cacheplan_planner::{CachePlan, ManagerKind};
use candle_core::Tensor;

use super::host::HostMemory;
use super::hybrid::{Manager, Pools};
use super::kv::{KvCacheManager, KvLayer};
use super::mamba::{MambaCacheManager, StateLayer};
use super::pool::PoolTensor;
use crate::book::{CacheBook, PoolIndex, PoolOp, SequenceId};
use crate::device::error::Result;
use crate::{BookError, ManagerError};

/// Serves the sequences of a plan: its books, and the pools behind them, with a [`KvCacheManager`] alone or a
/// [`MambaHybridCacheManager`](super::MambaHybridCacheManager).
///
/// Every operation first asks the books, which refuse it whole or accept it whole, and then executes on the pools
/// what the books decided. If the device fails at that, the books take the operation back; sequences whose contents
/// it was changing in place are lost with [`ManagerError::ContentsLost`] and count as preempted.
#[derive(Debug)]
pub struct CacheManager {
    pub(super) book: CacheBook,
    pub(super) pools: Pools,
    pub(super) host: HostMemory,
    kind: ManagerKind,
    /// Of all that this process has made, which one it is.
    number: u64,
    generation: u32,
}

/// Locates a layer's cache, until the pools are re-created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    place: PoolIndex,
    generation: u32,
}

impl CacheManager {
    pub(super) fn new(kind: ManagerKind, book: CacheBook, pools: Pools, host: HostMemory, generation: u32) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { book, pools, host, kind, number, generation }
    }

    /// Which manager the plan names.
    pub fn kind(&self) -> ManagerKind {
        self.kind
    }

    /// The manager that holds the pools.
    pub fn manager(&self) -> &Manager {
        &self.pools.manager
    }

    /// The paged pools.
    pub fn kv(&self) -> &KvCacheManager {
        self.pools.kv()
    }

    /// The state pools, in plans that have any.
    pub fn mamba(&self) -> Option<&MambaCacheManager> {
        self.pools.mamba()
    }

    /// The bookkeeping, to look at.
    pub fn book(&self) -> &CacheBook {
        &self.book
    }

    /// Changes the books directly, as prefix caches do, and executes on the pools what follows from it.
    ///
    /// Since the caller's own records move with it, a change stands even if the device fails: what is left is executed
    /// before the next operation, and until then the pools cannot be borrowed.
    ///
    /// # Errors
    /// What `change` refuses, or a failing device.
    pub fn with_book<R>(&mut self, change: impl FnOnce(&mut CacheBook) -> Result<R, BookError>) -> Result<R> {
        self.settle()?;
        let result = change(&mut self.book);
        self.settle()?;
        Ok(result?)
    }

    /// Where the cache of a kind of an absolute layer lies.
    ///
    /// # Errors
    /// A layer without one.
    pub fn route(&self, layer: u32, kind: &Kind) -> Result<Route> {
        let place = self.book.layout().place(layer, kind);
        let place = place.ok_or_else(|| ManagerError::UnknownLayer { layer, kind: kind.clone() })?;
        Ok(Route { place, generation: self.generation })
    }

    /// Where the resource called `name` lies.
    ///
    /// # Errors
    /// An unknown name.
    pub fn route_of(&self, name: &str) -> Result<Route> {
        let place = self.book.layout().place_of(name);
        let place = place.ok_or_else(|| ManagerError::UnknownResource(name.to_owned()))?;
        Ok(Route { place, generation: self.generation })
    }

    /// A layer's part of a paged pool, for the duration of a kernel call.
    ///
    /// # Errors
    /// A route from before a resize, or to something that is not paged.
    pub fn kv_layer(&self, route: Route) -> Result<KvLayer<'_>> {
        self.pools.kv().layer(self.current(route)?)
    }

    /// A layer's part of a state pool, for the duration of a kernel call.
    ///
    /// # Errors
    /// A route from before a resize, or to something that is no state.
    pub fn state_layer(&self, route: Route) -> Result<StateLayer<'_>> {
        self.pools.states()?.layer(self.current(route)?)
    }

    /// A fixed tensor `[1, elems]`, for the duration of a kernel call.
    ///
    /// # Errors
    /// A route from before a resize, or to something that is not fixed.
    pub fn fixed(&self, route: Route) -> Result<&Tensor> {
        let place = self.current(route)?;
        let found = self.pools.fixed.iter().find(|(index, _)| *index == place.pool);
        Ok(found.map(|(_, pool)| &pool.tensor).ok_or_else(|| BookError::UnknownPool(place.pool.to_string()))?)
    }

    /// Counts how many times the pools were re-created.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns what tells these pools, where they lie now, from all others of this process.
    pub fn identity(&self) -> (u64, u32) {
        (self.number, self.generation)
    }

    /// All pools with their index in the plan.
    pub(super) fn pools(&self) -> impl Iterator<Item = (usize, &PoolTensor)> {
        self.pools.iter()
    }

    /// The books and the host tier, for pools that are made anew; these are freed.
    pub(super) fn into_parts(self) -> (CacheBook, HostMemory) {
        (self.book, self.host)
    }

    /// Gives every pool the units of `plan`, contents kept; sequences stay as they are.
    ///
    /// Pools that shrink come first.
    pub(super) fn rebalance(&mut self, plan: &CachePlan, generation: u32) -> Result<()> {
        self.settle()?;
        let layout = self.book.shrink_to(plan)?;
        self.generation = generation;
        let Self { book, pools, .. } = self;
        let mut pools: Vec<_> = pools.iter_mut().collect();
        pools.sort_by_key(|(index, pool)| plan.pools[*index].bytes > pool.planned_bytes);
        for (index, pool) in pools {
            let held = book.held_units(layout.indexing[index]);
            pool.resize(&plan.pools[index], held.as_deref())?;
        }
        self.book.grow_to(layout);
        Ok(())
    }

    /// Moves every pool to `on`, all of them or none; sequences stay as they are.
    pub(super) fn move_to(&mut self, on: &Backend, generation: u32) -> Result<()> {
        self.settle()?;
        let indexing = &self.book.layout().indexing;
        let moved = self.pools().map(|(index, pool)| {
            let held = self.book.held_units(indexing[index]);
            pool.moved_to(on, held.as_deref())
        });
        let moved = moved.collect::<Result<Vec<_>, _>>()?;
        self.pools.iter_mut().zip(moved).for_each(|((_, pool), moved)| *pool = moved);
        self.generation = generation;
        Ok(())
    }

    pub(super) fn current(&self, route: Route) -> Result<PoolIndex> {
        if route.generation != self.generation {
            return Err(ManagerError::StaleRoute { found: route.generation, current: self.generation });
        }
        self.ready()?;
        Ok(route.place)
    }

    /// Refuses to look at pools that the device left behind the books.
    pub(super) fn ready(&self) -> Result<()> {
        match self.book.ops.len() {
            0 => Ok(()),
            ops => Err(ManagerError::Unfinished { ops }),
        }
    }

    /// Executes what an earlier failure of the device left to be done.
    pub(super) fn settle(&mut self) -> Result<()> {
        let ops = self.book.take_ops();
        for (done, op) in ops.iter().enumerate() {
            match (self.run(op), op) {
                (Ok(()), _) => {}
                // Trying again would not help; prefix caches drop what they have there.
                (Err(ManagerError::NotQuantisable { .. }), PoolOp::StoreCheckpoint { to, .. }) => {
                    self.pools.states()?.spoil(*to)?;
                    self.book.spoil(*to);
                }
                (Err(error), _) => {
                    self.book.ops = ops[done..].to_vec();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Executes what an operation queued, all of it into units that nobody held before; without it, `undo` takes the
    /// operation back. What cached prefixes moved on that occasion stays to be made.
    pub(super) fn execute(
        &mut self,
        undo: impl FnOnce(&mut CacheBook, &[PoolOp]) -> Result<(), BookError>,
    ) -> Result<()> {
        let ops = self.book.take_ops();
        let failed = ops.iter().enumerate().find_map(|(at, op)| Some((at, self.run(op).err()?)));
        let Some((at, error)) = failed else { return Ok(()) };
        undo(&mut self.book, &ops)?;
        self.book.ops = ops[at..].iter().filter(|op| op.is_for_prefixes()).cloned().collect();
        Err(error)
    }

    /// Executes what an operation queued on the contents of a sequence; without it, the sequence is lost.
    pub(super) fn execute_in_place(&mut self, sequence: SequenceId) -> Result<()> {
        let ops = self.book.take_ops();
        let done = ops.iter().try_for_each(|op| self.run(op));
        self.lose_unless(done, &[sequence])
    }

    /// Preempts the sequences whose contents a failing device was changing.
    pub(super) fn lose_unless(&mut self, done: Result<()>, sequences: &[SequenceId]) -> Result<()> {
        let Err(source) = done else { return Ok(()) };
        for &sequence in sequences {
            self.book.lose(sequence)?;
        }
        Err(ManagerError::ContentsLost { sequences: sequences.to_vec(), source: Box::new(source) })
    }

    pub(super) fn run(&self, op: &PoolOp) -> Result<()> {
        match *op {
            PoolOp::CopyBlock { paged, from, to } => self.pools.kv().copy_block(paged, from, to),
            PoolOp::CopyEntry { paged, from, to } => self.pools.kv().copy_entry(paged, from, to),
            PoolOp::ZeroSlot(slot) => self.pools.states()?.zero(slot),
            PoolOp::CopySlot { from, to } => self.pools.states()?.copy(from, to),
            PoolOp::StoreCheckpoint { from, to } => self.pools.states()?.store(from, to),
            PoolOp::LoadCheckpoint { from, to } => self.pools.states()?.load(from, to),
            PoolOp::BlockToHost { paged, from, to } => self.host.prefixes.take_block(self.pools.kv(), paged, from, to),
            PoolOp::BlockFromHost { paged, from, to } => {
                self.host.prefixes.give_block(self.pools.kv(), paged, from, to)
            }
            PoolOp::CheckpointToHost { from, to } => self.host.prefixes.take_checkpoint(self.pools.states()?, from, to),
            PoolOp::CheckpointFromHost { from, to } => {
                self.host.prefixes.give_checkpoint(self.pools.states()?, from, to)
            }
            PoolOp::CommitStates { row, ref path, to } => self.pools.states()?.commit(row, path, to),
        }
    }
}
