//! The sizes that are measured: layers of published models, at batches and contexts that serving has.

use cacheplan_handlers::KvLayout;
use cacheplan_kernels::GateOrder;
use cacheplan_kernels::cases::{
    Attention, CacheWrite, Case, Channels, Convolution, DeltaKind, Elementwise, Experts, Features, Format,
    LinearAttention, Mamba2, Move, Norm, Pool, Product, Recurrence, Scales, Sequences, Writes,
};
use candle_core::DType::{self, BF16, F8E4M3, F32};

/// All of them, or each op at a size that the emulator gets through.
pub(super) fn all(tiny: bool) -> Vec<Case> {
    let sizes = Sizes { tiny };
    let mut cases = Vec::new();
    cases.extend(sizes.states());
    cases.extend(sizes.convolutions());
    cases.extend(sizes.attention());
    cases.extend(sizes.rows());
    cases.extend(sizes.experts());
    cases.extend(sizes.moves());
    cases
}

/// How much more a tiny case may move than it cannot do without: what large ones read once for all sequences.
#[cfg(test)]
pub(super) fn slack(case: &Case) -> f64 {
    match case.op {
        // It goes token by token, and each block of channels reads `b` and `c` for itself.
        "Mamba-1 prefill" => 1.8,
        // A block reads rates and weights of its own.
        "Mamba-1 update" | "conv prefill" | "norm" => 1.6,
        // A warp reads its row for four outputs.
        "experts" | "sums of experts" => 1.35,
        _ => 1.3,
    }
}

struct Sizes {
    tiny: bool,
}

impl Sizes {
    /// So many of something, or a few.
    fn of(&self, large: usize, tiny: usize) -> usize {
        if self.tiny { tiny } else { large }
    }

