//! `route_experts.cu`: the choice of experts.

use super::{Argument, Buffers, Contents, Launches, Target, format, is_plain, row_stride};
use crate::ops::routing::Routing;
use candle_core::{DType, Tensor};

const LANES: usize = 32;
/// Experts that instantiations have room for.
const MOST_EXPERTS: [usize; 4] = [64, 128, 256, 512];

/// The launch of a choice, unless the kernel was not made for it.
pub(crate) fn route<'a>(
    routing: &Routing,
    logits: &'a Tensor,
    correction: Option<&'a Tensor>,
    _target: &Target,
) -> Option<Launches<'a>> {
    let Routing { experts, experts_per_token, groups, top_groups, best_of_group, softmax, normalise, scale } = *routing;
    let room = MOST_EXPERTS.into_iter().find(|&room| experts <= room)?;
    let known_worth = groups == 1 || best_of_group == 2;
    if experts_per_token > LANES || groups > LANES || !known_worth || !is_plain(correction) {
        return None;
    }
    let rows = logits.dims()[0];
    let mut buffers = Buffers::default();
    let arguments = vec![
        buffers.input("logits", logits),
        buffers.input("correction", correction),
        buffers.add("chosen", Contents::Output(DType::U32, vec![rows, experts_per_token])),
        buffers.add("weights", Contents::Output(DType::F32, vec![rows, experts_per_token])),
        Argument::I64(row_stride(logits)?),
        Argument::I32(experts as i32),
        Argument::I32(experts_per_token as i32),
        Argument::I32(groups as i32),
        Argument::I32(top_groups as i32),
        Argument::I32(softmax.into()),
        Argument::I32(normalise.into()),
        Argument::F32(scale as f32),
    ];
    let kernel = format!("route_experts_{}_{room}", format(logits.dtype())?);
    Some(buffers.launch(kernel, [rows, 1, 1], LANES, arguments))
}
