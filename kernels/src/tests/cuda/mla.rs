//! `mla_decode.cu`, `mla_prefill.cu` and `mla_preprocess.cu`.

use super::{Emulated, TARGET, assert_traffic, emulate, prove_all, prove_mutants, schedules};
use crate::cuda::attention::paged_attention;
use crate::cuda::mla::preprocess;
use crate::tests::attention::{Layout, Paged};
use crate::tests::mla::{Cache, Queries, SHAPE, SLOTS, Setup};
use crate::{MlaCacheMode, MlaQuantMode, MlaShape, PagedAttention, Target};
use cacheplan_emulator::Options;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Tensor};
use rstest::rstest;

/// Padding with and without rows, one token, and contexts around tiles, blocks and splits.
const SEQUENCES: [(usize, usize); 7] = [(1, 1), (3, 0), (1, 31), (0, 20), (1, 32), (1, 33), (1, 130)];

/// As sm_89.
const SMALL: Target = Target { shared_bytes: 99 << 10, ..TARGET };

/// So few processors that contexts are not split, or so many that they are.
const TARGETS: [Target; 2] = [Target { processors: 1, ..TARGET }, Target { processors: 132, ..TARGET }];

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
    for (device, options) in TARGETS.into_iter().zip(schedules()) {
        let run = |q: &Tensor| {
            let batch = paged.batch();
            let launches = paged_attention(q, &paged.pool, &paged.view, &batch, &attention, &device).unwrap();
            assert!(launches.launches[0].kernel.starts_with("mla_decode"), "another kernel was made for it");
            assert!(launches.fit(&SMALL));
            assert_eq!(launches.launches[0].grid[2] > 1, device.processors > 1, "splits follow the device");
            emulate(&launches, &options).outputs.remove(0)
        };
        paged.check_as(run, dtype, heads, &attention, tolerance);
    }
}

/// Prompts, stretches of them and single tokens; padding with and without rows; rows and tokens around tiles.
const PROMPTS: [(usize, usize); 8] = [(1, 1), (5, 21), (3, 0), (0, 20), (17, 17), (1, 70), (8, 64), (13, 97)];

/// Single tokens are left to `mla_decode` where the others fill the device; else all is split, and joined.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_prefill(
    #[values(DType::BF16, DType::F16)] dtype: DType,
    #[values((5, 8, false), (16, 64, true), (72, 1, false))] (heads, block, with_sinks): (usize, usize, bool),
) {
    if !prove_all() && heads != 5 {
        return;
    }
    let sinks: Vec<f32> = (0..heads).map(|head| head as f32 / 4.0 - 1.0).collect();
    let mut attention = PagedAttention::new(0.05, 512);
    attention.sinks = with_sinks.then_some(&sinks);
    let paged = Paged::new(&latents(block, dtype), &PROMPTS);
    let tolerance = if dtype == DType::F16 { 2e-3 } else { 2e-2 };
    for (processors, options) in [1, 1000].into_iter().zip(schedules()) {
        let run = |q: &Tensor| {
            let batch = paged.batch();
            let device = Target { processors, ..TARGET };
            let launches = paged_attention(q, &paged.pool, &paged.view, &batch, &attention, &device).unwrap();
            assert!(!launches.fit(&SMALL), "a device with less shared memory leaves it to the portable path");
            let kernels = launches.launches.iter().map(|launch| launch.kernel.split('_').nth(1).unwrap());
            let expected: &[_] = if processors == 1 { &["prefill", "decode", "splits"] } else { &["prefill", "rows"] };
            assert_eq!(kernels.collect::<Vec<_>>(), expected);
            emulate(&launches, &options).outputs.remove(0)
        };
        paged.check_as(run, dtype, heads, &attention, tolerance);
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_prefill_mutants() {
    let paged = Paged::new(&latents(16, DType::BF16), &[(7, 100)]);
    let q = Tensor::ones((7, 16, 576), DType::BF16, &candle_core::Device::Cpu).unwrap();
    let (attention, batch) = (PagedAttention::new(0.05, 512), paged.batch());
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &TARGETS[0]).unwrap();
    assert_eq!(launches.launches.len(), 1, "the kernel that writes the output");
    prove_mutants(&launches, &[]);
}

/// A tile of query rows behind a context long enough that what happens once does not count.
#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_prefill_traffic() {
    let (queries, heads, context) = (4, 16, 512);
    let paged = Paged::new(&latents(32, DType::BF16), &[(queries, context)]);
    let q = Tensor::ones((queries, heads, 576), DType::BF16, &candle_core::Device::Cpu).unwrap();
    let (attention, batch) = (PagedAttention::new(0.05, 512), paged.batch());
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &TARGETS[0]).unwrap();
    let stats = emulate(&launches, &Options::default()).runs.remove(0).stats;
    assert!(stats.sector_ratio() <= 1.02, "{} of {} sectors", stats.sectors, stats.ideal_sectors);
    let floor = 2 * (context * 576 + queries * heads * (576 + 512));
    assert!(stats.moved_bytes() as f64 <= 1.05 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
    // A product is 16 by 8 by 16.
    let products = (queries * heads / 16) * (context / 8) * (576 + 512) / 16;
    let found = stats.warp_instructions as f64 / products as f64;
    assert!(found <= 6.0, "{found:.2} instructions of a warp for each product: {stats:?}");
    assert!(stats.shared_passes as f64 <= 1.1 * stats.shared_requests as f64, "{stats:?}");
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_decode_mutants() {
    let paged = Paged::new(&latents(16, DType::BF16), &[(1, 100)]);
    let q = Tensor::ones((1, 16, 576), DType::BF16, &candle_core::Device::Cpu).unwrap();
    let (attention, batch) = (PagedAttention::new(0.05, 512), paged.batch());
    prove_mutants(&paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &TARGETS[0]).unwrap(), &[]);
}

