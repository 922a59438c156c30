//! The shapes that are measured: layers of published models.

use super::Bound::{self, Compute, Copy, Read};
use crate::cases::{
    Attention, CacheWrite, Case, Convolution, DeltaKind, Features, Format, LinearAttention, Mamba2, Move, Pool,
    Product, Scales, Sequences, Writes,
};
use cacheplan_handlers::KvLayout;
use candle_core::DType::{self, BF16, F32};

/// One op at one size, and what is asked of it.
pub(super) struct Measured {
    pub(super) op: &'static str,
    pub(super) bound: Bound,
    /// Part of the machine's rate that is asked for.
    pub(super) target: Option<f64>,
    /// Layers that calls go through in turn, so that none finds its state in a cache that a model would have evicted.
    pub(super) layers: usize,
    pub(super) case: Case,
}

impl Measured {
    /// Bytes or operations of one call.
    pub(super) fn work(&self) -> f64 {
        match self.bound {
            Compute => self.case.work.flops as f64,
            Copy | Read => self.case.work.bytes as f64,
        }
    }
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
    let down = |rows, weight: DType| Product { rows, inputs: 14336, outputs: 4096, input: F32, weight }.case();
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
    let all = [
        ("state update", Copy, None, 4, mamba.case(decode(1, 1))),
        ("state update", Copy, Some(0.7), 4, mamba.case(decode(16, 1))),
        ("scan prefill", Compute, Some(0.35), 1, mamba.case(prefill(4096))),
        ("attention decode", Read, Some(0.7), 4, attention(1, decode(4, 4096))),
        ("attention decode", Read, Some(0.7), 4, attention(4, decode(4, 4096))),
        ("attention decode", Read, None, 4, attention(8, decode(4, 4096))),
        ("attention decode", Read, Some(0.7), 4, attention(4, decode(1, 16384))),
        ("attention prefill", Compute, None, 1, attention(4, prefill(2048))),
        ("conv prefill", Copy, Some(0.5), 1, conv.case(prefill(4096))),
        ("conv update", Copy, None, 4, conv.case(decode(64, 1))),
        ("delta rule update", Copy, None, 4, delta.case(decode(16, 1))),
        ("delta rule prefill", Compute, None, 1, delta.case(prefill(2048))),
        ("linear", Read, None, 1, down(1, F32)),
        ("linear", Read, None, 1, down(4, F32)),
        ("linear", Read, None, 1, down(1, BF16)),
        ("linear", Read, None, 1, down(4, BF16)),
        ("linear", Read, None, 1, down(16, BF16)),
        ("cache write", Copy, None, 1, write.case()),
        ("block copy", Copy, None, 1, blocks.case(Move::Copy)),
    ];
    all.map(|(op, bound, target, layers, case)| Measured { op, bound, target, layers, case }).into()
}
