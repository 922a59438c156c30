//! `paged_decode.cu`: attention of the sequences that have one query token, and the join of stretches of theirs.

use super::call::{Call, Stretches};
use super::{Argument, Buffers, Launch, format, pool_format};
use candle_core::DType;

/// What `paged_decode.cu` names `kRun`, `kWarps` and `kStages`.
const RUN: usize = 16;
const WARPS: usize = 4;
const STAGES: usize = 3;

/// Query heads of a KV head: the rows of a matrix operand.
const MAX_GROUP: usize = 16;

/// Whether the kernel was made for a call over a narrow pool.
pub(super) fn makes(call: &Call<'_, '_>) -> bool {
    let made = matches!(call.head_dim, 64 | 128) && call.view.kv_factor == 2 && call.group() <= MAX_GROUP;
    made && call.view.tokens_per_block >= RUN && call.attention.alibi_slopes.is_none()
}

/// The launches for sequences of one query token, and for padding.
pub(super) fn launches<'a>(call: &Call<'_, 'a>, buffers: &mut Buffers<'a>) -> Vec<Launch> {
    let (head_dim, kv_heads, pool) = (call.head_dim, call.view.num_kv_heads, call.pool.dtype());
    // A pool of 8 bits has twice the tokens to a tile, and may have scales for each.
    let (tile, scale_bytes) = if pool.size_in_bytes() == 1 { (2 * RUN, 4) } else { (RUN, 0) };
    let row_bytes = head_dim * pool.size_in_bytes() + scale_bytes;
    // Two blocks of up to 99 KB fit a processor; their warps take turns with the tiles.
    let blocks = kv_heads * call.singles();
    let stretches = Stretches::new(call.longest(1..2), tile * WARPS, blocks, 2 * call.target.processors);
    let scratch = call.scratch(buffers, stretches.count, call.batch.len());
    let told = &call.operands;
    let scales = call.scales(buffers);
    let mut arguments = vec![told.q, told.pool, scratch[0], scratch[1], told.tables, told.kv_lens, told.cu_seqlens];
    arguments.extend(scales.of_tokens_and_heads);
    arguments.push(told.q_stride);
    arguments.extend(call.strides());
    arguments.extend([
        Argument::I64(call.view.layer_rows() as i64),
        Argument::I32(call.batch.max_blocks as i32),
        call.block_shift(),
        Argument::I32(call.heads as i32),
        Argument::I32(call.group() as i32),
        Argument::I32(stretches.tokens as i32),
    ]);
    arguments.extend(told.window);
    arguments.extend(told.scale);
    arguments.extend(scales.of_all);
    arguments.push(Argument::I32((call.q.dtype() == DType::BF16).into()));
    let decode = Launch {
        kernel: format!("paged_decode_{}_{head_dim}", pool_format(pool).unwrap_or_default()),
        grid: [kv_heads as u32, call.batch.len() as u32, stretches.count as u32],
        threads: 32 * WARPS as u32,
        shared_bytes: WARPS * STAGES * 2 * tile * row_bytes,
        arguments,
    };
    vec![decode, join(call, scratch, stretches.count)]
}

/// The launch that joins `count` stretches of sequences of one query token.
pub(super) fn join(call: &Call<'_, '_>, [sums, tops]: [Argument; 2], count: usize) -> Launch {
    let told = &call.operands;
    let sizes = [call.heads, count].map(|size| Argument::I32(size as i32));
    let columns = call.attention.value_dim;
    Launch {
        kernel: format!("join_splits_{}_{columns}", format(call.q.dtype()).unwrap_or_default()),
        grid: [call.heads as u32, call.batch.len() as u32, 1],
        threads: columns as u32,
        shared_bytes: 0,
        arguments: vec![sums, tops, told.sinks, told.out, told.kv_lens, told.cu_seqlens, sizes[0], sizes[1]],
    }
}
