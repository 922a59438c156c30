//! Blocks for vectors of eight and sixteen lanes. Compilers make numbers of the loops in `blocks` one by one; here a group of 32
//! becomes whole numbers of eight bits first, all at once, or with AVX-512 places in a table.
//!
//! Instructions stand in no closure: one that is not inlined knows no AVX2, and each of them is a call then.

use super::super::simd::widened_halves;
use super::*;
use pulp::bytemuck::bytes_of;
use std::arch::x86_64::*;

/// Numbers of a group.
pub(in crate::cpu) const GROUP: usize = 32;

/// What makes whole numbers those of a block: a factor of each 16 or 32, and what is taken off then.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Factors {
    scales: [f32; 16],
    least: [f32; 16],
}

impl Factors {
    pub(in crate::cpu) const NONE: Self = Self { scales: [0.0; 16], least: [0.0; 16] };

    /// The factor of each eighth of a group, of which four lanes have 16 numbers.
    ///
    /// # Safety
    /// There is AVX2.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn of_group(&self, group: usize, common: usize) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            match common {
                GROUP => _mm256_set1_ps(self.scales[group]),
                _ => _mm256_set_m128(_mm_set1_ps(self.scales[2 * group + 1]), _mm_set1_ps(self.scales[2 * group])),
            }
        }
    }

    /// `sums` without what is taken off a block, for the sums of the inputs that have it in common.
    ///
    /// # Safety
    /// There is AVX2.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn without_least(&self, inputs: &[f32], sums: __m256) -> __m256 {
        // SAFETY: the caller's promise; eight numbers are there on both sides.
        unsafe {
            match (inputs.as_chunks::<8>().0, inputs) {
                ([], [only, ..]) => {
                    let least = _mm256_zextps128_ps256(_mm_set_ss(self.least[0]));
                    _mm256_fnmadd_ps(least, _mm256_set1_ps(*only), sums)
                }
                (eights, _) => {
                    let mut sums = sums;
                    for (eight, least) in eights.iter().zip(self.least.as_chunks::<8>().0) {
                        sums = _mm256_fnmadd_ps(_mm256_loadu_ps(least.as_ptr()), _mm256_loadu_ps(eight.as_ptr()), sums);
                    }
                    sums
                }
            }
        }
    }
}

/// A block as groups of whole numbers.
pub(in crate::cpu) trait Groups: Block {
    /// Whether it is one.
    const GROUPED: bool = true;
    /// Numbers that have a factor in common.
    const COMMON: usize = GROUP;
    /// Groups that have bytes in common, which are taken together.
    const TOGETHER: usize = 1;
    /// Whether something is taken off.
    const HAS_LEAST: bool = false;
    /// The whole number of each four bits, where a group has them and one factor.
    const TABLE: Option<[f32; 16]> = None;

    /// Fills in the factors that it has; `half` makes numbers of 16 bits wide.
    fn factors(&self, half: impl Fn(Half) -> f32 + Copy, factors: &mut Factors);

    /// The whole numbers of a group.
    ///
    /// # Safety
    /// There is AVX2.
    unsafe fn quants(&self, group: usize) -> __m256i;

