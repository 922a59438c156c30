//! Each instruction against a definition of its own: integers by bits and wide arithmetic, formats by all of their
//! codes, directed roundings by exact sums.

use super::insert_bits;
use crate::op::{Op, Scalar};
use crate::parse::Module;
use crate::types::{Type, mask};
use rstest::rstest;

/// The function of an instruction whose operands are registers of the given types.
fn scalar(opcode: &str, into: &str, from: &[&str]) -> Scalar {
    let names: Vec<String> = (0..from.len()).map(|at| format!("%x{at}")).collect();
    let registers: Vec<String> = names.iter().zip(from).map(|(name, ty)| format!(".reg .{ty} {name};\n")).collect();
    let text = format!(
        ".visible .entry k()\n{{\n.reg .{into} %d;\n{}{opcode} %d, {};\nret;\n}}\n",
        registers.concat(),
        names.join(", ")
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
    match module.kernels[0].code[0].op {
        Op::Lanes { compute, .. } | Op::Compare { compute, .. } => compute,
        ref other => panic!("{other:?}"),
    }
}

/// What a register of `ty` may hold: edges, their neighbours, and numbers without a pattern.
fn samples(ty: &str) -> Vec<u64> {
    let bits = Type::parse(ty).unwrap().bits();
    let mut samples = Vec::new();
    for bit in 0..bits {
        let power = 1u64 << bit;
        samples.extend([power, power.wrapping_sub(1), power + 1, power.wrapping_neg()]);
    }
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..40 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        samples.push(random);
    }
    samples.iter_mut().for_each(|sample| *sample &= mask(bits));
    samples.sort_unstable();
    samples.dedup();
    samples
}

/// The number that the bits of a type stand for.
fn number(ty: &str, bits: u64) -> i128 {
    let ty = Type::parse(ty).unwrap();
    let bits = i128::from(bits & mask(ty.bits()));
    if ty.signed() && bits >> (ty.bits() - 1) == 1 { bits - (1 << ty.bits()) } else { bits }
}

/// The low bits of a number.
fn low(ty: &str, number: i128) -> u64 {
    number as u64 & mask(Type::parse(ty).unwrap().bits())
}

/// The product as if on paper, in four limbs, which no 128-bit overflow can spoil.
fn product(a: i128, b: i128) -> (u64, i128) {
    let (sign, a, b) = ((a < 0) != (b < 0), a.unsigned_abs(), b.unsigned_abs());
    let (a, b) = ([a & 0xffff_ffff, a >> 32], [b & 0xffff_ffff, b >> 32]);
    let mut limbs = [0u128; 4];
    for i in 0..2 {
        for j in 0..2 {
            limbs[i + j] += (a[i] * b[j]) & 0xffff_ffff;
            limbs[i + j + 1] += (a[i] * b[j]) >> 32;
        }
    }
    for i in 0..3 {
        limbs[i + 1] += limbs[i] >> 32;
        limbs[i] &= 0xffff_ffff;
    }
    let (mut low, mut high) = (limbs[1] << 32 | limbs[0], limbs[3] << 32 | limbs[2]);
    if sign {
        // Two's complement of the 128 bits.
        let carry = u128::from(low == 0);
        low = (!low & u128::from(u64::MAX)).wrapping_add(1) & u128::from(u64::MAX);
        high = (!high & u128::from(u64::MAX)).wrapping_add(carry) & u128::from(u64::MAX);
    }
    (low as u64, high as i128)
}

