//! `scan_update.cu`: Mamba-1.

use super::{Argument, Buffers, Launches, Target, format, is_vector, row_stride, states, vector_stride};
use crate::states::States;
use crate::{Mamba1Scan, ScanInput};
use candle_core::DType;

/// States of a channel that the kernel was made for.
const STATES: usize = 16;

/// The launches of a step, unless the kernel was not made for it.
pub(crate) fn mamba1_scan<'a>(
    input: &ScanInput<'a>,
    layer: &Mamba1Scan<'a>,
    states: &States<'a>,
    _target: &Target,
) -> Option<Launches<'a>> {
    let States { pool, view, batch } = *states;
    let [outer, inner, d_state] = view.shape;
    let channels = outer * inner;
    let ScanInput { x, dt, b, c, z } = *input;
    let (state, activation) = (format(pool.dtype())?, format(x.dtype())?);
    if d_state != STATES || !is_vector(layer.a.layout().start_offset(), DType::F32) {
        return None;
    }
    let mut buffers = Buffers::default();
    let parameters = (layer.a, layer.d, &layer.time_step);
    let mut arguments = states::scan_arguments(&mut buffers, input, parameters, states)?;
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
    let grid = [lanes.div_ceil(threads), batch.len(), 1];
    Some(buffers.launch(format!("channel_scan_{state}_{activation}"), grid, threads, arguments))
}
