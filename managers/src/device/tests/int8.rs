//! Checkpoints in 8 bits.

use crate::device::int8::{Int8Error, Int8State, StateShape};
use proptest::prelude::{Strategy as _, any, prop, proptest};
use rstest::rstest;

const SHAPE: StateShape = StateShape { heads: 2, head_dim: 5, d_state: 3 };

proptest! {
    #[test]
    fn no_element_is_off_by_more_than_half_its_scale(
        state in prop::collection::vec(-1e4_f32..1e4, SHAPE.elements()),
        shift in any::<[u8; 6]>(),
    ) {
        // Channels of different magnitude, as real states have.
        let state: Vec<f32> = state
            .iter()
            .enumerate()
            .map(|(i, x)| x * 10_f32.powi(-i32::from(shift[i / 15 * 3 + i % 3] % 8)))
            .collect();
        let quantised = Int8State::quantise(SHAPE, &state).unwrap();
        for (i, (x, y)) in state.iter().zip(quantised.dequantise()).enumerate() {
            let scale = quantised.scales()[i / 15 * 3 + i % 3];
            assert!((x - y).abs() <= scale * 0.5001, "element {i}: {x} became {y}, scale {scale}");
        }
    }

    #[test]
    fn whatever_is_finite_keeps_to_its_bound_and_stays_finite(
        largest in any::<f32>().prop_filter("finite", |x| x.is_finite()),
        shares in prop::collection::vec(-1.0_f32..1.0, 4),
    ) {
        let shape = StateShape { heads: 1, head_dim: 5, d_state: 1 };
        let state: Vec<f32> = shares.into_iter().chain([1.0]).map(|share| share * largest).collect();
        bound(&Int8State::quantise(shape, &state).unwrap(), &state);
    }
}

/// Checks a state of one channel.
#[track_caller]
fn bound(quantised: &Int8State, state: &[f32]) {
    let scale = quantised.scales()[0];
    for (x, y) in state.iter().zip(quantised.dequantise()) {
        assert!(y.is_finite() && (x - y).abs() <= scale * 0.5001, "{x:e} became {y:e}, scale {scale:e}");
    }
}

#[rstest]
#[case::zero(0.0, 0)]
#[case::minus_zero(-0.0, 0)]
#[case::least(f32::from_bits(1), 1)]
#[case::less_than_a_step(f32::from_bits(63), 1)]
#[case::between_steps(f32::from_bits(190), 2)]
#[case::least_normal(f32::MIN_POSITIVE, 66052)]
#[case::most(f32::MAX, (f32::MAX / 127.0).to_bits())]
#[case::least_of_all(f32::MIN, (f32::MAX / 127.0).to_bits())]
fn the_ends_of_the_number_range_have_scales(#[case] largest: f32, #[case] bits: u32) {
    let shape = StateShape { heads: 1, head_dim: 3, d_state: 1 };
    let state = [largest, largest / 2.0, 0.0];
    let quantised = Int8State::quantise(shape, &state).unwrap();
    assert_eq!(quantised.scales()[0].to_bits(), bits);
    bound(&quantised, &state);
}

#[test]
fn what_was_never_written_is_not_read() {
    let state: Vec<f32> = (0..SHAPE.elements()).map(|i| i as f32).collect();
    let quantised = Int8State::quantise(SHAPE, &state).unwrap();
    let mut bytes = vec![0; SHAPE.int8_bytes()];
    quantised.write(&mut bytes);
    assert_eq!(Int8State::read(SHAPE, &bytes), Ok(quantised));
    let (expected, found) = (bytes.len(), bytes.len() - 1);
    assert_eq!(Int8State::read(SHAPE, &bytes[1..]), Err(Int8Error::Elements { expected, found }));
    for scale in [f32::NAN, f32::INFINITY, -1.0] {
        bytes[SHAPE.elements() + 8..][..4].copy_from_slice(&scale.to_le_bytes());
        assert_eq!(Int8State::read(SHAPE, &bytes), Err(Int8Error::NoScale { index: 2 }));
    }
    let absurd = StateShape { heads: usize::MAX, head_dim: 2, d_state: 2 };
    assert!(matches!(Int8State::quantise(absurd, &[0.0]), Err(Int8Error::Elements { .. })));
    assert!(matches!(Int8State::read(absurd, &[0]), Err(Int8Error::Elements { .. })));
}

#[test]
fn a_zero_channel_stays_zero_and_extremes_are_kept() {
    let shape = StateShape { heads: 1, head_dim: 2, d_state: 2 };
    let quantised = Int8State::quantise(shape, &[0.0, -5.0, 0.0, 2.5]).unwrap();
    let back = quantised.dequantise();
    assert_eq!((back[0], back[2]), (0.0, 0.0));
    assert!((back[1] + 5.0).abs() < 1e-6);
}

#[test]
fn a_state_takes_a_byte_per_element_and_a_scale_per_channel() {
    // Per layer of a model with 32 heads of 128 x 128, float32 takes 2 MiB.
    let shape = StateShape { heads: 32, head_dim: 128, d_state: 128 };
    assert_eq!(shape.int8_bytes(), 524_288 + 16_384);
    assert!(shape.int8_bytes() * 3 < shape.elements() * 4);
}

#[test]
fn states_that_no_scale_fits_are_refused() {
    let shape = StateShape { heads: 1, head_dim: 1, d_state: 2 };
    assert_eq!(Int8State::quantise(shape, &[1.0, f32::NAN]), Err(Int8Error::NotFinite { index: 1 }));
    assert_eq!(Int8State::quantise(shape, &[f32::NEG_INFINITY, 1.0]), Err(Int8Error::NotFinite { index: 0 }));
    assert_eq!(Int8State::quantise(shape, &[1.0]), Err(Int8Error::Elements { expected: 2, found: 1 }));
}