    fn batches(&self) -> &'static [usize] {
        if self.tiny { &[2] } else { &[1, 8, 64, 256] }
    }

    fn decode(batch: usize) -> Sequences {
        Sequences::even(batch, 1, 1)
    }

    fn prefill(&self, tokens: usize) -> Sequences {
        let tokens = self.of(tokens, 64);
        Sequences::even(1, tokens, tokens)
    }

    fn states(&self) -> Vec<Case> {
        let writes = Writes::Final;
        // Nemotron-3-Nano and Mamba2-2.7B.
        let mamba = |heads, groups, state| Mamba2 {
            heads: self.of(heads, groups),
            head_dim: 64,
            d_state: 128,
            groups,
            state,
            input: BF16,
            writes,
        };
        let (nano, old) = (mamba(64, 8, F32), mamba(80, 1, F32));
        // Qwen3-Next, and Kimi-Linear, whose keys decay each for itself.
        let linear = |kind, heads, key_heads, state| LinearAttention {
            kind,
            heads: self.of(heads, 2),
            key_heads: self.of(key_heads, 1),
            key_dim: 128,
            value_dim: 128,
            state,
            input: BF16,
            writes,
        };
        let gated = linear(DeltaKind::Gated, 32, 16, F32);
        let kimi = linear(DeltaKind::Kimi, 32, 32, F32);
        let lightning = linear(DeltaKind::Lightning, 64, 64, F32);
        // Falcon-Mamba-7B and RecurrentGemma-9B.
        let channels = |recurrence, channels| Channels {
            recurrence,
            channels: self.of(channels, 512),
            state: F32,
            input: BF16,
            writes,
        };
        let falcon = channels(Recurrence::Mamba1(16), 8192);
        let griffin = channels(Recurrence::Gated, 4096);
        let mut cases = Vec::new();
        for &batch in self.batches() {
            cases.extend([nano.case(Self::decode(batch)), old.case(Self::decode(batch))]);
            cases.push(gated.case(Self::decode(batch)));
        }
        let batch = self.of(64, 2);
        cases.push(mamba(64, 8, BF16).case(Self::decode(batch)));
        cases.push(linear(DeltaKind::Gated, 32, 16, BF16).case(Self::decode(batch)));
        cases.extend([kimi.case(Self::decode(batch)), lightning.case(Self::decode(batch))]);
        cases.extend([falcon.case(Self::decode(batch)), griffin.case(Self::decode(batch))]);
        cases.extend([nano.case(self.prefill(4096)), old.case(self.prefill(4096))]);
        cases.extend([gated.case(self.prefill(8192)), kimi.case(self.prefill(8192))]);
        cases.extend([falcon.case(self.prefill(4096)), griffin.case(self.prefill(4096))]);
        cases
    }

    fn convolutions(&self) -> Vec<Case> {
        let conv =
            |channels| Convolution { channels: self.of(channels, 1024), d_conv: 4, dtype: BF16, writes: Writes::Final };
        // Nemotron-3-Nano and -Super.
        let (nano, large) = (conv(6144), conv(10240));
        let mut cases: Vec<Case> = self.batches().iter().map(|&batch| nano.case(Self::decode(batch))).collect();
        cases.push(large.case(Self::decode(self.of(64, 2))));
        cases.push(large.case(Self::decode(self.of(256, 2))));
        cases.push(large.case(self.prefill(8192)));
        cases
    }

    fn attention(&self) -> Vec<Case> {
        // Llama-3-8B.
        let llama = |pool: DType| Attention {
            format: Format {
                kv_heads: self.of(8, 1),
                head_dim: 128,
                kv_factor: 2,
                block: 16,
                order: KvLayout::Hnd,
                pool,
                scales: Scales::PerTensor,
            },
            group: 4,
            value_dim: 128,
            input: BF16,
            features: Features::default(),
        };
        // DeepSeek-V3 over 8 devices, and on one.
        let latents = |heads| {
            let format = Format { kv_heads: 1, head_dim: 576, kv_factor: 1, block: 64, ..llama(BF16).format };
            Attention { format, group: heads, value_dim: 512, ..llama(BF16) }
        };
        let at =
            |batch, context| if self.tiny { Sequences::even(2, 1, 512) } else { Sequences::even(batch, 1, context) };
        let mut cases = Vec::new();
        let sizes: &[(usize, usize)] = if self.tiny {
            &[(2, 512)]
        } else {
            &[(1, 1 << 10), (1, 32 << 10), (1, 128 << 10), (8, 128 << 10), (32, 4 << 10), (64, 8 << 10), (256, 1 << 10)]
        };
        cases.extend(sizes.iter().map(|&(batch, context)| llama(BF16).case(at(batch, context))));
        cases.push(llama(F8E4M3).case(at(32, 4 << 10)));
        cases.push(latents(16).case(at(128, 4 << 10)));
        if !self.tiny {
            cases.push(llama(F8E4M3).case(at(8, 128 << 10)));
            cases.push(latents(128).case(at(128, 4 << 10)));
            cases.push(latents(16).case(at(1, 128 << 10)));
        }
        cases.extend([BF16, F8E4M3].map(|pool| llama(pool).case(self.prefill(4096))));
        cases.push(latents(16).case(self.prefill(4096)));
        let write = CacheWrite {
            format: llama(BF16).format,
            tokens: self.of(8192, 16),
            input: BF16,
            rotated: Some((128, self.of(32, 4), false)),
        };
        cases.push(write.case());
        cases.push(CacheWrite { tokens: self.of(256, 16), ..write }.case());
        cases.push(CacheWrite { rotated: None, ..write }.case());
        cases.push(CacheWrite { rotated: None, format: llama(F8E4M3).format, ..write }.case());
        cases
    }

    fn rows(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let rows: &[usize] = if self.tiny { &[4] } else { &[64, 8192] };
        for &rows in rows {
            let plain = Norm { rows, width: self.of(4096, 1024), gate: None, input: BF16, weight: BF16 };
            cases.push(plain.case());
            cases.push(Norm { gate: Some((8, GateOrder::GateThenNorm)), ..plain }.case());
            cases.push(Elementwise::SiluProduct.case(rows, self.of(14336, 1024), BF16));
            cases.push(Elementwise::WeightedSum.case(rows, self.of(4096, 1024), BF16));
        }
        cases.push(
            Product { rows: self.of(4096, 16), inputs: 4096, outputs: self.of(14336, 16), input: BF16, weight: BF16 }
                .case(),
        );
        cases
    }

    /// The experts of a Qwen3-30B: inward, and back.
    fn experts(&self) -> Vec<Case> {
        let rows: &[usize] = if self.tiny { &[1] } else { &[1, 8] };
        let experts = |rows: usize, inputs, outputs, summed| {
            let per_token = self.of(8, 2);
            Experts { rows, per_token, experts: self.of(128, 2), inputs, outputs, bias: false, summed, dtype: BF16 }
                .case()
        };
        let each = |&rows: &usize| {
            [experts(rows, 2048, self.of(1536, 32), false), experts(rows, 768, self.of(2048, 32), true)]
        };
        rows.iter().flat_map(each).collect()
    }

    fn moves(&self) -> Vec<Case> {
        // Blocks of 16 tokens of 32 layers, and the states of a sequence over 23 layers.
        let blocks = Pool { rows: self.of(256, 4), elements: self.of(32 * 2 * 8 * 16 * 128, 8192), dtype: BF16 };
        let states = Pool { rows: self.of(16, 2), elements: self.of(23 * 64 * 64 * 128, 8192), dtype: F32 };
        vec![blocks.case(Move::Copy), blocks.case(Move::Zero), states.case(Move::Copy)]
    }
}