    /// The same in vectors of 32 bits.
    ///
    /// # Safety
    /// There is AVX2.
    #[inline(always)]
    unsafe fn whole(&self, group: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let quants = self.quants(group);
            let [low, high] = [_mm256_castsi256_si128(quants), _mm256_extracti128_si256::<1>(quants)];
            [
                _mm256_cvtepi8_epi32(low),
                _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(low)),
                _mm256_cvtepi8_epi32(high),
                _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(high)),
            ]
        }
    }

    /// The numbers of a group, as [`Block::widen`] makes them.
    ///
    /// # Safety
    /// There is AVX2.
    #[inline(always)]
    unsafe fn numbers(&self, factors: &Factors, group: usize) -> [__m256; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let whole = self.whole(group);
            let mut numbers = [_mm256_setzero_ps(); 4];
            for n in 0..4 {
                let common = (GROUP * group + 8 * n) / Self::COMMON;
                numbers[n] = _mm256_mul_ps(_mm256_cvtepi32_ps(whole[n]), _mm256_set1_ps(factors.scales[common]));
                if Self::HAS_LEAST {
                    numbers[n] = _mm256_sub_ps(numbers[n], _mm256_set1_ps(factors.least[common]));
                }
            }
            numbers
        }
    }

    /// The whole numbers of a group in vectors of sixteen lanes; with a table its places, of which four bits count.
    ///
    /// # Safety
    /// There is AVX-512.
    #[inline(always)]
    unsafe fn sixteens(&self, group: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let quants = self.quants(group);
            let [low, high] = [_mm256_castsi256_si128(quants), _mm256_extracti128_si256::<1>(quants)];
            [_mm512_cvtepi8_epi32(low), _mm512_cvtepi8_epi32(high)]
        }
    }

    /// As [`numbers`](Self::numbers), in vectors of sixteen lanes.
    ///
    /// # Safety
    /// There is AVX-512.
    #[inline(always)]
    unsafe fn wide_numbers(&self, factors: &Factors, group: usize) -> [__m512; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let sixteens = self.sixteens(group);
            let mut numbers = [_mm512_setzero_ps(); 2];
            if let Some(table) = Self::TABLE {
                let mut table = _mm512_mul_ps(_mm512_loadu_ps(table.as_ptr()), _mm512_set1_ps(factors.scales[group]));
                if Self::HAS_LEAST {
                    table = _mm512_sub_ps(table, _mm512_set1_ps(factors.least[group]));
                }
                for n in 0..2 {
                    numbers[n] = _mm512_permutexvar_ps(sixteens[n], table);
                }
                return numbers;
            }
            for n in 0..2 {
                let common = (GROUP * group + 16 * n) / Self::COMMON;
                numbers[n] = _mm512_mul_ps(_mm512_cvtepi32_ps(sixteens[n]), _mm512_set1_ps(factors.scales[common]));
                if Self::HAS_LEAST {
                    numbers[n] = _mm512_sub_ps(numbers[n], _mm512_set1_ps(factors.least[common]));
                }
            }
            numbers
        }
    }
}

/// 32 bytes.
#[inline(always)]
unsafe fn bytes(from: &[u8]) -> __m256i {
    // SAFETY: the slice has them.
    unsafe { _mm256_loadu_si256(from[..32].as_ptr().cast()) }
}

/// `bytes >> shift & mask`, of each byte.
#[inline(always)]
unsafe fn bits(bytes: __m256i, shift: usize, mask: i8) -> __m256i {
    // SAFETY: AVX2 is there where this is called.
    unsafe { _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32)), _mm256_set1_epi8(mask)) }
}

/// `bytes` and some bits of `high`, `times` as large.
#[inline(always)]
unsafe fn joined<const SHIFT: i32>(low: __m256i, high: __m256i) -> __m256i {
    // SAFETY: AVX2 is there where this is called.
    unsafe { _mm256_or_si256(low, _mm256_slli_epi16::<SHIFT>(high)) }
}

/// The low four bits of 16 bytes, then the high ones.
#[inline(always)]
unsafe fn nibbles(of: &[u8; 16]) -> __m256i {
    // SAFETY: AVX2 is there where this is called, and the array has as many bytes.
    unsafe {
        let bytes = _mm_loadu_si128(of.as_ptr().cast());
        let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(bytes), _mm_srli_epi16::<4>(bytes));
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// 16 in each byte whose bit is set.
#[inline(always)]
unsafe fn fifth(of: [u8; 4]) -> __m256i {
    // SAFETY: AVX2 is there where this is called.
    unsafe {
        let place = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
        let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(of)), place);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit), _mm256_set1_epi8(16))
    }
}

/// The low or the high four bits of eight bytes, in 32 bits each.
#[inline(always)]
unsafe fn half_bytes(from: &[u8], high: bool) -> __m256i {
    // SAFETY: AVX2 is there where this is called, and the slice has eight bytes.
    unsafe {
        let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from[..8].as_ptr().cast()));
        if high { _mm256_srli_epi32::<4>(bytes) } else { _mm256_and_si256(bytes, _mm256_set1_epi32(15)) }
    }
}

/// The low four bits of 16 bytes, then the high ones, as places in a table.
#[inline(always)]
unsafe fn places(of: &[u8; 16]) -> [__m512i; 2] {
    // SAFETY: AVX-512 is there where this is called, and the array has as many bytes.
    unsafe {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(of.as_ptr().cast()));
        [bytes, high_places(bytes)]
    }
}

