//! A model's own layer that says what comes behind the next token: of the model's hidden row at a token and of the token
//! behind it. Its caches are those that a plan has for a prediction head, `draft.mtp_0`.

use std::cell::RefCell;

use cacheplan_kernels::Run;
use cacheplan_managers::device::CacheManager;
use cacheplan_planner::CachePlan;
use cacheplan_transforms::layers::{BlockSpec, LayerSpec};
use candle_core::Tensor;

use crate::block::Block;
use crate::cache_use::{CacheUse, Unplanned};
use crate::error::Result;
use crate::inputs::StepInputs;
use crate::layers::{Linear, RmsNorm};
use crate::step::{Names, Step};
use crate::weights::Matrix;

/// The layer, and what is around it.
#[derive(Debug)]
pub(crate) struct PredictionLayer {
    pub(crate) token_norm: RmsNorm,
    pub(crate) hidden_norm: RmsNorm,
    /// From both, side by side, to one row.
    pub(crate) projection: Linear,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: RmsNorm,
    /// Whether its own rows go on behind their norm.
    goes_on_normed: bool,
    names: Names,
}

/// The model's last layer of a kind, which one of a prediction is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PredictionPart {
    /// One that begins with attention.
    Attention,
    /// One of experts alone.
    Experts,
}

impl PredictionPart {
    /// Whether a layer of the model is of its kind.
    pub(crate) fn is_like(self, spec: &LayerSpec) -> bool {
        match (self, spec.blocks.as_slice()) {
            (Self::Attention, [BlockSpec::Attention(_) | BlockSpec::Mla(_), ..]) => true,
            (Self::Experts, [BlockSpec::FeedForward(sizes)]) => sizes.experts > 0,
            _ => false,
        }
    }
}

/// What its parts are called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PredictionNames {
    /// What those of the layer begin with; `None` for the layer behind the model's last one, beside which all of it lies.
    pub(crate) root: Option<&'static str>,
    pub(crate) token_norm: &'static str,
    pub(crate) hidden_norm: &'static str,
    pub(crate) projection: &'static str,
    pub(crate) norm: &'static str,
    /// What its layers are like, one behind the other.
    pub(crate) parts: &'static [PredictionPart],
    /// Whether a further guess goes on from the layer's row behind that norm, rather than before it.
    pub(crate) goes_on_normed: bool,
}

impl PredictionLayer {
    /// Names the caches that its blocks keep as a plan does.
    pub(crate) fn new(
        [token_norm, hidden_norm, norm]: [RmsNorm; 3],
        projection: Linear,
        blocks: Vec<Block>,
        goes_on_normed: bool,
    ) -> Self {
        let caches = blocks.iter().flat_map(|block| block.mixer.caches());
        let names = caches.enumerate().map(|(at, cache)| {
            let name = if at == 0 { "draft.mtp_0".to_owned() } else { format!("draft.mtp_0.{at}") };
            ((cache.layer, cache.kind), name)
        });
        let names = names.collect();
        Self { token_norm, hidden_norm, projection, blocks, norm, goes_on_normed, names }
    }

    /// That a plan has its caches.
    pub(crate) fn check(&self, plan: &CachePlan) -> Result<()> {
        for cache in self.blocks.iter().flat_map(|block| block.mixer.caches()) {
            let name = &self.names[&(cache.layer, cache.kind.clone())];
            let planned = plan.resource(name).and_then(|planned| CacheUse::of_handler(cache.layer, &planned.handler));
            if planned.as_ref() != Some(&cache) {
                return Err(Box::new(Unplanned { needs: cache, planned }).into());
            }
        }
        Ok(())
    }

    /// For hidden rows of the model and the tokens of a step, which stand behind them: rows behind its norm, and those that a further guess goes
    /// on from.
    pub(crate) fn forward(
        &self,
        on: &Run<'_>,
        embedding: &Matrix,
        hidden: &Tensor,
        inputs: &StepInputs<'_>,
        caches: &CacheManager,
    ) -> Result<[Tensor; 2]> {
        let next: Vec<usize> = inputs.tokens.iter().map(|&token| token as usize).collect();
        let embedded = embedding.select(&next)?.computed()?;
        let both = [self.token_norm.forward(on, &embedded)?, self.hidden_norm.forward(on, hidden)?];
        let mut x = self.projection.forward(on, &Tensor::cat(&both, 1)?)?;
        let (names, chosen) = (&self.names, RefCell::default());
        let step =
            Step { on, inputs, caches, names, embedded: &embedded, layer_inputs: None, drafts: None, chosen: &chosen };
        for block in &self.blocks {
            x = block.forward(&x, &step)?;
        }
        let said = self.norm.forward(on, &x)?;
        Ok([said.clone(), if self.goes_on_normed { said } else { x }])
    }
}
