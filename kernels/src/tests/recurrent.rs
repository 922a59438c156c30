//! The recurrent ops against their references, over ragged batches with padding and canaries.

use super::{Ragged, Random, assert_aligned, assert_close, on_cpu, values};
use crate::reference::{self, LinearAttentionCase, MambaCase};
use crate::*;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;
use std::ops::Range;

/// The largest error allowed, over the largest magnitude, for each dtype of the pool.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 2e-2,
    }
}

pub(super) fn wide(data: &[f32]) -> Vec<f64> {
    data.iter().map(|&x| f64::from(x)).collect()
}

fn narrow(data: &[f64]) -> Vec<f32> {
    data.iter().map(|&x| x as f32).collect()
}

/// Runs `op` over a ragged batch and `reference` over each sequence, and compares outputs, states and canaries.
pub(super) fn check(
    lens: &[usize],
    view: StateLayerView,
    dtype: DType,
    op: impl Fn(&Ragged, &Tensor) -> Tensor,
    reference: impl Fn(Range<usize>, &mut Vec<f64>) -> Vec<f64>,
) {
    let ragged = Ragged::new(lens);
    let width = view.slot_elems;
    let pool = ragged.state_pool(&view, dtype);
    let before = values(&pool);
    let out = op(&ragged, &pool);
    let out_tolerance = tolerance(dtype).max(tolerance(out.dtype()));
    let out = values(&out);
    let after = values(&pool);
    let row_width = out.len() / ragged.total;
    let mut expected_pool = before.clone();
    for (sequence, &slot) in ragged.slots.iter().enumerate() {
        let rows = ragged.rows(sequence);
        let found = &out[rows.start * row_width..rows.end * row_width];
        let Ok(slot) = usize::try_from(slot) else {
            assert!(found.iter().all(|&value| value == 0.0), "padding rows are 0");
            continue;
        };
        if rows.is_empty() {
            continue;
        }
        let start = slot * width + view.layer_offset;
        let mut state = wide(&before[start..start + view.elems()]);
        let expected = narrow(&reference(rows, &mut state));
        assert_close(found, &expected, out_tolerance);
        assert_aligned(found, &expected);
        let state = narrow(&state);
        assert_close(&after[start..start + view.elems()], &state, tolerance(dtype));
        expected_pool[start..start + view.elems()].copy_from_slice(&after[start..start + view.elems()]);
    }
    assert_eq!(bits(&after), bits(&expected_pool), "nothing but the batch's states has changed");
}

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|x| x.to_bits()).collect()
}

/// Lengths around 0, 1, the conv width and the scan's chunk.
const LENS: [usize; 9] = [0, 1, 2, 3, 4, 63, 64, 65, 130];

#[rstest]
fn convolution(
    #[values(2, 3, 4)] d_conv: usize,
    #[values(false, true)] silu: bool,
    #[values(DType::F32, DType::F16, DType::BF16)] dtype: DType,
) {
    let channels = 40;
    let view = StateLayerView::conv(200, 11, d_conv, channels);
    let mut random = Random::new(11);
    let ragged = Ragged::new(&LENS);
    let x = ragged.poison(&random.tensor(&[ragged.total, channels]));
    let weight = random.vec(d_conv * channels);
    let bias = random.tensor(&[channels]);
    let transposed: Vec<f64> = (0..channels)
        .flat_map(|channel| (0..d_conv).map(move |tap| (tap, channel)))
        .map(|(tap, channel)| f64::from(weight[tap * channels + channel]))
        .collect();
    let weight = Tensor::from_vec(weight, (d_conv, channels), &Device::Cpu).unwrap();
    let (x_wide, bias_wide) = (wide(&values(&x)), wide(&values(&bias)));
    check(
        &LENS,
        view,
        dtype,
        |ragged, pool| {
            CausalConv1d { weight: &weight, bias: Some(&bias), silu }
                .run(&on_cpu(), &x, pool, &view, &ragged.batch())
                .unwrap()
        },
        |rows, state| {
            let x = &x_wide[rows.start * channels..rows.end * channels];
            reference::causal_conv1d(x, &transposed, Some(&bias_wide), state, d_conv, silu)
        },
    );
}

