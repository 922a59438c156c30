//! Element types of pools and weights: what a number of each is in f32.

use candle_core::{CpuStorage, WithDType};
use float8::F8E4M3;
use half::{bf16, f16};
use pulp::Simd;
use pulp::bytemuck::cast_slice_mut;

/// An element type that a pool may have. Arithmetic is always done in f32.
pub(super) trait Element: WithDType + Send + Sync {
    /// The largest number of a type that needs scales.
    const LARGEST: f32;
    fn load(self) -> f32;
    fn store(value: f32) -> Self;
    /// A vector of the first elements.
    #[inline(always)]
    fn vector<S: Simd>(simd: S, stored: &[Self]) -> S::f32s {
        loaded(simd, stored)
    }
    /// Vectors of the first elements.
    #[inline(always)]
    fn vectors<S: Simd>(simd: S, stored: &[Self], wide: &mut [S::f32s]) {
        each_vector(simd, stored, wide);
    }
    /// The elements as bytes, where they are bytes.
    fn as_bytes(_: &[Self]) -> Option<&[u8]> {
        None
    }
    /// The elements as bytes, where they are bytes.
    fn as_bytes_mut(_: &mut [Self]) -> Option<&mut [u8]> {
        None
    }
    /// The elements as f32 without a copy, where they are f32.
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }
    /// The elements as f32 without a copy, where they are f32.
    fn as_f32_mut(_: &mut [Self]) -> Option<&mut [f32]> {
        None
    }
    fn slice_of(storage: &CpuStorage) -> Option<&[Self]>;
    fn slice_of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]>;
}

macro_rules! element {
    ($type:ty, $variant:ident, $largest:expr, $load:expr, $store:expr $(, $identity:item)*) => {
        impl Element for $type {
            const LARGEST: f32 = $largest;
            #[inline(always)]
            fn load(self) -> f32 {
                $load(self)
            }
            #[inline(always)]
            fn store(value: f32) -> Self {
                $store(value)
            }
            fn slice_of(storage: &CpuStorage) -> Option<&[Self]> {
                match storage {
                    CpuStorage::$variant(data) => Some(data),
                    _ => None,
                }
            }
            fn slice_of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
                match storage {
                    CpuStorage::$variant(data) => Some(data),
                    _ => None,
                }
            }
            $($identity)*
        }
    };
}

element!(
    f32,
    F32,
    f32::MAX,
    |value| value,
    |value| value,
    #[inline(always)]
    fn vector<S: Simd>(_: S, stored: &[f32]) -> S::f32s {
        S::as_simd_f32s(stored).0[0]
    },
    #[inline(always)]
    fn as_f32(data: &[Self]) -> Option<&[f32]> {
        Some(data)
    },
    #[inline(always)]
    fn as_f32_mut(data: &mut [Self]) -> Option<&mut [f32]> {
        Some(data)
    }
);
element!(
    f16,
    F16,
    f16::MAX.to_f32_const(),
    f16_value,
    f16::from_f32,
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn vector<S: Simd>(simd: S, stored: &[f16]) -> S::f32s {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps};
        let from: *const f16 = stored[..S::F32_LANES].as_ptr();
        // SAFETY: sixteen lanes are those of AVX-512, which has these, eight those of AVX2 with F16C, and as many numbers are
        // there. The conversion keeps subnormal numbers in every mode.
        unsafe {
            match S::F32_LANES {
                16 => std::mem::transmute_copy(&_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))),
                8 => std::mem::transmute_copy(&super::simd::eight_halves(from.cast())),
                _ => loaded(simd, stored),
            }
        }
    }
);
element!(bf16, BF16, bf16::MAX.to_f32_const(), bf16_value, bf16::from_f32);
element!(
    F8E4M3,
    F8E4M3,
    448.0,
    f8_value,
    F8E4M3::from_f32,
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn vector<S: Simd>(simd: S, stored: &[F8E4M3]) -> S::f32s {
        use std::arch::x86_64::*;
        if !matches!(S::F32_LANES, 8 | 16) {
            return loaded(simd, stored);
        }
        let from: *const F8E4M3 = stored[..S::F32_LANES].as_ptr();
        // With four bits of exponent in five a half is 2^8 times too small, and its largest number stands for none: one more
        // carries into the fifth.
        if S::F32_LANES == 16 {
            // SAFETY: sixteen lanes are those of AVX-512, and sixteen numbers are there.
            return unsafe {
                let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
                let half = _mm256_and_si256(wide, _mm256_set1_epi16(0xbf80_u16 as i16));
                let carried = _mm256_add_epi16(half, _mm256_set1_epi16(0x80));
                let half = _mm256_or_si256(half, _mm256_and_si256(carried, _mm256_set1_epi16(0x4000)));
                std::mem::transmute_copy(&_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0)))
            };
        }
        // SAFETY: eight lanes are those of AVX2 with F16C, and eight numbers are there.
        unsafe {
            let wide = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast())));
            let half = _mm_and_si128(wide, _mm_set1_epi16(0xbf80_u16 as i16));
            let carried = _mm_add_epi16(half, _mm_set1_epi16(0x80));
            let half = _mm_or_si128(half, _mm_and_si128(carried, _mm_set1_epi16(0x4000)));
            std::mem::transmute_copy(&_mm256_mul_ps(super::simd::widened_halves(half), _mm256_set1_ps(256.0)))
        }
    },
    #[inline(always)]
    fn vectors<S: Simd>(simd: S, stored: &[F8E4M3], wide: &mut [S::f32s]) {
        use std::arch::x86_64::*;
        match (S::F32_LANES, wide) {
            // SAFETY: sixteen lanes are those of AVX-512, and thirty-two numbers are there.
            (16, [first, second]) => unsafe {
                let from: *const F8E4M3 = stored[..32].as_ptr();
                let wide = _mm512_slli_epi16::<7>(_mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast())));
                let half = _mm512_and_si512(wide, _mm512_set1_epi16(0xbf80_u16 as i16));
                let carried = _mm512_add_epi16(half, _mm512_set1_epi16(0x80));
                let half = _mm512_or_si512(half, _mm512_and_si512(carried, _mm512_set1_epi16(0x4000)));
                let halves = [_mm512_castsi512_si256(half), _mm512_extracti64x4_epi64::<1>(half)];
                *first = std::mem::transmute_copy(&_mm512_mul_ps(_mm512_cvtph_ps(halves[0]), _mm512_set1_ps(256.0)));
                *second = std::mem::transmute_copy(&_mm512_mul_ps(_mm512_cvtph_ps(halves[1]), _mm512_set1_ps(256.0)));
            },
            (_, wide) => each_vector(simd, stored, wide),
        }
    }
);
// int8: candle has no signed 8-bit type, so the bits lie in unsigned ones.
element!(
    u8,
    U8,
    127.0,
    |bits: u8| f32::from(bits as i8),
    |value: f32| value.round_ties_even().clamp(-128.0, 127.0) as i8 as u8,
    #[inline(always)]
    fn as_bytes(data: &[Self]) -> Option<&[u8]> {
        Some(data)
    },
    #[inline(always)]
    fn as_bytes_mut(data: &mut [Self]) -> Option<&mut [u8]> {
        Some(data)
    }
);

