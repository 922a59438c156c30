//! T2: what `CachedSequenceInterface` allocates, and when it lets go.
//!
//! max_seq_len 128, max_batch_size 4, blocks of 32 tokens; `SSM4` is 4 heads of 64 with 16 states in bf16.

use cacheplan_handlers::{DType, Dim, Growth, Kind, ResourceHandler};
use cacheplan_managers::ManagerError;
use cacheplan_managers::book::{StepMetadata, Work};
use cacheplan_managers::device::{CacheManager, CacheSet};
use cacheplan_planner::{Limits, ManagerKind, SlotDomain};
use candle_core::Device;
use rstest::rstest;

use crate::support::Setup;

fn interface() -> Setup {
    let mut setup = Setup::new();
    setup.tokens_per_block = 32;
    setup.slots = SlotDomain { padding: 1, live: 4, checkpoints: 0 };
    setup.limits = Limits { max_seq_len: 128, max_batch_size: 4, max_num_tokens: 516, draft_positions: 1 };
    setup
}

fn kv() -> ResourceHandler {
    ResourceHandler::kv_paged(8, 64, DType::F16).unwrap()
}

fn ssm4() -> ResourceHandler {
    ResourceHandler::ssm(4, 64, 16, DType::Bf16).unwrap()
}

fn conv(conv_dim: u64) -> ResourceHandler {
    ResourceHandler::causal_conv(conv_dim, 4, vec![], DType::F32).unwrap()
}

fn allocate(setup: &Setup) -> CacheSet {
    CacheSet::allocate(&setup.plan(), &Device::Cpu).unwrap()
}

/// Shape of the state of a layer, after checking that its pool is contiguous and zero.
fn state(manager: &CacheManager, layer: u32, kind: &Kind) -> ([usize; 3], candle_core::DType) {
    let state = manager.state_layer(manager.route(layer, kind).unwrap()).unwrap();
    assert!(state.pool.is_contiguous());
    let sum = state.pool.to_dtype(candle_core::DType::F32).unwrap().abs().unwrap().sum_all().unwrap();
    assert_eq!(sum.to_scalar::<f32>().unwrap(), 0.0);
    (state.view.shape, state.pool.dtype())
}

#[test]
fn t2_11_two_kv_resources_need_the_paged_manager_alone() {
    let set = allocate(&interface().with(0, kv()).with(1, kv()));
    let manager = set.manager().unwrap();
    assert_eq!(manager.kind(), ManagerKind::KvCacheManager);
    assert!(manager.mamba().is_none());
    assert_eq!(set.bytes().unwrap().len(), 1);
}

#[test]
fn t2_15_kv_and_state_resources_need_the_hybrid_manager() {
    let set = allocate(&interface().with(0, kv()).with(1, kv()).with(2, ssm4()));
    assert_eq!(set.manager().unwrap().kind(), ManagerKind::MambaHybridCacheManager);
    assert_eq!(set.plan().resources.len(), 3);
}

#[test]
fn t2_16_a_kv_view_is_two_by_heads_by_tokens_by_head_dim() {
    let set = allocate(&interface().with(0, kv()));
    let manager = set.manager().unwrap();
    let layer = manager.kv_layer(manager.route(0, &Kind::KvPaged).unwrap()).unwrap();
    let view = layer.view;
    assert_eq!([view.kv_factor, view.num_kv_heads, view.tokens_per_block, view.head_dim], [2, 8, 32, 64]);
    assert_eq!(layer.pool.dtype(), candle_core::DType::F16);
    assert!(layer.pool.is_contiguous());
}

#[test]
fn t2_17_an_ssm_view_is_heads_by_head_dim_by_state() {
    let set = allocate(&interface().with(0, kv()).with(1, ssm4()));
    assert_eq!(state(set.manager().unwrap(), 1, &Kind::Ssm), ([4, 64, 16], candle_core::DType::BF16));
}

#[test]
fn t2_18_states_and_their_speculative_twins_are_all_managed() {
    let mut setup = interface();
    setup.limits.draft_positions = 3;
    for layer in 0..2 {
        for handler in [ssm4(), conv(320)] {
            let twin = handler.intermediate().unwrap();
            setup = setup.with(layer, handler).with(layer, twin);
        }
    }
    let set = allocate(&setup);
    let manager = set.manager().unwrap();
    assert_eq!(set.plan().resources.len(), 8);
    assert_eq!(manager.kind(), ManagerKind::MambaHybridCacheManager);
    assert_eq!(set.unmanaged().count(), 0);
    for layer in 0..2 {
        for kind in [Kind::Ssm, Kind::CausalConv, Kind::IntermediateSsm, Kind::IntermediateCausalConv] {
            state(manager, layer, &kind);
        }
    }
}

#[test]
fn t2_19_an_unpaged_resource_holds_every_token_of_every_slot() {
    let handler = ResourceHandler::unpaged(&[8, 64], DType::F16).unwrap();
    let set = allocate(&interface().local(0, handler));
    let manager = set.manager().unwrap();
    let layer = manager.state_layer(manager.route(0, &Kind::Unpaged).unwrap()).unwrap();
    assert_eq!((layer.pool.dims()[0], layer.positions, layer.view.shape), (5, 1, [128, 8, 64]));
    let heads_first = ResourceHandler::static_cache(8, 64, DType::F16).unwrap();
    let set = allocate(&interface().local(0, heads_first));
    let manager = set.manager().unwrap();
    let layer = manager.state_layer(manager.route(0, &Kind::Unpaged).unwrap()).unwrap();
    assert_eq!((layer.pool.dims()[0], layer.view.shape), (5, [8, 128, 64]));
}

