//! A commit leaves the bits of having stepped the accepted candidates one by one, in attention and states alike.

use crate::support::{Setup, hybrid};
use cacheplan_handlers::{DType, Dim, Growth, Kind, ResourceHandler};
use cacheplan_kernels::{Backend, CausalConv1d, KvWrite, Mamba2Scan, ScanInput, StateBatch, StateLayerView, TimeStep};
use cacheplan_managers::book::{Accepted, SequenceId, StepMetadata, Work};
use cacheplan_managers::device::{CacheManager, CacheSet, ReplayLayer, StateLayer};
use cacheplan_managers::{BookError, ManagerError};
use candle_core::{Device, Tensor};
use rstest::rstest;

const LAYERS: [u32; 2] = [0, 2];
const HEADS: usize = 2;
const HEAD_DIM: usize = 3;
const D_STATE: usize = 4;
const CHANNELS: usize = 5;
const CANDIDATES: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scheme {
    Snapshots,
    Replay,
}

/// The plan of a scheme, as the planner makes it.
fn setup(scheme: Scheme) -> Setup {
    if scheme == Scheme::Snapshots {
        let twins = |setup: Setup, layer| {
            setup
                .with(layer, crate::support::ssm().intermediate().unwrap())
                .with(layer, crate::support::conv().intermediate().unwrap())
        };
        return LAYERS.into_iter().fold(hybrid(), twins);
    }
    let conv = ResourceHandler::causal_conv(CHANNELS as u64, 4, vec![], DType::Bf16).unwrap();
    let wide = conv.with_candidates(CANDIDATES.into()).unwrap();
    let plain = Setup::new().with(0, crate::support::ssm()).with(0, wide.clone()).with(1, crate::support::kv(2, 8));
    LAYERS.into_iter().fold(plain.with(2, crate::support::ssm()).with(2, wide), |setup, layer| {
        setup
            .with(layer, input("replay.x", &[HEADS, HEAD_DIM]))
            .with(layer, input("replay.b", &[1, D_STATE]))
            .with(layer, input("replay.dt", &[HEADS]))
    })
}

fn input(kind: &str, shape: &[usize]) -> ResourceHandler {
    let dims = shape.iter().enumerate().map(|(axis, &size)| Dim::whole(format!("dim{axis}"), size as u64)).collect();
    ResourceHandler::new(Kind::Custom(kind.into()), Growth::PerDraftPosition, dims, DType::Bf16, None).unwrap()
}

/// Activations of one layer for some tokens, rounded to what a stash in bf16 keeps.
struct Activations {
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    conv: Tensor,
}

impl Activations {
    fn new(layer: u32, tokens: usize) -> Self {
        let made = |salt: usize, width: usize| {
            let values = (0..tokens * width).map(|at| ((at * 37 + salt * 11 + layer as usize * 5) as f32 * 0.7).sin());
            let made = Tensor::from_vec(values.collect::<Vec<_>>(), (tokens, width), &Device::Cpu).unwrap();
            made.to_dtype(candle_core::DType::BF16).unwrap().to_dtype(candle_core::DType::F32).unwrap()
        };
        Self { x: made(1, HEADS * HEAD_DIM), dt: made(2, HEADS), b: made(3, D_STATE), conv: made(4, CHANNELS) }
    }

    fn rows(&self, rows: &[u32]) -> Self {
        let rows = Tensor::new(rows, &Device::Cpu).unwrap();
        let pick = |tensor: &Tensor| tensor.index_select(&rows, 0).unwrap();
        Self { x: pick(&self.x), dt: pick(&self.dt), b: pick(&self.b), conv: pick(&self.conv) }
    }
}

/// Steps a Mamba-2 state over all rows at once.
fn scan(x: &Tensor, dt: &Tensor, b: &Tensor, pool: &Tensor, view: &StateLayerView, slot: u32) {
    let a = Tensor::new(&[-0.3f32, -1.1], &Device::Cpu).unwrap();
    let input = ScanInput { x, dt, b, c: b, z: None };
    let layer = Mamba2Scan { a: &a, d: None, time_step: TimeStep::new(None) };
    let (rows, slots) = ([0, x.dims()[0] as u32], [slot as i32]);
    layer.run(&Backend::Cpu.run(), &input, pool, view, &StateBatch::new(&rows, &slots)).unwrap();
}

fn convolve(x: &Tensor, pool: &Tensor, view: &StateLayerView, slot: u32) {
    let weight = Tensor::ones((4, CHANNELS), candle_core::DType::F32, &Device::Cpu).unwrap();
    let (rows, slots) = ([0, x.dims()[0] as u32], [slot as i32]);
    CausalConv1d { weight: &weight, bias: None, silu: false }
        .run(&Backend::Cpu.run(), x, pool, view, &StateBatch::new(&rows, &slots))
        .unwrap();
}

