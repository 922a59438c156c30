//! `linear_attention_update.cu` and `chunk_delta.cu`.

use super::{TARGET, assert_traffic, emulate, part, prove_all, prove_mutants, random, schedules};
use crate::cuda::linear_attention::linear_attention;
use crate::reference::{self, LinearAttentionCase};
use crate::states::States;
use crate::tests::recurrent::{check, wide};
use crate::tests::{Ragged, Random, values};
use crate::{LinearAttentionScan, StateBatch, StateDecay, StateLayerView, StateWrites, Target};
use cacheplan_emulator::Options;
use candle_core::{DType, Tensor};
use rstest::rstest;

#[derive(Clone, Copy, Debug)]
enum Kind {
    GatedDelta,
    KimiDelta,
    Lightning,
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn linear_update(
    #[values(Kind::GatedDelta, Kind::KimiDelta, Kind::Lightning)] kind: Kind,
    #[values((DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::F32, DType::F16), (DType::BF16, DType::BF16), (DType::F16, DType::F16))]
    dtypes: (DType, DType),
    #[values(16, 64, 128)] key_dim: usize,
) {
    hold_to_reference(kind, dtypes, (key_dim, if key_dim == 16 { 48 } else { 64 }), &[1, 0, 5], schedules());
}

/// Chunks that are whole, begun and of one token, and blocks in them; heads that are narrower and wider than what a thread
/// block takes.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn chunk_delta(
    #[values(Kind::GatedDelta, Kind::KimiDelta, Kind::Lightning)] kind: Kind,
    #[values((DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::F32, DType::F16), (DType::BF16, DType::BF16), (DType::F16, DType::F16))]
    dtypes: (DType, DType),
    #[values(16, 64, 128)] key_dim: usize,
) {
    let value_dim = match key_dim {
        16 => 48,
        64 if matches!(kind, Kind::KimiDelta) => 160,
        64 => 96,
        _ => 64,
    };
    let sizes = (key_dim, value_dim);
    match prove_all() {
        true => hold_to_reference(kind, dtypes, sizes, &[17, 0, 65, 5, 130], schedules()),
        false => hold_to_reference(kind, dtypes, sizes, &[17, 0, 65], schedules().take(1)),
    }
}

fn hold_to_reference(
    kind: Kind,
    (state, activation): (DType, DType),
    (key_dim, value_dim): (usize, usize),
    lens: &[usize],
    schedules: impl Iterator<Item = Options>,
) {
    let (key_heads, heads) = (1, 2);
    let view = StateLayerView::matrix(heads * key_dim * value_dim + 16, 8, [heads, key_dim, value_dim]);
    let mut source = Random::new(51);
    let ragged = Ragged::new(lens);
    let mut rows = |width: usize, shift: f64, dtype: DType| {
        // Rows of a wider projection, as a model has them.
        let data = ((source.tensor(&[ragged.total, width + 8]) + shift).unwrap() / 2.0).unwrap();
        ragged.poison(&data).to_dtype(dtype).unwrap().narrow(1, 8, width).unwrap()
    };
    let [q, k] = [(); 2].map(|()| rows(key_heads * key_dim, 0.0, activation));
    let v = rows(heads * value_dim, 0.0, activation);
    let beta = rows(heads, 1.0, activation);
    let per_head = rows(heads, -1.0, DType::F32);
    // From such that keep all to such that leave nothing; in f32 beside 16 bits where the state is.
    let gate = if state == activation { activation } else { DType::F32 };
    let per_channel = rows(heads * key_dim, -1.0, DType::F32).powf(9.0).unwrap();
    let per_channel = (per_channel * 1000.0).unwrap().to_dtype(gate).unwrap();
    let fixed = [-0.3, -0.01];
    let delta = !matches!(kind, Kind::Lightning);
    let decay = match kind {
        Kind::GatedDelta => StateDecay::PerHead(&per_head),
        Kind::KimiDelta => StateDecay::PerChannel(&per_channel),
        Kind::Lightning => StateDecay::Fixed(&fixed),
    };
    let decays: Vec<f64> = match decay {
        StateDecay::PerHead(decay) => wide(&values(decay)).iter().flat_map(|&x| vec![x; key_dim]).collect(),
        StateDecay::PerChannel(decay) => wide(&values(decay)),
        StateDecay::Fixed(decay) => {
            (0..ragged.total).flat_map(|_| decay.iter().flat_map(|&x| vec![f64::from(x); key_dim])).collect()
        }
    };
    let scale = 1.0 / (key_dim as f32).sqrt();
    let scan = LinearAttentionScan { q: &q, k: &k, v: &v, decay, beta: delta.then_some(&beta), scale, l2_norm: delta };
    let [qw, kw, vw, betaw] = [&q, &k, &v, &beta].map(|tensor| wide(&values(tensor)));
    for options in schedules {
        check(
            lens,
            view,
            state,
            |ragged, pool| {
                let batch = ragged.batch();
                let launches = linear_attention(&scan, &States { pool, view: &view, batch: &batch }, &TARGET)
                    .expect("an instantiation");
                emulate(&launches, &options).outputs.remove(0)
            },
            |rows, state| {
                let case = LinearAttentionCase {
                    key_heads,
                    heads,
                    key_dim,
                    value_dim,
                    q: part(&qw, &rows, key_heads * key_dim),
                    k: part(&kw, &rows, key_heads * key_dim),
                    v: part(&vw, &rows, heads * value_dim),
                    decay: part(&decays, &rows, heads * key_dim),
                    beta: delta.then_some(part(&betaw, &rows, heads)),
                    scale: f64::from(scale),
                    l2_norm: delta,
                };
                reference::linear_attention(&case, state)
            },
        );
    }
}

