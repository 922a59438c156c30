//! Pools of 8 and 4 bits keep every byte of a row, its scales included, wherever the books move it.

use crate::support::Setup;
use cacheplan_handlers::{DType, Kind, KvLayout, ResourceHandler};
use cacheplan_managers::book::{Accepted, SequenceId, StepMetadata, Work};
use cacheplan_managers::device::{CacheManager, CacheSet};
use candle_core::{Device, Tensor};
use rstest::rstest;

const HEADS: usize = 2;
const HEAD_DIM: u64 = 64;

/// Keys and values and a state, all narrow, and a host tier.
fn setup(dtype: DType, layout: KvLayout) -> Setup {
    let kv = ResourceHandler::kv_paged(HEADS as u64, HEAD_DIM, dtype).unwrap().with_layout(layout);
    let state = ResourceHandler::ssm(1, 3, HEAD_DIM, dtype).unwrap();
    let twin = state.intermediate().unwrap();
    Setup::new().with(0, kv.clone()).with(1, kv).with(2, state).with(2, twin).host(1 << 20)
}

/// Byte `at` of a row: small enough to be exact in an 8-bit float.
fn byte(token: u32, kv: usize, head: usize, at: usize) -> f32 {
    ((token as usize * 7 + kv * 5 + head * 3 + at) % 16) as f32
}

/// The bytes of a state that was written with `number`, in the dtype of a pool.
fn state(number: u32, elems: usize, like: &Tensor) -> Tensor {
    let row: Vec<f32> = (0..elems).map(|at| byte(number, 0, 0, at)).collect();
    Tensor::from_vec(row, (1, elems), &Device::Cpu).unwrap().to_dtype(like.dtype()).unwrap()
}

/// Leaves the states after candidates `first..` in a draft row.
fn draft(manager: &CacheManager, step: &StepMetadata, first: u32) {
    let layer = manager.state_layer(manager.route(2, &Kind::IntermediateSsm).unwrap()).unwrap();
    let positions = (first..).take(layer.positions).map(|number| state(number, layer.view.elems(), layer.pool));
    let row = Tensor::cat(&positions.collect::<Vec<_>>(), 1).unwrap();
    layer.pool.slice_set(&row, 0, step.draft_rows[0] as usize).unwrap();
}

/// Writes rows of a layer as a kernel does, byte by byte.
fn write(manager: &CacheManager, step: &StepMetadata, first: u32) {
    for number in 0..2 {
        let layer = manager.kv_layer(manager.route(number, &Kind::KvPaged).unwrap()).unwrap();
        let view = layer.view;
        let flat = layer.pool.flatten_all().unwrap();
        for (token, &slot) in (first..).zip(&step.pools[layer.paged].slot_mapping) {
            let (block, entry) = (slot as usize / view.tokens_per_block, slot as usize % view.tokens_per_block);
            for (kv, head) in (0..2).flat_map(|kv| (0..HEADS).map(move |head| (kv, head))) {
                let row: Vec<f32> = (0..view.head_dim).map(|at| byte(token + number, kv, head, at)).collect();
                let row = Tensor::new(row, &Device::Cpu).unwrap().to_dtype(layer.pool.dtype()).unwrap();
                flat.slice_set(&row, 0, block * view.block_elems + view.row_offset(kv, head, entry)).unwrap();
            }
        }
    }
    for &slot in &step.slots {
        let layer = manager.state_layer(manager.route(2, &Kind::Ssm).unwrap()).unwrap();
        layer.pool.slice_set(&state(first, layer.view.slot_elems, layer.pool), 0, slot as usize).unwrap();
    }
}

fn grow(manager: &mut CacheManager, sequence: SequenceId, tokens: u32, first: u32) {
    let mut step = StepMetadata::default();
    manager.step(&[Work { sequence, tokens }], &mut step).unwrap();
    write(manager, &step, first);
}

