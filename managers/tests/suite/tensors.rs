//! The pools hold what the kernels write, wherever the books put it.

use crate::of_books;
use crate::support::{Setup, hybrid, kv};
use cacheplan_handlers::{DType, Kind, KvLayout, ResourceHandler};
use cacheplan_kernels::{Backend, KvWrite};
use cacheplan_managers::book::{Accepted, SequenceId, StepMetadata, Work};
use cacheplan_managers::device::{CacheManager, CacheSet, LayerState};
use cacheplan_managers::{BookError, Lack, ManagerError, Scarce};
use candle_core::{Device, Tensor};
use rstest::rstest;

const HEADS: usize = 2;
const DIM: usize = 8;

fn set(setup: &Setup) -> CacheSet {
    CacheSet::allocate(&setup.plan(), &Device::Cpu).unwrap()
}

/// Keys whose every element is the token's number.
fn tokens(range: std::ops::Range<u32>) -> Tensor {
    let rows: Vec<f32> = range.clone().flat_map(|token| vec![token as f32; HEADS * DIM]).collect();
    Tensor::from_vec(rows, (range.len(), HEADS, DIM), &Device::Cpu).unwrap()
}

/// Advances a sequence and writes numbered keys, values being their negatives, at layer 1.
fn write(manager: &mut CacheManager, sequence: SequenceId, count: u32, first: u32) {
    let mut step = StepMetadata::default();
    manager.step(&[Work { sequence, tokens: count }], &mut step).unwrap();
    store(manager, &step, &tokens(first..first + count));
}

fn store(manager: &CacheManager, step: &StepMetadata, keys: &Tensor) {
    let layer = manager.kv_layer(manager.route(1, &Kind::KvPaged).unwrap()).unwrap();
    let values = keys.neg().unwrap();
    let slots = &step.pools[layer.paged].slot_mapping;
    KvWrite::new(keys, Some(&values), slots).run(&Backend::Cpu.run(), layer.pool, &layer.view).unwrap();
}

