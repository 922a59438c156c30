//! Caches leave for other systems' layouts and come back unchanged.

use crate::support::{Setup, kv};
use cacheplan_handlers::{DType, Kind, ResourceHandler};
use cacheplan_kernels::MlaCacheMode;
use cacheplan_managers::ManagerError;
use cacheplan_managers::book::{Accepted, SequenceId, StepMetadata, Work};
use cacheplan_managers::device::{CacheManager, CacheSet, MlaBlocks, MlaCache};
use candle_core::{Device, Tensor};
use rstest::rstest;

const LATENT: usize = 32;
const ROPE: usize = 16;

#[rstest]
fn conv_states_convert_without_loss(#[values(2, 3, 4)] d_conv: usize, #[values(true, false)] keep_oldest: bool) {
    let wide = Tensor::arange(0f32, (5 * d_conv) as f32, &Device::Cpu).unwrap().reshape((5, d_conv)).unwrap();
    let (state, oldest) = CacheManager::narrow_conv_state(&wide).unwrap();
    assert_eq!(state.dims(), [d_conv - 1, 5]);
    let back = CacheManager::widen_conv_state(&state, keep_oldest.then_some(&oldest)).unwrap();
    let rows: Vec<Vec<f32>> = back.to_vec2().unwrap();
    for (row, original) in rows.iter().zip(wide.to_vec2::<f32>().unwrap()) {
        assert_eq!(row[1..], original[1..]);
        assert_eq!(row[0], if keep_oldest { original[0] } else { 0.0 });
    }
}

/// Which resources hold an MLA layer, by mode.
fn setup(mode: MlaCacheMode, latent: usize, rope: usize, dtype: DType) -> Setup {
    let nz = matches!(mode, MlaCacheMode::Int8Nz | MlaCacheMode::Nz);
    let columns =
        |width: usize, column: usize| if nz { [width / column, column] } else { [1, width] }.map(|n| n as u64);
    let latents = if mode == MlaCacheMode::Int8Nz { DType::Int8 } else { dtype };
    let layer = |setup: Setup, layer: u32| match mode {
        MlaCacheMode::KvCache => {
            setup.with(layer, ResourceHandler::mla_paged(latent as u64, rope as u64, dtype).unwrap())
        }
        _ => {
            let c0 = |dtype: DType| 32 / dtype.row_bytes(1).unwrap() as usize;
            let ([columns_of_latent, latent], [columns_of_rope, rope]) =
                (columns(latent, c0(latents)), columns(rope, c0(dtype)));
            let latent = ResourceHandler::mla_latent(columns_of_latent, latent, latents).unwrap();
            setup.with(layer, latent).with(layer, ResourceHandler::mla_rope(columns_of_rope, rope, dtype).unwrap())
        }
    };
    layer(layer(Setup::new(), 0), 1)
}

/// A sequence of 6 tokens in pools of a mode, with its cache of layer 1.
struct World {
    set: CacheSet,
    sequence: SequenceId,
    cache: MlaCache,
}

const SCALE: f32 = 0.5;

impl World {
    fn new(mode: MlaCacheMode) -> Self {
        let mut set = CacheSet::allocate(&setup(mode, LATENT, ROPE, DType::F32).plan(), &Device::Cpu).unwrap();
        let manager = set.manager_mut().unwrap();
        let rope = match mode {
            MlaCacheMode::KvCache => None,
            _ => Some(manager.route(1, &Kind::MlaRope).unwrap()),
        };
        let cache = manager.mla_cache(manager.route(1, &Kind::MlaPaged).unwrap(), rope, LATENT, SCALE).unwrap();
        assert_eq!(cache.mode, mode);
        let sequence = manager.admit(6).unwrap();
        manager.step(&[Work { sequence, tokens: 6 }], &mut StepMetadata::default()).unwrap();
        Self { set, sequence, cache }
    }

    /// Rows of 2 blocks that count up in steps of 1/8.
    fn counting() -> MlaBlocks {
        let width = LATENT + ROPE;
        let rows = (Tensor::arange(0f32, (8 * width) as f32, &Device::Cpu).unwrap() / 8.0).unwrap();
        let latent = rows.reshape((2, 4, 1, width)).unwrap();
        MlaBlocks { mode: MlaCacheMode::KvCache, latent, rope: None, scale: 1.0, kv_lora_rank: LATENT }
    }

