//! Small dense products on one thread.

/// A strided f32 matrix.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows at a distance of `row_stride` elements.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(rows == 0 || columns == 0 || (rows - 1) * row_stride + columns <= data.len());
        Self { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// The same elements with rows and columns exchanged.
    pub(super) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// `out = keep * out + a b`, where `out` has rows at a distance of `out_stride`.
pub(super) fn multiply(out: &mut [f32], out_stride: usize, keep: f32, a: Matrix<'_>, b: Matrix<'_>) {
    assert_eq!(a.columns, b.rows);
    if a.rows == 0 || b.columns == 0 {
        return;
    }
    assert!((a.rows - 1) * out_stride + b.columns <= out.len() && b.columns <= out_stride.max(b.columns));
    // SAFETY: the assertions here and in `Matrix::new` keep all three matrices inside their slices.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            keep != 0.0,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            keep,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
