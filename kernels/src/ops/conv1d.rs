//! Causal depthwise convolution over time with a carried state: what it is told, and what it refuses.

use crate::error::{KernelError, Result};
use crate::states::States;
use candle_core::Tensor;

const OP: &str = "causal_conv1d";

/// The parameters of a layer's convolution.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv1d<'a> {
    /// `[d_conv, conv_dim]`: the checkpoint's `[conv_dim, 1, d_conv]` transposed once at load, so that all operands
    /// are contiguous over channels.
    pub weight: &'a Tensor,
    /// `[conv_dim]`.
    pub bias: Option<&'a Tensor>,
    /// Whether the result `y` becomes `y * sigmoid(y)`.
    pub silu: bool,
}

/// Checks the operands of a call.
pub(super) fn check(conv: &CausalConv1d<'_>, x: &Tensor, states: &States<'_>) -> Result<()> {
    let States { pool, view, batch } = *states;
    let num_slots = view.check(OP, pool)?;
    let (total_tokens, conv_dim) = x.dims2()?;
    batch.check(OP, total_tokens, num_slots)?;
    let d_conv = view.shape[0] + 1;
    let expect = |operand, tensor: &Tensor, dims: &[usize]| {
        if tensor.dims() == dims {
            return Ok(());
        }
        Err(KernelError::shape(OP, operand, tensor, format!("{dims:?}")))
    };
    expect("x", x, &[total_tokens, view.shape[1] * view.shape[2]])?;
    expect("weight", conv.weight, &[d_conv, conv_dim])?;
    conv.bias.map_or(Ok(()), |bias| expect("bias", bias, &[conv_dim]))
}
