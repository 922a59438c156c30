//! What a graph is given of the pools, and where its outputs go.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};

use cacheplan_graphs::{Input, Slice, SliceMut, View};
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
use crate::error::RuntimeError;

/// The step's pools.
pub(super) struct Pools<'a> {
    pub(super) caches: &'a CacheManager,
    pub(super) metadata: &'a StepMetadata,
}

/// What a graph is given for a state.
enum StateInput<'a> {
    /// Where it lies in its pool, to be read.
    Lent(Box<dyn Deref<Target = Storage> + 'a>, Range<usize>),
    /// Where it lies in the pool of fixed caches, to be written until the call ends.
    Fixed(Range<usize>),
    /// Put together for this call.
    Gathered(Vec<f32>, Vec<usize>),
}

/// A part of a pool, as it is stored.
fn numbers(storage: &Storage, range: Range<usize>) -> Result<Slice<'_>, RuntimeError> {
    match storage {
        Storage::Cpu(CpuStorage::F32(values)) => Ok(Slice::Float(&values[range])),
        Storage::Cpu(CpuStorage::F16(values)) => Ok(Slice::Half(&values[range])),
        Storage::Cpu(CpuStorage::BF16(values)) => Ok(Slice::Brain(&values[range])),
        _ => Err(RuntimeError::NotFloat),
    }
}

/// Adds a part of a pool.
fn extend(values: &mut Vec<f32>, storage: &Storage, range: Range<usize>) -> Result<(), RuntimeError> {
    match numbers(storage, range)? {
        Slice::Float(stored) => values.extend_from_slice(stored),
        Slice::Half(stored) => values.extend(stored.iter().map(|x| x.to_f32())),
        Slice::Brain(stored) => values.extend(stored.iter().map(|x| x.to_f32())),
        Slice::Int(_) => return Err(RuntimeError::NotFloat),
    }
    Ok(())
}

/// Whether a state is a part of the one cache of all layers, in a shape that is fixed.
fn is_fixed(part: StatePart) -> bool {
    matches!(part, StatePart::FixedKeys | StatePart::FixedValues | StatePart::FixedLatents)
}

/// The cache that a state is, as far as the graph's own shapes tell: of a convolution they do not.
pub(super) fn cache_of(state: &StateBinding, shape: &[Option<usize>]) -> Result<Option<CacheUse>, String> {
    let layer = state.layer;
    Ok(match (state.part, shape) {
        (StatePart::FixedKeys, &[Some(layers), Some(1), Some(heads), Some(tokens), Some(head_dim)]) => {
            Some(CacheUse::new(layer, Kind::State, [2, layers, heads, tokens, head_dim]))
        }
        (StatePart::FixedLatents, &[Some(layers), Some(1), Some(heads), Some(tokens), Some(width)]) => {
            Some(CacheUse::new(layer, Kind::State, [1, layers, heads, tokens, width]))
        }
        (StatePart::Keys, &[_, Some(heads), None, Some(head_dim)]) => {
            Some(CacheUse::new(layer, Kind::KvPaged, [2, heads, head_dim]))
        }
        (StatePart::KeysAndValues, &[_, Some(2), Some(heads), _, Some(head_dim)]) => {
            Some(CacheUse::new(layer, Kind::KvPaged, [2, heads, head_dim]))
        }
        (StatePart::Recurrence, &[_, Some(heads), Some(head_dim), Some(d_state)]) => {
            Some(CacheUse::new(layer, Kind::Ssm, [heads, head_dim, d_state]))
        }
        (StatePart::FixedValues | StatePart::Values, _) | (StatePart::Convolution, &[_, Some(_), Some(_)]) => None,
        _ => return Err(format!("a state of shape {shape:?} is not carried")),
    })
}

/// Of an output that takes the place of a state: what is new.
pub(super) fn new_part(state: &StateBinding, made: &View<'_>, past: usize, count: usize) -> Option<Vec<f32>> {
    match state.part {
        StatePart::Keys | StatePart::Values => made.narrow(2, past, count)?.floats(),
        StatePart::FixedKeys | StatePart::FixedValues | StatePart::FixedLatents | StatePart::KeysAndValues => {
            made.narrow(3, past, count)?.floats()
        }
        _ => made.floats(),
    }
}

