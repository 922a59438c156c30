//! Writes of a step's keys and values into a paged pool: what they are told, and what they refuse.

use super::check;
use super::quant::{KvQuant, check_quant};
use crate::error::{KernelError, Result};
use crate::numbers::Numbers;
use crate::view::KvLayerView;
use candle_core::Tensor;

const OP: &str = "reshape_and_cache";

/// This step's keys and values of a layer, and where they go.
#[derive(Clone, Copy, Debug)]
pub struct KvWrite<'a> {
    /// `[total_tokens, num_kv_heads, head_dim]`.
    pub k: &'a Tensor,
    /// As the keys; none for a layer with `kv_factor` 1.
    pub v: Option<&'a Tensor>,
    /// `[total_tokens]` slots, each `block * tokens_per_block + offset in the block`; -1 skips the token. A slot named
    /// twice keeps the later token.
    pub slot_mapping: Numbers<'a, i64>,
    /// How an 8-bit or 4-bit pool stores rows; none for any other. An element is stored as the nearest of the pool's
    /// numbers to `value / scale`; what lies beyond them becomes the largest.
    pub quant: Option<KvQuant<'a>>,
}

impl<'a> KvWrite<'a> {
    /// A write into an f32, f16 or bf16 pool.
    pub fn new(k: &'a Tensor, v: Option<&'a Tensor>, slot_mapping: impl Into<Numbers<'a, i64>>) -> Self {
        Self { k, v, slot_mapping: slot_mapping.into(), quant: None }
    }

    /// Elements of a key of one head; those of the layer, if there are no tokens.
    pub(crate) fn head_dim(&self, view: &KvLayerView) -> usize {
        let rows = self.k.dims().first().map_or(0, |tokens| tokens.saturating_mul(view.num_kv_heads));
        self.k.elem_count().checked_div(rows).unwrap_or(view.head_dim)
    }
}

/// Checks that queries come with the keys that they are rotated with.
pub(super) fn check_queries(write: &KvWrite<'_>, q: &Tensor, head_dim: usize) -> Result<()> {
    let tokens = write.slot_mapping.len();
    if matches!(q.dims(), &[rows, _, width] if (rows, width) == (tokens, head_dim)) {
        return Ok(());
    }
    let expected = format!("[{tokens}, num_heads, {head_dim}]");
    Err(KernelError::shape(OP, "q", q, expected))
}

/// Checks the operands of a call.
pub(super) fn check(write: &KvWrite<'_>, pool: &Tensor, view: &KvLayerView) -> Result<()> {
    let KvWrite { k, v, slot_mapping, quant } = *write;
    let num_blocks = view.check(OP, pool)?;
    if v.is_some() != (view.kv_factor == 2) {
        return Err(KernelError::Argument {
            op: OP,
            reason: format!(
                "a layer with kv_factor {} takes {} values",
                view.kv_factor,
                if view.kv_factor == 2 { "keys and" } else { "keys but no" }
            ),
        });
    }
    let head_dim = write.head_dim(view);
    check_quant(OP, pool, view, quant.as_ref(), head_dim)?;
    for (operand, tensor) in [("k", Some(k)), ("v", v)] {
        if let Some(tensor) = tensor {
            check::rows(OP, operand, tensor, slot_mapping.len(), view.num_kv_heads * head_dim)?;
        }
    }
    check_slots(&slot_mapping, num_blocks * view.tokens_per_block)
}

fn check_slots(slot_mapping: &[i64], slots: usize) -> Result<()> {
    match slot_mapping.iter().position(|&slot| slot < -1 || slot >= slots as i64) {
        None => Ok(()),
        Some(at) => Err(KernelError::index(
            OP,
            "slot_mapping",
            at,
            slot_mapping[at],
            format!("expected -1 or less than {slots}"),
        )),
    }
}
