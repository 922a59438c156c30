//! `conv_update.cu`: the causal convolution over a few tokens of each sequence, over many, and over trees.

use super::{
    Argument, Buffers, Contents, Launch, Launches, Target, VECTOR, format, is_short, is_vector, vector_stride,
};
use crate::states::States;
use crate::{CausalConv1d, StateWrites};
use candle_core::Tensor;

/// What `conv_update.cu` names `kStretch`.
const STRETCH: usize = 64;
/// Where its arguments name the outputs.
const OUTPUT: usize = 4;

/// The launches of a step, unless the kernel was not made for it.
pub(crate) fn causal_conv1d<'a>(
    conv: &CausalConv1d<'a>,
    x: &'a Tensor,
    states: &States<'a>,
    _target: &Target,
) -> Option<Launches<'a>> {
    let States { pool, view, batch } = *states;
    let (tokens, channels) = x.dims2().ok()?;
    let (d_conv, dtype, format) = (view.shape[0] + 1, pool.dtype(), format(pool.dtype())?);
    let parameters = [Some(conv.weight), conv.bias];
    let alike = x.dtype() == dtype
        && parameters.into_iter().flatten().all(|tensor| tensor.dtype() == dtype && tensor.is_contiguous());
    let starts = parameters.into_iter().flatten().map(|tensor| tensor.layout().start_offset());
    let aligned =
        [view.slot_elems, view.layer_offset, channels].into_iter().chain(starts).all(|at| is_vector(at, dtype));
    // The state holds inputs as they came, so that stepping token by token changes no bit.
    let keep = batch.writes_final();
    if !(alike && aligned && (2..=4).contains(&d_conv)) {
        return None;
    }
    let mut buffers = Buffers::default();
    let mut arguments = vec![
        buffers.add("pool", Contents::Pool(pool)),
        buffers.input("x", x),
        buffers.input("weight", conv.weight),
        buffers.input("bias", conv.bias),
        buffers.add("y", Contents::Output(dtype, vec![tokens, channels])),
        buffers.add("slots", Contents::Indices(batch.slots)),
        buffers.add("cu_seqlens", Contents::Lengths(batch.cu_seqlens)),
    ];
    let (kept, parents) = match batch.writes {
        StateWrites::AlsoAfter(slots) => (slots, None),
        StateWrites::Tree { parents, slots } => (slots, Some(parents)),
        _ => (&[][..], None),
    };
    arguments.extend([
        buffers.indices("snapshots", (!kept.is_empty()).then_some(kept)),
        buffers.indices("parents", parents),
        Argument::I64(view.slot_elems as i64),
        Argument::I64(view.layer_offset as i64),
        Argument::I64(vector_stride(x)?),
        Argument::I32(channels as i32),
        Argument::I32(conv.silu.into()),
        Argument::I32(keep.into()),
    ]);
    let threads = 128;
    let vectors = channels * dtype.size_in_bytes() / VECTOR;
    let columns = vectors.div_ceil(threads) as u32;
    let launch = |name: &str, rows: usize, layers: usize| Launch {
        kernel: format!("{name}_{format}_{d_conv}"),
        grid: [columns, rows as u32, layers as u32],
        threads: threads as u32,
        shared_bytes: 0,
        arguments: arguments.clone(),
    };
    let longest = (0..batch.len()).map(|sequence| batch.rows(sequence).len()).max().unwrap_or(0);
    let mut tokens = launch("conv_tokens", longest, batch.len());
    if parents.is_some() {
        return Some(Launches { buffers: buffers.0, launches: vec![tokens] });
    }
    let mut launches = Vec::new();
    if !kept.is_empty() {
        // Their states alone, before that of the sequence moves on.
        tokens.arguments[OUTPUT] = Argument::Pointer(None);
        launches.push(tokens);
    }
    if is_short(&batch.cu_seqlens) {
        launches.push(launch("conv_update", batch.len(), 1));
    } else {
        launches.push(launch("conv_prefill", longest.div_ceil(STRETCH), batch.len()));
        launches.extend(keep.then(|| launch("conv_state", batch.len(), 1)));
    }
    Some(Launches { buffers: buffers.0, launches })
}