#[rstest]
fn integers_are_those_of_arithmetic(#[values("u16", "s16", "u32", "s32", "u64", "s64")] ty: &str) {
    let binary = |opcode: &str| scalar(&format!("{opcode}.{ty}"), ty, &[ty, ty]);
    let (add, sub, mul) = (binary("add"), binary("sub"), binary("mul.lo"));
    let (div, rem, max, min) = (binary("div"), binary("rem"), binary("max"), binary("min"));
    let mad = scalar(&format!("mad.lo.{ty}"), ty, &[ty, ty, ty]);
    let high = (!ty.ends_with("16")).then(|| binary("mul.hi"));
    let comparisons = ["eq", "ne", "lt", "le", "gt", "ge"].map(|word| binary(&format!("setp.{word}")));
    let bits = Type::parse(ty).unwrap().bits();
    for &a in &samples(ty) {
        for &b in &samples(ty) {
            let (x, y) = (number(ty, a), number(ty, b));
            let (low_product, high_product) = product(x, y);
            assert_eq!(add(a, b, 0), low(ty, x + y));
            assert_eq!(sub(a, b, 0), low(ty, x - y));
            assert_eq!(mul(a, b, 0), low_product & mask(bits));
            assert_eq!(mad(a, b, 5), low(ty, i128::from(low_product) + 5));
            if let Some(high) = high {
                let whole = high_product << 64 | i128::from(low_product);
                assert_eq!(high(a, b, 0), low(ty, whole >> bits), "{x} * {y}");
            }
            if y != 0 {
                assert_eq!(div(a, b, 0), low(ty, x / y));
                assert_eq!(rem(a, b, 0), low(ty, x % y));
            }
            assert_eq!((max(a, b, 0), min(a, b, 0)), (low(ty, x.max(y)), low(ty, x.min(y))));
            let expected = [x == y, x != y, x < y, x <= y, x > y, x >= y];
            assert_eq!(comparisons.map(|compare| compare(a, b, 0) == 1), expected, "{x} and {y}");
        }
    }
}

#[test]
fn four_products_of_bytes_are_summed() {
    let dp4a = scalar("dp4a.s32.s32", "s32", &["s32", "s32", "s32"]);
    for a in [0i8, 1, -1, 127, -128, 77] {
        for b in [0i8, 3, -5, 127, -128] {
            let (left, right) = ([a, b, -3, 100], [b, a, 7, -128]);
            let word = |bytes: [i8; 4]| u64::from(u32::from_le_bytes(bytes.map(i8::cast_unsigned)));
            let exact: i128 = left.iter().zip(right).map(|(&a, b)| i128::from(a) * i128::from(b)).sum();
            assert_eq!(dp4a(word(left), word(right), 9), low("s32", exact + 9), "{left:?} {right:?}");
            assert_eq!(dp4a(word(left), word(right), 0x7fff_ffff), low("s32", exact + 0x7fff_ffff), "it wraps around");
        }
    }
}

#[rstest]
#[case("u16", "u32")]
#[case("s16", "s32")]
#[case("u32", "u64")]
#[case("s32", "s64")]
fn wide_products_keep_all_bits(#[case] from: &str, #[case] into: &str) {
    let mul = scalar(&format!("mul.wide.{from}"), into, &[from, from]);
    let mad = scalar(&format!("mad.wide.{from}"), into, &[from, from, into]);
    for &a in &samples(from) {
        for &b in &samples(from) {
            let exact = number(from, a) * number(from, b);
            assert_eq!(mul(a, b, 0), low(into, exact));
            assert_eq!(mad(a, b, 77), low(into, exact + 77));
        }
    }
}

#[rstest]
#[case("b16", "u16", "s16")]
#[case("b32", "u32", "s32")]
#[case("b64", "u64", "s64")]
fn shifts_go_bit_by_bit(#[case] ty: &str, #[case] unsigned: &str, #[case] signed: &str) {
    let shift = |opcode: &str, ty: &str| scalar(&format!("{opcode}.{ty}"), ty, &[ty, "u32"]);
    let (left, right, arithmetic) = (shift("shl", ty), shift("shr", unsigned), shift("shr", signed));
    for &a in &samples(ty) {
        let (mut l, mut r, mut s) = (low(ty, i128::from(a)), low(ty, i128::from(a)), number(signed, a));
        for by in 0..140 {
            assert_eq!(left(a, by, 0), l);
            assert_eq!(right(a, by, 0), r);
            assert_eq!(arithmetic(a, by, 0), low(ty, s));
            (l, r, s) = (low(ty, i128::from(l) * 2), r / 2, s.div_euclid(2));
        }
    }
}