/// Checks that a sequence's rows are those of `tokens`, in both layers, and its state that written with `state`.
#[track_caller]
fn assert_holds(manager: &CacheManager, sequence: SequenceId, tokens: &[u32], state: u32) {
    let bytes = |tensor: &Tensor| {
        tensor.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    for number in 0..2 {
        let dense = manager.read_kv(sequence, manager.route(number, &Kind::KvPaged).unwrap()).unwrap();
        for (kv, values) in [(0, &dense.keys), (1, dense.values.as_ref().unwrap())] {
            let width = values.dims()[2];
            let rows = tokens.iter().flat_map(|&token| (0..HEADS).map(move |head| (token, head)));
            let expected = rows.flat_map(|(token, head)| (0..width).map(move |at| byte(token + number, kv, head, at)));
            assert_eq!(bytes(values), expected.collect::<Vec<_>>());
        }
    }
    let found = bytes(&manager.read_state(sequence, manager.route(2, &Kind::Ssm).unwrap()).unwrap());
    assert_eq!(found, (0..found.len()).map(|at| byte(state, 0, 0, at)).collect::<Vec<_>>());
}

#[rstest]
fn rows_with_their_scales_survive_every_move(
    #[values(
        DType::F8E4m3,
        DType::F8E5m2,
        DType::Int8,
        DType::Int8PerTokenHead,
        DType::Nvfp4,
        DType::Mxfp4,
        DType::Q8_0,
        DType::Q4_0
    )]
    dtype: DType,
    #[values(KvLayout::Hnd, KvLayout::Nhd)] layout: KvLayout,
) {
    let mut set = CacheSet::allocate(&setup(dtype, layout).plan(), &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let view = manager.kv_layer(manager.route(0, &Kind::KvPaged).unwrap()).unwrap().view;
    let row_bytes = dtype.row_bytes(HEAD_DIM).unwrap() as usize;
    assert_eq!((view.head_dim, view.block_elems), (row_bytes, 2 * 2 * HEADS * 4 * row_bytes));
    // What the slot held before does not matter.
    manager.fill(7.0).unwrap();
    let parent = manager.admit(6).unwrap();
    let zeroed = manager.read_state(parent, manager.route(2, &Kind::Ssm).unwrap()).unwrap();
    let zeroed = zeroed.to_dtype(candle_core::DType::F32).unwrap().sum_all().unwrap();
    assert_eq!(zeroed.to_scalar::<f32>().unwrap(), 0.0);

    grow(manager, parent, 6, 0);
    let captured = manager.capture(parent).unwrap();
    // Copy on write of the partial block.
    let child = manager.fork(parent).unwrap();
    grow(manager, child, 3, 50);
    grow(manager, parent, 1, 6);
    manager.fill_free(9.0).unwrap();
    assert_holds(manager, parent, &[0, 1, 2, 3, 4, 5, 6], 6);
    assert_holds(manager, child, &[0, 1, 2, 3, 4, 5, 50, 51, 52], 50);

    // Candidates accepted out of order.
    let mut step = StepMetadata::default();
    manager.speculate(&[Work { sequence: child, tokens: 4 }], &mut step).unwrap();
    draft(manager, &step, 80);
    write(manager, &StepMetadata { slots: Vec::new(), ..step }, 70);
    manager.commit(&[(child, Accepted::Path(&[1, 3]))]).unwrap();
    let path = [0, 1, 2, 3, 4, 5, 50, 51, 52, 71, 73];
    assert_holds(manager, child, &path, 83);

    // To the host and back, and into other pools.
    manager.offload(child).unwrap();
    manager.fill_free(9.0).unwrap();
    manager.onload(child).unwrap();
    assert_holds(manager, child, &path, 83);
    set.rebalance(&setup(dtype, layout).blocks(40).plan()).unwrap();
    assert_holds(set.manager().unwrap(), child, &path, 83);
    set.rebalance(&setup(dtype, layout).blocks(20).plan()).unwrap();
    let manager = set.manager_mut().unwrap();
    assert_holds(manager, child, &path, 83);
    manager.restore(parent, &captured).unwrap();
    assert_holds(manager, parent, &[0, 1, 2, 3, 4, 5], 0);
}
