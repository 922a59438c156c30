//! The portable path gives what the fast path gives.

use super::{Ragged, Random, assert_close, cu_seqlens, on_cpu, values};
use crate::portable;
use crate::states::States;
use crate::*;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

fn kv_view(kv_factor: usize, order: KvLayout) -> KvLayerView {
    KvLayerView {
        block_elems: 2 * 2 * 3 * 4 * 16,
        layer_offset: 2 * 4 * 16,
        kv_factor,
        num_kv_heads: 3,
        head_dim: 16,
        tokens_per_block: 4,
        order,
    }
}

fn rope(rotary_dim: usize, interleaved: bool) -> Rope {
    let rope = Rope::new(1e4, rotary_dim, &RopeScaling::None).unwrap();
    if interleaved { rope.interleaved() } else { rope }
}

#[rstest]
fn cache_writes_agree(
    #[values(1, 2)] kv_factor: usize,
    #[values(KvLayout::Hnd, KvLayout::Nhd)] order: KvLayout,
    #[values(DType::F32, DType::F16, DType::BF16)] dtype: DType,
) {
    let mut random = Random::new(1);
    let view = kv_view(kv_factor, order);
    let k = random.tensor(&[5, 3, 16]);
    let v = random.tensor(&[5, 3, 16]);
    let v = (kv_factor == 2).then_some(&v);
    let slots = [7, -1, 2, 11, 0];
    let fast = random.tensor(&[3, view.block_elems]).to_dtype(dtype).unwrap();
    let slow = fast.copy().unwrap();
    KvWrite::new(&k, v, &slots).run(&on_cpu(), &fast, &view).unwrap();
    portable::kv_cache::write(&KvWrite::new(&k, v, &slots), None, &slow, &view).unwrap();
    assert_eq!(values(&fast), values(&slow));
}

#[rstest]
fn quantised_writes_and_reads_agree(
    #[values(1, 2)] kv_factor: usize,
    #[values(DType::U8, DType::F8E4M3)] dtype: DType,
    #[values(false, true)] interleaved: bool,
) {
    let mut random = Random::new(17);
    let view = kv_view(kv_factor, KvLayout::Hnd);
    let [q, k, v] = [(); 3].map(|()| random.tensor(&[5, 3, 16]));
    let v = (kv_factor == 2).then_some(&v);
    let scales = KvScales { k: 0.01, v: 0.006 };
    let slots = [7, 4, 5, 11, 6];
    let fast = Tensor::zeros((3, view.block_elems), dtype, &Device::Cpu).unwrap();
    let slow = fast.copy().unwrap();
    let rope = rope(12, interleaved);
    let positions = [3, 0, 1, 9, 2];
    let angles = rope.angles(&positions);
    KvWrite { k: &k, v, slot_mapping: (&slots).into(), quant: Some(scales.into()) }
        .run_rotated(&on_cpu(), &q, &rope, &positions, &fast, &view)
        .unwrap();
    portable::kv_cache::write(
        &KvWrite { k: &k, v, slot_mapping: (&slots).into(), quant: Some(scales.into()) },
        Some(angles.table()),
        &slow,
        &view,
    )
    .unwrap();
    assert_eq!(values(&fast), values(&slow));
    let batch = PagedBatch::new(&[0, 1], &[4], &[1], 1);
    let attention = PagedAttention { quant: Some(scales.into()), ..PagedAttention::new(0.25, 16) };
    let q = q.narrow(0, 0, 1).unwrap();
    let found = attention.run(&on_cpu(), &q, &fast, &view, &batch).unwrap();
    let expected = portable::attention::paged_attention(&q, &slow, &view, &batch, &attention).unwrap();
    assert_close(&values(&found), &values(&expected), 2e-6);
}

