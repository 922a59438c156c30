//! Dense products whose rows do not depend on each other: an element is summed in one order, however many rows there are.

use super::simd::vectorized;
use rayon::prelude::*;
use std::cell::RefCell;

/// A strided f32 matrix.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    shape: [usize; 2],
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// `shape` rows and columns at distances of `strides` elements; `None` where `data` does not hold them.
    pub fn new(data: &'a [f32], shape: [usize; 2], strides: [usize; 2]) -> Option<Self> {
        let reach = |axis: usize| shape[axis].checked_sub(1)?.checked_mul(strides[axis]);
        let fits = shape.contains(&0) || reach(0)?.checked_add(reach(1)?)? < data.len();
        fits.then_some(Self { data, shape, strides })
    }

    /// Fills `out`, row after row, with the product of this matrix and `b`.
    ///
    /// # Panics
    /// Where the shapes do not go together.
    pub fn product(self, b: Matrix<'_>, out: &mut [f32]) {
        let a = self;
        let ([rows, depth], [b_rows, columns]) = (a.shape, b.shape);
        assert!(
            depth == b_rows && out.len() == rows * columns,
            "{:?} times {:?} is not {}",
            a.shape,
            b.shape,
            out.len()
        );
        if out.is_empty() {
            return;
        }
        if depth == 0 {
            return out.fill(0.0);
        }
        let parallel = rows * columns * depth >= PARALLEL && rayon::current_num_threads() > 1;
        match (parallel, rows) {
            (false, _) => block(out, columns, a, 0..rows, b, 0),
            (true, 1) => {
                let piece = columns.div_ceil(4 * rayon::current_num_threads()).next_multiple_of(COLUMNS);
                let pieces = out.par_chunks_mut(piece).enumerate();
                pieces.for_each(|(n, out)| {
                    let width = out.len();
                    block(out, width, a, 0..1, b, n * piece);
                });
            }
            (true, _) => {
                let piece = rows.div_ceil(2 * rayon::current_num_threads()).next_multiple_of(ROWS);
                let pieces = out.par_chunks_mut(piece * columns).enumerate();
                pieces.for_each(|(n, out)| {
                    let first = n * piece;
                    block(out, columns, a, first..first + out.len() / columns, b, 0);
                });
            }
        }
    }
}

/// Rows and columns of the product that are summed at once, in registers.
const ROWS: usize = 4;
const COLUMNS: usize = 32;
/// Products and sums that are worth another thread.
const PARALLEL: usize = 1 << 19;

thread_local! {
    /// Columns of a matrix whose rows are not contiguous.
    static PACKED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The rows `rows` of the product, from column `first` on as far as `out` is wide.
fn block(out: &mut [f32], width: usize, a: Matrix<'_>, rows: std::ops::Range<usize>, b: Matrix<'_>, first: usize) {
    let depth = a.shape[1];
    let mut packed = PACKED.take();
    for start in (0..width).step_by(COLUMNS) {
        let count = COLUMNS.min(width - start);
        let column = first + start;
        // Whole, contiguous columns are read where they are.
        let (columns, stride) = if b.strides[1] == 1 && count == COLUMNS {
            (&b.data[column..], b.strides[0])
        } else {
            packed.clear();
            packed.resize(depth * COLUMNS, 0.0);
            for (k, packed) in packed.chunks_exact_mut(COLUMNS).enumerate() {
                for (n, packed) in packed.iter_mut().take(count).enumerate() {
                    *packed = b.data[k * b.strides[0] + (column + n) * b.strides[1]];
                }
            }
            (packed.as_slice(), COLUMNS)
        };
        for row in rows.clone().step_by(ROWS) {
            let some = ROWS.min(rows.end - row);
            let mut sums = [[0f32; COLUMNS]; ROWS];
            vectorized(
                #[inline(always)]
                || match some {
                    ROWS => tile::<ROWS>(&mut sums, a, row, columns, stride),
                    3 => tile::<3>(&mut sums, a, row, columns, stride),
                    2 => tile::<2>(&mut sums, a, row, columns, stride),
                    _ => tile::<1>(&mut sums, a, row, columns, stride),
                },
            );
            for (n, sums) in sums.iter().take(some).enumerate() {
                let at = (row - rows.start + n) * width + start;
                out[at..at + count].copy_from_slice(&sums[..count]);
            }
        }
    }
    PACKED.set(packed);
}

#[inline(always)]
fn tile<const N: usize>(sums: &mut [[f32; COLUMNS]; ROWS], a: Matrix<'_>, row: usize, b: &[f32], stride: usize) {
    let mut kept = [[0f32; COLUMNS]; N];
    for k in 0..a.shape[1] {
        let weights: &[f32; COLUMNS] = b[k * stride..][..COLUMNS].try_into().unwrap_or(&[0.0; COLUMNS]);
        for (n, kept) in kept.iter_mut().enumerate() {
            let factor = a.data[(row + n) * a.strides[0] + k * a.strides[1]];
            for (kept, weight) in kept.iter_mut().zip(weights) {
                *kept += factor * weight;
            }
        }
    }
    sums[..N].copy_from_slice(&kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|n| ((n * 37 % 101) as f32 - 50.0) / 64.0).collect()
    }

    fn product_of(rows: usize, depth: usize, columns: usize, transposed: bool) -> Vec<f32> {
        let (a, b) = (numbers(rows * depth), numbers(depth * columns));
        let strides = if transposed { [1, depth] } else { [columns, 1] };
        let (a, b) =
            (Matrix::new(&a, [rows, depth], [depth, 1]).unwrap(), Matrix::new(&b, [depth, columns], strides).unwrap());
        let mut out = vec![f32::NAN; rows * columns];
        a.product(b, &mut out);
        out
    }

    #[test]
    fn a_product_is_the_sum_of_products() {
        for (rows, depth, columns) in [(1, 1, 1), (3, 5, 7), (5, 33, 40), (9, 64, 300), (1, 700, 800), (40, 130, 150)] {
            for transposed in [false, true] {
                let (a, b) = (numbers(rows * depth), numbers(depth * columns));
                let found = product_of(rows, depth, columns, transposed);
                for (at, found) in found.into_iter().enumerate() {
                    let (row, column) = (at / columns, at % columns);
                    let b_at = |k: usize| if transposed { k + column * depth } else { k * columns + column };
                    let expected: f64 = (0..depth).map(|k| f64::from(a[row * depth + k]) * f64::from(b[b_at(k)])).sum();
                    assert!((f64::from(found) - expected).abs() < 1e-4, "{rows} {depth} {columns} at {at}");
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_how_many_there_are() {
        for rows in [1, 2, 3, 4, 6, 61] {
            assert_eq!(product_of(rows, 300, 170, false), product_of(64, 300, 170, false)[..rows * 170]);
        }
    }

    #[test]
    fn a_matrix_beyond_its_data_is_none() {
        let data = [0.0; 12];
        assert!(Matrix::new(&data, [3, 4], [4, 1]).is_some());
        assert!(Matrix::new(&data, [3, 4], [5, 1]).is_none());
        assert!(Matrix::new(&data, [3, usize::MAX], [4, 2]).is_none());
        assert!(Matrix::new(&[], [0, 4], [4, 1]).is_some());
    }
}
