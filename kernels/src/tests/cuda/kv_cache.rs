//! `cache_write.cu`.

use super::{TARGET, assert_traffic, emulate, random, schedules, span};
use crate::cuda::{kv_cache, rope};
use crate::tests::{Random, on_cpu, values};
use crate::{KvLayerView, KvQuant, KvScales, KvWrite, Rope, RopeScaling, reference};
use cacheplan_emulator::Options;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

/// Blocks out of order, a token that is not written, and one that ends a block.
const SLOTS: [i64; 5] = [17, 2, -1, 15, 6];
const BLOCK: usize = 4;

fn view(heads: usize, head_dim: usize, kv_factor: usize, order: KvLayout) -> KvLayerView {
    let (tokens_per_block, num_kv_heads) = (BLOCK, heads);
    let layer_offset = 2 * head_dim;
    let block_elems = kv_factor * heads * BLOCK * head_dim + 3 * head_dim;
    KvLayerView { block_elems, layer_offset, kv_factor, num_kv_heads, head_dim, tokens_per_block, order }
}

/// Keys and values as parts of wider projections, with NaN where nothing is written.
fn rows(source: &mut Random, width: usize, dtype: DType) -> Tensor {
    let mut data = source.vec(SLOTS.len() * (width + 16));
    data[2 * (width + 16)..3 * (width + 16)].fill(f32::NAN);
    let wide = Tensor::from_vec(data, (SLOTS.len(), width + 16), &Device::Cpu).unwrap();
    wide.to_dtype(dtype).unwrap().narrow(1, 16, width).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Scales {
    None,
    PerTensor,
    PerHead,
    PerToken,
}

/// The CPU's op and the kernel store the same bits, and touch nothing else.
#[rstest]
#[case::f32(DType::F32, DType::F32, Scales::None)]
#[case::bf16(DType::BF16, DType::BF16, Scales::None)]
#[case::f16(DType::F16, DType::F16, Scales::None)]
#[case::f32_to_bf16(DType::F32, DType::BF16, Scales::None)]
#[case::f32_to_f16(DType::F32, DType::F16, Scales::None)]
#[case::f32_to_f8(DType::F32, DType::F8E4M3, Scales::PerHead)]
#[case::bf16_to_f8(DType::BF16, DType::F8E4M3, Scales::PerTensor)]
#[case::f16_to_f8(DType::F16, DType::F8E4M3, Scales::PerTensor)]
#[case::f32_to_f8_by_row(DType::F32, DType::F8E4M3, Scales::PerToken)]
#[case::f16_to_f8_by_row(DType::F16, DType::F8E4M3, Scales::PerToken)]
#[case::f32_to_i8(DType::F32, DType::U8, Scales::PerHead)]
#[case::bf16_to_i8(DType::BF16, DType::U8, Scales::PerToken)]
#[case::f16_to_i8(DType::F16, DType::U8, Scales::PerTensor)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn cache_write(
    #[case] input: DType,
    #[case] dtype: DType,
    #[case] scales: Scales,
    #[values((3, 64, 2, KvLayout::Hnd), (2, 128, 2, KvLayout::Nhd), (1, 192, 1, KvLayout::Hnd))]
    (heads, head_dim, kv_factor, order): (usize, usize, usize, KvLayout),
) {
    if matches!(scales, Scales::PerToken) && !head_dim.is_power_of_two() {
        return;
    }
    let view = view(heads, head_dim, kv_factor, order);
    let mut source = Random::new(31);
    let [k, v] = [(); 2].map(|()| rows(&mut source, heads * head_dim, input));
    let v = (kv_factor == 2).then_some(v);
    // Some of what is stored is too large for the type, and some below its normal numbers.
    let (k_scales, v_scales) = ([0.3, 0.001, 0.02], [8.0, 0.01, 0.002]);
    for options in schedules() {
        let pool = random(&mut Random::new(32), &[5, view.block_elems], dtype);
        let own = random(&mut Random::new(33), &[5, view.layer_rows()], DType::F32);
        let copies = [&pool, &own].map(|tensor| tensor.copy().unwrap());
        let write = |own| {
            let quant = match scales {
                Scales::None => None,
                Scales::PerTensor => Some(KvScales { k: 0.001, v: 0.3 }.into()),
                Scales::PerHead => Some(KvQuant::PerHead { k: &k_scales[..heads], v: &v_scales[..heads] }),
                Scales::PerToken => Some(KvQuant::PerToken(own)),
            };
            KvWrite { k: &k, v: v.as_ref(), slot_mapping: (&SLOTS).into(), quant }
        };
        emulate(&kv_cache::write(&write(&own), None, &pool, &view, &TARGET).expect("an instantiation"), &options);
        write(&copies[1]).run(&on_cpu(), &copies[0], &view).unwrap();
        assert_eq!(span(&pool), span(&copies[0]));
        assert_eq!(values(&own), values(&copies[1]));
    }
}

