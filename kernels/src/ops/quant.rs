//! KV pools of numbers with fewer than 16 bits: how they store rows, and what goes with which pool.

use super::groups::GroupFormat;
use crate::error::{KernelError, Result};
use crate::view::KvLayerView;
use candle_core::{DType, Tensor};

/// The factors of an 8-bit pool: a stored element times its factor is the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvScales {
    /// Of keys.
    pub k: f32,
    /// Of values.
    pub v: f32,
}

/// How a KV pool of 8-bit floats (`F8E4M3`), int8 (`U8`, which holds the same bits) or grouped numbers (`U8`) stores rows.
#[derive(Clone, Copy, Debug)]
pub enum KvQuant<'a> {
    /// 8-bit elements with one factor for all keys and one for all values.
    PerTensor(KvScales),
    /// 8-bit elements with `[num_kv_heads]` factors of keys and of values. The values of a latent are part of its keys.
    PerHead {
        /// Of keys.
        k: &'a [f32],
        /// Of values.
        v: &'a [f32],
    },
    /// 8-bit elements with a factor for each token and head, in an f32 tensor `[num_blocks, kv_factor * num_kv_heads *
    /// tokens_per_block]` in the order of the layer's rows in a block. Writes fill it in.
    PerToken(&'a Tensor),
    /// Groups of elements behind scales of their own; the view's `head_dim` counts the bytes of a row.
    Grouped(GroupFormat),
}

impl From<KvScales> for KvQuant<'_> {
    fn from(scales: KvScales) -> Self {
        Self::PerTensor(scales)
    }
}

impl KvQuant<'_> {
    /// What stored keys (`kv` 0) or values of a head are multiplied by, where that is the same for all of them.
    pub(crate) fn factor(&self, view: &KvLayerView, kv: usize, head: usize) -> f32 {
        // The values of a latent are part of its keys.
        match (self, if view.kv_factor == 1 { 0 } else { kv }) {
            (Self::PerTensor(scales), 0) => scales.k,
            (Self::PerTensor(scales), _) => scales.v,
            (Self::PerHead { k, .. }, 0) => k[head],
            (Self::PerHead { v, .. }, _) => v[head],
            (Self::PerToken(_) | Self::Grouped(_), _) => 1.0,
        }
    }
}

/// Checks that `quant` goes with the pool, and that rows of `head_dim` elements are as wide as the view says.
pub(crate) fn check_quant(
    op: &'static str,
    pool: &Tensor,
    view: &KvLayerView,
    quant: Option<&KvQuant<'_>>,
    head_dim: usize,
) -> Result<()> {
    let argument = |reason: String| Err(KernelError::Argument { op, reason });
    let dtype = pool.dtype();
    let narrow = matches!(dtype, DType::F8E4M3 | DType::U8);
    let scale = |scale: f32| scale.is_finite() && scale > 0.0;
    match quant {
        None if narrow => return argument(format!("a {dtype:?} pool needs scales or a group format")),
        Some(_) if !narrow => return argument(format!("a {dtype:?} pool takes no scales")),
        Some(KvQuant::PerTensor(KvScales { k, v })) if !(scale(*k) && scale(*v)) => {
            return argument(format!("scales must be positive and finite, found {k} and {v}"));
        }
        None | Some(KvQuant::PerTensor(_)) => {}
        Some(KvQuant::PerHead { k, v }) => {
            let heads = view.num_kv_heads;
            if k.len() != heads || v.len() != heads {
                return argument(format!("{} and {} scales for {heads} heads", k.len(), v.len()));
            }
            if let Some(found) = k.iter().chain(*v).find(|&&found| !scale(found)) {
                return argument(format!("scales must be positive and finite, found {found}"));
            }
        }
        Some(KvQuant::PerToken(scales)) => {
            let expected = [pool.dim(0)?, view.layer_rows()];
            if scales.dims() != expected || !scales.is_contiguous() {
                let found = scales.dims().to_vec();
                let expected = format!("a contiguous {expected:?}");
                return Err(KernelError::Shape { op, operand: "scales", found, expected });
            }
            if scales.dtype() != DType::F32 {
                return Err(KernelError::DType { op, operand: "scales", found: scales.dtype(), expected: "f32" });
            }
        }
        Some(KvQuant::Grouped(format)) => {
            if dtype != DType::U8 {
                return Err(KernelError::DType {
                    op,
                    operand: "pool",
                    found: dtype,
                    expected: "u8 for grouped numbers",
                });
            }
            let bytes = format.row_bytes(head_dim);
            if bytes != view.head_dim {
                let found = view.head_dim;
                return argument(format!(
                    "{head_dim} elements take {bytes} bytes as {format:?}, but rows of the view {found}"
                ));
            }
            return Ok(());
        }
    }
    if head_dim != view.head_dim {
        return argument(format!("rows have {head_dim} elements, those of the layer {}", view.head_dim));
    }
    Ok(())
}
