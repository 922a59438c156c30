//! The facade over paged pools, state pools and fixed tensors: one handle owns a sequence's blocks and slot.

use cacheplan_handlers::Kind;
use cacheplan_planner::{CachePlan, ManagerKind};
use candle_core::{Device, Tensor};

use super::host::{HostCopy, HostStats, HostTier};
use super::interchange::MlaBlocks;
use super::kv::{DenseKv, KvCacheManager, KvLayer};
use super::mamba::{CapturedState, MambaCacheManager, StateLayer};
use super::pool::PoolTensor;
use crate::ManagerError;
use crate::book::{
    Accepted, BlockId, CacheBook, Indexing, Place, PoolOp, Prefix, SequenceId, SlotId, SlotMove, StepMetadata, Work,
};

/// Books and tensors of one plan together.
///
/// Every operation first asks the books, which refuse it whole or accept it whole, and then executes on the pools
/// what the books decided.
#[derive(Debug)]
pub struct MambaHybridCacheManager {
    book: CacheBook,
    kv: KvCacheManager,
    mamba: MambaCacheManager,
    fixed: Vec<(usize, PoolTensor)>,
    host: HostTier,
    /// States of the commit in progress that the caller has to replay.
    replays: Vec<Replay>,
    kind: ManagerKind,
    generation: u32,
}

/// Accepted tokens whose recurrence is to be replayed from the stash onto a live slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The row of the draft pools that holds the inputs.
    pub row: u32,
    /// How many candidates to replay, in order.
    pub tokens: u32,
    /// The live slot, which still holds the state before the speculative step.
    pub slot: SlotId,
}

/// Where a layer's cache lies, valid until the pools are re-created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    place: Place,
    generation: u32,
}

impl MambaHybridCacheManager {
    pub(crate) fn allocate(
        plan: &CachePlan,
        book: CacheBook,
        host: HostTier,
        device: &Device,
        generation: u32,
    ) -> Result<Self, ManagerError> {
        let layout = book.layout();
        let mut fixed = Vec::new();
        for (index, pool) in plan.pools.iter().enumerate() {
            if layout.indexing[index] == Indexing::Fixed {
                fixed.push((index, PoolTensor::allocate(pool, device)?));
            }
        }
        Ok(Self {
            kv: KvCacheManager::allocate(plan, layout, device)?,
            mamba: MambaCacheManager::allocate(plan, layout, device)?,
            book,
            fixed,
            host,
            replays: Vec::new(),
            kind: plan.manager,
            generation,
        })
    }

    /// Which manager the plan chose: this facade, or the paged one alone.
    pub fn kind(&self) -> ManagerKind {
        self.kind
    }

    /// The paged pools.
    pub fn kv(&self) -> &KvCacheManager {
        &self.kv
    }

    /// The paged pools, to set scales.
    pub fn kv_mut(&mut self) -> &mut KvCacheManager {
        &mut self.kv
    }

    /// The state pools.
    pub fn mamba(&self) -> &MambaCacheManager {
        &self.mamba
    }

    /// The bookkeeping, to look at.
    pub fn book(&self) -> &CacheBook {
        &self.book
    }

    /// Changes the books directly, as prefix caches do, and executes on the pools what follows from it.
    ///
    /// # Errors
    /// What `change` refuses, or a failing device.
    pub fn with_book<R>(
        &mut self,
        change: impl FnOnce(&mut CacheBook) -> Result<R, ManagerError>,
    ) -> Result<R, ManagerError> {
        let result = change(&mut self.book);
        self.execute()?;
        result
    }

    /// Where the cache of a kind of an absolute layer lies.
    ///
    /// # Errors
    /// A layer without one.
    pub fn route(&self, layer: u32, kind: &Kind) -> Result<Route, ManagerError> {
        let place = self.book.layout().place(layer, kind);
        let place = place.ok_or_else(|| ManagerError::UnknownLayer { layer, kind: kind.clone() })?;
        Ok(Route { place, generation: self.generation })
    }

    /// Where the resource called `name` lies.
    ///
    /// # Errors
    /// An unknown name.
    pub fn route_of(&self, name: &str) -> Result<Route, ManagerError> {
        let place = self.book.layout().place_of(name);
        let place = place.ok_or_else(|| ManagerError::UnknownResource(name.to_owned()))?;
        Ok(Route { place, generation: self.generation })
    }