/// Sixteen heads at a context long enough that what happens once does not count.
#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_decode_traffic() {
    let context = 512;
    let paged = Paged::new(&latents(32, DType::BF16), &[(1, context)]);
    let q = Tensor::ones((1, 16, 576), DType::BF16, &candle_core::Device::Cpu).unwrap();
    let (attention, batch) = (PagedAttention::new(0.05, 512), paged.batch());
    let launches = paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &TARGETS[0]).unwrap();
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

const QUANT_MODES: [MlaQuantMode; 3] =
    [MlaQuantMode::PerTensorAsymmetric, MlaQuantMode::PerTokenSymmetric, MlaQuantMode::Unquantised];

fn preprocessed(setup: &Setup, options: &Options) -> (Queries, Vec<Cache>, Emulated) {
    let caches = setup.caches();
    let mut emulated = emulate(&preprocess(&setup.mla, &setup.step(&caches, &SLOTS), &TARGET).unwrap(), options);
    let queries = (emulated.outputs.remove(0), emulated.outputs.pop());
    (queries, caches, emulated)
}

/// Rows of part of a block of tokens, of a row that is written nowhere; heads of part of a block of threads and of more.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_preprocess(
    #[values(0, 1, 2, 3)] cache_mode: u8,
    #[values(0, 1, 2)] quant_mode: usize,
    #[values(
        SHAPE,
        MlaShape { q_lora: None, ..SHAPE },
        MlaShape { hidden: 1040, nope: 48, heads: 2, q_lora: Some(560), kv_lora: 576, ..SHAPE }
    )]
    shape: MlaShape,
) {
    let cache_mode = MlaCacheMode::try_from(cache_mode).unwrap();
    if cache_mode == MlaCacheMode::Int8Nz && quant_mode == 2 {
        return;
    }
    let setup = Setup::new(shape, cache_mode, QUANT_MODES[quant_mode], DType::BF16, false);
    for options in schedules() {
        let (queries, caches, _) = preprocessed(&setup, &options);
        setup.assert_as_reference(&queries, &caches);
    }
}

#[test]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_preprocess_mutants() {
    let setup = Setup::new(SHAPE, MlaCacheMode::Nz, MlaQuantMode::PerTokenSymmetric, DType::BF16, false);
    let caches = setup.caches();
    prove_mutants(&preprocess(&setup.mla, &setup.step(&caches, &SLOTS), &TARGET).unwrap(), &[]);
}

/// Weights are most of what moves; a layer of DeepSeek-V3's widths with two of its heads.
#[rstest]
#[case(1, 120.0)]
#[case(2, 120.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn mla_preprocess_traffic(#[case] quant_mode: usize, #[case] warp_instructions_per_kib: f64) {
    let shape = MlaShape { hidden: 2048, heads: 2, q_lora: Some(1536), kv_lora: 512, nope: 128, rope: 64 };
    let setup = Setup::new(shape, MlaCacheMode::KvCache, QUANT_MODES[quant_mode], DType::BF16, false);
    let (_, _, emulated) = preprocessed(&setup, &Options::default());
    for at in [1, 3] {
        let stats = &emulated.runs[at].stats;
        assert!(stats.sector_ratio() <= 1.02, "{} of {} sectors", stats.sectors, stats.ideal_sectors);
        let found = stats.warp_instructions_per_kib();
        assert!(found <= warp_instructions_per_kib, "{found:.1} warp instructions per KiB: {stats:?}");
    }
}

#[test]
fn mla_preprocessing_that_no_kernel_was_made_for_is_left_to_others() {
    let left = |dtype, nz, slots: &[i64]| {
        let setup = Setup::new(SHAPE, MlaCacheMode::KvCache, MlaQuantMode::PerTokenSymmetric, dtype, nz);
        let caches = setup.caches();
        preprocess(&setup.mla, &setup.step(&caches, slots), &TARGET).is_none()
    };
    assert!(!left(DType::BF16, false, &SLOTS) && left(DType::F16, false, &SLOTS) && left(DType::BF16, true, &SLOTS));
    assert!(left(DType::BF16, false, &[3, 1, -1, 2, 3]));
}
