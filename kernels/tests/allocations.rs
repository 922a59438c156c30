//! A decode step allocates nothing but what candle needs for an output tensor and for reaching a pool in place, once the
//! first steps have grown the kept buffers.

use cacheplan_handlers::KvLayout;
use cacheplan_kernels::*;
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Tensor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of one of many calls on all threads, in the round with the fewest: in the others some thread may have run
/// a part of the op for the first time and grown its buffers.
fn allocations<R>(mut call: impl FnMut() -> R) -> f64 {
    const CALLS: usize = 10;
    let mut round = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..CALLS).for_each(|_| drop(call()));
        (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64 / CALLS as f64
    };
    (0..10).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Begins a step on the CPU.
fn on_cpu() -> Run<'static> {
    Backend::Cpu.run()
}

const BATCH: usize = 8;

fn tensor(shape: &[usize]) -> Tensor {
    let data = (0..shape.iter().product()).map(|i: usize| (i % 17) as f32 / 17.0 - 0.6).collect::<Vec<_>>();
    Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
}

/// What candle allocates for a tensor.
fn of_a_tensor() -> f64 {
    allocations(|| Tensor::from_vec(vec![1f32; BATCH * 64], (BATCH, 64), &Device::Cpu).unwrap())
}

/// What candle allocates for an op in place, which does nothing here.
fn of_a_pool() -> f64 {
    struct Nothing;
    impl InplaceOp1 for Nothing {
        fn name(&self) -> &'static str {
            "nothing"
        }
        fn cpu_fwd(&self, _: &mut CpuStorage, _: &candle_core::Layout) -> candle_core::Result<()> {
            Ok(())
        }
    }
    let pool = tensor(&[BATCH, 64]);
    allocations(|| pool.inplace_op1(&Nothing).unwrap())
}

fn steps() {
    let offsets: Vec<u32> = (0..=BATCH as u32).collect();
    let slots: Vec<i32> = (1..=BATCH as i32).collect();
    let batch = StateBatch::new(&offsets, &slots);
    let (of_a_tensor, of_a_pool) = (of_a_tensor(), of_a_pool());
    let assert_of_a_state = |op: &str, found: f64| assert_eq!(found, of_a_tensor + of_a_pool, "{op}");

    for dtype in [DType::F32, DType::BF16] {
        let pool = |elems: usize| Tensor::zeros((BATCH + 1, elems), dtype, &Device::Cpu).unwrap();
        let (x, weight) = (tensor(&[BATCH, 96]), tensor(&[4, 96]));
        let (conv_pool, view) = (pool(3 * 96), StateLayerView::conv(3 * 96, 0, 4, 96));
        let conv = || {
            CausalConv1d { weight: &weight, bias: None, silu: true }
                .run(&on_cpu(), &x, &conv_pool, &view, &batch)
                .unwrap()
        };
        assert_of_a_state("conv", allocations(conv));

        let view = StateLayerView::matrix(4 * 16 * 32, 0, [4, 16, 32]);
        let state = pool(4 * 16 * 32);
        let [x, z, dt, b, c] = [64, 64, 4, 32, 32].map(|width| tensor(&[BATCH, width]));
        let (a, d) = (tensor(&[4]), tensor(&[4]));
        let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
        let layer = Mamba2Scan { a: &a, d: Some(&d), time_step: TimeStep::new(Some(&d)) };
        assert_of_a_state("mamba2", allocations(|| layer.run(&on_cpu(), &input, &state, &view, &batch).unwrap()));

        let mamba1_view = StateLayerView::matrix(64 * 32, 0, [64, 1, 32]);
        let (dt, a, d) = (tensor(&[BATCH, 64]), tensor(&[64, 32]), tensor(&[64]));
        let input = ScanInput { dt: &dt, ..input };
        let layer = Mamba1Scan { a: &a, d: Some(&d), time_step: TimeStep::new(Some(&d)) };
        let call = || layer.run(&on_cpu(), &input, &state, &mamba1_view, &batch).unwrap();
        assert_of_a_state("mamba1", allocations(call));

        let [q, k, v, by_channel] = [64, 64, 128, 64].map(|width| tensor(&[BATCH, width]));
        let beta = tensor(&[BATCH, 4]);
        let view = StateLayerView::matrix(4 * 16 * 32, 0, [4, 16, 32]);
        for decay in [StateDecay::PerHead(&beta), StateDecay::PerChannel(&by_channel), StateDecay::Fixed(&[-0.1; 4])] {
            let input =
                LinearAttentionScan { q: &q, k: &k, v: &v, decay, beta: Some(&beta), scale: 0.3, l2_norm: true };
            let call = || input.run(&on_cpu(), &state, &view, &batch).unwrap();
            assert_of_a_state("linear attention", allocations(call));
        }

        let view = StateLayerView::matrix(64, 0, [64, 1, 1]);
        let (unit, positions) = (pool(64), vec![5; BATCH]);
        let input =
            RgLruScan { x: &x, input_gate: &z, recurrence_gate: &dt, a_param: &d, positions: (&positions).into() };
        assert_of_a_state("rg_lru", allocations(|| input.run(&on_cpu(), &unit, &view, &batch).unwrap()));

        let norm =
            || RmsNorm { weight: &d, eps: 1e-5 }.run_gated(&on_cpu(), &x, &z, 32, GateOrder::GateThenNorm).unwrap();
        assert_eq!(allocations(norm), of_a_tensor, "norm");
        assert_eq!(allocations(|| PoolRows(&unit).copy(&on_cpu(), &[(1, 2), (3, 4)]).unwrap()), of_a_pool, "copy");
        assert_eq!(allocations(|| PoolRows(&unit).zero(&on_cpu(), &[5]).unwrap()), of_a_pool, "zero");
    }

    let (x, weight) = (tensor(&[BATCH, 96]), tensor(&[300, 96]));
    assert_eq!(allocations(|| linear(&on_cpu(), &x, &weight).unwrap()), of_a_tensor, "linear");
    paged(&offsets, of_a_tensor, of_a_pool);
}

