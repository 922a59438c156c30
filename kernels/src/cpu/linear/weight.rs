//! What a weight is to products.

use crate::cpu::blocks::{Block, Groups, single_half};
use crate::cpu::element::Element;
use pulp::Simd;
use pulp::bytemuck::cast_slice_mut;

pub(super) const LINE: usize = 16;

/// A weight, whose outputs are rows of numbers.
pub(in crate::cpu) trait Weight: Copy + Send + Sync {
    /// What its numbers are stored as, where each can be read by itself.
    type Stored: Element;

    /// Writes the numbers of `output` from `input` on, whole blocks of them.
    fn widen<S: Simd>(self, simd: S, output: usize, input: usize, wide: &mut [f32]);

    /// Whether that is written in vectors, so that no compiler need see what overlaps.
    fn widens_in_vectors<S: Simd>(self) -> bool;

    /// Adds the products of `R` rows, which take turns with every line of `x`, with whole blocks of `N` outputs from `input` on,
    /// made wide in registers; for weights that widen in vectors. What lies `ahead` of each output is asked for meanwhile.
    fn add_products<S: Simd, const R: usize, const N: usize>(
        self,
        simd: S,
        outputs: [usize; N],
        input: usize,
        ahead: Ahead<N>,
        x: &[S::f32s],
        sums: &mut [[S::f32s; N]; R],
    );

    /// The same numbers where they lie, if each can be read by itself.
    fn stored(&self, output: usize, input: usize, len: usize) -> Option<&[Self::Stored]>;

    /// Where they lie, which may be beyond the end.
    fn address(self, output: usize, input: usize) -> *const u8;
}

/// Numbers of one type.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Numbers<'a, T> {
    pub(in crate::cpu) data: &'a [T],
    pub(in crate::cpu) in_width: usize,
}

impl<T: Element> Weight for Numbers<'_, T> {
    type Stored = T;

    #[inline(always)]
    fn widen<S: Simd>(self, simd: S, output: usize, input: usize, wide: &mut [f32]) {
        let stored = &self.data[output * self.in_width + input..][..wide.len()];
        let (vectors, rest) = S::as_mut_simd_f32s(wide);
        for (pair, stored) in vectors.chunks_mut(2).zip(stored.chunks(2 * S::F32_LANES)) {
            T::vectors(simd, stored, pair);
        }
        let whole = stored.len() - rest.len();
        for (rest, stored) in rest.iter_mut().zip(&stored[whole..]) {
            *rest = stored.load();
        }
    }

    #[inline(always)]
    fn widens_in_vectors<S: Simd>(self) -> bool {
        true
    }

    #[inline(always)]
    fn add_products<S: Simd, const R: usize, const N: usize>(
        self,
        simd: S,
        outputs: [usize; N],
        input: usize,
        _: Ahead<N>,
        x: &[S::f32s],
        sums: &mut [[S::f32s; N]; R],
    ) {
        let vectors = x.len() / R;
        let stored = outputs.map(|output| &self.data[output * self.in_width + input..][..vectors * S::F32_LANES]);
        let of_line = LINE / S::F32_LANES;
        for at in 0..vectors {
            for (n, stored) in stored.iter().enumerate() {
                let w = T::vector(simd, &stored[at * S::F32_LANES..]);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = x[(at / of_line * R + row) * of_line + at % of_line];
                    sums[n] = simd.mul_add_e_f32s(x, w, sums[n]);
                }
            }
        }
    }

    #[inline(always)]
    fn stored(&self, output: usize, input: usize, len: usize) -> Option<&[T]> {
        Some(&self.data[output * self.in_width + input..][..len])
    }

    #[inline(always)]
    fn address(self, output: usize, input: usize) -> *const u8 {
        self.data.as_ptr().wrapping_add(output * self.in_width + input).cast()
    }
}

/// What is asked for while outputs are multiplied.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Ahead<const N: usize> {
    /// From here on as much as is multiplied, of outputs that lie one behind the other. Several short streams side by side took
    /// 1.6 times as long.
    Stream(*const u8),
    /// More of each output.
    Each([*const u8; N]),
}

/// Bytes of outputs that are multiplied together, up to which they are one stream: it comes before they are needed, and stays in
/// the nearest cache until then.
const STREAM: usize = 12288;
/// How many bytes ahead of its use the last of those outputs is asked for.
const IN_TIME: usize = 4096;

impl<const N: usize> Ahead<N> {
    /// Of `N` outputs of so many bytes, which lie behind each other from `first` on, if they are few.
    #[inline(always)]
    pub(super) fn stream(first: *const u8, bytes: usize) -> Option<Self> {
        (N * bytes <= STREAM).then(|| Self::Stream(first.wrapping_add((N - 1) * bytes + IN_TIME)))
    }

    /// Where the first block of each output has its share, and how far it is to that of the next.
    #[inline(always)]
    pub(super) fn of_blocks(self, bytes: usize) -> ([*const u8; N], usize) {
        match self {
            Self::Stream(from) => (std::array::from_fn(|n| from.wrapping_add(n * bytes)), N * bytes),
            Self::Each(from) => (from, bytes),
        }
    }
}

