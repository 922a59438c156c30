//! Products of blocks with rounded inputs: groups of 32 inputs become whole numbers of eight bits with a factor, and whole numbers
//! are multiplied and summed where a group's are in f32. It is a choice, since inputs lose what rounding takes.
//!
//! An output is summed group by group in one order, whatever rows and outputs stand beside it.

use super::weight::{Ahead, Blocks};
use crate::cpu::blocks::groups::{Factors, GROUP};
use crate::cpu::blocks::{Groups, single_half};
use crate::cpu::simd::{Vectorized, prefetch_at, vectorized};
use crate::cpu::storage::Rows;
use pulp::Simd;
use pulp::x86::{V3, V4};
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;
use std::slice::ChunksMut;

/// Rows that are summed at once, in registers.
const ROWS: usize = 4;
/// How many bytes ahead of its use each output of many is asked for.
const AHEAD: usize = 4096;

/// Rows as groups of whole numbers, for a processor that multiplies them.
pub(in crate::cpu) struct Rounded {
    simd: V3,
    /// Whether it multiplies and sums four of them at once.
    vnni: bool,
    width: usize,
    buffers: Buffers,
}

#[derive(Default)]
struct Buffers {
    whole: Vec<i8>,
    /// What a group's numbers are multiplied by.
    factors: Vec<f32>,
    /// Sums of the inputs themselves, of 32 and of 16.
    sums: [Vec<f32>; 2],
}

