//! A call of attention over a paged pool: what all its kernels are told, and how contexts are split.

use super::{Argument, Buffers, Contents, Target, is_vector, room, vector_stride};
use crate::{KvLayerView, KvQuant, KvScales, PagedAttention, PagedBatch, Window};
use candle_core::{DType, Tensor};
use std::ops::Range;

/// Which of two kernels takes the sequences of a call: one is made for single query tokens, one for several.
pub(super) enum Share {
    Decode,
    Both,
    Prefill,
}

/// A call of the op, as all kernels see it.
pub(super) struct Call<'c, 'a> {
    pub(super) q: &'a Tensor,
    pub(super) pool: &'a Tensor,
    pub(super) view: &'c KvLayerView,
    pub(super) batch: &'c PagedBatch<'a>,
    pub(super) attention: &'c PagedAttention<'a>,
    pub(super) target: &'c Target,
    pub(super) tokens: usize,
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) operands: Operands,
}

/// What kernels are told of a call.
pub(super) struct Operands {
    pub(super) q: Argument,
    pub(super) pool: Argument,
    pub(super) out: Argument,
    pub(super) tables: Argument,
    pub(super) kv_lens: Argument,
    pub(super) cu_seqlens: Argument,
    pub(super) sinks: Argument,
    /// Elements from one row of queries to the next.
    pub(super) q_stride: Argument,
    /// Positions of a window, 0 for all, and whether windows stand side by side.
    pub(super) window: [Argument; 2],
    /// The factor on scores and the bound of them, 0 for none, both for powers of two.
    pub(super) scale: [Argument; 2],
}

impl Operands {
    pub(super) fn new<'a>(
        buffers: &mut Buffers<'a>,
        q: &'a Tensor,
        pool: &'a Tensor,
        batch: &PagedBatch<'a>,
        attention: &PagedAttention<'a>,
    ) -> Option<Self> {
        let (window, chunked) = match attention.window {
            Window::Full => (0, false),
            Window::Sliding(n) => (i32::try_from(n).ok()?, false),
            Window::Chunked(n) => (i32::try_from(n).ok()?, true),
        };
        let log2_e = std::f32::consts::LOG2_E;
        let out = vec![q.dims()[0], q.dims()[1], attention.value_dim];
        Some(Self {
            q: buffers.input("q", q),
            pool: buffers.input("pool", pool),
            out: buffers.add("out", Contents::Output(q.dtype(), out)),
            tables: buffers.add("block_tables", Contents::Indices(batch.block_tables)),
            kv_lens: buffers.add("kv_lens", Contents::Lengths(batch.kv_lens)),
            cu_seqlens: buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
            sinks: buffers.floats("sinks", attention.sinks),
            q_stride: Argument::I64(vector_stride(q)?),
            window: [Argument::I32(window), Argument::I32(chunked.into())],
            scale: [attention.scale, attention.softcap.unwrap_or(0.0)].map(|x| Argument::F32(x * log2_e)),
        })
    }
}

/// What stored keys and values are multiplied by.
pub(super) struct Scales {
    /// Of each token and head, then keys and values of each head, where there are such.
    pub(super) of_tokens_and_heads: [Argument; 3],
    /// Of all keys, and of all values.
    pub(super) of_all: [Argument; 2],
}

/// What a sequence has of a step.
pub(super) struct Tokens {
    pub(super) queries: usize,
    pub(super) context: usize,
}

