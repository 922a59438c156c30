//! Mamba-2: `state_update.cu` token by token, `chunk_scan.cu` over many tokens of a sequence.

use super::{
    Argument, Buffers, Launch, Launches, MAX_TOKENS, Target, VECTOR, format, is_short, row_stride, states,
    vector_stride,
};
use crate::states::States;
use crate::{Mamba2Scan, ScanInput};
use candle_core::DType;

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

/// What `chunk_scan.cu` names `kChunk`, `kChannels` and `kThreads`.
const CHUNK: usize = 64;
const CHANNELS: usize = 64;
const THREADS: usize = 256;

/// Shared memory of a block of `chunk_scan.cu`: the inputs of a chunk (of two, if they are narrow), the state as parts of
/// two bytes, and eight rows of 40 outputs for each warp.
fn chunk_bytes(input: DType, d_state: usize) -> usize {
    let (stages, parts) = match input {
        DType::F32 => (1, 3),
        DType::F16 => (2, 2),
        _ => (2, 1),
    };
    let stage = CHUNK * (CHANNELS + 2 * d_state) * input.size_in_bytes();
    stages * stage + parts * CHANNELS * d_state * 2 + THREADS / 32 * 8 * 40 * 4
}

/// The launches of a step, unless the kernel was not made for it.
pub(crate) fn mamba2_scan<'a>(
    input: &ScanInput<'a>,
    layer: &Mamba2Scan<'a>,
    states: &States<'a>,
    _target: &Target,
) -> Option<Launches<'a>> {
    let States { pool, view, batch } = *states;
    let [heads, head_dim, d_state] = view.shape;
    let ScanInput { x, dt, b, c, z } = *input;
    let (state, activation) = (format(pool.dtype())?, format(x.dtype())?);
    let rows_of_warp = rows_of_warp(pool.dtype(), d_state)?;
    if !head_dim.is_multiple_of(rows_of_warp) {
        return None;
    }
    let warps_of_head = head_dim / rows_of_warp;
    let warps = [4, 2, 1].into_iter().find(|warps| warps_of_head.is_multiple_of(*warps))?;
    let groups = b.dims()[1..].iter().product::<usize>() / d_state;
    let many = !is_short(&batch.cu_seqlens) && !batch.rounds_each_token();
    let chunked = many && d_state <= 128 && z.is_none_or(|z| vector_stride(z).is_some());
    // A sequence takes one way whatever runs beside it.
    let few = if chunked { MAX_TOKENS as i32 } else { i32::MAX };
    let mut buffers = Buffers::default();
    let parameters = (layer.a, layer.d, &layer.time_step);
    let mut arguments = states::scan_arguments(&mut buffers, input, parameters, states)?;
    arguments.extend([
        Argument::I64(vector_stride(x)?),
        Argument::I64(row_stride(dt)?),
        Argument::I64(vector_stride(b)?),
        Argument::I64(vector_stride(c)?),
        Argument::I64(z.map_or(Some(0), row_stride)?),
        Argument::I32(heads as i32),
        Argument::I32(head_dim as i32),
        Argument::I32((heads / groups) as i32),
        Argument::I32(layer.time_step.softplus.into()),
        Argument::I32(few),
        Argument::F32(layer.time_step.limit.0),
        Argument::F32(layer.time_step.limit.1),
    ]);
    let launch = |name: &str, blocks_of_head: usize, threads: usize, shared_bytes: usize| Launch {
        kernel: format!("{name}_{state}_{activation}_{d_state}"),
        grid: [blocks_of_head as u32, heads as u32, batch.len() as u32],
        threads: threads as u32,
        shared_bytes,
        arguments: arguments.clone(),
    };
    let update = launch("state_update", warps_of_head / warps, 32 * warps, 0);
    let scan = launch("chunk_scan", head_dim.div_ceil(CHANNELS), THREADS, chunk_bytes(x.dtype(), d_state));
    let has_few = (0..batch.len()).any(|sequence| batch.rows(sequence).len() <= MAX_TOKENS);
    let launches = match (chunked, has_few) {
        (true, true) => vec![scan, update],
        (true, false) => vec![scan],
        (false, _) => vec![update],
    };
    Some(Launches { buffers: buffers.0, launches })
}