#[test]
fn bits_are_counted_and_moved_one_by_one() {
    let three = |opcode: &str| scalar(opcode, "b32", &["b32", "b32", "b32"]);
    let one = |opcode: &str| scalar(opcode, "b32", &["b32"]);
    let funnels = ["shf.l.wrap.b32", "shf.l.clamp.b32", "shf.r.wrap.b32", "shf.r.clamp.b32"].map(three);
    let (extract, permute) = (scalar("bfe.u32", "u32", &["u32", "u32", "u32"]), three("prmt.b32"));
    let (ones, zeros, reversed) = (one("popc.b32"), one("clz.b32"), one("brev.b32"));
    let bit = |value: u64, at: u64| if at < 64 { value >> at & 1 } else { 0 };
    let word = |bits: &dyn Fn(u64) -> u64| (0..32).fold(0, |word, at| word | bits(at) << at);
    for &a in &samples("b32") {
        assert_eq!(ones(a, 0, 0), (0..32).map(|at| bit(a, at)).sum::<u64>());
        assert_eq!(zeros(a, 0, 0), (0..32).rev().take_while(|at| bit(a, *at) == 0).count() as u64);
        assert_eq!(reversed(a, 0, 0), word(&|at| bit(a, 31 - at)));
        for &b in samples("b32").iter().step_by(3) {
            let both = b << 32 | a;
            for by in 0..40u64 {
                let (wrap, clamp) = (by % 32, by.min(32));
                let expected = [
                    word(&|at| bit(both, at + 32 - wrap)),
                    word(&|at| bit(both, at + 32 - clamp)),
                    word(&|at| bit(both, at + wrap)),
                    word(&|at| bit(both, at + clamp)),
                ];
                assert_eq!(funnels.map(|funnel| funnel(a, b, by)), expected, "{both:x} by {by}");
                for len in [0, 1, 7, 31, 32, 40] {
                    let field = word(&|at| if at < len && at + by < 32 { bit(a, at + by) } else { 0 });
                    assert_eq!(extract(a, by, len), field);
                    let inserted = word(&|at| if at >= by && at < by + len { bit(a, at - by) } else { bit(b, at) });
                    assert_eq!(u64::from(insert_bits(a as u32, b as u32, by as u32, len as u32)), inserted);
                }
            }
            for pick in [0x3210, 0x7654, 0x5410, 0x7632, 0x0123, 0xba98, 0xfedc] {
                let byte = |at: u64| {
                    let digit = pick >> (4 * at) & 15;
                    let byte = both >> (8 * (digit & 7)) & 255;
                    if digit < 8 { byte } else { 255 * (byte >> 7) }
                };
                assert_eq!(permute(a, b, pick), (0..4).fold(0, |word, at| word | byte(at) << (8 * at)));
            }
        }
    }
}

#[rstest]
#[case("and", [0, 0, 0, 1])]
#[case("or", [0, 1, 1, 1])]
#[case("xor", [0, 1, 1, 0])]
fn logic_follows_its_truth_table(#[case] opcode: &str, #[case] truth: [u64; 4]) {
    for ty in ["pred", "b16", "b32", "b64"] {
        let compute = scalar(&format!("{opcode}.{ty}"), ty, &[ty, ty]);
        let bits = u64::from(Type::parse(ty).unwrap().bits());
        for &a in &samples(ty) {
            for &b in &samples(ty) {
                let expected =
                    (0..bits).fold(0, |all, at| all | truth[((a >> at & 1) * 2 + (b >> at & 1)) as usize] << at);
                assert_eq!(compute(a, b, 0), expected);
            }
        }
    }
}

#[rstest]
fn integers_convert_by_value(
    #[values("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")] from: &str,
    #[values("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")] to: &str,
) {
    let compute = scalar(&format!("cvt.{to}.{from}"), to, &[from]);
    for &a in &samples(from) {
        assert_eq!(low(to, i128::from(compute(a, 0, 0))), low(to, number(from, a)));
        // A wider register holds the value, with its sign.
        let (held, value) = (compute(a, 0, 0), number(to, low(to, number(from, a))));
        assert_eq!(held & mask(32), value as u64 & mask(32));
    }
}

/// The value of a code with these many exponent and mantissa bits, by the definition of a binary float.
fn value(code: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let fraction = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let exponent = (code >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    };
    if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -magnitude } else { magnitude }
}

