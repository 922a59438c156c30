//! `rms_norm.cu`.

use super::{TARGET, assert_traffic, emulate, prove_mutants, random, schedules};
use crate::cuda::norm::{gated_rms_norm, rms_norm};
use crate::tests::recurrent::wide;
use crate::tests::{Random, assert_close, values};
use crate::{GateOrder, reference};
use cacheplan_emulator::Options;
use candle_core::{DType, Tensor};
use rstest::rstest;

fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 2e-2,
    }
}

/// Parts of wider rows, as a projection leaves them.
fn rows(source: &mut Random, count: usize, width: usize, dtype: DType) -> Tensor {
    random(source, &[count, width + 24], dtype).narrow(1, 16, width).unwrap()
}

/// Units of part of a warp, of one, of a block, and of several vectors to a lane.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn norms(
    #[values((DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::BF16, DType::F32), (DType::F16, DType::F16), (DType::F16, DType::F32))]
    (dtype, weights): (DType, DType),
    #[values(8, 40, 128, 520, 2056)] size: usize,
    #[values(None, Some(GateOrder::GateThenNorm), Some(GateOrder::NormThenGate), Some(GateOrder::GateOnly))]
    order: Option<GateOrder>,
    #[values(false, true)] shared_weight: bool,
) {
    let (count, groups) = (5, 3);
    let width = groups * size;
    let mut source = Random::new(41);
    let [x, z] = [(); 2].map(|()| rows(&mut source, count, width, dtype));
    let weight = random(&mut source, &[if shared_weight { size } else { width }], weights);
    let [x_wide, z_wide, weight_wide] = [&x, &z, &weight].map(|tensor| wide(&values(tensor)));
    for options in schedules() {
        let (found, expected) = match order {
            None if shared_weight => {
                let heads = x.reshape((count, groups, size)).unwrap();
                let found = emulate(&rms_norm(&heads, &weight, 1e-5, &TARGET).unwrap(), &options).outputs.remove(0);
                let ones = vec![1e9; x_wide.len()];
                // A gate that far up is the identity times itself, which the norm takes out again.
                (found, reference::gated_rms_norm(&x_wide, &ones, &weight_wide, 1e-5 * 1e18, size, false))
            }
            None => return,
            Some(GateOrder::GateOnly) => {
                let launches = gated_rms_norm(&x, &z, &weight, 1e-5, size, GateOrder::GateOnly, &TARGET).unwrap();
                let gated = x_wide.iter().zip(&z_wide).map(|(x, z)| x * z / (1.0 + (-z).exp())).collect();
                (emulate(&launches, &options).outputs.remove(0), gated)
            }
            Some(order) => {
                let launches = gated_rms_norm(&x, &z, &weight, 1e-5, size, order, &TARGET).unwrap();
                let after = order == GateOrder::NormThenGate;
                let expected = reference::gated_rms_norm(&x_wide, &z_wide, &weight_wide, 1e-5, size, after);
                (emulate(&launches, &options).outputs.remove(0), expected)
            }
        };
        let expected: Vec<f32> = expected.iter().map(|&value| value as f32).collect();
        assert_close(&values(&found), &expected, tolerance(dtype));
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn norms_mutants() {
    for size in [512, 4096] {
        let mut source = Random::new(42);
        let (x, weight) = (random(&mut source, &[2, size], DType::F32), random(&mut source, &[size], DType::F32));
        prove_mutants(&rms_norm(&x, &weight, 1e-5, &TARGET).unwrap(), &[]);
    }
}

#[rstest]
#[case::hidden(&[2, 4096], DType::BF16, 110.0)]
#[case::hidden_f32(&[2, 4096], DType::F32, 60.0)]
#[case::heads(&[2, 32, 128], DType::BF16, 150.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn norms_traffic(#[case] shape: &[usize], #[case] dtype: DType, #[case] warp_instructions_per_kib: f64) {
    let mut source = Random::new(1);
    let (x, weight) = (random(&mut source, shape, dtype), random(&mut source, &shape[shape.len() - 1..], dtype));
    let emulated = emulate(&rms_norm(&x, &weight, 1e-5, &TARGET).unwrap(), &Options::default());
    assert_traffic(&emulated, warp_instructions_per_kib);
}
