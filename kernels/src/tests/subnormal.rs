//! States that decay through the subnormal numbers cost what others cost, and leave as zeros.

use super::{Random, on_cpu, values};
use crate::*;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;
use std::time::{Duration, Instant};

const HEADS: usize = 8;
const ROWS: usize = 64;
const COLUMNS: usize = 64;
/// Few enough for the step by step form.
const TOKENS: usize = 12;

#[derive(Clone, Copy, Debug)]
enum Recurrence {
    Mamba1,
    Mamba2,
    LinearAttention,
    RgLru,
}

/// Steps a state of `start` throughout over tokens that add nothing and keep `kept` of it each. Returns the state and how
/// long the steps took.
fn decay(recurrence: Recurrence, start: f32, kept: f32) -> (Vec<f32>, Duration) {
    let elems = HEADS * ROWS * COLUMNS;
    let full = |value: f32, width: usize| Tensor::full(value, (TOKENS, width), &Device::Cpu).unwrap();
    let shape = match recurrence {
        Recurrence::Mamba1 => [HEADS * ROWS, 1, COLUMNS],
        Recurrence::Mamba2 | Recurrence::LinearAttention => [HEADS, ROWS, COLUMNS],
        Recurrence::RgLru => [elems, 1, 1],
    };
    let view = StateLayerView::matrix(elems, 0, shape);
    let pool = Tensor::full(start, (1, elems), &Device::Cpu).unwrap();
    let cu_seqlens = [0, TOKENS as u32];
    let batch = StateBatch::new(&cu_seqlens, &[0]);
    let ones = |width: usize| Tensor::ones((TOKENS, width), DType::F32, &Device::Cpu).unwrap();
    let time_step = TimeStep { bias: None, softplus: false, limit: (0.0, f32::INFINITY) };
    let rate = kept.ln();
    let began = Instant::now();
    match recurrence {
        Recurrence::Mamba1 => {
            let a = Tensor::full(rate, (HEADS * ROWS, COLUMNS), &Device::Cpu).unwrap();
            let (x, dt, b) = (full(0.0, HEADS * ROWS), ones(HEADS * ROWS), ones(COLUMNS));
            let input = ScanInput { x: &x, dt: &dt, b: &b, c: &b, z: None };
            Mamba1Scan { a: &a, d: None, time_step }.run(&on_cpu(), &input, &pool, &view, &batch).unwrap();
        }
        Recurrence::Mamba2 => {
            let a = Tensor::full(rate, HEADS, &Device::Cpu).unwrap();
            let (x, dt, b) = (full(0.0, HEADS * ROWS), ones(HEADS), ones(COLUMNS));
            let input = ScanInput { x: &x, dt: &dt, b: &b, c: &b, z: None };
            Mamba2Scan { a: &a, d: None, time_step }.run(&on_cpu(), &input, &pool, &view, &batch).unwrap();
        }
        Recurrence::LinearAttention => {
            let (k, v) = (ones(HEADS * ROWS), full(0.0, HEADS * COLUMNS));
            let decay = StateDecay::Fixed(&[rate; HEADS]);
            let input = LinearAttentionScan { q: &k, k: &k, v: &v, decay, beta: None, scale: 1.0, l2_norm: false };
            input.run(&on_cpu(), &pool, &view, &batch).unwrap();
        }
        Recurrence::RgLru => {
            // log a = -8 * sigmoid(0) * softplus(a_param)
            let a = Tensor::full((-rate / 4.0).exp_m1().ln(), elems, &Device::Cpu).unwrap();
            let zeros = full(0.0, elems);
            let input = RgLruScan {
                x: &zeros,
                input_gate: &zeros,
                recurrence_gate: &zeros,
                a_param: &a,
                positions: (&[1; TOKENS]).into(),
            };
            input.run(&on_cpu(), &pool, &view, &batch).unwrap();
        }
    }
    (values(&pool), began.elapsed())
}

#[rstest]
fn a_state_that_decays_below_the_normal_numbers(
    #[values(Recurrence::Mamba1, Recurrence::Mamba2, Recurrence::LinearAttention, Recurrence::RgLru)]
    recurrence: Recurrence,
) {
    // The smallest normal number is 1.2e-38; half of that is left after the first token.
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        assert!(decay(recurrence, 1.3e-38, 0.5).0.iter().all(|&state| state == 0.0), "{recurrence:?} keeps subnormals");
    }
    let best = |start: f32| (0..10).map(|_| decay(recurrence, start, 0.99).1).min().unwrap();
    // The same work, on numbers that are and are not subnormal from the second token on.
    let (ordinary, subnormal) = (best(1.0), best(1.18e-38));
    assert!(
        subnormal < 4 * ordinary,
        "{recurrence:?}: {subnormal:?} below the normal numbers, {ordinary:?} among them"
    );
}

#[test]
fn callers_keep_their_subnormal_numbers() {
    let before = std::hint::black_box(f32::MIN_POSITIVE) * std::hint::black_box(0.5);
    let mut random = Random::new(91);
    linear(&on_cpu(), &random.tensor(&[3, 70]), &random.tensor(&[130, 70])).unwrap();
    decay(Recurrence::Mamba2, 1.0, 0.9);
    let after = std::hint::black_box(f32::MIN_POSITIVE) * std::hint::black_box(0.5);
    assert!(before > 0.0 && after == before);
}
