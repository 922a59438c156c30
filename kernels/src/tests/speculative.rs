//! Verifying drafted tokens and committing some of them gives the bits of having stepped them one by one.

use super::{Random, assert_close, on_cpu, values};
use crate::*;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

const HEADS: usize = 3;
const HEAD_DIM: usize = 8;
const D_STATE: usize = 20;
const CHANNELS: usize = 24;

/// A Mamba-2 layer and a convolution with activations for some tokens.
struct Layer {
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    a: Tensor,
    conv_x: Tensor,
    conv_weight: Tensor,
}

impl Layer {
    fn new(tokens: usize) -> Self {
        let mut random = Random::new(31);
        Self {
            x: random.tensor(&[tokens, HEADS * HEAD_DIM]),
            dt: random.tensor(&[tokens, HEADS]),
            b: random.tensor(&[tokens, D_STATE]),
            c: random.tensor(&[tokens, D_STATE]),
            a: (random.tensor(&[HEADS]) - 1.5).unwrap(),
            conv_x: random.tensor(&[tokens, CHANNELS]),
            conv_weight: random.tensor(&[4, CHANNELS]),
        }
    }

    /// Runs the given rows and returns both outputs, one after the other per row.
    fn run(&self, rows: &[u32], pools: &Pools, batch: &StateBatch<'_>) -> Vec<Vec<f32>> {
        let rows = Tensor::new(rows, &Device::Cpu).unwrap();
        let pick = |tensor: &Tensor| tensor.index_select(&rows, 0).unwrap();
        let (x, dt, b, c) = (pick(&self.x), pick(&self.dt), pick(&self.b), pick(&self.c));
        let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: None };
        let layer = Mamba2Scan { a: &self.a, d: None, time_step: TimeStep::new(None) };
        let scan = layer.run(&on_cpu(), &input, &pools.ssm, &pools.ssm_view, batch).unwrap();
        let x = pick(&self.conv_x);
        let conv = CausalConv1d { weight: &self.conv_weight, bias: None, silu: true }
            .run(&on_cpu(), &x, &pools.conv, &pools.conv_view, batch)
            .unwrap();
        let rows = |tensor: &Tensor| tensor.to_vec2::<f32>().unwrap();
        rows(&scan).into_iter().zip(rows(&conv)).map(|(scan, conv)| [scan, conv].concat()).collect()
    }
}

struct Pools {
    ssm: Tensor,
    ssm_view: StateLayerView,
    conv: Tensor,
    conv_view: StateLayerView,
}

impl Pools {
    fn new(slots: usize, dtype: DType) -> Self {
        let mut random = Random::new(32);
        let elems = HEADS * HEAD_DIM * D_STATE;
        Self {
            ssm: random.tensor(&[slots, 2 * elems]).to_dtype(dtype).unwrap(),
            ssm_view: StateLayerView::matrix(2 * elems, elems, [HEADS, HEAD_DIM, D_STATE]),
            conv: random.tensor(&[slots, 3 * CHANNELS + 5]).to_dtype(dtype).unwrap(),
            conv_view: StateLayerView::conv(3 * CHANNELS + 5, 5, 4, CHANNELS),
        }
    }

    fn slot(&self, slot: usize) -> Vec<f32> {
        let row = |pool: &Tensor| values(&pool.get(slot).unwrap());
        [row(&self.ssm), row(&self.conv)].concat()
    }
}

/// Steps the rows of `path` one at a time from slot 0 of fresh pools; returns their outputs and the slot.
fn in_order(layer: &Layer, path: &[u32], dtype: DType) -> (Vec<Vec<f32>>, Vec<f32>) {
    let pools = Pools::new(8, dtype);
    let outputs = path.iter().flat_map(|&row| layer.run(&[row], &pools, &StateBatch::new(&[0, 1], &[0]))).collect();
    (outputs, pools.slot(0))
}

#[rstest]
fn a_chain_commits_any_accepted_length(
    #[values(0, 1, 2, 3, 4)] accepted: u32,
    #[values(DType::F32, DType::BF16)] dtype: DType,
) {
    let layer = Layer::new(4);
    let pools = Pools::new(8, dtype);
    let snapshots = [3, 7, 5, 2];
    let writes = StateWrites::Tree { parents: &[-1, 0, 1, 2], slots: &snapshots };
    let batch = StateBatch::new(&[0, 4], &[0]).with_writes(writes);
    let found = layer.run(&[0, 1, 2, 3], &pools, &batch);
    for pool in [&pools.ssm, &pools.conv] {
        let last = accepted.checked_sub(1).map(|last| (snapshots[last as usize] as u32, 0));
        PoolRows(pool).copy(&on_cpu(), last.as_slice()).unwrap();
    }
    let path: Vec<u32> = (0..accepted).collect();
    let (outputs, slot) = in_order(&layer, &path, dtype);
    match dtype {
        DType::F32 => assert_eq!(found[..accepted as usize], outputs[..]),
        // A later token of the same step sees its predecessors' inputs as they came, not as the pool rounds them.
        _ => assert_close(&found[..accepted as usize].concat(), &outputs.concat(), 1e-2),
    }
    // The rest of a slot belongs to other layers, which this step did not run.
    let state = HEADS * HEAD_DIM * D_STATE;
    let layer_part = |slot: &[f32]| [&slot[state..2 * state], &slot[2 * state + 5..]].concat();
    assert_eq!(layer_part(&pools.slot(0)), layer_part(&slot));
}