impl<'a> Call<'_, 'a> {
    /// The sequences that have a context, tokens, and as many of these as `queries` says.
    pub(super) fn sequences(&self, queries: Range<usize>) -> impl Iterator<Item = Tokens> {
        let tokens = |at| Tokens { queries: self.batch.rows(at).len(), context: self.batch.kv_lens[at] as usize };
        let live = move |tokens: &Tokens| tokens.queries > 0 && tokens.context > 0 && queries.contains(&tokens.queries);
        (0..self.batch.len()).map(tokens).filter(live)
    }

    /// Sequences of one query token; all of a step where none has more, padding too, so that launches do not depend on it.
    pub(super) fn singles(&self) -> usize {
        let decodes = self.sequences(2..usize::MAX).next().is_none();
        if decodes { self.batch.len() } else { self.sequences(1..2).count() }
    }

    /// Tokens for which the tables of such sequences have room.
    pub(super) fn longest(&self, queries: Range<usize>) -> usize {
        self.sequences(queries).next().map_or(0, |_| room(self.batch, self.view))
    }

    /// Who takes the sequences. `fills` says whether those of several tokens fill the device: else single ones go with
    /// them, so that all contexts are split.
    pub(super) fn share(&self, fills: impl FnOnce() -> bool) -> Share {
        let [all, singles] = [0..usize::MAX, 1..2].map(|queries| self.sequences(queries).count());
        match singles {
            _ if singles == all => Share::Decode,
            0 => Share::Prefill,
            _ if fills() => Share::Both,
            _ => Share::Prefill,
        }
    }

    /// Query heads of a KV head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.view.num_kv_heads
    }

    /// Whether queries are of a 16-bit type, and the pool of the same or of 8 bits and read in vectors by blocks of a
    /// power of two.
    pub(super) fn is_narrow(&self) -> bool {
        let (query, pool) = (self.q.dtype(), self.pool.dtype());
        let aligned = [self.view.layer_offset, self.view.block_elems].iter().all(|at| is_vector(*at, pool));
        let blocks = self.view.tokens_per_block.is_power_of_two();
        let made = matches!(query, DType::F16 | DType::BF16) && (pool == query || self.has_bytes());
        made && aligned && blocks
    }

    /// Whether the pool has elements of 8 bits.
    pub(super) fn has_bytes(&self) -> bool {
        !matches!(self.attention.quant, None | Some(KvQuant::Grouped(_)))
    }

    /// The scales of a pool of 8 bits; those of any other are 1.
    pub(super) fn scales(&self, buffers: &mut Buffers<'a>) -> Scales {
        let latent = self.view.kv_factor == 1;
        let (mut own, mut heads, mut all) = (None, None, KvScales { k: 1.0, v: 1.0 });
        match self.attention.quant {
            // The values of a latent are part of its keys.
            Some(KvQuant::PerTensor(scales)) => {
                all = KvScales { v: if latent { scales.k } else { scales.v }, ..scales }
            }
            Some(KvQuant::PerHead { k, v }) => heads = Some((k, if latent { k } else { v })),
            Some(KvQuant::PerToken(scales)) => own = Some(scales),
            Some(KvQuant::Grouped(_)) | None => {}
        }
        Scales {
            of_tokens_and_heads: [
                buffers.input("own_scales", own),
                buffers.floats("k_scales", heads.map(|(k, _)| k)),
                buffers.floats("v_scales", heads.map(|(_, v)| v)),
            ],
            of_all: [all.k, all.v].map(Argument::F32),
        }
    }

    /// Elements of the pool from a block to the next and to the layer; from keys to values, from head to head, and from
    /// token to token.
    pub(super) fn strides(&self) -> [Argument; 5] {
        let view = self.view;
        let element = |kv, head| (view.row_offset(kv, head, 0) - view.layer_offset) as i64;
        let values = if view.kv_factor == 2 { element(1, 0) } else { 0 };
        let heads = if view.num_kv_heads > 1 { element(0, 1) } else { 0 };
        [view.block_elems as i64, view.layer_offset as i64, values, heads, view.token_stride() as i64]
            .map(Argument::I64)
    }

    /// The logarithm of a block's tokens, where they are a power of two.
    pub(super) fn block_shift(&self) -> Argument {
        Argument::I32(self.view.tokens_per_block.trailing_zeros() as i32)
    }

    /// For `count` stretches of `rows` rows each, what they leave: sums of weights times values, then largest scores
    /// and sums of weights.
    pub(super) fn scratch(&self, buffers: &mut Buffers<'a>, count: usize, rows: usize) -> [Argument; 2] {
        let rows = count * rows * self.heads;
        let sums = buffers.add("sums", Contents::Scratch(rows * self.attention.value_dim));
        [sums, buffers.add("tops", Contents::Scratch(rows * 2))]
    }

    /// Where a kernel leaves its results: the output of the op where contexts are whole, else what is to be joined.
    pub(super) fn result(&self, buffers: &mut Buffers<'a>, stretches: Stretches) -> (Argument, [Argument; 2]) {
        let none = Argument::Pointer(None);
        match stretches.count {
            1 => (self.operands.out, [none; 2]),
            count => (none, self.scratch(buffers, count, self.tokens)),
        }
    }
}

/// How contexts are split over blocks.
#[derive(Clone, Copy)]
pub(super) struct Stretches {
    pub(super) count: usize,
    /// Tokens of each.
    pub(super) tokens: usize,
}

impl Stretches {
    /// As [`new`](Self::new) for blocks that each leave a tile of rows: where they fill the device, what joining those
    /// takes is not worth it.
    pub(super) fn of_tiles(longest: usize, round: usize, blocks: usize, resident: usize) -> Self {
        if blocks < resident { Self::new(longest, round, blocks, resident) } else { Self { count: 1, tokens: longest } }
    }

    /// As many as are done soonest: waves of blocks times the rounds of one, and what joining costs, in rounds. A block
    /// takes `round` tokens at once; there are `blocks` of them for whole contexts, of which `resident` run at once.
    ///
    /// The two constants are estimates: no device has been asked.
    pub(super) fn new(longest: usize, round: usize, blocks: usize, resident: usize) -> Self {
        const START: f64 = 4.0;
        const JOIN: f64 = 0.5;
        let rounds = longest.div_ceil(round).max(1);
        let cost = |count: usize| {
            let waves = (blocks * count).div_ceil(resident) as f64;
            waves * (rounds.div_ceil(count) as f64 + START) + JOIN * count as f64
        };
        let wanted = (1..=rounds.min(64)).min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(1);
        let tokens = rounds.div_ceil(wanted) * round;
        Self { count: longest.div_ceil(tokens).max(1), tokens }
    }
}