#[rstest]
fn mamba2(
    #[values(1, 2, 8)] groups: usize,
    #[values(64, 80, 128)] head_dim: usize,
    #[values(16, 64, 128, 256)] d_state: usize,
    #[values(DType::F32, DType::BF16)] dtype: DType,
) {
    // Few tokens: the f64 reference of the whole grid would otherwise take half a minute.
    mamba2_case(groups, head_dim, d_state, dtype, &[-20.0, -9.0, 0.0, 25.0], (0.0, f32::INFINITY), &[0, 1, 65]);
}

#[rstest]
#[case::f16(DType::F16, (0.0, f32::INFINITY))]
#[case::limited(DType::F32, (0.01, 0.3))]
fn mamba2_options(#[case] dtype: DType, #[case] dt_limit: (f32, f32)) {
    mamba2_case(2, 64, 16, dtype, &[-4.0, -2.0, 0.0, 1.0], dt_limit, &LENS);
}

/// The ragged lengths of TensorRT-Edge-LLM's variable-length vector.
#[test]
fn mamba2_over_the_edge_llm_vector() {
    mamba2_case(1, 64, 64, DType::F32, &[-4.0, -2.0, 0.0, 1.0], (0.0, f32::INFINITY), &[78, 175, 462]);
}

fn mamba2_case(
    groups: usize,
    head_dim: usize,
    d_state: usize,
    dtype: DType,
    biases: &[f32],
    dt_limit: (f32, f32),
    lens: &[usize],
) {
    let heads = 8;
    let view = StateLayerView::matrix(heads * head_dim * d_state + 9, 5, [heads, head_dim, d_state]);
    let mut random = Random::new(12);
    let ragged = Ragged::new(lens);
    let mut activation = |width: usize| ragged.poison(&random.tensor(&[ragged.total, width]));
    let (x, z) = (activation(heads * head_dim), activation(heads * head_dim));
    let (dt, b, c) = (activation(heads), activation(groups * d_state), activation(groups * d_state));
    let a: Vec<f32> = (0..heads).map(|head| -0.1 - head as f32).collect();
    let d = random.tensor(&[heads]);
    let bias: Vec<f32> = (0..heads).map(|head| biases[head % biases.len()]).collect();
    let wide_of = |tensor: &Tensor| wide(&values(tensor));
    let (xw, dtw, bw, cw, zw, dw) = (wide_of(&x), wide_of(&dt), wide_of(&b), wide_of(&c), wide_of(&z), wide_of(&d));
    let (aw, biasw) = (wide(&a), wide(&bias));
    let a = Tensor::new(a, &Device::Cpu).unwrap();
    let bias = Tensor::new(bias, &Device::Cpu).unwrap();
    let layer =
        Mamba2Scan { a: &a, d: Some(&d), time_step: TimeStep { bias: Some(&bias), softplus: true, limit: dt_limit } };
    let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
    check(
        lens,
        view,
        dtype,
        |ragged, pool| layer.run(&on_cpu(), &input, pool, &view, &ragged.batch()).unwrap(),
        |rows, state| {
            let part = |data: &'static str, width: usize| {
                let source = match data {
                    "x" => &xw,
                    "dt" => &dtw,
                    "b" => &bw,
                    "c" => &cw,
                    _ => &zw,
                };
                &source[rows.start * width..rows.end * width]
            };
            let case = MambaCase {
                heads,
                head_dim,
                d_state,
                groups,
                x: part("x", heads * head_dim),
                dt: part("dt", heads),
                a: &aw,
                b: part("b", groups * d_state),
                c: part("c", groups * d_state),
                d: Some(&dw),
                z: Some(part("z", heads * head_dim)),
                dt_bias: Some(&biasw),
                dt_limit: (f64::from(dt_limit.0), f64::from(dt_limit.1)),
            };
            reference::mamba(&case, state)
        },
    );
}

