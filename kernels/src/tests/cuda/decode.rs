//! `paged_decode.cu`.

use super::{TARGET, assert_traffic, emulate, prove_all, prove_mutants, schedules};
use crate::Target;
use crate::cuda::attention::paged_attention;
use crate::tests::attention::{Layout, Paged};
use crate::tests::{Random, values};
use crate::{KvQuant, KvScales, PagedAttention, Window};
use cacheplan_emulator::Options;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device as Place, Tensor};
use float8::F8E4M3;
use rstest::rstest;

/// Padding with and without rows, one token, and contexts around tiles, blocks, warps and splits.
const SEQUENCES: [(usize, usize); 8] = [(1, 1), (1, 16), (3, 0), (1, 17), (0, 20), (1, 130), (1, 300), (0, 0)];

fn layout(kv_heads: usize, head_dim: usize, block: usize, order: KvLayout, dtype: DType) -> Layout {
    Layout { kv_heads, head_dim, kv_factor: 2, block, order, dtype }
}

/// So few processors that contexts are not split, or so many that they are.
const TARGETS: [Target; 2] = [Target { processors: 1, ..TARGET }, Target { processors: 132, ..TARGET }];

#[derive(Clone, Copy, Debug)]
enum Extra {
    Plain,
    Sliding,
    Chunked,
    Sinks,
    SoftCap,
}

const K_SCALES: [f32; 2] = [0.01, 0.02];
const V_SCALES: [f32; 2] = [0.03, 0.005];

/// Scales for pools of 8 bits: of each token where `own` has them, else of each head or of all.
pub(super) fn scales<'a>(pool: DType, own: Option<&'a Tensor>, of_heads: bool) -> Option<KvQuant<'a>> {
    let all = KvScales { k: K_SCALES[0], v: V_SCALES[0] }.into();
    let heads = if of_heads { KvQuant::PerHead { k: &K_SCALES, v: &V_SCALES } } else { all };
    (pool.size_in_bytes() == 1).then_some(own.map_or(heads, KvQuant::PerToken))
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_decode(
    #[values((DType::BF16, DType::BF16), (DType::F16, DType::F16), (DType::BF16, DType::F8E4M3), (DType::F16, DType::U8), (DType::F16, DType::F8E4M3), (DType::BF16, DType::U8))]
    (dtype, pool): (DType, DType),
    #[values(64, 128)] head_dim: usize,
    #[values((1, 16, KvLayout::Hnd), (4, 32, KvLayout::Nhd), (16, 64, KvLayout::Hnd))] (group, block, order): (
        usize,
        usize,
        KvLayout,
    ),
    #[values(Extra::Plain, Extra::Sliding, Extra::Chunked, Extra::Sinks, Extra::SoftCap)] extra: Extra,
) {
    let bytes = pool.size_in_bytes() == 1;
    // A sample: scales of tokens and of heads, with one option each.
    if bytes && !prove_all() && (group, dtype) != (4, DType::BF16) {
        return;
    }
    let kv_heads = 2;
    let heads = kv_heads * group;
    let sinks: Vec<f32> = (0..heads).map(|head| head as f32 / 4.0 - 1.0).collect();
    let mut attention = PagedAttention::new((head_dim as f32).powf(-0.5), head_dim);
    match extra {
        Extra::Plain => {}
        Extra::Sliding => attention.window = Window::Sliding(70),
        Extra::Chunked => attention.window = Window::Chunked(48),
        Extra::Sinks => attention.sinks = Some(&sinks),
        Extra::SoftCap => attention.softcap = Some(2.0),
    }
    let mut paged = Paged::new(&layout(kv_heads, head_dim, block, order, pool), &SEQUENCES);
    let own_scales = paged.own_scales();
    let own = matches!(extra, Extra::Plain | Extra::SoftCap).then_some(&own_scales);
    attention.quant = scales(pool, own, matches!(extra, Extra::Sinks));
    // What no query sees is gone.
    for (sequence, (_, context)) in SEQUENCES.into_iter().enumerate() {
        let seen = attention.window.first_visible(context.saturating_sub(1)) / block;
        paged.block_tables[sequence * paged.max_blocks..][..seen].fill(-1);
    }
    let tolerance = if dtype == DType::F16 { 2e-3 } else { 2e-2 };
    for (device, options) in TARGETS.into_iter().zip(schedules()) {
        let run = |q: &Tensor| {
            let batch = paged.batch();
            let launches = paged_attention(q, &paged.pool, &paged.view, &batch, &attention, &device).unwrap();
            assert_eq!(launches.launches[0].grid[2] > 1, device.processors > 1, "splits follow the device");
            emulate(&launches, &options).outputs.remove(0)
        };
        paged.check_as(run, dtype, heads, &attention, tolerance);
    }
}

