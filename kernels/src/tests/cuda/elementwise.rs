//! `elementwise.cu`.

use super::{TARGET, assert_traffic, emulate, random, schedules};
use crate::cuda::elementwise::{silu_product, weighted_sum};
use crate::tests::recurrent::wide;
use crate::tests::{Random, assert_close, values};
use cacheplan_emulator::Options;
use candle_core::DType;
use rstest::rstest;

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn products_and_sums(#[values(DType::F32, DType::BF16, DType::F16)] dtype: DType, #[values(8, 1032)] width: usize) {
    let mut source = Random::new(81);
    // Parts of wider rows, as a projection leaves them.
    let mut rows = |width: usize| random(&mut source, &[3, width + 8], dtype).narrow(1, 8, width).unwrap();
    let (gate_up, x, y) = (rows(2 * width), rows(width), rows(width));
    let tolerance = match dtype {
        DType::F32 => 1e-6,
        DType::F16 => 1e-3,
        _ => 8e-3,
    };
    let [both, left, right] = [&gate_up, &x, &y].map(|tensor| wide(&values(tensor)));
    let product: Vec<f32> = both
        .chunks_exact(2 * width)
        .flat_map(|row| {
            row[..width].iter().zip(&row[width..]).map(|(gate, up)| (gate / (1.0 + (-gate).exp()) * up) as f32)
        })
        .collect();
    let sum: Vec<f32> = left.iter().zip(&right).map(|(x, y)| (0.5 * x - 2.0 * y) as f32).collect();
    for options in schedules() {
        let found = emulate(&silu_product(&gate_up, &TARGET).unwrap(), &options).outputs.remove(0);
        assert_close(&values(&found), &product, tolerance);
        let found = emulate(&weighted_sum(&x, 0.5, &y, -2.0, &TARGET).unwrap(), &options).outputs.remove(0);
        assert_close(&values(&found), &sum, tolerance);
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn products_and_sums_traffic() {
    let mut source = Random::new(1);
    let [x, y] = [(); 2].map(|()| random(&mut source, &[2, 4096], DType::BF16));
    assert_traffic(&emulate(&silu_product(&x, &TARGET).unwrap(), &Options::default()), 135.0);
    assert_traffic(&emulate(&weighted_sum(&x, 1.0, &y, 1.0, &TARGET).unwrap(), &Options::default()), 100.0);
}