fn layer<'a>(manager: &'a CacheManager, layer: u32, kind: &Kind) -> StateLayer<'a> {
    manager.state_layer(manager.route(layer, kind).unwrap()).unwrap()
}

/// Steps a sequence over candidates of `drafted`, one token at a time, as decoding does.
fn decode(manager: &mut CacheManager, sequence: SequenceId, drafted: &[Activations], path: &[u32]) {
    for &candidate in path {
        let mut step = StepMetadata::default();
        manager.step(&[Work { sequence, tokens: 1 }], &mut step).unwrap();
        store_kv(manager, &step, &[candidate]);
        let slot = manager.book().slot(sequence).unwrap().unwrap().0;
        for (&number, activations) in LAYERS.iter().zip(drafted) {
            let row = activations.rows(&[candidate]);
            let ssm = layer(manager, number, &Kind::Ssm);
            scan(&row.x, &row.dt, &row.b, ssm.pool, &ssm.view, slot);
            let conv = layer(manager, number, &Kind::CausalConv);
            convolve(&row.conv, conv.pool, &conv.view, slot);
        }
    }
}

/// Writes candidates' keys and values, which are their numbers.
fn store_kv(manager: &CacheManager, step: &StepMetadata, candidates: &[u32]) {
    let layer = manager.kv_layer(manager.route(1, &Kind::KvPaged).unwrap()).unwrap();
    let rows: Vec<f32> = candidates.iter().flat_map(|&candidate| vec![candidate as f32 + 1.0; 16]).collect();
    let keys = Tensor::from_vec(rows, (candidates.len(), 2, 8), &Device::Cpu).unwrap();
    KvWrite::new(&keys, Some(&keys), &step.pools[0].slot_mapping)
        .run(&Backend::Cpu.run(), layer.pool, &layer.view)
        .unwrap();
}

/// What a verify step leaves behind, for candidates that follow `parents`: live states are only read.
fn verify(
    scheme: Scheme,
    manager: &CacheManager,
    step: &StepMetadata,
    drafted: &[Activations],
    parents: &[Option<u32>],
) {
    let all: Vec<u32> = (0..CANDIDATES).collect();
    store_kv(manager, step, &all);
    for (&number, activations) in LAYERS.iter().zip(drafted) {
        if scheme == Scheme::Replay {
            let route = |name: &str| manager.route_of(&format!("{name}_{number}")).unwrap();
            manager.stash(route("replay.x"), step, &activations.x).unwrap();
            manager.stash(route("replay.b"), step, &activations.b).unwrap();
            manager.stash(route("replay.dt"), step, &activations.dt).unwrap();
            manager.stash(route("causal_conv"), step, &activations.conv).unwrap();
            continue;
        }
        for kind in [Kind::Ssm, Kind::CausalConv] {
            let live = layer(manager, number, &kind);
            let twin = if kind == Kind::Ssm { Kind::IntermediateSsm } else { Kind::IntermediateCausalConv };
            let draft = layer(manager, number, &twin);
            let elems = live.view.elems();
            let (slot, row) = (step.slots[0] as usize, step.draft_rows[0] as usize);
            for candidate in 0..CANDIDATES {
                let place = |node: u32| draft.view.layer_offset + node as usize * elems;
                let before = match parents[candidate as usize] {
                    Some(parent) => draft.pool.narrow(0, row, 1).unwrap().narrow(1, place(parent), elems).unwrap(),
                    None => live.pool.narrow(0, slot, 1).unwrap().narrow(1, live.view.layer_offset, elems).unwrap(),
                };
                let state = before.copy().unwrap();
                let view = StateLayerView { slot_elems: elems, layer_offset: 0, shape: live.view.shape };
                let input = activations.rows(&[candidate]);
                match kind {
                    Kind::Ssm => scan(&input.x, &input.dt, &input.b, &state, &view, 0),
                    _ => convolve(&input.conv, &state, &view, 0),
                }
                let start = row * draft.view.slot_elems + place(candidate);
                draft.pool.flatten_all().unwrap().slice_set(&state.flatten_all().unwrap(), 0, start).unwrap();
            }
        }
    }
}

fn replay(layer: &ReplayLayer<'_>) -> Result<(), ManagerError> {
    let input = |kind: &str| layer.input(kind).unwrap().to_dtype(candle_core::DType::F32).unwrap();
    let (x, dt, b) = (input("replay.x"), input("replay.dt"), input("replay.b"));
    scan(&x, &dt, &b, layer.state.pool, &layer.state.view, layer.slot.0);
    Ok(())
}

