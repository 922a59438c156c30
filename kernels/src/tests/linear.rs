//! Products are those of their references, whatever the weight is stored as and whatever the rows beside one.

use super::{Random, assert_close, on_cpu, values};
use crate::{linear, portable, reference};
use candle_core::{DType, Tensor};
use rstest::rstest;

fn wide(tensor: &Tensor) -> Vec<f64> {
    values(tensor).into_iter().map(f64::from).collect()
}

fn expected(x: &Tensor, weight: &Tensor) -> Vec<f32> {
    let width = weight.dim(1).unwrap();
    reference::linear(&wide(x), &wide(weight), width).into_iter().map(|x| x as f32).collect()
}

#[rstest]
fn few_rows_and_many(
    #[values(1, 3, 8, 9)] rows: usize,
    #[values(1, 64, 130)] out: usize,
    #[values(DType::F32, DType::F16, DType::BF16, DType::F8E4M3)] dtype: DType,
) {
    let mut random = Random::new(61);
    let x = random.tensor(&[rows, 1, 70]);
    let weight = random.tensor(&[out, 70]).to_dtype(dtype).unwrap();
    let found = linear(&on_cpu(), &x, &weight).unwrap();
    assert_eq!(found.dims(), [rows, 1, out]);
    assert_eq!(found.dtype(), DType::F32);
    assert_close(&values(&found), &expected(&x, &weight), 2e-6);
    let portable = portable::linear::linear(&x, &weight).unwrap();
    assert_close(&values(&portable), &expected(&x, &weight), 2e-6);
}

/// Several tiles in each direction, the last of them cut short.
#[rstest]
fn more_than_a_tile(#[values(DType::F16, DType::BF16)] dtype: DType) {
    let mut random = Random::new(64);
    let x = random.tensor(&[259, 1030]).narrow(1, 3, 1025).unwrap();
    let weight = random.tensor(&[131, 1025]).to_dtype(dtype).unwrap();
    assert_close(&values(&linear(&on_cpu(), &x, &weight).unwrap()), &expected(&x, &weight), 5e-6);
}

#[rstest]
fn a_streamed_weight_gives_the_bits_of_the_same_weight_in_f32(
    #[values(1, 3, 8)] rows: usize,
    #[values(DType::F16, DType::BF16, DType::F8E4M3)] dtype: DType,
) {
    let mut random = Random::new(65);
    let x = random.tensor(&[rows, 333]);
    let weight = random.tensor(&[70, 333]).to_dtype(dtype).unwrap();
    let found = values(&linear(&on_cpu(), &x, &weight).unwrap());
    assert_eq!(found, values(&linear(&on_cpu(), &x, &weight.to_dtype(DType::F32).unwrap()).unwrap()));
}

#[rstest]
fn activations_keep_their_dtype(#[values(1, 9)] rows: usize) {
    let mut random = Random::new(66);
    let x = random.tensor(&[rows, 40]).to_dtype(DType::BF16).unwrap();
    let weight = random.tensor(&[20, 40]).to_dtype(DType::BF16).unwrap();
    let found = linear(&on_cpu(), &x, &weight).unwrap();
    assert_eq!(found.dtype(), DType::BF16);
    assert_close(&values(&found), &expected(&x, &weight), 1e-2);
}

#[rstest]
fn a_weight_may_be_a_transposed_view(#[values(1, 9)] rows: usize, #[values(DType::F32, DType::BF16)] dtype: DType) {
    let mut random = Random::new(67);
    let x = random.tensor(&[rows, 40]);
    let weight = random.tensor(&[40, 20]).to_dtype(dtype).unwrap().t().unwrap();
    assert_close(&values(&linear(&on_cpu(), &x, &weight).unwrap()), &expected(&x, &weight), 2e-6);
}

#[rstest]
fn a_streamed_row_does_not_depend_on_those_beside_it(
    #[values(2, 3, 5, 8)] rows: usize,
    #[values(DType::F32, DType::BF16)] dtype: DType,
) {
    let mut random = Random::new(63);
    let x = random.tensor(&[rows, 333]);
    let weight = random.tensor(&[70, 333]).to_dtype(dtype).unwrap();
    let together = values(&linear(&on_cpu(), &x, &weight).unwrap());
    let alone = (0..rows).flat_map(|row| values(&linear(&on_cpu(), &x.narrow(0, row, 1).unwrap(), &weight).unwrap()));
    assert!(together.into_iter().eq(alone));
}

#[test]
fn a_wrong_width_is_refused() {
    let mut random = Random::new(62);
    let error = linear(&on_cpu(), &random.tensor(&[2, 5]), &random.tensor(&[3, 4])).unwrap_err();
    assert!(error.to_string().contains("linear: `x` has shape [2, 5], expected [.., 4]"), "{error}");
}
