//! Pools of 8-bit and 4-bit numbers: what is stored comes back, and attention sees what is stored.

use super::{Random, assert_close, on_cpu, values};
use crate::portable;
use crate::*;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

const HEADS: usize = 2;
const TOKENS: usize = 37;
const BLOCK: usize = 8;

#[derive(Clone, Copy, Debug)]
enum Kind {
    PerTensor,
    PerHead,
    PerToken,
    Grouped(GroupFormat),
}

const K_SCALES: [f32; HEADS] = [0.011, 0.009];
const V_SCALES: [f32; HEADS] = [0.008, 0.02];

impl Kind {
    fn quant<'a>(self, scales: &'a Tensor) -> KvQuant<'a> {
        match self {
            Self::PerTensor => KvScales { k: K_SCALES[0], v: V_SCALES[0] }.into(),
            Self::PerHead => KvQuant::PerHead { k: &K_SCALES, v: &V_SCALES },
            Self::PerToken => KvQuant::PerToken(scales),
            Self::Grouped(format) => KvQuant::Grouped(format),
        }
    }

    /// What is left of `rows` `[TOKENS, HEADS, width]` after they have been stored.
    fn rounded(self, rows: &Tensor, dtype: DType, scales: [f32; HEADS]) -> Tensor {
        let width = rows.dim(2).unwrap();
        if let Self::Grouped(format) = self {
            let bytes = format.quantize(&rows.reshape((TOKENS * HEADS, width)).unwrap()).unwrap();
            return format.dequantize(&bytes, width).unwrap().reshape(rows.dims()).unwrap();
        }
        let mut data = values(rows);
        for (at, row) in data.chunks_exact_mut(width).enumerate() {
            let largest = row.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scale = match self {
                Self::PerTensor => scales[0],
                Self::PerHead => scales[at % HEADS],
                _ => largest / if dtype == DType::U8 { 127.0 } else { 448.0 },
            };
            for x in row {
                let stored = *x / scale;
                *x = scale
                    * match dtype {
                        DType::U8 => stored.round_ties_even().clamp(-128.0, 127.0),
                        _ => float8::F8E4M3::from_f32(stored).to_f32(),
                    };
            }
        }
        Tensor::from_vec(data, rows.dims(), &Device::Cpu).unwrap()
    }
}

#[rstest]
fn attention_sees_what_is_stored(
    #[values(
        (Kind::PerTensor, DType::U8),
        (Kind::PerTensor, DType::F8E4M3),
        (Kind::PerHead, DType::U8),
        (Kind::PerHead, DType::F8E4M3),
        (Kind::PerToken, DType::U8),
        (Kind::PerToken, DType::F8E4M3),
        (Kind::Grouped(GroupFormat::Int8), DType::U8),
        (Kind::Grouped(GroupFormat::F8E5m2), DType::U8),
        (Kind::Grouped(GroupFormat::Q8_0), DType::U8),
        (Kind::Grouped(GroupFormat::Q4_0), DType::U8),
        (Kind::Grouped(GroupFormat::Mxfp4), DType::U8),
        (Kind::Grouped(GroupFormat::Nvfp4), DType::U8)
    )]
    (kind, dtype): (Kind, DType),
    #[values(KvLayout::Hnd, KvLayout::Nhd)] order: KvLayout,
    #[values(1, 2)] kv_factor: usize,
    #[values(32, 40)] head_dim: usize,
    #[values(1, 8)] group: usize,
) {
    let row = match kind {
        Kind::Grouped(format) => format.row_bytes(head_dim),
        _ => head_dim,
    };
    let view = |row: usize| KvLayerView {
        block_elems: row * (1 + 2 * HEADS * BLOCK),
        layer_offset: row,
        kv_factor,
        num_kv_heads: HEADS,
        head_dim: row,
        tokens_per_block: BLOCK,
        order,
    };
    let (stored, exact) = (view(row), view(head_dim));
    let mut random = Random::new(71);
    let [k, v] = [(); 2].map(|()| random.tensor(&[TOKENS, HEADS, head_dim]));
    let with_v = kv_factor == 2;
    let slots: Vec<i64> = (0..TOKENS as i64).map(|token| token + BLOCK as i64).collect();
    let zeros = |width: usize, dtype| Tensor::zeros((6, width), dtype, &Device::Cpu).unwrap();
    let scales = zeros(kv_factor * HEADS * BLOCK, DType::F32);
    let quant = kind.quant(&scales);

    let pool = zeros(stored.block_elems, dtype);
    KvWrite { k: &k, v: with_v.then_some(&v), slot_mapping: (&slots).into(), quant: Some(quant) }
        .run(&on_cpu(), &pool, &stored)
        .unwrap();
    let wide = zeros(exact.block_elems, DType::F32);
    let (k_rounded, v_rounded) = (kind.rounded(&k, dtype, K_SCALES), kind.rounded(&v, dtype, V_SCALES));
    KvWrite::new(&k_rounded, with_v.then_some(&v_rounded), &slots).run(&on_cpu(), &wide, &exact).unwrap();

    let q = random.tensor(&[2, group * HEADS, head_dim]);
    let batch = PagedBatch::new(&[0, 2], &[TOKENS as u32], &[1, 2, 3, 4, 5], 5);
    let plain = PagedAttention::new(0.2, if with_v { head_dim } else { 24 });
    let attention = PagedAttention { quant: Some(quant), ..plain };
    let found = attention.run(&on_cpu(), &q, &pool, &stored, &batch).unwrap();
    let expected = plain.run(&on_cpu(), &q, &wide, &exact, &batch).unwrap();
    assert_close(&values(&found), &values(&expected), 1e-5);

    let other_scales = scales.zeros_like().unwrap();
    let other_quant = kind.quant(&other_scales);
    let other = zeros(stored.block_elems, dtype);
    portable::kv_cache::write(
        &KvWrite { k: &k, v: with_v.then_some(&v), slot_mapping: (&slots).into(), quant: Some(other_quant) },
        None,
        &other,
        &stored,
    )
    .unwrap();
    if !matches!(kind, Kind::PerToken) {
        assert_eq!(values(&pool), values(&other));
    }
    assert_close(&values(&other_scales), &values(&scales), 1e-6);
    let attention = PagedAttention { quant: Some(other_quant), ..plain };
    let found = portable::attention::paged_attention(&q, &other, &stored, &batch, &attention).unwrap();
    assert_close(&values(&found), &values(&expected), 1e-2);
}

