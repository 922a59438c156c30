//! Writes of keys and values on the CPU.

use super::codec::narrow_row;
use super::element::Element;
use super::output::DisjointMut;
use super::rope::rotate;
use super::storage::{Input, Rows, with_kv_pool, with_pool_mut};
use super::tasks::for_each;
use crate::error::Result;
use crate::ops::kv_cache::KvWrite;
use crate::ops::quant::KvQuant;
use crate::ops::rope::RopeTable;
use crate::view::KvLayerView;
use candle_core::Tensor;
use rayon::prelude::*;
use std::cell::RefCell;

const OP: &str = "reshape_and_cache";

/// Writes keys, rotated where there is a table, and values.
pub(crate) fn write(write: &KvWrite<'_>, rope: Option<RopeTable<'_>>, pool: &Tensor, view: &KvLayerView) -> Result<()> {
    let k = Input::new(write.k)?;
    let v = write.v.map(Input::new).transpose()?;
    let quant = write.quant.as_ref();
    let scatter = Scatter {
        view,
        head_dim: write.head_dim(view),
        parts: [Some(Part { rows: k.rows(), rope }), v.as_ref().map(|v| Part { rows: v.rows(), rope: None })],
        quant,
        slot_mapping: write.slot_mapping.host(),
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

/// Keys or values on their way into the pool.
#[derive(Clone, Copy)]
struct Part<'a> {
    rows: Rows<'a>,
    rope: Option<RopeTable<'a>>,
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
        for_each((0..view.kv_factor * view.num_kv_heads).into_par_iter(), |task| {
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
                    rotate(rope, token, source, &mut rotated);
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