fn bits(manager: &CacheManager, sequence: SequenceId) -> Vec<u32> {
    let mut bits = Vec::new();
    for number in LAYERS {
        for kind in [Kind::Ssm, Kind::CausalConv] {
            let state = manager.read_state(sequence, manager.route(number, &kind).unwrap()).unwrap();
            let state = state.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap();
            bits.extend(state.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits));
        }
    }
    let kv = manager.read_kv(sequence, manager.route(1, &Kind::KvPaged).unwrap()).unwrap();
    bits.extend(kv.keys.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits));
    bits
}

#[rstest]
#[case::none(&[])]
#[case::one(&[0])]
#[case::some(&[0, 1])]
#[case::all(&[0, 1, 2, 3])]
#[case::a_branch(&[0, 2])]
#[case::a_path_with_gaps(&[1, 3])]
#[case::the_last_root(&[3])]
fn a_commit_is_bit_equal_to_stepping_in_order(
    #[values(Scheme::Snapshots, Scheme::Replay)] scheme: Scheme,
    #[case] path: &[u32],
) {
    let mut set = CacheSet::allocate(&setup(scheme).plan(), &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(6).unwrap();
    let prompt = LAYERS.map(|layer| Activations::new(layer + 10, 6));
    decode(manager, sequence, &prompt, &[0, 1, 2, 3, 4, 5]);
    let twin = manager.fork(sequence).unwrap();
    let drafted = LAYERS.map(|layer| Activations::new(layer, CANDIDATES as usize));
    let mut parents = [None; CANDIDATES as usize];
    path.windows(2).for_each(|pair| parents[pair[1] as usize] = Some(pair[0]));
    let mut step = StepMetadata::default();
    manager.speculate(&[Work { sequence, tokens: CANDIDATES }], &mut step).unwrap();
    verify(scheme, manager, &step, &drafted, &parents);
    manager.commit_replaying(&[(sequence, Accepted::Path(path))], &mut replay).unwrap();
    decode(manager, twin, &drafted, path);
    assert_eq!(bits(manager, sequence), bits(manager, twin));
    // Both go on alike: nothing of the rejected candidates is left.
    decode(manager, sequence, &prompt, &[3, 1]);
    decode(manager, twin, &prompt, &[3, 1]);
    assert_eq!(bits(manager, sequence), bits(manager, twin));
}

#[test]
fn a_commit_without_the_recurrence_is_refused_in_a_plan_that_replays() {
    let mut set = CacheSet::allocate(&setup(Scheme::Replay).plan(), &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(1).unwrap();
    manager.speculate(&[Work { sequence, tokens: 1 }], &mut StepMetadata::default()).unwrap();
    let refused = manager.commit(&[(sequence, Accepted::First(1))]);
    assert!(matches!(refused, Err(ManagerError::NeedsReplay)), "{refused:?}");
    manager.commit_replaying(&[(sequence, Accepted::First(1))], &mut |_| Ok(())).unwrap();
}

#[test]
fn a_commit_takes_all_sequences_or_none() {
    let mut set = CacheSet::allocate(&setup(Scheme::Snapshots).plan(), &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let ids = [manager.admit(3).unwrap(), manager.admit(3).unwrap()];
    let work = ids.map(|sequence| Work { sequence, tokens: 3 });
    manager.step(&work, &mut StepMetadata::default()).unwrap();
    manager.speculate(&work, &mut StepMetadata::default()).unwrap();
    let before = ids.map(|id| bits(manager, id));
    let refused = manager.commit(&[(ids[0], Accepted::First(2)), (ids[1], Accepted::First(4))]).unwrap_err();
    assert!(matches!(refused, ManagerError::Book(BookError::BadAcceptance { .. })), "{refused}");
    assert_eq!(ids.map(|id| bits(manager, id)), before);
    assert_eq!(ids.map(|id| manager.book().tokens(id).unwrap()), [3, 3]);
    manager.commit(&[(ids[0], Accepted::First(2)), (ids[1], Accepted::First(0))]).unwrap();
    assert_eq!(ids.map(|id| manager.book().tokens(id).unwrap()), [5, 3]);
}

#[test]
fn blocks_reserved_for_the_rest_of_a_prompt_outlive_a_speculative_step() {
    let setup = setup(Scheme::Snapshots).blocks(6);
    let mut set = CacheSet::allocate(&setup.plan(), &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(24).unwrap();
    manager.step(&[Work { sequence, tokens: 5 }], &mut StepMetadata::default()).unwrap();
    for accepted in [0, 2] {
        manager.speculate(&[Work { sequence, tokens: 3 }], &mut StepMetadata::default()).unwrap();
        manager.commit(&[(sequence, Accepted::First(accepted))]).unwrap();
        assert_eq!(manager.book().blocks(0).unwrap().available(), 0, "the rest of the prompt lost its blocks");
    }
    manager.step(&[Work { sequence, tokens: 17 }], &mut StepMetadata::default()).unwrap();
}