/// The first element of each key, after checking that all elements of a token agree and that the value is its negative.
fn read(manager: &CacheManager, sequence: SequenceId) -> Vec<f32> {
    let dense = manager.read_kv(sequence, manager.route(1, &Kind::KvPaged).unwrap()).unwrap();
    let rows: Vec<Vec<f32>> = dense.keys.flatten_from(1).unwrap().to_vec2().unwrap();
    let values: Vec<Vec<f32>> = dense.values.unwrap().flatten_from(1).unwrap().to_vec2().unwrap();
    for (key, value) in rows.iter().zip(&values) {
        assert!(key.iter().all(|element| element == &key[0]), "{key:?}");
        assert!(value.iter().all(|element| *element == -key[0]), "{value:?}");
    }
    rows.into_iter().map(|row| row[0]).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<f32> {
    range.map(|token| token as f32).collect()
}

fn set_state(manager: &CacheManager, sequence: SequenceId, value: f32) {
    let slot = manager.book().slot(sequence).unwrap().unwrap();
    for kind in [Kind::Ssm, Kind::CausalConv] {
        let layer = manager.state_layer(manager.route(0, &kind).unwrap()).unwrap();
        let row = Tensor::full(value, (1, layer.view.slot_elems), &Device::Cpu).unwrap();
        let row = row.to_dtype(layer.pool.dtype()).unwrap();
        layer.pool.slice_set(&row, 0, slot.0 as usize).unwrap();
    }
}

/// The one value that all states of a sequence have.
fn state(manager: &CacheManager, sequence: SequenceId) -> f32 {
    let mut found = Vec::new();
    for layer in [0, 2] {
        for kind in [Kind::Ssm, Kind::CausalConv] {
            let state = manager.read_state(sequence, manager.route(layer, &kind).unwrap()).unwrap();
            let state = state.to_dtype(candle_core::DType::F32).unwrap();
            found.extend(state.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        }
    }
    assert!(found.iter().all(|value| *value == found[0]), "{found:?}");
    found[0]
}

#[rstest]
fn chunked_writes_read_back_in_order(#[values(KvLayout::Hnd, KvLayout::Nhd)] layout: KvLayout) {
    let setup = Setup::new().with(0, kv(3, 8).with_layout(layout)).with(1, kv(HEADS as u64, 8).with_layout(layout));
    let mut set = set(&setup);
    let manager = set.manager_mut().unwrap();
    let (first, second) = (manager.admit(7).unwrap(), manager.admit(3).unwrap());
    write(manager, first, 3, 0);
    write(manager, second, 3, 100);
    write(manager, first, 4, 3);
    write(manager, first, 6, 7);
    write(manager, second, 1, 103);
    assert_eq!(read(manager, first), numbers(0..13));
    assert_eq!(read(manager, second), numbers(100..104));
}

#[test]
fn a_new_sequence_starts_from_zero_states_whatever_the_slot_held() {
    let mut set = set(&hybrid());
    let manager = set.manager_mut().unwrap();
    manager.fill(f64::NAN).unwrap();
    let sequence = manager.admit(4).unwrap();
    assert_eq!(state(manager, sequence), 0.0);
    set_state(manager, sequence, 7.0);
    manager.finish(sequence).unwrap();
    let next = manager.admit(4).unwrap();
    assert_eq!(state(manager, next), 0.0);
}

#[test]
fn a_fork_diverges_from_its_parent() {
    let mut set = set(&hybrid());
    let manager = set.manager_mut().unwrap();
    let parent = manager.admit(6).unwrap();
    write(manager, parent, 6, 0);
    set_state(manager, parent, 6.0);
    let child = manager.fork(parent).unwrap();
    write(manager, child, 3, 50);
    set_state(manager, child, 9.0);
    write(manager, parent, 1, 6);
    manager.fill_free(f64::NAN).unwrap();
    assert_eq!(read(manager, parent), numbers(0..7));
    assert_eq!(read(manager, child), [numbers(0..6), numbers(50..53)].concat());
    assert_eq!((state(manager, parent), state(manager, child)), (6.0, 9.0));
}

#[test]
fn a_window_releases_blocks_and_keeps_the_visible_tokens() {
    let windowed = kv(HEADS as u64, 8).with_window(6).unwrap();
    let mut set = set(&Setup::new().with(1, windowed).blocks(4));
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(1).unwrap();
    for token in 0..40 {
        write(manager, sequence, 1, token);
        manager.fill_free(f64::NAN).unwrap();
        let kept = read(manager, sequence);
        let visible = kept.len().min(6);
        assert_eq!(kept[kept.len() - visible..], numbers(token + 1 - visible as u32..token + 1));
    }
}

#[test]
fn a_captured_state_is_restored_with_the_blocks_of_its_length() {
    let mut set = set(&hybrid());
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(10).unwrap();
    write(manager, sequence, 5, 0);
    set_state(manager, sequence, 5.0);
    let captured = manager.capture(sequence).unwrap();
    write(manager, sequence, 5, 5);
    set_state(manager, sequence, 10.0);
    manager.restore(sequence, &captured).unwrap();
    assert_eq!((state(manager, sequence), read(manager, sequence)), (5.0, numbers(0..5)));
    write(manager, sequence, 2, 5);
    assert_eq!(read(manager, sequence), numbers(0..7));
}

/// Into a sequence of another manager, as from a file.
#[test]
fn states_are_captured_and_restored_layer_by_layer() {
    let (mut one, mut other) = (set(&hybrid()), set(&hybrid()));
    let manager = one.manager_mut().unwrap();
    let sequence = manager.admit(5).unwrap();
    write(manager, sequence, 5, 0);
    set_state(manager, sequence, 5.0);
    let mut layers = manager.capture(sequence).unwrap().layers().unwrap();
    let of = |layers: &[LayerState], layer, kind| {
        layers.iter().position(|state| (state.layer, &state.kind) == (Some(layer), &kind)).unwrap()
    };
    for (layer, kind) in [(0, Kind::Ssm), (0, Kind::CausalConv), (2, Kind::Ssm), (2, Kind::CausalConv)] {
        let at = of(&layers, layer, kind.clone());
        let view = manager.state_layer(manager.route(layer, &kind).unwrap()).unwrap().view;
        assert_eq!(layers[at].values.dims(), [&[1][..], &view.shape[..]].concat());
    }
    // Only one layer is changed on the way.
    let changed = of(&layers, 2, Kind::Ssm);
    layers[changed].values = layers[changed].values.affine(0.0, 9.0).unwrap();
    let target = other.manager_mut().unwrap();
    let receiver = target.admit(5).unwrap();
    write(target, receiver, 5, 0);
    let captured = target.state_of_layers(5, &layers).unwrap();
    target.restore(receiver, &captured).unwrap();
    let slot = target.book().slot(receiver).unwrap().unwrap();
    let first = |layer, kind: &Kind| {
        let state = target.state_layer(target.route(layer, kind).unwrap()).unwrap();
        let row =
            state.pool.get(slot.0 as usize).unwrap().narrow(0, state.view.layer_offset, state.view.elems()).unwrap();
        let values: Vec<f32> = row.to_dtype(candle_core::DType::F32).unwrap().to_vec1().unwrap();
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        values[0]
    };
    let found = [first(0, &Kind::Ssm), first(0, &Kind::CausalConv), first(2, &Kind::Ssm), first(2, &Kind::CausalConv)];
    assert_eq!(found, [5.0, 5.0, 9.0, 5.0]);
}

#[rstest]
#[case::missing(|layers: &mut Vec<LayerState>| layers.truncate(1), "is missing")]
#[case::twice(|layers: &mut Vec<LayerState>| layers.push(layers[0].clone()), "it is there twice")]
#[case::of_no_layer(|layers: &mut Vec<LayerState>| layers[0].layer = Some(1), "state of layer 1: the plan has none")]
#[case::of_another_shape(|layers: &mut Vec<LayerState>| layers[0].values = layers[0].values.unsqueeze(0).unwrap(), "expected [1, ")]
fn states_of_layers_that_are_not_the_plans_are_refused(
    #[case] change: impl Fn(&mut Vec<LayerState>),
    #[case] message: &str,
) {
    let mut set = set(&hybrid());
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(1).unwrap();
    let mut layers = manager.capture(sequence).unwrap().layers().unwrap();
    change(&mut layers);
    let refused = manager.state_of_layers(0, &layers).unwrap_err();
    assert!(matches!(refused, ManagerError::ForeignState(_)) && refused.to_string().contains(message), "{refused}");
}

#[test]
fn states_are_cleared_where_nobody_holds_any() {
    let mut set = set(&hybrid());
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(4).unwrap();
    set_state(manager, sequence, 7.0);
    assert!(matches!(manager.clear_states(), Err(ManagerError::StatesInUse { slots: 1 })));
    assert_eq!(state(manager, sequence), 7.0);
    manager.finish(sequence).unwrap();
    // What warming up may leave in slots that nobody holds.
    let sums = |manager: &CacheManager| -> Vec<f32> {
        let sum = |kind: &Kind| {
            let layer = manager.state_layer(manager.route(0, kind).unwrap()).unwrap();
            let whole = layer.pool.to_dtype(candle_core::DType::F32).unwrap().abs().unwrap();
            whole.sum_all().unwrap().to_scalar().unwrap()
        };
        [Kind::Ssm, Kind::CausalConv].iter().map(sum).collect()
    };
    manager.fill_free(3.0).unwrap();
    assert!(sums(manager).iter().all(|sum| *sum > 0.0));
    manager.clear_states().unwrap();
    assert_eq!(sums(manager), [0.0, 0.0]);
}

#[test]
fn a_captured_state_of_other_pools_is_refused() {
    let (mut one, mut other) = (set(&hybrid()), set(&Setup::new().with(1, kv(2, 8)).with(0, crate::support::ssm())));
    let sequence = one.manager_mut().unwrap().admit(1).unwrap();
    let captured = one.manager().unwrap().capture(sequence).unwrap();
    let target = other.manager_mut().unwrap().admit(1).unwrap();
    let refused = other.manager_mut().unwrap().restore(target, &captured).unwrap_err();
    assert!(matches!(refused, ManagerError::ForeignState(_)), "{refused}");
}

/// Writes the candidate's number plus `base` into every draft state of the first row.
fn set_drafts(manager: &CacheManager, base: f32) {
    for kind in [Kind::IntermediateSsm, Kind::IntermediateCausalConv] {
        let layer = manager.state_layer(manager.route(0, &kind).unwrap()).unwrap();
        let elems = layer.view.elems();
        let members = layer.view.slot_elems / (elems * layer.positions);
        let rows: Vec<f32> = (0..members)
            .flat_map(|_| (0..layer.positions).flat_map(|position| vec![base + position as f32; elems]))
            .collect();
        let row = Tensor::from_vec(rows, (1, layer.view.slot_elems), &Device::Cpu).unwrap();
        layer.pool.slice_set(&row.to_dtype(layer.pool.dtype()).unwrap(), 0, 1).unwrap();
    }
}

fn speculative() -> Setup {
    let twin = |handler: ResourceHandler| handler.intermediate().unwrap();
    hybrid()
        .with(0, twin(crate::support::ssm()))
        .with(0, twin(crate::support::conv()))
        .with(2, twin(crate::support::ssm()))
        .with(2, twin(crate::support::conv()))
}

#[rstest]
#[case(0, 6.0)]
#[case(1, 10.0)]
#[case(3, 12.0)]
#[case(4, 13.0)]
fn blocks_and_states_commit_the_same_tokens(#[case] accepted: u32, #[case] expected: f32) {
    let mut set = set(&speculative());
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(6).unwrap();
    write(manager, sequence, 6, 0);
    set_state(manager, sequence, 6.0);
    let mut step = StepMetadata::default();
    manager.speculate(&[Work { sequence, tokens: 4 }], &mut step).unwrap();
    store(manager, &step, &tokens(6..10));
    set_drafts(manager, 10.0);
    manager.commit(&[(sequence, Accepted::First(accepted))]).unwrap();
    manager.fill_free(f64::NAN).unwrap();
    assert_eq!(state(manager, sequence), expected);
    assert_eq!(read(manager, sequence), numbers(0..6 + accepted));
    write(manager, sequence, 2, 6 + accepted);
    assert_eq!(read(manager, sequence), numbers(0..8 + accepted));
}

#[test]
fn a_path_through_the_token_tree_is_gathered_in_order() {
    let mut set = set(&speculative());
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(3).unwrap();
    write(manager, sequence, 3, 0);
    let mut step = StepMetadata::default();
    manager.speculate(&[Work { sequence, tokens: 4 }], &mut step).unwrap();
    store(manager, &step, &tokens(20..24));
    set_drafts(manager, 10.0);
    manager.commit(&[(sequence, Accepted::Path(&[1, 3]))]).unwrap();
    assert_eq!(read(manager, sequence), [numbers(0..3), vec![21.0, 23.0]].concat());
    assert_eq!(state(manager, sequence), 13.0);
}

#[test]
fn compacted_slots_keep_their_states() {
    let mut set = set(&hybrid());
    let manager = set.manager_mut().unwrap();
    let sequences: Vec<_> = (0..4).map(|_| manager.admit(1).unwrap()).collect();
    for (number, &sequence) in sequences.iter().enumerate() {
        set_state(manager, sequence, number as f32);
    }
    manager.finish(sequences[0]).unwrap();
    manager.finish(sequences[2]).unwrap();
    let moves = manager.compact_slots().unwrap();
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].sequence, moves[0].from.0, moves[0].to.0), (sequences[3], 4, 1));
    manager.fill_free(f64::NAN).unwrap();
    assert_eq!((state(manager, sequences[1]), state(manager, sequences[3])), (1.0, 3.0));
}