/// No element is off by more than half a step of its group, or by what the format cannot reach.
#[rstest]
#[case::int8(GroupFormat::Int8, usize::MAX, 0.004)]
#[case::f8_e5m2(GroupFormat::F8E5m2, 1, 0.126)]
#[case::q8_0(GroupFormat::Q8_0, 32, 0.005)]
#[case::q4_0(GroupFormat::Q4_0, 32, 0.126)]
#[case::mxfp4(GroupFormat::Mxfp4, 32, 0.251)]
#[case::nvfp4(GroupFormat::Nvfp4, 16, 0.21)]
fn groups_come_back(
    #[case] format: GroupFormat,
    #[case] group: usize,
    #[case] part: f32,
    #[values(1, 31, 32, 33, 128)] width: usize,
) {
    let mut random = Random::new(72);
    let x = (random.tensor(&[9, width]) * 3.0).unwrap();
    let bytes = format.quantize(&x).unwrap();
    assert_eq!(bytes.dims(), [9, format.row_bytes(width)]);
    let found = format.dequantize(&bytes, width).unwrap();
    for (x, found) in x.to_vec2::<f32>().unwrap().iter().zip(found.to_vec2::<f32>().unwrap()) {
        for (x, found) in x.chunks(group).zip(found.chunks(group)) {
            let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
            assert!(x.iter().zip(found).all(|(x, found)| (x - found).abs() <= part * largest), "{x:?} {found:?}");
        }
    }
}

/// The bytes that the formats' definitions give.
#[rstest]
#[case::int8(GroupFormat::Int8, &[(0, 127.0), (1, -1.0)], &[0x00, 0x00, 0x80, 0x3f, 127, 255], 36)]
#[case::f8_e5m2(GroupFormat::F8E5m2, &[(0, 1.0), (1, -1.75), (2, 57344.0)], &[0x3c, 0xbf, 0x7b, 0], 32)]
#[case::q8_0(GroupFormat::Q8_0, &[(0, 127.0), (1, -1.0)], &[0x00, 0x3c, 127, 255], 34)]
#[case::q4_0(GroupFormat::Q4_0, &[(0, -8.0), (1, 7.0), (16, 1.0)], &[0x00, 0x3c, 0x90, 0x8f, 0x88], 18)]
#[case::mxfp4(GroupFormat::Mxfp4, &[(0, 6.0), (16, -0.5), (1, 3.0)], &[127, 0x97, 0x05, 0x00], 17)]
#[case::nvfp4(GroupFormat::Nvfp4, &[(0, 6.0), (1, -0.5), (2, 1.5)], &[0x38, 0x97, 0x03, 0x00], 18)]
fn groups_have_the_published_bytes(
    #[case] format: GroupFormat,
    #[case] elements: &[(usize, f32)],
    #[case] first: &[u8],
    #[case] len: usize,
) {
    let mut row = vec![0f32; 32];
    for &(at, value) in elements {
        row[at] = value;
    }
    let x = Tensor::from_vec(row.clone(), (1, row.len()), &Device::Cpu).unwrap();
    let bytes = format.quantize(&x).unwrap();
    let found = bytes.to_vec2::<u8>().unwrap().remove(0);
    assert_eq!((&found[..first.len()], found.len()), (first, len));
    assert_eq!(values(&format.dequantize(&bytes, row.len()).unwrap()), row);
}

