//! Linear attention: `linear_attention_update.cu` token by token, `chunk_delta.cu` over many tokens of a sequence.

use super::{
    Argument, Buffers, Contents, Launch, Launches, MAX_TOKENS, Target, VECTOR, format, is_short, is_vector, row_stride,
    states, vector_stride,
};
use crate::states::States;
use crate::{LinearAttentionScan, StateDecay};
use candle_core::DType;

/// Value columns of a block for each number of keys that the kernel was made for.
fn columns_of_block(key_dim: usize) -> Option<usize> {
    match key_dim {
        16 => Some(16),
        64 | 128 => Some(32),
        _ => None,
    }
}

/// What `chunk_delta.cu` names `kBlock` and `kValues`.
const BLOCK: usize = 16;
fn chunk_values(by_channel: bool) -> usize {
    if by_channel { 128 } else { 64 }
}

/// Shared memory of a thread block of `chunk_delta.cu`: the inputs of its tokens, what tokens of a block take from each
/// other, also as the inverse, and give to each other as parts of two bytes, and 16 rows of 20 outputs for each warp; for
/// decays of channels those, and keys and queries that have decayed as parts.
fn chunk_bytes(state: DType, input: DType, key_dim: usize, by_channel: bool) -> usize {
    let parts = |dtype| match dtype {
        DType::F32 => 3,
        DType::F16 => 2,
        _ => 1,
    };
    let (wide, narrow) = (parts(state).max(2), parts(input));
    let tokens = if by_channel { 32 } else { 64 };
    let values = chunk_values(by_channel) * if by_channel { 2 } else { 1 };
    let inputs = tokens * (2 * key_dim + values) * input.size_in_bytes();
    let pairs = (wide + narrow) * tokens * BLOCK * 2 + tokens * (BLOCK + 1) * 4;
    let decayed = (2 * wide + narrow) * tokens * key_dim * 2 + (2 * tokens + tokens / BLOCK) * key_dim * 4;
    inputs + pairs + chunk_values(by_channel) * 20 * 4 + if by_channel { decayed } else { 0 }
}

/// The launches of a step, unless the kernel was not made for it.
pub(crate) fn linear_attention<'a>(
    input: &LinearAttentionScan<'a>,
    states: &States<'a>,
    target: &Target,
) -> Option<Launches<'a>> {
    let States { pool, view, batch } = *states;
    let [heads, key_dim, value_dim] = view.shape;
    let LinearAttentionScan { q, k, v, .. } = *input;
    let columns = columns_of_block(key_dim)?;
    let (state, activation) = (format(pool.dtype())?, format(v.dtype())?);
    let made = pool.dtype() == DType::F32 || pool.dtype() == v.dtype();
    let alike = q.dtype() == v.dtype() && k.dtype() == v.dtype();
    let (decay, fixed) = match input.decay {
        StateDecay::Fixed(decay) => (None, Some(decay)),
        StateDecay::PerHead(decay) | StateDecay::PerChannel(decay) => (Some(decay), None),
    };
    let gates = [decay, input.beta];
    let wide = gates.map(|gate| gate.is_some_and(|gate| gate.dtype() == DType::F32));
    let gates_made = gates.into_iter().flatten().all(|gate| [DType::F32, v.dtype()].contains(&gate.dtype()));
    let aligned = [view.slot_elems, view.layer_offset].iter().all(|at| is_vector(*at, pool.dtype()));
    if !(made && alike && gates_made && aligned && value_dim.is_multiple_of(columns)) {
        return None;
    }
    let by_channel = matches!(input.decay, StateDecay::PerChannel(_));
    let many = !is_short(&batch.cu_seqlens) && !batch.rounds_each_token();
    let chunk_bytes = chunk_bytes(pool.dtype(), v.dtype(), key_dim, by_channel);
    let rows = [Some(q), Some(k), decay.filter(|_| by_channel)];
    let chunked = many
        && chunk_bytes <= target.shared_bytes
        && rows.into_iter().flatten().all(|rows| vector_stride(rows).is_some());
    // A sequence takes one way whatever runs beside it.
    let few = if chunked { MAX_TOKENS as i32 } else { i32::MAX };
    let key_heads = k.dims()[1..].iter().product::<usize>() / key_dim;
    let mut buffers = Buffers::default();
    let pool_at = buffers.add("pool", Contents::Pool(pool));
    let mut arguments = vec![
        pool_at,
        buffers.input("q", q),
        buffers.input("k", k),
        buffers.input("v", v),
        buffers.input("decay", decay),
        buffers.floats("fixed", fixed),
        buffers.input("beta", input.beta),
        buffers.add("o", Contents::Output(v.dtype(), vec![v.dim(0).ok()?, heads * value_dim])),
        buffers.add("slots", Contents::Indices(batch.slots)),
        buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
    ];
    arguments.extend(states::writes(&mut buffers, states, pool_at));
    arguments.extend([
        Argument::I64(view.slot_elems as i64),
        Argument::I64(view.layer_offset as i64),
        Argument::I64(row_stride(q)?),
        Argument::I64(row_stride(k)?),
        Argument::I64(vector_stride(v)?),
        Argument::I64(decay.map_or(Some(0), row_stride)?),
        Argument::I64(input.beta.map_or(Some(0), row_stride)?),
        Argument::I32(heads as i32),
        Argument::I32((heads / key_heads) as i32),
        Argument::I32(value_dim as i32),
        Argument::I32(by_channel.into()),
        Argument::I32(wide[0].into()),
        Argument::I32(wide[1].into()),
        Argument::I32(input.l2_norm.into()),
        Argument::I32(few),
        Argument::F32(input.scale),
    ]);
    let vectors = key_dim * columns * pool.dtype().size_in_bytes() / VECTOR;
    let launch = |kernel: String, blocks_of_head: usize, threads: usize, shared_bytes: usize| Launch {
        kernel,
        grid: [blocks_of_head as u32, heads as u32, batch.len() as u32],
        threads: threads as u32,
        shared_bytes,
        arguments: arguments.clone(),
    };
    let update = format!("linear_update_{state}_{activation}_{key_dim}_{columns}");
    let update = launch(update, value_dim / columns, vectors.min(128), 0);
    let rule = if by_channel { "kimi" } else { "delta" };
    let chunk = format!("chunk_{rule}_{state}_{activation}_{key_dim}");
    let chunk = launch(chunk, value_dim.div_ceil(chunk_values(by_channel)), 2 * chunk_values(by_channel), chunk_bytes);
    let has_few = (0..batch.len()).any(|sequence| batch.rows(sequence).len() <= MAX_TOKENS);
    let launches = match (chunked, has_few) {
        (true, true) => vec![chunk, update],
        (true, false) => vec![chunk],
        (false, _) => vec![update],
    };
    Some(Launches { buffers: buffers.0, launches })
}
