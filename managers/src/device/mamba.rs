//! The state pools: everything that a sequence keeps in its slot.

use std::sync::Arc;

use cacheplan_handlers::{DType, Growth, Kind, KvLayout};
use cacheplan_kernels::{Backend, StateLayerView};
use cacheplan_planner::{CachePlan, Member, PlannedResource, Pool};
use candle_core::Tensor;

use super::captured::{CapturedState, StatePlace};
use super::checkpoints::{CheckpointPool, StoredState};
use super::int8::StateShape;
use super::pool::PoolTensor;
use crate::book::{Indexing, Layout, PoolIndex, SlotId};
use crate::device::error::Result;
use crate::{BookError, ManagerError};

/// Owns the pools of the slot domain and their speculative twins; without state layers it owns nothing and every
/// operation is a no-op.
///
/// A slot of a pool holds the states of all its layers, so that one contiguous copy moves a sequence.
#[derive(Debug, Default)]
pub struct MambaCacheManager {
    /// Pools indexed by slot.
    slots: Vec<StatePool>,
    /// Pools indexed by the row of a speculative batch.
    drafts: Vec<StatePool>,
    /// Checkpoints that are no slots, one pool for each of `slots`; empty where they are.
    pub(super) checkpoints: Vec<CheckpointPool>,
}

#[derive(Debug)]
struct StatePool {
    /// Index in the plan.
    index: usize,
    tensor: PoolTensor,
    members: Vec<StateMember>,
}

#[derive(Debug)]
struct StateMember {
    layer: Option<u32>,
    kind: Kind,
    /// The kind of the live state, its own or the one it is a snapshot of: `ssm`, `causal_conv`, or `state` for any
    /// other; `None` for inputs to replay.
    live_kind: Option<Kind>,
    view: StateLayerView,
    /// Candidate positions that lie one after the other; 1 for live states.
    positions: usize,
    /// Columns behind a convolution's state for the inputs of candidates; 0 unless they are replayed.
    candidates: usize,
}

/// One layer's part of a state pool, borrowed for a kernel call.
#[derive(Clone, Copy, Debug)]
pub struct StateLayer<'a> {
    /// The whole pool `[num_slots, slot_elems]`, or `[draft rows, row_elems]` for a speculative twin.
    pub pool: &'a Tensor,
    /// Where the layer lies in it; for a twin, where its first candidate position lies.
    pub view: StateLayerView,
    /// Candidate positions, each `view.elems()` elements after the one before; 1 for live states.
    pub positions: usize,
    /// Where a convolution that is replayed keeps the candidates' inputs, `[candidates, conv_dim, 1]`.
    pub candidates: Option<StateLayerView>,
}

/// One layer's accepted inputs, and the state that they are to move on.
#[derive(Debug)]
pub struct ReplayLayer<'a> {
    /// The absolute layer; absent for a state of the whole model.
    pub layer: Option<u32>,
    /// The live state, as it was before the speculative step.
    pub state: StateLayer<'a>,
    /// Its slot.
    pub slot: SlotId,
    inputs: Vec<(&'a Kind, Tensor)>,
}

impl ReplayLayer<'_> {
    /// The accepted candidates' inputs of a kind such as `replay.x`, `[tokens, elems]`, in order.
    ///
    /// # Errors
    /// A kind that the plan does not keep for this layer.
    pub fn input(&self, kind: &str) -> Result<&Tensor> {
        let found = self.inputs.iter().find(|(found, _)| found.name() == kind);
        found.map(|(_, values)| values).ok_or_else(|| ManagerError::UnknownResource(kind.to_owned()))
    }
}

impl MambaCacheManager {
    pub(crate) fn allocate(plan: &CachePlan, layout: &Layout, on: &Backend) -> Result<Self> {
        let mut manager = Self::default();
        let candidates = layout.limits.draft_positions as usize;
        for (index, (pool, indexing)) in plan.pools.iter().zip(&layout.indexing).enumerate() {
            let target = match indexing {
                Indexing::Slots => &mut manager.slots,
                Indexing::DraftRows => &mut manager.drafts,
                Indexing::Blocks(_) | Indexing::Checkpoints | Indexing::Fixed => continue,
            };
            let tensor = PoolTensor::allocate(pool, on)?;
            let mut members = Vec::with_capacity(pool.members.len());
            for member in &pool.members {
                let resource = plan
                    .resource(&member.resource)
                    .ok_or_else(|| ManagerError::UnknownResource(member.resource.clone()))?;
                members.push(state_member(resource, member, &tensor, candidates)?);
            }
            target.push(StatePool { index, tensor, members });
        }
        let apart = manager.slots.iter().filter_map(|pool| checkpoint_pool(plan, pool, on).transpose());
        manager.checkpoints = apart.collect::<Result<_, _>>()?;
        if !manager.checkpoints.is_empty() && manager.checkpoints.len() != manager.slots.len() {
            let pool = manager.checkpoints[0].tensor.id.clone();
            return Err(BookError::BadPlan { pool, reason: "other pools of slots have no checkpoints".into() }.into());
        }
        manager.check_twins()?;
        Ok(manager)
    }

