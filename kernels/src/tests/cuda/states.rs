//! Which states the kernels over recurrences leave behind: replays, checkpoints, trees.

use super::{TARGET, emulate, random, schedules};
use crate::cuda::{
    conv1d::causal_conv1d, linear_attention::linear_attention, mamba1::mamba1_scan, mamba2::mamba2_scan, rg_lru::rg_lru,
};
use crate::states::States;
use crate::tests::{Random, assert_close, values};
use crate::{
    CausalConv1d, LinearAttentionScan, Mamba1Scan, Mamba2Scan, RgLruScan, ScanInput, StateBatch, StateDecay,
    StateLayerView, StateWrites, TimeStep,
};
use cacheplan_emulator::Options;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

const TOKENS: usize = 19;
const HEADS: usize = 2;
/// States of a channel, keys and values of a head.
const WIDTH: usize = 16;
const HEAD_DIM: usize = 32;
/// Slots of a pool, of which the sequence has one and its tokens some.
const SLOTS: usize = 12;
const SLOT: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Recurrence {
    Mamba1,
    Mamba2,
    GatedDelta,
    RgLru,
    /// Over so many inputs.
    Conv(usize),
}
use Recurrence::{Conv, GatedDelta, Mamba1, Mamba2, RgLru};

/// A layer with the inputs of some tokens.
struct Layer {
    recurrence: Recurrence,
    view: StateLayerView,
    dtype: DType,
    options: Options,
    /// `x`, a time step or a gate of each of its channels.
    channels: [Tensor; 3],
    /// `b` and `c`, keys and queries.
    shared: [Tensor; 2],
    /// Time steps, decays and write strengths of heads.
    heads: Tensor,
    rates: Tensor,
}

impl Layer {
    fn new(recurrence: Recurrence, dtype: DType, options: Options) -> Self {
        let (shape, channels) = match recurrence {
            Mamba1 => ([HEADS * HEAD_DIM, 1, WIDTH], HEADS * HEAD_DIM),
            Mamba2 => ([HEADS, HEAD_DIM, WIDTH], HEADS * HEAD_DIM),
            GatedDelta => ([HEADS, WIDTH, WIDTH], HEADS * WIDTH),
            RgLru => ([HEADS * HEAD_DIM, 1, 1], HEADS * HEAD_DIM),
            Conv(width) => ([width - 1, HEADS * HEAD_DIM, 1], HEADS * HEAD_DIM),
        };
        let mut source = Random::new(61);
        let mut made = |width: usize| random(&mut source, &[TOKENS, width], dtype);
        let elems: usize = shape.iter().product();
        Self {
            recurrence,
            view: StateLayerView::matrix(elems + 16, 8, shape),
            dtype,
            options,
            channels: [(); 3].map(|()| made(channels)),
            shared: [(); 2].map(|()| made(WIDTH)),
            heads: (made(HEADS) - 1.0).unwrap(),
            rates: (source.tensor(&[HEADS * HEAD_DIM * WIDTH]) - 1.5).unwrap(),
        }
    }

