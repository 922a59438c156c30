//! The blocks of GGML's formats, and what numbers are in them.
//!
//! All are made of bytes, so that a block may lie anywhere. Loops are without branches, so that they vectorise; they read
//! bytes of their own, since a compiler that cannot tell whether numbers overlap with a block makes them one by one.

#[cfg(target_arch = "x86_64")]
pub(super) mod groups;
#[cfg(target_arch = "x86_64")]
pub(super) use groups::Groups;
/// A block whose groups nobody asks for.
#[cfg(not(target_arch = "x86_64"))]
pub(super) trait Groups: Block {
    /// Whether it is made of groups.
    const GROUPED: bool = false;
}
#[cfg(not(target_arch = "x86_64"))]
impl<B: Block> Groups for B {}

use super::element::Element;
use half::{bf16, f16};
use pulp::Simd;
use pulp::bytemuck::{Pod, Zeroable};

/// A block of a stored matrix.
pub(super) trait Block: Pod + Send + Sync {
    /// The numbers in it.
    type Numbers: Pod + AsRef<[f32]>;
    /// How many there are.
    const ELEMENTS: usize = size_of::<Self::Numbers>() / size_of::<f32>();

    /// Its numbers; `half` is what makes numbers of 16 bits wide.
    fn widen(&self, half: impl Fn(Half) -> f32 + Copy, numbers: &mut Self::Numbers);

    /// Whether all of its numbers are finite.
    fn is_finite(&self) -> bool;
}

/// Two bytes of a float.
pub(super) type Half = [u8; 2];

/// By arithmetic, so that loops over it vectorise.
#[inline(always)]
pub(super) fn half(bytes: Half) -> f32 {
    f16::from_le_bytes(bytes).load()
}

/// The same by the instruction for it where there is one, which is faster for a single number.
#[inline(always)]
pub(super) fn single_half<S: Simd>(bytes: Half) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if matches!(S::F32_LANES, 8 | 16) {
        use std::arch::x86_64::{_mm_cvtsi32_si128, _mm256_cvtss_f32};
        // SAFETY: eight lanes are those of AVX2 with F16C, which comes with AVX-512 too.
        return unsafe {
            _mm256_cvtss_f32(super::simd::widened_halves(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(bytes)))))
        };
    }
    half(bytes)
}

#[inline(always)]
fn finite_half(bytes: Half) -> bool {
    u16::from_le_bytes(bytes) & 0x7c00 != 0x7c00
}

macro_rules! block {
    ($name:ident { $($field:ident: $type:ty),* }, $elements:literal, $(#[$meta:meta])* |$self:ident, $half:ident, $numbers:ident| $widen:expr, $finite:expr) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(super) struct $name {
            $($field: $type),*
        }

        // SAFETY: made of bytes alone, of which any bits will do, and which need no padding between them.
        unsafe impl Zeroable for $name {}
        // SAFETY: as above.
        unsafe impl Pod for $name {}

        impl Block for $name {
            type Numbers = [f32; $elements];

            #[inline(always)]
            fn widen(&$self, $half: impl Fn(Half) -> f32 + Copy, $numbers: &mut [f32; $elements]) {
                $widen
            }

            #[inline(always)]
            fn is_finite(&$self) -> bool {
                $finite
            }
        }
    };
}

block!(F32 { bits: [u8; 4] }, 1, |self, _half, out| out[0] = f32::from_le_bytes(self.bits), {
    f32::from_le_bytes(self.bits).is_finite()
});
block!(F16 { bits: Half }, 1, |self, _half, out| out[0] = half(self.bits), finite_half(self.bits));
block!(Bf16 { bits: Half }, 1, |self, _half, out| out[0] = bf16::from_le_bytes(self.bits).load(), {
    u16::from_le_bytes(self.bits) & 0x7f80 != 0x7f80
});

/// The low four bits of each byte, then the high ones, as `number` makes them numbers.
#[inline(always)]
fn nibbles(bytes: [u8; 16], out: &mut [f32; 32], number: impl Fn(u8) -> f32) {
    for (at, byte) in bytes.into_iter().enumerate() {
        out[at] = number(byte & 15);
        out[at + 16] = number(byte >> 4);
    }
}

/// The same with a fifth bit of each.
#[inline(always)]
fn nibbles_and_bits(bytes: [u8; 16], bits: [u8; 4], out: &mut [f32; 32], number: impl Fn(u8) -> f32) {
    let bits = u32::from_le_bytes(bits);
    for (at, byte) in bytes.into_iter().enumerate() {
        let fifth = |place: usize| ((bits >> place) as u8 & 1) << 4;
        out[at] = number(byte & 15 | fifth(at));
        out[at + 16] = number(byte >> 4 | fifth(at + 16));
    }
}