#[test]
fn an_offloaded_sequence_comes_back_as_it_was() {
    // A slot of two layers' states, and 2 blocks of 4 tokens, for one sequence and not two.
    let bytes = 2 * (2 * 3 * 4 * 4 + 5 * 3 * 2) + 2 * (2 * 2 * 4 * 8 * 4);
    let mut set = set(&hybrid().host(bytes + bytes / 2));
    let manager = set.manager_mut().unwrap();
    let (sequence, other) = (manager.admit(6).unwrap(), manager.admit(6).unwrap());
    write(manager, sequence, 6, 0);
    write(manager, other, 6, 50);
    set_state(manager, sequence, 6.0);
    manager.offload(sequence).unwrap();
    let refused = manager.offload(other).unwrap_err();
    let lack = Lack { of: Scarce::HostBytes, needed: bytes, free: bytes / 2, capacity: bytes + bytes / 2 };
    assert_eq!(of_books(refused), BookError::Lack(lack));
    let used = |manager: &CacheManager| {
        let host = manager.book().host_stats().unwrap();
        (host.used_bytes, host.high_water_bytes, host.refused)
    };
    assert_eq!(used(manager), (bytes, bytes, 1));
    manager.fill_free(f64::NAN).unwrap();
    assert!(matches!(
        manager.capture(sequence).map_err(of_books),
        Err(BookError::WrongState { found: "offloaded", .. })
    ));
    manager.onload(sequence).unwrap();
    assert_eq!(used(manager), (0, bytes, 1));
    write(manager, sequence, 1, 6);
    assert_eq!((state(manager, sequence), read(manager, sequence)), (6.0, numbers(0..7)));
    manager.offload(sequence).unwrap();
    manager.finish(sequence).unwrap();
    assert_eq!(used(manager), (0, bytes, 1));
}

