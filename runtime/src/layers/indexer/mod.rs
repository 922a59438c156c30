//! Sparse attention's choice of tokens: cheap queries score keys that each stand for several tokens.
//!
//! Keys of tokens whose number is full lie in pages. What the next key is made of is kept by position, in a ring: there a
//! rejected candidate's row is written again, and a page holds nothing that is not final.

mod choice;
mod gated;
mod mean;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use cacheplan_handlers::Kind;
use cacheplan_kernels::{IndexScores, KvWrite, Run};
use candle_core::{DType, Tensor};

pub(crate) use self::choice::Choice;
pub(crate) use self::gated::{GatedKeys, GatedKeysShape};
pub(crate) use self::mean::{MeanKeys, MeanKeysShape};

use self::choice::sequences;
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::layer_cache::RingCache;
use crate::step::Step;

/// What an indexer's queries and keys are made of.
pub(crate) trait IndexSource: Debug + Send + Sync {
    /// What is kept of each token until its key is made, `[tokens, width]`, of `x` `[tokens, hidden]`.
    fn rows(&self, on: &Run<'_>, x: &Tensor) -> Result<Tensor>;

    /// Elements of such a row.
    fn width(&self) -> usize;

    /// Keys `[entries, head_dim]` of rows `[entries, stride, width]` in f32, the first of which stand at `starts`.
    fn keys(&self, on: &Run<'_>, rows: &Tensor, starts: &[u32]) -> Result<Tensor>;

    /// Queries `[tokens, heads, head_dim]` of `x`, or of the latent of attention's own queries, and what each head counts.
    fn queries(&self, x: &Tensor, latent: Option<&Tensor>, step: &Step<'_>) -> Result<(Tensor, Option<Tensor>)>;
}

/// The numbers of an [`Indexer`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexerShape {
    /// Channels of a key.
    pub(crate) head_dim: usize,
    /// Tokens that one key stands for.
    pub(crate) stride: usize,
    /// Tokens that are chosen at most, besides those without a key.
    pub(crate) budget: usize,
}

/// Chooses what each token of a layer sees.
#[derive(Debug)]
pub(crate) struct Indexer {
    layer: u32,
    source: Box<dyn IndexSource>,
    shape: IndexerShape,
}

/// Who chooses what a layer sees.
#[derive(Debug)]
pub(crate) enum Chooser {
    /// An indexer of its own.
    Own(Indexer),
    /// The last layer before it that has one.
    Earlier,
}

impl Chooser {
    /// As [`Indexer::choose`].
    pub(crate) fn choose(&self, x: &Tensor, latent: Option<&Tensor>, step: &Step<'_>) -> Result<Arc<Choice>> {
        let earlier = || candle_core::Error::Msg("no layer before this one chooses what tokens see".into());
        match self {
            Self::Own(indexer) => indexer.choose(x, latent, step),
            Self::Earlier => Ok(step.chosen.borrow().clone().ok_or_else(earlier)?),
        }
    }

    /// The caches that it keeps.
    pub(crate) fn caches(&self) -> Vec<CacheUse> {
        match self {
            Self::Own(indexer) => indexer.caches(),
            Self::Earlier => Vec::new(),
        }
    }
}

impl Indexer {
    /// That of absolute layer `layer`.
    pub(crate) fn new(layer: u32, shape: IndexerShape, source: impl IndexSource + 'static) -> Self {
        Self { layer, source: Box::new(source), shape }
    }

    /// Keeps the step's tokens, and chooses what each of them sees, which layers behind this one may use too.
    ///
    /// `latent` is that of attention's own queries, where it has one.
    pub(crate) fn choose(&self, x: &Tensor, latent: Option<&Tensor>, step: &Step<'_>) -> Result<Arc<Choice>> {
        let (on, metadata) = (step.on(), step.inputs.metadata);
        if !metadata.parents.is_empty() {
            let reason = "candidates that form a tree cannot choose what they see; draft one line of them";
            return Err(candle_core::Error::Msg(reason.into()).into());
        }
        let IndexerShape { stride, budget, .. } = self.shape;
        self.keep(&self.source.rows(on, x)?, step)?;
        let (q, shares) = self.source.queries(x, latent, step)?;
        let cache = step.paged(self.layer, &Kind::IndexKey)?;
        let scale = 1.0 / (self.shape.head_dim as f32).sqrt();
        let scores = IndexScores { scale, shares: shares.as_ref(), stride, most: budget / stride, quant: cache.quant };
        let best = scores.best(on, &q, cache.pool, &cache.view, &cache.batch)?;
        let choice = Arc::new(Choice::of(&best, stride, metadata));
        *step.chosen.borrow_mut() = Some(choice.clone());
        Ok(choice)
    }

    /// Writes the keys whose tokens are all there, and keeps the rows of the others.
    fn keep(&self, rows: &Tensor, step: &Step<'_>) -> Result<()> {
        let (on, metadata, stride) = (step.on(), step.inputs.metadata, self.shape.stride);
        let cache = step.paged(self.layer, &Kind::IndexKey)?;
        let ring = if stride > 1 { Some(step.ring(self.layer)?) } else { None };
        // A row that waited in the ring and one that did not make the same key.
        let stored = ring.map_or(DType::F32, |ring| ring.pool.dtype());
        let rows = rows.to_dtype(stored)?.to_dtype(DType::F32)?;
        let (mut groups, mut starts, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, span) in sequences(metadata) {
            let kv_len = metadata.kv_lens[sequence] as usize;
            if kv_len == 0 || span.is_empty() {
                continue;
            }
            let (own, first) = (rows.narrow(0, span.start, span.len())?, kv_len - span.len());
            let (begun, full) = (first / stride * stride, kv_len / stride * stride);
            if begun < full {
                let waiting = self.waiting(ring, metadata.slots[sequence], begun..first)?;
                let all = waiting.map_or(Ok(own.clone()), |waiting| Tensor::cat(&[&waiting, &own], 0))?;
                groups.push(all.narrow(0, 0, full - begun)?.reshape(((), stride, self.source.width()))?);
                let ends = (begun..full).step_by(stride).map(|start| start + stride - 1);
                slots.extend(ends.map(|end| cache.slot_mapping[span.start + end - first]));
                starts.extend((begun..full).step_by(stride).map(|start| start as u32));
            }
            if let (Some(ring), Ok(slot)) = (ring, usize::try_from(metadata.slots[sequence])) {
                ring.write(slot, first, &own)?;
            }
        }
        on.note_host_read();
        if groups.is_empty() {
            return Ok(());
        }
        let keys = self.source.keys(on, &Tensor::cat(&groups, 0)?, &starts)?.unsqueeze(1)?;
        let write = KvWrite { k: &keys, v: None, slot_mapping: (&slots).into(), quant: cache.quant };
        Ok(write.run(on, cache.pool, &cache.view)?)
    }

    /// The rows of the tokens of a key that is being made.
    fn waiting(&self, ring: Option<RingCache<'_>>, slot: i32, positions: Range<usize>) -> Result<Option<Tensor>> {
        match (ring, usize::try_from(slot)) {
            (Some(ring), Ok(slot)) if !positions.is_empty() => {
                Ok(Some(ring.read(slot, positions.start, positions.len())?))
            }
            _ => Ok(None),
        }
    }

    /// The caches that it keeps.
    pub(crate) fn caches(&self) -> Vec<CacheUse> {
        let IndexerShape { head_dim, stride, .. } = self.shape;
        let keys = CacheUse { stride: stride as u32, ..CacheUse::new(self.layer, Kind::IndexKey, [head_dim]) };
        let ring = CacheUse::new(self.layer, Kind::Ring, [stride, self.source.width()]);
        std::iter::once(keys).chain((stride > 1).then_some(ring)).collect()
    }
}