block!(
    Q4_0 { scale: Half, quants: [u8; 16] },
    32,
    |self, half, out| {
        let scale = half(self.scale);
        nibbles(self.quants, out, |quant| f32::from(quant as i8 - 8) * scale);
    },
    finite_half(self.scale)
);

block!(
    Q4_1 { scale: Half, least: Half, quants: [u8; 16] },
    32,
    |self, half, out| {
        let (scale, least) = (half(self.scale), half(self.least));
        nibbles(self.quants, out, |quant| f32::from(quant) * scale + least);
    },
    finite_half(self.scale) & finite_half(self.least)
);

block!(
    Q5_0 { scale: Half, fifth: [u8; 4], quants: [u8; 16] },
    32,
    |self, half, out| {
        let scale = half(self.scale);
        nibbles_and_bits(self.quants, self.fifth, out, |quant| f32::from(quant as i8 - 16) * scale);
    },
    finite_half(self.scale)
);

block!(
    Q5_1 { scale: Half, least: Half, fifth: [u8; 4], quants: [u8; 16] },
    32,
    |self, half, out| {
        let (scale, least) = (half(self.scale), half(self.least));
        nibbles_and_bits(self.quants, self.fifth, out, |quant| f32::from(quant) * scale + least);
    },
    finite_half(self.scale) & finite_half(self.least)
);

block!(
    Q8_0 { scale: Half, quants: [i8; 32] },
    32,
    |self, half, out| {
        let (scale, quants) = (half(self.scale), self.quants);
        for (out, quant) in out.iter_mut().zip(quants) {
            *out = f32::from(quant) * scale;
        }
    },
    finite_half(self.scale)
);

/// `number` of each of 32 places, in order.
#[inline(always)]
fn thirty_two(out: &mut [f32], number: impl Fn(usize) -> f32) {
    out[..32].iter_mut().enumerate().for_each(|(at, out)| *out = number(at));
}

block!(
    Q2K { scales: [u8; 16], quants: [u8; 64], scale: Half, least: Half },
    256,
    |self, half, out| {
        let (scale, least) = (half(self.scale), half(self.least));
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            // Four groups of 32 take turns in the bits of 32 bytes.
            let (quants, shift) = (&self.quants[group / 4 * 32..][..32], group % 4 * 2);
            for (half, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scales = self.scales[2 * group + half];
                let (scale, least) = (scale * f32::from(scales & 15), least * f32::from(scales >> 4));
                for (out, quant) in out.iter_mut().zip(&quants[16 * half..]) {
                    *out = scale * f32::from(quant >> shift & 3) - least;
                }
            }
        }
    },
    finite_half(self.scale) & finite_half(self.least)
);

/// The scales of 16 groups: four bits of each stand in the first eight bytes, two in the last four.
#[inline(always)]
fn three_bit_scales(scales: [u8; 12]) -> [i8; 16] {
    std::array::from_fn(|at| {
        let low = scales[at % 8] >> (at / 8 * 4) & 15;
        let two = scales[8 + at % 4] >> (at / 4 * 2) & 3;
        (low | two << 4) as i8 - 32
    })
}

block!(
    Q3K { high: [u8; 32], quants: [u8; 64], scales: [u8; 12], scale: Half },
    256,
    |self, half, out| {
        let (scale, scales) = (half(self.scale), three_bit_scales(self.scales));
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (quants, shift) = (&self.quants[group / 4 * 32..][..32], group % 4 * 2);
            for (half, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = scale * f32::from(scales[2 * group + half]);
                for ((out, quant), high) in out.iter_mut().zip(&quants[16 * half..]).zip(&self.high[16 * half..]) {
                    let low = quant >> shift & 3;
                    *out = scale * f32::from((low | (high >> group & 1) << 2) as i8 - 4);
                }
            }
        }
    },
    finite_half(self.scale)
);

/// The scales and the minima of 6 bits that eight groups of 32 have.
#[inline(always)]
fn six_bits(scales: [u8; 12]) -> [[u8; 8]; 2] {
    let [mut of_scale, mut of_least] = [[0; 8]; 2];
    for group in 0..4 {
        let [scale, least, both] = [0, 4, 8].map(|from| scales[from + group]);
        (of_scale[group], of_least[group]) = (scale & 63, least & 63);
        of_scale[group + 4] = both & 15 | scale >> 6 << 4;
        of_least[group + 4] = both >> 4 | least >> 6 << 4;
    }
    [of_scale, of_least]
}