    fn import(&mut self, blocks: &MlaBlocks) {
        self.set.manager_mut().unwrap().import_mla(self.sequence, &self.cache, blocks).unwrap();
    }

    fn export(&self) -> MlaBlocks {
        self.set.manager().unwrap().export_mla(self.sequence, &self.cache).unwrap()
    }
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Checks that rope keys are the same, and latents too up to `bound`.
#[track_caller]
fn assert_rows(found: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = if index % (LATENT + ROPE) < LATENT { bound } else { 0.0 };
        assert!((found - expected).abs() <= bound, "element {index}: {found} is not {expected}");
    }
}

const MODES: [MlaCacheMode; 4] =
    [MlaCacheMode::KvCache, MlaCacheMode::KropeCtkv, MlaCacheMode::Int8Nz, MlaCacheMode::Nz];

#[rstest]
fn latents_move_between_pools_of_any_two_modes(#[values(0, 1, 2, 3)] from: usize, #[values(0, 1, 2, 3)] to: usize) {
    let (mut from, mut to) = (World::new(MODES[from]), World::new(MODES[to]));
    let counting = World::counting();
    // What 8 bits can hold at this scale.
    let small = MlaBlocks { latent: (&counting.latent / 2.0).unwrap(), ..counting };
    from.import(&small);
    to.import(&from.export());
    let lossy = [from.cache.mode, to.cache.mode].contains(&MlaCacheMode::Int8Nz);
    let bound = if lossy { SCALE / 2.0 } else { 0.0 };
    let expected = flat(&small.to_rows().unwrap());
    let in_range = |rows: Vec<f32>| rows.into_iter().map(|value| value.min(63.5)).collect::<Vec<_>>();
    assert_rows(&in_range(flat(&to.export().to_rows().unwrap())), &in_range(expected), bound);
    // Back again nothing more is lost.
    let kept = flat(&to.export().to_rows().unwrap());
    from.import(&to.export());
    assert_rows(&flat(&from.export().to_rows().unwrap()), &kept, 0.0);
}

#[rstest]
#[case(MlaCacheMode::KvCache, vec![2, 4, 1, LATENT + ROPE], None)]
#[case(MlaCacheMode::KropeCtkv, vec![2, 4, 1, LATENT], Some(vec![2, 4, 1, ROPE]))]
#[case(MlaCacheMode::Int8Nz, vec![2, LATENT / 32, 4, 32], Some(vec![2, ROPE / 8, 4, 8]))]
#[case(MlaCacheMode::Nz, vec![2, LATENT / 8, 4, 8], Some(vec![2, ROPE / 8, 4, 8]))]
fn blocks_have_the_shapes_of_their_mode(
    #[case] mode: MlaCacheMode,
    #[case] latent: Vec<usize>,
    #[case] rope: Option<Vec<usize>>,
) {
    let mut world = World::new(mode);
    world.import(&World::counting());
    let blocks = world.export();
    assert_eq!(blocks.latent.dims(), latent);
    assert_eq!(blocks.rope.as_ref().map(|rope| rope.dims().to_vec()), rope);
}

#[rstest]
#[case(0, 1152)]
#[case(1, 1152)]
#[case(2, 640)]
#[case(3, 1152)]
fn a_token_takes_the_bytes_of_its_mode(#[case] mode: usize, #[case] bytes: u64) {
    let setup = setup(MODES[mode], 512, 64, DType::Bf16);
    let plan = setup.plan();
    let set = CacheSet::allocate(&plan, &Device::Cpu).unwrap();
    let per_block: u64 = plan.pools.iter().map(|pool| pool.unit_bytes).sum();
    assert_eq!(per_block, 2 * setup.tokens_per_block * bytes);
    for pool in set.bytes().unwrap() {
        assert_eq!(pool.actual_bytes, Some(pool.planned_bytes), "pool {}", pool.id);
    }
}

