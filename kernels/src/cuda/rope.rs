//! The rotation of queries, which is a write of them into a pool of one token a block.

use super::kv_cache::{Places, Rows};
use super::{Argument, Buffers, Contents, Launches, Target};
use crate::ops::rope::RopeTable;
use crate::{KvLayerView, KvScales};
use cacheplan_handlers::KvLayout;
use candle_core::Tensor;

/// The launch that rotates `x` `[total_tokens, heads, head_dim]`, unless the kernel was not made for it.
pub(crate) fn apply<'a>(x: &'a Tensor, table: RopeTable<'a>, _target: &Target) -> Option<Launches<'a>> {
    let &[tokens, heads, head_dim] = x.dims() else { return None };
    let view = KvLayerView {
        block_elems: heads * head_dim,
        layer_offset: 0,
        kv_factor: 1,
        num_kv_heads: heads,
        head_dim,
        tokens_per_block: 1,
        order: KvLayout::Nhd,
    };
    let mut buffers = Buffers::default();
    let none = Argument::Pointer(None);
    let places = Places {
        target: buffers.add("rotated", Contents::Output(x.dtype(), vec![tokens, heads, head_dim])),
        pool: x.dtype(),
        own_scales: none,
        slots: none,
        head_scales: [none; 2],
        scales: KvScales { k: 1.0, v: 1.0 },
    };
    Rows { k: x, v: None, rope: Some(table), heads, head_dim }.launches(buffers, places, &view)
}
