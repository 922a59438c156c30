//! Rotary position embedding on the CPU.

use super::elementwise::by_rows;
use super::storage::Input;
use crate::error::Result;
use crate::ops::rope::{RopeLayout, RopeTable};
use candle_core::Tensor;

/// Rotates `x` `[total_tokens, heads, head_dim]`.
pub(crate) fn apply(x: &Tensor, table: RopeTable<'_>) -> Result<Tensor> {
    let (tokens, heads, head_dim) = x.dims3()?;
    let input = Input::new(x)?;
    let rows = input.rows();
    by_rows(
        (tokens, heads, head_dim),
        tokens,
        x,
        #[inline(always)]
        |token, out| {
            let heads = rows.row(token).chunks_exact(head_dim);
            for (source, target) in heads.zip(out.chunks_exact_mut(head_dim)) {
                rotate(table, token, source, target);
            }
        },
    )
}

/// Rotates one head of one token.
#[inline(always)]
pub(super) fn rotate(table: RopeTable<'_>, token: usize, source: &[f32], target: &mut [f32]) {
    let half = table.half;
    let cos = &table.cos[token * half..][..half];
    let sin = &table.sin[token * half..][..half];
    target[2 * half..].copy_from_slice(&source[2 * half..]);
    match table.layout {
        RopeLayout::Neox => {
            let (first, second) = source[..2 * half].split_at(half);
            let (out_first, out_second) = target[..2 * half].split_at_mut(half);
            for i in 0..half {
                out_first[i] = first[i] * cos[i] - second[i] * sin[i];
                out_second[i] = second[i] * cos[i] + first[i] * sin[i];
            }
        }
        RopeLayout::Interleaved => {
            for i in 0..half {
                let (even, odd) = (source[2 * i], source[2 * i + 1]);
                target[2 * i] = even * cos[i] - odd * sin[i];
                target[2 * i + 1] = odd * cos[i] + even * sin[i];
            }
        }
    }
}