fn decode<T>(
    kind: Kind,
    (key_dim, value_dim, tokens): (usize, usize, u32),
    (state, activation): (DType, DType),
    body: impl FnOnce(&LinearAttentionScan<'_>, &Tensor, &StateLayerView, &StateBatch<'_>) -> T,
) -> T {
    let (heads, key_heads) = (4, 2);
    let view = StateLayerView::matrix(heads * key_dim * value_dim, 0, [heads, key_dim, value_dim]);
    let mut source = Random::new(1);
    let mut tensor = |width: usize, dtype| random(&mut source, &[tokens as usize, width], dtype);
    let [q, k] = [(); 2].map(|()| tensor(key_heads * key_dim, activation));
    let (v, beta, per_head) =
        (tensor(heads * value_dim, activation), tensor(heads, activation), tensor(heads, DType::F32));
    let per_channel = tensor(heads * key_dim, DType::F32);
    let pool = random(&mut source, &[2, view.slot_elems], state);
    let decay = match kind {
        Kind::KimiDelta => StateDecay::PerChannel(&per_channel),
        Kind::GatedDelta | Kind::Lightning => StateDecay::PerHead(&per_head),
    };
    let scan = LinearAttentionScan { q: &q, k: &k, v: &v, decay, beta: Some(&beta), scale: 0.1, l2_norm: true };
    body(&scan, &pool, &view, &StateBatch::new(&[0, tokens], &[1]))
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn linear_update_mutants(#[values(DType::F32, DType::BF16)] state: DType, #[values(16, 64, 128)] key_dim: usize) {
    if !prove_all() && (state, key_dim) != (DType::F32, 64) {
        return;
    }
    decode(Kind::GatedDelta, (key_dim, 32, 2), (state, state), |scan, pool, view, batch| {
        prove_mutants(&linear_attention(scan, &States { pool, view, batch }, &TARGET).unwrap(), &[]);
    });
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn chunk_delta_mutants(
    #[values(Kind::GatedDelta, Kind::KimiDelta)] kind: Kind,
    #[values((DType::F32, DType::F32), (DType::F32, DType::BF16), (DType::F16, DType::F16))] dtypes: (DType, DType),
    #[values(16, 64, 128)] key_dim: usize,
) {
    if !prove_all() && (dtypes.1, key_dim) != (DType::BF16, 16) {
        return;
    }
    decode(kind, (key_dim, 64, 130), dtypes, |scan, pool, view, batch| {
        let mut snapshots = [-1; 130];
        snapshots[30] = 0;
        let batch = StateBatch { writes: StateWrites::AlsoAfter(&snapshots), ..*batch };
        prove_mutants(&linear_attention(scan, &States { pool, view, batch: &batch }, &TARGET).unwrap(), &[]);
    });
}

/// A prompt at the sizes of Qwen3-Next and of Kimi-Linear: each input is read once for each 64 value columns, or 128.
#[rstest]
#[case(Kind::GatedDelta, DType::F32, DType::BF16, 450.0)]
#[case(Kind::GatedDelta, DType::BF16, DType::BF16, 400.0)]
#[case(Kind::KimiDelta, DType::F32, DType::BF16, 820.0)]
#[case(Kind::KimiDelta, DType::BF16, DType::BF16, 785.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn chunk_delta_traffic(
    #[case] kind: Kind,
    #[case] state: DType,
    #[case] activation: DType,
    #[case] warp_instructions_per_kib: f64,
) {
    decode(kind, (128, 128, 256), (state, activation), |scan, pool, view, batch| {
        let launches = linear_attention(scan, &States { pool, view, batch }, &TARGET).unwrap();
        let emulated = emulate(&launches, &Options::default());
        let stats = &emulated.runs[0].stats;
        // From token to token the decay and the strength of a head lie a row apart, each in a sector of its own.
        let scattered = f64::from(4 * 256 * if matches!(kind, Kind::KimiDelta) { 1 } else { 2 * 2 });
        assert!(stats.sectors as f64 <= 1.02 * (stats.ideal_sectors as f64 + scattered), "{stats:?}");
        let found = stats.warp_instructions_per_kib();
        assert!(found <= warp_instructions_per_kib, "{found:.1} warp instructions per KiB: {stats:?}");
        assert!(stats.shared_passes as f64 <= 1.25 * stats.shared_requests as f64, "{stats:?}");
        // Where a block may not have as much shared memory, tokens are stepped over, in more instructions.
        let stepped =
            linear_attention(scan, &States { pool, view, batch }, &Target { shared_bytes: 48 << 10, ..TARGET })
                .unwrap();
        assert!(stepped.launches.len() == 1 && stepped.launches[0].kernel.starts_with("linear_update"));
        let stepped = emulate(&stepped, &Options::default()).runs[0].stats.warp_instructions;
        assert!(3 * stats.warp_instructions <= stepped, "{} beside {stepped}", stats.warp_instructions);
    });
}

/// Decode of one token at the sizes of Qwen3-Next: little moves beside the state.
#[rstest]
#[case(DType::F32, DType::BF16, 130.0)]
#[case(DType::BF16, DType::BF16, 230.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn linear_update_traffic(#[case] state: DType, #[case] activation: DType, #[case] warp_instructions_per_kib: f64) {
    let (key_dim, value_dim) = (128, 128);
    decode(Kind::GatedDelta, (key_dim, value_dim, 1), (state, activation), |scan, pool, view, batch| {
        let launches = linear_attention(scan, &States { pool, view, batch }, &TARGET).unwrap();
        let emulated = emulate(&launches, &Options::default());
        assert_traffic(&emulated, warp_instructions_per_kib);
        let stats = &emulated.runs[0].stats;
        let floor = 2 * view.elems() * state.size_in_bytes();
        assert!(stats.moved_bytes() as f64 <= 1.15 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
        // All of a warp's part of the state is asked for before any of it is used.
        let warp_part = key_dim * 32 * state.size_in_bytes() / 4;
        assert!(stats.bytes_in_flight >= warp_part as u64, "{} bytes of a warp in flight", stats.bytes_in_flight);
        assert!(stats.shared_passes as f64 <= 1.1 * stats.shared_requests as f64, "{stats:?}");
    });
}