/// All of 8-bit floats and of int8: what is halfway between two, beyond the largest, and no number.
#[rstest]
#[case::f8(DType::F8E4M3, (0..=0x7eu8).map(|code| float8::F8E4M3::from_bits(code).to_f32()).collect())]
#[case::i8(DType::U8, (0..=126u8).map(f32::from).collect())]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn cache_write_rounds_to_bytes_as_the_cpu(#[case] dtype: DType, #[case] codes: Vec<f32>) {
    let between = codes.windows(2).flat_map(|pair| {
        let middle = (pair[0] + pair[1]) / 2.0;
        [pair[0], middle.next_down(), middle, middle.next_up()]
    });
    let mut numbers: Vec<f32> = between.chain([448.0, 464.0, 1e9, f32::INFINITY, f32::NAN]).collect();
    numbers.extend(numbers.clone().iter().map(|x| -x));
    let (heads, head_dim) = (1, 1024);
    numbers.resize(head_dim, 0.0);
    let k = Tensor::from_vec(numbers, (1, head_dim), &Device::Cpu).unwrap();
    let view = view(heads, head_dim, 1, KvLayout::Hnd);
    let [found, expected] = [(); 2].map(|()| Tensor::zeros((1, view.block_elems), dtype, &Device::Cpu).unwrap());
    let quant = Some(KvScales { k: 1.0, v: 1.0 }.into());
    let write = KvWrite { k: &k, v: None, slot_mapping: (&[1]).into(), quant };
    emulate(&kv_cache::write(&write, None, &found, &view, &TARGET).unwrap(), &Options::default());
    write.run(&on_cpu(), &expected, &view).unwrap();
    assert_eq!(span(&found), span(&expected));
}

/// Keys and queries against rotations in f64; values as they are. Halves of what is rotated are vectors, or pairs at least.
#[rstest]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn cache_write_rotates(
    #[values(DType::F32, DType::BF16, DType::F16)] dtype: DType,
    #[values(false, true)] interleaved: bool,
    #[values((64, 64), (64, 32), (64, 4), (36, 20))] (head_dim, rotary_dim): (usize, usize),
) {
    let heads = 4;
    let view = view(heads, head_dim, 2, KvLayout::Nhd);
    let mut source = Random::new(34);
    let [k, v] = [(); 2].map(|()| rows(&mut source, heads * head_dim, dtype));
    let positions = [7, 4000, 0, 1, 131_071];
    let rope = Rope::new(10_000.0, rotary_dim, &RopeScaling::None).unwrap();
    let rope = if interleaved { rope.interleaved() } else { rope };
    let angles = rope.angles(&positions, SLOTS.len()).unwrap();
    let expected = |row: &[f32], token: usize| -> Vec<f32> {
        let row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
        // As the table has them: cosines of large angles in f32 differ by what the angle is rounded.
        let mut out = row.clone();
        for i in 0..rotary_dim / 2 {
            let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + rotary_dim / 2) };
            let at = token * rotary_dim / 2 + i;
            let (cos, sin) = (f64::from(angles.table().cos[at]), f64::from(angles.table().sin[at]));
            out[first] = row[first] * cos - row[second] * sin;
            out[second] = row[second] * cos + row[first] * sin;
        }
        if positions[token] == 7 {
            let frequencies: Vec<f64> =
                (0..rotary_dim / 2).map(|i| 10_000f64.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
            let exact = reference::rotate(&row, 7.0, &frequencies, interleaved);
            assert!(exact.iter().zip(&out).all(|(a, b)| (a - b).abs() < 1e-5), "the table is that of the reference");
        }
        out.iter().map(|&x| x as f32).collect()
    };
    let tolerance = match dtype {
        DType::F32 => 1e-6,
        DType::F16 => 1e-3,
        _ => 8e-3,
    };
    let close = |found: &[f32], expected: &[f32]| {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= tolerance * expected.abs().max(0.1), "{found} for {expected}");
        }
    };
    let (k_values, v_values) = (values(&k), values(&v));
    for options in schedules() {
        let pool = random(&mut Random::new(32), &[5, view.block_elems], dtype);
        let before = values(&pool);
        let write = KvWrite::new(&k, Some(&v), &SLOTS);
        emulate(&kv_cache::write(&write, Some(angles.table()), &pool, &view, &TARGET).unwrap(), &options);
        let after = values(&pool);
        let mut owned = vec![false; after.len()];
        for (token, &slot) in SLOTS.iter().enumerate() {
            let Ok(slot) = usize::try_from(slot) else { continue };
            for (kv, head) in (0..2).flat_map(|kv| (0..heads).map(move |head| (kv, head))) {
                let at = slot / BLOCK * view.block_elems + view.row_offset(kv, head, slot % BLOCK);
                let from = (token * heads + head) * head_dim;
                owned[at..at + head_dim].fill(true);
                match kv {
                    0 => close(&after[at..at + head_dim], &expected(&k_values[from..from + head_dim], token)),
                    _ => assert_eq!(after[at..at + head_dim], v_values[from..from + head_dim]),
                }
            }
        }
        assert!((0..after.len()).all(|at| owned[at] || before[at] == after[at]), "nothing else has changed");
        let q = random(&mut Random::new(35), &[SLOTS.len(), 6, head_dim], dtype);
        let rotated = values(&emulate(&rope::apply(&q, angles.table(), &TARGET).unwrap(), &options).outputs.remove(0));
        for (at, row) in values(&q).chunks_exact(head_dim).enumerate() {
            close(&rotated[at * head_dim..][..head_dim], &expected(row, at / 6));
        }
    }
}