#[rstest]
fn mamba1(#[values(1, 16)] d_state: usize, #[values(96, 130)] d_inner: usize) {
    let view = StateLayerView::matrix(d_inner * d_state + 3, 2, [d_inner, 1, d_state]);
    let mut random = Random::new(13);
    let total: usize = Ragged::new(&LENS).total;
    let [x, dt, z] = [(); 3].map(|()| random.tensor(&[total, d_inner]));
    let [b, c] = [(); 2].map(|()| random.tensor(&[total, d_state]));
    let a = (random.tensor(&[d_inner, d_state]) - 1.5).unwrap();
    let [d, bias] = [(); 2].map(|()| random.tensor(&[d_inner]));
    let layer = Mamba1Scan { a: &a, d: Some(&d), time_step: TimeStep::new(Some(&bias)) };
    let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
    let w = |tensor: &Tensor| wide(&values(tensor));
    let (xw, dtw, zw, bw, cw, aw, dw, biasw) = (w(&x), w(&dt), w(&z), w(&b), w(&c), w(&a), w(&d), w(&bias));
    check(
        &LENS,
        view,
        DType::F32,
        |ragged, pool| layer.run(&on_cpu(), &input, pool, &view, &ragged.batch()).unwrap(),
        |rows, state| {
            let case = MambaCase {
                heads: d_inner,
                head_dim: 1,
                d_state,
                groups: 1,
                x: &xw[rows.start * d_inner..rows.end * d_inner],
                dt: &dtw[rows.start * d_inner..rows.end * d_inner],
                a: &aw,
                b: &bw[rows.start * d_state..rows.end * d_state],
                c: &cw[rows.start * d_state..rows.end * d_state],
                d: Some(&dw),
                z: Some(&zw[rows.start * d_inner..rows.end * d_inner]),
                dt_bias: Some(&biasw),
                dt_limit: (0.0, f64::INFINITY),
            };
            reference::mamba(&case, state)
        },
    );
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    GatedDelta,
    KimiDelta,
    Lightning,
}

#[rstest]
fn linear_attention_of_each_kind(
    #[values(Kind::GatedDelta, Kind::KimiDelta, Kind::Lightning)] kind: Kind,
    #[values((2, 4, 32, 48), (4, 4, 64, 64), (1, 2, 128, 128), (1, 3, 20, 7))] sizes: (usize, usize, usize, usize),
    #[values(DType::F32, DType::BF16)] dtype: DType,
) {
    let random = Random::new(18);
    let random = std::cell::RefCell::new(random);
    linear_case(kind, sizes, dtype, &LENS, &|_| (random.borrow_mut().unit() - 1.0) / 4.0);
}

