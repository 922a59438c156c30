//! `paged_attend.cu`.

use super::{TARGET, assert_traffic, emulate, execute, kernels, prove_all, prove_mutants, schedules};
use crate::cuda::attention::paged_attention;
use crate::tests::attention::{Layout, Paged};
use crate::tests::{Random, assert_close, on_cpu, values};
use crate::{KvLayerView, KvQuant, KvScales, KvWrite, PagedAttention, PagedBatch, Target, Window};
use cacheplan_emulator::Options;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device as Place, Tensor};
use rstest::rstest;

/// Several query tokens, padding with and without rows, and contexts around what a block takes at once.
const SEQUENCES: [(usize, usize); 7] = [(1, 1), (5, 21), (3, 0), (0, 20), (20, 20), (1, 150), (2, 70)];

/// So few processors that contexts are not split, or so many that they are.
const TARGETS: [Target; 2] = [Target { processors: 1, ..TARGET }, Target { processors: 132, ..TARGET }];

const SINKS: [f32; 10] = [0.5, -2.0, 4.0, 0.0, 1.0, -9.0, 8.0, 0.1, 0.2, 0.3];
const SLOPES: [f32; 10] = [1.0, 0.5, 0.25, 0.125, 0.06, 0.03, 0.02, 0.01, 0.9, 0.8];

fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 2e-2,
    }
}

fn prove(layout: &Layout, heads: usize, attention: &PagedAttention<'_>) {
    let mut paged = Paged::new(layout, &SEQUENCES);
    // What no query sees is gone.
    for (sequence, (queries, context)) in SEQUENCES.into_iter().enumerate() {
        let seen = attention.window.first_visible(context.saturating_sub(queries)) / layout.block;
        paged.block_tables[sequence * paged.max_blocks..][..seen].fill(-1);
    }
    for (device, options) in TARGETS.into_iter().zip(schedules()) {
        let run = |q: &Tensor| {
            let batch = paged.batch();
            let launches = paged_attention(q, &paged.pool, &paged.view, &batch, attention, &device).unwrap();
            assert!(launches.launches[0].kernel.starts_with("paged_attend"), "another kernel was made for it");
            assert_eq!(launches.launches.len() > 1, device.processors > 1, "splits follow the device");
            emulate(&launches, &options).outputs.remove(0)
        };
        paged.check_as(run, layout.dtype, heads, attention, tolerance(layout.dtype));
    }
}

/// Every width that the kernel was made for, and some that fill part of one.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_attend_widths(
    #[values((DType::F32, 16), (DType::F32, 24), (DType::F32, 64), (DType::F32, 80), (DType::F32, 256), (DType::BF16, 32), (DType::BF16, 64), (DType::BF16, 96), (DType::BF16, 256), (DType::BF16, 512), (DType::F16, 16), (DType::F16, 40), (DType::F16, 128), (DType::F16, 192), (DType::F16, 320))]
    (dtype, head_dim): (DType, usize),
    #[values((1, 8, KvLayout::Hnd), (5, 5, KvLayout::Nhd))] (group, block, order): (usize, usize, KvLayout),
) {
    let layout = Layout { kv_heads: 2, head_dim, kv_factor: 2, block, order, dtype };
    prove(&layout, 2 * group, &PagedAttention::new((head_dim as f32).powf(-0.5), head_dim));
}

#[rstest]
#[case::sliding(|a: &mut PagedAttention<'_>| a.window = Window::Sliding(9))]
#[case::chunked(|a: &mut PagedAttention<'_>| a.window = Window::Chunked(12))]
#[case::softcap(|a: &mut PagedAttention<'_>| a.softcap = Some(0.3))]
#[case::sinks(|a: &mut PagedAttention<'_>| a.sinks = Some(&SINKS))]
#[case::alibi(|a: &mut PagedAttention<'_>| a.alibi_slopes = Some(&SLOPES))]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_attend_options(#[case] change: fn(&mut PagedAttention<'_>), #[values(DType::F32, DType::BF16)] dtype: DType) {
    let layout = Layout { kv_heads: 2, head_dim: 32, kv_factor: 2, block: 8, order: KvLayout::Hnd, dtype };
    let mut attention = PagedAttention::new(0.2, 32);
    change(&mut attention);
    prove(&layout, 10, &attention);
}

/// Latents whose first elements are the values.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_attend_latents(
    #[values(DType::F32, DType::BF16, DType::F16)] dtype: DType,
    #[values((48, 32), (576, 496))] (head_dim, value_dim): (usize, usize),
) {
    let layout = Layout { kv_heads: 1, head_dim, kv_factor: 1, block: 16, order: KvLayout::Hnd, dtype };
    prove(&layout, 5, &PagedAttention { value_dim, ..PagedAttention::new(0.1, head_dim) });
}

