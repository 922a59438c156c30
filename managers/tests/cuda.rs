//! What a CUDA device hands out is what was planned; needs a device.
//!
//! `cargo test -p cacheplan-managers --features cuda --test cuda -- --nocapture` prints planned beside actual bytes;
//! `docs/gpu.md` has the command that runs whole models besides.
#![cfg(feature = "cuda")]

#[path = "suite/support.rs"]
mod support;

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_managers::CountingAllocator;
use cacheplan_managers::book::{StepMetadata, Work};
use cacheplan_managers::device::CacheSet;
use candle_core::Device;
use support::Setup;

/// About 1 GiB of every kind of pool.
fn setup() -> Setup {
    let kv = |head_dim, dtype| ResourceHandler::kv_paged(8, head_dim, dtype).unwrap();
    let ssm = ResourceHandler::ssm(64, 64, 128, DType::F32).unwrap();
    let conv = ResourceHandler::causal_conv(6144, 4, vec![], DType::Bf16).unwrap();
    let mut setup = (0..4).fold(Setup::new(), |setup, layer| {
        setup
            .with(layer, kv(128, DType::Bf16))
            .with(layer + 4, kv(64, DType::F8E4m3))
            .with(layer + 8, kv(128, DType::Q4_0).with_window(1024).unwrap())
            .with(layer, ssm.clone())
            .with(layer, conv.clone())
            .with(layer, ssm.intermediate().unwrap())
            .with(layer, conv.intermediate().unwrap())
    });
    setup = setup.local(12, ResourceHandler::unpaged(&[8, 64], DType::F16).unwrap()).host(1 << 30);
    setup.tokens_per_block = 16;
    setup.blocks(2000)
}

#[allow(clippy::print_stdout, reason = "the figures are what it is run for")]
#[track_caller]
fn assert_close(set: &CacheSet) {
    for pool in set.bytes().unwrap() {
        let (planned, actual) = (pool.planned_bytes as f64, pool.actual_bytes.expect("the device counts") as f64);
        let off = 100.0 * (actual - planned) / planned;
        println!("{:<28}{planned:>14} planned{actual:>14} actual{off:>9.4} %", pool.id);
        assert!(off.abs() < 0.1, "pool {} is off by {off} %", pool.id);
    }
}

#[test]
fn every_pool_takes_its_planned_bytes_on_the_device() {
    let device = Device::new_cuda(0).unwrap();
    assert_close(&CacheSet::allocate(&setup().plan(), &device).unwrap());
}

#[test]
fn a_rebalance_on_the_device_holds_no_pool_twice() {
    let device = Device::new_cuda(0).unwrap();
    let mut set = CacheSet::allocate(&setup().plan(), &device).unwrap();
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(40).unwrap();
    manager.step(&[Work { sequence, tokens: 40 }], &mut StepMetadata::default()).unwrap();
    let larger = setup().blocks(3000).plan();
    let bytes = |set: &CacheSet| set.plan().pools.iter().map(|pool| pool.bytes).sum::<u64>();
    let before = bytes(&set);
    let (done, peak) = CountingAllocator::measure_peak(&device, || set.rebalance(&larger));
    done.unwrap();
    assert_close(&set);
    let (more, beyond) = (bytes(&set) - before, peak.unwrap().beyond_bytes);
    println!("{more} more bytes, at most {beyond} beyond the old pools meanwhile");
    assert!(beyond < more + more / 10);
}

#[test]
fn a_sequence_leaves_the_device_and_comes_back() {
    let device = Device::new_cuda(0).unwrap();
    let mut set = CacheSet::allocate(&setup().plan(), &device).unwrap();
    let manager = set.manager_mut().unwrap();
    manager.fill(3.0).unwrap();
    let sequence = manager.admit(40).unwrap();
    manager.step(&[Work { sequence, tokens: 40 }], &mut StepMetadata::default()).unwrap();
    let route = manager.route_of("kv_paged_0").unwrap();
    let read = |set: &CacheSet| {
        let keys = set.manager().unwrap().read_kv(sequence, route).unwrap().keys;
        keys.to_dtype(candle_core::DType::F32).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap()
    };
    let before = read(&set);
    set.manager_mut().unwrap().offload(sequence).unwrap();
    set.manager().unwrap().fill_free(9.0).unwrap();
    set.manager_mut().unwrap().onload(sequence).unwrap();
    assert_eq!(read(&set), before);
}
