//! `mla_decode.cu` and `mla_prefill.cu`: absorbed latent attention of one query token of each sequence, and of several.

use super::call::{Call, Share, Stretches};
use super::{Argument, Buffers, Launch, attend, decode, format};
use crate::Window;

pub(crate) use super::mla_preprocess::preprocess;

/// What both name `kKeys`, `kValues` and `kTile`.
const KEYS: usize = 576;
const VALUES: usize = 512;
const TILE: usize = 32;
const WARPS: usize = 8;
const STAGES: usize = 2;
const SCORE_ROW: usize = TILE + 8;

/// Rows of a block, a head of a query token each: what they name `kRows`.
const DECODE_ROWS: usize = 16;
const PREFILL_ROWS: usize = 64;

/// The launches of a step, unless the kernels were not made for it.
pub(super) fn launches<'a>(call: &Call<'_, 'a>, buffers: &mut Buffers<'a>) -> Option<Vec<Launch>> {
    let attention = call.attention;
    let widths = (call.head_dim, attention.value_dim, call.view.kv_factor, call.view.num_kv_heads);
    let plain = attention.alibi_slopes.is_none() && attention.softcap.is_none() && attention.window == Window::Full;
    if !(call.is_narrow() && !call.has_bytes() && widths == (KEYS, VALUES, 1, 1) && plain) {
        return None;
    }
    Some(match call.share(|| prefill_blocks(call, 2) >= call.target.processors) {
        Share::Decode => decode(call, buffers),
        Share::Both => [prefill(call, buffers, 2), decode(call, buffers)].concat(),
        Share::Prefill => prefill(call, buffers, 0),
    })
}

/// Sequences of one query token.
fn decode<'a>(call: &Call<'_, 'a>, buffers: &mut Buffers<'a>) -> Vec<Launch> {
    let (batch, told) = (call.batch, &call.operands);
    let row_tiles = call.heads.div_ceil(DECODE_ROWS);
    // Two blocks of 94 KB fit a processor.
    let blocks = row_tiles * call.singles();
    let stretches = Stretches::new(call.longest(1..2), TILE, blocks, 2 * call.target.processors);
    let scratch = call.scratch(buffers, stretches.count, batch.len());
    let mut arguments = vec![told.q, told.pool, scratch[0], scratch[1], told.tables, told.kv_lens, told.cu_seqlens];
    arguments.push(told.q_stride);
    arguments.extend(&call.strides()[..2]);
    arguments.extend([
        Argument::I32(batch.max_blocks as i32),
        call.block_shift(),
        Argument::I32(call.heads as i32),
        Argument::I32(stretches.tokens as i32),
        told.scale[0],
    ]);
    let decode = Launch {
        kernel: format!("mla_decode_{}", format(call.pool.dtype()).unwrap_or_default()),
        grid: [row_tiles as u32, batch.len() as u32, stretches.count as u32],
        threads: 32 * WARPS as u32,
        shared_bytes: (STAGES * TILE + DECODE_ROWS) * KEYS * 2 + 2 * DECODE_ROWS * SCORE_ROW * 4,
        arguments,
    };
    vec![decode, decode::join(call, scratch, stretches.count)]
}

/// Blocks for sequences of at least `fewest` query tokens, where no context is split. One fits a processor.
fn prefill_blocks(call: &Call<'_, '_>, fewest: usize) -> usize {
    let tiles = call.sequences(fewest..usize::MAX).map(|tokens| (tokens.queries * call.heads).div_ceil(PREFILL_ROWS));
    tiles.sum()
}

/// Sequences of at least `fewest` query tokens, padding included.
fn prefill<'a>(call: &Call<'_, 'a>, buffers: &mut Buffers<'a>, fewest: usize) -> Vec<Launch> {
    let (batch, told) = (call.batch, &call.operands);
    let (blocks, resident) = (prefill_blocks(call, fewest), call.target.processors);
    let stretches = Stretches::of_tiles(call.longest(fewest..usize::MAX), TILE, blocks, resident);
    let (out, scratch) = call.result(buffers, stretches);
    let mut arguments =
        vec![told.q, told.pool, out, scratch[0], scratch[1], told.tables, told.kv_lens, told.cu_seqlens];
    arguments.extend([told.sinks, told.q_stride]);
    arguments.extend(&call.strides()[..2]);
    arguments.extend([
        Argument::I32(batch.len() as i32),
        Argument::I32(batch.max_blocks as i32),
        call.block_shift(),
        Argument::I32(call.heads as i32),
        Argument::I32(stretches.count as i32),
        Argument::I32(stretches.tokens as i32),
        Argument::I32(fewest as i32),
        told.scale[0],
    ]);
    let tiles = call.tokens * call.heads / PREFILL_ROWS + batch.len();
    let prefill = Launch {
        kernel: format!("mla_prefill_{}", format(call.pool.dtype()).unwrap_or_default()),
        grid: [tiles as u32, 1, stretches.count as u32],
        threads: 32 * WARPS as u32,
        shared_bytes: (STAGES * TILE + PREFILL_ROWS) * KEYS * 2 + PREFILL_ROWS * (SCORE_ROW * (4 + 2) + 4),
        arguments,
    };
    attend::joined(call, prefill, scratch, stretches)
}