/// The same of the high four bits.
///
/// # Safety
/// There is AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn high_places(bytes: __m512i) -> __m512i {
    let high;
    // SAFETY: the caller's promise. Of a shift that they see compilers make one of the bytes, which then become wide twice.
    unsafe {
        std::arch::asm!("vpsrld {}, {}, 4", out(zmm_reg) high, in(zmm_reg) bytes, options(pure, nomem, nostack, preserves_flags));
    }
    high
}

/// The whole numbers from 0 on, less `zero`.
const fn counted(zero: i8) -> Option<[f32; 16]> {
    let mut table = [0.0; 16];
    let mut at = 0;
    while at < 16 {
        table[at] = (at as i8 - zero) as f32;
        at += 1;
    }
    Some(table)
}

macro_rules! groups {
    ($name:ty { $($constant:ident = $value:expr),* }, |$self:ident, $half:ident, $factors:ident| $fill:expr, |$group:ident| $quants:expr $(, $more:item)*) => {
        impl Groups for $name {
            $(const $constant: groups!(@ $constant) = $value;)*

            #[inline(always)]
            fn factors(&$self, $half: impl Fn(Half) -> f32 + Copy, $factors: &mut Factors) {
                $fill
            }

            #[inline(always)]
            unsafe fn quants(&$self, $group: usize) -> __m256i {
                // SAFETY: the caller's promise.
                unsafe { $quants }
            }

            $($more)*
        }
    };
    (@ GROUPED) => { bool };
    (@ HAS_LEAST) => { bool };
    (@ COMMON) => { usize };
    (@ TOGETHER) => { usize };
    (@ TABLE) => { Option<[f32; 16]> };
}

groups!(F32 { GROUPED = false }, |self, _half, _factors| {}, |_group| _mm256_setzero_si256());
groups!(F16 { GROUPED = false }, |self, _half, _factors| {}, |_group| _mm256_setzero_si256());
groups!(Bf16 { GROUPED = false }, |self, _half, _factors| {}, |_group| _mm256_setzero_si256());

groups!(
    Q4_0 { TABLE = counted(8) },
    |self, half, factors| factors.scales[0] = half(self.scale),
    |_group| _mm256_sub_epi8(nibbles(&self.quants), _mm256_set1_epi8(8)),
    #[inline(always)]
    unsafe fn whole(&self, _: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let ([first, second], eight) = ([&self.quants[..8], &self.quants[8..]], _mm256_set1_epi32(8));
            [
                _mm256_sub_epi32(half_bytes(first, false), eight),
                _mm256_sub_epi32(half_bytes(second, false), eight),
                _mm256_sub_epi32(half_bytes(first, true), eight),
                _mm256_sub_epi32(half_bytes(second, true), eight),
            ]
        }
    },
    #[inline(always)]
    unsafe fn sixteens(&self, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { places(&self.quants) }
    }
);

groups!(
    Q4_1 { HAS_LEAST = true, TABLE = counted(0) },
    |self, half, factors| (factors.scales[0], factors.least[0]) = (half(self.scale), -half(self.least)),
    |_group| nibbles(&self.quants),
    #[inline(always)]
    unsafe fn sixteens(&self, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { places(&self.quants) }
    }
);

groups!(Q5_0 {}, |self, half, factors| factors.scales[0] = half(self.scale), |_group| {
    _mm256_sub_epi8(_mm256_or_si256(nibbles(&self.quants), fifth(self.fifth)), _mm256_set1_epi8(16))
});

groups!(
    Q5_1 { HAS_LEAST = true },
    |self, half, factors| (factors.scales[0], factors.least[0]) = (half(self.scale), -half(self.least)),
    |_group| _mm256_or_si256(nibbles(&self.quants), fifth(self.fifth))
);

