//! Vector primitives. The instruction set is chosen at run time by `pulp`.
//!
//! Loops that the compiler vectorises by itself run inside [`vectorized`]; reductions, whose order a compiler may
//! not change, are written with sixteen explicit lanes so that every instruction set adds in the same order.

mod rows;
mod taps;

pub(crate) use rows::{
    Ahead, StridedRows, add_weighted, advance_state, largest, multiply_adds, row_products, streamed_sum, sum,
};
pub(crate) use taps::weigh_taps;

use pulp::{Simd, WithSimd};

/// Runs `body` compiled for the best instruction set of this machine. `body` and what it calls must be
/// `#[inline(always)]` for that to have an effect.
#[inline(always)]
pub(crate) fn vectorized<R>(body: impl FnMut() -> R) -> R {
    dispatch(Vectorized(body))
}

/// Loops to be compiled for an instruction set. They are called as what they are: a closure called as one that is called but
/// once, which a closure is to `pulp`, stands behind a function of the compiler's that no attribute inlines.
pub(crate) struct Vectorized<F>(pub(crate) F);

impl<R, F: FnMut() -> R> WithSimd for Vectorized<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> R {
        (self.0)()
    }
}

/// Runs `op` for the best instruction set of this machine. Vectors of eight lanes are those of AVX2 with F16C, which `pulp` does
/// not ask for and each such processor has.
#[inline(always)]
pub(crate) fn dispatch<Op: WithSimd>(op: Op) -> Op::Output {
    #[cfg(target_arch = "x86_64")]
    if !is_x86_feature_detected!("f16c") {
        return pulp::Scalar.vectorize(op);
    }
    pulp::Arch::new().dispatch(op)
}

/// Eight halves as numbers. The conversion keeps subnormal numbers in every mode.
///
/// # Safety
/// There are AVX and F16C, and eight numbers at `halves`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx")]
pub(crate) unsafe fn eight_halves(halves: *const u8) -> std::arch::x86_64::__m256 {
    let wide;
    // SAFETY: the caller's promise. An intrinsic would be a call: none is inlined where F16C is not asked for.
    unsafe {
        std::arch::asm!("vcvtph2ps {}, xmmword ptr [{}]", out(ymm_reg) wide, in(reg) halves, options(pure, readonly, nostack, preserves_flags));
    }
    wide
}

/// The same from a register.
///
/// # Safety
/// There are AVX and F16C.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx")]
pub(crate) unsafe fn widened_halves(halves: std::arch::x86_64::__m128i) -> std::arch::x86_64::__m256 {
    let wide;
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("vcvtph2ps {}, {}", out(ymm_reg) wide, in(xmm_reg) halves, options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

const LANES: usize = 16;

/// `sum(a * b)`.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    fold(lanes) + tail
}

/// `sum(a * a)`.
#[inline(always)]
pub(crate) fn sum_of_squares(a: &[f32]) -> f32 {
    dot(a, a)
}

/// `y += alpha * x`.
#[inline(always)]
pub(crate) fn axpy(y: &mut [f32], alpha: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += alpha * x;
    }
}

/// `values = e^(values - top)`, and returns their sum.
pub(crate) fn exp_and_sum(values: &mut [f32], top: f32) -> f32 {
    vectorized(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value = exp(*value - top)),
    );
    sum(values)
}

/// Asks for the cache line of `value` ahead of its use.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    prefetch_at(value);
}

/// The same for an address that may lie beyond what there is.
#[inline(always)]
pub(crate) fn prefetch_at<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, for which every address will do; it changes nothing that a program can see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for a cache line for later: it need not come into the nearest cache, which others are read from meanwhile.
#[inline(always)]
pub(crate) fn prefetch_far<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[inline(always)]
fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `e^x` within 2 ulp, without branches so that loops over it vectorise. 0 below -103, infinite above 88.73.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_145_75;
    const LN2_LO: f32 = 1.428_606_8e-6;
    // Adding 1.5 * 2^23 rounds to an integer that then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let bounded = x.clamp(-104.0, 89.0);
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = bounded - n * LN2_HI - n * LN2_LO;
    let p = 1.0 / 720.0 + r * (1.0 / 5040.0);
    let p = 1.0 / 120.0 + r * p;
    let p = 1.0 / 24.0 + r * p;
    let p = 1.0 / 6.0 + r * p;
    let p = 0.5 + r * p;
    let p = 1.0 + r * (1.0 + r * p);
    // 2^n in two factors, so that neither leaves the range of normal numbers.
    let n = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    p * power(half) * power(n - half)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`, and `x` above 20 where the two no longer differ in f32.
#[inline]
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_stays_within_two_ulp() {
        let mut worst = 0f64;
        for step in -103_000..88_700 {
            let x = step as f32 * 1e-3;
            let exact = f64::from(x).exp();
            let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / ulp);
        }
        assert!(worst <= 2.0, "{worst} ulp");
    }

    #[test]
    fn exp_keeps_its_limits() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn dot_covers_the_tail() {
        let a: Vec<f32> = (0..37).map(|i| i as f32).collect();
        assert_eq!(dot(&a, &a), a.iter().map(|a| a * a).sum::<f32>());
    }
}
