//! What a table of n-grams says of the last tokens, for every residual stream, behind a dilated convolution.

mod hash;

use std::ops::Range;

use cacheplan_handlers::Kind;
use cacheplan_kernels::StateWrites;
use candle_core::{D, DType, Tensor};

pub(crate) use self::hash::HashRules;
use self::hash::Hashes;

use super::{Activation, CausalConv, Linear, Mixer, StreamNorm, sigmoid};
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::layer_cache::StateCache;
use crate::step::Step;
use crate::weights::{Matrix, Scope};

/// The names of its caches before the layer's number.
const CONV: &str = "ngram_conv";
const CONTEXT: &str = "ngram_context";

/// The n-grams of one layer.
#[derive(Debug)]
pub(crate) struct NGrams {
    layer: u32,
    table: Table,
    hashes: Hashes,
    key: Linear,
    value: Linear,
    key_norm: StreamNorm,
    query_norm: StreamNorm,
    conv_norm: StreamNorm,
    conv: CausalConv,
    shape: NGramShape,
}

/// The dimensions of [`NGrams`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct NGramShape {
    pub(crate) hidden: usize,
    pub(crate) streams: usize,
    /// Channels of what the table says of a token.
    pub(crate) embedding: usize,
    pub(crate) d_conv: usize,
    pub(crate) norm_eps: f64,
    /// The table's rows are a multiple of this, in so many parts.
    pub(crate) multiple: usize,
    pub(crate) parts: usize,
}

impl NGrams {
    /// Reads those of absolute layer `layer`.
    pub(crate) fn load(weights: &Scope<'_>, layer: u32, shape: NGramShape, rules: HashRules) -> Result<Self> {
        let NGramShape { hidden, streams, embedding, d_conv, norm_eps, .. } = shape;
        let hashes = Hashes::new(rules);
        let (wide, dilation) = (streams * hidden, rules.ngram);
        let norm = |name: &str| StreamNorm::load(&weights.enter(name), streams, hidden, norm_eps);
        let linear = |name: &str, outputs| Linear::load(&weights.enter(name), embedding, outputs, false);
        let conv = weights.enter("conv1d").get("weight", (wide, 1, d_conv))?;
        Ok(Self {
            layer,
            table: Table::load(&weights.enter("ple_embedding"), &hashes, shape)?,
            hashes,
            key: linear("key_proj", wide)?,
            value: linear("value_proj", hidden)?,
            key_norm: norm("norm_key")?,
            query_norm: norm("norm_query")?,
            conv_norm: norm("norm_conv")?,
            conv: CausalConv::new(dilated(&conv, dilation)?).with_activation(Activation::Silu),
            shape,
        })
    }

    /// What the table says of each token of the step, `[tokens, embedding]`; the last tokens are kept for the next.
    fn embedded(&self, step: &Step<'_>) -> Result<Tensor> {
        let (metadata, context) = (step.inputs.metadata, self.hashes.context());
        let tokens = step.inputs.tokens.host();
        let kept = step.state_called(self.layer, CONTEXT)?;
        let parents = match kept.batch.writes {
            StateWrites::Tree { parents, .. } => Some(parents),
            _ => None,
        };
        let mut rows = Vec::with_capacity(tokens.len() * self.hashes.count());
        for (sequence, span) in
            metadata.cu_seqlens.windows(2).map(|ends| ends[0] as usize..ends[1] as usize).enumerate()
        {
            let slot = usize::try_from(kept.batch.slots[sequence]).ok();
            let is_first = metadata.kv_lens[sequence] as usize <= span.len();
            let before = match slot {
                Some(slot) if !is_first => kept.tokens(slot, context)?,
                _ => vec![self.hashes.end(); context],
            };
            for row in span.clone() {
                let line = line(&before, tokens, &span, parents, row);
                rows.extend(self.hashes.of(&line));
                let after = match kept.batch.writes {
                    StateWrites::Tree { slots, .. } => slots.get(row).copied(),
                    _ => (row + 1 == span.end).then_some(kept.batch.slots[sequence]),
                };
                if let Some(after) = after.and_then(|slot| usize::try_from(slot).ok()) {
                    kept.keep_tokens(after, &line[1..])?;
                }
            }
        }
        step.on().note_host_read();
        Ok(self.table.embed(&rows)?.reshape((tokens.len(), self.shape.embedding))?)
    }
}

/// The token of a row behind as many before it as `before` has, which stand before the step.
fn line(before: &[u32], tokens: &[u32], span: &Range<usize>, parents: Option<&[i32]>, row: usize) -> Vec<u32> {
    let parent = |row: &usize| match parents {
        Some(parents) => usize::try_from(parents[*row]).ok(),
        None => (*row > span.start).then(|| row - 1),
    };
    let path = std::iter::successors(Some(row), parent).map(|row| tokens[row]);
    let mut line: Vec<u32> = path.chain(before.iter().rev().copied()).take(before.len() + 1).collect();
    line.reverse();
    line
}