/// Every code, and around every boundary between two: the midpoint goes to the even code.
#[rstest]
#[case::f16("cvt.rn.f16.f32", "b16", 5, 10, 0x7bff, true)]
#[case::bf16("cvt.rn.bf16.f32", "b16", 8, 7, 0x7f7f, true)]
#[case::e4m3("cvt.rn.satfinite.e4m3x2.f32", "b16", 4, 3, 0x7e, false)]
#[case::e5m2("cvt.rn.satfinite.e5m2x2.f32", "b16", 5, 2, 0x7b, false)]
fn narrowing_rounds_to_nearest_even(
    #[case] opcode: &str,
    #[case] into: &str,
    #[case] exponent_bits: u32,
    #[case] mantissa_bits: u32,
    #[case] largest: u32,
    #[case] overflows: bool,
) {
    let pairs = opcode.contains("x2");
    let sources: &[&str] = if pairs { &["f32", "f32"] } else { &["f32"] };
    let compute = scalar(opcode, into, sources);
    let narrow = |value: f32| {
        let bits = u64::from(value.to_bits());
        let code = if pairs { compute(0, bits, 0) } else { compute(bits, 0, 0) } as u32;
        let upper = if pairs { compute(bits, 0, 0) as u32 >> 8 } else { code };
        assert_eq!(upper, code, "both halves of a pair are alike");
        code
    };
    let sign = 1 << (exponent_bits + mantissa_bits);
    for code in 0..largest {
        let (this, next) = (value(code, exponent_bits, mantissa_bits), value(code + 1, exponent_bits, mantissa_bits));
        let middle = ((this + next) / 2.0) as f32;
        // The smallest halves of bf16 are no f32.
        if f64::from(middle) != (this + next) / 2.0 {
            continue;
        }
        assert_eq!(narrow(this as f32), code);
        assert_eq!(narrow(middle.next_down()), code);
        assert_eq!(narrow(middle), code + (code & 1));
        assert_eq!(narrow(middle.next_up()), code + 1);
        assert_eq!(narrow(-middle.next_up()), code + 1 + sign);
    }
    let beyond = value(largest, exponent_bits, mantissa_bits) * 1.5;
    let expected = if overflows { largest + 1 } else { largest };
    assert_eq!(narrow(beyond as f32), expected);
    assert_eq!(narrow(f32::INFINITY), expected);
}

#[rstest]
#[case::f16("cvt.f32.f16", 5, 10, 0x7c00)]
#[case::bf16("cvt.f32.bf16", 8, 7, 0x7f80)]
fn halves_widen_to_their_value(
    #[case] opcode: &str,
    #[case] exponent_bits: u32,
    #[case] mantissa_bits: u32,
    #[case] infinity: u32,
) {
    let compute = scalar(opcode, "f32", &["b16"]);
    for code in 0..infinity {
        for code in [code, code | 0x8000] {
            let found = f32::from_bits(compute(u64::from(code), 0, 0) as u32);
            assert_eq!(f64::from(found), value(code, exponent_bits, mantissa_bits));
        }
    }
    assert_eq!(f32::from_bits(compute(u64::from(infinity), 0, 0) as u32), f32::INFINITY);
    assert!(f32::from_bits(compute(u64::from(infinity) + 1, 0, 0) as u32).is_nan());
}

#[rstest]
#[case::e4m3("cvt.rn.f16x2.e4m3x2", 4, 3, 0x7e)]
#[case::e5m2("cvt.rn.f16x2.e5m2x2", 5, 2, 0x7b)]
fn bytes_widen_to_their_value(
    #[case] opcode: &str,
    #[case] exponent_bits: u32,
    #[case] mantissa_bits: u32,
    #[case] largest: u32,
) {
    let compute = scalar(opcode, "b32", &["b16"]);
    for (low, high) in (0..256).flat_map(|low| (0..256).map(move |high| (low, high))) {
        let found = compute(u64::from(high << 8 | low), 0, 0);
        for (code, half) in [(low, found as u16), (high, (found >> 16) as u16)] {
            let found = half::f16::from_bits(half).to_f64();
            if code & 0x7f <= largest {
                assert_eq!(found, value(code, exponent_bits, mantissa_bits));
            } else {
                let infinite = exponent_bits == 5 && code & 3 == 0;
                assert_eq!((found.is_nan(), found.is_infinite()), (!infinite, infinite), "{code:x}");
            }
        }
    }
}

