//! `paged_decode.cu`.

use super::{DEVICE, assert_traffic, emulate, prove_all, prove_mutants, schedules};
use crate::cuda::Device;
use crate::cuda::attention::paged_attention;
use crate::tests::attention::{Layout, Paged};
use crate::{PagedAttention, Window};
use cacheplan_emulator::Options;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Tensor};
use rstest::rstest;

/// Padding with and without rows, one token, and contexts around tiles, blocks, warps and splits.
const SEQUENCES: [(usize, usize); 8] = [(1, 1), (1, 16), (3, 0), (1, 17), (0, 20), (1, 130), (1, 300), (0, 0)];

fn layout(kv_heads: usize, head_dim: usize, block: usize, order: KvLayout, dtype: DType) -> Layout {
    Layout { kv_heads, head_dim, kv_factor: 2, block, order, dtype }
}

/// So few processors that contexts are not split, or so many that they are.
const DEVICES: [Device; 2] = [Device { processors: 1, ..DEVICE }, Device { processors: 132, ..DEVICE }];

#[derive(Clone, Copy, Debug)]
enum Extra {
    Plain,
    Sliding,
    Chunked,
    Sinks,
    SoftCap,
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_decode(
    #[values(DType::BF16, DType::F16)] dtype: DType,
    #[values(64, 128)] head_dim: usize,
    #[values((1, 16, KvLayout::Hnd), (4, 32, KvLayout::Nhd), (16, 64, KvLayout::Hnd))] (group, block, order): (
        usize,
        usize,
        KvLayout,
    ),
    #[values(Extra::Plain, Extra::Sliding, Extra::Chunked, Extra::Sinks, Extra::SoftCap)] extra: Extra,
) {
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
    let mut paged = Paged::new(&layout(kv_heads, head_dim, block, order, dtype), &SEQUENCES);
    // What no query sees is gone.
    for (sequence, (_, context)) in SEQUENCES.into_iter().enumerate() {
        let seen = attention.window.first_visible(context.saturating_sub(1)) / block;
        paged.block_tables[sequence * paged.max_blocks..][..seen].fill(-1);
    }
    let tolerance = if dtype == DType::F16 { 2e-3 } else { 2e-2 };
    for (device, options) in DEVICES.into_iter().zip(schedules()) {
        let run = |q: &Tensor| {
            let batch = paged.batch();
            let launches = paged_attention(q, &paged.pool, &paged.view, &batch, &attention, &device).unwrap();
            assert_eq!(launches.launches[0].grid[2] > 1, device.processors > 1, "splits follow the device");
            emulate(&launches, &options).outputs.remove(0)
        };
        paged.check_as(run, dtype, heads, &attention, tolerance);
    }
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_decode_mutants(#[values(DType::BF16, DType::F16)] dtype: DType, #[values(64, 128)] head_dim: usize) {
    if !prove_all() && (dtype, head_dim) != (DType::BF16, 64) {
        return;
    }
    let paged = Paged::new(&layout(1, head_dim, 16, KvLayout::Hnd, dtype), &[(1, 300)]);
    let q = Tensor::ones((1, 4, head_dim), dtype, &candle_core::Device::Cpu).unwrap();
    let attention = PagedAttention::new(0.1, head_dim);
    let batch = paged.batch();
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &DEVICES[0]).unwrap();
    prove_mutants(&launches, &[]);
}

/// Llama's group at a context long enough that what happens once does not count.
#[rstest]
#[case(128, 110.0)]
#[case(64, 150.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_decode_traffic(#[case] head_dim: usize, #[case] warp_instructions_per_kib: f64) {
    let context = 1024;
    let paged = Paged::new(&layout(1, head_dim, 32, KvLayout::Hnd, DType::BF16), &[(1, context)]);
    let q = Tensor::ones((1, 4, head_dim), DType::BF16, &candle_core::Device::Cpu).unwrap();
    let attention = PagedAttention::new(0.1, head_dim);
    let batch = paged.batch();
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &DEVICES[0]).unwrap();
    let mut emulated = emulate(&launches, &Options::default());
    emulated.runs.truncate(1);
    assert_traffic(&emulated, warp_instructions_per_kib);
    let stats = &emulated.runs[0].stats;
    let floor = context * 2 * head_dim * 2;
    assert!(stats.moved_bytes() as f64 <= 1.05 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
    // Two tiles of keys and values beside the one that is computed on.
    assert!(stats.bytes_in_flight as usize >= 2 * 2 * 16 * head_dim * 2, "{} in flight", stats.bytes_in_flight);
    assert!(stats.shared_passes as f64 <= 1.1 * stats.shared_requests as f64, "{stats:?}");
}
