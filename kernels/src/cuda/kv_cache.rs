//! `cache_write.cu`: keys and values into a paged pool.

use super::{Argument, Buffers, Contents, Launches, Target, VECTOR, format, pool_format, vector_stride};
use crate::ops::rope::{RopeLayout, RopeTable};
use crate::{KvLayerView, KvQuant, KvScales, KvWrite};
use candle_core::{DType, Tensor};
use std::collections::HashSet;

/// The launch of a step, unless the kernel was not made for it.
pub(crate) fn write<'a>(
    write: &KvWrite<'a>,
    rope: Option<RopeTable<'a>>,
    pool: &'a Tensor,
    view: &KvLayerView,
    _target: &Target,
) -> Option<Launches<'a>> {
    // All tokens are written at once, so that none may be named twice.
    let mut named = HashSet::new();
    let distinct = write.slot_mapping.iter().all(|&slot| slot < 0 || named.insert(slot));
    let scales = match write.quant {
        None => KvScales { k: 1.0, v: 1.0 },
        Some(KvQuant::PerTensor(scales)) => scales,
        Some(KvQuant::PerHead { .. } | KvQuant::PerToken(_)) => KvScales { k: 1.0, v: 1.0 },
        Some(KvQuant::Grouped(_)) => return None,
    };
    let mut buffers = Buffers::default();
    let target = buffers.add("pool", Contents::Pool(pool));
    let (own_scales, head_scales) = match write.quant {
        Some(KvQuant::PerToken(scales)) => (buffers.add("own_scales", Contents::Pool(scales)), None),
        Some(KvQuant::PerHead { k, v }) => (Argument::Pointer(None), Some((k, v))),
        _ => (Argument::Pointer(None), None),
    };
    let rows = Rows { k: write.k, v: write.v, rope, heads: view.num_kv_heads, head_dim: view.head_dim };
    let slots = buffers.add("slot_mapping", Contents::Slots(write.slot_mapping));
    let head_scales = head_scales.map_or([Argument::Pointer(None); 2], |(k, v)| {
        [("k_scales", k), ("v_scales", v)].map(|(name, scales)| buffers.floats(name, Some(scales)))
    });
    let places = Places { target, pool: pool.dtype(), own_scales, slots, head_scales, scales };
    let counted = pool.dims()[0].checked_mul(view.tokens_per_block)? <= u32::MAX as usize;
    if distinct && counted { rows.launches(buffers, places, view) } else { None }
}

/// Rows of a step, of which those of keys are rotated where there is a table.
pub(super) struct Rows<'a> {
    pub(super) k: &'a Tensor,
    pub(super) v: Option<&'a Tensor>,
    pub(super) rope: Option<RopeTable<'a>>,
    pub(super) heads: usize,
    pub(super) head_dim: usize,
}

/// Where rows go, and what they are divided by on the way.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) target: Argument,
    pub(super) pool: DType,
    pub(super) own_scales: Argument,
    pub(super) slots: Argument,
    pub(super) head_scales: [Argument; 2],
    pub(super) scales: KvScales,
}

impl<'a> Rows<'a> {
    /// The launch that writes the rows to where `view` says.
    pub(super) fn launches(self, mut buffers: Buffers<'a>, places: Places, view: &KvLayerView) -> Option<Launches<'a>> {
        const THREADS: usize = 128;
        let Self { k, v, rope, heads, head_dim } = self;
        let (input, pool) = (format(k.dtype())?, pool_format(places.pool)?);
        let made = places.pool == k.dtype() || k.dtype() == DType::F32 || places.pool.size_in_bytes() == 1;
        let alike = v.is_none_or(|v| v.dtype() == k.dtype());
        // Two vectors of a thread, either both rotated or neither; of two elements where others do not fit.
        let half = rope.map_or(0, |rope| rope.half);
        let fits = |vector| half.is_multiple_of(vector) && head_dim.is_multiple_of(2 * vector);
        let (name, vector) = match VECTOR / k.dtype().size_in_bytes() {
            vector if fits(vector) => ("cache_write", vector),
            _ if places.pool == k.dtype() => ("pair_write", 2),
            _ => return None,
        };
        let aligned = view.layer_offset.is_multiple_of(vector) && view.block_elems.is_multiple_of(vector);
        let pairs = head_dim / (2 * vector);
        // Lanes that find the largest of a row together lie in one warp.
        let shared_scale = places.own_scales != Argument::Pointer(None);
        let scaled = !shared_scale || (pairs.is_power_of_two() && pairs <= 32);
        if !(made && alike && fits(vector) && aligned && scaled && (1..=THREADS).contains(&pairs)) {
            return None;
        }
        let rows = heads * (1 + usize::from(v.is_some()));
        let groups = THREADS / pairs;
        let groups = if shared_scale { groups } else { groups.min(rows) };
        let element = |kv, head, token| view.row_offset(kv, head, token) as i64 - view.layer_offset as i64;
        let [k_scales, v_scales] = places.head_scales;
        let arguments = vec![
            places.target,
            places.own_scales,
            buffers.input("k", k),
            buffers.input("v", v),
            buffers.floats("cos", rope.map(|rope| rope.cos)),
            buffers.floats("sin", rope.map(|rope| rope.sin)),
            places.slots,
            k_scales,
            v_scales,
            Argument::I64(vector_stride(k)?),
            Argument::I64(v.map_or(Some(0), vector_stride)?),
            Argument::I64(view.block_elems as i64),
            Argument::I64(view.layer_offset as i64),
            Argument::I64(if v.is_some() { element(1, 0, 0) } else { 0 }),
            Argument::I64(if heads > 1 { element(0, 1, 0) } else { 0 }),
            Argument::I64(view.token_stride() as i64),
            Argument::I64(view.layer_rows() as i64),
            Argument::I32(view.tokens_per_block as i32),
            Argument::I32(heads as i32),
            Argument::I32(head_dim as i32),
            Argument::I32(half as i32),
            Argument::I32(rope.is_some_and(|rope| rope.layout == RopeLayout::Interleaved).into()),
            Argument::F32(places.scales.k),
            Argument::F32(places.scales.v),
        ];
        let grid = [k.dims()[0], 1, 1];
        Some(buffers.launch(format!("{name}_{input}_{pool}"), grid, pairs * groups, arguments))
    }
}
