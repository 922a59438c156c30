//! `state_update.cu` and `chunk_scan.cu`.

use super::{TARGET, assert_traffic, emulate, part, prove_all, prove_mutants, random, schedules};
use crate::cuda::mamba2::mamba2_scan;
use crate::reference::{self, MambaCase};
use crate::states::States;
use crate::tests::recurrent::{check, wide};
use crate::tests::{Ragged, Random, assert_close, values};
use crate::{Mamba2Scan, ScanInput, StateBatch, StateLayerView, StateWrites, TimeStep};
use cacheplan_emulator::Options;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn state_update(
    #[values((DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::F32, DType::F16), (DType::BF16, DType::BF16), (DType::F16, DType::F16))]
    dtypes: (DType, DType),
    #[values(16, 64, 128, 256)] d_state: usize,
) {
    // Only 256 states leave many tokens to this kernel.
    let lens = if d_state == 256 { [1, 0, 19] } else { [1, 0, 16] };
    hold_to_reference(dtypes, (4, 64, d_state), &lens, schedules());
}

/// Chunks that are whole, begun and of one token; heads that are narrower and wider than what a block takes.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn chunk_scan(
    #[values((DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::F32, DType::F16), (DType::BF16, DType::BF16), (DType::F16, DType::F16))]
    dtypes: (DType, DType),
    #[values((64, 16), (96, 16), (64, 64), (64, 128))] (head_dim, d_state): (usize, usize),
) {
    match prove_all() {
        true => hold_to_reference(dtypes, (4, head_dim, d_state), &[17, 0, 65, 5, 130], schedules()),
        false => hold_to_reference(dtypes, (2, head_dim, d_state), &[17, 0, 65], schedules().take(1)),
    }
}

