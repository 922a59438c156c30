//! `paged_prefill.cu`.

use super::decode::scales;
use super::{TARGET, emulate, prove_all, prove_mutants, schedules};
use crate::Target;
use crate::cuda::attention::paged_attention;
use crate::tests::attention::{Layout, Paged};
use crate::tests::{Random, values};
use crate::{PagedAttention, Window};
use cacheplan_emulator::Options;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Tensor};
use float8::F8E4M3;
use rstest::rstest;

/// Prompts, stretches of them and single tokens; padding with and without rows; tokens around a tile of `tile` tokens.
fn sequences(tile: usize) -> [(usize, usize); 9] {
    [(1, 1), (5, 21), (3, 0), (0, 20), (17, 17), (33, 100), (1, 150), (tile, tile), (tile + 2, tile + 67)]
}

/// So few processors that contexts are not split, or so many that they are.
const TARGETS: [Target; 2] = [Target { processors: 1, ..TARGET }, Target { processors: 1000, ..TARGET }];

fn layout(kv_heads: usize, head_dim: usize, block: usize, order: KvLayout, dtype: DType) -> Layout {
    Layout { kv_heads, head_dim, kv_factor: 2, block, order, dtype }
}

fn tolerance(dtype: DType) -> f32 {
    if dtype == DType::F16 { 2e-3 } else { 2e-2 }
}

#[derive(Clone, Copy, Debug)]
enum Extra {
    Plain,
    Sliding,
    Chunked,
    SoftCapAndSinks,
}

/// Single tokens are left to `paged_decode` where the others fill the device; else all is split, and joined.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_prefill(
    #[values((DType::BF16, DType::BF16, 64), (DType::BF16, DType::BF16, 128), (DType::F16, DType::F16, 256), (DType::F16, DType::F16, 64), (DType::F16, DType::F16, 128), (DType::BF16, DType::BF16, 256), (DType::BF16, DType::F8E4M3, 64), (DType::F16, DType::F8E4M3, 128), (DType::BF16, DType::F8E4M3, 256), (DType::F16, DType::U8, 64), (DType::BF16, DType::U8, 128), (DType::F16, DType::U8, 256))]
    (dtype, pool, head_dim): (DType, DType, usize),
    #[values((1, 16, KvLayout::Hnd), (5, 32, KvLayout::Nhd), (16, 64, KvLayout::Hnd))] (group, block, order): (
        usize,
        usize,
        KvLayout,
    ),
    #[values(Extra::Plain, Extra::Sliding, Extra::Chunked, Extra::SoftCapAndSinks)] extra: Extra,
) {
    // A sample: each kernel with one option, each option with one kernel.
    let sampled = match extra {
        Extra::Plain => group == 5,
        _ => (pool, head_dim, group) == (DType::F16, 64, 5),
    };
    if !(prove_all() || sampled) {
        return;
    }
    let kv_heads = 2;
    let heads = kv_heads * group;
    let sinks: Vec<f32> = (0..heads).map(|head| head as f32 / 4.0 - 1.0).collect();
    let mut attention = PagedAttention::new((head_dim as f32).powf(-0.5), head_dim);
    match extra {
        Extra::Plain => {}
        Extra::Sliding => attention.window = Window::Sliding(37),
        Extra::Chunked => attention.window = Window::Chunked(48),
        Extra::SoftCapAndSinks => (attention.softcap, attention.sinks) = (Some(2.0), Some(&sinks[..])),
    }
    let sequences = sequences(if head_dim == 256 { 64 } else { 128 } / group);
    let mut paged = Paged::new(&layout(kv_heads, head_dim, block, order, pool), &sequences);
    let own_scales = paged.own_scales();
    let own = ((pool == DType::U8) == matches!(extra, Extra::Plain)).then_some(&own_scales);
    attention.quant = scales(pool, own, head_dim != 128);
    // What no query sees is gone.
    for (sequence, (queries, context)) in sequences.into_iter().enumerate() {
        let seen = attention.window.first_visible(context.saturating_sub(queries)) / block;
        paged.block_tables[sequence * paged.max_blocks..][..seen].fill(-1);
    }
    for (device, options) in TARGETS.into_iter().zip(schedules()) {
        let run = |q: &Tensor| {
            let batch = paged.batch();
            let launches = paged_attention(q, &paged.pool, &paged.view, &batch, &attention, &device).unwrap();
            let kernels = launches.launches.iter().map(|launch| launch.kernel.split('_').nth(1).unwrap());
            let expected: &[_] = match (device.processors, head_dim) {
                (1, 256) => &["prefill"],
                (1, _) => &["prefill", "decode", "splits"],
                _ => &["prefill", "rows"],
            };
            assert_eq!(kernels.collect::<Vec<_>>(), expected);
            emulate(&launches, &options).outputs.remove(0)
        };
        paged.check_as(run, dtype, heads, &attention, tolerance(dtype));
    }
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_prefill_mutants(
    #[values((DType::BF16, DType::BF16, 64), (DType::F16, DType::F16, 128), (DType::BF16, DType::BF16, 256), (DType::BF16, DType::F8E4M3, 64), (DType::F16, DType::U8, 128), (DType::BF16, DType::F8E4M3, 256))]
    (dtype, pool, head_dim): (DType, DType, usize),
) {
    if !prove_all() && head_dim != 64 {
        return;
    }
    let paged = Paged::new(&layout(1, head_dim, 16, KvLayout::Hnd, pool), &[(40, 150)]);
    let own_scales = paged.own_scales();
    let q = Tensor::ones((40, 4, head_dim), dtype, &candle_core::Device::Cpu).unwrap();
    let quant = scales(pool, Some(&own_scales), false);
    let (attention, batch) = (PagedAttention { quant, ..PagedAttention::new(0.1, head_dim) }, paged.batch());
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &TARGETS[0]).unwrap();
    assert_eq!(launches.launches.len(), 1, "the kernel that writes the output");
    prove_mutants(&launches, &[]);
}

