//! A decoder: a model of text and its vocabulary projection; and the model that is made of blocks.

use std::cell::RefCell;
use std::fmt::Debug;

use cacheplan_handlers::Kind;
use cacheplan_kernels::{Backend, Rope, Run};
use cacheplan_managers::ManagerError;
use cacheplan_managers::book::StepMetadata;
use cacheplan_managers::device::{CacheManager, ReplayLayer};
use cacheplan_transforms::onnx::ModelProto;
use candle_core::{DType, Device, Tensor};

use crate::block::Block;
use crate::cache_use::CacheUse;
use crate::device_steps::{DeviceSteps, Place};
use crate::drafts::Drafts;
use crate::error::Result;
use crate::exported::{GraphForm, Writer, int, refuse};
use crate::inputs::{HostStep, StepInputs};
use crate::layers::{Ending, LayerInputs, Linear, widened};
use crate::prediction::PredictionLayer;
use crate::step::{Names, Step};
use crate::weights::{Matrix, Weights};

/// A model of text: tokens of a step in, rows of hidden channels out. Generation knows models by this alone.
///
/// All that lasts beyond the step is in the pools.
pub(crate) trait TextModel: Debug + Send + Sync {
    /// How many tokens the model knows.
    fn vocab_size(&self) -> usize;

    /// The caches that it keeps, in the order of the layers that read them.
    fn caches(&self) -> Vec<CacheUse>;

    /// Moves the state of a layer on over the candidates that were accepted.
    ///
    /// # Errors
    /// Inputs that are not there, or that a kernel refuses.
    fn replay(&self, on: &Run<'_>, kept: &ReplayLayer<'_>) -> Result<()> {
        let _ = (on, kept);
        Ok(())
    }

    /// Its own layer that predicts, with the embedding of its tokens.
    fn prediction(&self) -> Option<(&PredictionLayer, &Matrix)> {
        None
    }

    /// Its caches are those of these names.
    fn call_caches(&mut self, names: Names) {
        let _ = names;
    }

    /// What its layers make of positions; `None` where a step is made of other things than ops.
    fn ropes(&self) -> Option<Vec<&Rope>> {
        None
    }

    /// The most tokens that a sequence may have, where its shapes are fixed.
    fn max_seq_len(&self) -> Option<u64> {
        None
    }

    /// Whether the process's allocator counts all that a step takes; a library may have memory of its own.
    fn is_counted(&self) -> bool {
        true
    }

    /// The model as an ONNX graph over caches of fixed shapes.
    ///
    /// # Errors
    /// A model that is no sequence of blocks, a layer that has no nodes.
    fn to_graph(&self, form: GraphForm) -> Result<ModelProto> {
        let _ = form;
        Err(refuse("the model", "it is a graph already"))
    }

    /// Runs a step's tokens through the model, over the pools of `caches`.
    ///
    /// Tokens lie ragged, sequence after sequence, as the step's metadata says, which the same manager filled in. Returns
    /// the chosen rows of the step behind the last norm, `[rows.len(), hidden]`, or `[rows.len(), vocab_size]` of a model
    /// that has its vocabulary projection inside.
    ///
    /// # Errors
    /// A layer that the plan has no cache for, operands that a kernel refuses, a failing device.
    fn forward(&self, on: &Run<'_>, inputs: &StepInputs<'_>, caches: &CacheManager) -> Result<Tensor>;
}

/// A model of text and its vocabulary projection, which turn the tokens of a step into logits.
#[derive(Debug)]
pub struct Decoder {
    text: Box<dyn TextModel>,
    /// Absent for a model that has it inside.
    head: Option<Head>,
    /// Bytes of weights that are mapped from files, which no allocator counts.
    mapped_bytes: u64,
    backend: Backend,
    steps: DeviceSteps,
}

/// From hidden channels to logits.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) projection: Linear,
    /// Factor on the logits.
    pub(crate) scale: f64,
    /// Logits become `cap * tanh(logit / cap)`.
    pub(crate) softcap: Option<f64>,
}