#[test]
fn a_tree_follows_parents() {
    let layer = Layer::new(6);
    let pools = Pools::new(8, DType::F32);
    // 0 - 1 - 3
    //  \\- 2 - 4 - 5
    let parents = [-1, 0, 0, 1, 2, 4];
    let writes = StateWrites::Tree { parents: &parents, slots: &[1, 2, 3, 4, 5, 6] };
    let before = pools.slot(0);
    let batch = StateBatch::new(&[0, 6], &[0]).with_writes(writes);
    let found = layer.run(&[0, 1, 2, 3, 4, 5], &pools, &batch);
    assert_eq!(pools.slot(0), before, "the committed state is only read");
    for path in [&[0u32, 1, 3][..], &[0, 2, 4, 5]] {
        let (outputs, slot) = in_order(&layer, path, DType::F32);
        for (row, output) in path.iter().zip(outputs) {
            assert_eq!(found[*row as usize], output, "row {row}");
        }
        let last = *path.last().unwrap() as usize;
        let state = HEADS * HEAD_DIM * D_STATE;
        assert_eq!(pools.slot(last + 1)[state..2 * state], slot[state..2 * state]);
    }
}

#[rstest]
fn replaying_the_accepted_prefix_is_stepping_it(#[values(1, 3, 7)] accepted: usize) {
    let layer = Layer::new(7);
    let pools = Pools::new(8, DType::F32);
    let before = pools.slot(0);
    let rows: Vec<u32> = (0..7).collect();
    let verify = StateBatch::new(&[0, 7], &[0]).with_writes(StateWrites::Nothing);
    let verified = layer.run(&rows, &pools, &verify);
    assert_eq!(pools.slot(0), before, "verifying writes nothing");
    let replayed = layer.run(&rows[..accepted], &pools, &StateBatch::new(&[0, accepted as u32], &[0]));
    let (outputs, slot) = in_order(&layer, &rows[..accepted], DType::F32);
    assert_eq!(verified[..accepted], outputs[..]);
    assert_eq!(replayed, outputs);
    assert_eq!(pools.slot(0), slot);
}

/// Checkpoints inside a prefill are the states that shorter prefills end with.
#[test]
fn checkpoints_are_the_states_of_shorter_prefills() {
    let layer = Layer::new(150);
    let pools = Pools::new(4, DType::F32);
    let rows: Vec<u32> = (0..150).collect();
    let mut after = vec![-1; 150];
    (after[63], after[99]) = (1, 2);
    let batch = StateBatch::new(&[0, 150], &[0]).with_writes(StateWrites::AlsoAfter(&after));
    layer.run(&rows, &pools, &batch);
    for (tokens, snapshot) in [(64, 1), (100, 2), (150, 0)] {
        let shorter = Pools::new(4, DType::F32);
        layer.run(&rows[..tokens], &shorter, &StateBatch::new(&[0, tokens as u32], &[0]));
        let state = HEADS * HEAD_DIM * D_STATE;
        assert_close(&pools.slot(snapshot)[state..2 * state], &shorter.slot(0)[state..2 * state], 1e-5);
        assert_eq!(pools.slot(snapshot)[2 * state + 5..], shorter.slot(0)[2 * state + 5..]);
    }
}

#[rstest]
#[case::slot_twice(StateWrites::AlsoAfter(&[1, 1]), "`snapshot slots`[1] is 1")]
#[case::slot_of_a_sequence(StateWrites::AlsoAfter(&[-1, 0]), "`snapshot slots`[1] is 0")]
#[case::later_parent(StateWrites::Tree { parents: &[-1, 1], slots: &[1, 2] }, "`parents`[1] is 1")]
#[case::no_slot(StateWrites::Tree { parents: &[-1, 0], slots: &[1, -1] }, "no snapshot slot")]
fn bad_snapshots_are_refused(#[case] writes: StateWrites<'_>, #[case] message: &str) {
    let pool = Tensor::zeros((4, 3), DType::F32, &Device::Cpu).unwrap();
    let view = StateLayerView::conv(3, 0, 2, 3);
    let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    let weight = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    let batch = StateBatch::new(&[0, 2], &[0]).with_writes(writes);
    let error =
        CausalConv1d { weight: &weight, bias: None, silu: false }.run(&on_cpu(), &x, &pool, &view, &batch).unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
}
