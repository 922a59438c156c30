//! Linear attention: `linear_attention_update.cu` token by token, `chunk_delta.cu` over many tokens of a sequence.

use super::{
    Argument, Buffers, Contents, Device, Launch, Launches, MAX_TOKENS, VECTOR, format, is_short, is_vector, row_stride,
    states, vector_stride,
};
use crate::{LinearAttentionScan, StateBatch, StateDecay, StateLayerView};
use candle_core::{DType, Tensor};

/// Value columns of a block for each number of keys that the kernel was made for.
fn columns_of_block(key_dim: usize) -> Option<usize> {
    match key_dim {
        16 => Some(16),
        64 | 128 => Some(32),
        _ => None,
    }
}

/// What `chunk_delta.cu` names `kChunk`, `kValues` and `kThreads`.
const CHUNK: usize = 64;
const VALUES: usize = 64;
const THREADS: usize = 128;

/// Shared memory of a block of `chunk_delta.cu`: the inputs of a chunk, what tokens take from each other and give to each
/// other as parts of two bytes, four blocks of the diagonal, and 16 rows of 20 outputs for each warp.
fn chunk_bytes(state: DType, input: DType, key_dim: usize) -> usize {
    let parts = |dtype| match dtype {
        DType::F32 => 3,
        DType::F16 => 2,
        _ => 1,
    };
    let inputs = CHUNK * (2 * key_dim + VALUES) * input.size_in_bytes();
    let pairs = (parts(state).max(2) + parts(input)) * CHUNK * CHUNK * 2;
    inputs + pairs + 4 * 16 * 17 * 4 + THREADS / 32 * 16 * 20 * 4
}

/// The launches of a step, unless the kernel was not made for it.
pub(crate) fn linear_attention<'a>(
    input: &LinearAttentionScan<'a>,
    pool: &'a Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'a>,
    _device: &Device,
) -> Option<Launches<'a>> {
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
    let many = !is_short(batch.cu_seqlens) && !batch.rounds_each_token();
    let fits = v.dtype() != DType::F32 || key_dim < 128;
    let chunked = many && fits && !by_channel && [q, k].into_iter().all(|keys| vector_stride(keys).is_some());
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
        fixed.map_or(Argument::Pointer(None), |fixed| buffers.add("fixed", Contents::Floats(fixed))),
        buffers.input("beta", input.beta),
        buffers.add("o", Contents::Output(v.dtype(), vec![v.dim(0).ok()?, heads * value_dim])),
        buffers.add("slots", Contents::Indices(batch.slots)),
        buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
    ];
    arguments.extend(states::writes(&mut buffers, (pool, pool_at), view, batch));
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
    let chunk = format!("chunk_delta_{state}_{activation}_{key_dim}");
    let chunk_bytes = chunk_bytes(pool.dtype(), v.dtype(), key_dim);
    let chunk = launch(chunk, value_dim.div_ceil(VALUES), THREADS, chunk_bytes);
    let has_few = (0..batch.len()).any(|sequence| batch.rows(sequence).len() <= MAX_TOKENS);
    let launches = match (chunked, has_few) {
        (true, true) => vec![chunk, update],
        (true, false) => vec![chunk],
        (false, _) => vec![update],
    };
    Some(Launches { buffers: buffers.0, launches })
}
