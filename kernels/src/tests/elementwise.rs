//! Fused passes are the candle ops that they stand for.

use super::{Random, assert_close, on_cpu, values};
use crate::{RmsNorm, Rows, portable};
use candle_core::{D, Tensor};
use rstest::rstest;

#[rstest]
fn gates_and_sums_agree_with_the_portable_path(#[values(1, 5, 70)] rows: usize, #[values(1, 19, 512)] width: usize) {
    let mut random = Random::new(71);
    let (both, y) = (random.tensor(&[rows, 2 * width]), random.tensor(&[rows, width]));
    let expected = portable::elementwise::silu_product(&both).unwrap();
    assert_close(&values(&Rows(&both).silu_product(&on_cpu()).unwrap()), &values(&expected), 1e-6);
    let x = both.narrow(1, width, width).unwrap();
    let expected = portable::elementwise::weighted_sum(&x, 0.5, &y, -2.0).unwrap();
    assert_close(&values(&Rows(&x).weighted_sum(&on_cpu(), 0.5, &y, -2.0).unwrap()), &values(&expected), 1e-6);
}

#[rstest]
fn a_norm_divides_by_the_root_mean_square(#[values(1, 3, 40)] rows: usize, #[values(1, 33, 768)] width: usize) {
    let mut random = Random::new(72);
    let (wide, weight) = (random.tensor(&[rows, 4, width + 2]), random.tensor(&[width]));
    let strided = wide.narrow(2, 1, width).unwrap();
    for x in [strided.get_on_dim(1, 2).unwrap(), strided.contiguous().unwrap(), strided] {
        let found = RmsNorm { weight: &weight, eps: 1e-5 }.run(&on_cpu(), &x).unwrap();
        assert_eq!(found.dims(), x.dims());
        let scale = (x.sqr().unwrap().mean_keepdim(D::Minus1).unwrap() + 1e-5).unwrap().sqrt().unwrap();
        let expected = x.broadcast_div(&scale).unwrap().broadcast_mul(&weight).unwrap();
        assert_close(&values(&found), &values(&expected), 1e-6);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let mut random = Random::new(73);
    let x = random.tensor(&[2, 5]);
    let refused = [
        Rows(&x).silu_product(&on_cpu()).unwrap_err(),
        Rows(&x).weighted_sum(&on_cpu(), 1.0, &random.tensor(&[2, 4]), 1.0).unwrap_err(),
        RmsNorm { weight: &Tensor::ones(4, x.dtype(), x.device()).unwrap(), eps: 1e-5 }.run(&on_cpu(), &x).unwrap_err(),
    ];
    let operands = ["`gate_up`", "`y`", "`weight`"];
    for (error, operand) in refused.iter().zip(operands) {
        assert!(error.to_string().contains(operand), "{error}");
    }
}