impl Head {
    /// The stored projection, or the embedding where it is tied and the checkpoint has no other: some architectures are
    /// never tied, whatever their configs say.
    pub(crate) fn load(embedding: &Matrix, weights: &Weights, hidden: usize, tied: bool) -> Result<Self> {
        let stored = weights.scope("lm_head");
        let projection = if tied && !stored.stores("weight") {
            Linear::of(embedding.clone())
        } else {
            Linear::load(&stored, hidden, embedding.rows(), false)?
        };
        Ok(Self { projection, scale: 1.0, softcap: None })
    }

    fn forward(&self, on: &Run<'_>, hidden: &Tensor) -> Result<Tensor> {
        let logits = scaled(self.projection.forward(on, hidden)?.to_dtype(DType::F32)?, self.scale)?;
        match self.softcap {
            Some(cap) => Ok(((logits / cap)?.tanh()? * cap)?),
            None => Ok(logits),
        }
    }
}

/// Embedding, blocks and final norm, computed layer by layer.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) embedding: Matrix,
    pub(crate) blocks: Vec<Block>,
    /// What stands behind the last block.
    pub(crate) ending: Ending,
    /// Factor on the embedded tokens.
    pub(crate) embedding_scale: f64,
    pub(crate) layer_inputs: Option<LayerInputs>,
    /// How its caches are called where they are a draft model's.
    pub(crate) names: Names,
    pub(crate) prediction: Option<PredictionLayer>,
}

impl Decoder {
    /// A model and what projects its hidden rows, unless it does so itself.
    pub(crate) fn new(text: impl TextModel + 'static, head: Option<Head>, on: &Backend) -> Self {
        Self { text: Box::new(text), head, mapped_bytes: 0, backend: on.clone(), steps: DeviceSteps::default() }
    }

    /// The same, with so many bytes of weights in mapped files.
    pub(crate) fn with_mapped(self, mapped_bytes: u64) -> Self {
        Self { mapped_bytes, ..self }
    }