#[rstest]
#[case::plain(|_: &mut PagedAttention<'_>| {})]
#[case::sliding(|attention: &mut PagedAttention<'_>| attention.window = Window::Sliding(3))]
#[case::chunked(|attention: &mut PagedAttention<'_>| attention.window = Window::Chunked(4))]
#[case::softcap(|attention: &mut PagedAttention<'_>| attention.softcap = Some(0.5))]
#[case::sinks(|attention: &mut PagedAttention<'_>| attention.sinks = Some(&[0.3, -1.0, 2.0, 0.0, 1.0, -4.0]))]
#[case::alibi(|attention: &mut PagedAttention<'_>| attention.alibi_slopes = Some(&[0.5, 0.25, 0.1, 0.0, 1.0, 2.0]))]
fn attention_agrees(
    #[case] change: fn(&mut PagedAttention<'_>),
    #[values(1, 2)] kv_factor: usize,
    #[values(KvLayout::Hnd, KvLayout::Nhd)] order: KvLayout,
) {
    let mut random = Random::new(2);
    let view = kv_view(kv_factor, order);
    let pool = random.tensor(&[6, view.block_elems]);
    let q = random.tensor(&[8, 6, 16]);
    let batch = PagedBatch::new(&[0, 1, 6, 8, 8], &[9, 5, 0, 3], &[3, 0, 5, 1, 4, -1, -1, -1, -1, 2, -1, -1], 3);
    let mut attention = PagedAttention::new(0.3, if kv_factor == 1 { 12 } else { 16 });
    change(&mut attention);
    let fast = attention.run(&on_cpu(), &q, &pool, &view, &batch).unwrap();
    let slow = portable::attention::paged_attention(&q, &pool, &view, &batch, &attention).unwrap();
    assert_eq!(fast.dims(), slow.dims());
    assert_close(&values(&fast), &values(&slow), 2e-6);
}

#[rstest]
fn convolution_agrees(
    #[values(false, true)] silu: bool,
    #[values(DType::F32, DType::BF16)] dtype: DType,
    #[values(true, false)] biased: bool,
) {
    let mut random = Random::new(3);
    let view = StateLayerView::conv(100, 20, 4, 24);
    let fast = random.tensor(&[4, 100]).to_dtype(dtype).unwrap();
    let slow = fast.copy().unwrap();
    let lens = [1, 70, 2, 3, 0];
    let total = lens.iter().sum();
    // A column slice, as the projection hands it over.
    let x = random.tensor(&[total, 30]).narrow(1, 4, 24).unwrap();
    let weight = random.tensor(&[4, 24]);
    let bias = random.tensor(&[24]);
    let bias = biased.then_some(&bias);
    let cu = cu_seqlens(&lens);
    let batch = StateBatch::new(&cu, &[2, 0, -1, 1, 3]);
    let found = CausalConv1d { weight: &weight, bias, silu }.run(&on_cpu(), &x, &fast, &view, &batch).unwrap();
    let expected = portable::conv1d::causal_conv1d(
        &CausalConv1d { weight: &weight, bias, silu },
        &x,
        &States { pool: &slow, view: &view, batch: &batch },
    )
    .unwrap();
    assert_close(&values(&found), &values(&expected), 1e-6);
    assert_eq!(values(&fast), values(&slow));
}

#[rstest]
fn mamba2_agrees(
    #[values(1, 2)] groups: usize,
    #[values(DType::F32, DType::F16)] dtype: DType,
    #[values((0.0, f32::INFINITY), (0.1, 0.6))] dt_limit: (f32, f32),
) {
    let mut random = Random::new(4);
    let view = StateLayerView::matrix(4 * 5 * 6 + 7, 7, [4, 5, 6]);
    let fast = random.tensor(&[3, view.slot_elems]).to_dtype(dtype).unwrap();
    let slow = fast.copy().unwrap();
    let lens = [9, 1, 2, 0];
    let total = lens.iter().sum();
    let x = random.tensor(&[total, 20]);
    let dt = random.tensor(&[total, 4]);
    let b = random.tensor(&[total, groups * 6]);
    let c = random.tensor(&[total, groups * 6]);
    let a = (random.tensor(&[4]) - 1.5).unwrap();
    let d = random.tensor(&[4]);
    let dt_bias = random.tensor(&[4]);
    let time_step = TimeStep { bias: Some(&dt_bias), softplus: true, limit: dt_limit };
    let layer = Mamba2Scan { a: &a, d: Some(&d), time_step };
    let cu = cu_seqlens(&lens);
    let batch = StateBatch::new(&cu, &[1, 2, -1, 0]);
    let z = random.tensor(&[total, 20]);
    let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
    let found = layer.run(&on_cpu(), &input, &fast, &view, &batch).unwrap();
    let expected =
        portable::mamba2::mamba2_scan(&input, &layer, &States { pool: &slow, view: &view, batch: &batch }).unwrap();
    assert_close(&values(&found), &values(&expected), 2e-6);
    let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-3 };
    assert_close(&values(&fast), &values(&slow), tolerance);
}

#[rstest]
fn gated_norm_agrees(
    #[values(GateOrder::GateThenNorm, GateOrder::NormThenGate, GateOrder::GateOnly)] order: GateOrder,
    #[values(24, 8)] weights: usize,
) {
    let mut random = Random::new(5);
    let (x, z) = (random.tensor(&[5, 24]), random.tensor(&[5, 24]));
    let weight = random.tensor(&[weights]);
    let fast = RmsNorm { weight: &weight, eps: 1e-5 }.run_gated(&on_cpu(), &x, &z, 8, order).unwrap();
    let slow = portable::norm::gated_rms_norm(&x, &z, &weight, 1e-5, 8, order).unwrap();
    assert_close(&values(&fast), &values(&slow), 1e-6);
}