fn hold_to_reference(
    (state, activation): (DType, DType),
    (heads, head_dim, d_state): (usize, usize, usize),
    lens: &[usize],
    schedules: impl Iterator<Item = Options>,
) {
    let groups = if d_state == 64 { heads } else { heads / 2 };
    let view = StateLayerView::matrix(heads * head_dim * d_state + 16, 8, [heads, head_dim, d_state]);
    let mut source = Random::new(12);
    let ragged = Ragged::new(lens);
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
    let bias = Tensor::new(&[-20f32, -9.0, 0.0, 25.0][4 - heads..], &Device::Cpu).unwrap();
    for (at, options) in schedules.enumerate() {
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
            lens,
            view,
            state,
            |ragged, pool| {
                let batch = ragged.batch();
                let launches = mamba2_scan(&input, &layer, &States { pool, view: &view, batch: &batch }, &TARGET)
                    .expect("an instantiation");
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

/// One sequence of a layer with heads of 64.
struct Sequence {
    view: StateLayerView,
    /// `x` and `z`, `b` and `c`, `dt`.
    inputs: [Tensor; 5],
    a: Tensor,
    pool: Tensor,
}

impl Sequence {
    fn new((state, activation): (DType, DType), heads: usize, d_state: usize, tokens: usize) -> Self {
        let view = StateLayerView::matrix(heads * 64 * d_state, 0, [heads, 64, d_state]);
        let mut source = Random::new(1);
        let mut rows = |width: usize| random(&mut source, &[tokens, width], activation);
        let inputs = [rows(heads * 64), rows(heads * 64), rows(d_state), rows(d_state), rows(heads)];
        let a = (source.tensor(&[heads]) - 1.5).unwrap();
        Self { view, inputs, a, pool: random(&mut source, &[5, view.slot_elems], state) }
    }

    fn launched<T>(
        &self,
        pool: &Tensor,
        slot: i32,
        writes: StateWrites<'_>,
        body: impl FnOnce(&crate::Launches<'_>) -> T,
    ) -> T {
        let [x, z, b, c, dt] = &self.inputs;
        let layer = Mamba2Scan { a: &self.a, d: Some(&self.a), time_step: TimeStep::new(None) };
        let input = ScanInput { x, dt, b, c, z: Some(z) };
        let cu_seqlens = [0, x.dims()[0] as u32];
        let slots = [slot];
        let batch = StateBatch::new(&cu_seqlens, &slots).with_writes(writes);
        body(&mamba2_scan(&input, &layer, &States { pool, view: &self.view, batch: &batch }, &TARGET).unwrap())
    }

    /// The state after some of its tokens.
    fn reference(&self, slot: usize, tokens: usize) -> Vec<f32> {
        let [heads, head_dim, d_state] = self.view.shape;
        let w = |tensor: &Tensor| wide(&values(&tensor.narrow(0, 0, tokens).unwrap()));
        let [x, _, b, c, dt] = self.inputs.each_ref().map(w);
        let case = MambaCase {
            heads,
            head_dim,
            d_state,
            groups: 1,
            x: &x,
            dt: &dt,
            a: &wide(&values(&self.a)),
            b: &b,
            c: &c,
            d: None,
            z: None,
            dt_bias: None,
            dt_limit: (0.0, f64::INFINITY),
        };
        let mut state = wide(&values(&self.pool.get(slot).unwrap()));
        reference::mamba(&case, &mut state);
        state.into_iter().map(|x| x as f32).collect()
    }
}

/// Checkpoints inside of a chunk, at its end, behind the last token, and two in a row.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn chunks_leave_checkpoints(
    #[values((DType::F32, DType::F32, 1e-5), (DType::BF16, DType::BF16, 2e-2))] (state, activation, tolerance): (
        DType,
        DType,
        f32,
    ),
) {
    let sequence = Sequence::new((state, activation), 2, 16, 110);
    let mut snapshots = [-1; 110];
    (snapshots[10], snapshots[74], snapshots[75], snapshots[109]) = (4, 0, 1, 3);
    let pool = sequence.pool.copy().unwrap();
    sequence.launched(&pool, 2, StateWrites::AlsoAfter(&snapshots), |launches| {
        emulate(launches, &schedules().next().unwrap());
    });
    for (slot, tokens) in [(4, 11), (0, 75), (1, 76), (3, 110), (2, 110)] {
        assert_close(&values(&pool.get(slot).unwrap()), &sequence.reference(2, tokens), tolerance);
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn chunks_of_padding_give_zeros_and_touch_no_state() {
    let sequence = Sequence::new((DType::F32, DType::BF16), 1, 16, 20);
    let pool = sequence.pool.copy().unwrap();
    let outputs = sequence
        .launched(&pool, -1, StateWrites::Final, |launches| emulate(launches, &Options::default()).outputs.remove(0));
    assert_eq!(values(&outputs), vec![0.0; 20 * 64]);
    assert_eq!(values(&pool), values(&sequence.pool));
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn chunk_scan_mutants(
    #[values((DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::F16, DType::F16))] dtypes: (DType, DType),
    #[values(16, 64, 128)] d_state: usize,
) {
    if !prove_all() && (dtypes.1, d_state) != (DType::BF16, 16) {
        return;
    }
    let sequence = Sequence::new(dtypes, 1, d_state, 130);
    let mut snapshots = [-1; 130];
    snapshots[30] = 4;
    sequence.launched(&sequence.pool, 2, StateWrites::AlsoAfter(&snapshots), |launches| prove_mutants(launches, &[]));
}

/// A prompt at the sizes of Nemotron-H: each input is read once for each head.
#[rstest]
#[case(DType::F32, DType::BF16, 350.0, 1.25)]
#[case(DType::BF16, DType::BF16, 400.0, 1.25)]
#[case(DType::F32, DType::F32, 680.0, 1.5)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn chunk_scan_traffic(
    #[case] state: DType,
    #[case] activation: DType,
    #[case] warp_instructions_per_kib: f64,
    #[case] passes: f64,
) {
    let sequence = Sequence::new((state, activation), 1, 128, 256);
    let emulated =
        sequence.launched(&sequence.pool, 1, StateWrites::Final, |launches| emulate(launches, &Options::default()));
    assert_traffic(&emulated, warp_instructions_per_kib);
    let stats = &emulated.runs[0].stats;
    let floor = 256 * (3 * 64 + 2 * 128) * activation.size_in_bytes() + 2 * 64 * 128 * state.size_in_bytes();
    assert!(stats.moved_bytes() as f64 <= 1.05 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
    assert!(stats.shared_passes as f64 <= passes * stats.shared_requests as f64, "{stats:?}");
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
    let launches = mamba2_scan(&input, &layer, &States { pool: &pool, view: &view, batch: &batch }, &TARGET).unwrap();
    let emulated = emulate(&launches, &Options::default());
    assert_traffic(&emulated, warp_instructions_per_kib);
    let stats = &emulated.runs[0].stats;
    let floor = 2 * 2 * heads * head_dim * d_state * state.size_in_bytes();
    assert!(stats.moved_bytes() as f64 <= 1.15 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
    // All of a warp's part of the state is asked for before any of it is used.
    let warp_part = 8 * d_state * state.size_in_bytes();
    assert!(stats.bytes_in_flight >= warp_part as u64, "{} bytes of a warp in flight", stats.bytes_in_flight);
}
