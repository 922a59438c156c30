//! `paged_prefill.cu`: attention of the sequences that have several query tokens.

use super::call::{Call, Stretches};
use super::{Argument, Buffers, Launch, attend, pool_format};
use candle_core::DType;

/// What `paged_prefill.cu` names `kWarps` and `kRun`.
const WARPS: usize = 4;
const RUN: usize = 16;

/// Rows of a block's tile and tokens of one of the context, as the kernel was made for heads of this width.
fn tile(head_dim: usize) -> Option<(usize, usize)> {
    match head_dim {
        64 => Some((32 * WARPS, 64)),
        128 => Some((32 * WARPS, 32)),
        256 => Some((16 * WARPS, 32)),
        _ => None,
    }
}

/// Whether the kernel was made for a call over a narrow pool.
pub(super) fn makes(call: &Call<'_, '_>) -> bool {
    let made = tile(call.head_dim).is_some_and(|(rows, _)| call.group() <= rows) && call.view.kv_factor == 2;
    made && call.view.tokens_per_block >= RUN && call.attention.alibi_slopes.is_none()
}

/// Blocks for sequences of at least `fewest` query tokens, where no context is split.
fn blocks(call: &Call<'_, '_>, fewest: usize) -> usize {
    let query_tokens = tile(call.head_dim).map_or(1, |(rows, _)| rows / call.group());
    let several: usize =
        call.sequences(fewest.max(2)..usize::MAX).map(|tokens| tokens.queries.div_ceil(query_tokens)).sum();
    let singles = if fewest > 1 { 0 } else { call.singles() };
    call.view.num_kv_heads * (several + singles)
}

/// Blocks that run at once: two fit a processor.
fn resident(call: &Call<'_, '_>) -> usize {
    2 * call.target.processors
}

/// Whether sequences of at least `fewest` query tokens fill the device.
pub(super) fn fills(call: &Call<'_, '_>, fewest: usize) -> bool {
    blocks(call, fewest) >= resident(call)
}

/// The launches for sequences of at least `fewest` query tokens, padding included.
pub(super) fn launches<'a>(call: &Call<'_, 'a>, buffers: &mut Buffers<'a>, fewest: usize) -> Vec<Launch> {
    let (head_dim, kv_heads, pool) = (call.head_dim, call.view.num_kv_heads, call.pool.dtype());
    let (rows, tile_tokens) = tile(head_dim).unwrap_or_default();
    let query_tokens = rows / call.group();
    let longest = call.longest(fewest..usize::MAX);
    let stretches = Stretches::of_tiles(longest, tile_tokens, blocks(call, fewest), resident(call));
    let (out, [sums, tops]) = call.result(buffers, stretches);
    let told = &call.operands;
    let scales = call.scales(buffers);
    let mut arguments =
        vec![told.q, told.pool, out, sums, tops, told.tables, told.kv_lens, told.cu_seqlens, told.sinks];
    arguments.extend(scales.of_tokens_and_heads);
    arguments.push(told.q_stride);
    arguments.extend(call.strides());
    arguments.extend([
        Argument::I64(call.view.layer_rows() as i64),
        Argument::I32(call.batch.len() as i32),
        Argument::I32(call.batch.max_blocks as i32),
        call.block_shift(),
        Argument::I32(call.heads as i32),
        Argument::I32(call.group() as i32),
        Argument::I32(stretches.count as i32),
        Argument::I32(stretches.tokens as i32),
        Argument::I32(fewest as i32),
    ]);
    arguments.extend(told.window);
    arguments.extend(told.scale);
    arguments.extend(scales.of_all);
    arguments.push(Argument::I32((call.q.dtype() == DType::BF16).into()));
    // Two tiles of 16 bits; or one, another of 8 bits, five numbers for each token of it, and one for each row.
    let tile_bytes = 2 * tile_tokens * head_dim;
    let tiles = if pool.size_in_bytes() == 1 { 3 * tile_bytes + 4 * (5 * tile_tokens + rows) } else { 4 * tile_bytes };
    let attend = Launch {
        kernel: format!("paged_prefill_{}_{head_dim}", pool_format(pool).unwrap_or_default()),
        grid: [(call.tokens / query_tokens + call.batch.len()) as u32, kv_heads as u32, stretches.count as u32],
        threads: 32 * WARPS as u32,
        shared_bytes: 2 * rows * head_dim + tiles,
        arguments,
    };
    attend::joined(call, attend, [sums, tops], stretches)
}
