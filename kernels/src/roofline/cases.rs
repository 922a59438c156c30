//! The shapes that are measured: layers of published models.

use super::Bound::{self, Compute, Copy, Read};
use crate::cases::{
    Attention, CacheWrite, Case, Convolution, DeltaKind, Features, Format, LinearAttention, Mamba2, Move, Pool,
    Product, Scales, Sequences, StoredProduct, Writes,
};
use crate::stored::{BlockFormat, Products};
use cacheplan_handlers::KvLayout;
use candle_core::DType::{BF16, F8E4M3, F16, F32};

/// One op at one size, and what is asked of it.
pub(super) struct Measured {
    pub(super) op: &'static str,
    /// What may bound it: whichever takes longest.
    pub(super) bounds: &'static [Bound],
    /// Part of the machine's rate that is asked for.
    pub(super) target: Option<f64>,
    /// Layers that calls go through in turn, so that none finds its state in a cache that a model would have evicted.
    pub(super) layers: usize,
    pub(super) case: Case,
}

pub(super) fn all() -> Vec<Measured> {
    let writes = Writes::Final;
    let decode = |batch, context| Sequences::even(batch, 1, context);
    let prefill = |tokens| Sequences::even(1, tokens, tokens);
    // Mamba2-2.7B.
    let mamba = Mamba2 { heads: 80, head_dim: 64, d_state: 128, groups: 1, state: F32, input: F32, writes };
    // Llama-8B.
    let format = Format {
        kv_heads: 8,
        head_dim: 128,
        kv_factor: 2,
        block: 64,
        order: KvLayout::Hnd,
        pool: F32,
        scales: Scales::PerTensor,
    };
    let attention =
        |group, of| Attention { format, group, value_dim: 128, input: F32, features: Features::default() }.case(of);
    let write = CacheWrite { format, tokens: 4096, input: F32, rotated: None };
    let blocks = Pool { rows: 32, elements: 4 * 2 * 8 * 64 * 128, dtype: F32 };
    let conv = Convolution { channels: 5376, d_conv: 4, dtype: F32, writes };
    // Qwen3-Next.
    let delta = LinearAttention {
        kind: DeltaKind::Gated,
        heads: 32,
        key_heads: 16,
        key_dim: 128,
        value_dim: 128,
        state: F32,
        input: F32,
        writes,
    };
    const COPY: &[Bound] = &[Copy];
    const READ: &[Bound] = &[Read];
    const COMPUTE: &[Bound] = &[Compute];
    let all = [
        ("state update", COPY, None, 4, mamba.case(decode(1, 1))),
        ("state update", COPY, Some(0.7), 4, mamba.case(decode(16, 1))),
        ("scan prefill", COMPUTE, Some(0.35), 1, mamba.case(prefill(4096))),
        ("attention decode", READ, Some(0.7), 4, attention(1, decode(4, 4096))),
        ("attention decode", READ, Some(0.7), 4, attention(4, decode(4, 4096))),
        ("attention decode", READ, None, 4, attention(8, decode(4, 4096))),
        ("attention decode", READ, Some(0.7), 4, attention(4, decode(1, 16384))),
        ("attention prefill", COMPUTE, None, 1, attention(4, prefill(2048))),
        ("conv prefill", COPY, Some(0.5), 1, conv.case(prefill(4096))),
        ("conv update", COPY, None, 4, conv.case(decode(64, 1))),
        ("delta rule update", COPY, None, 4, delta.case(decode(16, 1))),
        ("delta rule prefill", COMPUTE, None, 1, delta.case(prefill(2048))),
        ("cache write", COPY, None, 1, write.case()),
        ("block copy", COPY, None, 1, blocks.case(Move::Copy)),
    ];
    let all = all.map(|(op, bounds, target, layers, case)| Measured { op, bounds, target, layers, case });
    all.into_iter().chain(products()).collect()
}

/// A layer's widest product, in every form of the weight, for one sequence and for many.
fn products() -> impl Iterator<Item = Measured> {
    const BOUNDS: &[Bound] = &[Read, Compute];
    const INPUTS: usize = 14336;
    const OUTPUTS: usize = 4096;
    let product = |case| Measured { op: "linear", bounds: BOUNDS, target: Some(0.7), layers: 1, case };
    let rows = [1, 2, 4, 8, 16, 32, 64];
    let plain = [F32, BF16, F16, F8E4M3].into_iter().flat_map(move |weight| {
        rows.map(|rows| Product { rows, inputs: INPUTS, outputs: OUTPUTS, input: F32, weight }.case())
    });
    let formats = [BlockFormat::Q8_0, BlockFormat::Q4_0, BlockFormat::Q4K, BlockFormat::Q6K, BlockFormat::Mxfp4];
    let kinds = [Products::Exact, Products::Fast];
    let stored = kinds.into_iter().flat_map(move |products| formats.map(|format| (format, products)));
    let stored = stored.flat_map(move |(format, products)| {
        rows.map(|rows| StoredProduct { rows, inputs: INPUTS, outputs: OUTPUTS, format, products }.case())
    });
    plain.chain(stored).map(product)
}