thread_local! {
    /// Of the thread that calls for products.
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

impl Rounded {
    /// `None` where nothing multiplies them, or exact products are faster: with AVX-512 that lacks VNNI.
    pub(in crate::cpu) fn new(x: &Rows<'_>) -> Option<Self> {
        if has_vnni() || V4::try_new().is_none() { Self::by(true, x) } else { None }
    }

    /// By AVX2, or by VNNI where that is wanted and there.
    fn by(vnni: bool, x: &Rows<'_>) -> Option<Self> {
        let vnni = vnni && has_vnni();
        let simd = V3::try_new().filter(|_| is_x86_feature_detected!("f16c"))?;
        let width = x.width();
        if !width.is_multiple_of(GROUP) {
            return None;
        }
        let mut buffers = BUFFERS.take();
        let Buffers { whole, factors, sums: [sums, halves] } = &mut buffers;
        let groups = x.len() * width / GROUP;
        whole.resize(groups * GROUP, 0);
        factors.resize(groups, 0.0);
        sums.resize(groups, 0.0);
        halves.resize(2 * groups, 0.0);
        vectorized(
            #[inline(always)]
            || {
                let of_rows = (0..x.len()).flat_map(|row| x.row(row).as_chunks::<GROUP>().0);
                let whole = whole.as_chunks_mut::<GROUP>().0.iter_mut().zip(factors.iter_mut());
                let sums = sums.iter_mut().zip(halves.as_chunks_mut().0);
                for (group, ((whole, factor), (sum, halves))) in of_rows.zip(whole.zip(sums)) {
                    *factor = round(group, whole);
                    *halves = [group[..16].iter().sum(), group[16..].iter().sum()];
                    *sum = halves[0] + halves[1];
                    // What is no number stays none.
                    if !sum.is_finite() {
                        *factor = f32::NAN;
                    }
                }
            },
        );
        Some(Self { simd, vnni, width, buffers })
    }

    /// Writes the products of some rows with some outputs, row after row.
    pub(super) fn multiply<B: Groups>(
        &self,
        weight: Blocks<'_, B>,
        rows: Range<usize>,
        outputs: Range<usize>,
        products: &mut [f32],
    ) {
        if self.vnni {
            // SAFETY: this processor has all that it asks for, as `by` has seen.
            return unsafe { self.multiply_by_vnni(weight, rows, outputs, products) };
        }
        // By the trait's way, which inlines what it is given.
        Simd::vectorize(
            self.simd,
            Vectorized(
                // SAFETY: this processor has AVX2 and F16C, as `by` has seen.
                #[inline(always)]
                || unsafe { self.tiles::<B, false>(weight, rows.clone(), outputs.clone(), products) },
            ),
        );
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512vl,avx512vnni")]
    fn multiply_by_vnni<B: Groups>(
        &self,
        weight: Blocks<'_, B>,
        rows: Range<usize>,
        outputs: Range<usize>,
        products: &mut [f32],
    ) {
        // SAFETY: this function's features.
        unsafe { self.tiles::<B, true>(weight, rows, outputs, products) }
    }

    /// # Safety
    /// There are AVX2 and F16C, and VNNI if it is asked for.
    #[inline(always)]
    unsafe fn tiles<B: Groups, const VNNI: bool>(
        &self,
        weight: Blocks<'_, B>,
        rows: Range<usize>,
        outputs: Range<usize>,
        products: &mut [f32],
    ) {
        // Few rows have registers for more outputs; more rows come one after the other while an output is near.
        let at_once = if rows.len() <= 2 { 4 } else { 2 };
        for first in outputs.clone().step_by(at_once) {
            let of = first..outputs.end;
            for start in rows.clone().step_by(ROWS) {
                let at = (start - rows.start) * outputs.len() + first - outputs.start;
                let products = products[at..].chunks_mut(outputs.len());
                // SAFETY: the caller's promise.
                unsafe {
                    match (at_once, rows.end - start) {
                        (4, 1) => self.tile::<B, 1, 4, VNNI>(weight, start, of.clone(), products),
                        (4, _) => self.tile::<B, 2, 4, VNNI>(weight, start, of.clone(), products),
                        (_, 1) => self.tile::<B, 1, 2, VNNI>(weight, start, of.clone(), products),
                        (_, 2) => self.tile::<B, 2, 2, VNNI>(weight, start, of.clone(), products),
                        (_, 3) => self.tile::<B, 3, 2, VNNI>(weight, start, of.clone(), products),
                        _ => self.tile::<B, ROWS, 2, VNNI>(weight, start, of.clone(), products),
                    }
                }
            }
        }
    }

    /// Products of `R` rows with the first `N` of some outputs.
    ///
    /// # Safety
    /// As [`tiles`](Self::tiles).
    #[inline(always)]
    unsafe fn tile<B: Groups, const R: usize, const N: usize, const VNNI: bool>(
        &self,
        weight: Blocks<'_, B>,
        row: usize,
        outputs: Range<usize>,
        products: ChunksMut<'_, f32>,
    ) {
        let Buffers { whole, factors: of_x, sums: of_inputs } = &self.buffers;
        let [groups, count] = [self.width / GROUP, self.width / B::ELEMENTS];
        // The last may be there more than once.
        let blocks: [&[B]; N] =
            std::array::from_fn(|n| &weight.from((outputs.start + n).min(outputs.end - 1), 0)[..count]);
        let whole: [&[i8]; R] = std::array::from_fn(|n| &whole[(row + n) * self.width..][..self.width]);
        let of_x: [&[f32]; R] = std::array::from_fn(|n| &of_x[(row + n) * groups..][..groups]);
        let common = self.width / B::COMMON;
        let of_inputs = &of_inputs[usize::from(B::COMMON < GROUP)];
        let of_inputs: [&[f32]; R] = std::array::from_fn(|n| &of_inputs[(row + n) * common..][..common]);
        // SAFETY: the caller's promise; reads of 32 bytes and of eight numbers stay inside of what a block's inputs have.
        unsafe {
            let mut sums = [[_mm256_setzero_ps(); N]; R];
            let mut factors = [Factors::NONE; N];
            let from = blocks.map(|of_output| of_output.as_ptr().cast::<u8>());
            let ahead = Ahead::stream(from[0], count * size_of::<B>())
                .unwrap_or_else(|| Ahead::Each(from.map(|from| from.wrapping_add(AHEAD))));
            let (ahead, step) = ahead.of_blocks(size_of::<B>());
            for block in 0..count {
                for n in 0..N {
                    let of_output = &blocks[n][block];
                    for line in (0..size_of::<B>()).step_by(64) {
                        prefetch_at(ahead[n].wrapping_add(block * step + line));
                    }
                    of_output.factors(single_half::<V3>, &mut factors[n]);
                    if B::HAS_LEAST {
                        for r in 0..R {
                            let of_block =
                                &of_inputs[r][block * (B::ELEMENTS / B::COMMON)..][..B::ELEMENTS / B::COMMON];
                            sums[r][n] = factors[n].without_least(of_block, sums[r][n]);
                        }
                    }
                }
                for group in 0..B::ELEMENTS / GROUP {
                    let at = block * (B::ELEMENTS / GROUP) + group;
                    for n in 0..N {
                        let quants = blocks[n][block].quants(group);
                        let scale = factors[n].of_group(group, B::COMMON);
                        for r in 0..R {
                            let x = _mm256_loadu_si256(whole[r][at * GROUP..][..GROUP].as_ptr().cast());
                            // Whole numbers without a sign times such with one; a sign moves from one to the other.
                            let fours = match B::HAS_LEAST {
                                true => sums_of_four::<VNNI>(quants, x),
                                false => sums_of_four::<VNNI>(_mm256_abs_epi8(quants), _mm256_sign_epi8(x, quants)),
                            };
                            let fours = _mm256_mul_ps(_mm256_cvtepi32_ps(fours), _mm256_set1_ps(of_x[r][at]));
                            sums[r][n] = _mm256_fmadd_ps(fours, scale, sums[r][n]);
                        }
                    }
                }
            }
            for (products, sums) in products.zip(sums) {
                for (product, sum) in products.iter_mut().zip(sums).take(outputs.len()) {
                    *product = std::mem::transmute::<__m256, [f32; 8]>(sum).into_iter().sum();
                }
            }
        }
    }
}

fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl")
}

/// The sums of four products each of whole numbers, the first without a sign and at most 128.
///
/// # Safety
/// There is AVX2, and VNNI if it is asked for.
#[inline(always)]
unsafe fn sums_of_four<const VNNI: bool>(unsigned: __m256i, signed: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        match VNNI {
            true => _mm256_dpbusd_epi32(_mm256_setzero_si256(), unsigned, signed),
            false => _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned, signed), _mm256_set1_epi16(1)),
        }
    }
}