#[rstest]
#[case::t2_26(interface().with(0, kv()).with(1, kv()))]
#[case::t2_27(interface().with(0, kv()).with(1, ssm4()))]
fn a_shutdown_leaves_the_resources_planned_and_unallocated(#[case] setup: Setup) {
    let mut set = allocate(&setup);
    set.shutdown().unwrap();
    assert_eq!(set.plan().resources.len(), 2);
    assert!(matches!(set.manager(), Err(ManagerError::ShutDown)));
    assert!(matches!(set.bytes(), Err(ManagerError::ShutDown)));
}

#[test]
fn t2_33_caches_and_unmanaged_resources_move_to_a_device() {
    let mut set = allocate(&interface().with(0, kv()).local(1, ResourceHandler::state(&[10, 20], DType::F32).unwrap()));
    set.manager().unwrap().fill(3.0).unwrap();
    set.to_device(&Device::Cpu).unwrap();
    let manager = set.manager().unwrap();
    let layer = manager.state_layer(manager.route(1, &Kind::State).unwrap()).unwrap();
    let row = layer.pool.narrow(0, 1, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(row.iter().all(|element| *element == 3.0));
}

#[test]
fn t2_46_an_ssm_resource_has_its_own_shape() {
    let handler = ResourceHandler::ssm(8, 64, 16, DType::Bf16).unwrap();
    let set = allocate(&interface().with(0, handler));
    assert_eq!(state(set.manager().unwrap(), 0, &Kind::Ssm).0, [8, 64, 16]);
}

#[test]
fn t2_47_a_conv_resource_keeps_one_column_less_than_its_kernel() {
    let set = allocate(&interface().with(0, conv(256)));
    // Columns first: channels lie side by side.
    assert_eq!(state(set.manager().unwrap(), 0, &Kind::CausalConv).0, [3, 256, 1]);
}

#[rstest]
#[case::t2_49(ssm4(), Kind::Ssm)]
#[case::t2_50(conv(256), Kind::CausalConv)]
fn three_states_are_all_allocated_and_contiguous(#[case] handler: ResourceHandler, #[case] kind: Kind) {
    let set = allocate(&interface().with(0, handler.clone()).with(1, handler.clone()).with(2, handler));
    for layer in 0..3 {
        state(set.manager().unwrap(), layer, &kind);
    }
}

#[test]
fn t2_51_states_without_a_partner_are_allocated_too() {
    let setup = interface().with(0, ssm4()).with(1, ssm4()).with(2, ssm4()).with(0, conv(320)).with(1, conv(320));
    let set = allocate(&setup);
    let manager = set.manager().unwrap();
    assert_eq!(manager.kind(), ManagerKind::MambaHybridCacheManager);
    for (layer, kind) in [(0, Kind::Ssm), (1, Kind::Ssm), (2, Kind::Ssm), (0, Kind::CausalConv), (1, Kind::CausalConv)]
    {
        state(manager, layer, &kind);
    }
}

#[test]
fn t2_52_a_local_state_alone_leaves_the_paged_manager() {
    let set = allocate(&interface().local(0, ResourceHandler::state(&[10, 20], DType::F32).unwrap()));
    let manager = set.manager().unwrap();
    assert_eq!(manager.kind(), ManagerKind::KvCacheManager);
    assert_eq!(state(manager, 0, &Kind::State).0, [10, 20, 1]);
    assert_eq!(set.unmanaged().collect::<Vec<_>>(), ["state_0"]);
}

#[test]
fn t2_56_replayed_inputs_are_managed_beside_snapshots_of_the_convolution() {
    let mut setup = interface();
    setup.limits.draft_positions = 3;
    let input = |kind: &str, shape: &[u64], dtype| {
        let shape = shape.iter().enumerate().map(|(axis, &size)| Dim::whole(format!("dim{axis}"), size)).collect();
        ResourceHandler::new(Kind::Custom(kind.into()), Growth::PerDraftPosition, shape, dtype, None).unwrap()
    };
    let inputs = [
        input("replay.x", &[4, 64], DType::Bf16),
        input("replay.b", &[1, 16], DType::Bf16),
        input("replay.dt", &[4], DType::F32),
        input("replay.decay", &[4], DType::F32),
    ];
    for layer in 0..2 {
        setup = setup.with(layer, ssm4()).with(layer, conv(320)).with(layer, conv(320).intermediate().unwrap());
        setup = inputs.iter().fold(setup, |setup, input| setup.with(layer, input.clone()));
    }
    let set = allocate(&setup);
    let manager = set.manager().unwrap();
    assert_eq!((set.plan().resources.len(), set.unmanaged().count()), (14, 0));
    for layer in 0..2 {
        for kind in inputs.iter().map(ResourceHandler::kind) {
            let inputs = manager.state_layer(manager.route(layer, kind).unwrap()).unwrap();
            assert_eq!((inputs.pool.dims()[0], inputs.positions), (1 + 4, 3));
            state(manager, layer, kind);
        }
        // Its snapshots roll it back, so that it keeps no inputs of its own.
        assert_eq!(state(manager, layer, &Kind::CausalConv).0, [3, 320, 1]);
    }
}

#[test]
fn t2_65_two_equal_kv_resources_share_exactly_one_pool() {
    let mut set = allocate(&interface().with(0, kv()).with(1, kv()));
    let manager = set.manager_mut().unwrap();
    assert_eq!(manager.kv().num_pools(), 1);
    let sequence = manager.admit(40).unwrap();
    let mut step = StepMetadata::default();
    manager.step(&[Work { sequence, tokens: 40 }], &mut step).unwrap();
    assert_eq!(step.pools.len(), 1);
}
