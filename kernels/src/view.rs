//! Where one layer's cache lies inside a pool.

use crate::error::{KernelError, Result};
use cacheplan_handlers::KvLayout;
use candle_core::Tensor;

/// One layer of a KV pool `[num_blocks, block_elems]`.
///
/// A block holds all layers of the pool one after the other; this layer starts `layer_offset` elements into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayerView {
    /// Elements of a whole block, all layers together.
    pub block_elems: usize,
    /// First element of the layer inside a block.
    pub layer_offset: usize,
    /// 2 for keys and values, 1 for a latent (MLA) that serves as both.
    pub kv_factor: usize,
    /// KV heads of this layer; layers of one pool may differ.
    pub num_kv_heads: usize,
    /// Elements of the pool per head and token; bytes, where groups of elements are stored behind scales.
    pub head_dim: usize,
    /// Tokens in a block.
    pub tokens_per_block: usize,
    /// The order of the dimensions.
    pub order: KvLayout,
}

impl KvLayerView {
    /// Elements that the layer takes in each block.
    pub fn layer_elems(&self) -> usize {
        self.kv_factor * self.num_kv_heads * self.tokens_per_block * self.head_dim
    }

    /// Rows of `head_dim` elements that the layer takes in each block.
    pub(crate) fn layer_rows(&self) -> usize {
        self.kv_factor * self.num_kv_heads * self.tokens_per_block
    }

    /// Offset inside a block of row `token` of `head`; `kv` is 0 for keys and 1 for values.
    pub fn row_offset(&self, kv: usize, head: usize, token: usize) -> usize {
        self.layer_offset + self.row(kv, head, token) * self.head_dim
    }

    /// Number of a row among the layer's rows in a block.
    pub(crate) fn row(&self, kv: usize, head: usize, token: usize) -> usize {
        match self.order {
            KvLayout::Hnd => (kv * self.num_kv_heads + head) * self.tokens_per_block + token,
            KvLayout::Nhd => (kv * self.tokens_per_block + token) * self.num_kv_heads + head,
        }
    }

    /// Rows from one token of a head to its next.
    pub(crate) fn token_rows(&self) -> usize {
        match self.order {
            KvLayout::Hnd => 1,
            KvLayout::Nhd => self.num_kv_heads,
        }
    }

    /// Distance in elements between consecutive tokens of one head.
    pub(crate) fn token_stride(&self) -> usize {
        self.token_rows() * self.head_dim
    }

    /// Checks that `pool` is a pool that this view fits, and returns its number of blocks.
    pub(crate) fn check(&self, op: &'static str, pool: &Tensor) -> Result<usize> {
        let argument = |reason: String| Err(KernelError::Argument { op, reason });
        if self.kv_factor == 0 || self.kv_factor > 2 {
            return argument(format!("kv_factor is {}, expected 1 or 2", self.kv_factor));
        }
        let shape = [self.kv_factor, self.num_kv_heads, self.tokens_per_block, self.head_dim];
        check_extent(op, &shape, self.layer_offset, self.block_elems)?;
        check_pool(op, pool, self.block_elems)
    }

    /// Checks that the pool is a table of the layer's rows, which candle's own ops read it as.
    pub(crate) fn check_table(&self, op: &'static str) -> Result<()> {
        if self.layer_offset.is_multiple_of(self.head_dim) && self.block_elems.is_multiple_of(self.head_dim) {
            return Ok(());
        }
        let reason = format!(
            "layer_offset {} and block_elems {} must be multiples of head_dim {}",
            self.layer_offset, self.block_elems, self.head_dim
        );
        Err(KernelError::Argument { op, reason })
    }
}

/// One layer of a state pool `[num_slots, slot_elems]`.
///
/// A slot holds all layers of one sequence; this layer's state `[d0, d1, d2]` is contiguous at `layer_offset`.
/// Mamba-2 states are `[heads, head_dim, d_state]`, conv states `[d_conv - 1, conv_dim, 1]`,
/// delta-rule states `[value_heads, key_dim, value_dim]`, Mamba-1 states `[d_inner, 1, d_state]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateLayerView {
    /// Elements of a whole slot, all layers together.
    pub slot_elems: usize,
    /// First element of the layer inside a slot.
    pub layer_offset: usize,
    /// The shape of the layer's state.
    pub shape: [usize; 3],
}

impl StateLayerView {
    /// A Mamba-2 state `[heads, head_dim, d_state]`, or any other matrix state.
    pub fn matrix(slot_elems: usize, layer_offset: usize, shape: [usize; 3]) -> Self {
        Self { slot_elems, layer_offset, shape }
    }

    /// A conv state `[d_conv - 1, conv_dim]`.
    pub fn conv(slot_elems: usize, layer_offset: usize, d_conv: usize, conv_dim: usize) -> Self {
        Self { slot_elems, layer_offset, shape: [d_conv.saturating_sub(1), conv_dim, 1] }
    }

    /// Elements of the layer's state.
    pub fn elems(&self) -> usize {
        self.shape.iter().product()
    }

    /// Checks that `pool` is a pool that this view fits, and returns its number of slots.
    pub(crate) fn check(&self, op: &'static str, pool: &Tensor) -> Result<usize> {
        check_extent(op, &self.shape, self.layer_offset, self.slot_elems)?;
        check_pool(op, pool, self.slot_elems)
    }
}

/// Checks that a layer of `shape` from element `offset` on is something, and lies inside a unit of the pool.
fn check_extent(op: &'static str, shape: &[usize], offset: usize, unit_elems: usize) -> Result<()> {
    let argument = |reason: String| Err(KernelError::Argument { op, reason });
    if shape.contains(&0) {
        return argument(format!("the layer view {shape:?} has a dimension of size 0"));
    }
    // Kernels index the pool by these numbers without further checks, so none may wrap around.
    let end = shape.iter().try_fold(1usize, |elems, &size| elems.checked_mul(size)).and_then(|n| n.checked_add(offset));
    match end {
        Some(end) if end <= unit_elems => Ok(()),
        _ => argument(format!("the layer {shape:?} from element {offset} on ends beyond its unit of {unit_elems}")),
    }
}

fn check_pool(op: &'static str, pool: &Tensor, row_elems: usize) -> Result<usize> {
    match pool.dims() {
        [rows, elems] if *elems == row_elems && pool.is_contiguous() => Ok(*rows),
        dims => Err(KernelError::Shape {
            op,
            operand: "pool",
            found: dims.to_vec(),
            expected: format!("a contiguous [_, {row_elems}]"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    /// A size that wraps around would pass for a small one, and kernels would leave the pool.
    #[test]
    fn views_whose_size_no_integer_holds_are_refused() {
        let pool = Tensor::zeros((1, 64), DType::F32, &Device::Cpu).unwrap();
        let huge = 1 << (usize::BITS - 4);
        for (num_kv_heads, layer_offset) in [(huge + 1, 0), (1, usize::MAX)] {
            let view = KvLayerView {
                block_elems: 64,
                layer_offset,
                kv_factor: 1,
                num_kv_heads,
                head_dim: 16,
                tokens_per_block: 1,
                order: KvLayout::Hnd,
            };
            assert!(view.check("op", &pool).unwrap_err().to_string().contains("ends beyond"));
        }
        for (shape, layer_offset) in [([huge + 1, 16, 1], 0), ([1, 1, 1], usize::MAX)] {
            let view = StateLayerView::matrix(64, layer_offset, shape);
            assert!(view.check("op", &pool).unwrap_err().to_string().contains("ends beyond"));
        }
    }
}
