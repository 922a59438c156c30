//! `linear_attention_update.cu`: linear attention over a few tokens of each sequence.

use super::{
    Argument, Buffers, Contents, Device, Launch, Launches, VECTOR, format, is_short, is_vector, keeps, row_stride,
    vector_stride,
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
    let keep = keeps(pool, batch)?;
    if !(made && alike && gates_made && aligned && is_short(batch.cu_seqlens) && value_dim.is_multiple_of(columns)) {
        return None;
    }
    let key_heads = k.dims()[1..].iter().product::<usize>() / key_dim;
    let mut buffers = Buffers::default();
    let arguments = vec![
        buffers.add("pool", Contents::Pool(pool)),
        buffers.input("q", q),
        buffers.input("k", k),
        buffers.input("v", v),
        buffers.input("decay", decay),
        fixed.map_or(Argument::Pointer(None), |fixed| buffers.add("fixed", Contents::Floats(fixed))),
        buffers.input("beta", input.beta),
        buffers.add("o", Contents::Output(v.dtype(), vec![v.dim(0).ok()?, heads * value_dim])),
        buffers.add("slots", Contents::Indices(batch.slots)),
        buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
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
        Argument::I32(matches!(input.decay, StateDecay::PerChannel(_)).into()),
        Argument::I32(wide[0].into()),
        Argument::I32(wide[1].into()),
        Argument::I32(input.l2_norm.into()),
        Argument::I32(keep.into()),
        Argument::F32(input.scale),
    ];
    let vectors = key_dim * columns * pool.dtype().size_in_bytes() / VECTOR;
    let launch = Launch {
        kernel: format!("linear_update_{state}_{activation}_{key_dim}_{columns}"),
        grid: [(value_dim / columns) as u32, heads as u32, batch.len() as u32],
        threads: vectors.min(128) as u32,
        shared_bytes: 0,
        arguments,
    };
    Some(Launches { buffers: buffers.0, launches: vec![launch] })
}
