//! `elementwise.cu`: a gated product, a weighted sum.

use super::{Argument, Buffers, Contents, Launches, Target, VECTOR, format, is_vector, vector_stride};
use candle_core::Tensor;

const THREADS: usize = 128;

/// The launch of `silu(gate) * up`, unless the kernel was not made for it.
pub(crate) fn silu_product<'a>(gate_up: &'a Tensor, _target: &Target) -> Option<Launches<'a>> {
    let (rows, both) = gate_up.dims2().ok()?;
    let width = both / 2;
    let mut buffers = Buffers::default();
    let gate = buffers.input("gate_up", gate_up);
    let operands = [gate, Argument::Pointer(None)];
    launches("silu_product", gate_up, operands, [vector_stride(gate_up)?, 0], [rows, width], [0.0; 2], buffers)
}

/// The launch of `a * x + b * y`, unless the kernel was not made for it.
pub(crate) fn weighted_sum<'a>(x: &'a Tensor, a: f32, y: &'a Tensor, b: f32, _target: &Target) -> Option<Launches<'a>> {
    let (rows, width) = x.dims2().ok()?;
    if y.dtype() != x.dtype() {
        return None;
    }
    let mut buffers = Buffers::default();
    let operands = [buffers.input("x", x), buffers.input("y", y)];
    launches("weighted_sum", x, operands, [vector_stride(x)?, vector_stride(y)?], [rows, width], [a, b], buffers)
}

fn launches<'a>(
    name: &str,
    x: &Tensor,
    operands: [Argument; 2],
    strides: [i64; 2],
    [rows, width]: [usize; 2],
    factors: [f32; 2],
    mut buffers: Buffers<'a>,
) -> Option<Launches<'a>> {
    let dtype = x.dtype();
    if !is_vector(width, dtype) {
        return None;
    }
    let out = buffers.add("out", Contents::Output(dtype, vec![rows, width]));
    let arguments = vec![
        operands[0],
        operands[1],
        out,
        Argument::I64(strides[0]),
        Argument::I64(strides[1]),
        Argument::I32(width as i32),
        Argument::F32(factors[0]),
        Argument::F32(factors[1]),
    ];
    let vectors = width * dtype.size_in_bytes() / VECTOR;
    let grid = [rows, vectors.div_ceil(THREADS), 1];
    Some(buffers.launch(format!("{name}_{}", format(dtype)?), grid, THREADS, arguments))
}
