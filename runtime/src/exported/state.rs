//! What a graph is given of the pools, and where its outputs go.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};

use cacheplan_graphs::{Input, Pooled, Slice, SliceMut, View};
use cacheplan_handlers::Kind;
use cacheplan_kernels::{Backend, KvWrite, StateLayerView};
use cacheplan_managers::ManagerError;
use cacheplan_managers::book::StepMetadata;
use cacheplan_managers::device::{CacheManager, KvLayer, StateLayer};
use cacheplan_transforms::{StateBinding, StatePart};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Storage, Tensor};
use half::{bf16, f16};

use super::bucket::Call;
use crate::cache_use::CacheUse;
use crate::error::{Result, RuntimeError};

/// The step's pools.
pub(super) struct Pools<'a> {
    pub(super) caches: &'a CacheManager,
    pub(super) metadata: &'a StepMetadata,
}

/// The sequences that a graph is given.
#[derive(Clone, Copy)]
pub(super) struct Lanes<'a> {
    /// As many as the graph takes.
    pub(super) calls: &'a [Call],
    /// Those behind so many are there a second time, and what they make is dropped.
    pub(super) count: usize,
}

/// What a graph is given for a state.
enum StateInput<'a> {
    /// Where it lies in its pool, to be read.
    Lent(Box<dyn Deref<Target = Storage> + 'a>, Range<usize>),
    /// Where it lies in a pool of fixed caches, to be written until the call ends.
    Fixed(&'a Tensor, Range<usize>),
    /// Where those of the call's sequences lie in their pool, which the call renews there.
    Renewed(Pooled<'a>),
    /// Put together for this call.
    Gathered(Vec<f32>, Vec<usize>),
}

/// A part of a pool, as it is stored.
fn numbers(storage: &Storage, range: Range<usize>) -> Result<Slice<'_>> {
    match storage {
        Storage::Cpu(CpuStorage::F32(values)) => Ok(Slice::Float(&values[range])),
        Storage::Cpu(CpuStorage::F16(values)) => Ok(Slice::Half(&values[range])),
        Storage::Cpu(CpuStorage::BF16(values)) => Ok(Slice::Brain(&values[range])),
        _ => Err(RuntimeError::NotFloat),
    }
}

/// Adds a part of a pool.
fn extend(values: &mut Vec<f32>, storage: &Storage, range: Range<usize>) -> Result<()> {
    match numbers(storage, range)? {
        Slice::Float(stored) => values.extend_from_slice(stored),
        Slice::Half(stored) => values.extend(stored.iter().map(|x| x.to_f32())),
        Slice::Brain(stored) => values.extend(stored.iter().map(|x| x.to_f32())),
        Slice::Int(_) => return Err(RuntimeError::NotFloat),
    }
    Ok(())
}

/// The caches that a state is, as far as the graph's own shapes tell: of a convolution they do not.
pub(super) fn caches_of(state: &StateBinding, shape: &[Option<usize>]) -> Result<Vec<CacheUse>, String> {
    let one = |layer: &u32| match (state.part, shape) {
        (StatePart::Fixed, &[Some(_), Some(1), Some(heads), Some(_), Some(head_dim)]) => {
            Ok(Some(CacheUse::new(*layer, Kind::Unpaged, [heads, head_dim])))
        }
        (StatePart::Keys, &[_, Some(heads), None, Some(head_dim)]) => {
            Ok(Some(CacheUse::new(*layer, Kind::KvPaged, [2, heads, head_dim])))
        }
        (StatePart::KeysAndValues, &[_, Some(2), Some(heads), _, Some(head_dim)]) => {
            Ok(Some(CacheUse::new(*layer, Kind::KvPaged, [2, heads, head_dim])))
        }
        (StatePart::Recurrence, &[_, Some(heads), Some(head_dim), Some(d_state)]) => {
            Ok(Some(CacheUse::new(*layer, Kind::Ssm, [heads, head_dim, d_state])))
        }
        (StatePart::Values, _) | (StatePart::Convolution, &[_, Some(_), Some(_)]) => Ok(None),
        _ => Err(format!("a state of shape {shape:?} is not carried")),
    };
    Ok(state.layers.iter().map(one).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Of an output that takes the place of a state: what is new.
pub(super) fn new_part(state: &StateBinding, made: &View<'_>, past: usize, count: usize) -> Option<Vec<f32>> {
    match state.part {
        StatePart::Keys | StatePart::Values => made.narrow(2, past, count)?.floats(),
        StatePart::Fixed | StatePart::KeysAndValues => made.narrow(3, past, count)?.floats(),
        _ => made.floats(),
    }
}

/// A layer's fixed cache `[heads, tokens, head_dim]` in a pool, and where a sequence's begins.
struct FixedRow<'a> {
    layer: StateLayer<'a>,
    start: usize,
}

impl<'a> Pools<'a> {
    /// What the pools hold of a sequence's state, with room for so many tokens.
    fn held(&self, state: &StateBinding, capacity: usize, call: Call) -> Result<StateInput<'a>> {
        let layer = layer_of(state);
        match state.part {
            StatePart::Keys => self.gathered(layer, &[0], call.past, call),
            StatePart::Values => self.gathered(layer, &[1], call.past, call),
            StatePart::KeysAndValues => self.gathered(layer, &[0, 1], capacity, call),
            StatePart::Convolution => self.convolution(layer, call),
            StatePart::Fixed => self.fixed(state, capacity, call, None),
            _ => {
                let (layer, start) = self.state(layer, &Kind::Ssm, call)?;
                let range = start..start + layer.view.elems();
                Ok(StateInput::Lent(Box::new(layer.pool.storage_and_layout().0), range))
            }
        }
    }

    /// The same of several sequences, one behind the other.
    fn held_by(&self, state: &StateBinding, port: &[Option<usize>], lanes: Lanes<'_>) -> Result<StateInput<'a>> {
        let lanes = lanes.calls;
        let most = lanes.iter().map(|call| call.past + call.size).max().unwrap_or(0);
        let capacity = port.get(3).copied().flatten().unwrap_or(most);
        if let [only] = lanes {
            return self.held(state, capacity, *only);
        }
        let (mut values, mut shape) = (Vec::new(), Vec::new());
        for &lane in lanes {
            shape = match self.held(state, capacity, lane)? {
                StateInput::Gathered(own, shape) => {
                    values.extend(own);
                    shape
                }
                StateInput::Lent(storage, range) => {
                    extend(&mut values, &storage, range)?;
                    port.iter().map(|size| size.unwrap_or(1)).collect()
                }
                // Fixed caches are of one sequence: those of several are refused where they are read.
                StateInput::Fixed(..) | StateInput::Renewed(_) => return Err(RuntimeError::NotFloat),
            };
        }
        if let Some(batch) = shape.first_mut() {
            *batch = lanes.len();
        }
        Ok(StateInput::Gathered(values, shape))
    }

    /// The states of all sequences where they lie, to be renewed there.
    fn renewed(&self, state: &StateBinding, lanes: Lanes<'_>) -> Result<StateInput<'a>> {
        let kind = if state.part == StatePart::Convolution { Kind::CausalConv } else { Kind::Ssm };
        let StateLayer { pool, view, .. } = self.caches.state_layer(self.caches.route(layer_of(state), &kind)?)?;
        let slot = |(lane, call): (usize, &Call)| match self.metadata.slots.get(call.sequence) {
            Some(&slot) if lane < lanes.count => slot,
            _ => -1,
        };
        let slots = lanes.calls.iter().enumerate().map(slot).collect();
        Ok(StateInput::Renewed(Pooled { pool, view, slots }))
    }

    /// A sequence's rows of a fixed cache, in the order of the graph's.
    fn fixed_rows(&self, state: &StateBinding, call: Call) -> Result<Vec<FixedRow<'a>>> {
        let row = |layer: &u32| {
            let layer = self.caches.state_layer(self.caches.route_of(&format!("{}_{layer}", state.input))?)?;
            let slot = self.slot(call).ok_or_else(|| ManagerError::UnknownResource(state.input.clone()))?;
            Ok(FixedRow { layer, start: slot * layer.view.slot_elems + layer.view.layer_offset })
        };
        state.layers.iter().map(row).collect()
    }

    /// A fixed cache of so many tokens: where it lies, if its layers lie in `pool` or any one as they do in the graph, else
    /// put together.
    fn fixed(
        &self,
        state: &StateBinding,
        capacity: usize,
        call: Call,
        pool: Option<&Tensor>,
    ) -> Result<StateInput<'a>> {
        let rows = self.fixed_rows(state, call)?;
        let Some(first) = rows.first() else { return Err(RuntimeError::NotFloat) };
        let [heads, _, head_dim] = first.layer.view.shape;
        let (elems, shared) = (heads * capacity * head_dim, pool.unwrap_or(first.layer.pool));
        let lies = |(number, row): (usize, &FixedRow<'_>)| {
            row.layer.pool.id() == shared.id()
                && row.layer.view.shape == [heads, capacity, head_dim]
                && row.start == first.start + number * elems
        };
        if rows.iter().enumerate().all(lies) {
            return Ok(StateInput::Fixed(first.layer.pool, first.start..first.start + rows.len() * elems));
        }
        let mut values = Vec::with_capacity(rows.len() * elems);
        for FixedRow { layer, start } in &rows {
            let [_, tokens, _] = layer.view.shape;
            let guard = layer.pool.storage_and_layout().0;
            for head in 0..heads {
                let at = start + head * tokens * head_dim;
                let end = values.len() + capacity * head_dim;
                extend(&mut values, &guard, at..at + call.past * head_dim)?;
                values.resize(end, 0.0);
            }
        }
        Ok(StateInput::Gathered(values, vec![rows.len(), 1, heads, capacity, head_dim]))
    }

    /// Calls `body` with an input for each state, which all are as they were behind it but for those that are renewed.
    pub(super) fn lend<'p, R>(
        &self,
        states: &[StateBinding],
        ports: &dyn Fn(usize) -> &'p [Option<usize>],
        renews: bool,
        lanes: Lanes<'_>,
        body: impl FnOnce(Vec<Input<'_>>) -> Result<R>,
    ) -> Result<R> {
        let mut held = Vec::with_capacity(states.len());
        for (number, state) in states.iter().enumerate() {
            held.push(match renews && is_replaced(state.part) {
                true => self.renewed(state, lanes)?,
                false => self.held_by(state, ports(number), lanes)?,
            });
        }
        // A pool is lent to be written once, with all that lies in it.
        let fixed = held.iter().find_map(|held| match held {
            StateInput::Fixed(pool, _) => Some(*pool),
            _ => None,
        });
        for ((number, state), held) in states.iter().enumerate().zip(&mut held) {
            let elsewhere = matches!(held, StateInput::Fixed(pool, _) if Some(pool.id()) != fixed.map(Tensor::id));
            if let (true, Some(&call), Some(&Some(capacity))) = (elsewhere, lanes.calls.first(), ports(number).get(3)) {
                *held = self.fixed(state, capacity, call, fixed)?;
            }
        }
        // For an input whose batch may be open.
        let shape = |number: usize| ports(number).iter().map(|size| size.unwrap_or(1)).collect();
        let with = |mut pool: Option<SliceMut<'_>>| {
            let mut ranges: Vec<Range<usize>> = held.iter().filter_map(StateInput::range).collect();
            ranges.sort_unstable_by_key(|range| range.start);
            let mut parts: Vec<(usize, SliceMut<'_>)> = Vec::new();
            let mut done = 0;
            for range in ranges {
                let (part, rest) = pool.take().ok_or(RuntimeError::NotFloat)?.cut(range.start - done, range.len());
                parts.push((range.start, part));
                (pool, done) = (Some(rest), range.end);
            }
            let mut inputs = Vec::with_capacity(held.len());
            for (number, held) in held.iter_mut().enumerate() {
                inputs.push(match held {
                    StateInput::Renewed(states) => {
                        let mut shape: Vec<usize> = shape(number);
                        shape.iter_mut().take(1).for_each(|batch| *batch = states.slots.len());
                        Input::renewed(states.clone(), shape)
                    }
                    StateInput::Gathered(values, shape) => Input::scratch(SliceMut::Float(values), shape.clone()),
                    StateInput::Lent(storage, range) => Input::new(numbers(storage, range.clone())?, shape(number)),
                    StateInput::Fixed(_, range) => {
                        let at =
                            parts.iter().position(|(start, _)| *start == range.start).ok_or(RuntimeError::NotFloat)?;
                        Input::scratch(parts.swap_remove(at).1, shape(number))
                    }
                });
            }
            body(inputs)
        };
        match fixed {
            Some(pool) => {
                let lent = Lent { body: RefCell::new(Some(with)), result: RefCell::new(None) };
                pool.inplace_op1(&lent)?;
                lent.result.into_inner().unwrap_or(Err(RuntimeError::NotFloat))
            }
            None => with(None),
        }
    }

    /// The slot of a call's sequence.
    fn slot(&self, call: Call) -> Option<usize> {
        self.metadata.slots.get(call.sequence).and_then(|&slot| usize::try_from(slot).ok())
    }

    /// A layer's state and the first element of the sequence's part of its pool.
    fn state(&self, layer: u32, kind: &Kind, call: Call) -> Result<(StateLayer<'a>, usize)> {
        let state = self.caches.state_layer(self.caches.route(layer, kind)?)?;
        let slot = self.slot(call).ok_or_else(|| ManagerError::UnknownLayer { layer, kind: kind.clone() })?;
        Ok((state, slot * state.view.slot_elems + state.view.layer_offset))
    }

    /// Keys, values or both of the tokens so far, `[1, heads, capacity, head_dim]` with an axis before the heads for both.
    fn gathered(&self, layer: u32, sides: &[usize], capacity: usize, call: Call) -> Result<StateInput<'a>> {
        let KvLayer { pool, view, paged, .. } = self.caches.kv_layer(self.caches.route(layer, &Kind::KvPaged)?)?;
        let table = self.metadata.pools[paged].row(call.sequence);
        let guard = pool.storage_and_layout().0;
        let (heads, head_dim) = (view.num_kv_heads, view.head_dim);
        let mut values = Vec::with_capacity(sides.len() * heads * capacity * head_dim);
        for (&kv, head) in sides.iter().flat_map(|kv| (0..heads).map(move |head| (kv, head))) {
            for token in 0..call.past {
                let block = usize::try_from(table[token / view.tokens_per_block]).unwrap_or(0);
                let at = block * view.block_elems + view.row_offset(kv, head, token % view.tokens_per_block);
                extend(&mut values, &guard, at..at + head_dim)?;
            }
            values.resize(values.len() + (capacity - call.past) * head_dim, 0.0);
        }
        let both: &[usize] = if sides.len() == 2 { &[1, 2] } else { &[1] };
        Ok(StateInput::Gathered(values, [both, &[heads, capacity, head_dim]].concat()))
    }

    /// The last inputs of a convolution, `[1, channels, columns]`. Graphs may keep a column more than the pool does, which
    /// carries nothing.
    fn convolution(&self, layer: u32, call: Call) -> Result<StateInput<'a>> {
        let (state, start) = self.state(layer, &Kind::CausalConv, call)?;
        let guard = state.pool.storage_and_layout().0;
        let mut stored = Vec::new();
        extend(&mut stored, &guard, start..start + state.view.elems())?;
        let StateLayerView { shape: [kept, channels, _], .. } = state.view;
        let columns = kept + 1;
        let mut values = vec![0.0; channels * columns];
        for (column, row) in stored.chunks_exact(channels).enumerate() {
            row.iter().enumerate().for_each(|(channel, value)| values[channel * columns + column + 1] = *value);
        }
        Ok(StateInput::Gathered(values, vec![1, channels, columns]))
    }

    /// Writes what is new of all states but those that were renewed.
    pub(super) fn write(
        &self,
        states: &[StateBinding],
        new: Vec<Option<Vec<f32>>>,
        call: Call,
        count: usize,
    ) -> Result<()> {
        let mut paged: BTreeMap<u32, [Option<Vec<f32>>; 2]> = BTreeMap::new();
        for (state, values) in states.iter().zip(new) {
            let Some(values) = values else { continue };
            match state.part {
                StatePart::Keys => paged.entry(layer_of(state)).or_default()[0] = Some(values),
                StatePart::Values => paged.entry(layer_of(state)).or_default()[1] = Some(values),
                StatePart::KeysAndValues => {
                    let (keys, values) = values.split_at(values.len() / 2);
                    *paged.entry(layer_of(state)).or_default() = [Some(keys.to_vec()), Some(values.to_vec())];
                }
                StatePart::Convolution => {
                    let (layer, start) = self.state(layer_of(state), &Kind::CausalConv, call)?;
                    let [kept, channels, _] = layer.view.shape;
                    let columns = values.len() / channels;
                    // The last columns, one behind the other.
                    let rows = (columns - kept..columns).flat_map(|column| {
                        let values = &values;
                        (0..channels).map(move |channel| values[channel * columns + column])
                    });
                    let rows: Vec<f32> = rows.collect();
                    layer.pool.inplace_op1(&Write { starts: vec![start], values: &rows })?;
                }
                StatePart::Fixed => {
                    let rows = self.fixed_rows(state, call)?;
                    let each = values.len().checked_div(rows.len()).unwrap_or(0).max(1);
                    for (FixedRow { layer, start }, values) in rows.iter().zip(values.chunks_exact(each)) {
                        // One stretch of columns for each head.
                        let [heads, tokens, head_dim] = layer.view.shape;
                        let starts = (0..heads).map(|head| start + (head * tokens + call.past) * head_dim).collect();
                        layer.pool.inplace_op1(&Write { starts, values })?;
                    }
                }
                _ => {
                    let (layer, start) = self.state(layer_of(state), &Kind::Ssm, call)?;
                    layer.pool.inplace_op1(&Write { starts: vec![start], values: &values })?;
                }
            }
        }
        for (layer, [keys, values]) in paged {
            let KvLayer { pool, view, paged, .. } = self.caches.kv_layer(self.caches.route(layer, &Kind::KvPaged)?)?;
            let slot_mapping = &self.metadata.pools[paged].slot_mapping[call.row..call.row + count];
            let rows = |values: Option<Vec<f32>>| {
                let values = values.unwrap_or_default();
                Tensor::from_vec(values, (view.num_kv_heads, count, view.head_dim), &Device::Cpu)?
                    .transpose(0, 1)?
                    .contiguous()?
                    .to_dtype(pool.dtype())
            };
            let (k, v) = (rows(keys)?, rows(values)?);
            KvWrite::new(&k, Some(&v), slot_mapping).run(&Backend::Cpu.run(), pool, &view)?;
        }
        Ok(())
    }
}