impl Mixer for NGrams {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let NGramShape { hidden, streams, .. } = self.shape;
        let (on, tokens) = (step.on(), x.dim(0)?);
        let embedded = self.embedded(step)?;
        let apart = |x: Tensor| x.reshape((tokens, streams, hidden));
        let key = apart(self.key_norm.forward(on, &self.key.forward(on, &embedded)?)?)?;
        let query = apart(self.query_norm.forward(on, x)?)?;
        let gate = ((key * query)?.sum_keepdim(D::Minus1)? / (hidden as f64).sqrt())?;
        let gate = (gate.abs()?.maximum(1e-6)?.sqrt()? * gate.sign()?)?;
        let value = self.value.forward(on, &embedded)?.unsqueeze(1)?;
        let gated = sigmoid(&gate)?.broadcast_mul(&value)?.flatten_from(1)?;
        let normed = self.conv_norm.forward(on, &gated)?;
        let state = step.state_called(self.layer, CONV)?;
        Ok((gated + self.conv.forward(on, &normed, &state)?)?)
    }

    fn caches(&self) -> Vec<CacheUse> {
        let NGramShape { hidden, streams, .. } = self.shape;
        let columns = self.conv.dims()[0].saturating_sub(1);
        vec![
            CacheUse::new(self.layer, Kind::CausalConv, [streams * hidden, columns]),
            CacheUse::new(self.layer, Kind::State, [1, self.hashes.context()]),
        ]
    }
}

/// `weight` `[channels, 1, taps]` with so many tokens from one tap to the next, as a convolution over all tokens between,
/// `[width, channels]`.
fn dilated(weight: &Tensor, dilation: usize) -> candle_core::Result<Tensor> {
    let (channels, _, taps) = weight.dims3()?;
    let weight = weight.squeeze(1)?.t()?.contiguous()?;
    let nothing = Tensor::zeros((dilation.saturating_sub(1), channels), weight.dtype(), weight.device())?;
    let mut rows = Vec::new();
    for tap in 0..taps {
        if tap > 0 {
            rows.push(nothing.clone());
        }
        rows.push(weight.narrow(0, tap, 1)?);
    }
    Tensor::cat(&rows, 0)
}

/// Rows of all hashes, one part after the other.
#[derive(Debug)]
struct Table {
    parts: Vec<Matrix>,
}

impl Table {
    /// Reads `ngram_embedding`, whole or in parts.
    fn load(weights: &Scope<'_>, hashes: &Hashes, shape: NGramShape) -> Result<Self> {
        let rows = hashes.rows().next_multiple_of(shape.multiple.max(1));
        let width = shape.embedding / hashes.count().max(1);
        let whole = weights.enter("ngram_embedding");
        if whole.stores("weight") {
            return Ok(Self { parts: vec![whole.product("weight", [rows, width])?] });
        }
        let per_part = rows.div_ceil(shape.parts.max(1));
        let firsts = (0..rows).step_by(per_part.max(1));
        let part = |(nth, first): (usize, usize)| {
            whole.enter(format!("shard_{nth}")).product("weight", [per_part.min(rows - first), width])
        };
        Ok(Self { parts: firsts.enumerate().map(part).collect::<Result<_, _>>()? })
    }

    /// Rows of the table, `[rows.len(), width]`.
    fn embed(&self, rows: &[usize]) -> candle_core::Result<Tensor> {
        let per_part = self.parts.first().map_or(1, Matrix::rows).max(1);
        // Part by part, and then back in order.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|at| rows[*at] / per_part);
        let mut found = Vec::new();
        for same in order.chunk_by(|a, b| rows[*a] / per_part == rows[*b] / per_part) {
            let within: Vec<usize> = same.iter().map(|at| rows[*at] % per_part).collect();
            found.push(self.parts[rows[same[0]] / per_part].select(&within)?.computed()?);
        }
        let mut back = vec![0; rows.len()];
        for (place, at) in (0u32..).zip(&order) {
            back[*at] = place;
        }
        let found = Tensor::cat(&found, 0)?;
        found.index_select(&Tensor::from_vec(back, rows.len(), found.device())?, 0)
    }
}

impl StateCache<'_> {
    /// The last tokens that a slot keeps.
    fn tokens(&self, slot: usize, count: usize) -> candle_core::Result<Vec<u32>> {
        let start = slot * self.view.slot_elems + self.view.layer_offset;
        let tokens = self.pool.flatten_all()?.narrow(0, start, count)?.to_dtype(DType::U32)?;
        tokens.to_vec1()
    }

    fn keep_tokens(&self, slot: usize, tokens: &[u32]) -> candle_core::Result<()> {
        let start = slot * self.view.slot_elems + self.view.layer_offset;
        let tokens = Tensor::new(tokens, self.pool.device())?.to_dtype(self.pool.dtype())?;
        self.pool.flatten_all()?.slice_set(&tokens, 0, start)
    }
}
