//! Writes this step's keys and values into a paged pool.

use crate::check;
use crate::error::{KernelError, Result};
use crate::portable;
use crate::rope::{Rope, RopeTable};
use crate::storage::{DisjointMut, Element, Input, Rows, with_kv_pool, with_pool_mut};
use crate::view::KvLayerView;
use candle_core::{DType, Tensor};
use rayon::prelude::*;
use std::cell::RefCell;

const OP: &str = "reshape_and_cache";

/// The factors of an 8-bit pool: a stored element times its factor is the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvScales {
    /// Of keys.
    pub k: f32,
    /// Of values.
    pub v: f32,
}

/// Writes `k` and `v` `[total_tokens, num_kv_heads, head_dim]` into the layer's blocks of an f32, f16 or bf16 pool.
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
    write(pool, view, k, v, slot_mapping, None, None)
}

/// As [`reshape_and_cache`], into a pool of 8-bit floats (`F8E4M3`) or int8 (`U8`, which holds the same bits).
///
/// An element is stored as the nearest of the pool's numbers to `value / scale`; what lies beyond them becomes the
/// largest.
pub fn quantize_and_cache(
    pool: &Tensor,
    view: &KvLayerView,
    k: &Tensor,
    v: Option<&Tensor>,
    slot_mapping: &[i64],
    scales: KvScales,
) -> Result<()> {
    write(pool, view, k, v, slot_mapping, Some(scales), None)
}

/// Rotates `q` and `k` and writes `k` and `v`, in one pass over each. Returns the rotated `q`.
///
/// `positions` are as [`Rope::apply`] takes them; `scales` belong to an 8-bit pool.
#[allow(clippy::too_many_arguments, reason = "queries, keys and values, and for each where they go")]
pub fn rope_and_cache(
    q: &Tensor,
    pool: &Tensor,
    view: &KvLayerView,
    k: &Tensor,
    v: Option<&Tensor>,
    slot_mapping: &[i64],
    rope: &Rope,
    positions: &[u32],
    scales: Option<KvScales>,
) -> Result<Tensor> {
    let table = rope.table(positions, slot_mapping.len(), view.head_dim)?;
    write(pool, view, k, v, slot_mapping, scales, Some(&table))?;
    rope.apply(q, positions)
}

fn write(
    pool: &Tensor,
    view: &KvLayerView,
    k: &Tensor,
    v: Option<&Tensor>,
    slot_mapping: &[i64],
    scales: Option<KvScales>,
    rope: Option<&RopeTable>,
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
    check_scales(OP, pool, scales)?;
    for (operand, tensor) in [("k", Some(k)), ("v", v)] {
        if let Some(tensor) = tensor {
            check::rows(OP, operand, tensor, slot_mapping.len(), view.num_kv_heads * view.head_dim)?;
        }
    }
    check_slots(slot_mapping, num_blocks * view.tokens_per_block)?;
    let scales = scales.unwrap_or(KvScales { k: 1.0, v: 1.0 });
    if !pool.device().is_cpu() {
        return portable::kv_cache::write(pool, view, k, v, slot_mapping, scales, rope);
    }
    let k = Input::new(k)?;
    let v = v.map(Input::new).transpose()?;
    let parts = [
        Some(Part { rows: k.rows(), factor: 1.0 / scales.k, rope }),
        v.as_ref().map(|v| Part { rows: v.rows(), factor: 1.0 / scales.v, rope: None }),
    ];
    with_kv_pool!(OP, pool.dtype(), T => with_pool_mut::<T, _>(OP, pool, |pool| {
        scatter(pool, view, parts, slot_mapping);
        Ok(())
    }))
}

/// An 8-bit pool goes with scales, any other without.
pub(crate) fn check_scales(op: &'static str, pool: &Tensor, scales: Option<KvScales>) -> Result<()> {
    let narrow = matches!(pool.dtype(), DType::F8E4M3 | DType::U8);
    let argument = |reason: String| Err(KernelError::Argument { op, reason });
    match scales {
        None if narrow => argument(format!("a {:?} pool needs scales", pool.dtype())),
        Some(_) if !narrow => argument(format!("a {:?} pool takes no scales", pool.dtype())),
        Some(KvScales { k, v }) if !(k.is_finite() && v.is_finite() && k > 0.0 && v > 0.0) => {
            argument(format!("scales must be positive and finite, found {k} and {v}"))
        }
        _ => Ok(()),
    }
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

/// Keys or values on their way into the pool.
#[derive(Clone, Copy)]
struct Part<'a> {
    rows: Rows<'a>,
    factor: f32,
    rope: Option<&'a RopeTable>,
}

fn scatter<T: Element>(pool: &mut [T], view: &KvLayerView, parts: [Option<Part<'_>>; 2], slot_mapping: &[i64]) {
    thread_local! {
        static ROTATED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    let pool = DisjointMut::new(pool);
    // One task owns one head of keys or values, so tasks never meet and repeated slots stay in token order.
    (0..view.kv_factor * view.num_kv_heads).into_par_iter().for_each(|task| {
        let (kv, head) = (task / view.num_kv_heads, task % view.num_kv_heads);
        let Some(Part { rows, factor, rope }) = parts[kv] else { return };
        let mut rotated = ROTATED.take();
        rotated.resize(view.head_dim, 0.0);
        for (token, &slot) in slot_mapping.iter().enumerate() {
            let Ok(slot) = usize::try_from(slot) else { continue };
            let block = slot / view.tokens_per_block;
            let start = block * view.block_elems + view.row_offset(kv, head, slot % view.tokens_per_block);
            let mut source = &rows.row(token)[head * view.head_dim..][..view.head_dim];
            if let Some(rope) = rope {
                rope.rotate(token, source, &mut rotated);
                source = &rotated;
            }
            // SAFETY: rows of different (kv, head) never overlap, and this task alone has this pair.
            let target = unsafe { pool.slice(start..start + view.head_dim) };
            for (target, &source) in target.iter_mut().zip(source) {
                *target = T::store(source * factor);
            }
        }
        ROTATED.set(rotated);
    });
}