    /// Runs the given tokens as one sequence, and returns the output of each.
    fn run(&self, tokens: &[u32], pool: &Tensor, writes: StateWrites<'_>) -> Vec<Vec<f32>> {
        let rows = Tensor::new(tokens, &Device::Cpu).unwrap();
        let pick = |tensor: &Tensor| tensor.index_select(&rows, 0).unwrap();
        let ([x, dt, z], [b, c]) = (self.channels.each_ref().map(pick), self.shared.each_ref().map(pick));
        let (heads, positions) = (pick(&self.heads), vec![1; tokens.len()]);
        let rates = |shape: &[usize]| self.rates.narrow(0, 0, shape.iter().product()).unwrap().reshape(shape).unwrap();
        let (view, lengths) = (&self.view, [0, tokens.len() as u32]);
        let batch = StateBatch::new(&lengths, &[SLOT as i32]).with_writes(writes);
        let time_step = TimeStep::new(None);
        let outputs = match self.recurrence {
            Mamba1 => {
                let a = rates(&[HEADS * HEAD_DIM, WIDTH]);
                let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
                let layer = Mamba1Scan { a: &a, d: None, time_step };
                emulate(
                    &mamba1_scan(&input, &layer, &States { pool, view, batch: &batch }, &TARGET).unwrap(),
                    &self.options,
                )
            }
            Mamba2 => {
                let a = rates(&[HEADS]);
                let input = ScanInput { x: &x, dt: &heads, b: &b, c: &c, z: Some(&z) };
                let layer = Mamba2Scan { a: &a, d: None, time_step };
                emulate(
                    &mamba2_scan(&input, &layer, &States { pool, view, batch: &batch }, &TARGET).unwrap(),
                    &self.options,
                )
            }
            GatedDelta => {
                let (decay, beta) = (StateDecay::PerHead(&heads), Some(&heads));
                let scan = LinearAttentionScan { q: &c, k: &b, v: &x, decay, beta, scale: 0.5, l2_norm: true };
                emulate(
                    &linear_attention(&scan, &States { pool, view, batch: &batch }, &TARGET).unwrap(),
                    &self.options,
                )
            }
            RgLru => {
                let a = rates(&[HEADS * HEAD_DIM]);
                let scan = RgLruScan {
                    x: &x,
                    input_gate: &dt,
                    recurrence_gate: &z,
                    a_param: &a,
                    positions: (&positions).into(),
                };
                emulate(&rg_lru(&scan, &States { pool, view, batch: &batch }, &TARGET).unwrap(), &self.options)
            }
            Conv(width) => {
                let weight = rates(&[width, HEADS * HEAD_DIM]).to_dtype(self.dtype).unwrap();
                let conv = CausalConv1d { weight: &weight, bias: None, silu: true };
                emulate(
                    &causal_conv1d(&conv, &x, &States { pool, view, batch: &batch }, &TARGET).unwrap(),
                    &self.options,
                )
            }
        };
        values(&outputs.outputs[0]).chunks(x.dims()[1]).map(<[f32]>::to_vec).collect()
    }

    /// Slots are wider than the layer. None but that of the sequence holds a number.
    fn pool(&self) -> Tensor {
        let mut data = vec![f32::NAN; SLOTS * self.view.slot_elems];
        let start = SLOT * self.view.slot_elems + self.view.layer_offset;
        data[start..start + self.view.elems()].copy_from_slice(&Random::new(62).vec(self.view.elems()));
        Tensor::from_vec(data, (SLOTS, self.view.slot_elems), &Device::Cpu).unwrap().to_dtype(self.dtype).unwrap()
    }

    /// The outputs, and the pool, after stepping over a path one token at a time.
    fn in_order(&self, path: &[u32]) -> (Vec<Vec<f32>>, Tensor) {
        let pool = self.pool();
        let step = |&token: &u32| self.run(&[token], &pool, StateWrites::Final);
        (path.iter().flat_map(step).collect(), pool)
    }

    /// What `pool` becomes where the state of `source` is put into `slot`.
    fn put(&self, pool: &mut [f32], slot: i32, source: &Tensor) {
        let at = |slot: usize| slot * self.view.slot_elems + self.view.layer_offset;
        let state = &values(source)[at(SLOT)..][..self.view.elems()];
        pool[at(slot as usize)..][..self.view.elems()].copy_from_slice(state);
    }
}

/// Another order of blocks and warps. Approximations are those of the machine, so that bits can be compared.
fn mixed() -> Options {
    Options { perturb: 0, ..schedules().next().unwrap() }
}

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|x| x.to_bits()).collect()
}

