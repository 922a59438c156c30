//! A sequence's states away from the pools, as a whole and layer by layer.

use std::fmt;
use std::sync::Arc;

use cacheplan_handlers::Kind;
use cacheplan_kernels::StateLayerView;
use candle_core::{Device, Tensor};

use crate::device::error::Result;

/// The states of one sequence, detached from the pools.
#[derive(Clone, Debug)]
pub struct CapturedState {
    /// Tokens that the states have absorbed.
    pub tokens: u32,
    /// `[1, slot_elems]` per slot pool, by the pool's id.
    pub(super) pools: Vec<(String, Tensor)>,
    /// Where each layer's state lies in them.
    pub(super) places: Arc<[StatePlace]>,
}

/// Where one layer's state lies in a pool of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StatePlace {
    /// Of the slot pools, in their order.
    pub(super) pool: usize,
    pub(super) layer: Option<u32>,
    pub(super) kind: Kind,
    pub(super) view: StateLayerView,
}

/// One layer's state of a sequence, detached from the pools.
#[derive(Clone, Debug)]
pub struct LayerState {
    /// The absolute layer; absent for a state of the whole model.
    pub layer: Option<u32>,
    /// `ssm` for a recurrent state, `causal_conv` for the last inputs of a convolution, or the kind of another state.
    pub kind: Kind,
    /// In the pool's dtype: `[1, num_heads, head_dim, d_state]` of a recurrence, `[1, d_conv - 1, conv_dim, 1]` of a
    /// convolution, `[1, d0, d1, d2]` of another state, as [`StateLayer::view`](super::StateLayer) says.
    pub values: Tensor,
}

impl fmt::Display for LayerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} state of {}", self.kind, of_layer(self.layer))
    }
}

/// How a layer is named, or the whole model.
pub(super) fn of_layer(layer: Option<u32>) -> String {
    layer.map_or_else(|| "the whole model".into(), |layer| format!("layer {layer}"))
}

impl CapturedState {
    /// The same states on another device.
    ///
    /// # Errors
    /// A failing device.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let moved = self.pools.iter().map(|(id, values)| Ok((id.clone(), values.to_device(device)?)));
        let pools = moved.collect::<Result<_>>()?;
        Ok(Self { tokens: self.tokens, pools, places: self.places.clone() })
    }

    /// The states as named tensors `[1, slot_elems]`, one per pool.
    pub fn pools(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.pools.iter().map(|(id, values)| (id.as_str(), values))
    }

    /// The states of each layer, in the order of the pools; [`CacheManager::state_of_layers`](super::CacheManager::state_of_layers) is the way back.
    ///
    /// # Errors
    /// A failing device.
    pub fn layers(&self) -> Result<Vec<LayerState>> {
        let layer = |place: &StatePlace| {
            let StateLayerView { layer_offset, shape: [d0, d1, d2], .. } = place.view;
            let row = self.pools[place.pool].1.narrow(1, layer_offset, place.view.elems())?;
            let values = row.reshape((1, d0, d1, d2))?.copy()?;
            Ok(LayerState { layer: place.layer, kind: place.kind.clone(), values })
        };
        self.places.iter().map(layer).collect()
    }
}
