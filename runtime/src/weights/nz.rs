//! Matrices in the fractal NZ order of Ascend: columns of 32 bytes, each stored whole before the next.

/// Bytes of a column.
const COLUMN: usize = 32;
/// Rows may end in padding, up to a multiple of so many.
const ROWS: usize = 16;

/// Whether a tensor of dimensions `stored` is a matrix `[rows, columns]` of elements of so many bytes in NZ order: `[1,
/// columns / C0, rows, C0]`, where C0 elements take 32 bytes and the last of a row may be padding.
pub(super) fn is_nz(stored: &[usize], matrix: &[usize], element_bytes: usize) -> bool {
    let (&[1, across, tall, wide], &[rows, columns]) = (stored, matrix) else { return false };
    let fits = |elements: usize| wide == elements && across == columns.div_ceil(elements);
    let is_tall = tall == rows || tall == rows.next_multiple_of(ROWS);
    is_tall && COLUMN.checked_div(element_bytes).is_some_and(|elements| elements > 0 && fits(elements))
}

/// The rows of a matrix, one after the other, from a tensor whose columns are `tall` rows.
pub(super) fn in_rows(raw: &[u8], tall: usize, rows: usize, row_bytes: usize) -> Vec<u8> {
    let mut plain = Vec::with_capacity(rows * row_bytes);
    for row in 0..rows {
        for at in (0..row_bytes).step_by(COLUMN) {
            let start = (at / COLUMN * tall + row) * COLUMN;
            plain.extend_from_slice(&raw[start..start + COLUMN.min(row_bytes - at)]);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_columns_become_rows() {
        // Two rows of 40 bytes in two columns; rows are padded to 16.
        let mut raw = vec![0xff; 2 * 16 * 32];
        for row in 0..2u8 {
            for byte in 0..40u8 {
                raw[usize::from(byte / 32) * 512 + usize::from(row) * 32 + usize::from(byte % 32)] = 100 * row + byte;
            }
        }
        assert!(is_nz(&[1, 2, 16, 32], &[2, 40], 1) && is_nz(&[1, 2, 2, 32], &[2, 40], 1));
        assert!(is_nz(&[1, 3, 16, 16], &[2, 40], 2));
        let expected: Vec<u8> = (0..40).chain(100..140).collect();
        assert_eq!(in_rows(&raw, 16, 2, 40), expected);
        for other in [[1, 1, 16, 32], [1, 2, 3, 32], [2, 2, 16, 32], [1, 2, 16, 16]] {
            assert!(!is_nz(&other, &[2, 40], 1), "{other:?}");
        }
        assert!(!is_nz(&[1, 2, 16, 0], &[2, 40], 64) && !is_nz(&[2, 40], &[2, 40], 1));
    }
}