#[rstest]
fn a_nan_is_not_lost(
    #[values(GroupFormat::F8E5m2, GroupFormat::Q8_0, GroupFormat::Q4_0, GroupFormat::Mxfp4, GroupFormat::Nvfp4)] format: GroupFormat,
) {
    let mut row = vec![1f32; 64];
    row[3] = f32::NAN;
    let x = Tensor::from_vec(row, (1, 64), &Device::Cpu).unwrap();
    let found = values(&format.dequantize(&format.quantize(&x).unwrap(), 64).unwrap());
    assert!(found[3].is_nan() && found[32..].iter().all(|x| (x - 1.0).abs() < 0.05), "{found:?}");
}

/// What a format cannot reach becomes its largest number, and what is 0 beside it stays 0.
#[rstest]
fn huge_numbers_saturate(
    #[values(
        GroupFormat::Int8,
        GroupFormat::F8E5m2,
        GroupFormat::Q8_0,
        GroupFormat::Q4_0,
        GroupFormat::Mxfp4,
        GroupFormat::Nvfp4
    )]
    format: GroupFormat,
) {
    let mut row = vec![0f32; 64];
    (row[0], row[1]) = (1e30, -1e30);
    let x = Tensor::from_vec(row, (1, 64), &Device::Cpu).unwrap();
    let found = values(&format.dequantize(&format.quantize(&x).unwrap(), 64).unwrap());
    assert!(found[0].is_finite() && found[0] > 1e3 && found[1].is_finite() && found[1] < -1e3, "{found:?}");
    assert!(found[2..].iter().all(|x| *x == 0.0), "{found:?}");
}

/// The reciprocal of a scale below the normal numbers is infinite.
#[rstest]
fn rows_too_small_for_a_scale_become_0(#[values(DType::U8, DType::F8E4M3)] dtype: DType) {
    let view = KvLayerView {
        block_elems: BLOCK * 4,
        layer_offset: 0,
        kv_factor: 1,
        num_kv_heads: 1,
        head_dim: 4,
        tokens_per_block: BLOCK,
        order: KvLayout::Hnd,
    };
    let k = Tensor::new(&[[[1e-37f32, 0.0, -1e-38, 0.0]]], &Device::Cpu).unwrap();
    let zeros = |width: usize, dtype| Tensor::zeros((1, width), dtype, &Device::Cpu).unwrap();
    for write in [
        (|pool, view, k, quant| {
            KvWrite { k, v: None, slot_mapping: (&[0]).into(), quant: Some(quant) }.run(&on_cpu(), pool, view)
        }) as fn(&_, &_, &_, KvQuant<'_>) -> _,
        |pool, view, k, quant| {
            portable::kv_cache::write(
                &KvWrite { k, v: None, slot_mapping: (&[0]).into(), quant: Some(quant) },
                None,
                pool,
                view,
            )
        },
    ] {
        let (pool, scales) = (zeros(view.block_elems, dtype), zeros(BLOCK, DType::F32));
        write(&pool, &view, &k, KvQuant::PerToken(&scales)).unwrap();
        let stored = values(&pool.to_dtype(DType::F32).unwrap());
        assert!(stored.iter().chain(&values(&scales)).all(|x| *x == 0.0), "{stored:?}");
    }
}

#[rstest]
#[case::missing(DType::U8, 8, None, "a U8 pool needs scales or a group format")]
#[case::needless(DType::F32, 8, Some(KvQuant::Grouped(GroupFormat::Q4_0)), "a F32 pool takes no scales")]
#[case::wide(DType::U8, 8, Some(KvQuant::Grouped(GroupFormat::Q4_0)), "8 elements take 18 bytes as Q4_0")]
#[case::heads(DType::U8, 8, Some(KvQuant::PerHead { k: &[1.0], v: &[1.0, 1.0] }), "1 and 2 scales for 2 heads")]
#[case::zero(DType::U8, 8, Some(KvQuant::PerTensor(KvScales { k: 0.0, v: 1.0 })), "must be positive and finite")]
#[case::grouped_floats(DType::F8E4M3, 18, Some(KvQuant::Grouped(GroupFormat::Q4_0)), "expected u8 for grouped")]
fn what_does_not_fit_is_refused(
    #[case] dtype: DType,
    #[case] row: usize,
    #[case] quant: Option<KvQuant<'_>>,
    #[case] message: &str,
) {
    let view = KvLayerView {
        block_elems: 2 * HEADS * BLOCK * row,
        layer_offset: 0,
        kv_factor: 2,
        num_kv_heads: HEADS,
        head_dim: row,
        tokens_per_block: BLOCK,
        order: KvLayout::Hnd,
    };
    let pool = Tensor::zeros((2, view.block_elems), dtype, &Device::Cpu).unwrap();
    let q = Tensor::zeros((1, HEADS, 8), DType::F32, &Device::Cpu).unwrap();
    let batch = PagedBatch::new(&[0, 1], &[1], &[0], 1);
    let attention = PagedAttention { quant, ..PagedAttention::new(1.0, 8) };
    let error = attention.run(&on_cpu(), &q, &pool, &view, &batch).unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
}