fn linear_case(
    kind: Kind,
    (key_heads, heads, key_dim, value_dim): (usize, usize, usize, usize),
    dtype: DType,
    lens: &[usize],
    decay_at: &dyn Fn(usize) -> f32,
) {
    let view = StateLayerView::matrix(heads * key_dim * value_dim + 8, 8, [heads, key_dim, value_dim]);
    let mut random = Random::new(14);
    let total: usize = Ragged::new(lens).total;
    let [q, k] = [(); 2].map(|()| random.tensor(&[total, key_heads * key_dim]));
    let v = random.tensor(&[total, heads * value_dim]);
    let beta = ((random.tensor(&[total, heads]) + 1.0).unwrap() / 2.0).unwrap();
    let decays = |width: usize| {
        let decays = (0..total * width).map(decay_at).collect();
        Tensor::from_vec(decays, (total, width), &Device::Cpu).unwrap()
    };
    let (per_head, per_channel) = (decays(heads), decays(heads * key_dim));
    let slopes: Vec<f32> = (0..heads).map(|head| -0.5 / (head + 1) as f32).collect();
    let delta = !matches!(kind, Kind::Lightning);
    let decay = match kind {
        Kind::GatedDelta => StateDecay::PerHead(&per_head),
        Kind::KimiDelta => StateDecay::PerChannel(&per_channel),
        Kind::Lightning => StateDecay::Fixed(&slopes),
    };
    let (per_head_values, per_channel_values) = (values(&per_head), values(&per_channel));
    let decay_wide: Vec<f64> = (0..total * heads * key_dim)
        .map(|at| match kind {
            Kind::GatedDelta => per_head_values[at / key_dim],
            Kind::KimiDelta => per_channel_values[at],
            Kind::Lightning => slopes[at / key_dim % heads],
        })
        .map(f64::from)
        .collect();
    let input = LinearAttentionScan {
        q: &q,
        k: &k,
        v: &v,
        decay,
        beta: delta.then_some(&beta),
        scale: (key_dim as f32).powf(-0.5),
        l2_norm: delta,
    };
    let w = |tensor: &Tensor| wide(&values(tensor));
    let (qw, kw, vw, betaw) = (w(&q), w(&k), w(&v), w(&beta));
    check(
        lens,
        view,
        dtype,
        |ragged, pool| input.run(&on_cpu(), pool, &view, &ragged.batch()).unwrap(),
        |rows, state| {
            let part = |data: &[f64], width: usize| data[rows.start * width..rows.end * width].to_vec();
            let beta = part(&betaw, heads);
            let case = LinearAttentionCase {
                key_heads,
                heads,
                key_dim,
                value_dim,
                q: &part(&qw, key_heads * key_dim),
                k: &part(&kw, key_heads * key_dim),
                v: &part(&vw, heads * value_dim),
                decay: &part(&decay_wide, heads * key_dim),
                beta: delta.then_some(&beta),
                scale: f64::from((key_dim as f32).powf(-0.5)),
                l2_norm: delta,
            };
            reference::linear_attention(&case, state)
        },
    );
}

/// What a strong decay has forgotten leaves no trace in what weak ones keep.
#[rstest]
fn strong_decays_beside_weak_ones(
    #[values(Kind::GatedDelta, Kind::KimiDelta)] kind: Kind,
    #[values(-30.0, -3000.0, f32::NEG_INFINITY)] strong: f32,
) {
    linear_case(kind, (2, 2, 32, 32), DType::F32, &[130], &|at| if at % 11 < 3 { strong } else { -1e-3 });
}

#[test]
fn recurrent_unit() {
    let width = 70;
    let view = StateLayerView::matrix(width + 4, 1, [width, 1, 1]);
    let mut random = Random::new(15);
    let total: usize = Ragged::new(&LENS).total;
    let [x, i, r] = [(); 3].map(|()| random.tensor(&[total, width]));
    let a = random.tensor(&[width]);
    // Some sequences begin here, some go on.
    let positions: Vec<u32> = (0..total as u32).map(|row| (row + 1) % 5).collect();
    let input = RgLruScan { x: &x, input_gate: &i, recurrence_gate: &r, a_param: &a, positions: (&positions).into() };
    let w = |tensor: &Tensor| wide(&values(tensor));
    let (xw, iw, rw, aw) = (w(&x), w(&i), w(&r), w(&a));
    check(
        &LENS,
        view,
        DType::F32,
        |ragged, pool| input.run(&on_cpu(), pool, &view, &ragged.batch()).unwrap(),
        |rows, state| {
            let span = rows.start * width..rows.end * width;
            reference::rg_lru(&xw[span.clone()], &iw[span.clone()], &rw[span], &aw, &positions[rows], state)
        },
    );
}