impl StateInput<'_> {
    fn range(&self) -> Option<Range<usize>> {
        match self {
            Self::Fixed(_, range) => Some(range.clone()),
            Self::Lent(..) | Self::Renewed(_) | Self::Gathered(..) => None,
        }
    }
}

/// Whether an output takes the whole place of a state.
pub(super) fn is_replaced(part: StatePart) -> bool {
    matches!(part, StatePart::Convolution | StatePart::Recurrence)
}

/// The layer of a state that is of one.
fn layer_of(state: &StateBinding) -> u32 {
    state.layers.first().copied().unwrap_or(0)
}

/// Calls a body with a pool's numbers, which candle lends to be written within an op only.
struct Lent<F, R> {
    body: RefCell<Option<F>>,
    result: RefCell<Option<Result<R>>>,
}

impl<F, R> InplaceOp1 for Lent<F, R>
where
    F: FnOnce(Option<SliceMut<'_>>) -> Result<R>,
{
    fn name(&self) -> &'static str {
        "lend_state"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        let pool = match storage {
            CpuStorage::F32(stored) => SliceMut::Float(stored),
            CpuStorage::F16(stored) => SliceMut::Half(stored),
            CpuStorage::BF16(stored) => SliceMut::Brain(stored),
            other => candle_core::bail!("the pool is {:?}, which graphs do not read", other.dtype()),
        };
        if let Some(body) = self.body.take() {
            self.result.replace(Some(body(Some(pool))));
        }
        Ok(())
    }
}

/// Writes stretches of equal length into a pool.
struct Write<'a> {
    starts: Vec<usize>,
    values: &'a [f32],
}

impl InplaceOp1 for Write<'_> {
    fn name(&self) -> &'static str {
        "write_state"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        match storage {
            CpuStorage::F32(stored) => self.write(stored, |x| x),
            CpuStorage::F16(stored) => self.write(stored, f16::from_f32),
            CpuStorage::BF16(stored) => self.write(stored, bf16::from_f32),
            other => candle_core::bail!("the pool is {:?}, which graphs do not write", other.dtype()),
        }
        Ok(())
    }
}

impl Write<'_> {
    fn write<T>(&self, stored: &mut [T], store: impl Fn(f32) -> T) {
        let len = self.values.len() / self.starts.len().max(1);
        for (&start, values) in self.starts.iter().zip(self.values.chunks_exact(len.max(1))) {
            stored[start..start + len].iter_mut().zip(values).for_each(|(stored, x)| *stored = store(*x));
        }
    }
}
