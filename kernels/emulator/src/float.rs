//! Number formats and roundings that Rust has no operation for.

/// `value`, or 0 of its sign where it is subnormal: what `.ftz` does to operands and results.
pub(crate) fn flush(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

/// Which neighbour a directed rounding takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Towards {
    Zero,
    Down,
    Up,
}

/// `a * b + c`, rounded once and towards one side.
pub(crate) fn fma_towards(a: f32, b: f32, c: f32, towards: Towards) -> f32 {
    // The product is exact in f64, and the sum is `sum + rest` exactly (Knuth's two-sum).
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let part = sum - product;
    let rest = (product - (sum - part)) + (c - part);
    let nearest = sum as f32;
    if !sum.is_finite() {
        return nearest;
    }
    let above = f64::from(nearest) > sum || (f64::from(nearest) == sum && rest < 0.0);
    let below = f64::from(nearest) < sum || (f64::from(nearest) == sum && rest > 0.0);
    match towards {
        Towards::Down | Towards::Zero if above && (towards == Towards::Down || sum > 0.0) => nearest.next_down(),
        Towards::Up | Towards::Zero if below && (towards == Towards::Up || sum < 0.0) => nearest.next_up(),
        _ => nearest,
    }
}

/// An 8-bit float: exponent bits, mantissa bits, and the largest finite value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fp8 {
    mantissa: u32,
    bias: i32,
    max: f32,
    nan: u8,
}

pub(crate) const E4M3: Fp8 = Fp8 { mantissa: 3, bias: 7, max: 448.0, nan: 0x7f };
pub(crate) const E5M2: Fp8 = Fp8 { mantissa: 2, bias: 15, max: 57344.0, nan: 0x7f };

impl Fp8 {
    /// To nearest, ties to even, beyond the largest value to the largest (`.satfinite`).
    pub(crate) fn encode(self, value: f32) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = value.abs().min(self.max);
        // One unit of the last place at the value's exponent, or that of subnormals.
        let exponent = (((magnitude.to_bits() >> 23) as i32) - 127).max(1 - self.bias);
        let unit = 2f32.powi(exponent - self.mantissa as i32);
        let units = (magnitude / unit).round_ties_even() as u32;
        // A mantissa that rounds up to the next power of two carries into the exponent by itself.
        let field = ((exponent + self.bias - 1) as u32) << self.mantissa;
        sign | (field + units) as u8
    }

    pub(crate) fn decode(self, code: u8) -> f32 {
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        let magnitude = u32::from(code & 0x7f);
        let (field, fraction) = (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        let unit = 2f32.powi((field.max(1) as i32) - self.bias - self.mantissa as i32);
        let units = if field == 0 { fraction } else { fraction | 1 << self.mantissa };
        let value = unit * units as f32;
        if value <= self.max {
            sign * value
        } else if self.mantissa == 2 && fraction == 0 {
            sign * f32::INFINITY
        } else {
            f32::NAN
        }
    }
}
