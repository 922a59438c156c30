//! Ops at sizes give the same on the CPU's path as on candle's own.

use super::on_cpu;
use crate::cases::{
    Attention, CacheWrite, Case, Channels, Convolution, Data, DeltaKind, Elementwise, Experts, Features, Format,
    Latents, LinearAttention, Mamba2, Move, Norm, Pool, Product, Recurrence, Scales, Sequences, StoredProduct, Writes,
    furthest,
};
use crate::stored::BlockFormat;
use crate::{Backend, GateOrder, MlaCacheMode, MlaQuantMode, MlaShape, Products};
use cacheplan_handlers::KvLayout;
use candle_core::DType::{BF16, F32};
use candle_core::Device;
use rstest::rstest;

const WRITES: Writes = Writes::Final;
const FORMAT: Format = Format {
    kv_heads: 2,
    head_dim: 16,
    kv_factor: 2,
    block: 4,
    order: KvLayout::Hnd,
    pool: F32,
    scales: Scales::PerTensor,
};

/// More tokens than are absorbed at a time.
fn latents(quant_mode: MlaQuantMode, cache_mode: MlaCacheMode) -> Case {
    let shape = MlaShape { hidden: 96, heads: 3, q_lora: Some(64), kv_lora: 64, nope: 32, rope: 16 };
    Latents { shape, quant_mode, cache_mode, input: BF16 }.case(150)
}

/// Padding among them, and one without tokens.
fn few() -> Sequences {
    Sequences::ragged(&[(1, 1), (0, 5), (3, 8), (20, 20)])
}

#[rstest]
#[case(Mamba2 { heads: 4, head_dim: 8, d_state: 16, groups: 2, state: F32, input: F32, writes: WRITES }.case(few()))]
#[case(Mamba2 { heads: 4, head_dim: 8, d_state: 16, groups: 2, state: F32, input: BF16, writes: WRITES }.case(few()))]
#[case(LinearAttention {
    kind: DeltaKind::Gated, heads: 2, key_heads: 1, key_dim: 16, value_dim: 8, state: F32, input: F32, writes: WRITES,
}.case(few()))]
#[case(Convolution { channels: 12, d_conv: 4, dtype: F32, writes: WRITES }.case(few()))]
#[case(Channels { recurrence: Recurrence::Mamba1(4), channels: 12, state: F32, input: F32, writes: WRITES }.case(few()))]
#[case(Channels { recurrence: Recurrence::Gated, channels: 12, state: F32, input: F32, writes: WRITES }.case(few()))]
#[case(Attention { format: FORMAT, group: 3, value_dim: 16, input: F32, features: Features::default() }.case(few()))]
#[case(CacheWrite { format: FORMAT, tokens: 9, input: F32, rotated: Some((8, 3, true)) }.case())]
#[case(Norm { rows: 3, width: 24, gate: Some((3, GateOrder::GateThenNorm)), input: F32, weight: F32 }.case())]
#[case(Elementwise::SiluProduct.case(3, 12, F32))]
#[case(Product { rows: 3, inputs: 24, outputs: 8, input: F32, weight: BF16 }.case())]
#[case(StoredProduct { rows: 3, inputs: 256, outputs: 8, format: BlockFormat::Q4K, products: Products::Exact }.case())]
#[case(Experts { rows: 3, per_token: 2, experts: 4, inputs: 16, outputs: 6, bias: true, summed: true, dtype: F32 }.case())]
#[case(Pool { rows: 3, elements: 12, dtype: F32 }.case(Move::Copy))]
#[case(latents(MlaQuantMode::PerTensorAsymmetric, MlaCacheMode::KvCache))]
#[case(latents(MlaQuantMode::PerTokenSymmetric, MlaCacheMode::Nz))]
#[case(latents(MlaQuantMode::Unquantised, MlaCacheMode::KropeCtkv))]
fn either_path_gives_the_same(#[case] case: Case) {
    let fast = case.call(&on_cpu(), &mut Data::random(1)).unwrap();
    let slow = case.call(&Backend::Candle(Device::Cpu).run(), &mut Data::random(1)).unwrap();
    let error = furthest(&fast, &slow);
    assert!(error <= case.tolerance, "{}, {case}: {error}", case.op);
    assert!(case.work.bytes > 0);
}