    /// Bytes of weights that are mapped from files, which no allocator counts.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes
    }

    /// The same with caches of these names.
    pub(crate) fn calling_caches(mut self, names: Names) -> Self {
        self.text.call_caches(names);
        self
    }

    /// Moves the state of a layer on over the candidates that were accepted.
    pub(crate) fn replay(&self, kept: &ReplayLayer<'_>) -> Result<()> {
        self.text.replay(&self.backend.run(), kept)
    }

    /// The layer of its own that predicts.
    pub(crate) fn prediction(&self) -> Option<&PredictionLayer> {
        self.text.prediction().map(|(prediction, _)| prediction)
    }

    /// As [`Decoder::forward`], and the hidden row of every token of the step, `[tokens.len(), hidden]`.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn forward_with_hidden(
        &self,
        tokens: &[u32],
        rows: &[u32],
        caches: &CacheManager,
        metadata: &StepMetadata,
    ) -> Result<[Tensor; 2]> {
        let all: Vec<u32> = (0..tokens.len() as u32).collect();
        self.launched(HostStep { tokens, rows: &all, metadata }, caches, |on, inputs| {
            let hidden = self.text.forward(on, inputs, caches)?;
            let chosen = hidden.index_select(&Tensor::new(rows, hidden.device())?, 0)?;
            Ok([self.projected(on, &chosen)?, hidden])
        })
    }

    /// What the model's own prediction layer says behind the tokens `next`, each of which stands behind a hidden row of the
    /// step: for the chosen rows f32 logits, and hidden rows of its own to go on from.
    ///
    /// # Errors
    /// A model without one, or whose plan has no caches for it; as [`Decoder::forward`].
    pub fn predict(
        &self,
        hidden: &Tensor,
        next: &[u32],
        rows: &[u32],
        caches: &CacheManager,
        metadata: &StepMetadata,
    ) -> Result<[Tensor; 2]> {
        let Some((prediction, embedding)) = self.text.prediction() else {
            return Err(candle_core::Error::Msg("the model has no prediction layer".into()).into());
        };
        self.launched(HostStep { tokens: next, rows, metadata }, caches, |on, inputs| {
            let [said, onward] = prediction.forward(on, embedding, hidden, inputs, caches)?;
            let rows = Tensor::new(rows, said.device())?;
            Ok([self.projected(on, &said.index_select(&rows, 0)?)?, onward.index_select(&rows, 0)?])
        })
    }

    fn projected(&self, on: &Run<'_>, hidden: &Tensor) -> Result<Tensor> {
        self.head.as_ref().map_or(Ok(hidden.clone()), |head| head.forward(on, hidden))
    }

    /// Runs a step's tokens for what they leave in the caches alone.
    pub(crate) fn fill(&self, tokens: &[u32], caches: &CacheManager, metadata: &StepMetadata) -> Result<()> {
        let step = HostStep { tokens, rows: &[0], metadata };
        self.launched(step, caches, |on, inputs| self.text.forward(on, inputs, caches).map(|_| ()))
    }

    /// The same projection behind another model.
    pub(crate) fn with_text(self, text: impl TextModel + 'static) -> Self {
        Self { text: Box::new(text), ..self }
    }

    /// The model without its vocabulary projection as an ONNX graph, see `docs/graphs.md`.
    ///
    /// # Errors
    /// As there.
    pub fn to_graph(&self, form: GraphForm) -> Result<ModelProto> {
        self.text.to_graph(form)
    }

    /// The caches that its layers read, in their order: one that several read as often.
    pub fn caches(&self) -> Vec<CacheUse> {
        self.text.caches()
    }

    /// How many tokens the model knows.
    pub fn vocab_size(&self) -> usize {
        self.text.vocab_size()
    }

    /// The device of the weights.
    pub fn device(&self) -> Device {
        self.backend.device()
    }

    /// The most tokens that a sequence may have, where the model's shapes are fixed.
    pub fn max_seq_len(&self) -> Option<u64> {
        self.text.max_seq_len()
    }

    /// Whether all that a step takes is counted, see [`TextModel::is_counted`].
    pub(crate) fn is_counted(&self) -> bool {
        self.text.is_counted()
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
        caches: &CacheManager,
        metadata: &StepMetadata,
    ) -> Result<Tensor> {
        let step = HostStep { tokens, rows, metadata };
        let compute = |on: &Run<'_>, inputs: &StepInputs<'_>| {
            self.in_pool(|| self.projected(on, &self.text.forward(on, inputs, caches)?))
        };
        match self.place(caches) {
            Some(place) => {
                metadata.check(caches.book().layout()).map_err(ManagerError::from)?;
                self.steps.logits(step, &place, compute)
            }
            None => compute(&self.backend.run(), &step.on_host()),
        }
    }

    /// Runs `compute` of a step, whose lists are uploaded once where ops are launches.
    fn launched<R: Send>(
        &self,
        step: HostStep<'_>,
        caches: &CacheManager,
        compute: impl FnOnce(&Run<'_>, &StepInputs<'_>) -> Result<R> + Send,
    ) -> Result<R> {
        let compute = |on: &Run<'_>, inputs: &StepInputs<'_>| self.in_pool(|| compute(on, inputs));
        match self.place(caches) {
            Some(place) => self.steps.run(step, &place, compute),
            None => compute(&self.backend.run(), &step.on_host()),
        }
    }

    /// Runs `compute` inside the pool of threads: a parallel loop that starts outside wakes and awaits it each time. What a
    /// device is given comes from one thread.
    fn in_pool<R: Send>(&self, compute: impl FnOnce() -> R + Send) -> R {
        if self.device().is_cpu() { rayon::scope(|_| compute()) } else { compute() }
    }

    /// Where the lists of steps are uploaded to, if ops are launches.
    fn place(&self, caches: &CacheManager) -> Option<Place<'_>> {
        let ropes = if self.backend.launches() { self.text.ropes()? } else { return None };
        let most = usize::try_from(caches.book().layout().limits.max_batch_size).unwrap_or(usize::MAX);
        Some(Place { backend: &self.backend, ropes, pools: caches.identity(), most })
    }

    /// Records no steps from now on.
    pub(crate) fn only_launch(&self) {
        self.steps.only_launch();
    }

    /// Gives up steps that were recorded, which hold memory of the device.
    pub(crate) fn forget_recorded(&self) {
        self.steps.forget();
    }
}

