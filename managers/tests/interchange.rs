//! Caches leave for other systems' layouts and come back unchanged.
#![cfg(feature = "device")]

mod support;

use cacheplan_handlers::{DType, Kind, ResourceHandler};
use cacheplan_kernels::MlaCacheMode;
use cacheplan_managers::book::{StepMetadata, Work};
use cacheplan_managers::device::{CacheSet, narrow_conv_state, widen_conv_state};
use candle_core::{Device, Tensor};
use rstest::rstest;
use support::{Setup, kv};

const LATENT: usize = 32;
const ROPE: usize = 16;

#[rstest]
fn conv_states_convert_without_loss(#[values(2, 3, 4)] d_conv: usize, #[values(true, false)] keep_oldest: bool) {
    let wide = Tensor::arange(0f32, (5 * d_conv) as f32, &Device::Cpu).unwrap().reshape((5, d_conv)).unwrap();
    let (state, oldest) = narrow_conv_state(&wide).unwrap();
    assert_eq!(state.dims(), [d_conv - 1, 5]);
    let back = widen_conv_state(&state, keep_oldest.then_some(&oldest)).unwrap();
    let rows: Vec<Vec<f32>> = back.to_vec2().unwrap();
    for (row, original) in rows.iter().zip(wide.to_vec2::<f32>().unwrap()) {
        assert_eq!(row[1..], original[1..]);
        assert_eq!(row[0], if keep_oldest { original[0] } else { 0.0 });
    }
}

/// A sequence of 6 tokens whose latents count up from 0 in steps of 1/8, in an MLA pool of f32 at layer 1.
fn mla() -> (CacheSet, cacheplan_managers::book::SequenceId) {
    let handler = ResourceHandler::mla_paged(LATENT as u64, ROPE as u64, DType::F32).unwrap();
    let mut set =
        CacheSet::allocate(&Setup::new().with(0, handler.clone()).with(1, handler).plan(), &Device::Cpu).unwrap();
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(6).unwrap();
    let mut step = StepMetadata::default();
    manager.step(&[Work { sequence, tokens: 6 }], &mut step).unwrap();
    let layer = manager.kv_layer(manager.route(1, &Kind::MlaPaged).unwrap()).unwrap();
    let width = LATENT + ROPE;
    let rows = (Tensor::arange(0f32, (6 * width) as f32, &Device::Cpu).unwrap() / 8.0).unwrap();
    let rows = rows.reshape((6, 1, width)).unwrap();
    cacheplan_kernels::reshape_and_cache(layer.pool, &layer.view, &rows, None, &step.pools[0].slot_mapping).unwrap();
    (set, sequence)
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[rstest]
#[case(MlaCacheMode::KvCache, vec![2, 4, 1, LATENT + ROPE])]
#[case(MlaCacheMode::KropeCtkv, vec![2, 4, 1, LATENT])]
#[case(MlaCacheMode::Nz, vec![2, LATENT / 8, 4, 8])]
fn latents_come_back_from_every_mode_unchanged(#[case] mode: MlaCacheMode, #[case] shape: Vec<usize>) {
    let (mut set, sequence) = mla();
    let manager = set.manager_mut().unwrap();
    let route = manager.route(1, &Kind::MlaPaged).unwrap();
    let exported = manager.export_mla(sequence, route, LATENT).unwrap();
    let before = flat(&exported.to_rows().unwrap());
    let foreign = exported.to_mode(mode, 1.0).unwrap();
    assert_eq!(foreign.latent.dims(), shape);
    manager.fill(f64::NAN).unwrap();
    manager.import_mla(sequence, route, &foreign).unwrap();
    assert_eq!(flat(&manager.export_mla(sequence, route, LATENT).unwrap().to_rows().unwrap()), before);
    let read = manager.read_kv(sequence, route).unwrap();
    assert_eq!(flat(&read.keys), before[..6 * (LATENT + ROPE)]);
}

#[test]
fn nz_order_puts_an_element_where_the_operator_looks_for_it() {
    let (set, sequence) = mla();
    let manager = set.manager().unwrap();
    let exported = manager.export_mla(sequence, manager.route(1, &Kind::MlaPaged).unwrap(), LATENT).unwrap();
    let nz = flat(&exported.to_mode(MlaCacheMode::Nz, 1.0).unwrap().latent);
    let rows = flat(&exported.to_rows().unwrap());
    // 32 bytes of f32 are 8 elements.
    let (block_size, c0) = (4, 8);
    for (block, slot, dim) in [(0, 0, 0), (0, 3, 7), (0, 1, 8), (1, 1, 31)] {
        let offset = block * block_size * LATENT + dim / c0 * block_size * c0 + slot * c0 + dim % c0;
        assert_eq!(nz[offset], rows[(block * block_size + slot) * (LATENT + ROPE) + dim]);
    }
}

#[test]
fn int8_latents_are_rounded_to_the_scale_and_rope_keys_are_not() {
    let (set, sequence) = mla();
    let manager = set.manager().unwrap();
    let exported = manager.export_mla(sequence, manager.route(1, &Kind::MlaPaged).unwrap(), LATENT).unwrap();
    let quantised = exported.to_mode(MlaCacheMode::Int8Nz, 0.5).unwrap();
    assert_eq!(quantised.latent.dtype(), candle_core::DType::U8);
    let (before, after) = (flat(&exported.to_rows().unwrap()), flat(&quantised.to_rows().unwrap()));
    for (index, (before, after)) in before.iter().zip(&after).enumerate() {
        if index % (LATENT + ROPE) >= LATENT {
            assert_eq!(before, after);
        } else {
            assert!((before - after).abs() <= 0.25, "{before} became {after}");
        }
    }
}

#[test]
fn keys_and_values_are_no_latents() {
    let set = CacheSet::allocate(&Setup::new().with(0, kv(1, 8)).plan(), &Device::Cpu).unwrap();
    let mut set = set;
    let manager = set.manager_mut().unwrap();
    let sequence = manager.admit(1).unwrap();
    let route = manager.route(0, &Kind::KvPaged).unwrap();
    assert!(manager.export_mla(sequence, route, 4).is_err());
}
