//! What the kernels over states are told alike: which states a step leaves behind, and the operands of a scan.

use super::{Argument, Buffers, Contents, is_plain, is_vector};
use crate::states::States;
use crate::{ScanInput, StateWrites, TimeStep};
use candle_core::{DType, Tensor};

/// The struct `Writes` of `common.cuh`.
pub(super) fn writes<'a>(buffers: &mut Buffers<'a>, states: &States<'a>, pool_at: Argument) -> [Argument; 7] {
    let States { pool, view, batch } = *states;
    const NONE: Argument = Argument::Pointer(None);
    let in_pool = (pool_at, view.slot_elems, view.layer_offset);
    let mut indices = |name, values| buffers.indices(name, Some(values));
    let ((kept, elems, offset), rows, parents) = match batch.writes {
        StateWrites::Final | StateWrites::Nothing | StateWrites::Replay => ((NONE, 0, 0), NONE, NONE),
        StateWrites::AlsoAfter(slots) => (in_pool, indices("snapshots", slots), NONE),
        StateWrites::Tree { parents, slots: [] } => {
            let parents_at = indices("parents", parents);
            // A token that follows the one before takes its state from where that left it.
            let branches = parents.iter().zip(-1..).any(|(&parent, before)| parent >= 0 && parent != before);
            let bytes = parents.len() * view.elems() * pool.dtype().size_in_bytes();
            let states = Contents::Scratch(bytes.div_ceil(size_of::<f32>()));
            let kept = if branches { buffers.add("states", states) } else { NONE };
            ((kept, view.elems(), 0), NONE, parents_at)
        }
        StateWrites::Tree { parents, slots } => (in_pool, indices("snapshots", slots), indices("parents", parents)),
    };
    [
        kept,
        rows,
        parents,
        Argument::I64(elems as i64),
        Argument::I64(offset as i64),
        Argument::I32(batch.writes_final().into()),
        Argument::I32(batch.rounds_each_token().into()),
    ]
}

/// What both Mambas begin their arguments with, up to where the layer lies in a slot; none where no kernel was made for
/// the operands.
pub(super) fn scan_arguments<'a>(
    buffers: &mut Buffers<'a>,
    input: &ScanInput<'a>,
    (a, d, time_step): (&'a Tensor, Option<&'a Tensor>, &TimeStep<'a>),
    states: &States<'a>,
) -> Option<Vec<Argument>> {
    let States { pool, view, batch } = *states;
    let ScanInput { x, dt, b, c, z } = *input;
    let made = pool.dtype() == DType::F32 || pool.dtype() == x.dtype();
    let alike = [Some(dt), Some(b), Some(c), z].into_iter().flatten().all(|input| input.dtype() == x.dtype());
    let plain = [Some(a), d, time_step.bias].into_iter().all(is_plain);
    let aligned = [view.slot_elems, view.layer_offset].iter().all(|at| is_vector(*at, pool.dtype()));
    if !(made && alike && plain && aligned) {
        return None;
    }
    let [outer, inner, _] = view.shape;
    let pool_at = buffers.add("pool", Contents::Pool(pool));
    let mut arguments = vec![
        pool_at,
        buffers.input("x", x),
        buffers.input("dt", dt),
        buffers.input("b", b),
        buffers.input("c", c),
        buffers.input("z", z),
        buffers.input("a", a),
        buffers.input("d", d),
        buffers.input("dt_bias", time_step.bias),
        buffers.add("y", Contents::Output(x.dtype(), vec![x.dim(0).ok()?, outer * inner])),
        buffers.add("slots", Contents::Indices(batch.slots)),
        buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
    ];
    arguments.extend(writes(buffers, states, pool_at));
    arguments.extend([view.slot_elems, view.layer_offset].map(|at| Argument::I64(at as i64)));
    Some(arguments)
}