fn path_to(parents: &[i32], node: usize) -> Vec<u32> {
    let up = std::iter::successors(Some(node as u32), |&node| u32::try_from(parents[node as usize]).ok());
    let mut path: Vec<u32> = up.collect();
    path.reverse();
    path
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn a_replay_has_the_bits_of_single_steps(
    #[values(Mamba1, Mamba2, GatedDelta, RgLru, Conv(2), Conv(3), Conv(4))] recurrence: Recurrence,
    #[values(DType::F32, DType::BF16, DType::F16)] dtype: DType,
) {
    let layer = Layer::new(recurrence, dtype, mixed());
    let path: Vec<u32> = (0..TOKENS as u32).collect();
    let pool = layer.pool();
    layer.run(&path, &pool, StateWrites::Replay);
    assert_eq!(bits(&values(&pool)), bits(&values(&layer.in_order(&path).1)));
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn checkpoints_are_the_states_of_shorter_steps(
    #[values(Mamba1, Mamba2, GatedDelta, RgLru, Conv(2), Conv(3), Conv(4))] recurrence: Recurrence,
    #[values(DType::F32, DType::BF16, DType::F16)] dtype: DType,
) {
    let layer = Layer::new(recurrence, dtype, mixed());
    let path: Vec<u32> = (0..9).collect();
    let (pool, plain) = (layer.pool(), layer.pool());
    let outputs = layer.run(&path, &pool, StateWrites::AlsoAfter(&[-1, 7, -1, -1, 0, -1, -1, -1, 11]));
    assert_eq!(outputs, layer.run(&path, &plain, StateWrites::Final));
    let mut expected = values(&plain);
    for (after, slot) in [(2, 7), (5, 0), (9, 11)] {
        let shorter = layer.pool();
        layer.run(&path[..after], &shorter, StateWrites::Final);
        layer.put(&mut expected, slot, &shorter);
    }
    assert_eq!(bits(&values(&pool)), bits(&expected));
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn trees_have_the_bits_of_their_paths(
    #[values(Mamba1, Mamba2, GatedDelta, RgLru, Conv(2), Conv(3), Conv(4))] recurrence: Recurrence,
    #[values(DType::F32, DType::BF16, DType::F16)] dtype: DType,
    #[values(true, false)] keeps_states: bool,
) {
    let layer = Layer::new(recurrence, dtype, mixed());
    // 0 - 1 - 3     6
    //  \\- 2 - 4 - 5
    let parents = [-1, 0, 0, 1, 2, 4, -1];
    let slots: &[i32] = if keeps_states { &[5, 0, 1, 11, 4, 2, 7] } else { &[] };
    let pool = layer.pool();
    let mut expected = values(&pool);
    let verified = layer.run(&[0, 1, 2, 3, 4, 5, 6], &pool, StateWrites::Tree { parents: &parents, slots });
    for (node, verified) in verified.iter().enumerate() {
        let path = path_to(&parents, node);
        let (outputs, stepped) = layer.in_order(&path);
        assert_eq!(verified, &outputs[path.len() - 1], "the output of {node}");
        if let Some(&slot) = slots.get(node) {
            layer.put(&mut expected, slot, &stepped);
        }
    }
    assert_eq!(bits(&values(&pool)), bits(&expected), "a sequence's own slot is only read");
}

/// Sequences of more than a few tokens: a checkpoint inside of a chunk, at its end, and behind the last token.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn checkpoints_of_many_tokens_are_the_states_of_shorter_steps(
    #[values(Mamba1, Mamba2, GatedDelta, RgLru, Conv(2), Conv(3), Conv(4))] recurrence: Recurrence,
    #[values((DType::F32, 1e-5), (DType::BF16, 2e-2))] (dtype, tolerance): (DType, f32),
) {
    let layer = Layer::new(recurrence, dtype, mixed());
    let path: Vec<u32> = (0..90).map(|token| token % TOKENS as u32).collect();
    let pool = layer.pool();
    let mut snapshots = [-1; 90];
    (snapshots[10], snapshots[74], snapshots[89]) = (7, 0, 11);
    layer.run(&path, &pool, StateWrites::AlsoAfter(&snapshots));
    let state = |pool: &Tensor, slot: usize| {
        values(pool)[slot * layer.view.slot_elems + layer.view.layer_offset..][..layer.view.elems()].to_vec()
    };
    for (after, slot) in [(11, 7), (75, 0), (90, 11), (90, SLOT)] {
        let shorter = layer.pool();
        layer.run(&path[..after], &shorter, StateWrites::Final);
        assert_close(&state(&pool, slot), &state(&shorter, SLOT), tolerance);
    }
    let mut expected = values(&layer.pool());
    for slot in [7, 0, 11, SLOT as i32] {
        let start = slot as usize * layer.view.slot_elems + layer.view.layer_offset;
        expected[start..start + layer.view.elems()].copy_from_slice(&state(&pool, slot as usize));
    }
    assert_eq!(bits(&values(&pool)), bits(&expected), "nothing else has changed");
}