#[rstest]
fn gated_norm(#[values(true, false)] norm_before_gate: bool, #[values(96, 32)] weights: usize) {
    let mut random = Random::new(16);
    let (x, z, weight) = (random.tensor(&[7, 96]), random.tensor(&[7, 96]), random.tensor(&[weights]));
    let order = if norm_before_gate { GateOrder::NormThenGate } else { GateOrder::GateThenNorm };
    let found = RmsNorm { weight: &weight, eps: 1e-5 }.run_gated(&on_cpu(), &x, &z, 32, order).unwrap();
    let w = |tensor: &Tensor| wide(&values(tensor));
    let expected = reference::gated_rms_norm(&w(&x), &w(&z), &w(&weight), 1e-5f32.into(), 32, norm_before_gate);
    assert_close(&values(&found), &narrow(&expected), 1e-5);
}

/// A rate beyond f32 leaves nothing of the state, in a chunk as token by token.
#[test]
fn an_infinite_rate_forgets_everything() {
    const TOKENS: usize = 40;
    let view = StateLayerView::matrix(2 * 4 * 8, 0, [2, 4, 8]);
    let mut random = Random::new(19);
    let mut activation = |width: usize| random.tensor(&[TOKENS, width]);
    let (x, dt, b, c) = (activation(8), activation(2), activation(8), activation(8));
    let a = Tensor::new(&[f32::NEG_INFINITY, -1.0], &Device::Cpu).unwrap();
    let layer = Mamba2Scan { a: &a, d: None, time_step: TimeStep::new(None) };
    let run = |steps: &[Range<usize>]| {
        let pool = Tensor::ones((1, view.slot_elems), DType::F32, &Device::Cpu).unwrap();
        let mut out = Vec::new();
        for rows in steps {
            let part = |tensor: &Tensor| tensor.narrow(0, rows.start, rows.len()).unwrap();
            let (x, dt, b, c) = (part(&x), part(&dt), part(&b), part(&c));
            let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: None };
            let cu_seqlens = [0, rows.len() as u32];
            out.extend(values(
                &layer.run(&on_cpu(), &input, &pool, &view, &StateBatch::new(&cu_seqlens, &[0])).unwrap(),
            ));
        }
        out.extend(values(&pool));
        out
    };
    let steps_of =
        |tokens: usize| -> Vec<_> { (0..TOKENS).step_by(tokens).map(|first| first..first + tokens).collect() };
    assert_close(&run(&steps_of(TOKENS)), &run(&steps_of(1)), 1e-5);
}

#[test]
fn operands_and_views_without_dimensions_are_refused() {
    let pool = |width: usize| Tensor::zeros((1, width), DType::F32, &Device::Cpu).unwrap();
    let rows = |width: usize| Tensor::zeros((1, width), DType::F32, &Device::Cpu).unwrap();
    let scalar = Tensor::new(1f32, &Device::Cpu).unwrap();
    let batch = StateBatch::new(&[0, 1], &[0]);
    for (k, shape) in [(&scalar, [1, 2, 2]), (&rows(0), [1, 0, 2])] {
        let view = StateLayerView::matrix(shape.iter().product(), 0, shape);
        let (v, decay) = (rows(2), StateDecay::Fixed(&[0.0]));
        let input = LinearAttentionScan { q: k, k, v: &v, decay, beta: None, scale: 1.0, l2_norm: false };
        input.run(&on_cpu(), &pool(view.slot_elems), &view, &batch).unwrap_err();
        let layer = Mamba2Scan { a: &rows(1), d: None, time_step: TimeStep::new(None) };
        let input = ScanInput { x: &v, dt: &rows(1), b: k, c: k, z: None };
        let view = StateLayerView::matrix(view.slot_elems, 0, [shape[0], shape[2], shape[1]]);
        layer.run(&on_cpu(), &input, &pool(view.slot_elems), &view, &batch).unwrap_err();
    }
}