/// f64 has room for every difference.
#[test]
fn halves_are_subtracted_each_for_itself() {
    let compute = scalar("sub.rn.f16x2", "b32", &["b32", "b32"]);
    let half = |bits: u32| half::f16::from_bits(bits as u16);
    // Every number, from some of each size and sign.
    for a in (0..0x1_0000).step_by(0x333) {
        for b in 0..0x1_0000 {
            let found = compute(u64::from(a << 16 | b), u64::from(b << 16 | a), 0) as u32;
            for (found, a, b) in [(found, b, a), (found >> 16, a, b)] {
                let (found, expected) = (half(found), half::f16::from_f64(half(a).to_f64() - half(b).to_f64()));
                assert!(found == expected || (found.is_nan() && expected.is_nan()), "{a:x} {b:x}");
            }
        }
    }
}

/// Sums of products that fit 128 bits exactly, in units of 2^-86.
#[test]
fn directed_roundings_take_the_neighbour_on_their_side() {
    let fma = ["rn", "rz", "rm", "rp"].map(|mode| scalar(&format!("fma.{mode}.f32"), "f32", &["f32", "f32", "f32"]));
    let add = scalar("add.rz.f32", "f32", &["f32", "f32"]);
    let units = |value: f32, unit: i32| (f64::from(value) * 2f64.powi(unit)) as i128;
    let mantissas = [0x80_0000, 0x80_0001, 0xff_ffff, 0xab_cdef, 0xc0_0000];
    let numbers = || {
        mantissas.into_iter().flat_map(|mantissa| {
            [-20, -3, 0, 2].into_iter().flat_map(move |exponent| {
                let value = mantissa as f32 * 2f32.powi(exponent - 23);
                [value, -value]
            })
        })
    };
    for (a, b) in numbers().flat_map(|a| numbers().map(move |b| (a, b))) {
        for c in numbers().chain([0.0]) {
            // Factors are whole numbers of 2^-43.
            let exact = units(a, 43) * units(b, 43) + units(c, 86);
            let [nearest, zero, down, up] =
                fma.map(|fma| f32::from_bits(fma(a.to_bits().into(), b.to_bits().into(), c.to_bits().into()) as u32));
            let fine = |value: f32| units(value, 86);
            let one = 1f32.to_bits().into();
            assert_eq!(
                add(a.to_bits().into(), c.to_bits().into(), 0),
                fma[1](a.to_bits().into(), one, c.to_bits().into())
            );
            assert!(fine(down) <= exact && exact <= fine(up), "{a} * {b} + {c}");
            if fine(down) == exact {
                assert_eq!((down, zero, nearest), (up, up, up));
                continue;
            }
            assert_eq!(down.next_up(), up);
            assert_eq!(zero, if exact > 0 { down } else { up });
            let (below, above) = (exact - fine(down), fine(up) - exact);
            let expected = match below.cmp(&above) {
                std::cmp::Ordering::Less => down,
                std::cmp::Ordering::Greater => up,
                std::cmp::Ordering::Equal => {
                    if down.to_bits() & 1 == 0 {
                        down
                    } else {
                        up
                    }
                }
            };
            assert_eq!(nearest, expected);
        }
    }
}