#[rstest]
fn rotation_agrees(#[values(false, true)] interleaved: bool, #[values(8, 16)] rotary_dim: usize) {
    let mut random = Random::new(6);
    let x = random.tensor(&[3, 2, 16]);
    let rope = rope(rotary_dim, interleaved);
    let angles = rope.angles(&[0, 7, 1000]);
    let fast = rope.apply(&on_cpu(), &x, &[0, 7, 1000]).unwrap();
    let slow = portable::rope::apply(&x, angles.table()).unwrap();
    assert_close(&values(&fast), &values(&slow), 1e-6);
    let frequencies: Vec<f64> = (0..rotary_dim / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
    let expected: Vec<f32> = values(&x)
        .chunks_exact(16)
        .zip([0.0, 0.0, 7.0, 7.0, 1000.0, 1000.0])
        .flat_map(|(x, position)| {
            let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            reference::rotate(&x, position, &frequencies, interleaved)
        })
        .map(|x| x as f32)
        .collect();
    // Angles of up to 1000 are rounded in f32.
    assert_close(&values(&fast), &expected, 1e-4);
    assert_close(&values(&fast)[..64], &expected[..64], 1e-6);
}

#[test]
fn row_moves_agree() {
    let fast = Random::new(7).tensor(&[5, 70_000]);
    let slow = fast.copy().unwrap();
    let pairs = [(0, 3), (3, 1), (4, 4), (2, 0)];
    PoolRows(&fast).copy(&on_cpu(), &pairs).unwrap();
    portable::pool::copy_rows(&slow, &pairs).unwrap();
    PoolRows(&fast).zero(&on_cpu(), &[2]).unwrap();
    portable::pool::zero_rows(&slow, &[2]).unwrap();
    assert_eq!(values(&fast), values(&slow));
}

#[test]
fn rows_survive_the_way_to_the_host_and_back() {
    let pool = Random::new(8).tensor(&[4, 10]);
    let before = values(&pool);
    let saved = PoolRows(&pool).gather(&[2, 0]).unwrap();
    PoolRows(&pool).zero(&on_cpu(), &[0, 2]).unwrap();
    assert!(values(&pool)[..10].iter().all(|&value| value == 0.0));
    PoolRows(&pool).scatter(&[2, 0], &saved.to_device(&Device::Cpu).unwrap()).unwrap();
    assert_eq!(values(&pool), before);
    let bytes = Tensor::new(&[[1u8, 2], [3, 4]], &Device::Cpu).unwrap();
    PoolRows(&bytes).copy(&on_cpu(), &[(0, 1)]).unwrap();
    assert_eq!(bytes.to_vec2::<u8>().unwrap(), [[1, 2], [1, 2]]);
}

#[rstest]
#[case::nothing(StateWrites::Nothing)]
#[case::checkpoints(StateWrites::AlsoAfter(&[-1, 4, -1, 5, -1, -1]))]
#[case::tree(StateWrites::Tree { parents: &[-1, 0, 0, 2, -1, 4], slots: &[3, 4, 5, 6, 7, 8] })]
fn state_writes_agree(#[case] writes: StateWrites<'_>) {
    let mut random = Random::new(12);
    let batch = StateBatch::new(&[0, 4, 6], &[2, 0]).with_writes(writes);
    let view = StateLayerView::conv(60, 3, 4, 10);
    let fast = random.tensor(&[9, 60]);
    let slow = fast.copy().unwrap();
    let (x, weight) = (random.tensor(&[6, 10]), random.tensor(&[4, 10]));
    let found =
        CausalConv1d { weight: &weight, bias: None, silu: false }.run(&on_cpu(), &x, &fast, &view, &batch).unwrap();
    let expected = portable::conv1d::causal_conv1d(
        &CausalConv1d { weight: &weight, bias: None, silu: false },
        &x,
        &States { pool: &slow, view: &view, batch: &batch },
    )
    .unwrap();
    assert_close(&values(&found), &values(&expected), 1e-6);
    assert_eq!(values(&fast), values(&slow));

    let view = StateLayerView::matrix(60, 0, [2, 5, 6]);
    let [q, k] = [(); 2].map(|()| random.tensor(&[6, 10]));
    let v = random.tensor(&[6, 12]);
    let decay = StateDecay::Fixed(&[-0.5, -0.1]);
    let input = LinearAttentionScan { q: &q, k: &k, v: &v, decay, beta: None, scale: 1.0, l2_norm: false };
    let found = input.run(&on_cpu(), &fast, &view, &batch).unwrap();
    let expected =
        portable::linear_attention::linear_attention(&input, &States { pool: &slow, view: &view, batch: &batch })
            .unwrap();
    assert_close(&values(&found), &values(&expected), 1e-6);
    assert_close(&values(&fast), &values(&slow), 1e-6);
}

#[test]
fn mamba1_agrees() {
    let mut random = Random::new(9);
    let ragged = Ragged::new(&[4, 1, 2]);
    let view = StateLayerView::matrix(12 * 6 + 1, 1, [12, 1, 6]);
    let fast = random.tensor(&[7, view.slot_elems]);
    let slow = fast.copy().unwrap();
    let [x, dt, z] = [(); 3].map(|()| random.tensor(&[ragged.total, 12]));
    let [b, c] = [(); 2].map(|()| random.tensor(&[ragged.total, 6]));
    let a = (random.tensor(&[12, 6]) - 1.5).unwrap();
    let [d, bias] = [(); 2].map(|()| random.tensor(&[12]));
    let layer = Mamba1Scan { a: &a, d: Some(&d), time_step: TimeStep::new(Some(&bias)) };
    let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
    let found = layer.run(&on_cpu(), &input, &fast, &view, &ragged.batch()).unwrap();
    let expected =
        portable::mamba1::mamba1_scan(&input, &layer, &States { pool: &slow, view: &view, batch: &ragged.batch() })
            .unwrap();
    assert_close(&values(&found), &values(&expected), 2e-6);
    assert_close(&values(&fast), &values(&slow), 2e-6);
}

#[rstest]
fn linear_attention_agrees(#[values(0, 1, 2)] decay: usize, #[values(true, false)] delta: bool) {
    let mut random = Random::new(10);
    let ragged = Ragged::new(&[4, 1, 2]);
    let view = StateLayerView::matrix(4 * 8 * 6 + 1, 1, [4, 8, 6]);
    let fast = random.tensor(&[7, view.slot_elems]);
    let slow = fast.copy().unwrap();
    let [q, k] = [(); 2].map(|()| random.tensor(&[ragged.total, 2 * 8]));
    let v = random.tensor(&[ragged.total, 4 * 6]);
    let beta = random.tensor(&[ragged.total, 4]);
    let per_head = (random.tensor(&[ragged.total, 4]) - 1.0).unwrap();
    let per_channel = (random.tensor(&[ragged.total, 4 * 8]) - 1.0).unwrap();
    let decays = [
        StateDecay::Fixed(&[-0.5, -0.2, -0.1, 0.0]),
        StateDecay::PerHead(&per_head),
        StateDecay::PerChannel(&per_channel),
    ];
    let input = LinearAttentionScan {
        q: &q,
        k: &k,
        v: &v,
        decay: decays[decay],
        beta: delta.then_some(&beta),
        scale: 0.4,
        l2_norm: delta,
    };
    let found = input.run(&on_cpu(), &fast, &view, &ragged.batch()).unwrap();
    let expected = portable::linear_attention::linear_attention(
        &input,
        &States { pool: &slow, view: &view, batch: &ragged.batch() },
    )
    .unwrap();
    assert_close(&values(&found), &values(&expected), 5e-6);
    assert_close(&values(&fast), &values(&slow), 5e-6);
}

#[test]
fn recurrent_unit_agrees() {
    let mut random = Random::new(11);
    let ragged = Ragged::new(&[4, 1, 2]);
    let view = StateLayerView::matrix(21, 1, [20, 1, 1]);
    let fast = random.tensor(&[7, 21]);
    let slow = fast.copy().unwrap();
    let [x, i, r] = [(); 3].map(|()| random.tensor(&[ragged.total, 20]));
    let a = random.tensor(&[20]);
    let positions: Vec<u32> = (0..ragged.total as u32).map(|row| row % 3).collect();
    let input = RgLruScan { x: &x, input_gate: &i, recurrence_gate: &r, a_param: &a, positions: (&positions).into() };
    let found = input.run(&on_cpu(), &fast, &view, &ragged.batch()).unwrap();
    let expected =
        portable::rg_lru::rg_lru(&input, &States { pool: &slow, view: &view, batch: &ragged.batch() }).unwrap();
    assert_close(&values(&found), &values(&expected), 2e-6);
    assert_close(&values(&fast), &values(&slow), 2e-6);
}
