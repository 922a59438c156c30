//! `paged_decode.cu`: attention of one query token of each sequence, and what is left to `paged_attend.cu`.

use super::{
    Argument, Buffers, Contents, Device, Launch, Launches, attend, format, is_vector, mla, room, vector_stride,
};
use crate::{KvLayerView, PagedAttention, PagedBatch, Window};
use candle_core::{DType, Tensor};

/// What `paged_decode.cu` names `kTile`, `kWarps` and `kStages`.
const TILE: usize = 16;
const WARPS: usize = 4;
const STAGES: usize = 3;

/// Query heads of a KV head: the rows of a matrix operand.
const MAX_GROUP: usize = 16;

/// The launches of a step, unless no kernel was made for it.
pub(crate) fn paged_attention<'a>(
    q: &'a Tensor,
    pool: &'a Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'a>,
    attention: &PagedAttention<'a>,
    device: &Device,
) -> Option<Launches<'a>> {
    paged_decode(q, pool, view, batch, attention, device)
        .or_else(|| mla::paged_attention(q, pool, view, batch, attention, device))
        .or_else(|| attend::paged_attention(q, pool, view, batch, attention, device))
}

/// One query token of each sequence, as matrix products.
fn paged_decode<'a>(
    q: &'a Tensor,
    pool: &'a Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'a>,
    attention: &PagedAttention<'a>,
    device: &Device,
) -> Option<Launches<'a>> {
    let &[tokens, heads, head_dim] = q.dims() else { return None };
    let group = heads / view.num_kv_heads;
    let narrow = matches!(pool.dtype(), DType::F16 | DType::BF16) && q.dtype() == pool.dtype();
    let made = matches!(head_dim, 64 | 128) && view.kv_factor == 2 && group <= MAX_GROUP;
    let plain = attention.alibi_slopes.is_none() && attention.quant.is_none();
    let blocks = view.tokens_per_block.is_power_of_two() && view.tokens_per_block >= TILE;
    let aligned = is_vector(view.layer_offset, pool.dtype()) && is_vector(view.block_elems, pool.dtype());
    let decode = (0..batch.len()).all(|sequence| batch.kv_lens[sequence] == 0 || batch.rows(sequence).len() <= 1);
    if !(narrow && made && plain && blocks && aligned && decode) {
        return None;
    }
    let (window, chunked) = match attention.window {
        Window::Full => (0, false),
        Window::Sliding(n) => (i32::try_from(n).ok()?, false),
        Window::Chunked(n) => (i32::try_from(n).ok()?, true),
    };
    let longest = room(batch, view);
    let tiles = longest.div_ceil(TILE).max(1);
    // Two blocks of 96 KB fit a processor; their warps take turns with the tiles.
    let resident = 2 * device.processors;
    let rounds = tiles.div_ceil(WARPS);
    let tiles_of_split = tiles.div_ceil(splits(rounds, view.num_kv_heads * batch.len(), resident));
    let splits = tiles.div_ceil(tiles_of_split);
    let rows = splits * batch.len() * heads;
    let element = |kv, head, token| view.row_offset(kv, head, token) as i64 - view.layer_offset as i64;
    let format = format(pool.dtype())?;
    let log2_e = std::f32::consts::LOG2_E;
    let mut buffers = Buffers::default();
    let sums = buffers.add("sums", Contents::Scratch(rows * head_dim));
    let tops = buffers.add("tops", Contents::Scratch(rows * 2));
    let cu_seqlens = buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens));
    let decode = vec![
        buffers.input("q", q),
        buffers.input("pool", pool),
        sums,
        tops,
        buffers.add("block_tables", Contents::Indices(batch.block_tables)),
        buffers.add("kv_lens", Contents::Lengths(batch.kv_lens)),
        cu_seqlens,
        Argument::I64(vector_stride(q)?),
        Argument::I64(view.block_elems as i64),
        Argument::I64(view.layer_offset as i64),
        Argument::I64(element(1, 0, 0)),
        Argument::I64(if view.num_kv_heads > 1 { element(0, 1, 0) } else { 0 }),
        Argument::I64(view.token_stride() as i64),
        Argument::I32(batch.max_blocks as i32),
        Argument::I32(view.tokens_per_block.trailing_zeros() as i32),
        Argument::I32(heads as i32),
        Argument::I32(group as i32),
        Argument::I32((tiles_of_split * TILE) as i32),
        Argument::I32(window),
        Argument::I32(chunked.into()),
        Argument::F32(attention.scale * log2_e),
        Argument::F32(attention.softcap.unwrap_or(0.0) * log2_e),
    ];
    let out = buffers.add("out", Contents::Output(q.dtype(), vec![tokens, heads, head_dim]));
    let join = join(&mut buffers, attention.sinks, [sums, tops, out, cu_seqlens], [heads, batch.len(), splits]);
    let launches = vec![
        Launch {
            kernel: format!("paged_decode_{format}_{head_dim}"),
            grid: [view.num_kv_heads as u32, batch.len() as u32, splits as u32],
            threads: 32 * WARPS as u32,
            shared_bytes: WARPS * STAGES * 2 * TILE * head_dim * pool.dtype().size_in_bytes(),
            arguments: decode,
        },
        Launch { kernel: format!("join_splits_{format}_{head_dim}"), threads: head_dim as u32, ..join },
    ];
    Some(Launches { buffers: buffers.0, launches })
}

/// The launch that joins the stretches of heads, but for its name and its threads, one for each column.
pub(super) fn join<'a>(
    buffers: &mut Buffers<'a>,
    sinks: Option<&'a [f32]>,
    [sums, tops, out, cu_seqlens]: [Argument; 4],
    [heads, sequences, splits]: [usize; 3],
) -> Launch {
    let arguments = vec![
        sums,
        tops,
        sinks.map_or(Argument::Pointer(None), |sinks| buffers.add("sinks", Contents::Floats(sinks))),
        out,
        cu_seqlens,
        Argument::I32(heads as i32),
        Argument::I32(splits as i32),
    ];
    Launch { kernel: String::new(), grid: [heads as u32, sequences as u32, 1], threads: 0, shared_bytes: 0, arguments }
}

/// Stretches that a context is split into: waves of blocks times the rounds of one, and what joining costs, in rounds. A
/// block takes the context of one sequence in `rounds`; `resident` blocks run at once.
///
/// The two constants are estimates: no device has been asked.
pub(super) fn splits(rounds: usize, blocks: usize, resident: usize) -> usize {
    const START: f64 = 4.0;
    const JOIN: f64 = 0.5;
    let cost = |splits: usize| {
        let waves = (blocks * splits).div_ceil(resident) as f64;
        waves * (rounds.div_ceil(splits) as f64 + START) + JOIN * splits as f64
    };
    (1..=rounds.min(64)).min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(1)
}
