//! `paged_attend.cu`: attention over pools of any format and heads of any width, token by token.

use super::attention::{Call, Stretches};
use super::{Argument, Buffers, Launch, VECTOR, format, is_vector};
use crate::{KvQuant, KvScales};
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
    let stored = if pool == DType::F8E4M3 { "f8" } else { format(pool)? };
    let made = pool == query || pool == DType::F8E4M3;
    let aligned = [view.layer_offset, view.block_elems, head_dim].iter().all(|at| is_vector(*at, pool));
    let scales = match attention.quant {
        Some(KvQuant::Grouped(_)) => return None,
        Some(KvQuant::PerTensor(scales)) if latent => KvScales { k: scales.k, v: scales.k },
        Some(KvQuant::PerTensor(scales)) => scales,
        _ => KvScales { k: 1.0, v: 1.0 },
    };
    let (lanes, held) = lanes(query, pool, head_dim)?;
    if !(made && aligned) {
        return None;
    }
    // What the kernel names HEADS, and the keys that its block takes at once.
    let heads_of_block = (32 * pool.size_in_bytes() / (held * VECTOR)).clamp(1, 4);
    let keys = THREADS / lanes * [4, 2, 1][held.min(3) - 1];
    let columns = view.num_kv_heads * call.group().div_ceil(heads_of_block);
    // Four blocks fit a processor.
    let resident = 4 * call.device.processors;
    let stretches = Stretches::new(call.longest(0..usize::MAX), keys, call.tokens * columns, resident);
    let none = Argument::Pointer(None);
    let (out, scratch) = match stretches.count {
        1 => (operands.out, [none; 2]),
        count => (none, call.scratch(buffers, count, call.tokens)),
    };
    let (k_scales, v_scales, own_scales) = match attention.quant {
        Some(KvQuant::PerHead { k, v }) => (Some(k), Some(if latent { k } else { v }), None),
        Some(KvQuant::PerToken(scales)) => (None, None, Some(scales)),
        _ => (None, None, None),
    };
    let mut arguments = vec![operands.q, operands.pool, out, scratch[0], scratch[1]];
    arguments.extend([operands.tables, operands.kv_lens, operands.cu_seqlens, operands.sinks]);
    arguments.extend([
        buffers.floats("slopes", attention.alibi_slopes),
        buffers.input("own_scales", own_scales),
        buffers.floats("k_scales", k_scales),
        buffers.floats("v_scales", v_scales),
        operands.q_stride,
    ]);
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
    arguments.extend([scales.k, scales.v].map(Argument::F32));
    let attend = Launch {
        kernel: format!("paged_attend_{}_{stored}_{lanes}_{held}", format(query)?),
        grid: [call.tokens as u32, columns as u32, stretches.count as u32],
        threads: THREADS as u32,
        shared_bytes: 0,
        arguments,
    };
    Some(if stretches.count == 1 { vec![attend] } else { vec![attend, join(call, scratch, stretches.count)] })
}

/// The launch that joins `count` stretches of every query token.
pub(super) fn join(call: &Call<'_, '_>, [sums, tops]: [Argument; 2], count: usize) -> Launch {
    let sizes = [count, call.attention.value_dim].map(|size| Argument::I32(size as i32));
    Launch {
        kernel: format!("join_rows_{}", format(call.q.dtype()).unwrap_or_default()),
        grid: [call.heads as u32, call.tokens as u32, 1],
        threads: THREADS as u32,
        shared_bytes: 0,
        arguments: vec![sums, tops, call.operands.sinks, call.operands.out, sizes[0], sizes[1]],
    }
}
