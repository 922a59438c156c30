//! `scan_update.cu`.

use super::{TARGET, assert_traffic, emulate, part, random, schedules};
use crate::cuda::{mamba1::mamba1_scan, rg_lru::rg_lru};
use crate::reference::{self, MambaCase};
use crate::states::States;
use crate::tests::recurrent::{check, wide};
use crate::tests::{Ragged, Random, values};
use crate::{Mamba1Scan, RgLruScan, ScanInput, StateBatch, StateLayerView, TimeStep};
use cacheplan_emulator::Options;
use candle_core::{DType, Tensor};
use rstest::rstest;

const LENS: [usize; 4] = [1, 0, 19, 3];

/// Rows of a wider projection, as a model has them.
fn rows(source: &mut Random, ragged: &Ragged, width: usize, dtype: DType) -> Tensor {
    let wide = ragged.poison(&source.tensor(&[ragged.total, width + 8])).to_dtype(dtype).unwrap();
    wide.narrow(1, 8, width).unwrap()
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn channel_scan(
    #[values((DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::F32, DType::F16), (DType::BF16, DType::BF16), (DType::F16, DType::F16))]
    (state, activation): (DType, DType),
    #[values(96, 130)] channels: usize,
) {
    let d_state = 16;
    let view = StateLayerView::matrix(channels * d_state + 16, 8, [channels, 1, d_state]);
    let mut source = Random::new(71);
    let ragged = Ragged::new(&LENS);
    let [x, dt, z] = [(); 3].map(|()| rows(&mut source, &ragged, channels, activation));
    let [b, c] = [(); 2].map(|()| rows(&mut source, &ragged, d_state, activation));
    let a = (source.tensor(&[channels, d_state]) - 1.5).unwrap();
    let [d, bias] = [(); 2].map(|()| source.tensor(&[channels]));
    let w = |tensor: &Tensor| wide(&values(tensor));
    let (xw, dtw, zw, bw, cw, aw, dw, biasw) = (w(&x), w(&dt), w(&z), w(&b), w(&c), w(&a), w(&d), w(&bias));
    for (at, options) in schedules().enumerate() {
        let full = at == 0;
        let limit = if full { (0.0, f32::INFINITY) } else { (0.01, 0.3) };
        let time_step = TimeStep { bias: full.then_some(&bias), softplus: true, limit };
        let layer = Mamba1Scan { a: &a, d: full.then_some(&d), time_step };
        let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: full.then_some(&z) };
        check(
            &LENS,
            view,
            state,
            |ragged, pool| {
                let batch = ragged.batch();
                let launches =
                    mamba1_scan(&input, &layer, &States { pool, view: &view, batch: &batch }, &TARGET).unwrap();
                emulate(&launches, &options).outputs.remove(0)
            },
            |rows, state| {
                let case = MambaCase {
                    heads: channels,
                    head_dim: 1,
                    d_state,
                    groups: 1,
                    x: part(&xw, &rows, channels),
                    dt: part(&dtw, &rows, channels),
                    a: &aw,
                    b: part(&bw, &rows, d_state),
                    c: part(&cw, &rows, d_state),
                    d: full.then_some(&dw),
                    z: full.then_some(part(&zw, &rows, channels)),
                    dt_bias: full.then_some(&biasw),
                    dt_limit: (f64::from(limit.0), f64::from(limit.1)),
                };
                reference::mamba(&case, state)
            },
        );
    }
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn gated_recurrence(
    #[values((DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::F32, DType::F16), (DType::BF16, DType::BF16), (DType::F16, DType::F16))]
    (state, activation): (DType, DType),
    #[values(false, true)] wide_parameter: bool,
) {
    let channels = 1064;
    let view = StateLayerView::matrix(channels + 16, 8, [channels, 1, 1]);
    let mut source = Random::new(72);
    let ragged = Ragged::new(&LENS);
    let [x, input_gate, recurrence_gate] = [(); 3].map(|()| rows(&mut source, &ragged, channels, activation));
    let a = (source.tensor(&[channels]) * 9.0)
        .unwrap()
        .to_dtype(if wide_parameter { DType::F32 } else { activation })
        .unwrap();
    // A document begins inside of a sequence.
    let positions: Vec<u32> = (0..ragged.total as u32).map(|row| if row == 9 { 0 } else { row + 1 }).collect();
    let [xw, iw, rw, aw] = [&x, &input_gate, &recurrence_gate, &a].map(|tensor| wide(&values(tensor)));
    let scan = RgLruScan {
        x: &x,
        input_gate: &input_gate,
        recurrence_gate: &recurrence_gate,
        a_param: &a,
        positions: (&positions).into(),
    };
    for options in schedules() {
        check(
            &LENS,
            view,
            state,
            |ragged, pool| {
                emulate(
                    &rg_lru(&scan, &States { pool, view: &view, batch: &ragged.batch() }, &TARGET).unwrap(),
                    &options,
                )
                .outputs
                .remove(0)
            },
            |rows, state| {
                let part = |data| part(data, &rows, channels);
                reference::rg_lru(part(&xw), part(&iw), part(&rw), &aw, &positions[rows.clone()], state)
            },
        );
    }
}

/// One token of each sequence. What a layer's decay rates add is read once for all sequences that run beside each other.
#[rstest]
#[case(DType::F32, DType::BF16, 210.0, 350.0)]
#[case(DType::BF16, DType::BF16, 300.0, 430.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn scans_traffic(
    #[case] state: DType,
    #[case] activation: DType,
    #[case] channel_scan_instructions: f64,
    #[case] rg_lru_instructions: f64,
) {
    let (channels, d_state) = (2048, 16);
    let mut source = Random::new(1);
    let mut tensor = |width: usize, dtype| random(&mut source, &[2, width], dtype);
    let [x, dt, z] = [(); 3].map(|()| tensor(channels, activation));
    let [b, c] = [(); 2].map(|()| tensor(d_state, activation));
    let pool = tensor(channels * d_state, state).repeat((2, 1)).unwrap();
    let a = tensor(channels * d_state / 2, DType::F32).reshape((channels, d_state)).unwrap();
    let d = tensor(channels / 2, DType::F32).flatten_all().unwrap();
    let batch = StateBatch::new(&[0, 1, 2], &[2, 1]);
    let layer = Mamba1Scan { a: &a, d: Some(&d), time_step: TimeStep::new(Some(&d)) };
    let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
    let view = StateLayerView::matrix(channels * d_state, 0, [channels, 1, d_state]);
    let launches = mamba1_scan(&input, &layer, &States { pool: &pool, view: &view, batch: &batch }, &TARGET).unwrap();
    assert_traffic(&emulate(&launches, &Options::default()), channel_scan_instructions);
    let rates = d.to_dtype(activation).unwrap();
    let scan = RgLruScan { x: &x, input_gate: &dt, recurrence_gate: &z, a_param: &rates, positions: (&[1, 1]).into() };
    let view = StateLayerView::matrix(channels * d_state, 0, [channels, 1, 1]);
    let launches = rg_lru(&scan, &States { pool: &pool, view: &view, batch: &batch }, &TARGET).unwrap();
    assert_traffic(&emulate(&launches, &Options::default()), rg_lru_instructions);
}
