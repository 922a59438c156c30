//! Rows whose numbers are stored in groups, each behind a scale of its own.
//!
//! A row takes the bytes that a plan counts for it: its last group is stored whole, with zeros behind the row's end.

use super::check;
use crate::error::{KernelError, Result};
use candle_core::{DType, Device, Tensor};
use float8::F8E4M3;
use half::f16;
use rayon::prelude::*;

/// How a group of numbers is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupFormat {
    /// 32 signed bytes behind an f16 scale (GGML's Q8_0).
    Q8_0,
    /// 32 numbers of -8 to 7 behind an f16 scale (GGML's Q4_0). Byte `i` holds elements `i` (low) and `i + 16`.
    Q4_0,
    /// 32 4-bit floats behind an 8-bit exponent (OCP's MXFP4). Byte `i` holds elements `i` (low) and `i + 16`, as in GGML.
    Mxfp4,
    /// 16 4-bit floats behind an 8-bit float (NVFP4 with a tensor scale of 1). Byte `i` holds elements `2 i` (low) and `2 i + 1`.
    Nvfp4,
}

/// Elements of the largest group.
const MAX_GROUP: usize = 32;
/// The magnitudes of 4-bit floats (E2M1).
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// 4-bit floats by their bits.
const E2M1_VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl GroupFormat {
    /// Elements that share a scale.
    pub fn elements(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Mxfp4 => 32,
            Self::Nvfp4 => 16,
        }
    }

    /// Bytes of a group, its scale included.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Mxfp4 => 17,
            Self::Nvfp4 => 9,
        }
    }

    /// Bytes of a row of `width` elements.
    pub fn row_bytes(self, width: usize) -> usize {
        width.div_ceil(self.elements()) * self.bytes()
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
            pulp::Arch::new().dispatch(
                #[inline(always)]
                || self.decode(row, out),
            );
        });
        Ok(Tensor::from_vec(out, (rows, width), bytes.device())?)
    }

    /// Stores a row. A group with a NaN in it becomes NaN throughout.
    pub(crate) fn encode(self, row: &[f32], target: &mut [u8]) {
        for (values, bytes) in row.chunks(self.elements()).zip(target.chunks_exact_mut(self.bytes())) {
            let mut group = [0f32; MAX_GROUP];
            group[..values.len()].copy_from_slice(values);
            self.encode_group(&group, bytes);
        }
    }

    fn encode_group(self, group: &[f32; MAX_GROUP], bytes: &mut [u8]) {
        let largest = group.iter().fold(0f32, |most, x| if x.abs() > most.abs() || x.is_nan() { *x } else { most });
        let inverse = |scale: f32| if scale == 0.0 { 0.0 } else { 1.0 / scale };
        match self {
            Self::Q8_0 => {
                let scale = in_f16(largest.abs() / 127.0);
                bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                for (byte, x) in bytes[2..].iter_mut().zip(group) {
                    *byte = (x * inverse(scale)).round_ties_even() as i8 as u8;
                }
            }
            Self::Q4_0 => {
                // The largest becomes -8, the one number without a counterpart.
                let scale = in_f16(largest / -8.0);
                bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                let code = |x: f32| (x * inverse(scale) + 8.5).clamp(0.0, 15.0) as u8;
                for (i, byte) in bytes[2..].iter_mut().enumerate() {
                    *byte = code(group[i]) | code(group[i + 16]) << 4;
                }
            }
            Self::Mxfp4 => {
                // The exponent of the largest, less that of 4, the largest power of two among 4-bit floats.
                let exponent = (largest.abs().to_bits() >> 23).saturating_sub(2) as u8;
                bytes[0] = if largest.is_nan() { u8::MAX } else { exponent };
                let scale = inverse(power_of_two(exponent));
                for (i, byte) in bytes[1..].iter_mut().enumerate() {
                    *byte = e2m1(group[i] * scale) | e2m1(group[i + 16] * scale) << 4;
                }
            }
            Self::Nvfp4 => {
                let stored = F8E4M3::from_f32(largest.abs() / 6.0);
                bytes[0] = stored.to_bits();
                let scale = inverse(stored.to_f32());
                for (i, byte) in bytes[1..].iter_mut().enumerate() {
                    *byte = e2m1(group[2 * i] * scale) | e2m1(group[2 * i + 1] * scale) << 4;
                }
            }
        }
    }

    /// Reads a row back.
    #[inline(always)]
    pub(crate) fn decode(self, bytes: &[u8], row: &mut [f32]) {
        for (values, bytes) in row.chunks_mut(self.elements()).zip(bytes.chunks_exact(self.bytes())) {
            let mut group = [0f32; MAX_GROUP];
            self.decode_group(bytes, &mut group);
            values.copy_from_slice(&group[..values.len()]);
        }
    }

    #[inline(always)]
    fn decode_group(self, bytes: &[u8], group: &mut [f32; MAX_GROUP]) {
        let f16_scale = || f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        let (low, high) = group.split_at_mut(16);
        match self {
            Self::Q8_0 => {
                let scale = f16_scale();
                for (x, &byte) in group.iter_mut().zip(&bytes[2..]) {
                    *x = f32::from(byte as i8) * scale;
                }
            }
            Self::Q4_0 => {
                let scale = f16_scale();
                for ((low, high), &byte) in low.iter_mut().zip(high).zip(&bytes[2..]) {
                    *low = (f32::from(byte & 15) - 8.0) * scale;
                    *high = (f32::from(byte >> 4) - 8.0) * scale;
                }
            }
            Self::Mxfp4 => {
                let scale = power_of_two(bytes[0]);
                for ((low, high), &byte) in low.iter_mut().zip(high).zip(&bytes[1..]) {
                    *low = E2M1_VALUES[usize::from(byte & 15)] * scale;
                    *high = E2M1_VALUES[usize::from(byte >> 4)] * scale;
                }
            }
            Self::Nvfp4 => {
                let scale = F8E4M3::from_bits(bytes[0]).to_f32();
                for (pair, &byte) in group.as_chunks_mut::<2>().0.iter_mut().zip(&bytes[1..]) {
                    *pair = [byte & 15, byte >> 4].map(|code| E2M1_VALUES[usize::from(code)] * scale);
                }
            }
        }
    }
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