impl<'a> Pools<'a> {
    /// What the pools hold of a sequence's state, with room for so many tokens.
    fn held(&self, state: &StateBinding, capacity: usize, call: Call) -> Result<StateInput<'a>, RuntimeError> {
        match state.part {
            StatePart::Keys => self.gathered(state.layer, &[0], call.past, call),
            StatePart::Values => self.gathered(state.layer, &[1], call.past, call),
            StatePart::KeysAndValues => self.gathered(state.layer, &[0, 1], capacity, call),
            StatePart::Convolution => self.convolution(state.layer, call),
            part => {
                let (layer, range) = self.row(state, part, call)?;
                Ok(match part {
                    part if is_fixed(part) => StateInput::Fixed(range),
                    _ => StateInput::Lent(Box::new(layer.pool.storage_and_layout().0), range),
                })
            }
        }
    }

    /// The same of several sequences, one behind the other.
    fn held_by(
        &self,
        state: &StateBinding,
        port: &[Option<usize>],
        lanes: &[Call],
    ) -> Result<StateInput<'a>, RuntimeError> {
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
                StateInput::Fixed(_) => return Err(RuntimeError::NotFloat),
            };
        }
        if let Some(batch) = shape.first_mut() {
            *batch = lanes.len();
        }
        Ok(StateInput::Gathered(values, shape))
    }

    /// Calls `body` with an input for each state, which all are as they were behind it.
    pub(super) fn lend<'p, R>(
        &self,
        states: &[StateBinding],
        ports: &dyn Fn(usize) -> &'p [Option<usize>],
        lanes: &[Call],
        body: impl FnOnce(Vec<Input<'_>>) -> Result<R, RuntimeError>,
    ) -> Result<R, RuntimeError> {
        let mut held = Vec::with_capacity(states.len());
        for (number, state) in states.iter().enumerate() {
            held.push(self.held_by(state, ports(number), lanes)?);
        }
        // For an input whose batch may be open.
        let shape = |number: usize| ports(number).iter().map(|size| size.unwrap_or(1)).collect();
        let fixed = states.iter().find(|state| is_fixed(state.part));
        let with = |mut pool: Option<SliceMut<'_>>| {
            let mut ranges: Vec<Range<usize>> = held.iter().filter_map(StateInput::fixed).collect();
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
                    StateInput::Gathered(values, shape) => Input::scratch(SliceMut::Float(values), shape.clone()),
                    StateInput::Lent(storage, range) => Input::new(numbers(storage, range.clone())?, shape(number)),
                    StateInput::Fixed(range) => {
                        let at =
                            parts.iter().position(|(start, _)| *start == range.start).ok_or(RuntimeError::NotFloat)?;
                        Input::scratch(parts.swap_remove(at).1, shape(number))
                    }
                });
            }
            body(inputs)
        };
        match fixed.zip(lanes.first()) {
            Some((state, &call)) => {
                let (layer, _) = self.row(state, state.part, call)?;
                let lent = Lent { body: RefCell::new(Some(with)), result: RefCell::new(None) };
                layer.pool.inplace_op1(&lent)?;
                lent.result.into_inner().unwrap_or(Err(RuntimeError::NotFloat))
            }
            None => with(None),
        }
    }

    /// Where a state lies that is its input as it is.
    fn row(
        &self,
        state: &StateBinding,
        part: StatePart,
        call: Call,
    ) -> Result<(StateLayer<'a>, Range<usize>), RuntimeError> {
        let kind = if part == StatePart::Recurrence { Kind::Ssm } else { Kind::State };
        let (layer, start) = self.state(state.layer, &kind, call)?;
        let elems = layer.view.elems();
        let range = match part {
            StatePart::FixedKeys => start..start + elems / 2,
            StatePart::FixedValues => start + elems / 2..start + elems,
            _ => start..start + elems,
        };
        Ok((layer, range))
    }

    /// A layer's state and the first element of the sequence's part of its pool.
    fn state(&self, layer: u32, kind: &Kind, call: Call) -> Result<(StateLayer<'a>, usize), RuntimeError> {
        let state = self.caches.state_layer(self.caches.route(layer, kind)?)?;
        let slot = self.metadata.slots.get(call.sequence).and_then(|&slot| usize::try_from(slot).ok());
        let slot = slot.ok_or_else(|| ManagerError::UnknownLayer { layer, kind: kind.clone() })?;
        Ok((state, slot * state.view.slot_elems + state.view.layer_offset))
    }

    /// Keys, values or both of the tokens so far, `[1, heads, capacity, head_dim]` with an axis before the heads for both.
    fn gathered(
        &self,
        layer: u32,
        sides: &[usize],
        capacity: usize,
        call: Call,
    ) -> Result<StateInput<'a>, RuntimeError> {
        let KvLayer { pool, view, paged, .. } = self.caches.kv_layer(self.caches.route(layer, &Kind::KvPaged)?)?;
        let step = &self.metadata.pools[paged];
        let table = &step.block_tables[call.sequence * step.max_blocks..][..step.max_blocks];
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
    fn convolution(&self, layer: u32, call: Call) -> Result<StateInput<'a>, RuntimeError> {
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

    /// Writes what is new of all states.
    pub(super) fn write(
        &self,
        states: &[StateBinding],
        new: Vec<Vec<f32>>,
        call: Call,
        count: usize,
    ) -> Result<(), RuntimeError> {
        let mut paged: BTreeMap<u32, [Option<Vec<f32>>; 2]> = BTreeMap::new();
        for (state, values) in states.iter().zip(new) {
            match state.part {
                StatePart::Keys => paged.entry(state.layer).or_default()[0] = Some(values),
                StatePart::Values => paged.entry(state.layer).or_default()[1] = Some(values),
                StatePart::KeysAndValues => {
                    let (keys, values) = values.split_at(values.len() / 2);
                    *paged.entry(state.layer).or_default() = [Some(keys.to_vec()), Some(values.to_vec())];
                }
                StatePart::Convolution => {
                    let (layer, start) = self.state(state.layer, &Kind::CausalConv, call)?;
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
                part => {
                    let (layer, range) = self.row(state, part, call)?;
                    let starts = if part == StatePart::Recurrence {
                        vec![range.start]
                    } else {
                        // One stretch of columns for each head of each layer.
                        let [_, tokens, head_dim] = layer.view.shape;
                        range.step_by(tokens * head_dim).map(|head| head + call.past * head_dim).collect()
                    };
                    layer.pool.inplace_op1(&Write { starts, values: &values })?;
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
    fn fixed(&self) -> Option<Range<usize>> {
        match self {
            Self::Fixed(range) => Some(range.clone()),
            Self::Lent(..) | Self::Gathered(..) => None,
        }
    }
}

/// Calls a body with a pool's numbers, which candle lends to be written within an op only.
struct Lent<F, R> {
    body: RefCell<Option<F>>,
    result: RefCell<Option<Result<R, RuntimeError>>>,
}

impl<F, R> InplaceOp1 for Lent<F, R>
where
    F: FnOnce(Option<SliceMut<'_>>) -> Result<R, RuntimeError>,
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