block!(
    Q4K { scale: Half, least: Half, scales: [u8; 12], quants: [u8; 128] },
    256,
    |self, half, out| {
        let (scale, least) = (half(self.scale), half(self.least));
        let [of_scale, of_least] = six_bits(self.scales);
        let (scales, least) = (of_scale.map(|of| scale * f32::from(of)), of_least.map(|of| least * f32::from(of)));
        for (pair, out) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let (quants, [low, high]) = (&self.quants[32 * pair..][..32], [2 * pair, 2 * pair + 1]);
            thirty_two(out, |at| scales[low] * f32::from(quants[at] & 15) - least[low]);
            thirty_two(&mut out[32..], |at| scales[high] * f32::from(quants[at] >> 4) - least[high]);
        }
    },
    finite_half(self.scale) & finite_half(self.least)
);

block!(
    Q5K { scale: Half, least: Half, scales: [u8; 12], high: [u8; 32], quants: [u8; 128] },
    256,
    |self, half, out| {
        let (scale, least) = (half(self.scale), half(self.least));
        let [of_scale, of_least] = six_bits(self.scales);
        let (scales, least) = (of_scale.map(|of| scale * f32::from(of)), of_least.map(|of| least * f32::from(of)));
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (quants, shift) = (&self.quants[group / 2 * 32..][..32], group % 2 * 4);
            thirty_two(out, |at| {
                let quant = quants[at] >> shift & 15 | (self.high[at] >> group & 1) << 4;
                scales[group] * f32::from(quant) - least[group]
            });
        }
    },
    finite_half(self.scale) & finite_half(self.least)
);

block!(
    Q6K { quants: [u8; 128], high: [u8; 64], scales: [i8; 16], scale: Half },
    256,
    |self, half, out| {
        let scale = half(self.scale);
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            // Of each half, 64 bytes hold four bits of four groups, and 32 bytes the other two.
            let (part, of_part) = (group / 4, group % 4);
            let (quants, shift) = (&self.quants[64 * part + of_part % 2 * 32..][..32], of_part / 2 * 4);
            let high = &self.high[32 * part..][..32];
            for (half, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = scale * f32::from(self.scales[2 * group + half]);
                for ((out, quant), high) in out.iter_mut().zip(&quants[16 * half..]).zip(&high[16 * half..]) {
                    let quant = quant >> shift & 15 | (high >> (2 * of_part) & 3) << 4;
                    *out = scale * f32::from(quant as i8 - 32);
                }
            }
        }
    },
    finite_half(self.scale)
);

/// Half of the power of two that a byte tells, for numbers that are twice what they stand for.
#[inline(always)]
fn half_of_power(exponent: u8) -> f32 {
    match exponent {
        0..2 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits((u32::from(exponent) - 1) << 23),
    }
}

block!(
    Mxfp4 { exponent: u8, quants: [u8; 16] },
    32,
    |self, _half, out| {
        let scale = half_of_power(self.exponent);
        let quants = self.quants;
        let mut twice = [0i8; 32];
        for at in 0..16 {
            twice[at] = (quants[at] & 15) as i8;
            twice[at + 16] = (quants[at] >> 4) as i8;
        }
        // While they are bytes, thirty-two at a time: 0 to 4 one by one, then 6, 8 and 12, and the sign.
        for twice in &mut twice {
            let (magnitude, minus) = (*twice as u8 & 7, (*twice as u8 >> 3).wrapping_neg());
            let number = magnitude + magnitude.saturating_sub(4) + 2 * magnitude.saturating_sub(6);
            *twice = (number ^ minus).wrapping_sub(minus) as i8;
        }
        for (out, twice) in out.iter_mut().zip(twice) {
            *out = f32::from(twice) * scale;
        }
    },
    self.exponent != u8::MAX
);

/// Runs `$body` with `$block` bound to the blocks of `$format`.
macro_rules! with_blocks {
    ($format:expr, $block:ident => $body:expr) => {
        $crate::cpu::blocks::with_blocks!(
            @ $format, $block => $body,
            F32, F16, Bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Mxfp4
        )
    };
    (@ $format:expr, $block:ident => $body:expr, $($name:ident),*) => {
        match $format {
            $($crate::stored::BlockFormat::$name => {
                type $block = $crate::cpu::blocks::$name;
                $body
            })*
        }
    };
}
pub(super) use with_blocks;