/// Llama's group behind a context long enough that what happens once does not count.
#[rstest]
#[case(DType::BF16, 64, 64, 8.5)]
#[case(DType::BF16, 128, 32, 6.7)]
#[case(DType::BF16, 256, 32, 7.3)]
#[case(DType::F8E4M3, 64, 64, 13.0)]
#[case(DType::F8E4M3, 128, 32, 10.2)]
#[case(DType::F8E4M3, 256, 32, 11.3)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_prefill_traffic(
    #[case] pool: DType,
    #[case] head_dim: usize,
    #[case] tile: usize,
    #[case] instructions_per_product: f64,
) {
    let (queries, context, group) = (if head_dim == 256 { 16 } else { 32 }, 1024, 4);
    let paged = Paged::new(&layout(1, head_dim, 32, KvLayout::Hnd, pool), &[(queries, context)]);
    let q = Tensor::ones((queries, group, head_dim), DType::BF16, &candle_core::Device::Cpu).unwrap();
    let quant = scales(pool, None, false);
    let (attention, batch) = (PagedAttention { quant, ..PagedAttention::new(0.1, head_dim) }, paged.batch());
    let device = Target { processors: 0, ..TARGET };
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &device).unwrap();
    let stats = emulate(&launches, &Options::default()).runs.remove(0).stats;
    assert!(stats.sector_ratio() <= 1.02, "{} of {} sectors", stats.sectors, stats.ideal_sectors);
    let floor = 2 * head_dim * (pool.size_in_bytes() * context + 2 * queries * group);
    assert!(stats.moved_bytes() as f64 <= 1.05 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
    // A product is 16 by 8 by 16; keys and values take as many.
    let products = 2 * (queries * group / 16) * (context / 8) * (head_dim / 16);
    let found = stats.warp_instructions as f64 / products as f64;
    assert!(found <= instructions_per_product, "{found:.2} instructions of a warp for each product: {stats:?}");
    assert!(stats.shared_passes as f64 <= 1.1 * stats.shared_requests as f64, "{stats:?}");
    // Each of four warps has its part of a tile of keys and values under way.
    assert!(
        stats.bytes_in_flight as usize >= tile * head_dim * pool.size_in_bytes() / 2,
        "{} in flight",
        stats.bytes_in_flight
    );
}

/// A byte that is no number is not taken for one: what sees it is none, and what stands before it is as it was.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_prefill_keeps_what_is_no_number(#[values(0, 1)] kv: usize, #[values(1, 200)] processors: usize) {
    let paged = Paged::new(&layout(2, 64, 16, KvLayout::Hnd, DType::F8E4M3), &[(40, 40)]);
    let view = &paged.view;
    // In place of a number of token 33, of the second head.
    let at = paged.block_tables[2] as usize * view.block_elems + view.row_offset(kv, 1, 1) + 13;
    let mut stored: Vec<F8E4M3> = paged.pool.flatten_all().unwrap().to_vec1().unwrap();
    stored[at] = F8E4M3::NAN;
    let pool = Tensor::from_vec(stored, paged.pool.dims(), &candle_core::Device::Cpu).unwrap();
    let q = Random::new(3).tensor(&[40, 4, 64]).to_dtype(DType::BF16).unwrap();
    let quant = scales(DType::F8E4M3, None, false);
    let (attention, batch) = (PagedAttention { quant, ..PagedAttention::new(0.3, 64) }, paged.batch());
    let device = Target { processors, ..TARGET };
    let run = |pool: &Tensor| {
        let launches = paged_attention(&q, pool, view, &batch, &attention, &device).unwrap();
        values(&emulate(&launches, &Options::default()).outputs[0])
    };
    for (row, (found, plain)) in run(&pool).chunks_exact(64).zip(run(&paged.pool).chunks_exact(64)).enumerate() {
        let (token, head) = (row / 4, row % 4);
        if head < 2 || (kv == 0 && token < 33) {
            assert_eq!(found, plain, "token {token}, head {head}");
        }
        if head >= 2 && token >= 33 {
            let (first, beyond) = if kv == 0 { (0, 64) } else { (13, 14) };
            assert!(found[first..beyond].iter().all(|x| x.is_nan()), "token {token}, head {head}");
        }
    }
}