/// Rows of blocks.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Blocks<'a, B> {
    pub(in crate::cpu) blocks: &'a [B],
    pub(in crate::cpu) width: usize,
}

impl<B> Blocks<'_, B> {
    /// The blocks of `output` from `input` on.
    #[inline(always)]
    pub(super) fn from(&self, output: usize, input: usize) -> &[B]
    where
        B: Block,
    {
        &self.blocks[(output * self.width + input) / B::ELEMENTS..]
    }
}

impl<B: Groups> Weight for Blocks<'_, B> {
    type Stored = f32;

    #[inline(always)]
    fn widen<S: Simd>(self, _: S, output: usize, input: usize, wide: &mut [f32]) {
        let blocks = self.from(output, input);
        #[cfg(target_arch = "x86_64")]
        if B::GROUPED {
            use crate::cpu::blocks::groups::widen;

            // SAFETY: eight lanes are those of AVX2, sixteen those of AVX-512.
            match S::F32_LANES {
                16 => return unsafe { widen::<B, 16>(blocks, single_half::<S>, wide) },
                8 => return unsafe { widen::<B, 8>(blocks, single_half::<S>, wide) },
                _ => {}
            }
        }
        let numbers = cast_slice_mut::<f32, B::Numbers>(wide);
        for (numbers, block) in numbers.iter_mut().zip(blocks) {
            block.widen(single_half::<S>, numbers);
        }
    }

    #[inline(always)]
    fn widens_in_vectors<S: Simd>(self) -> bool {
        B::GROUPED && matches!(S::F32_LANES, 8 | 16)
    }

    #[inline(always)]
    fn add_products<S: Simd, const R: usize, const N: usize>(
        self,
        simd: S,
        outputs: [usize; N],
        input: usize,
        ahead: Ahead<N>,
        x: &[S::f32s],
        sums: &mut [[S::f32s; N]; R],
    ) {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::cpu::blocks::groups::{Factors, GROUP};
            use crate::cpu::simd::prefetch_at;
            use std::arch::x86_64::_mm512_setzero_ps;

            let of_line = LINE / S::F32_LANES;
            let count = x.len() / R * S::F32_LANES / B::ELEMENTS;
            assert!(matches!(S::F32_LANES, 8 | 16) && x.len() == R * count * B::ELEMENTS / S::F32_LANES);
            let mut of = [self.blocks.as_ptr(); N];
            for (of, output) in of.iter_mut().zip(outputs) {
                *of = self.from(output, input)[..count].as_ptr();
            }
            let (ahead, step) = ahead.of_blocks(size_of::<B>());
            let mut factors = [Factors::NONE; N];
            for block in 0..count {
                // SAFETY: as many blocks are there, eight lanes are those of AVX2 and sixteen those of AVX-512, and all vectors
                // of `x` are below its length, as is asserted above.
                unsafe {
                    for (n, factors) in factors.iter_mut().enumerate() {
                        for line in (0..size_of::<B>()).step_by(64) {
                            prefetch_at(ahead[n].wrapping_add(block * step + line));
                        }
                        (*of[n].add(block)).factors(single_half::<S>, factors);
                    }
                    let x = x.as_ptr().add(block * B::ELEMENTS / S::F32_LANES * R);
                    for first in (0..B::ELEMENTS / GROUP).step_by(B::TOGETHER) {
                        for group in first..first + B::TOGETHER {
                            let x = x.add(group * (GROUP / LINE) * of_line * R);
                            if S::F32_LANES == 16 {
                                // Of all outputs first, so that a vector of inputs need not wait for those behind.
                                let mut numbers = [[_mm512_setzero_ps(); 2]; N];
                                for (n, numbers) in numbers.iter_mut().enumerate() {
                                    *numbers = (*of[n].add(block)).wide_numbers(&factors[n], group);
                                }
                                add_group(simd, numbers, x, 0, sums);
                            } else {
                                for n in 0..N {
                                    add_group(simd, [(*of[n].add(block)).numbers(&factors[n], group)], x, n, sums);
                                }
                            }
                        }
                    }
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (simd, outputs, input, ahead, x, sums);
    }

    #[inline(always)]
    fn stored(&self, _: usize, _: usize, _: usize) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn address(self, output: usize, input: usize) -> *const u8 {
        self.blocks.as_ptr().wrapping_add((output * self.width + input) / B::ELEMENTS).cast()
    }
}

/// Adds the products of `K` outputs from `n` on with a group of numbers of each.
///
/// # Safety
/// A `V` is a vector of `S`, and as many vectors of `R` rows are at `x`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn add_group<S: Simd, V: Copy, const M: usize, const K: usize, const R: usize, const N: usize>(
    simd: S,
    numbers: [[V; M]; K],
    x: *const S::f32s,
    n: usize,
    sums: &mut [[S::f32s; N]; R],
) {
    let of_line = LINE / S::F32_LANES;
    for at in 0..M {
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let x = unsafe { *x.add((at / of_line * R + row) * of_line + at % of_line) };
            for (sum, numbers) in sums[n..].iter_mut().zip(&numbers) {
                // SAFETY: as above.
                let w: S::f32s = unsafe { std::mem::transmute_copy(&numbers[at]) };
                *sum = simd.mul_add_e_f32s(x, w, *sum);
            }
        }
    }
}
