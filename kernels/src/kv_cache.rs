//! Writes this step's keys and values into a paged pool.

use crate::check;
use crate::error::{KernelError, Result};
use crate::portable;
use crate::quant::{KvQuant, check_quant, narrow_row};
use crate::rope::{Rope, RopeTable};
use crate::storage::{DisjointMut, Element, Input, Rows, with_kv_pool, with_pool_mut};
use crate::view::KvLayerView;
use candle_core::Tensor;
use rayon::prelude::*;
use std::cell::RefCell;

const OP: &str = "reshape_and_cache";

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

/// As [`reshape_and_cache`], into a pool of 8-bit or 4-bit numbers.
///
/// An element is stored as the nearest of the pool's numbers to `value / scale`; what lies beyond them becomes the
/// largest.
pub fn quantize_and_cache(
    pool: &Tensor,
    view: &KvLayerView,
    k: &Tensor,
    v: Option<&Tensor>,
    slot_mapping: &[i64],
    quant: KvQuant<'_>,
) -> Result<()> {
    write(pool, view, k, v, slot_mapping, Some(&quant), None)
}

/// Rotates `q` and `k` and writes `k` and `v`, in one pass over each. Returns the rotated `q`.
///
/// `positions` are as [`Rope::apply`] takes them; `quant` belongs to an 8-bit or 4-bit pool.
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
    quant: Option<KvQuant<'_>>,
) -> Result<Tensor> {
    let (tokens, head_dim) = (slot_mapping.len(), head_dim(k, view));
    if !matches!(q.dims(), &[rows, _, width] if (rows, width) == (tokens, head_dim)) {
        let expected = format!("[{tokens}, num_heads, {head_dim}]");
        return Err(KernelError::Shape { op: OP, operand: "q", found: q.dims().to_vec(), expected });
    }
    let table = rope.table(positions, tokens, head_dim)?;
    write(pool, view, k, v, slot_mapping, quant.as_ref(), Some(&table))?;
    table.apply(q)
}

fn write(
    pool: &Tensor,
    view: &KvLayerView,
    k: &Tensor,
    v: Option<&Tensor>,
    slot_mapping: &[i64],
    quant: Option<&KvQuant<'_>>,
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
    let head_dim = head_dim(k, view);
    check_quant(OP, pool, view, quant, head_dim)?;
    for (operand, tensor) in [("k", Some(k)), ("v", v)] {
        if let Some(tensor) = tensor {
            check::rows(OP, operand, tensor, slot_mapping.len(), view.num_kv_heads * head_dim)?;
        }
    }
    check_slots(slot_mapping, num_blocks * view.tokens_per_block)?;
    if !pool.device().is_cpu() {
        return portable::kv_cache::write(pool, view, k, v, slot_mapping, quant, rope);
    }
    let k = Input::new(k)?;
    let v = v.map(Input::new).transpose()?;
    let scatter = Scatter {
        view,
        head_dim,
        parts: [Some(Part { rows: k.rows(), rope }), v.as_ref().map(|v| Part { rows: v.rows(), rope: None })],
        quant,
        slot_mapping,
    };
    with_kv_pool!(OP, pool.dtype(), T => with_pool_mut::<T, _>(OP, pool, |pool| match quant {
        Some(KvQuant::PerToken(scales)) => with_pool_mut::<f32, _>(OP, scales, |scales| {
            scatter.run(pool, Some(scales));
            Ok(())
        }),
        _ => {
            scatter.run(pool, None);
            Ok(())
        }
    }))
}

/// Elements of a row of `k` `[total_tokens, num_kv_heads, head_dim]`; those of the layer, if it has no tokens.
fn head_dim(k: &Tensor, view: &KvLayerView) -> usize {
    let rows = k.dims().first().map_or(0, |tokens| tokens.saturating_mul(view.num_kv_heads));
    k.elem_count().checked_div(rows).unwrap_or(view.head_dim)
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
    rope: Option<&'a RopeTable>,
}

/// One call on the CPU.
struct Scatter<'a> {
    view: &'a KvLayerView,
    head_dim: usize,
    parts: [Option<Part<'a>>; 2],
    quant: Option<&'a KvQuant<'a>>,
    slot_mapping: &'a [i64],
}

impl Scatter<'_> {
    /// Writes rows into `pool` and, where each has its own, their scales into `scales`.
    fn run<T: Element>(&self, pool: &mut [T], scales: Option<&mut [f32]>) {
        thread_local! {
            static ROTATED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let Self { view, head_dim, parts, quant, slot_mapping } = *self;
        let pool = DisjointMut::new(pool);
        let scales = scales.map(DisjointMut::new);
        let format = match quant {
            Some(KvQuant::Grouped(format)) => Some(*format),
            _ => None,
        };
        // One task owns one head of keys or values, so tasks never meet and repeated slots stay in token order.
        (0..view.kv_factor * view.num_kv_heads).into_par_iter().for_each(|task| {
            let (kv, head) = (task / view.num_kv_heads, task % view.num_kv_heads);
            let Some(Part { rows, rope }) = parts[kv] else { return };
            let factor = quant.map_or(1.0, |quant| 1.0 / quant.factor(view, kv, head));
            let mut rotated = ROTATED.take();
            rotated.resize(head_dim, 0.0);
            for (token, &slot) in slot_mapping.iter().enumerate() {
                let Ok(slot) = usize::try_from(slot) else { continue };
                let (block, offset) = (slot / view.tokens_per_block, slot % view.tokens_per_block);
                let start = block * view.block_elems + view.row_offset(kv, head, offset);
                let mut source = &rows.row(token)[head * head_dim..][..head_dim];
                if let Some(rope) = rope {
                    rope.rotate(token, source, &mut rotated);
                    source = &rotated;
                }
                // SAFETY: rows of different (kv, head) never overlap, and this task alone has this pair.
                let target = unsafe { pool.slice(start..start + view.head_dim) };
                let own_scale = scales.as_ref().map(|scales| {
                    let row = block * view.layer_rows() + view.row(kv, head, offset);
                    // SAFETY: as above.
                    unsafe { &mut scales.slice(row..row + 1)[0] }
                });
                narrow_row(source, factor, own_scale, format, target);
            }
            ROTATED.set(rotated);
        });
    }
}