groups!(
    Q8_0 {},
    |self, half, factors| factors.scales[0] = half(self.scale),
    |_group| _mm256_loadu_si256(self.quants.as_ptr().cast()),
    #[inline(always)]
    unsafe fn whole(&self, _: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise; eight bytes are there from each of these places on.
        unsafe {
            [
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(self.quants[..8].as_ptr().cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(self.quants[8..16].as_ptr().cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(self.quants[16..24].as_ptr().cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(self.quants[24..].as_ptr().cast())),
            ]
        }
    }
);

groups!(
    Q2K { HAS_LEAST = true, COMMON = 16, TOGETHER = 4 },
    |self, half, factors| {
        let (scale, least) = (half(self.scale), half(self.least));
        for (at, both) in self.scales.into_iter().enumerate() {
            factors.scales[at] = scale * f32::from(both & 15);
            factors.least[at] = least * f32::from(both >> 4);
        }
    },
    |group| bits(bytes(&self.quants[group / 4 * 32..]), group % 4 * 2, 3)
);

groups!(
    Q3K { COMMON = 16, TOGETHER = 4 },
    |self, half, factors| {
        let scale = half(self.scale);
        for (factor, of) in factors.scales.iter_mut().zip(three_bit_scales(self.scales)) {
            *factor = scale * f32::from(of);
        }
    },
    |group| {
        let low = bits(bytes(&self.quants[group / 4 * 32..]), group % 4 * 2, 3);
        let high = bits(bytes(&self.high), group, 1);
        _mm256_sub_epi8(joined::<2>(low, high), _mm256_set1_epi8(4))
    }
);

/// The factors of eight groups of 32, of what a block begins with: a scale and a least, then `six_bits`.
#[inline(always)]
fn of_six_bits(block: &[u8], factors: &mut Factors) {
    // SAFETY: AVX2 and F16C are there where this is called, and the arrays have more than eight numbers.
    unsafe {
        let head = _mm_loadu_si128(block[..16].as_ptr().cast());
        // Words: what six bits begin and what they end with, of the scales and of the leasts.
        let low = _mm_srlv_epi32(_mm_shuffle_epi32::<0b11_10_11_01>(head), _mm_set_epi32(4, 0, 0, 0));
        let low = _mm_and_si128(low, _mm_set_epi32(0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f));
        let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head));
        let both = _mm_or_si128(low, _mm_and_si128(high, _mm_set_epi32(0x3030_3030, 0, 0x3030_3030, 0)));
        let by = widened_halves(head);
        let of_scale = _mm256_broadcastss_ps(_mm256_castps256_ps128(by));
        let of_least = _mm256_broadcastss_ps(_mm_movehdup_ps(_mm256_castps256_ps128(by)));
        for (factors, eight, by) in
            [(&mut factors.scales, both, of_scale), (&mut factors.least, _mm_srli_si128::<8>(both), of_least)]
        {
            let eight = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
            _mm256_storeu_ps(factors.as_mut_ptr(), _mm256_mul_ps(eight, by));
        }
    }
}

groups!(
    Q4K { HAS_LEAST = true, TOGETHER = 2, TABLE = counted(0) },
    |self, _half, factors| of_six_bits(bytes_of(self), factors),
    |group| bits(bytes(&self.quants[group / 2 * 32..]), group % 2 * 4, 15),
    // From memory, which is faster than to take vectors apart; a pair of groups has its bytes in common.
    #[inline(always)]
    unsafe fn whole(&self, group: usize) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let (quants, high) = (&self.quants[group / 2 * 32..][..32], group % 2 == 1);
            [
                half_bytes(quants, high),
                half_bytes(&quants[8..], high),
                half_bytes(&quants[16..], high),
                half_bytes(&quants[24..], high),
            ]
        }
    },
    #[inline(always)]
    unsafe fn sixteens(&self, group: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise; sixteen bytes are there from both places on.
        unsafe {
            let (quants, high) = (&self.quants[group / 2 * 32..][..32], group % 2 == 1);
            let first = _mm512_cvtepu8_epi32(_mm_loadu_si128(quants.as_ptr().cast()));
            let second = _mm512_cvtepu8_epi32(_mm_loadu_si128(quants[16..].as_ptr().cast()));
            match high {
                true => [high_places(first), high_places(second)],
                false => [first, second],
            }
        }
    }
);

groups!(
    Q5K { HAS_LEAST = true, TOGETHER = 2 },
    |self, _half, factors| of_six_bits(bytes_of(self), factors),
    |group| {
        let low = bits(bytes(&self.quants[group / 2 * 32..]), group % 2 * 4, 15);
        joined::<4>(low, bits(bytes(&self.high), group, 1))
    }
);

