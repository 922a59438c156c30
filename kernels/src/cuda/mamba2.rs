//! `state_update.cu`: Mamba-2 over a few tokens of each sequence.

use super::{
    Argument, Buffers, Contents, Device, Launch, Launches, VECTOR, format, is_plain, is_short, is_vector, keeps,
    row_stride, vector_stride,
};
use crate::{Mamba2Scan, ScanInput, StateBatch, StateLayerView};
use candle_core::{DType, Tensor};

/// Rows of a warp, as the kernel's template arguments make them.
fn rows_of_warp(state: DType, d_state: usize) -> Option<usize> {
    let steps = match (d_state, state) {
        (16, _) => 2,
        (64 | 128, DType::F32) => 8,
        (64 | 128 | 256, _) => 4,
        _ => return None,
    };
    let lanes = (d_state * state.size_in_bytes() / VECTOR).min(32);
    Some(32 / lanes * steps)
}

/// The launches of a step, unless the kernel was not made for it.
pub(crate) fn mamba2_scan<'a>(
    input: &ScanInput<'a>,
    layer: &Mamba2Scan<'a>,
    pool: &'a Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'a>,
    _device: &Device,
) -> Option<Launches<'a>> {
    let [heads, head_dim, d_state] = view.shape;
    let ScanInput { x, dt, b, c, z } = *input;
    let (state, activation) = (format(pool.dtype())?, format(x.dtype())?);
    let made = pool.dtype() == DType::F32 || pool.dtype() == x.dtype();
    let alike = [Some(dt), Some(b), Some(c), z].into_iter().flatten().all(|input| input.dtype() == x.dtype());
    let plain = is_plain(Some(layer.a)) && is_plain(layer.d) && is_plain(layer.time_step.bias);
    let aligned = [view.slot_elems, view.layer_offset].iter().all(|at| is_vector(*at, pool.dtype()));
    let keep = keeps(pool, batch)?;
    let rows_of_warp = rows_of_warp(pool.dtype(), d_state)?;
    if !(made && alike && plain && aligned && is_short(batch.cu_seqlens) && head_dim.is_multiple_of(rows_of_warp)) {
        return None;
    }
    let warps_of_head = head_dim / rows_of_warp;
    let warps = [4, 2, 1].into_iter().find(|warps| warps_of_head.is_multiple_of(*warps))?;
    let groups = b.dims()[1..].iter().product::<usize>() / d_state;
    let mut buffers = Buffers::default();
    let arguments = vec![
        buffers.add("pool", Contents::Pool(pool)),
        buffers.input("x", x),
        buffers.input("dt", dt),
        buffers.input("b", b),
        buffers.input("c", c),
        buffers.input("z", z),
        buffers.input("a", layer.a),
        buffers.input("d", layer.d),
        buffers.input("dt_bias", layer.time_step.bias),
        buffers.add("y", Contents::Output(x.dtype(), vec![x.dim(0).ok()?, heads * head_dim])),
        buffers.add("slots", Contents::Indices(batch.slots)),
        buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
        Argument::I64(view.slot_elems as i64),
        Argument::I64(view.layer_offset as i64),
        Argument::I64(vector_stride(x)?),
        Argument::I64(row_stride(dt)?),
        Argument::I64(vector_stride(b)?),
        Argument::I64(vector_stride(c)?),
        Argument::I64(z.map_or(Some(0), row_stride)?),
        Argument::I32(heads as i32),
        Argument::I32(head_dim as i32),
        Argument::I32((heads / groups) as i32),
        Argument::I32(layer.time_step.softplus.into()),
        Argument::I32(keep.into()),
        Argument::F32(layer.time_step.limit.0),
        Argument::F32(layer.time_step.limit.1),
    ];
    let launch = Launch {
        kernel: format!("state_update_{state}_{activation}_{d_state}"),
        grid: [(warps_of_head / warps) as u32, heads as u32, batch.len() as u32],
        threads: 32 * warps as u32,
        shared_bytes: 0,
        arguments,
    };
    Some(Launches { buffers: buffers.0, launches: vec![launch] })
}
