//! Contents that leave the pools and come back: the host tier, captured states.

use candle_core::{Device, Tensor};

use super::captured::{CapturedState, LayerState, StatePlace, of_layer};
use super::host::HostCopy;
use super::mamba::MambaCacheManager;
use super::manager::CacheManager;
use crate::book::{CacheBook, SequenceId};
use crate::device::error::Result;
use crate::{BookError, ManagerError};

impl CacheManager {
    /// Moves a sequence's blocks and state to the plan's host tier.
    ///
    /// # Errors
    /// No host tier or no room in it, a sequence that is not resident or has an uncommitted speculative step, or a
    /// failing device; nothing has changed then.
    pub fn offload(&mut self, sequence: SequenceId) -> Result<()> {
        self.book.check_offload(sequence)?;
        self.park(sequence)
    }

    /// As [`CacheManager::offload`] whatever the tier's room.
    pub(super) fn park(&mut self, sequence: SequenceId) -> Result<()> {
        self.settle()?;
        let held = self.book.held_blocks(sequence)?;
        let mut blocks = Vec::with_capacity(held.len());
        for (paged, ids) in held.iter().enumerate() {
            let ids: Vec<u32> = ids.iter().map(|block| block.0).collect();
            blocks.push(self.kv().pool(paged).read_units(&ids)?.to_device(&Device::Cpu)?);
        }
        let state = self.capture(sequence)?.to_device(&Device::Cpu)?;
        self.book.park(sequence)?;
        // Sequences whose leases were dropped are the books' business alone until here.
        self.host.sequences.retain(|&parked, _| self.book.residency(parked).is_ok());
        self.host.sequences.insert(sequence, HostCopy { blocks, state });
        Ok(())
    }

    /// Brings an offloaded sequence back.
    ///
    /// # Errors
    /// What lacks, a sequence that was not offloaded, or a failing device; nothing has changed then.
    pub fn onload(&mut self, sequence: SequenceId) -> Result<()> {
        self.settle()?;
        self.book.onload(sequence)?;
        if let Err(error) = self.write_back(sequence) {
            self.book.park(sequence)?;
            return Err(error);
        }
        self.host.sequences.remove(&sequence);
        Ok(())
    }

    fn write_back(&self, sequence: SequenceId) -> Result<()> {
        let Some(copy) = self.host.sequences.get(&sequence) else { return Ok(()) };
        for (paged, (ids, values)) in self.book.held_blocks(sequence)?.iter().zip(&copy.blocks).enumerate() {
            let ids: Vec<u32> = ids.iter().map(|block| block.0).collect();
            self.kv().pool(paged).write_units(&ids, values)?;
        }
        match self.book.slot(sequence)? {
            Some(slot) => self.pools.states()?.restore(slot, &copy.state),
            None => Ok(()),
        }
    }

    /// A sequence's states, detached from the pools.
    ///
    /// # Errors
    /// A sequence that is not resident or has an uncommitted speculative step.
    pub fn capture(&self, sequence: SequenceId) -> Result<CapturedState> {
        self.ready()?;
        let settled = self.book.settled(sequence)?;
        match settled.slot {
            Some(slot) => self.pools.states()?.capture(slot, settled.tokens),
            None => Ok(CapturedState { tokens: settled.tokens, pools: Vec::new(), places: Default::default() }),
        }
    }

    /// Puts captured states back and cuts the sequence's blocks to their length, so that both speak of the same token.
    ///
    /// # Errors
    /// States of other pools, or of more tokens than the sequence's blocks hold; nothing has changed then.
    /// [`ManagerError::ContentsLost`] if the device fails while it writes them.
    pub fn restore(&mut self, sequence: SequenceId, state: &CapturedState) -> Result<()> {
        self.settle()?;
        match self.mamba() {
            Some(mamba) => mamba.check_captured(state)?,
            None if state.pools.is_empty() => {}
            None => return Err(ManagerError::ForeignState("it has states, and the plan has none".into())),
        }
        self.book.cut(sequence, state.tokens)?;
        match self.book.slot(sequence)? {
            Some(slot) => {
                let done = self.pools.states()?.restore(slot, state);
                self.lose_unless(done, &[sequence])
            }
            None => Ok(()),
        }
    }

