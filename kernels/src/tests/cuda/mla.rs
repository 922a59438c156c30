//! `mla_decode.cu`.

use super::{assert_traffic, emulate, prove_mutants, schedules};
use crate::cuda::attention::paged_attention;
use crate::tests::attention::{Layout, Paged};
use crate::{Device, PagedAttention};
use cacheplan_emulator::Options;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Tensor};
use rstest::rstest;

/// Padding with and without rows, one token, and contexts around tiles, blocks and splits.
const SEQUENCES: [(usize, usize); 7] = [(1, 1), (3, 0), (1, 31), (0, 20), (1, 32), (1, 33), (1, 130)];

/// So few processors that contexts are not split, or so many that they are.
const DEVICES: [Device; 2] = [Device { processors: 1 }, Device { processors: 132 }];

fn latents(block: usize, dtype: DType) -> Layout {
    Layout { kv_heads: 1, head_dim: 576, kv_factor: 1, block, order: KvLayout::Hnd, dtype }
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_decode(
    #[values(DType::BF16, DType::F16)] dtype: DType,
    #[values((5, 8), (16, 64), (20, 1))] (heads, block): (usize, usize),
    #[values(false, true)] with_sinks: bool,
) {
    let sinks: Vec<f32> = (0..heads).map(|head| head as f32 / 4.0 - 1.0).collect();
    let mut attention = PagedAttention::new(0.05, 512);
    attention.sinks = with_sinks.then_some(&sinks);
    let paged = Paged::new(&latents(block, dtype), &SEQUENCES);
    let tolerance = if dtype == DType::F16 { 2e-3 } else { 2e-2 };
    for (device, options) in DEVICES.into_iter().zip(schedules()) {
        let run = |q: &Tensor| {
            let batch = paged.batch();
            let launches = paged_attention(q, &paged.pool, &paged.view, &batch, &attention, &device).unwrap();
            assert!(launches.launches[0].kernel.starts_with("mla_decode"), "another kernel was made for it");
            assert_eq!(launches.launches[0].grid[2] > 1, device.processors > 1, "splits follow the device");
            emulate(&launches, &options).outputs.remove(0)
        };
        paged.check_as(run, dtype, heads, &attention, tolerance);
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_decode_mutants() {
    let paged = Paged::new(&latents(16, DType::BF16), &[(1, 100)]);
    let q = Tensor::ones((1, 16, 576), DType::BF16, &candle_core::Device::Cpu).unwrap();
    let (attention, batch) = (PagedAttention::new(0.05, 512), paged.batch());
    prove_mutants(&paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &DEVICES[0]).unwrap(), &[]);
}

/// Sixteen heads at a context long enough that what happens once does not count.
#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_decode_traffic() {
    let context = 512;
    let paged = Paged::new(&latents(32, DType::BF16), &[(1, context)]);
    let q = Tensor::ones((1, 16, 576), DType::BF16, &candle_core::Device::Cpu).unwrap();
    let (attention, batch) = (PagedAttention::new(0.05, 512), paged.batch());
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &DEVICES[0]).unwrap();
    let mut emulated = emulate(&launches, &Options::default());
    emulated.runs.truncate(1);
    assert_traffic(&emulated, 135.0);
    let stats = &emulated.runs[0].stats;
    // The latents, and for each stretch the queries and the f32 that is left to the join.
    let splits = launches.launches[0].grid[2] as usize;
    let floor = context * 576 * 2 + splits * (16 * 576 * 2 + 16 * 512 * 4);
    assert!(stats.moved_bytes() as f64 <= 1.05 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
    assert!(stats.shared_passes as f64 <= 1.1 * stats.shared_requests as f64, "{stats:?}");
}
