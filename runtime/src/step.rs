//! One step as a layer sees it: where each token stands, and where the layer's cache is.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use cacheplan_handlers::Kind;
use cacheplan_kernels::{Positions, Run};
use cacheplan_managers::device::{CacheManager, Route};
use cacheplan_managers::{BookError, ManagerError};
use candle_core::Tensor;

use crate::drafts::{Drafts, twin};
use crate::error::Result;
use crate::inputs::StepInputs;
use crate::layer_cache::{PagedCache, RingCache, StateCache};
use crate::layers::Choice;

/// The names of a draft model's caches by layer and kind; those of the model itself are found by these alone.
pub(crate) type Names = HashMap<(u32, Kind), String>;

/// The step's sequences, the pools they live in, and the embeddings of its tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) on: &'a Run<'a>,
    pub(crate) inputs: &'a StepInputs<'a>,
    pub(crate) caches: &'a CacheManager,
    pub(crate) names: &'a Names,
    pub(crate) embedded: &'a Tensor,
    /// What each layer takes of the step's tokens beside the stream, `[tokens, layers, channels]`.
    pub(crate) layer_inputs: Option<&'a Tensor>,
    /// Where states go instead, in a step that verifies drafts.
    pub(crate) drafts: Option<&'a Drafts<'a>>,
    /// What the last layer that chose tokens has chosen.
    pub(crate) chosen: &'a RefCell<Option<Arc<Choice>>>,
}

impl<'a> Step<'a> {
    /// Where its ops run.
    pub(crate) fn on(&self) -> &'a Run<'a> {
        self.on
    }

    fn route(&self, layer: u32, kind: &Kind) -> Result<Route, ManagerError> {
        match self.names.get(&(layer, kind.clone())) {
            Some(name) => self.caches.route_of(name),
            None => self.caches.route(layer, kind),
        }
    }

    /// The embeddings of the step's tokens, `[tokens, hidden]`, for layers that look back at them.
    pub(crate) fn embedded(&self) -> &'a Tensor {
        self.embedded
    }

    /// What the layer takes of each token beside the stream, `[tokens, channels]`.
    pub(crate) fn layer_input(&self, layer: usize) -> candle_core::Result<Tensor> {
        let inputs =
            self.layer_inputs.ok_or_else(|| candle_core::Error::Msg("the model has no inputs of layers".into()))?;
        inputs.narrow(1, layer, 1)?.squeeze(1)
    }

    /// The position of each token in its sequence.
    pub(crate) fn positions(&self) -> Positions<'a> {
        self.inputs.positions
    }

    /// The paged cache of `kind` in `layer`.
    pub(crate) fn paged(&self, layer: u32, kind: &Kind) -> Result<PagedCache<'a>> {
        let cache = self.caches.kv_layer(self.route(layer, kind)?)?;
        let foreign = || BookError::UnknownPool(format!("paged pool {}", cache.paged));
        let &(batch, slot_mapping) = self.inputs.pools.get(cache.paged).ok_or_else(foreign)?;
        let (on, pool, view, quant) = (self.on, cache.pool, cache.view, cache.quant);
        Ok(PagedCache { on, pool, view, batch, slot_mapping, quant })
    }

    /// The state of `kind` in `layer`.
    pub(crate) fn state(&self, layer: u32, kind: &Kind) -> Result<StateCache<'a>> {
        self.state_at(layer, self.route(layer, kind)?, || self.caches.route(layer, &twin(kind)).ok())
    }

    /// The state of `layer` that the model's description calls `part`, where a layer has several of a kind.
    pub(crate) fn state_called(&self, layer: u32, part: &str) -> Result<StateCache<'a>> {
        let name = format!("{part}_{layer}");
        let twin = || self.caches.route_of(&format!("intermediate.{name}")).ok();
        self.state_at(layer, self.caches.route_of(&name)?, twin)
    }

    fn state_at(&self, layer: u32, own: Route, twin: impl FnOnce() -> Option<Route>) -> Result<StateCache<'a>> {
        let state = self.caches.state_layer(own)?;
        if let Some(drafts) = self.drafts {
            return drafts.state(layer, own, twin(), &state);
        }
        let batch = self.inputs.states;
        Ok(StateCache { pool: state.pool.clone(), view: state.view, batch, inputs: None })
    }

    /// The ring of `layer`, which holds what candidates wrote as it does all else: by position.
    pub(crate) fn ring(&self, layer: u32) -> Result<RingCache<'a>> {
        let ring = self.caches.state_layer(self.route(layer, &Kind::Ring)?)?;
        Ok(RingCache { pool: ring.pool, view: ring.view })
    }
}