/// Bytes behind every sort of scale, against the CPU's op over the same pool.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_attend_bytes(
    #[values(DType::F8E4M3, DType::U8)] stored: DType,
    #[values((DType::F32, 64), (DType::F32, 128), (DType::F32, 256), (DType::F32, 512), (DType::F32, 576), (DType::BF16, 64), (DType::BF16, 128), (DType::BF16, 256), (DType::BF16, 512), (DType::BF16, 576), (DType::F16, 48), (DType::F16, 112), (DType::F16, 256), (DType::F16, 512), (DType::F16, 640))]
    (dtype, head_dim): (DType, usize),
    #[values(0, 1, 2)] scales: usize,
    #[values(1, 2)] kv_factor: usize,
) {
    if !prove_all() && stored == DType::U8 && (scales, kv_factor) != (head_dim / 16 % 3, 2) {
        return;
    }
    let (heads, block, tokens) = (2, 8, 40);
    let view = KvLayerView {
        block_elems: kv_factor * heads * block * head_dim + 2 * head_dim,
        layer_offset: head_dim,
        kv_factor,
        num_kv_heads: heads,
        head_dim,
        tokens_per_block: block,
        order: KvLayout::Hnd,
    };
    let mut random = Random::new(61);
    let pool = Tensor::zeros((7, view.block_elems), stored, &Place::Cpu).unwrap();
    let own = Tensor::zeros((7, view.layer_rows()), DType::F32, &Place::Cpu).unwrap();
    let (k_scales, v_scales) = ([0.01, 0.003], [0.005, 0.02]);
    let quant = match scales {
        0 => KvScales { k: 0.01, v: 0.004 }.into(),
        1 => KvQuant::PerHead { k: &k_scales, v: &v_scales },
        _ => KvQuant::PerToken(&own),
    };
    let slots: Vec<i64> = (0..tokens).map(|token| token + block as i64).collect();
    let [k, v] = [(); 2].map(|()| random.tensor(&[tokens as usize, heads, head_dim]));
    let v = (kv_factor == 2).then_some(v);
    KvWrite { k: &k, v: v.as_ref(), slot_mapping: (&slots).into(), quant: Some(quant) }
        .run(&on_cpu(), &pool, &view)
        .unwrap();
    let batch = PagedBatch::new(&[0, 2, 3], &[40, 17], &[1, 2, 3, 4, 5, 4, 1, 2, -1, -1], 5);
    let q = random.tensor(&[3, 6, head_dim]).to_dtype(dtype).unwrap();
    // Latents of 512 and 64 among them, for which the kernels of 16 bits are made.
    let value_dim = match (kv_factor, head_dim) {
        (1, 576) => 512,
        (1, _) => head_dim - 16,
        _ => head_dim,
    };
    let attention = PagedAttention { quant: Some(quant), ..PagedAttention::new(0.3, value_dim) };
    let expected = attention.run(&on_cpu(), &q, &pool, &view, &batch).unwrap();
    for (device, options) in TARGETS.into_iter().zip(schedules()) {
        let launches = paged_attention(&q, &pool, &view, &batch, &attention, &device).unwrap();
        assert!(launches.launches[0].kernel.starts_with("paged_attend"), "another kernel was made for it");
        let found = emulate(&launches, &options).outputs.remove(0);
        assert_close(&values(&found), &values(&expected), tolerance(dtype));
    }
}

#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_attend_mutants(#[values(DType::BF16, DType::F32)] dtype: DType) {
    if !prove_all() && dtype != DType::F32 {
        return;
    }
    let layout = Layout { kv_heads: 1, head_dim: 32, kv_factor: 2, block: 8, order: KvLayout::Hnd, dtype };
    let paged = Paged::new(&layout, &[(2, 60)]);
    let q = Tensor::ones((2, 4, 32), dtype, &Place::Cpu).unwrap();
    let attention = PagedAttention::new(0.1, 32);
    let batch = paged.batch();
    prove_mutants(&paged_attention(&q, &paged.pool, &paged.view, &batch, &attention, &TARGETS[1]).unwrap(), &[]);
}

/// A long context of each format: all of it is read once.
#[rstest]
#[case::f32(DType::F32, DType::F32, 128, 1, 130.0)]
#[case::f32_of_four(DType::F32, DType::F32, 128, 4, 265.0)]
#[case::bf16(DType::BF16, DType::BF16, 256, 1, 250.0)]
#[case::f8(DType::BF16, DType::F8E4M3, 128, 1, 500.0)]
#[case::i8(DType::BF16, DType::U8, 128, 1, 500.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn paged_attend_traffic(
    #[case] query: DType,
    #[case] dtype: DType,
    #[case] head_dim: usize,
    #[case] group: usize,
    #[case] warp_instructions_per_kib: f64,
) {
    let context = 1024;
    let view = KvLayerView {
        block_elems: 2 * 8 * head_dim,
        layer_offset: 0,
        kv_factor: 2,
        num_kv_heads: 1,
        head_dim,
        tokens_per_block: 8,
        order: KvLayout::Hnd,
    };
    let pool = Random::new(1).tensor(&[128, view.block_elems]).to_dtype(dtype).unwrap();
    let q = Tensor::ones((1, group, head_dim), query, &Place::Cpu).unwrap();
    let quant = (dtype.size_in_bytes() == 1).then_some(KvScales { k: 0.1, v: 0.1 }.into());
    let attention = PagedAttention { quant, ..PagedAttention::new(0.1, head_dim) };
    let tables: Vec<i32> = (0..128).collect();
    let batch = PagedBatch::new(&[0, 1], &[1024], &tables, 128);
    let launches = paged_attention(&q, &pool, &view, &batch, &attention, &TARGETS[0]).unwrap();
    let mut emulated = execute(&launches, &Options::default(), |kernel| kernels()[kernel].clone());
    emulated.runs.truncate(1);
    assert_traffic(&emulated, warp_instructions_per_kib);
    let stats = &emulated.runs[0].stats;
    let floor = context * 2 * head_dim * dtype.size_in_bytes();
    assert!(stats.moved_bytes() as f64 <= 1.05 * floor as f64, "{} of {floor} bytes", stats.moved_bytes());
}
