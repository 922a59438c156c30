//! `mla_decode.cu`: absorbed latent attention of one query token of each sequence.

use super::{Argument, Buffers, Contents, Device, Launch, Launches, attention, format, is_vector, room, vector_stride};
use crate::{KvLayerView, PagedAttention, PagedBatch, Window};
use candle_core::{DType, Tensor};

/// What `mla_decode.cu` names `kKeys`, `kValues`, `kRows`, `kTile`, `kWarps`, `kStages` and `kScoreRow`.
const KEYS: usize = 576;
const VALUES: usize = 512;
const ROWS: usize = 16;
const TILE: usize = 32;
const WARPS: usize = 8;
const STAGES: usize = 2;
const SCORE_ROW: usize = TILE + 8;

/// The launches of a decode step, unless the kernel was not made for it.
pub(super) fn paged_attention<'a>(
    q: &'a Tensor,
    pool: &'a Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'a>,
    attention: &PagedAttention<'a>,
    device: &Device,
) -> Option<Launches<'a>> {
    let &[tokens, heads, KEYS] = q.dims() else { return None };
    let narrow = matches!(pool.dtype(), DType::F16 | DType::BF16) && q.dtype() == pool.dtype();
    let made = view.kv_factor == 1 && view.num_kv_heads == 1 && attention.value_dim == VALUES;
    let plain = attention.alibi_slopes.is_none() && attention.softcap.is_none() && attention.window == Window::Full;
    let aligned = [view.layer_offset, view.block_elems].iter().all(|at| is_vector(*at, pool.dtype()));
    let decode = (0..batch.len()).all(|sequence| batch.kv_lens[sequence] == 0 || batch.rows(sequence).len() <= 1);
    if !(narrow && made && plain && aligned && decode && view.tokens_per_block.is_power_of_two()) {
        return None;
    }
    let row_tiles = heads.div_ceil(ROWS);
    let longest = room(batch, view);
    let tiles = longest.div_ceil(TILE).max(1);
    // Two blocks of 94 KB fit a processor.
    let resident = 2 * device.processors;
    let tiles_of_split = tiles.div_ceil(attention::splits(tiles, row_tiles * batch.len(), resident));
    let splits = tiles.div_ceil(tiles_of_split);
    let rows = splits * batch.len() * heads;
    let format = format(pool.dtype())?;
    let mut buffers = Buffers::default();
    let sums = buffers.add("sums", Contents::Scratch(rows * VALUES));
    let tops = buffers.add("tops", Contents::Scratch(rows * 2));
    let cu_seqlens = buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens));
    let arguments = vec![
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
        Argument::I32(batch.max_blocks as i32),
        Argument::I32(view.tokens_per_block.trailing_zeros() as i32),
        Argument::I32(heads as i32),
        Argument::I32((tiles_of_split * TILE) as i32),
        Argument::F32(attention.scale * std::f32::consts::LOG2_E),
    ];
    let decode = Launch {
        kernel: format!("mla_decode_{format}"),
        grid: [row_tiles as u32, batch.len() as u32, splits as u32],
        threads: 32 * WARPS as u32,
        shared_bytes: (STAGES * TILE + ROWS) * KEYS * 2 + 2 * ROWS * SCORE_ROW * 4,
        arguments,
    };
    let out = buffers.add("out", Contents::Output(q.dtype(), vec![tokens, heads, VALUES]));
    let join =
        attention::join(&mut buffers, attention.sinks, [sums, tops, out, cu_seqlens], [heads, batch.len(), splits]);
    let join = Launch { kernel: format!("join_splits_{format}_{VALUES}"), threads: VALUES as u32, ..join };
    Some(Launches { buffers: buffers.0, launches: vec![decode, join] })
}
