//! One step as a layer sees it: where each token stands, and where the layer's cache is.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use cacheplan_handlers::{Growth, Kind, ResourceHandler};
use cacheplan_kernels::{
    KvLayerView, KvQuant, KvWrite, Numbers, PagedBatch, Positions, Rope, Run, StateBatch, StateLayerView,
};
use cacheplan_managers::book::StepMetadata;
use cacheplan_managers::device::{CacheManager, Route};
use cacheplan_managers::{BookError, ManagerError};
use cacheplan_transforms::{Resource, Resources};
use candle_core::Tensor;

use crate::drafts::Drafts;
use crate::error::RuntimeError;
use crate::inputs::StepInputs;

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
    /// Where states go instead, in a step that verifies drafts.
    pub(crate) drafts: Option<&'a Drafts<'a>>,
}

/// A layer's paged cache and the step's way into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagedCache<'a> {
    pub(crate) on: &'a Run<'a>,
    pub(crate) pool: &'a Tensor,
    pub(crate) view: KvLayerView,
    pub(crate) batch: PagedBatch<'a>,
    pub(crate) slot_mapping: Numbers<'a, i64>,
    /// How an 8-bit or 4-bit pool stores rows.
    pub(crate) quant: Option<KvQuant<'static>>,
}

/// A layer's state and the step's way into it.
#[derive(Clone, Debug)]
pub(crate) struct StateCache<'a> {
    pub(crate) pool: Tensor,
    pub(crate) view: StateLayerView,
    pub(crate) batch: StateBatch<'a>,
    /// In a step that verifies drafts by replay.
    pub(crate) inputs: Option<KeptInputs<'a>>,
}

/// Where a layer keeps what its recurrence takes from the candidates of a step, for the replay of those that are accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptInputs<'a> {
    pub(crate) caches: &'a CacheManager,
    pub(crate) metadata: &'a StepMetadata,
    pub(crate) layer: u32,
}

impl StateCache<'_> {
    /// Keeps the inputs `[tokens, elems]` of a recurrence, by what kinds call them, `x` of `replay.x`.
    pub(crate) fn keep<const N: usize>(&self, inputs: [(&str, &Tensor); N]) -> Result<(), RuntimeError> {
        for (name, input) in inputs {
            self.keep_as(&Kind::Custom(format!("replay.{name}")), input)?;
        }
        Ok(())
    }

    /// Keeps the inputs of a kind.
    pub(crate) fn keep_as(&self, kind: &Kind, input: &Tensor) -> Result<(), RuntimeError> {
        let Some(KeptInputs { caches, metadata, layer }) = self.inputs else { return Ok(()) };
        Ok(caches.stash(caches.route(layer, kind)?, metadata, input)?)
    }
}

/// A cache that a decoder keeps: what the plan must hold for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// The absolute layer.
    pub layer: u32,
    /// What it is.
    pub kind: Kind,
    /// Its dimensions, as the handler of that kind has them.
    pub shape: Vec<u64>,
    /// Tokens back that are read; `None` for all, or where nothing is kept per token.
    pub window: Option<u64>,
}

impl CacheUse {
    pub(crate) fn new<const N: usize>(layer: u32, kind: Kind, shape: [usize; N]) -> Self {
        Self { layer, kind, shape: shape.map(|size| size as u64).to_vec(), window: None }
    }

    /// That of a planned resource.
    fn of(resource: &Resource) -> Option<Self> {
        Self::of_handler(resource.layer?, &resource.handler)
    }

    /// That of a handler in a layer.
    pub(crate) fn of_handler(layer: u32, handler: &ResourceHandler) -> Option<Self> {
        let window = match handler.growth() {
            Growth::Paged { window, .. } => window.map(u64::from),
            _ => None,
        };
        let shape = handler.shape().iter().map(|dim| dim.size).collect();
        Some(Self { layer, kind: handler.kind().clone(), shape, window })
    }

    /// Whether what is planned holds it: the same, or more tokens than are read.
    pub(crate) fn is_held(&self, resources: &Resources) -> Result<(), RuntimeError> {
        let planned = resources.of_kind(&self.kind).filter_map(Self::of).find(|planned| planned.layer == self.layer);
        let holds = planned.as_ref().is_some_and(|planned| {
            planned.shape == self.shape
                && planned.window.is_none_or(|kept| self.window.is_some_and(|read| read <= kept))
        });
        let unplanned =
            || RuntimeError::Unplanned { needs: Box::new(self.clone()), planned: planned.clone().map(Box::new) };
        if holds { Ok(()) } else { Err(unplanned()) }
    }
}

impl Display for CacheUse {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.shape)?;
        self.window.map_or(Ok(()), |window| write!(f, " of the last {window} tokens"))
    }
}

impl PagedCache<'_> {
    /// Writes the step's keys and values `[tokens, num_kv_heads, head_dim]`; a latent cache takes no values.
    pub(crate) fn write(&self, k: &Tensor, v: Option<&Tensor>) -> Result<(), RuntimeError> {
        let write = KvWrite { k, v, slot_mapping: self.slot_mapping, quant: self.quant };
        Ok(write.run(self.on, self.pool, &self.view)?)
    }

    /// As [`write`](Self::write), with queries and keys rotated on the way; returns the rotated queries.
    pub(crate) fn write_rotated(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        rope: &Rope,
        positions: Positions<'_>,
    ) -> Result<Tensor, RuntimeError> {
        let write = KvWrite { k, v: Some(v), slot_mapping: self.slot_mapping, quant: self.quant };
        Ok(write.run_rotated(self.on, q, rope, positions, self.pool, &self.view)?)
    }
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

    /// The position of each token in its sequence.
    pub(crate) fn positions(&self) -> Positions<'a> {
        self.inputs.positions
    }

    /// The paged cache of `kind` in `layer`.
    pub(crate) fn paged(&self, layer: u32, kind: &Kind) -> Result<PagedCache<'a>, RuntimeError> {
        let cache = self.caches.kv_layer(self.route(layer, kind)?)?;
        let foreign = || BookError::UnknownPool(format!("paged pool {}", cache.paged));
        let &(batch, slot_mapping) = self.inputs.pools.get(cache.paged).ok_or_else(foreign)?;
        let (on, pool, view, quant) = (self.on, cache.pool, cache.view, cache.quant);
        Ok(PagedCache { on, pool, view, batch, slot_mapping, quant })
    }

    /// The state of `kind` in `layer`.
    pub(crate) fn state(&self, layer: u32, kind: &Kind) -> Result<StateCache<'a>, RuntimeError> {
        let state = self.caches.state_layer(self.route(layer, kind)?)?;
        if let Some(drafts) = self.drafts {
            return drafts.state(layer, kind, &state);
        }
        let batch = self.inputs.states;
        Ok(StateCache { pool: state.pool.clone(), view: state.view, batch, inputs: None })
    }
}