impl Drop for Rounded {
    fn drop(&mut self) {
        BUFFERS.set(std::mem::take(&mut self.buffers));
    }
}

/// Rounds a group to whole numbers up to 127, and gives what they are multiplied by.
#[inline(always)]
fn round(group: &[f32; GROUP], whole: &mut [i8; GROUP]) -> f32 {
    let largest = group.iter().fold(0f32, |largest, x| if x.abs() > largest { x.abs() } else { largest });
    let by = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    for (whole, x) in whole.iter_mut().zip(group) {
        // Adding 1.5 * 2^23 rounds to an integer that then stands in the low bits.
        *whole = (x * by + 12_582_912.0).to_bits() as i8;
    }
    largest / 127.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::blocks::{Block, Q4K, half};
    use crate::cpu::storage::{Input, RowShape};
    use pulp::bytemuck::{cast_slice, cast_slice_mut};
    use rstest::rstest;

    #[rstest]
    fn products_are_near_and_rows_stay_apart(#[values(false, true)] vnni: bool) {
        if vnni && !has_vnni() {
            return;
        }
        const WIDTH: usize = 768;
        const OUTPUTS: usize = 5;
        let bytes: Vec<u8> = (0..OUTPUTS * WIDTH / Q4K::ELEMENTS)
            .flat_map(|block| {
                // A scale and a minimum of 2^-6, and anything behind them.
                let quants = (0..140).map(move |at: usize| ((block * 140 + at) * 37 % 251) as u8);
                [0, 0x24, 0, 0x24].into_iter().chain(quants)
            })
            .collect();
        let weight = Blocks::<Q4K> { blocks: cast_slice(&bytes), width: WIDTH };
        let mut wide = vec![0f32; OUTPUTS * WIDTH];
        let numbers = cast_slice_mut::<f32, <Q4K as Block>::Numbers>(&mut wide);
        weight.blocks.iter().zip(numbers).for_each(|(block, numbers)| block.widen(half, numbers));
        let data: Vec<f32> = (0..6 * WIDTH).map(|at| ((at * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let products = |vnni: bool, data: &[f32]| {
            let shape = RowShape { rows: data.len() / WIDTH, width: WIDTH, stride: WIDTH };
            let input = Input::Owned { data: data.to_vec(), shape };
            let x = Rounded::by(vnni, &input.rows())?;
            let mut products = vec![0f32; shape.rows * OUTPUTS];
            x.multiply(weight, 0..shape.rows, 0..OUTPUTS, &mut products);
            Some(products)
        };
        let Some(found) = products(vnni, &data) else { return };
        // Whole numbers have one sum.
        assert_eq!(products(false, &data).as_ref(), Some(&found));
        for (at, found) in found.iter().enumerate() {
            let (x, w) = (&data[at / OUTPUTS * WIDTH..][..WIDTH], &wide[at % OUTPUTS * WIDTH..][..WIDTH]);
            let of = |by: fn(f64) -> f64| x.iter().zip(w).map(|(x, w)| by(f64::from(*x) * f64::from(*w))).sum::<f64>();
            let (expected, size) = (of(|product| product), of(f64::abs));
            assert!((f64::from(*found) - expected).abs() < 2e-3 * size, "{at}: {found} instead of {expected}");
        }
        for (row, x) in data.chunks_exact(WIDTH).enumerate() {
            assert_eq!(products(vnni, x).unwrap(), found[row * OUTPUTS..][..OUTPUTS]);
        }
    }
}
