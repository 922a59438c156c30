//! Rows of KV pools to f32 and back.

use super::element::Element;
use super::simd::vectorized;
use super::storage::with_pool;
use crate::error::Result;
use crate::ops::groups::GroupFormat;
use crate::ops::quant::KvQuant;

/// How the rows of a pool become f32, up to a factor that is the same for all of a head.
#[derive(Clone, Copy)]
pub(super) enum RowCodec<'a> {
    /// Each element is a number.
    Plain,
    /// Each element is a number, to be multiplied by the factor of its row.
    Scaled(&'a [f32]),
    /// Groups behind their scales.
    Grouped(GroupFormat),
}

impl RowCodec<'_> {
    /// Runs `body` with the codec of `quant`.
    pub(super) fn with<R>(
        op: &'static str,
        quant: Option<&KvQuant<'_>>,
        body: impl FnOnce(RowCodec<'_>) -> Result<R>,
    ) -> Result<R> {
        match quant {
            None | Some(KvQuant::PerTensor(_) | KvQuant::PerHead { .. }) => body(RowCodec::Plain),
            Some(KvQuant::PerToken(scales)) => with_pool::<f32, _>(op, scales, |scales| body(RowCodec::Scaled(scales))),
            Some(KvQuant::Grouped(format)) => body(RowCodec::Grouped(*format)),
        }
    }

    /// Appends `len` rows of `head_dim` elements to `target`: those at a distance of `stride` in `source`, the first
    /// of which is row `first` of all of the layer's rows, and those behind it each `row_stride` further.
    pub(super) fn widen<T: Element>(self, source: &[T], rows: StoredRows, head_dim: usize, target: &mut Vec<f32>) {
        let StoredRows { stride, width, len, first, row_stride } = rows;
        let start = target.len();
        target.resize(start + len * head_dim, 0.0);
        vectorized(
            #[inline(always)]
            || {
                for (index, target) in target[start..].chunks_exact_mut(head_dim).enumerate() {
                    let row = &source[index * stride..][..width];
                    match self {
                        Self::Plain => copy_scaled(row, 1.0, target),
                        Self::Scaled(scales) => copy_scaled(row, scales[first + index * row_stride], target),
                        Self::Grouped(format) => {
                            if let Some(bytes) = T::as_bytes(row) {
                                format.decode(bytes, target);
                            }
                        }
                    }
                }
            },
        );
    }
}

/// Rows of one head in a block.
#[derive(Clone, Copy)]
pub(super) struct StoredRows {
    /// Elements between the starts of rows.
    pub(super) stride: usize,
    /// Elements of a row as it is stored.
    pub(super) width: usize,
    /// How many there are.
    pub(super) len: usize,
    /// Number of the first among the layer's rows in all blocks.
    pub(super) first: usize,
    /// Difference of that number from row to row.
    pub(super) row_stride: usize,
}

#[inline(always)]
fn copy_scaled<T: Element>(row: &[T], scale: f32, target: &mut [f32]) {
    for (target, value) in target.iter_mut().zip(row) {
        *target = value.load() * scale;
    }
}

/// Stores a row of `T`: as it is times `factor`, behind a scale of its own, or in groups.
pub(super) fn narrow_row<T: Element>(
    row: &[f32],
    factor: f32,
    own_scale: Option<&mut f32>,
    format: Option<GroupFormat>,
    target: &mut [T],
) {
    if let (Some(format), Some(bytes)) = (format, T::as_bytes_mut(target)) {
        return format.encode(row, bytes);
    }
    let factor = match own_scale {
        None => factor,
        Some(scale) => {
            let largest = row.iter().fold(0f32, |most, x| if x.abs() > most || x.is_nan() { x.abs() } else { most });
            let fitting = largest / T::LARGEST;
            // Below the normal numbers a reciprocal can be infinite.
            *scale = if fitting < f32::MIN_POSITIVE { 0.0 } else { fitting };
            if *scale == 0.0 { 0.0 } else { 1.0 / *scale }
        }
    };
    for (target, &source) in target.iter_mut().zip(row) {
        *target = T::store(source * factor);
    }
}
