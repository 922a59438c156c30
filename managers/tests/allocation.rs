//! What is allocated is what was planned, counted by an allocator and not by shapes.
#![cfg(feature = "device")]

#[path = "suite/support.rs"]
mod support;

use std::sync::Mutex;

use cacheplan_handlers::{DType, Kind, ResourceHandler};
use cacheplan_managers::device::CacheSet;
use cacheplan_managers::{CountingAllocator, ManagerError};
use cacheplan_planner::CachePlan;
use candle_core::Device;
use rstest::rstest;
use support::{Setup, hybrid, kv};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The peak is the whole process's, so that tests of it take turns.
static PEAK: Mutex<()> = Mutex::new(());

#[track_caller]
fn assert_exact(set: &CacheSet) {
    let bytes = set.bytes().unwrap();
    assert_eq!(bytes.len(), set.plan().pools.len());
    for pool in bytes {
        assert_eq!(pool.actual_bytes, Some(pool.planned_bytes), "pool {}", pool.id);
    }
}

#[test]
fn a_hybrid_plan_takes_exactly_its_bytes() {
    let setup = hybrid()
        .local(3, ResourceHandler::state(&[10, 20], DType::F32).unwrap())
        .local(4, ResourceHandler::unpaged(&[8, 64], DType::F16).unwrap())
        .with(0, support::ssm().intermediate().unwrap())
        .with(0, support::conv().intermediate().unwrap())
        .with(2, support::ssm().intermediate().unwrap())
        .with(2, support::conv().intermediate().unwrap());
    assert_exact(&CacheSet::allocate(&setup.plan(), &Device::Cpu).unwrap());
}

#[rstest]
fn every_dtype_takes_exactly_its_bytes(
    #[values(
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::F8E4m3,
        DType::F8E5m2,
        DType::Int8,
        DType::Int32,
        DType::Nvfp4,
        DType::Mxfp4,
        DType::Q8_0,
        DType::Q4_0
    )]
    dtype: DType,
) {
    let kv = ResourceHandler::kv_paged(2, 64, dtype).unwrap();
    let state = ResourceHandler::state(&[3, 32], dtype).unwrap();
    let set = CacheSet::allocate(&Setup::new().with(0, kv).with(1, state).plan(), &Device::Cpu).unwrap();
    assert_exact(&set);
    set.manager().unwrap().fill(f64::NAN).unwrap();
}

#[test]
fn a_resize_frees_the_old_pools_before_it_allocates_new_ones() {
    let _turn = PEAK.lock().unwrap();
    let mut set = CacheSet::allocate(&hybrid().blocks(50_000).plan(), &Device::Cpu).unwrap();
    let before = CountingAllocator::current().unwrap();
    CountingAllocator::reset_peak();
    set.resize(&hybrid().blocks(50_001).plan()).unwrap();
    assert_exact(&set);
    // Other tests allocate meanwhile, but far less than a second copy of the pools.
    let both = before + set.plan().pools.iter().map(|pool| pool.bytes).sum::<u64>() / 2;
    assert!(CountingAllocator::peak().unwrap() < both);
}

#[test]
fn a_rebalance_holds_no_pool_twice() {
    let _turn = PEAK.lock().unwrap();
    let mut set = CacheSet::allocate(&hybrid().blocks(50_000).plan(), &Device::Cpu).unwrap();
    for blocks in [60_000, 20_000] {
        let plan = hybrid().blocks(blocks).plan();
        let before = CountingAllocator::current().unwrap();
        let pools: u64 = plan.pools.iter().map(|pool| pool.bytes).sum();
        let more = pools.saturating_sub(set.plan().pools.iter().map(|pool| pool.bytes).sum());
        CountingAllocator::reset_peak();
        set.rebalance(&plan).unwrap();
        assert_exact(&set);
        // Other tests allocate meanwhile, but far less than a quarter of the pools.
        assert!(CountingAllocator::peak().unwrap() < before + more + pools / 4);
    }
}

#[test]
fn a_shut_down_set_holds_nothing_and_answers_with_an_error() {
    let mut set = CacheSet::allocate(&hybrid().blocks(1000).plan(), &Device::Cpu).unwrap();
    let pools: u64 = set.plan().pools.iter().map(|pool| pool.bytes).sum();
    let ((), allocated) = CountingAllocator::measure(|| set.shutdown().unwrap());
    assert!(allocated.unwrap() <= -(pools as i64), "a shutdown frees every pool");
    assert!(matches!(set.manager(), Err(ManagerError::ShutDown)));
    set.resize(&hybrid().plan()).unwrap();
    assert_exact(&set);
}

#[rstest]
#[case::bytes(|plan: &mut CachePlan| plan.pools[0].bytes += 1, "pool `kv_paged.0`")]
#[case::members_over_each_other(|plan: &mut CachePlan| plan.pools[0].members[1].offset -= 4, "pool `kv_paged.0`")]
#[case::uncountable_slots(|plan: &mut CachePlan| plan.slots.live = u64::MAX, "slots")]
fn a_plan_that_contradicts_itself_is_refused_by_name(#[case] damage: fn(&mut CachePlan), #[case] said: &str) {
    let mut plan = Setup::new().with(0, kv(2, 8)).with(1, kv(2, 8)).plan();
    damage(&mut plan);
    let refused = CacheSet::allocate(&plan, &Device::Cpu).unwrap_err();
    assert!(refused.to_string().contains(said), "{refused}");
}

#[test]
fn a_pool_beyond_the_address_space_is_an_error() {
    let plan = Setup::new().with(0, kv(1 << 12, 1 << 12)).blocks(1 << 20).plan();
    let refused = CacheSet::allocate(&plan, &Device::Cpu).unwrap_err();
    assert!(matches!(refused, ManagerError::OutOfDeviceMemory { .. }), "{refused}");
}

#[test]
fn a_route_from_before_a_resize_is_stale() {
    let mut set = CacheSet::allocate(&hybrid().plan(), &Device::Cpu).unwrap();
    let route = set.manager().unwrap().route(1, &Kind::KvPaged).unwrap();
    set.resize(&hybrid().plan()).unwrap();
    let refused = set.manager().unwrap().kv_layer(route).unwrap_err();
    assert!(matches!(refused, ManagerError::StaleRoute { found: 0, current: 1 }), "{refused}");
}
