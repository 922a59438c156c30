//! Rows whose numbers are stored in bytes: in groups or whole behind a scale of their own, or without one.
//!
//! A row takes the bytes that a plan counts for it: its last group is stored whole, with zeros behind the row's end.

use super::check;
use crate::error::{KernelError, Result};
use candle_core::{DType, Device, Tensor};
use float8::{F8E4M3, F8E5M2};
use half::f16;
use rayon::prelude::*;

/// How a row of numbers is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupFormat {
    /// Signed bytes behind an f32 scale for the whole row, which is the largest magnitude through 127.
    Int8,
    /// 8-bit floats with 5 exponent bits, without a scale.
    F8E5m2,
    /// 32 signed bytes behind an f16 scale (GGML's Q8_0).
    Q8_0,
    /// 32 numbers of -8 to 7 behind an f16 scale (GGML's Q4_0). Byte `i` holds elements `i` (low) and `i + 16`.
    Q4_0,
    /// 32 4-bit floats behind an 8-bit exponent (OCP's MXFP4). Byte `i` holds elements `i` (low) and `i + 16`, as in GGML.
    Mxfp4,
    /// 16 4-bit floats behind an 8-bit float (NVFP4 with a tensor scale of 1). Byte `i` holds elements `2 i` (low) and `2 i + 1`.
    Nvfp4,
}

/// Bytes of the scale of a whole row.
const ROW_SCALE: usize = 4;
/// The magnitudes of 4-bit floats (E2M1).
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// 4-bit floats by their bits.
const E2M1_VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl GroupFormat {
    /// Bytes of a row of `width` elements.
    pub fn row_bytes(self, width: usize) -> usize {
        match self {
            Self::Int8 => width + ROW_SCALE,
            Self::F8E5m2 => width,
            Self::Q8_0 => width.div_ceil(32) * 34,
            Self::Q4_0 => width.div_ceil(32) * 18,
            Self::Mxfp4 => width.div_ceil(32) * 17,
            Self::Nvfp4 => width.div_ceil(16) * 9,
        }
    }

    /// Stores the rows of `x` `[rows, width]` as `[rows, self.row_bytes(width)]` bytes on the device of `x`.
    pub fn quantize(self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let values = x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let row_bytes = self.row_bytes(width);
        let mut bytes = vec![0u8; rows * row_bytes];
        let targets = bytes.par_chunks_mut(row_bytes.max(1));
        targets.zip(values.par_chunks(width.max(1))).for_each(|(bytes, row)| self.encode(row, bytes));
        Ok(Tensor::from_vec(bytes, (rows, row_bytes), x.device())?)
    }

    /// Reads back what [`quantize`](Self::quantize) stored, as `[rows, width]` in f32.
    pub fn dequantize(self, bytes: &Tensor, width: usize) -> Result<Tensor> {
        const OP: &str = "dequantize";
        let (rows, row_bytes) = bytes.dims2()?;
        check::rows(OP, "bytes", bytes, rows, self.row_bytes(width))?;
        if bytes.dtype() != DType::U8 {
            let found = bytes.dtype();
            return Err(KernelError::DType { op: OP, operand: "bytes", found, expected: "u8" });
        }
        let stored = bytes.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u8>()?;
        let mut out = vec![0f32; rows * width];
        let targets = out.par_chunks_mut(width.max(1));
        targets.zip(stored.par_chunks(row_bytes.max(1))).for_each(|(out, row)| {
            // Compiled for the best instruction set of this machine.
            crate::cpu::simd::vectorized(
                #[inline(always)]
                || self.decode(row, out),
            );
        });
        Ok(Tensor::from_vec(out, (rows, width), bytes.device())?)
    }

    /// Stores a row. A group with a NaN in it becomes NaN throughout.
    pub(crate) fn encode(self, row: &[f32], target: &mut [u8]) {
        let inverse = |scale: f32| if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let code = |x: f32, scale: f32| (x * inverse(scale)).round_ties_even() as i8 as u8;
        match self {
            Self::Int8 => {
                let fitting = largest(row).abs() / 127.0;
                // Below the normal numbers a reciprocal can be infinite.
                let scale = if fitting < f32::MIN_POSITIVE { 0.0 } else { fitting };
                let (of_row, bytes) = target.split_at_mut(ROW_SCALE);
                of_row.copy_from_slice(&scale.to_le_bytes());
                bytes.iter_mut().zip(row).for_each(|(byte, &x)| *byte = code(x, scale));
            }
            Self::F8E5m2 => target.iter_mut().zip(row).for_each(|(byte, &x)| *byte = F8E5M2::from_f32(x).to_bits()),
            Self::Q8_0 => encode_groups(row, target, |group: &[f32; 32], bytes: &mut [u8; 34]| {
                let scale = in_f16(largest(group).abs() / 127.0);
                bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                bytes[2..].iter_mut().zip(group).for_each(|(byte, &x)| *byte = code(x, scale));
            }),
            Self::Q4_0 => encode_groups(row, target, |group: &[f32; 32], bytes: &mut [u8; 18]| {
                // The largest becomes -8, the one number without a counterpart.
                let scale = in_f16(largest(group) / -8.0);
                bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                let code = |x: f32| (x * inverse(scale) + 8.5).clamp(0.0, 15.0) as u8;
                for (i, byte) in bytes[2..].iter_mut().enumerate() {
                    *byte = code(group[i]) | code(group[i + 16]) << 4;
                }
            }),
            Self::Mxfp4 => encode_groups(row, target, |group: &[f32; 32], bytes: &mut [u8; 17]| {
                let largest = largest(group);
                // The exponent of the largest, less that of 4, the largest power of two among 4-bit floats.
                let exponent = (largest.abs().to_bits() >> 23).saturating_sub(2) as u8;
                bytes[0] = if largest.is_nan() { u8::MAX } else { exponent };
                let scale = inverse(power_of_two(exponent));
                for (i, byte) in bytes[1..].iter_mut().enumerate() {
                    *byte = e2m1(group[i] * scale) | e2m1(group[i + 16] * scale) << 4;
                }
            }),
            Self::Nvfp4 => encode_groups(row, target, |group: &[f32; 16], bytes: &mut [u8; 9]| {
                let stored = F8E4M3::from_f32(largest(group).abs() / 6.0);
                bytes[0] = stored.to_bits();
                let scale = inverse(stored.to_f32());
                for (i, byte) in bytes[1..].iter_mut().enumerate() {
                    *byte = e2m1(group[2 * i] * scale) | e2m1(group[2 * i + 1] * scale) << 4;
                }
            }),
        }
    }

    /// Reads a row back.
    #[inline(always)]
    pub(crate) fn decode(self, bytes: &[u8], row: &mut [f32]) {
        match self {
            Self::Int8 => {
                if let Some((scale, bytes)) = bytes.split_first_chunk::<ROW_SCALE>() {
                    let scale = f32::from_le_bytes(*scale);
                    row.iter_mut().zip(bytes).for_each(|(x, &byte)| *x = f32::from(byte as i8) * scale);
                }
            }
            // The upper half of an f16.
            Self::F8E5m2 => {
                row.iter_mut().zip(bytes).for_each(|(x, &byte)| *x = f16::from_bits(u16::from(byte) << 8).to_f32());
            }
            Self::Q8_0 => decode_groups(bytes, row, |bytes: &[u8; 34], group: &mut [f32; 32]| {
                let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                group.iter_mut().zip(&bytes[2..]).for_each(|(x, &byte)| *x = f32::from(byte as i8) * scale);
            }),
            Self::Q4_0 => decode_groups(bytes, row, |bytes: &[u8; 18], group: &mut [f32; 32]| {
                let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                let (low, high) = group.split_at_mut(16);
                for ((low, high), &byte) in low.iter_mut().zip(high).zip(&bytes[2..]) {
                    *low = (f32::from(byte & 15) - 8.0) * scale;
                    *high = (f32::from(byte >> 4) - 8.0) * scale;
                }
            }),
            Self::Mxfp4 => decode_groups(bytes, row, |bytes: &[u8; 17], group: &mut [f32; 32]| {
                let scale = power_of_two(bytes[0]);
                let (low, high) = group.split_at_mut(16);
                for ((low, high), &byte) in low.iter_mut().zip(high).zip(&bytes[1..]) {
                    *low = E2M1_VALUES[usize::from(byte & 15)] * scale;
                    *high = E2M1_VALUES[usize::from(byte >> 4)] * scale;
                }
            }),
            Self::Nvfp4 => decode_groups(bytes, row, |bytes: &[u8; 9], group: &mut [f32; 16]| {
                let scale = F8E4M3::from_bits(bytes[0]).to_f32();
                for (pair, &byte) in group.as_chunks_mut::<2>().0.iter_mut().zip(&bytes[1..]) {
                    *pair = [byte & 15, byte >> 4].map(|code| E2M1_VALUES[usize::from(code)] * scale);
                }
            }),
        }
    }
}

