//! The states that a step goes over.

use crate::batch::StateBatch;
use crate::view::StateLayerView;
use candle_core::Tensor;

/// The states of a layer: where they lie, and which of them a step moves on.
pub(crate) struct States<'a> {
    pub(crate) pool: &'a Tensor,
    pub(crate) view: &'a StateLayerView,
    pub(crate) batch: &'a StateBatch<'a>,
}