#[test]
fn comparisons_know_nan() {
    let numbers = [f32::NEG_INFINITY, -1.0, -0.0, 0.0, 1e-40, 1.0, f32::INFINITY, f32::NAN];
    let ordered = ["eq", "ne", "lt", "le", "gt", "ge"];
    for (a, b) in numbers.into_iter().flat_map(|a| numbers.into_iter().map(move |b| (a, b))) {
        let expected = match a.partial_cmp(&b) {
            None => [false; 6],
            Some(order) => [order.is_eq(), order.is_ne(), order.is_lt(), order.is_le(), order.is_gt(), order.is_ge()],
        };
        let either_nan = a.is_nan() || b.is_nan();
        for (word, expected) in ordered.into_iter().zip(expected) {
            for (word, expected) in [(word.to_owned(), expected), (format!("{word}u"), expected || either_nan)] {
                let compare = scalar(&format!("setp.{word}.f32"), "pred", &["f32", "f32"]);
                assert_eq!(compare(a.to_bits().into(), b.to_bits().into(), 0) == 1, expected, "{a} {word} {b}");
            }
        }
        let larger = scalar("max.f32", "f32", &["f32", "f32"]);
        let larger = f32::from_bits(larger(a.to_bits().into(), b.to_bits().into(), 0) as u32);
        assert_eq!(larger.is_nan(), a.is_nan() && b.is_nan());
        assert!(larger.is_nan() || [a, b].iter().all(|x| x.is_nan() || *x <= larger));
    }
}

#[rstest]
#[case("rni", [-3.0, -2.0, -2.0, -0.0, 0.0, 2.0, 2.0, 3.0])]
#[case("rzi", [-2.0, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 2.0])]
#[case("rmi", [-3.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 2.0])]
#[case("rpi", [-2.0, -2.0, -1.0, -0.0, 1.0, 2.0, 3.0, 3.0])]
fn roundings_to_whole_numbers(#[case] mode: &str, #[case] expected: [f32; 8]) {
    let inputs = [-2.75, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.75f32];
    let float = scalar(&format!("cvt.{mode}.f32.f32"), "f32", &["f32"]);
    let int = scalar(&format!("cvt.{mode}.s32.f32"), "s32", &["f32"]);
    for (input, expected) in inputs.into_iter().zip(expected) {
        assert_eq!(f32::from_bits(float(input.to_bits().into(), 0, 0) as u32), expected, "{mode} {input}");
        assert_eq!(int(input.to_bits().into(), 0, 0) as i32, expected as i32, "{mode} {input}");
    }
}

#[test]
fn integers_saturate_from_floats() {
    let compute = scalar("cvt.rzi.s32.f32", "s32", &["f32"]);
    let convert = |value: f32| compute(value.to_bits().into(), 0, 0) as i32;
    assert_eq!([3e9, -3e9, f32::NAN, -1.9].map(convert), [i32::MAX, i32::MIN, 0, -1]);
    let compute = scalar("cvt.rzi.u32.f32", "u32", &["f32"]);
    assert_eq!([5e9, -1.0].map(|value: f32| compute(value.to_bits().into(), 0, 0) as u32), [u32::MAX, 0]);
    let compute = scalar("cvt.sat.f32.f32", "f32", &["f32"]);
    let clamp = |value: f32| f32::from_bits(compute(value.to_bits().into(), 0, 0) as u32);
    assert_eq!([-1.0, 0.25, 7.0, f32::NAN].map(clamp), [0.0, 0.25, 1.0, 0.0]);
}

#[test]
fn a_sign_is_copied_from_the_first_operand_to_the_second() {
    let compute = scalar("copysign.f32", "f32", &["f32", "f32"]);
    for (a, b) in [(-1.0, 2.0), (3.0, -2.0), (-0.0, 0.0), (1.0, f32::NEG_INFINITY)] {
        let (a, b): (f32, f32) = (a, b);
        let bits = u64::from(a.to_bits()) & (1 << 31) | u64::from(b.to_bits()) & ((1 << 31) - 1);
        assert_eq!(compute(a.to_bits().into(), b.to_bits().into(), 0), bits);
    }
}

#[test]
fn flushing_turns_subnormals_to_zeros_of_their_sign() {
    let compute = scalar("mul.ftz.f32", "f32", &["f32", "f32"]);
    let multiply = |a: f32, b: f32| f32::from_bits(compute(a.to_bits().into(), b.to_bits().into(), 0) as u32);
    assert_eq!(multiply(-1e-40, 1e30).to_bits(), (-0f32).to_bits());
    assert_eq!(multiply(1e-30, 1e-10).to_bits(), 0);
    assert_eq!(multiply(f32::MIN_POSITIVE, 1.0), f32::MIN_POSITIVE);
}