/// Vectors of the first elements, one by one.
#[inline(always)]
fn each_vector<S: Simd, T: Element>(simd: S, stored: &[T], wide: &mut [S::f32s]) {
    for (wide, stored) in wide.iter_mut().zip(stored.chunks_exact(S::F32_LANES)) {
        *wide = T::vector(simd, stored);
    }
}

/// A vector of elements that are loaded one by one, which compilers make one step of.
#[inline(always)]
fn loaded<S: Simd, T: Element>(simd: S, stored: &[T]) -> S::f32s {
    let mut vector = simd.splat_f32s(0.0);
    let wide: &mut [f32] = cast_slice_mut(std::slice::from_mut(&mut vector));
    for (wide, stored) in wide.iter_mut().zip(&stored[..S::F32_LANES]) {
        *wide = stored.load();
    }
    vector
}

/// Without a branch or a table, so that loops over it vectorise.
#[inline(always)]
fn bf16_value(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// All bits, or none. A compiler may make branches of a `match`, and then loops over it do not vectorise.
#[inline(always)]
fn mask(condition: bool) -> u32 {
    u32::from(condition).wrapping_neg()
}

/// As [`bf16_value`]. No number on the way is subnormal, since those may be read as zeros.
#[inline(always)]
fn f16_value(value: f16) -> f32 {
    const EXPONENT: u32 = 0x1f << 23;
    // The exponent of f32 for that of f16, which is 112 less.
    const REBIAS: u32 = 112 << 23;
    let bits = u32::from(value.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    let exponent = magnitude & EXPONENT;
    let normal = magnitude + REBIAS;
    let small = f32::from_bits(normal + (1 << 23)) - f32::from_bits(113 << 23);
    let large = normal + (REBIAS & mask(exponent == EXPONENT));
    let is_small = mask(exponent == 0);
    f32::from_bits(small.to_bits() & is_small | large & !is_small | (bits & 0x8000) << 16)
}

/// As [`f16_value`].
#[inline(always)]
fn f8_value(value: F8E4M3) -> f32 {
    let bits = u32::from(value.to_bits());
    let magnitude = bits & 0x7f;
    let normal = (magnitude << 20) + (120 << 23);
    let small = f32::from_bits(normal + (1 << 23)) - f32::from_bits(121 << 23);
    let large = normal | f32::NAN.to_bits() & mask(magnitude == 0x7f);
    let is_small = mask(magnitude < 8);
    f32::from_bits(small.to_bits() & is_small | large & !is_small | (bits & 0x80) << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of 16 and of 8 bits.
    #[test]
    fn narrow_numbers_load_as_what_they_are() {
        let same =
            |found: f32, expected: f32| found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(same(half.load(), half.to_f32()), "{bits:#x} of f16");
            assert!(same(brain.load(), brain.to_f32()), "{bits:#x} of bf16");
        }
        for bits in 0..=u8::MAX {
            let float = F8E4M3::from_bits(bits);
            assert!(same(float.load(), float.to_f32()), "{bits:#x} of fp8");
        }
    }
}
