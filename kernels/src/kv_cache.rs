//! Writes this step's keys and values into a paged pool.

use crate::error::{KernelError, Result};
use crate::portable;
use crate::storage::{DisjointMut, Element, Input, Rows, with_float_pool, with_pool_mut};
use crate::view::KvLayerView;
use candle_core::Tensor;
use rayon::prelude::*;

const OP: &str = "reshape_and_cache";

/// Writes `k` and `v` `[total_tokens, num_kv_heads, head_dim]` into the layer's blocks.
///
/// Token `t` goes to slot `slot_mapping[t]`, which is `block * tokens_per_block + offset in the block`; -1 skips it.
/// A layer with `kv_factor` 1 takes no `v`. A slot named twice keeps the later token.
pub fn reshape_and_cache(
    pool: &Tensor,
    view: &KvLayerView,
    k: &Tensor,
    v: Option<&Tensor>,
    slot_mapping: &[i64],
) -> Result<()> {
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
    check_slots(slot_mapping, num_blocks * view.tokens_per_block)?;
    if !pool.device().is_cpu() {
        return portable::kv_cache::reshape_and_cache(pool, view, k, v, slot_mapping);
    }
    let k = Input::new(k)?;
    let v = v.map(Input::new).transpose()?;
    let inputs = [Some(k.rows()), v.as_ref().map(Input::rows)];
    for (input, operand) in inputs.iter().zip(["k", "v"]) {
        if let Some(rows) = input {
            rows.expect(OP, operand, slot_mapping.len(), view.num_kv_heads * view.head_dim)?;
        }
    }
    with_float_pool!(OP, pool.dtype(), T => with_pool_mut::<T, _>(OP, pool, |pool| {
        write(pool, view, inputs, slot_mapping);
        Ok(())
    }))
}

fn check_slots(slot_mapping: &[i64], slots: usize) -> Result<()> {
    match slot_mapping.iter().position(|&slot| slot < -1 || slot >= slots as i64) {
        None => Ok(()),
        Some(at) => Err(KernelError::Index {
            op: OP,
            operand: "slot_mapping",
            at,
            found: slot_mapping[at],
            expected: format!("expected -1 or less than {slots}"),
        }),
    }
}

fn write<T: Element>(pool: &mut [T], view: &KvLayerView, inputs: [Option<Rows<'_>>; 2], slot_mapping: &[i64]) {
    let pool = DisjointMut::new(pool);
    // One task owns one head of keys or values, so tasks never meet and repeated slots stay in token order.
    (0..view.kv_factor * view.num_kv_heads).into_par_iter().for_each(|task| {
        let (kv, head) = (task / view.num_kv_heads, task % view.num_kv_heads);
        let Some(rows) = inputs[kv] else { return };
        for (token, &slot) in slot_mapping.iter().enumerate() {
            let Ok(slot) = usize::try_from(slot) else {
                continue;
            };
            let block = slot / view.tokens_per_block;
            let start = block * view.block_elems + view.row_offset(kv, head, slot % view.tokens_per_block);
            let source = &rows.row(token)[head * view.head_dim..][..view.head_dim];
            // SAFETY: rows of different (kv, head) never overlap, and this task alone has this pair.
            let target = unsafe { pool.slice(start..start + view.head_dim) };
            for (target, &source) in target.iter_mut().zip(source) {
                *target = T::store(source);
            }
        }
    });
}