groups!(
    Q6K { COMMON = 16, TOGETHER = 4 },
    |self, half, factors| {
        let scale = unsafe { _mm256_set1_ps(half(self.scale)) };
        for (eight, factors) in self.scales.as_chunks::<8>().0.iter().zip(factors.scales.as_chunks_mut::<8>().0) {
            // SAFETY: AVX2 is there where this is called, and both arrays have eight.
            unsafe {
                let eight = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(eight.as_ptr().cast())));
                _mm256_storeu_ps(factors.as_mut_ptr(), _mm256_mul_ps(scale, eight));
            }
        }
    },
    |group| {
        let (part, of_part) = (group / 4, group % 4);
        let low = bits(bytes(&self.quants[64 * part + of_part % 2 * 32..]), of_part / 2 * 4, 15);
        let high = bits(bytes(&self.high[32 * part..]), 2 * of_part, 3);
        _mm256_sub_epi8(joined::<4>(low, high), _mm256_set1_epi8(32))
    }
);

groups!(
    Mxfp4 { TABLE = Some([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0]) },
    |self, _half, factors| factors.scales[0] = half_of_power(self.exponent),
    |_group| {
        // Twice of what they stand for.
        let twice = _mm_set_epi8(-12, -8, -6, -4, -3, -2, -1, 0, 12, 8, 6, 4, 3, 2, 1, 0);
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(twice), nibbles(&self.quants))
    },
    #[inline(always)]
    unsafe fn sixteens(&self, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { places(&self.quants) }
    }
);

/// Fills `wide` with what `blocks` begin with, whole blocks, in vectors of so many lanes.
///
/// # Safety
/// There is AVX2; for sixteen lanes AVX-512.
#[inline(always)]
pub(in crate::cpu) unsafe fn widen<B: Groups, const LANES: usize>(
    blocks: &[B],
    half: impl Fn(Half) -> f32 + Copy,
    wide: &mut [f32],
) {
    let mut factors = Factors::NONE;
    for (block, wide) in blocks.iter().zip(wide.chunks_exact_mut(B::ELEMENTS)) {
        block.factors(half, &mut factors);
        for (group, wide) in wide.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
            // SAFETY: the caller's promise; a group has as many vectors.
            unsafe {
                if LANES == 16 {
                    for (n, numbers) in block.wide_numbers(&factors, group).into_iter().enumerate() {
                        _mm512_storeu_ps(wide.as_mut_ptr().add(16 * n), numbers);
                    }
                } else {
                    for (n, numbers) in block.numbers(&factors, group).into_iter().enumerate() {
                        _mm256_storeu_ps(wide.as_mut_ptr().add(8 * n), numbers);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::blocks::with_blocks;
    use crate::stored::BlockFormat::*;
    use pulp::bytemuck::{cast_slice, cast_slice_mut};

    /// Any bytes are blocks; numbers that are none are so in both.
    #[test]
    fn groups_are_the_numbers_of_their_blocks() {
        use pulp::x86::{V3, V4};

        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for format in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Mxfp4] {
            let bytes: Vec<u8> = (0..64 * format.bytes()).map(|_| byte()).collect();
            let [mut eights, mut sixteens, mut expected] = [0, 1, 2].map(|_| vec![0f32; 64 * format.elements()]);
            with_blocks!(format, B => {
                let blocks: &[B] = cast_slice(&bytes);
                let numbers = cast_slice_mut::<f32, <B as Block>::Numbers>(&mut expected);
                blocks.iter().zip(numbers).for_each(|(block, numbers)| block.widen(super::half, numbers));
                if let Some(simd) = V3::try_new().filter(|_| is_x86_feature_detected!("f16c")) {
                    let half = single_half::<V3>;
                    // SAFETY: there are AVX2 and F16C.
                    Simd::vectorize(simd, #[inline(always)] || unsafe { widen::<B, 8>(blocks, half, &mut eights) });
                    assert_same(format, &eights, &expected);
                }
                if let Some(simd) = V4::try_new() {
                    let half = single_half::<V4>;
                    // SAFETY: there is AVX-512.
                    Simd::vectorize(simd, #[inline(always)] || unsafe { widen::<B, 16>(blocks, half, &mut sixteens) });
                    assert_same(format, &sixteens, &expected);
                }
            });
        }
    }

    fn assert_same(format: crate::stored::BlockFormat, found: &[f32], expected: &[f32]) {
        for (at, (a, b)) in found.iter().zip(expected).enumerate() {
            assert!(a == b || a.is_nan() && b.is_nan(), "{format:?}[{at}]: {a} instead of {b}");
        }
    }
}