#[rstest]
fn a_candidate_accepted_out_of_order_moves_whole_in_every_mode(#[values(0, 1, 2, 3)] mode: usize) {
    let mut world = World::new(MODES[mode]);
    world.import(&World::counting());
    let stored = flat(&world.export().to_rows().unwrap());
    let row = |token: usize| stored[token * (LATENT + ROPE)..][..LATENT + ROPE].to_vec();
    let (sequence, manager) = (world.sequence, world.set.manager_mut().unwrap());
    // The rows behind the 6 tokens are those of two candidates.
    manager.speculate(&[Work { sequence, tokens: 2 }], &mut StepMetadata::default()).unwrap();
    manager.commit(&[(sequence, Accepted::Path(&[1]))]).unwrap();
    let found = flat(&world.export().to_rows().unwrap());
    assert_eq!(found[..7 * (LATENT + ROPE)], [&stored[..6 * (LATENT + ROPE)], &row(7)].concat());
}

#[test]
fn blocks_that_a_fork_reads_too_are_not_overwritten() {
    let mut world = World::new(MlaCacheMode::KropeCtkv);
    world.import(&World::counting());
    let manager = world.set.manager_mut().unwrap();
    manager.fork(world.sequence).unwrap();
    let refused = manager.import_mla(world.sequence, &world.cache, &World::counting()).unwrap_err();
    assert!(matches!(refused, ManagerError::BlockShared { .. }), "{refused}");
}

#[test]
fn nz_order_puts_an_element_where_the_operator_looks_for_it() {
    let mut world = World::new(MlaCacheMode::Nz);
    world.import(&World::counting());
    let (nz, rows) = (flat(&world.export().latent), flat(&World::counting().to_rows().unwrap()));
    // 32 bytes of f32 are 8 elements.
    let (block_size, c0) = (4, 8);
    for (block, slot, dim) in [(0, 0, 0), (0, 3, 7), (0, 1, 8), (1, 1, 31)] {
        let offset = block * block_size * LATENT + dim / c0 * block_size * c0 + slot * c0 + dim % c0;
        assert_eq!(nz[offset], rows[(block * block_size + slot) * (LATENT + ROPE) + dim]);
    }
}

#[test]
fn a_layer_in_nz_order_reads_as_rows_and_stays_so_in_other_pools() {
    let mut world = World::new(MlaCacheMode::Nz);
    world.import(&World::counting());
    let counting = World::counting().to_rows().unwrap().reshape((8, LATENT + ROPE)).unwrap();
    let expected = flat(&counting.narrow(0, 0, 6).unwrap().narrow(1, 0, LATENT).unwrap().contiguous().unwrap());
    let read = |set: &CacheSet, sequence| {
        let manager = set.manager().unwrap();
        flat(&manager.read_kv(sequence, manager.route(1, &Kind::MlaPaged).unwrap()).unwrap().keys)
    };
    assert_eq!(read(&world.set, world.sequence), expected);
    world.set.rebalance(&setup(MlaCacheMode::Nz, LATENT, ROPE, DType::F32).blocks(20).plan()).unwrap();
    assert_eq!(read(&world.set, world.sequence), expected);
}

#[test]
fn keys_and_values_are_no_latents() {
    let mut set = CacheSet::allocate(&Setup::new().with(0, kv(1, 8)).plan(), &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(1).unwrap();
    let cache = manager.mla_cache(manager.route(0, &Kind::KvPaged).unwrap(), None, 4, 1.0).unwrap();
    assert!(manager.export_mla(sequence, &cache).is_err());
}

#[rstest]
fn int8_latents_need_a_scale(#[values(0.0, -1.0, f32::NAN, f32::INFINITY)] scale: f32) {
    let world = World::new(MlaCacheMode::Int8Nz);
    let manager = world.set.manager().unwrap();
    let (latent, rope) = (manager.route(1, &Kind::MlaPaged).unwrap(), manager.route(1, &Kind::MlaRope).unwrap());
    let refused = manager.mla_cache(latent, Some(rope), LATENT, scale).unwrap_err();
    assert!(refused.to_string().contains("positive and finite"), "{refused}");
    World::counting().to_mode(MlaCacheMode::Int8Nz, scale).unwrap_err();
    let stored = World::counting().to_mode(MlaCacheMode::Int8Nz, SCALE).unwrap();
    MlaBlocks { scale, ..stored }.to_rows().unwrap_err();
}
