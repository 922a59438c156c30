//! One row of a depthwise convolution.

use pulp::{Simd, WithSimd};

/// `out = act(bias + sum_t weights[t] * inputs[t])`, element by element; `act` is SiLU or nothing.
///
/// Meanwhile asks for `next`, which the next call will read.
pub(crate) fn weigh_taps<const TAPS: usize>(
    weights: [&[f32]; TAPS],
    inputs: [&[f32]; TAPS],
    bias: &[f32],
    next: &[f32],
    silu: bool,
    out: &mut [f32],
) {
    let len = out.len();
    let rows = |rows: [&'_ [f32]; TAPS]| rows.iter().all(|row| row.len() == len);
    assert!(rows(weights) && rows(inputs) && bias.len() == len && next.len() == len);
    super::dispatch(WeighTaps { weights, inputs, bias, next, silu, out });
}

struct WeighTaps<'a, const TAPS: usize> {
    weights: [&'a [f32]; TAPS],
    inputs: [&'a [f32]; TAPS],
    bias: &'a [f32],
    next: &'a [f32],
    silu: bool,
    out: &'a mut [f32],
}

impl<const TAPS: usize> WithSimd for WeighTaps<'_, TAPS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.silu {
            self.run(simd, |sum| silu(simd, sum), super::silu);
        } else {
            self.run(simd, |sum| sum, |sum| sum);
        }
    }
}

impl<const TAPS: usize> WeighTaps<'_, TAPS> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, vector: impl Fn(S::f32s) -> S::f32s, scalar: impl Fn(f32) -> f32) {
        let (out, out_tail) = S::as_mut_simd_f32s(self.out);
        let (bias, bias_tail) = S::as_simd_f32s(self.bias);
        let next = S::as_simd_f32s(self.next).0;
        let weights = self.weights.map(|row| S::as_simd_f32s(row));
        let inputs = self.inputs.map(|row| S::as_simd_f32s(row));
        // Lengths that the compiler knows to be equal need no checks inside the loop.
        let len = out.len();
        let (bias, next) = (&bias[..len], &next[..len]);
        let (weight_rows, input_rows) = (weights.map(|w| &w.0[..len]), inputs.map(|x| &x.0[..len]));
        for at in 0..len {
            super::prefetch(&next[at]);
            let mut sum = bias[at];
            for (weights, inputs) in weight_rows.iter().zip(&input_rows) {
                sum = simd.mul_add_e_f32s(weights[at], inputs[at], sum);
            }
            out[at] = vector(sum);
        }
        for (at, out) in out_tail.iter_mut().enumerate() {
            let products = weights.iter().zip(&inputs).map(|(weights, inputs)| weights.1[at] * inputs.1[at]);
            *out = scalar(bias_tail[at] + products.sum::<f32>());
        }
    }
}

/// `x / (1 + e^-x)` within a few ulp.
#[inline(always)]
fn silu<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    // Adding 1.5 * 2^23 rounds to an integer that then stands in the low bits, here with the bias of exponents.
    const ROUND: f32 = 12_582_912.0 + 127.0;
    const RATE: f32 = -std::f32::consts::LOG2_E;
    let splat = |value: f32| simd.splat_f32s(value);
    // Beyond these bounds the sigmoid is 0 or 1 to the last bit that matters. A NaN comes back through `x` below.
    let y = simd.min_f32s(splat(80.0), simd.max_f32s(splat(-80.0), x));
    // e^-y as 2^n 2^f, the fraction by a polynomial fitted for the least relative error, 1e-7.
    let shifted = simd.mul_add_e_f32s(y, splat(RATE), splat(ROUND));
    let n = simd.sub_f32s(shifted, splat(ROUND));
    let f = simd.mul_add_e_f32s(y, splat(RATE), simd.neg_f32s(n));
    let mut p = splat(0.001_330_060_7);
    for coefficient in [0.009_669_691, 0.055_505_585, 0.240_222_83, std::f32::consts::LN_2, 1.0] {
        p = simd.mul_add_e_f32s(p, f, splat(coefficient));
    }
    let exponent = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let below = simd.mul_add_e_f32s(p, simd.transmute_f32s_u32s(exponent), splat(1.0));
    // Its reciprocal by Newton's iteration, from a guess that negates the exponent.
    let guess = simd.sub_u32s(simd.splat_u32s(0x7ef3_11c7), simd.transmute_u32s_f32s(below));
    let mut inverse = simd.transmute_f32s_u32s(guess);
    for _ in 0..3 {
        let error = simd.mul_add_e_f32s(simd.neg_f32s(below), inverse, splat(1.0));
        inverse = simd.mul_add_e_f32s(inverse, error, inverse);
    }
    simd.mul_f32s(x, inverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_is_exact_to_a_few_ulp() {
        let x: Vec<f32> = (-100_000..100_000).map(|i| i as f32 * 1e-3).collect();
        let (ones, zeros) = (vec![1.0; x.len()], vec![0.0; x.len()]);
        let mut found = vec![0.0; x.len()];
        weigh_taps([&ones], [&x], &zeros, &x, true, &mut found);
        for (x, found) in x.iter().zip(found) {
            let x = f64::from(*x);
            let exact = x / (1.0 + (-x).exp());
            assert!(
                (f64::from(found) - exact).abs() <= 1e-6 * exact.abs() + 1e-30,
                "silu({x}) is {exact}, not {found}"
            );
        }
    }

    #[test]
    fn tails_and_limits() {
        let x: Vec<f32> = [f32::NAN, f32::INFINITY].into_iter().chain((0..35).map(|i| i as f32 - 17.0)).collect();
        let ones = vec![1.0; x.len()];
        let mut found = vec![0.0; x.len()];
        weigh_taps([&ones, &ones], [&x, &x], &ones, &x, false, &mut found);
        assert!(found[0].is_nan() && found[1] == f32::INFINITY);
        assert!(found[2..].iter().zip(&x[2..]).all(|(found, x)| *found == 1.0 + 2.0 * x));
        weigh_taps([&ones], [&x], &ones, &x, true, &mut found);
        assert!(found[0].is_nan() && found[1] == f32::INFINITY);
    }
}