    /// Zeroes the states of all slots, as after a warm-up and before steps are recorded.
    ///
    /// A sequence that is admitted starts from zero in any case.
    ///
    /// # Errors
    /// [`ManagerError::StatesInUse`] where a sequence or a prefix holds one, and nothing has changed; a failing device.
    pub fn clear_states(&mut self) -> Result<()> {
        self.settle()?;
        match self.book().slots_in_use() {
            0 => self.mamba().map_or(Ok(()), MambaCacheManager::clear),
            slots => Err(ManagerError::StatesInUse { slots }),
        }
    }

    /// What [`restore`](Self::restore) takes, of the states of each layer after so many tokens.
    ///
    /// # Errors
    /// [`ManagerError::ForeignState`]: a layer without such a state, one that is missing or there twice, another shape or
    /// dtype than [`LayerState::values`] says. A failing device.
    pub fn state_of_layers(&self, tokens: u32, layers: &[LayerState]) -> Result<CapturedState> {
        self.mamba().map_or_else(
            || match layers {
                [] => Ok(CapturedState { tokens, pools: Vec::new(), places: Default::default() }),
                [first, ..] => Err(ManagerError::ForeignState(format!("the plan has no {first}"))),
            },
            |mamba| assemble(mamba, tokens, layers),
        )
    }

    /// Whether offloaded sequences can come back to the pools of `fresh`.
    pub(super) fn check_offloaded(&self, fresh: &CacheBook) -> Result<(), BookError> {
        self.book.check_host(fresh.layout().host_bytes)?;
        let fits = self.host.sequences.is_empty() || self.book.layout().same_but_for_units(fresh.layout());
        if fits { Ok(()) } else { Err(BookError::OtherPools) }
    }
}

/// The states of a sequence in the pools of a manager, from those of its layers.
fn assemble(mamba: &MambaCacheManager, tokens: u32, layers: &[LayerState]) -> Result<CapturedState> {
    let refuse = |reason: String| Err(ManagerError::ForeignState(reason));
    let (places, mut pools) = (mamba.places(), Vec::new());
    for pool in mamba.slot_pools() {
        let (dtype, device) = (pool.tensor.dtype(), pool.tensor.device());
        pools.push((pool.id.clone(), Tensor::zeros((1, pool.unit_elems), dtype, device)?));
    }
    let mut written = vec![false; places.len()];
    for state in layers {
        let is_its = |place: &StatePlace| place.layer == state.layer && place.kind == state.kind;
        let unwritten = |at: &usize| is_its(&places[*at]) && !written[*at];
        let Some(at) = (0..places.len()).find(unwritten) else {
            let twice = if places.iter().any(is_its) { "it is there twice" } else { "the plan has none" };
            return refuse(format!("{state}: {twice}"));
        };
        written[at] = true;
        let (place, (_, row)) = (&places[at], &pools[places[at].pool]);
        let [d0, d1, d2] = place.view.shape;
        if state.values.dims() != [1, d0, d1, d2] || state.values.dtype() != row.dtype() {
            let (found, dtype) = (state.values.dims(), state.values.dtype());
            let expected = [1, d0, d1, d2];
            return refuse(format!("{state} is {found:?} {dtype:?}, expected {expected:?} {:?}", row.dtype()));
        }
        let values = state.values.to_device(row.device())?.flatten_all()?.contiguous()?.unsqueeze(0)?;
        row.slice_set(&values, 1, place.view.layer_offset)?;
    }
    match written.iter().position(|written| !written) {
        Some(at) => {
            let StatePlace { layer, kind, .. } = &places[at];
            refuse(format!("the {kind} state of {} is missing", of_layer(*layer)))
        }
        None => Ok(CapturedState { tokens, pools, places }),
    }
}
