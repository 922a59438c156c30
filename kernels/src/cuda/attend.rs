//! `paged_attend.cu`: attention of a few query tokens of each sequence, for pools of any format.

use super::{
    Argument, Buffers, Contents, Device, Launch, Launches, VECTOR, format, is_short, is_vector, room, vector_stride,
};
use crate::{KvLayerView, KvQuant, KvScales, PagedAttention, PagedBatch, Window};
use candle_core::{DType, Tensor};

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
pub(super) fn paged_attention<'a>(
    q: &'a Tensor,
    pool: &'a Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'a>,
    attention: &PagedAttention<'a>,
    device: &Device,
) -> Option<Launches<'a>> {
    let &[tokens, heads, head_dim] = q.dims() else { return None };
    let (query, latent) = (format(q.dtype())?, view.kv_factor == 1);
    let stored = if pool.dtype() == DType::F8E4M3 { "f8" } else { format(pool.dtype())? };
    let made = pool.dtype() == q.dtype() || pool.dtype() == DType::F8E4M3;
    let aligned = [view.layer_offset, view.block_elems, head_dim].iter().all(|at| is_vector(*at, pool.dtype()));
    let scales = match attention.quant {
        Some(KvQuant::Grouped(_)) => return None,
        Some(KvQuant::PerTensor(scales)) if latent => KvScales { k: scales.k, v: scales.k },
        Some(KvQuant::PerTensor(scales)) => scales,
        _ => KvScales { k: 1.0, v: 1.0 },
    };
    let (lanes, held) = lanes(q.dtype(), pool.dtype(), head_dim)?;
    if !(made && aligned && is_short(batch.cu_seqlens)) {
        return None;
    }
    let (window, chunked) = match attention.window {
        Window::Full => (0, false),
        Window::Sliding(n) => (i32::try_from(n).ok()?, false),
        Window::Chunked(n) => (i32::try_from(n).ok()?, true),
    };
    // What the kernel names HEADS, and the keys that its block takes at once.
    let heads_of_block = (32 * pool.dtype().size_in_bytes() / (held * VECTOR)).clamp(1, 4);
    let keys = THREADS / lanes * [4, 2, 1][held.min(3) - 1];
    let group = heads / view.num_kv_heads;
    let columns = view.num_kv_heads * group.div_ceil(heads_of_block);
    let longest = room(batch, view);
    // As many stretches as give every processor four blocks, each of which is a round at least.
    let wanted = (4 * device.processors).div_ceil((tokens * columns).max(1)).min(longest.div_ceil(keys)).clamp(1, 64);
    let split_tokens = longest.div_ceil(wanted).max(1);
    let splits = longest.div_ceil(split_tokens).max(1);
    let element = |kv, head, token| view.row_offset(kv, head, token) as i64 - view.layer_offset as i64;
    let none = Argument::Pointer(None);
    let floats = |buffers: &mut Buffers<'a>, name, floats: Option<&'a [f32]>| {
        floats.map_or(none, |floats| buffers.add(name, Contents::Floats(floats)))
    };
    let mut buffers = Buffers::default();
    let (sums, tops) = if splits == 1 {
        (none, none)
    } else {
        let rows = splits * tokens * heads;
        let sums = buffers.add("sums", Contents::Scratch(rows * attention.value_dim));
        (sums, buffers.add("tops", Contents::Scratch(rows * 2)))
    };
    let out = buffers.add("out", Contents::Output(q.dtype(), vec![tokens, heads, attention.value_dim]));
    let sinks = floats(&mut buffers, "sinks", attention.sinks);
    let (k_scales, v_scales, own_scales) = match attention.quant {
        Some(KvQuant::PerHead { k, v }) => (Some(k), Some(if latent { k } else { v }), None),
        Some(KvQuant::PerToken(scales)) => (None, None, Some(scales)),
        _ => (None, None, None),
    };
    let log2_e = std::f32::consts::LOG2_E;
    let arguments = vec![
        buffers.input("q", q),
        buffers.input("pool", pool),
        if splits == 1 { out } else { none },
        sums,
        tops,
        buffers.add("block_tables", Contents::Indices(batch.block_tables)),
        buffers.add("kv_lens", Contents::Lengths(batch.kv_lens)),
        buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
        sinks,
        floats(&mut buffers, "slopes", attention.alibi_slopes),
        buffers.input("own_scales", own_scales),
        floats(&mut buffers, "k_scales", k_scales),
        floats(&mut buffers, "v_scales", v_scales),
        Argument::I64(vector_stride(q)?),
        Argument::I64(view.block_elems as i64),
        Argument::I64(view.layer_offset as i64),
        Argument::I64(if latent { 0 } else { element(1, 0, 0) }),
        Argument::I64(if view.num_kv_heads > 1 { element(0, 1, 0) } else { 0 }),
        Argument::I64(view.token_stride() as i64),
        Argument::I64(view.layer_rows() as i64),
        Argument::I32(batch.len() as i32),
        Argument::I32(batch.max_blocks as i32),
        Argument::I32(view.tokens_per_block as i32),
        Argument::I32(if view.tokens_per_block.is_power_of_two() {
            view.tokens_per_block.trailing_zeros() as i32
        } else {
            -1
        }),
        Argument::I32(view.num_kv_heads as i32),
        Argument::I32(group as i32),
        Argument::I32(head_dim as i32),
        Argument::I32(attention.value_dim as i32),
        Argument::I32(latent.into()),
        Argument::I32(splits as i32),
        Argument::I32(split_tokens as i32),
        Argument::I32(window),
        Argument::I32(chunked.into()),
        Argument::F32(attention.scale * log2_e),
        Argument::F32(attention.softcap.unwrap_or(0.0) * log2_e),
        Argument::F32(scales.k),
        Argument::F32(scales.v),
    ];
    let mut launches = vec![Launch {
        kernel: format!("paged_attend_{query}_{stored}_{lanes}_{held}"),
        grid: [tokens as u32, columns as u32, splits as u32],
        threads: THREADS as u32,
        shared_bytes: 0,
        arguments,
    }];
    if splits > 1 {
        let value_dim = Argument::I32(attention.value_dim as i32);
        launches.push(Launch {
            kernel: format!("join_rows_{query}"),
            grid: [heads as u32, tokens as u32, 1],
            threads: THREADS as u32,
            shared_bytes: 0,
            arguments: vec![sums, tops, sinks, out, Argument::I32(splits as i32), value_dim],
        });
    }
    Some(Launches { buffers: buffers.0, launches })
}