#[test]
fn cache_writes_whose_order_counts_are_left_to_others() {
    let view = view(1, 64, 1, KvLayout::Hnd);
    let k = random(&mut Random::new(3), &[3, 64], DType::F32);
    let pool = random(&mut Random::new(3), &[5, view.block_elems], DType::F32);
    let launches =
        |slots: &[i64]| kv_cache::write(&KvWrite::new(&k, None, slots), None, &pool, &view, &TARGET).is_some();
    assert_eq!((launches(&[1, -1, -1]), launches(&[1, 4, 1])), (true, false));
}

/// A token of eight KV heads of 128, with and without a rotation.
#[rstest]
#[case(DType::BF16, DType::BF16, 130.0)]
#[case(DType::F32, DType::F32, 70.0)]
#[case(DType::BF16, DType::F8E4M3, 360.0)]
#[case(DType::BF16, DType::U8, 250.0)]
#[ignore = "needs the CUDA compiler: cargo xtask cuda-prove"]
fn cache_write_traffic(#[case] input: DType, #[case] dtype: DType, #[case] warp_instructions_per_kib: f64) {
    let (heads, head_dim) = (8, 128);
    let view = view(heads, head_dim, 2, KvLayout::Hnd);
    let mut source = Random::new(1);
    let [k, v] = [(); 2].map(|()| random(&mut source, &[2, heads * head_dim], input));
    let pool = random(&mut source, &[2, view.block_elems], dtype);
    let rope = Rope::new(10_000.0, head_dim, &RopeScaling::None).unwrap();
    let angles = rope.angles(&[5, 6], 2).unwrap();
    let quant = (dtype.size_in_bytes() == 1).then_some(KvScales { k: 0.1, v: 0.1 }.into());
    let write = KvWrite { k: &k, v: Some(&v), slot_mapping: (&[3, 4]).into(), quant };
    let plain = emulate(&kv_cache::write(&write, None, &pool, &view, &TARGET).unwrap(), &Options::default());
    assert_traffic(&plain, warp_instructions_per_kib);
    let rotated =
        emulate(&kv_cache::write(&write, Some(angles.table()), &pool, &view, &TARGET).unwrap(), &Options::default());
    let [plain, rotated] = [&plain, &rotated].map(|emulated| emulated.runs[0].stats.clone());
    // The cosines and sines of 8 keys are two requests to one sector, of which the second finds it in the near cache.
    let tables = (rotated.loaded_bytes - plain.loaded_bytes).div_ceil(32);
    assert!(rotated.sectors <= plain.sectors + 2 * tables, "{rotated:?}");
    let found = rotated.warp_instructions_per_kib();
    assert!(found <= warp_instructions_per_kib, "{found:.1} warp instructions per KiB: {rotated:?}");
}