/// Stores a row group by group, with zeros behind its end.
fn encode_groups<const ELEMENTS: usize, const BYTES: usize>(
    row: &[f32],
    target: &mut [u8],
    encode: impl Fn(&[f32; ELEMENTS], &mut [u8; BYTES]),
) {
    for (values, bytes) in row.chunks(ELEMENTS).zip(target.as_chunks_mut().0) {
        let mut group = [0f32; ELEMENTS];
        group[..values.len()].copy_from_slice(values);
        encode(&group, bytes);
    }
}

/// Reads back what [`encode_groups`] stored.
#[inline(always)]
fn decode_groups<const ELEMENTS: usize, const BYTES: usize>(
    bytes: &[u8],
    row: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    for (values, bytes) in row.chunks_mut(ELEMENTS).zip(bytes.as_chunks().0) {
        let mut group = [0f32; ELEMENTS];
        decode(bytes, &mut group);
        values.copy_from_slice(&group[..values.len()]);
    }
}

/// The element of the largest magnitude; NaN if there is one.
fn largest(group: &[f32]) -> f32 {
    group.iter().fold(0f32, |most, x| if x.abs() > most.abs() || x.is_nan() { *x } else { most })
}

/// The nearest scale that does not become infinite as f16; what is infinite or NaN stays.
fn in_f16(scale: f32) -> f32 {
    let most = f16::MAX.to_f32();
    if scale.is_infinite() { scale } else { scale.clamp(-most, most) }
}

/// `2^(exponent - 127)`; NaN for 255.
#[inline(always)]
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        u8::MAX => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// The bits of the nearest 4-bit float, of two the even one; what lies beyond the largest becomes it.
fn e2m1(x: f32) -> u8 {
    let magnitude = x.abs();
    let above = (1..8).filter(|&code| {
        let middle = (E2M1[code - 1] + E2M1[code]) / 2.0;
        magnitude > middle || (magnitude == middle && code % 2 == 0)
    });
    above.count() as u8 | u8::from(x.is_sign_negative()) << 3
}