/// Powers of two of queries change no bit of what is made of them over 8 bits, where the scale takes them back.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_decode_takes_queries_of_any_size(#[values(60, -60)] power: i32) {
    let paged = Paged::new(&layout(2, 64, 16, KvLayout::Hnd, DType::F8E4M3), &[(1, 100)]);
    let q = Random::new(3).tensor(&[1, 4, 64]);
    let run = |power: i32| {
        let factor = 2f32.powi(power);
        let q = (&q * f64::from(factor)).unwrap().to_dtype(DType::BF16).unwrap();
        let quant = scales(DType::F8E4M3, None, true);
        let attention = PagedAttention { quant, ..PagedAttention::new(0.3 / factor, 64) };
        let batch = paged.batch();
        let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &TARGETS[0]).unwrap();
        values(&emulate(&launches, &Options::default()).outputs[0])
    };
    assert_eq!(run(power), run(0));
}

/// A byte that is no number is not taken for one: what sees it is none, and nothing else.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_decode_keeps_what_is_no_number(#[values(0, 1)] kv: usize) {
    let paged = Paged::new(&layout(2, 64, 16, KvLayout::Hnd, DType::F8E4M3), &[(1, 40), (1, 40)]);
    // The pool's poison in place of a number of the second sequence, of its second head.
    let (view, block) = (&paged.view, paged.block_tables[paged.max_blocks + 1] as usize);
    let at = block * view.block_elems + view.row_offset(kv, 1, 5) + 33;
    let mut stored: Vec<F8E4M3> = paged.pool.flatten_all().unwrap().to_vec1().unwrap();
    stored[at] = F8E4M3::NAN;
    let pool = Tensor::from_vec(stored, paged.pool.dims(), &Place::Cpu).unwrap();
    let q = Random::new(3).tensor(&[2, 4, 64]).to_dtype(DType::F16).unwrap();
    let quant = scales(DType::F8E4M3, None, false);
    let attention = PagedAttention { quant, ..PagedAttention::new(0.3, 64) };
    let batch = paged.batch();
    let launches = paged_attention(&q, &pool, view, &batch, &attention, &TARGETS[1]).unwrap();
    let found = values(&emulate(&launches, &Options::default()).outputs[0]);
    for (head, row) in found.chunks_exact(64).enumerate() {
        assert_eq!(row.iter().all(|x| x.is_nan()), head >= 6, "head {head} of both sequences");
        assert_eq!(row.iter().any(|x| x.is_nan()), head >= 6, "head {head} of both sequences");
    }
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_decode_mutants(
    #[values((DType::BF16, DType::BF16), (DType::F16, DType::F16), (DType::BF16, DType::F8E4M3))] (dtype, pool): (
        DType,
        DType,
    ),
    #[values(64, 128)] head_dim: usize,
) {
    if !prove_all() && (dtype, head_dim) != (DType::BF16, 64) {
        return;
    }
    let paged = Paged::new(&layout(1, head_dim, 16, KvLayout::Hnd, pool), &[(1, 500)]);
    let own_scales = paged.own_scales();
    let q = Tensor::ones((1, 4, head_dim), dtype, &Place::Cpu).unwrap();
    let quant = scales(pool, Some(&own_scales), false);
    let attention = PagedAttention { quant, ..PagedAttention::new(0.1, head_dim) };
    let batch = paged.batch();
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &TARGETS[0]).unwrap();
    prove_mutants(&launches, &[]);
}

/// Llama's group at a context long enough that what happens once does not count.
#[rstest]
#[case(DType::BF16, 128, 70.0)]
#[case(DType::BF16, 64, 90.0)]
#[case(DType::F8E4M3, 128, 185.0)]
#[case(DType::F8E4M3, 64, 220.0)]
#[case(DType::U8, 128, 135.0)]
#[case(DType::U8, 64, 175.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_decode_traffic(#[case] pool: DType, #[case] head_dim: usize, #[case] warp_instructions_per_kib: f64) {
    let (context, row_bytes) = (2048 / pool.size_in_bytes(), head_dim * pool.size_in_bytes());
    let paged = Paged::new(&layout(1, head_dim, 32, KvLayout::Hnd, pool), &[(1, context)]);
    let q = Tensor::ones((1, 4, head_dim), DType::BF16, &Place::Cpu).unwrap();
    let attention = PagedAttention { quant: scales(pool, None, false), ..PagedAttention::new(0.1, head_dim) };
    let batch = paged.batch();
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &TARGETS[0]).unwrap();
    let mut emulated = emulate(&launches, &Options::default());
    emulated.runs.truncate(1);
    assert_traffic(&emulated, warp_instructions_per_kib);
    let stats = &emulated.runs[0].stats;
    let floor = context * 2 * row_bytes;
    assert!(stats.moved_bytes() as f64 <= 1.05 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
    // Two tiles of keys and values beside the one that is computed on.
    assert!(stats.bytes_in_flight as usize >= 2 * 2 * 32 * head_dim, "{} in flight", stats.bytes_in_flight);
    assert!(stats.shared_passes as f64 <= 1.1 * stats.shared_requests as f64, "{stats:?}");
}
