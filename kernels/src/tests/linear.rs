//! Streamed products are candle's products, whatever the rows beside them.

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

#[rstest]
fn a_streamed_row_does_not_depend_on_those_beside_it(#[values(2, 3, 5, 8)] rows: usize) {
    let mut random = Random::new(63);
    let x = random.tensor(&[rows, 333]);
    let weight = random.tensor(&[70, 333]);
    let together = values(&linear(&x, &weight).unwrap());
    let alone = (0..rows).flat_map(|row| values(&linear(&x.narrow(0, row, 1).unwrap(), &weight).unwrap()));
    assert!(together.into_iter().eq(alone));
}

#[test]
fn a_wrong_width_is_refused() {
    let mut random = Random::new(62);
    let error = linear(&random.tensor(&[2, 5]), &random.tensor(&[3, 4])).unwrap_err();
    assert!(error.to_string().contains("linear: `x` has shape [2, 5], expected [.., 4]"), "{error}");
}
