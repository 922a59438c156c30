//! Bytes from shapes, without the handlers' own count.

use cacheplan_handlers::{DType, ResourceHandler};

/// Bits of one element, scales excluded, and the scale's bits with the elements that share it, unless a whole row does.
fn bits(dtype: DType) -> (u128, u128, u128) {
    match dtype {
        DType::F32 | DType::Int32 => (32, 0, 1),
        DType::F16 | DType::Bf16 => (16, 0, 1),
        DType::F8E4m3 | DType::F8E5m2 | DType::Int8 | DType::Int8PerTokenHead => (8, 0, 1),
        DType::Nvfp4 => (4, 8, 16),
        DType::Mxfp4 => (4, 8, 32),
        DType::Q8_0 => (8, 16, 32),
        DType::Q4_0 | DType::Iq4Nl => (4, 16, 32),
        DType::Mxfp8 => (8, 8, 32),
        DType::Q4_1 => (4, 32, 32),
        DType::Q5_0 => (5, 16, 32),
        DType::Q5_1 => (5, 32, 32),
    }
}

/// Bits of the scale that a whole row shares.
fn row_bits(dtype: DType) -> u128 {
    if dtype == DType::Int8PerTokenHead { 32 } else { 0 }
}

/// Bytes of one unit of a shape: whole groups of elements along the last dimension, times the others.
pub(super) fn unit_bytes(handler: &ResourceHandler) -> u128 {
    let (element, scale, share) = bits(handler.dtype());
    let sizes: Vec<u128> = handler.shape().iter().map(|dim| u128::from(dim.size)).collect();
    let row = sizes.last().copied().unwrap_or(1);
    let groups = row / share + u128::from(!row.is_multiple_of(share));
    let rows: u128 = sizes.iter().rev().skip(1).product();
    rows * (groups * (element * share + scale) + row_bits(handler.dtype())) / 8
}

/// Bytes that every offset must be a multiple of: one group of elements with its scale.
pub(super) fn alignment(dtype: DType) -> u128 {
    let (element, scale, share) = bits(dtype);
    (element * share + scale) / 8
}
