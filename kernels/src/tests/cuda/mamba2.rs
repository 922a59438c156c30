//! `state_update.cu`.

use super::{DEVICE, assert_traffic, emulate, part, random, schedules};
use crate::cuda::mamba2::mamba2_scan;
use crate::reference::{self, MambaCase};
use crate::tests::recurrent::{check, wide};
use crate::tests::{Ragged, Random, values};
use crate::{Mamba2Scan, ScanInput, StateBatch, StateLayerView, TimeStep};
use cacheplan_emulator::Options;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn state_update(
    #[values((DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::F32, DType::F16), (DType::BF16, DType::BF16), (DType::F16, DType::F16))]
    (state, activation): (DType, DType),
    #[values(16, 64, 128, 256)] d_state: usize,
) {
    let (heads, head_dim, groups) = (4, 64, if d_state == 64 { 4 } else { 2 });
    let lens = if d_state == 256 { [1, 0, 2] } else { [1, 0, 16] };
    let view = StateLayerView::matrix(heads * head_dim * d_state + 16, 8, [heads, head_dim, d_state]);
    let mut source = Random::new(12);
    let ragged = Ragged::new(&lens);
    let mut rows = |width: usize| {
        // Rows of a wider projection, as a model has them.
        let wide = ragged.poison(&source.tensor(&[ragged.total, width + 8])).to_dtype(activation).unwrap();
        wide.narrow(1, 8, width).unwrap()
    };
    let [x, z] = [(); 2].map(|()| rows(heads * head_dim));
    let [b, c] = [(); 2].map(|()| rows(groups * d_state));
    let dt = rows(heads);
    let a = Tensor::new((0..heads).map(|head| -0.1 - head as f32).collect::<Vec<_>>(), &Device::Cpu).unwrap();
    let d = random(&mut source, &[heads], DType::F32);
    let bias = Tensor::new(&[-20f32, -9.0, 0.0, 25.0], &Device::Cpu).unwrap();
    for (at, options) in schedules().enumerate() {
        let full = at == 0;
        let limit = if full { (0.0, f32::INFINITY) } else { (0.01, 0.3) };
        let layer = Mamba2Scan {
            a: &a,
            d: full.then_some(&d),
            time_step: TimeStep { bias: full.then_some(&bias), softplus: true, limit },
        };
        let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: full.then_some(&z) };
        let w = |tensor: &Tensor| wide(&values(tensor));
        let (xw, dtw, bw, cw, zw, aw, dw, biasw) = (w(&x), w(&dt), w(&b), w(&c), w(&z), w(&a), w(&d), w(&bias));
        check(
            &lens,
            view,
            state,
            |ragged, pool| {
                let batch = ragged.batch();
                let launches = mamba2_scan(&input, &layer, pool, &view, &batch, &DEVICE).expect("an instantiation");
                emulate(&launches, &options).outputs.remove(0)
            },
            |rows, state| {
                let case = MambaCase {
                    heads,
                    head_dim,
                    d_state,
                    groups,
                    x: part(&xw, &rows, heads * head_dim),
                    dt: part(&dtw, &rows, heads),
                    a: &aw,
                    b: part(&bw, &rows, groups * d_state),
                    c: part(&cw, &rows, groups * d_state),
                    d: full.then_some(&dw),
                    z: full.then_some(part(&zw, &rows, heads * head_dim)),
                    dt_bias: full.then_some(&biasw),
                    dt_limit: (f64::from(limit.0), f64::from(limit.1)),
                };
                reference::mamba(&case, state)
            },
        );
    }
}

/// Decode of one token at the sizes of Nemotron-H: nothing moves that need not.
#[rstest]
#[case(DType::F32, DType::BF16, 80.0)]
#[case(DType::BF16, DType::BF16, 160.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn state_update_traffic(#[case] state: DType, #[case] activation: DType, #[case] warp_instructions_per_kib: f64) {
    let (batch, heads, head_dim, d_state, groups) = (2, 16, 64, 128, 2);
    let view = StateLayerView::matrix(heads * head_dim * d_state, 0, [heads, head_dim, d_state]);
    let mut source = Random::new(1);
    let mut tensor = |shape: &[usize], dtype| random(&mut source, shape, dtype);
    let pool = tensor(&[batch + 1, view.slot_elems], state);
    let [x, z] = [(); 2].map(|()| tensor(&[batch, heads * head_dim], activation));
    let [b, c] = [(); 2].map(|()| tensor(&[batch, groups * d_state], activation));
    let (dt, a) = (tensor(&[batch, heads], activation), tensor(&[heads], DType::F32));
    let layer = Mamba2Scan { a: &a, d: Some(&a), time_step: TimeStep::new(Some(&a)) };
    let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
    let batch = StateBatch::new(&[0, 1, 2], &[2, 1]);
    let launches = mamba2_scan(&input, &layer, &pool, &view, &batch, &DEVICE).unwrap();
    let emulated = emulate(&launches, &Options::default());
    assert_traffic(&emulated, warp_instructions_per_kib);
    let stats = &emulated.runs[0].stats;
    let floor = 2 * 2 * heads * head_dim * d_state * state.size_in_bytes();
    assert!(stats.moved_bytes() as f64 <= 1.15 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
    // All of a warp's part of the state is asked for before any of it is used.
    let warp_part = 8 * d_state * state.size_in_bytes();
    assert!(stats.bytes_in_flight >= warp_part as u64, "{} bytes of a warp in flight", stats.bytes_in_flight);
}
