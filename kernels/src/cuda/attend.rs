//! `paged_attend.cu`: attention over pools of any format and heads of any width, token by token.

use super::call::{Call, Stretches};
use super::{Argument, Buffers, Launch, VECTOR, format, is_vector, pool_format};
use candle_core::DType;

const THREADS: usize = 128;

/// Lanes on a row of the pool and vectors of a lane, as the kernel was made for them.
fn lanes(query: DType, pool: DType, head_dim: usize) -> Option<(usize, usize)> {
    let vectors = head_dim.div_ceil(VECTOR / pool.size_in_bytes());
    match (vectors, query, pool) {
        (..=32, ..) => Some((vectors.next_power_of_two().max(4), 1)),
        (..=64, ..) => Some((32, 2)),
        (..=96, DType::BF16 | DType::F16, DType::BF16 | DType::F16) => Some((32, 3)),
        (..=160, DType::F32, DType::F32) => Some((32, 5)),
        _ => None,
    }
}

/// The launches of a step, unless the kernel was not made for it.
pub(super) fn launches<'a>(call: &Call<'_, 'a>, buffers: &mut Buffers<'a>) -> Option<Vec<Launch>> {
    let &Call { view, batch, attention, head_dim, ref operands, .. } = call;
    let (query, pool) = (call.q.dtype(), call.pool.dtype());
    let latent = view.kv_factor == 1;
    let stored = pool_format(pool)?;
    let made = pool == query || call.has_bytes();
    let aligned = [view.layer_offset, view.block_elems, head_dim].iter().all(|at| is_vector(*at, pool));
    let (lanes, held) = lanes(query, pool, head_dim)?;
    if !(made && aligned) {
        return None;
    }
    // What the kernel names HEADS, and the keys that its block takes at once.
    let heads_of_block = (32 * pool.size_in_bytes() / (held * VECTOR)).clamp(1, 4);
    let keys = THREADS / lanes * [4, 2, 1][held.min(3) - 1];
    let columns = view.num_kv_heads * call.group().div_ceil(heads_of_block);
    // Four blocks fit a processor.
    let resident = 4 * call.target.processors;
    let stretches = Stretches::new(call.longest(0..usize::MAX), keys, call.tokens * columns, resident);
    let (out, scratch) = call.result(buffers, stretches);
    let scales = call.scales(buffers);
    let mut arguments = vec![operands.q, operands.pool, out, scratch[0], scratch[1]];
    arguments.extend([operands.tables, operands.kv_lens, operands.cu_seqlens, operands.sinks]);
    arguments.push(buffers.floats("slopes", attention.alibi_slopes));
    arguments.extend(scales.of_tokens_and_heads);
    arguments.push(operands.q_stride);
    arguments.extend(call.strides());
    arguments.extend([
        Argument::I64(view.layer_rows() as i64),
        Argument::I32(batch.len() as i32),
        Argument::I32(batch.max_blocks as i32),
        Argument::I32(view.tokens_per_block as i32),
        if view.tokens_per_block.is_power_of_two() { call.block_shift() } else { Argument::I32(-1) },
        Argument::I32(view.num_kv_heads as i32),
        Argument::I32(call.group() as i32),
        Argument::I32(head_dim as i32),
        Argument::I32(attention.value_dim as i32),
        Argument::I32(latent.into()),
        Argument::I32(stretches.count as i32),
        Argument::I32(stretches.tokens as i32),
    ]);
    arguments.extend(operands.window);
    arguments.extend(operands.scale);
    arguments.extend(scales.of_all);
    let attend = Launch {
        kernel: format!("paged_attend_{}_{stored}_{lanes}_{held}", format(query)?),
        grid: [call.tokens as u32, columns as u32, stretches.count as u32],
        threads: THREADS as u32,
        shared_bytes: 0,
        arguments,
    };
    Some(joined(call, attend, scratch, stretches))
}

/// A launch, and where contexts are split the one that joins what it leaves of every query token.
pub(super) fn joined(call: &Call<'_, '_>, attend: Launch, scratch: [Argument; 2], stretches: Stretches) -> Vec<Launch> {
    if stretches.count == 1 {
        return vec![attend];
    }
    let [sums, tops] = scratch;
    let sizes = [stretches.count, call.attention.value_dim].map(|size| Argument::I32(size as i32));
    let join = Launch {
        kernel: format!("join_rows_{}", format(call.q.dtype()).unwrap_or_default()),
        grid: [call.heads as u32, call.tokens as u32, 1],
        threads: THREADS as u32,
        shared_bytes: 0,
        arguments: vec![sums, tops, call.operands.sinks, call.operands.out, sizes[0], sizes[1]],
    };
    vec![attend, join]
}