#[test]
fn a_plan_without_a_host_tier_offloads_nothing() {
    let mut set = set(&hybrid());
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(6).unwrap();
    assert_eq!(of_books(manager.offload(sequence).unwrap_err()), BookError::NoHostTier);
    assert_eq!(manager.book().host_stats(), None);
    write(manager, sequence, 6, 0);
}

#[test]
fn a_host_tier_that_holds_more_than_a_new_plan_gives_it_is_not_resized_away() {
    let mut set = set(&hybrid().host(1 << 20));
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(6).unwrap();
    write(manager, sequence, 6, 0);
    manager.offload(sequence).unwrap();
    assert_eq!(of_books(set.resize(&hybrid().plan()).unwrap_err()), BookError::NoHostTier);
    let small = hybrid().host(8).blocks(20).plan();
    assert!(matches!(set.resize(&small).map_err(of_books), Err(BookError::Lack(Lack { of: Scarce::HostBytes, .. }))));
    assert!(matches!(
        set.rebalance(&small).map_err(of_books),
        Err(BookError::Lack(Lack { of: Scarce::HostBytes, .. }))
    ));
    set.resize(&hybrid().host(1 << 20).blocks(20).plan()).unwrap();
    set.manager_mut().unwrap().onload(sequence).unwrap();
    assert_eq!(read(set.manager().unwrap(), sequence), numbers(0..6));
}

