//! `copy_rows.cu`.

use super::{TARGET, assert_traffic, emulate, random, schedules};
use crate::PoolRows;
use crate::cuda::pool::{copy_rows, zero_rows};
use crate::tests::{Random, on_cpu, values};
use cacheplan_emulator::Options;
use candle_core::DType;
use rstest::rstest;

/// Rows of part of a piece, of whole ones, and of one and a bit.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn copies(#[values(16, 2048, 2064)] elements: usize, #[values(DType::F32, DType::BF16)] dtype: DType) {
    let pairs = [(1, 4), (5, 0), (1, 3)];
    let pool = random(&mut Random::new(3), &[7, elements], dtype);
    let expected = pool.copy().unwrap();
    PoolRows(&expected).copy(&on_cpu(), &pairs).unwrap();
    for options in schedules() {
        let pool = pool.copy().unwrap();
        emulate(&copy_rows(&pool, &pairs, &TARGET).unwrap(), &options);
        assert_eq!(values(&pool), values(&expected));
    }
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn zeros(#[values(16, 2048, 2064)] elements: usize, #[values(DType::F32, DType::BF16)] dtype: DType) {
    let pool = random(&mut Random::new(3), &[7, elements], dtype);
    let expected = pool.copy().unwrap();
    PoolRows(&expected).zero(&on_cpu(), &[5, 0]).unwrap();
    for options in schedules() {
        let pool = pool.copy().unwrap();
        emulate(&zero_rows(&pool, &[5, 0], &TARGET).unwrap(), &options);
        assert_eq!(values(&pool), values(&expected));
    }
}

#[rstest]
#[case::written_twice(&[(0, 2), (1, 2)])]
#[case::read_after_written(&[(0, 1), (1, 2)])]
#[case::onto_itself(&[(1, 1)])]
fn copies_whose_order_counts_are_left_to_others(#[case] pairs: &[(u32, u32)]) {
    let pool = random(&mut Random::new(3), &[3, 16], DType::F32);
    assert!(copy_rows(&pool, pairs, &TARGET).is_none());
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn copies_traffic() {
    let pool = random(&mut Random::new(3), &[2, 8192], DType::F32);
    let emulated = emulate(&copy_rows(&pool, &[(0, 1)], &TARGET).unwrap(), &Options::default());
    assert_traffic(&emulated, 20.0);
    let stats = &emulated.runs[0].stats;
    assert_eq!((stats.stored_bytes, stats.bytes_in_flight), (32 << 10, 4 * 512));
}