fn paged(offsets: &[u32], of_a_tensor: f64, of_a_pool: f64) {
    const CONTEXT: usize = 600;
    let rope = Rope::new(1e4, 32, &RopeScaling::None).unwrap();
    for (dtype, quant, row) in [
        (DType::F32, None, 32),
        (DType::BF16, None, 32),
        (DType::F8E4M3, Some(KvScales { k: 0.1, v: 0.1 }.into()), 32),
        (DType::U8, Some(KvQuant::Grouped(GroupFormat::Q4_0)), 18),
    ] {
        let view = KvLayerView {
            block_elems: 2 * 2 * 16 * row,
            layer_offset: 0,
            kv_factor: 2,
            num_kv_heads: 2,
            head_dim: row,
            tokens_per_block: 16,
            order: KvLayout::Hnd,
        };
        let blocks = CONTEXT.div_ceil(16);
        let pool = Tensor::zeros((blocks, view.block_elems), dtype, &Device::Cpu).unwrap();
        let tables: Vec<i32> = (0..BATCH).flat_map(|_| 0..blocks as i32).collect();
        let kv_lens = [CONTEXT as u32; BATCH];
        let batch = PagedBatch::new(offsets, &kv_lens, &tables, blocks);
        let (k, v) = (tensor(&[BATCH, 2, 32]), tensor(&[BATCH, 2, 32]));
        let slots: Vec<i64> = (0..BATCH as i64).collect();
        let positions: Vec<u32> = (0..BATCH as u32).collect();
        // From 12 query rows for each KV head on, scores are products of the gemm crate, which allocates what it packs.
        for heads in [2, 16] {
            let q = tensor(&[BATCH, heads, 32]);
            let attention = PagedAttention { quant, ..PagedAttention::new(0.2, 32) };
            let attend = || attention.run(&on_cpu(), &q, &pool, &view, &batch).unwrap();
            assert_eq!(allocations(attend), of_a_tensor, "attention, {heads} heads, {dtype:?}");
            let write = || {
                KvWrite { k: &k, v: Some(&v), slot_mapping: (&slots).into(), quant }
                    .run_rotated(&on_cpu(), &q, &rope, &positions, &pool, &view)
                    .unwrap()
            };
            assert_eq!(allocations(write), of_a_tensor + of_a_pool, "rope and cache, {dtype:?}");
        }
    }
}

/// One test alone: the counter is that of the whole process.
#[test]
fn a_decode_step_allocates_its_output_only() {
    // From outside its pool, rayon queues work in blocks, of which it allocates one in 63 calls.
    rayon::scope(|_| steps());
}
