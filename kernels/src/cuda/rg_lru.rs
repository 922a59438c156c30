//! `scan_update.cu`: the real-gated linear recurrent unit.

use super::{Argument, Buffers, Contents, Launches, Target, VECTOR, format, is_vector, states, vector_stride};
use crate::RgLruScan;
use crate::states::States;
use candle_core::DType;

/// The launches of a step, unless the kernel was not made for it.
pub(crate) fn rg_lru<'a>(input: &RgLruScan<'a>, states: &States<'a>, _target: &Target) -> Option<Launches<'a>> {
    let States { pool, view, batch } = *states;
    let channels = view.elems();
    let RgLruScan { x, input_gate, recurrence_gate, a_param, positions } = *input;
    let (state, activation) = (format(pool.dtype())?, format(x.dtype())?);
    let made = pool.dtype() == DType::F32 || pool.dtype() == x.dtype();
    let alike = [input_gate, recurrence_gate].into_iter().all(|gate| gate.dtype() == x.dtype());
    let a_made = [DType::F32, x.dtype()].contains(&a_param.dtype()) && a_param.is_contiguous();
    let aligned = [view.slot_elems, view.layer_offset, channels].iter().all(|at| is_vector(*at, pool.dtype()))
        && is_vector(a_param.layout().start_offset(), a_param.dtype());
    if !(made && alike && a_made && aligned) {
        return None;
    }
    let mut buffers = Buffers::default();
    let pool_at = buffers.add("pool", Contents::Pool(pool));
    let mut arguments = vec![
        pool_at,
        buffers.input("x", x),
        buffers.input("input_gate", input_gate),
        buffers.input("recurrence_gate", recurrence_gate),
        buffers.input("a_param", a_param),
        buffers.add("positions", Contents::Lengths(positions)),
        buffers.add("y", Contents::Output(x.dtype(), vec![x.dim(0).ok()?, channels])),
        buffers.add("slots", Contents::Indices(batch.slots)),
        buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
    ];
    arguments.extend(states::writes(&mut buffers, states, pool_at));
    arguments.extend([
        Argument::I64(view.slot_elems as i64),
        Argument::I64(view.layer_offset as i64),
        Argument::I64(vector_stride(x)?),
        Argument::I64(vector_stride(input_gate)?),
        Argument::I64(vector_stride(recurrence_gate)?),
        Argument::I32(channels as i32),
        Argument::I32((a_param.dtype() == DType::F32).into()),
    ]);
    let threads = 128;
    let vectors = channels * pool.dtype().size_in_bytes() / VECTOR;
    let grid = [vectors.div_ceil(threads), batch.len(), 1];
    Some(buffers.launch(format!("rg_lru_{state}_{activation}"), grid, threads, arguments))
}