impl TextModel for Blocks {
    fn to_graph(&self, form: GraphForm) -> Result<ModelProto> {
        let Ending::Norm(norm) = &self.ending else {
            return Err(refuse("the model", "it has several residual streams"));
        };
        let mut writer = Writer::new(form);
        let embedding = self.embedding.computed()?;
        let hidden = embedding.dim(1)?;
        let embedding = writer.weight(&embedding)?;
        let embedded = writer.node_with("Gather", &[&embedding, "input_ids"], vec![int("axis", 0)]);
        let mut x = writer.scaled(&embedded, self.embedding_scale);
        writer.set_embedded(&x);
        if let Some(layer_inputs) = &self.layer_inputs {
            layer_inputs.trace(&mut writer, &x)?;
        }
        for block in &self.blocks {
            x = block.trace(&mut writer, &x)?;
        }
        let x = norm.trace(&mut writer, &x)?;
        Ok(writer.finish(&x, hidden))
    }

    fn vocab_size(&self) -> usize {
        self.embedding.rows()
    }

    fn caches(&self) -> Vec<CacheUse> {
        self.blocks.iter().flat_map(|block| block.mixer.caches()).collect()
    }

    fn replay(&self, on: &Run<'_>, kept: &ReplayLayer<'_>) -> Result<()> {
        for block in &self.blocks {
            if block.mixer.replay(on, kept)? {
                return Ok(());
            }
        }
        let layer = kept.layer.unwrap_or_default();
        Err(ManagerError::UnknownLayer { layer, kind: Kind::Ssm }.into())
    }

    fn prediction(&self) -> Option<(&PredictionLayer, &Matrix)> {
        self.prediction.as_ref().map(|prediction| (prediction, &self.embedding))
    }

    fn call_caches(&mut self, names: Names) {
        self.names = names;
    }

    fn ropes(&self) -> Option<Vec<&Rope>> {
        let predicting = self.prediction.iter().flat_map(|prediction| &prediction.blocks);
        Some(self.blocks.iter().chain(predicting).flat_map(|block| block.mixer.ropes()).collect())
    }

    fn forward(&self, on: &Run<'_>, inputs: &StepInputs<'_>, caches: &CacheManager) -> Result<Tensor> {
        let embedded = self.embedding.embed(on, inputs.tokens)?;
        let embedded = scaled(embedded, self.embedding_scale)?;
        let drafts = Drafts::of(caches, inputs);
        let layer_inputs = self.layer_inputs.as_ref();
        let layer_inputs = layer_inputs.map(|of| of.forward(on, inputs.tokens, &embedded)).transpose()?;
        let (names, layer_inputs, drafts) = (&self.names, layer_inputs.as_ref(), drafts.as_ref());
        let chosen = RefCell::default();
        let step = Step { on, inputs, caches, names, embedded: &embedded, layer_inputs, drafts, chosen: &chosen };
        let mut x = match self.ending.streams() {
            1 => embedded.clone(),
            streams => widened(&embedded, streams)?,
        };
        for block in &self.blocks {
            x = block.forward(&x, &step)?;
        }
        drafts.map_or(Ok(()), Drafts::keep)?;
        let chosen = x.index_select(&on.tensor(inputs.rows)?, 0)?;
        self.ending.forward(on, &chosen)
    }
}

fn scaled(x: Tensor, factor: f64) -> candle_core::Result<Tensor> {
    if factor == 1.0 { Ok(x) } else { x * factor }
}