#[test]
fn capacity_moves_from_blocks_to_slots_under_a_live_sequence() {
    let mut set = set(&hybrid().blocks(16));
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(6).unwrap();
    write(manager, sequence, 6, 0);
    set_state(manager, sequence, 6.0);
    let mut target = hybrid().blocks(4);
    target.slots.live = 9;
    set.rebalance(&target.plan()).unwrap();
    let manager = set.manager_mut().unwrap();
    assert_eq!((state(manager, sequence), read(manager, sequence)), (6.0, numbers(0..6)));
    write(manager, sequence, 10, 6);
    assert_eq!(read(manager, sequence), numbers(0..16));
    assert_eq!(manager.book().free_live_slots(), 8);
    let refused = set.rebalance(&hybrid().blocks(3).plan()).unwrap_err();
    assert!(matches!(refused, ManagerError::Book(BookError::UnitInUse { unit: 4, units: 4, .. })), "{refused}");
}

#[test]
fn a_resize_refuses_live_sequences_and_keeps_those_on_the_host() {
    let mut set = set(&hybrid().host(1 << 20));
    let manager = set.manager_mut().unwrap();
    let (first, last) = (manager.admit(6).unwrap(), manager.admit(9).unwrap());
    write(manager, first, 6, 0);
    write(manager, last, 9, 100);
    set_state(manager, last, 9.0);
    manager.finish(first).unwrap();
    let small = hybrid().host(1 << 20).blocks(3).plan();
    let refused = set.resize(&small).unwrap_err();
    assert_eq!(of_books(refused), BookError::Busy { sequences: 1, blocks: 3, slots: 1 });
    set.manager_mut().unwrap().offload(last).unwrap();
    set.resize(&hybrid().host(1 << 20).blocks(2).plan()).unwrap();
    let too_small = of_books(set.manager_mut().unwrap().onload(last).unwrap_err());
    assert!(
        matches!(too_small, BookError::Lack(Lack { of: Scarce::Blocks { .. }, needed: 3, free: 2, .. })),
        "{too_small}"
    );
    set.resize(&small).unwrap();
    let manager = set.manager_mut().unwrap();
    manager.onload(last).unwrap();
    assert_eq!((state(manager, last), read(manager, last)), (9.0, numbers(100..109)));
    assert_eq!(manager.book().tokens(first).unwrap_err(), BookError::StaleSequence(first));
}

#[test]
fn a_handle_of_another_manager_is_refused() {
    let (mut one, mut other) = (set(&hybrid()), set(&hybrid()));
    let sequence = one.manager_mut().unwrap().admit(1).unwrap();
    let refused = other.manager_mut().unwrap().fork(sequence).unwrap_err();
    assert_eq!(of_books(refused), BookError::ForeignSequence(sequence));
}

#[test]
fn a_packed_pool_is_seen_in_bytes() {
    let handler = ResourceHandler::kv_paged(2, 64, DType::Q8_0).unwrap();
    let set = set(&Setup::new().with(0, handler));
    let manager = set.manager().unwrap();
    let layer = manager.kv_layer(manager.route(0, &Kind::KvPaged).unwrap()).unwrap();
    assert_eq!((layer.view.head_dim, layer.view.block_elems), (68, 2 * 2 * 4 * 68));
}

#[test]
fn a_layer_without_a_cache_is_an_error_that_names_it() {
    let set = set(&hybrid());
    let refused = set.manager().unwrap().route(7, &Kind::Ssm).unwrap_err();
    assert!(matches!(refused, ManagerError::UnknownLayer { layer: 7, kind: Kind::Ssm }), "{refused}");
}