    /// Zeroes every slot and checkpoint, the padding slots included, whoever holds them.
    pub(super) fn clear(&self) -> Result<()> {
        let apart = self.checkpoints.iter().map(|pool| &pool.tensor);
        self.slot_pools().chain(apart).try_for_each(|pool| Ok(pool.tensor.zero_set()?))
    }

    /// Where the state of each layer lies in a slot.
    pub(super) fn places(&self) -> Arc<[StatePlace]> {
        let members = self.slots.iter().enumerate().flat_map(|(pool, slots)| {
            let place = move |member: &StateMember| {
                let StateMember { layer, kind, view, .. } = member;
                StatePlace { pool, layer: *layer, kind: kind.clone(), view: *view }
            };
            slots.members.iter().map(place)
        });
        members.collect()
    }

    pub(crate) fn layer(&self, place: PoolIndex) -> Result<StateLayer<'_>> {
        let (pool, member) = self.member(place)?;
        Ok(state_layer(pool, member))
    }

    /// Writes a sequence's candidates' inputs `[tokens, elems]` where a commit looks for them.
    pub(crate) fn stash(&self, place: PoolIndex, row: u32, slot: SlotId, inputs: &Tensor) -> Result<()> {
        let (pool, member) = self.member(place)?;
        let (unit, view, room) = match (member.candidate_view(), place.indexing) {
            (Some(columns), _) => (slot.0, columns, member.candidates),
            (None, Indexing::DraftRows) => (row, member.view, member.positions),
            (None, _) => return Err(BookError::UnknownPool(pool.tensor.id.clone()).into()),
        };
        let per_position = if member.candidates > 0 { view.shape[1] } else { view.elems() };
        if inputs.dims2()?.0 > room || inputs.dims2()?.1 != per_position {
            let found = inputs.dims();
            return Err(ManagerError::ForeignState(format!("{found:?}, expected at most [{room}, {per_position}]")));
        }
        let values = inputs.to_dtype(pool.tensor.tensor.dtype())?.flatten_all()?.contiguous()?;
        pool.tensor.write_elems(unit as usize * pool.tensor.unit_elems + view.layer_offset, &values)
    }

    /// One slot's state of one layer, `[d0, d1, d2]` as the view says.
    pub(crate) fn read(&self, place: PoolIndex, slot: SlotId) -> Result<Tensor> {
        let StateLayer { pool, view, .. } = self.layer(place)?;
        let row = pool.narrow(0, slot.0 as usize, 1)?.narrow(1, view.layer_offset, view.elems())?;
        Ok(row.reshape(view.shape.to_vec())?.copy()?)
    }

    pub(crate) fn zero(&self, slot: SlotId) -> Result<()> {
        self.slots.iter().try_for_each(|pool| pool.tensor.zero_units(&[slot.0]))
    }

    pub(crate) fn copy(&self, from: SlotId, to: SlotId) -> Result<()> {
        self.slots.iter().try_for_each(|pool| pool.tensor.copy_units(&[(from.0, to.0)]))
    }

    pub(crate) fn capture(&self, slot: SlotId, tokens: u32) -> Result<CapturedState> {
        let mut pools = Vec::with_capacity(self.slots.len());
        for pool in &self.slots {
            pools.push((pool.tensor.id.clone(), pool.tensor.read_units(&[slot.0])?));
        }
        Ok(CapturedState { tokens, pools, places: self.places() })
    }

    /// Checks that a captured state has this manager's pools.
    pub(crate) fn check_captured(&self, state: &CapturedState) -> Result<()> {
        if state.places != self.places() {
            return Err(ManagerError::ForeignState("its layers do not lie in the pools as the manager's do".into()));
        }
        if state.pools.len() != self.slots.len() {
            let reason = format!("it has {} pools, the manager {}", state.pools.len(), self.slots.len());
            return Err(ManagerError::ForeignState(reason));
        }
        for (pool, (id, values)) in self.slots.iter().zip(&state.pools) {
            let expected = [1, pool.tensor.unit_elems];
            if pool.tensor.id != *id || values.dims() != expected || values.dtype() != pool.tensor.tensor.dtype() {
                return Err(ManagerError::ForeignState(format!(
                    "`{id}` is {:?} {:?}, pool `{}` takes {expected:?} {:?}",
                    values.dims(),
                    values.dtype(),
                    pool.tensor.id,
                    pool.tensor.tensor.dtype(),
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn restore(&self, slot: SlotId, state: &CapturedState) -> Result<()> {
        self.check_captured(state)?;
        self.slots
            .iter()
            .zip(&state.pools)
            .try_for_each(|(pool, (_, values))| pool.tensor.write_units(&[slot.0], values))
    }

    /// Copies the states that a speculative step left after the last candidate of `path`, each layer to its own place.
    pub(crate) fn commit(&self, row: u32, path: &[u32], to: SlotId) -> Result<()> {
        let Some(&last) = path.last() else { return Ok(()) };
        for (drafts, draft) in self.draft_members() {
            let (live_pool, live) = self.twin(draft).ok_or_else(|| missing_twin(&drafts.tensor, draft))?;
            let elems = draft.view.elems();
            let from = row as usize * drafts.tensor.unit_elems + draft.view.layer_offset + last as usize * elems;
            let target = to.0 as usize * live_pool.tensor.unit_elems + live.view.layer_offset;
            live_pool.tensor.copy_elems(&drafts.tensor, from, target, elems)?;
        }
        self.convolutions().try_for_each(|(pool, member)| member.shift(&pool.tensor, path, to))
    }

    /// The layers whose inputs along `path` are to be replayed, with those inputs.
    pub(crate) fn replays(&self, row: u32, path: &[u32], to: SlotId) -> Result<Vec<ReplayLayer<'_>>> {
        let mut layers: Vec<ReplayLayer<'_>> = Vec::new();
        for (pool, member) in self.stashes() {
            let inputs = (&member.kind, member.inputs(&pool.tensor, row, path)?);
            if let Some(layer) = layers.iter_mut().find(|found| found.layer == member.layer) {
                layer.inputs.push(inputs);
                continue;
            }
            let (live_pool, live) = self.recurrence(member).ok_or_else(|| missing_twin(&pool.tensor, member))?;
            let state = state_layer(live_pool, live);
            layers.push(ReplayLayer { layer: member.layer, state, slot: to, inputs: vec![inputs] });
        }
        Ok(layers)
    }

    /// Whether a commit has inputs to replay.
    pub(crate) fn has_stashes(&self) -> bool {
        self.stashes().next().is_some()
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = (usize, &PoolTensor)> {
        let apart = self.checkpoints.iter().map(|pool| (pool.index, &pool.tensor));
        self.slots.iter().chain(&self.drafts).map(|pool| (pool.index, &pool.tensor)).chain(apart)
    }

    pub(crate) fn pools_mut(&mut self) -> impl Iterator<Item = (usize, &mut PoolTensor)> {
        let apart = self.checkpoints.iter_mut().map(|pool| (pool.index, &mut pool.tensor));
        self.slots.iter_mut().chain(&mut self.drafts).map(|pool| (pool.index, &mut pool.tensor)).chain(apart)
    }

    pub(crate) fn slot_pools(&self) -> impl Iterator<Item = &PoolTensor> {
        self.slots.iter().map(|pool| &pool.tensor)
    }

    /// The snapshots at candidate positions.
    fn draft_members(&self) -> impl Iterator<Item = (&StatePool, &StateMember)> {
        let members = self.drafts.iter().flat_map(|pool| pool.members.iter().map(move |member| (pool, member)));
        members.filter(|(_, member)| member.live_kind.is_some())
    }

    /// The live state that a draft belongs to: of its layer and kind, and of several the one in the draft's position.
    fn twin(&self, draft: &StateMember) -> Option<(&StatePool, &StateMember)> {
        let alike = |member: &StateMember| member.layer == draft.layer && member.live_kind == draft.live_kind;
        let mut drafts = self.draft_members().filter(|(_, member)| alike(member));
        let position = drafts.position(|(_, member)| std::ptr::eq(member, draft))?;
        let live = self.slots.iter().flat_map(|pool| pool.members.iter().map(move |member| (pool, member)));
        live.filter(|(_, member)| alike(member)).nth(position)
    }

    /// The inputs at candidate positions.
    fn stashes(&self) -> impl Iterator<Item = (&StatePool, &StateMember)> {
        let members = self.drafts.iter().flat_map(|pool| pool.members.iter().map(move |member| (pool, member)));
        members.filter(|(_, member)| member.live_kind.is_none())
    }

    /// The recurrent state that inputs belong to.
    fn recurrence(&self, stash: &StateMember) -> Option<(&StatePool, &StateMember)> {
        let mut live = self.slots.iter().flat_map(|pool| pool.members.iter().map(move |member| (pool, member)));
        live.find(|(_, member)| member.layer == stash.layer && member.kind == Kind::Ssm)
    }

    /// The convolutions that keep the candidates' inputs behind their state.
    fn convolutions(&self) -> impl Iterator<Item = (&StatePool, &StateMember)> {
        let members = self.slots.iter().flat_map(|pool| pool.members.iter().map(move |member| (pool, member)));
        members.filter(|(_, member)| member.candidates > 0)
    }

    fn member(&self, place: PoolIndex) -> Result<(&StatePool, &StateMember), BookError> {
        let mut pools = self.slots.iter().chain(&self.drafts);
        let pool = pools.find(|pool| pool.index == place.pool);
        let member = pool.and_then(|pool| pool.members.get(place.member).map(|member| (pool, member)));
        member.ok_or_else(|| BookError::UnknownPool(place.pool.to_string()))
    }

    fn check_twins(&self) -> Result<(), BookError> {
        for (drafts, draft) in self.draft_members() {
            let twin = self.twin(draft).filter(|(pool, live)| {
                live.view.shape == draft.view.shape && pool.tensor.tensor.dtype() == drafts.tensor.tensor.dtype()
            });
            if twin.is_none() {
                return Err(missing_twin(&drafts.tensor, draft));
            }
        }
        match self.stashes().find(|(_, stash)| self.recurrence(stash).is_none()) {
            Some((pool, stash)) => Err(missing_twin(&pool.tensor, stash)),
            None => Ok(()),
        }
    }
}

impl StateMember {
    /// Where the candidates' inputs lie, behind a convolution's state.
    fn candidate_view(&self) -> Option<StateLayerView> {
        let StateLayerView { slot_elems, layer_offset, shape: [_, conv_dim, _] } = self.view;
        let layer_offset = layer_offset + self.view.elems();
        let shape = [self.candidates, conv_dim, 1];
        (self.candidates > 0).then_some(StateLayerView { slot_elems, layer_offset, shape })
    }

    /// The inputs of the candidates on `path`, `[path.len(), elems]`.
    fn inputs(&self, pool: &PoolTensor, row: u32, path: &[u32]) -> Result<Tensor> {
        let elems = self.view.elems();
        let row = pool.tensor.narrow(0, row as usize, 1)?.narrow(1, self.view.layer_offset, self.positions * elems)?;
        let path = Tensor::new(path, pool.tensor.device())?;
        Ok(row.reshape((self.positions, elems))?.index_select(&path, 0)?)
    }

    /// Moves a convolution's state on along the inputs of the candidates on `path`.
    fn shift(&self, pool: &PoolTensor, path: &[u32], slot: SlotId) -> Result<()> {
        let StateLayerView { layer_offset, shape: [columns, conv_dim, _], .. } = self.view;
        // The state's own columns, then the candidates on the path; the last of them are the new state.
        let all = (0..columns as u32).chain(path.iter().map(|candidate| columns as u32 + candidate));
        let kept: Vec<u32> = all.skip(path.len()).collect();
        let rows = columns + self.candidates;
        let start = slot.0 as usize * pool.unit_elems + layer_offset;
        let old = pool.tensor.flatten_all()?.narrow(0, start, rows * conv_dim)?.reshape((rows, conv_dim))?;
        let new = old.index_select(&Tensor::new(kept, pool.tensor.device())?, 0)?;
        pool.write_elems(start, &new.flatten_all()?)
    }
}

fn state_layer<'a>(pool: &'a StatePool, member: &StateMember) -> StateLayer<'a> {
    let candidates = member.candidate_view();
    StateLayer { pool: &pool.tensor.tensor, view: member.view, positions: member.positions, candidates }
}

fn missing_twin(pool: &PoolTensor, draft: &StateMember) -> BookError {
    let layer = draft.layer.map_or_else(|| "the whole model".into(), |layer| format!("layer {layer}"));
    BookError::BadPlan {
        pool: pool.id.clone(),
        reason: format!("a speculative state of {layer} has no live state of its kind, shape and dtype"),
    }
}

/// The pool of checkpoints beside a pool of slots, if the plan has one.
fn checkpoint_pool(plan: &CachePlan, slots: &StatePool, on: &Backend) -> Result<Option<CheckpointPool>> {
    let stores = |pool: &Pool| pool.checkpoints_of.as_deref() == Some(&slots.tensor.id);
    let Some(index) = plan.pools.iter().position(stores) else { return Ok(None) };
    let (pool, origin) = (&plan.pools[index], &plan.pools[slots.index]);
    let bad = |reason: &str| BookError::BadPlan { pool: pool.id.clone(), reason: reason.into() };
    let tensor = PoolTensor::allocate(pool, on)?;
    if pool.dtype == origin.dtype && pool.unit_bytes == origin.unit_bytes {
        return Ok(Some(CheckpointPool { index, tensor, states: Vec::new() }));
    }
    if pool.members.len() != slots.members.len() || pool.dtype != DType::Int8 {
        return Err(bad("it has neither the members of its slots as they are nor all of them in 8 bits").into());
    }
    let mut states = Vec::with_capacity(pool.members.len());
    for (stored, live) in pool.members.iter().zip(&slots.members) {
        let [heads, head_dim, d_state] = live.view.shape;
        let shape = StateShape { heads, head_dim, d_state };
        let fits = live.kind == Kind::Ssm
            && stored.bytes == shape.int8_bytes() as u64
            && stored.offset.checked_add(stored.bytes).is_some_and(|end| end <= pool.unit_bytes);
        if !fits {
            return Err(bad(&format!("member `{}` is no recurrent state in 8 bits", stored.resource)).into());
        }
        states.push(StoredState {
            shape,
            slot_offset: live.view.layer_offset,
            checkpoint_offset: stored.offset as usize,
        });
    }
    Ok(Some(CheckpointPool { index, tensor, states }))
}

fn state_member(
    resource: &PlannedResource,
    member: &Member,
    tensor: &PoolTensor,
    candidates: usize,
) -> Result<StateMember, BookError> {
    let bad = |reason: String| BookError::BadPlan { pool: tensor.id.clone(), reason };
    let handler = &resource.handler;
    let elem_bytes = tensor.elem_bytes as u64;
    if !member.offset.is_multiple_of(elem_bytes) || !member.bytes.is_multiple_of(elem_bytes) {
        return Err(bad(format!("member `{}` is not aligned to its dtype", member.resource)));
    }
    // Rows of packed dtypes are bytes.
    let mut sizes: Vec<usize> = handler.shape().iter().map(|dim| dim.size as usize).collect();
    if let Some(row) = sizes.last_mut() {
        let bytes = handler.dtype().row_bytes(*row as u64).ok_or_else(|| bad("a row is too long".into()))?;
        *row = (bytes / elem_bytes) as usize;
    }
    let live_kind = match handler.kind() {
        Kind::IntermediateSsm => Some(Kind::Ssm),
        Kind::IntermediateCausalConv => Some(Kind::CausalConv),
        Kind::IntermediateState => Some(Kind::State),
        _ if handler.is_speculative() => None,
        kind @ (Kind::Ssm | Kind::CausalConv) => Some(kind.clone()),
        _ if handler.is_state() => Some(Kind::State),
        other => Some(other.clone()),
    };
    // The tokens of a slot are a part of its state.
    if handler.growth() == Growth::PerSlotToken {
        let unit = sizes.iter().product::<usize>().max(1) as u64 * elem_bytes;
        let heads = usize::from(handler.layout() == Some(KvLayout::Hnd));
        sizes.insert(heads.min(sizes.len()), (member.bytes / unit) as usize);
    }
    let candidates = if handler.has_candidates() { candidates } else { 0 };
    let mut shape = match (&live_kind, sizes.as_slice()) {
        // Channels lie side by side, so that a step reads and writes whole columns.
        (Some(Kind::CausalConv), &[conv_dim, width]) => [width, conv_dim, 1],
        (_, &[]) => [1, 1, 1],
        (_, &[d0]) => [d0, 1, 1],
        (_, &[d0, d1]) => [d0, d1, 1],
        (_, &[.., d1, d2]) => [sizes[..sizes.len() - 2].iter().product(), d1, d2],
    };
    let unit = shape.iter().product::<usize>() as u64 * elem_bytes;
    if unit == 0 || !member.bytes.is_multiple_of(unit) {
        return Err(bad(format!("member `{}` has {} bytes, its state {unit}", member.resource, member.bytes)));
    }
    shape[0] = shape[0].checked_sub(candidates).filter(|&own| own > 0).ok_or_else(|| {
        bad(format!("member `{}` has no room for the inputs of {candidates} candidates", member.resource))
    })?;
    Ok(StateMember {
        layer: resource.layer,
        kind: handler.kind().clone(),
        live_kind,
        view: StateLayerView {
            slot_elems: tensor.unit_elems,
            layer_offset: (member.offset / elem_bytes) as usize,
            shape,
        },
        positions: (member.bytes / unit) as usize,
        candidates,
    })
}
