//! Streamed products are candle's products.

use super::{Random, assert_close, values};
use crate::linear;
use rstest::rstest;

#[rstest]
fn few_rows_and_many(#[values(1, 3, 8, 9)] rows: usize, #[values(1, 64, 130)] out: usize) {
    let mut random = Random::new(61);
    let x = random.tensor(&[rows, 1, 70]);
    let weight = random.tensor(&[out, 70]);
    let found = linear(&x, &weight).unwrap();
    assert_eq!(found.dims(), [rows, 1, out]);
    let expected = x.reshape((rows, 70)).unwrap().matmul(&weight.t().unwrap()).unwrap();
    assert_close(&values(&found), &values(&expected), 2e-6);
}

#[test]
fn a_wrong_width_is_refused() {
    let mut random = Random::new(62);
    let error = linear(&random.tensor(&[2, 5]), &random.tensor(&[3, 4])).unwrap_err();
    assert!(error.to_string().contains("linear: `x` has shape [2, 5], expected [.., 4]"), "{error}");
}
