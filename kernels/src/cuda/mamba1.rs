//! `scan_update.cu`: Mamba-1 over a few tokens of each sequence.

use super::{
    Argument, Buffers, Contents, Device, Launch, Launches, format, is_plain, is_short, is_vector, keeps, row_stride,
    vector_stride,
};
use crate::{Mamba1Scan, ScanInput, StateBatch, StateLayerView};
use candle_core::{DType, Tensor};

/// States of a channel that the kernel was made for.
const STATES: usize = 16;

/// The launches of a step, unless the kernel was not made for it.
pub(crate) fn mamba1_scan<'a>(
    input: &ScanInput<'a>,
    layer: &Mamba1Scan<'a>,
    pool: &'a Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'a>,
    _device: &Device,
) -> Option<Launches<'a>> {
    let [outer, inner, d_state] = view.shape;
    let channels = outer * inner;
    let ScanInput { x, dt, b, c, z } = *input;
    let (state, activation) = (format(pool.dtype())?, format(x.dtype())?);
    let made = d_state == STATES && (pool.dtype() == DType::F32 || pool.dtype() == x.dtype());
    let alike = [Some(dt), Some(b), Some(c), z].into_iter().flatten().all(|input| input.dtype() == x.dtype());
    let plain = [Some(layer.a), layer.d, layer.time_step.bias].into_iter().all(is_plain);
    let aligned = [view.slot_elems, view.layer_offset].iter().all(|at| is_vector(*at, pool.dtype()))
        && is_vector(layer.a.layout().start_offset(), DType::F32);
    let keep = keeps(pool, batch)?;
    if !(made && alike && plain && aligned && is_short(batch.cu_seqlens)) {
        return None;
    }
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
        buffers.add("y", Contents::Output(x.dtype(), vec![x.dim(0).ok()?, channels])),
        buffers.add("slots", Contents::Indices(batch.slots)),
        buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
        Argument::I64(view.slot_elems as i64),
        Argument::I64(view.layer_offset as i64),
        Argument::I64(row_stride(x)?),
        Argument::I64(row_stride(dt)?),
        Argument::I64(vector_stride(b)?),
        Argument::I64(vector_stride(c)?),
        Argument::I64(z.map_or(Some(0), row_stride)?),
        Argument::I32(channels as i32),
        Argument::I32(layer.time_step.softplus.into()),
        Argument::I32(keep.into()),
        Argument::F32(layer.time_step.limit.0),
        Argument::F32(layer.time_step.limit.1),
    ];
    let threads = 128;
    let lanes = channels * STATES / 4;
    let launch = Launch {
        kernel: format!("channel_scan_{state}_{activation}"),
        grid: [lanes.div_ceil(threads) as u32, batch.len() as u32, 1],
        threads: threads as u32,
        shared_bytes: 0,
        arguments,
    };
    Some(Launches { buffers: buffers.0, launches: vec![launch] })
}
