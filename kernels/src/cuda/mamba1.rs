//! `scan_update.cu`: Mamba-1.

use super::{Argument, Buffers, Launch, Launches, Target, format, is_vector, row_stride, states, vector_stride};
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
    _target: &Target,
) -> Option<Launches<'a>> {
    let [outer, inner, d_state] = view.shape;
    let channels = outer * inner;
    let ScanInput { x, dt, b, c, z } = *input;
    let (state, activation) = (format(pool.dtype())?, format(x.dtype())?);
    if d_state != STATES || !is_vector(layer.a.layout().start_offset(), DType::F32) {
        return None;
    }
    let mut buffers = Buffers::default();
    let parameters = (layer.a, layer.d, &layer.time_step);
    let mut arguments = states::scan_arguments(&mut buffers, input, parameters, pool, view, batch)?;
    arguments.extend([
        Argument::I64(row_stride(x)?),
        Argument::I64(row_stride(dt)?),
        Argument::I64(vector_stride(b)?),
        Argument::I64(vector_stride(c)?),
        Argument::I64(z.map_or(Some(0), row_stride)?),
        Argument::I32(channels as i32),
        Argument::I32(layer.time_step.softplus.into()),
        Argument::F32(layer.time_step.limit.0),
        Argument::F32(layer.time_step.limit.1),
    ]);
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
