//! A decoder: embedding, blocks, final norm, vocabulary projection.

use cacheplan_kernels::weighted_sum;
use cacheplan_managers::book::StepMetadata;
use cacheplan_managers::device::MambaHybridCacheManager;
use candle_core::{DType, Device, Tensor};

use crate::error::RuntimeError;
use crate::layers::{Linear, Mixer, RmsNorm};
use crate::step::Step;
use crate::weights::Weights;

/// A model that turns the tokens of a step into logits. All that lasts beyond the step is in the pools.
#[derive(Debug)]
pub struct Decoder {
    pub(crate) embedding: Tensor,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: RmsNorm,
    pub(crate) lm_head: Linear,
    /// Factor on the embedded tokens.
    pub(crate) embedding_scale: f64,
    /// Factor on the logits.
    pub(crate) logit_scale: f64,
    /// Logits become `cap * tanh(logit / cap)`.
    pub(crate) logit_softcap: Option<f64>,
}

/// `residual_scale · x + output_scale · post_norm(mixer(norm(x)))`.
#[derive(Debug)]
pub(crate) struct Block {
    /// Absent for mixers that normalise by themselves.
    pub(crate) norm: Option<RmsNorm>,
    pub(crate) mixer: Box<dyn Mixer>,
    pub(crate) post_norm: Option<RmsNorm>,
    pub(crate) output_scale: f64,
    pub(crate) residual_scale: f64,
    /// Whether the mixer's normalised input takes the place of `x` in the sum.
    pub(crate) residual_is_normed: bool,
}

impl Block {
    /// `x + mixer(norm(x))`.
    pub(crate) fn new(norm: RmsNorm, mixer: impl Mixer + 'static) -> Self {
        Self::boxed(norm, Box::new(mixer))
    }

    /// The same for a mixer of whatever kind.
    pub(crate) fn boxed(norm: RmsNorm, mixer: Box<dyn Mixer>) -> Self {
        Self { norm: Some(norm), ..Self::bare(mixer) }
    }

    /// `x + mixer(x)`.
    pub(crate) fn without_norm(mixer: impl Mixer + 'static) -> Self {
        Self::bare(Box::new(mixer))
    }

    fn bare(mixer: Box<dyn Mixer>) -> Self {
        Self { norm: None, mixer, post_norm: None, output_scale: 1.0, residual_scale: 1.0, residual_is_normed: false }
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor, RuntimeError> {
        let normed = match &self.norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        let mut y = self.mixer.forward(&normed, step)?;
        if let Some(norm) = &self.post_norm {
            y = norm.forward(&y)?;
        }
        let residual = if self.residual_is_normed { normed } else { x.clone() };
        Ok(weighted_sum(&residual, self.residual_scale as f32, &y, self.output_scale as f32)?)
    }
}

impl Decoder {
    /// A decoder over `embedding` `[vocab_size, hidden]`, which is the vocabulary projection too if it is tied and the
    /// checkpoint has no other: some architectures are never tied, whatever their configs say.
    pub(crate) fn new(
        embedding: Tensor,
        blocks: Vec<Block>,
        norm: RmsNorm,
        weights: &Weights,
        tied: bool,
    ) -> Result<Self, RuntimeError> {
        let stored = weights.scope("lm_head");
        let lm_head = if tied && !stored.stores("weight") {
            Linear::new(embedding.clone(), None)
        } else {
            let (vocab_size, hidden) = embedding.dims2()?;
            Linear::load(&stored, hidden, vocab_size, false)?
        };
        Ok(Self { embedding, blocks, norm, lm_head, embedding_scale: 1.0, logit_scale: 1.0, logit_softcap: None })
    }

    /// How many tokens the model knows.
    pub fn vocab_size(&self) -> usize {
        self.embedding.dims()[0]
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// Runs a step's tokens through the model, over the pools of `caches`.
    ///
    /// `tokens` lie ragged, sequence after sequence, as `metadata` says, which the same manager filled in. Returns
    /// f32 logits `[rows.len(), vocab_size]` for the chosen rows of the step.
    ///
    /// # Errors
    /// A layer that the plan has no cache for, operands that a kernel refuses, a failing device.
    pub fn forward(
        &self,
        tokens: &[u32],
        rows: &[u32],
        caches: &MambaHybridCacheManager,
        metadata: &StepMetadata,
    ) -> Result<Tensor, RuntimeError> {
        // Inside the pool of threads from here on: a parallel loop that starts outside wakes and awaits it each time.
        rayon::scope(|_| self.forward_in_pool(tokens, rows, caches, metadata))
    }

    fn forward_in_pool(
        &self,
        tokens: &[u32],
        rows: &[u32],
        caches: &MambaHybridCacheManager,
        metadata: &StepMetadata,
    ) -> Result<Tensor, RuntimeError> {
        let device = self.device();
        let tokens = Tensor::new(tokens, device)?;
        let embedded = scaled(self.embedding.index_select(&tokens, 0)?, self.embedding_scale)?;
        let step = Step::new(caches, metadata, &embedded);
        let mut x = embedded.clone();
        for block in &self.blocks {
            x = block.forward(&x, &step)?;
        }
        let chosen = x.index_select(&Tensor::new(rows, device)?, 0)?;
        let logits =
            scaled(self.lm_head.forward(&self.norm.forward(&chosen)?)?.to_dtype(DType::F32)?, self.logit_scale)?;
        match self.logit_softcap {
            Some(cap) => Ok(((logits / cap)?.tanh()? * cap)?),
            None => Ok(logits),
        }
    }
}

fn scaled(x: Tensor, factor: f64) -> candle_core::Result<Tensor> {
    if factor == 1.0 { Ok(x) } else { x * factor }
}
