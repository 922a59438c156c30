//! `experts.cu`: products with the weights of chosen experts, and their weighted sums.

use super::{Argument, Buffers, Contents, Launches, Target, format, is_plain, is_vector, vector_stride};
use crate::ops::experts::ExpertProducts;
use candle_core::Tensor;

const LANES: usize = 32;
const WARPS: usize = 4;
/// Outputs of a warp.
const OUTPUTS: usize = 4;

/// The launch of products or sums, unless the kernel was not made for them.
pub(crate) fn products<'a>(of: &ExpertProducts<'a>, _target: &Target) -> Option<Launches<'a>> {
    let ExpertProducts { x, weight, bias, chosen, shares } = *of;
    let ([rows, per_token, sharing], dtype) = (of.choices().ok()?, x.dtype());
    let (experts, outputs, inputs) = weight.dims3().ok()?;
    let alike = |tensor: &Tensor| tensor.dtype() == dtype && tensor.is_contiguous();
    let vectors = is_vector(inputs, dtype) && is_vector(weight.layout().start_offset(), dtype);
    let made = alike(weight) && bias.is_none_or(alike) && chosen.is_contiguous() && is_plain(shares);
    let tiles = outputs.div_ceil(WARPS * OUTPUTS);
    if !made || !vectors || inputs == 0 || per_token > LANES || tiles > 0xffff {
        return None;
    }
    let (name, blocks, shape) = match shares {
        Some(_) => ("expert_sums", rows, vec![rows, outputs]),
        None => ("expert_rows", rows * per_token, vec![rows, per_token, outputs]),
    };
    let mut buffers = Buffers::default();
    let arguments = vec![
        buffers.input("x", x),
        buffers.input("weight", weight),
        buffers.input("bias", bias),
        buffers.input("chosen", chosen),
        buffers.input("shares", shares),
        buffers.add("out", Contents::Output(dtype, shape)),
        Argument::I64(vector_stride(x)?),
        Argument::I32(experts as i32),
        Argument::I32(outputs as i32),
        Argument::I32(inputs as i32),
        Argument::I32(per_token as i32),
        Argument::I32(sharing as i32),
    ];
    let grid = [blocks, tiles, 1];
    Some(buffers.launch(format!("{name}_{}", format(dtype)?), grid, LANES * WARPS, arguments))
}