    /// A layer's part of a paged pool, for the duration of a kernel call.
    ///
    /// # Errors
    /// A route from before a resize, or to something that is not paged.
    pub fn kv_layer(&self, route: Route) -> Result<KvLayer<'_>, ManagerError> {
        self.kv.layer(self.current(route)?)
    }

    /// A layer's part of a state pool, for the duration of a kernel call.
    ///
    /// # Errors
    /// A route from before a resize, or to something that is no state.
    pub fn state_layer(&self, route: Route) -> Result<StateLayer<'_>, ManagerError> {
        self.mamba.layer(self.current(route)?)
    }

    /// A fixed tensor `[1, elems]`, for the duration of a kernel call.
    ///
    /// # Errors
    /// A route from before a resize, or to something that is not fixed.
    pub fn fixed(&self, route: Route) -> Result<&Tensor, ManagerError> {
        let place = self.current(route)?;
        let found = self.fixed.iter().find(|(index, _)| *index == place.pool);
        found.map(|(_, pool)| &pool.tensor).ok_or_else(|| ManagerError::UnknownPool(place.pool.to_string()))
    }

    /// Admits a sequence; see [`CacheBook::admit`].
    ///
    /// # Errors
    /// What lacks; nothing has changed then.
    pub fn admit(&mut self, prompt_tokens: u32) -> Result<SequenceId, ManagerError> {
        self.with_book(|book| book.admit(prompt_tokens))
    }

    /// Admits a sequence that starts from a cached prefix; see [`CacheBook::admit_prefix`].
    ///
    /// # Errors
    /// What lacks, or a prefix that does not fit; nothing has changed then.
    pub fn admit_prefix(&mut self, prompt_tokens: u32, prefix: &Prefix) -> Result<SequenceId, ManagerError> {
        self.with_book(|book| book.admit_prefix(prompt_tokens, prefix))
    }

    /// Makes room for a step's tokens and says where everything lies; see [`CacheBook::step`].
    ///
    /// # Errors
    /// What lacks; nothing has changed then.
    pub fn step(&mut self, work: &[Work], metadata: &mut StepMetadata) -> Result<(), ManagerError> {
        self.with_book(|book| book.step(work, metadata))
    }

    /// As [`MambaHybridCacheManager::step`] for candidates; see [`CacheBook::speculate`].
    ///
    /// # Errors
    /// What lacks; nothing has changed then.
    pub fn speculate(&mut self, work: &[Work], metadata: &mut StepMetadata) -> Result<(), ManagerError> {
        self.with_book(|book| book.speculate(work, metadata))
    }

    /// Commits blocks and states from the same accept lengths; see [`CacheBook::commit`].
    ///
    /// In a plan with the scheme `replay` it returns what the caller must replay before the next step; with snapshots
    /// that is nothing.
    ///
    /// # Errors
    /// An acceptance that does not fit; nothing has changed then.
    pub fn commit(&mut self, accepted: &[(SequenceId, Accepted<'_>)]) -> Result<Vec<Replay>, ManagerError> {
        self.with_book(|book| book.commit(accepted))?;
        Ok(std::mem::take(&mut self.replays))
    }

    /// A second sequence with the same past; see [`CacheBook::fork`].
    ///
    /// # Errors
    /// What lacks; nothing has changed then.
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, ManagerError> {
        self.with_book(|book| book.fork(sequence))
    }

    /// Cuts a sequence; see [`CacheBook::truncate`].
    ///
    /// # Errors
    /// A cut that the caches cannot express.
    pub fn truncate(&mut self, sequence: SequenceId, tokens: u32) -> Result<(), ManagerError> {
        self.with_book(|book| book.truncate(sequence, tokens))
    }

    /// Takes everything from a sequence; see [`CacheBook::preempt`].
    ///
    /// # Errors
    /// A sequence that holds nothing.
    pub fn preempt(&mut self, sequence: SequenceId) -> Result<(), ManagerError> {
        self.with_book(|book| book.preempt(sequence))
    }

    /// Brings a preempted sequence back; see [`CacheBook::resume`].
    ///
    /// # Errors
    /// What lacks; nothing has changed then.
    pub fn resume(&mut self, sequence: SequenceId, tokens: u32) -> Result<(), ManagerError> {
        self.with_book(|book| book.resume(sequence, tokens))
    }

    /// Ends a sequence; see [`CacheBook::finish`].
    ///
    /// # Errors
    /// A stale handle.
    pub fn finish(&mut self, sequence: SequenceId) -> Result<(), ManagerError> {
        self.with_book(|book| book.finish(sequence))?;
        self.host.remove(sequence);
        Ok(())
    }

    /// Limits the bytes of offloaded sequences; 0 unless set.
    pub fn set_host_capacity(&mut self, bytes: u64) {
        self.host.set_capacity(bytes);
    }

    /// How full the host tier is.
    pub fn host_stats(&self) -> HostStats {
        self.host.stats()
    }

    /// Moves a sequence's blocks and state to host memory.
    ///
    /// # Errors
    /// No room in the host tier; a sequence that is not resident or has an uncommitted speculative step.
    pub fn offload(&mut self, sequence: SequenceId) -> Result<(), ManagerError> {
        let held = self.book.held_blocks(sequence)?;
        let kv = held.iter().enumerate().map(|(paged, blocks)| blocks.len() as u64 * self.kv.pool(paged).unit_bytes());
        let state = self.book.slot(sequence)?.map_or(0, |_| self.mamba.slot_bytes());
        let bytes = kv.sum::<u64>() + state;
        self.host.check_room(bytes)?;
        let mut blocks = Vec::with_capacity(held.len());
        for (paged, ids) in held.iter().enumerate() {
            let ids: Vec<u32> = ids.iter().map(|block| block.0).collect();
            blocks.push(self.kv.pool(paged).read_units(&ids)?.to_device(&Device::Cpu)?);
        }
        let state = self.capture(sequence)?.to_device(&Device::Cpu)?;
        self.book.offload(sequence)?;
        self.host.insert(sequence, HostCopy { blocks, state, bytes });
        Ok(())
    }

    /// Brings an offloaded sequence back.
    ///
    /// # Errors
    /// What lacks, or a sequence that was not offloaded; nothing has changed then.
    pub fn onload(&mut self, sequence: SequenceId) -> Result<(), ManagerError> {
        self.book.onload(sequence)?;
        let held = self.book.held_blocks(sequence)?;
        let slot = self.book.slot(sequence)?;
        if let Some(copy) = self.host.get(sequence) {
            for (paged, (ids, values)) in held.iter().zip(&copy.blocks).enumerate() {
                let ids: Vec<u32> = ids.iter().map(|block| block.0).collect();
                self.kv.pool(paged).write_units(&ids, values)?;
            }
            if let Some(slot) = slot {
                self.mamba.restore(slot, &copy.state)?;
            }
        }
        self.host.remove(sequence);
        Ok(())
    }

    /// Moves live slots to the front; see [`CacheBook::compact_slots`].
    ///
    /// # Errors
    /// A failing device.
    pub fn compact_slots(&mut self) -> Result<Vec<SlotMove>, ManagerError> {
        self.with_book(CacheBook::compact_slots)
    }

    /// A sequence's states, detached from the pools.
    ///
    /// # Errors
    /// A sequence that is not resident or has an uncommitted speculative step.
    pub fn capture(&self, sequence: SequenceId) -> Result<CapturedState, ManagerError> {
        let settled = self.book.settled(sequence)?;
        match settled.slot {
            Some(slot) => self.mamba.capture(slot, settled.tokens),
            None => Ok(CapturedState { tokens: settled.tokens, pools: Vec::new() }),
        }
    }

    /// Puts captured states back and cuts the sequence's blocks to their length, so that both speak of the same token.
    ///
    /// # Errors
    /// States of other pools, or of more tokens than the sequence's blocks hold.
    pub fn restore(&mut self, sequence: SequenceId, state: &CapturedState) -> Result<(), ManagerError> {
        self.mamba.check_captured(state)?;
        self.book.cut(sequence, state.tokens)?;
        match self.book.slot(sequence)? {
            Some(slot) => self.mamba.restore(slot, state),
            None => Ok(()),
        }
    }

    /// A sequence's keys and values of one layer, as dense tensors.
    ///
    /// # Errors
    /// A stale route or handle, or a failing device.
    pub fn read_kv(&self, sequence: SequenceId, route: Route) -> Result<DenseKv, ManagerError> {
        let place = self.current(route)?;
        let Indexing::Blocks(paged) = place.indexing else {
            return Err(ManagerError::UnknownPool(place.pool.to_string()));
        };
        let tokens = self.book.resident(sequence)?.tokens;
        self.kv.read(place, self.book.block_table(sequence, paged)?, tokens)
    }

    /// A sequence's latents of an MLA layer, block by block, to be brought into another system's mode.
    ///
    /// # Errors
    /// A stale route or handle, a layer that is not MLA.
    pub fn export_mla(
        &self,
        sequence: SequenceId,
        route: Route,
        kv_lora_rank: usize,
    ) -> Result<MlaBlocks, ManagerError> {
        let (place, blocks) = self.latent_blocks(sequence, route)?;
        MlaBlocks::from_rows(&self.kv.read_latent(place, &blocks)?, kv_lora_rank)
    }

    /// Overwrites a sequence's latents of an MLA layer with as many blocks of any mode.
    ///
    /// # Errors
    /// A stale route or handle, a layer that is not MLA, blocks of another number, shape or dtype.
    pub fn import_mla(&mut self, sequence: SequenceId, route: Route, blocks: &MlaBlocks) -> Result<(), ManagerError> {
        let (place, held) = self.latent_blocks(sequence, route)?;
        self.kv.write_latent(place, &held, &blocks.to_rows()?)
    }

    fn latent_blocks(&self, sequence: SequenceId, route: Route) -> Result<(Place, Vec<BlockId>), ManagerError> {
        let place = self.current(route)?;
        let Indexing::Blocks(paged) = place.indexing else {
            return Err(ManagerError::UnknownPool(place.pool.to_string()));
        };
        Ok((place, self.book.held_blocks(sequence)?.swap_remove(paged)))
    }

    /// A sequence's state of one layer, `[d0, d1, d2]` as [`StateLayer::view`] says.
    ///
    /// # Errors
    /// A stale route or handle, or a failing device.
    pub fn read_state(&self, sequence: SequenceId, route: Route) -> Result<Tensor, ManagerError> {
        let place = self.current(route)?;
        let slot = self.book.resident(sequence)?.slot;
        self.mamba.read(place, slot.ok_or_else(|| ManagerError::UnknownPool(place.pool.to_string()))?)
    }

    /// Sets every element of every pool but the padding, to prove that a model reads the pools.
    ///
    /// # Errors
    /// A failing device.
    pub fn fill(&self, value: f64) -> Result<(), ManagerError> {
        self.pools().try_for_each(|(_, pool)| pool.fill_units(pool.reserved..pool.units() as u32, value))
    }

    /// Sets every element of free blocks and slots, to prove that nothing reads them.
    ///
    /// # Errors
    /// A failing device.
    pub fn fill_free(&self, value: f64) -> Result<(), ManagerError> {
        for paged in 0..self.kv.num_pools() {
            let free = self.book.blocks(paged)?.free_blocks();
            self.kv.pool(paged).fill_units(free.map(|block| block.0), value)?;
        }
        for pool in self.mamba.slot_pools() {
            pool.fill_units(self.book.slots().free_slots().map(|slot| slot.0), value)?;
        }
        Ok(())
    }

    /// How many times the pools were re-created.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// All pools with their index in the plan.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (usize, &PoolTensor)> {
        let fixed = self.fixed.iter().map(|(index, pool)| (*index, pool));
        self.kv.pools().chain(self.mamba.pools()).chain(fixed)
    }

    /// Whether offloaded sequences can come back to the pools of `fresh`.
    pub(crate) fn check_offloaded(&self, fresh: &CacheBook) -> Result<(), ManagerError> {
        let fits = self.host.stats().sequences == 0 || self.book.layout().same_but_for_units(fresh.layout());
        if fits { Ok(()) } else { Err(ManagerError::OtherPools) }
    }

    /// The books and the host tier, for pools that are made anew.
    pub(crate) fn into_parts(self) -> (CacheBook, HostTier) {
        (self.book, self.host)
    }

    /// Re-creates every pool with the units of `plan` on `device`, contents kept; sequences stay as they are.
    ///
    /// One pool is there twice at a time, those that shrink first.
    pub(crate) fn transfer(&mut self, plan: &CachePlan, device: &Device, generation: u32) -> Result<(), ManagerError> {
        let layout = self.book.shrink_to(plan)?;
        self.generation = generation;
        let pools = self.kv.pools_mut().chain(self.mamba.pools_mut());
        let mut pools: Vec<_> = pools.chain(self.fixed.iter_mut().map(|(index, pool)| (*index, pool))).collect();
        pools.sort_by_key(|(index, pool)| plan.pools[*index].bytes > pool.planned_bytes);
        for (index, pool) in pools {
            pool.replace(&plan.pools[index], device)?;
        }
        self.book.grow_to(layout);
        Ok(())
    }

    fn current(&self, route: Route) -> Result<Place, ManagerError> {
        if route.generation == self.generation {
            return Ok(route.place);
        }
        Err(ManagerError::StaleRoute { found: route.generation, current: self.generation })
    }

    fn execute(&mut self) -> Result<(), ManagerError> {
        for op in self.book.take_ops() {
            match op {
                PoolOp::CopyBlock { paged, from, to } => self.kv.copy_block(paged, from, to)?,
                PoolOp::CopyEntry { paged, from, to } => self.kv.copy_entry(paged, from, to)?,
                PoolOp::ZeroSlot(slot) => self.mamba.zero(slot)?,
                PoolOp::CopySlot { from, to } => self.mamba.copy(from, to)?,
                PoolOp::CommitStates { row, position, to } => {
                    self.mamba.commit(row, position, to)?;
                    if self.book.layout().replays {
                        self.replays.push(Replay { row, tokens: position + 1, slot: to });
                    }
                }
            }
        }
        Ok(())
    }

    /// A slot's states, for callers that hold a checkpoint.
    ///
    /// # Errors
    /// A slot that nobody holds.
    pub fn capture_slot(&self, slot: SlotId, tokens: u32) -> Result<CapturedState, ManagerError> {
        self.book.slots().role(slot).ok_or(ManagerError::SlotNotHeld { slot })?;
        self.mamba.capture(slot, tokens)
    }
}
