//! Products are those of their references, whatever the weight is stored as and whatever the rows beside one.

use super::{Random, assert_close, on_cpu, values};
use crate::{linear, portable, reference};
use candle_core::{DType, Device, Tensor};
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
    #[values(1, 2, 3, 8, 9, 66, 257)] rows: usize,
    #[values(1, 48, 130)] out: usize,
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
fn a_narrow_weight_gives_the_bits_of_the_same_weight_in_f32(
    #[values(1, 3, 8, 20)] rows: usize,
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

/// Numbers of rows on either side of what a tile, a task and rows that are laid out at a time end with.
pub(super) const BESIDE: [usize; 13] = [1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 256, 300];

/// That each of many rows has the same product whatever number of rows stands beside it, and however many threads there
/// are.
pub(super) fn assert_alone_as_beside_others(x: &Tensor, product: impl Fn(&Tensor) -> Vec<f32> + Sync, of: &str) {
    let rows = x.dim(0).unwrap();
    let alone: Vec<f32> = (0..rows).flat_map(|row| product(&x.narrow(0, row, 1).unwrap())).collect();
    let outputs = alone.len() / rows;
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for count in BESIDE.into_iter().filter(|count| *count <= rows) {
            let first = rows - count;
            let together = pool.install(|| product(&x.narrow(0, first, count).unwrap()));
            let same = together.iter().zip(&alone[first * outputs..]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && together.len() == count * outputs, "{of}: {count} rows in {threads} threads");
        }
    }
}

/// Widths of less than a vector, of no whole number of them, and of several segments.
#[rstest]
fn a_row_has_the_same_bits_whatever_stands_beside_it(
    #[values(7, 333, 1100)] width: usize,
    #[values(DType::F32, DType::F16, DType::BF16, DType::F8E4M3)] dtype: DType,
) {
    let mut random = Random::new(63);
    let x = random.tensor(&[300, width]);
    let weight = random.tensor(&[70, width]).to_dtype(dtype).unwrap();
    assert_alone_as_beside_others(&x, |x| values(&linear(&on_cpu(), x, &weight).unwrap()), dtype.as_str());
}

/// Subnormal numbers of a weight count, though tasks read those of f32 as zeros.
#[rstest]
fn subnormal_weights_are_numbers(#[values(1, 8, 20)] rows: usize) {
    let x = Tensor::full(1024f32, (rows, 64), &Device::Cpu).unwrap();
    let smallest = f64::from(half::f16::from_bits(1).to_f32());
    let weight = Tensor::full(smallest as f32, (5, 64), &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap();
    let found = values(&linear(&on_cpu(), &x, &weight).unwrap());
    assert!(found.iter().all(|found| f64::from(*found) == 64.0 * 1024.0 * smallest), "{found:?}");
}

#[rstest]
fn no_inputs_are_zeros(#[values(1, 300)] rows: usize) {
    let (x, weight) = (Random::new(68).tensor(&[rows, 0]), Random::new(69).tensor(&[4, 0]));
    assert_eq!(values(&linear(&on_cpu(), &x, &weight).unwrap()), vec![0.0; rows * 4]);
}

#[test]
fn a_wrong_width_is_refused() {
    let mut random = Random::new(62);
    let error = linear(&on_cpu(), &random.tensor(&[2, 5]), &random.tensor(&[3, 4])).unwrap_err();
    assert!(error.to_string().contains("linear: `x` has shape [2, 5], expected [.., 4]"), "{error}");
}
