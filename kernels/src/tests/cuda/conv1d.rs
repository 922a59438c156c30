//! `conv_update.cu`.

use super::{TARGET, assert_traffic, emulate, random, schedules};
use crate::cuda::conv1d::causal_conv1d;
use crate::reference;
use crate::states::States;
use crate::tests::recurrent::{check, wide};
use crate::tests::{Ragged, Random, values};
use crate::{CausalConv1d, StateBatch, StateLayerView};
use cacheplan_emulator::Options;
use candle_core::DType;
use rstest::rstest;

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn conv_update(
    #[values(2, 3, 4)] d_conv: usize,
    #[values(false, true)] silu: bool,
    #[values(DType::F32, DType::F16, DType::BF16)] dtype: DType,
) {
    for lens in [[0, 1, 2, 3, 4, 16], [0, 1, 2, 64, 65, 130]] {
        convolve(d_conv, silu, dtype, &lens);
    }
}

/// A few tokens of each sequence, or so many that they are cut into stretches.
fn convolve(d_conv: usize, silu: bool, dtype: DType, lens: &[usize]) {
    let channels = if lens[5] > 16 { 136 } else { 1064 };
    let view = StateLayerView::conv(3 * channels + 16, 8, d_conv, channels);
    let mut source = Random::new(11);
    let ragged = Ragged::new(lens);
    // Rows of a wider projection, as a model has them.
    let x = ragged.poison(&source.tensor(&[ragged.total, channels + 8])).to_dtype(dtype).unwrap();
    let x = x.narrow(1, 8, channels).unwrap();
    let weight = random(&mut source, &[d_conv, channels], dtype);
    let bias = silu.then(|| random(&mut source, &[channels], dtype));
    let (x_wide, weight_wide) = (wide(&values(&x)), wide(&values(&weight)));
    let bias_wide = bias.as_ref().map(|bias| wide(&values(bias)));
    let by_channel: Vec<f64> =
        (0..channels * d_conv).map(|at| weight_wide[at % d_conv * channels + at / d_conv]).collect();
    let conv = CausalConv1d { weight: &weight, bias: bias.as_ref(), silu };
    for options in schedules() {
        check(
            lens,
            view,
            dtype,
            |ragged, pool| {
                let batch = ragged.batch();
                emulate(
                    &causal_conv1d(&conv, &x, &States { pool, view: &view, batch: &batch }, &TARGET).unwrap(),
                    &options,
                )
                .outputs
                .remove(0)
            },
            |rows, state| {
                let x = &x_wide[rows.start * channels..rows.end * channels];
                reference::causal_conv1d(x, &by_channel, bias_wide.as_deref(), state, d_conv, silu)
            },
        );
    }
}

/// One token of each sequence, at channels that fill blocks.
#[rstest]
#[case(DType::BF16, 90.0)]
#[case(DType::F32, 60.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn conv_update_traffic(#[case] dtype: DType, #[case] warp_instructions_per_kib: f64) {
    let channels = 2048;
    let view = StateLayerView::conv(3 * channels, 0, 4, channels);
    let mut source = Random::new(1);
    let pool = random(&mut source, &[3, view.slot_elems], dtype);
    let [x, weight] = [2, 4].map(|rows| random(&mut source, &[rows, channels], dtype));
    let conv = CausalConv1d { weight: &weight, bias: None, silu: true };
    let batch = StateBatch::new(&[0, 1, 2], &[2, 1]);
    let launches = causal_conv1d(&conv, &x, &States { pool: &pool, view: &view, batch: &batch }, &TARGET).unwrap();
    assert_traffic(&emulate(&launches, &Options::default()), warp_instructions_per_kib);
}

/// Two stretches of one sequence.
#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn conv_prefill_traffic() {
    let (channels, tokens) = (1024, 128);
    let view = StateLayerView::conv(3 * channels, 0, 4, channels);
    let mut source = Random::new(1);
    let pool = random(&mut source, &[2, view.slot_elems], DType::BF16);
    let [x, weight] = [tokens, 4].map(|rows| random(&mut source, &[rows, channels], DType::BF16));
    let conv = CausalConv1d { weight: &weight, bias: None, silu: true };
    let batch = StateBatch::new(&[0, 128], &[1]);
    let launches = causal_conv1d(&conv, &x, &States { pool: &pool, view: &view, batch: &batch }, &TARGET).unwrap();
    let mut emulated = emulate(&launches, &Options::default());
    emulated.runs.truncate(1);
    assert_traffic(&emulated, 270.0);
    let stats = &emulated.runs[0].stats;
    let floor = 2 * tokens * channels * 2;
    assert!(stats.moved_bytes() as f64 <= 1.1 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
}
