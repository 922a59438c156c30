//! From a model's layers and weights to its decoder: what all architectures have in common.

use cacheplan_handlers::DecayKind;
use cacheplan_kernels::Window;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{Attention, BlockSpec, LayerSpec, LinearAttention, Mamba2 as Mamba2Spec, Mla};

use crate::block::Block;
use crate::decoder::{Blocks, Decoder, Head};
use crate::error::{ConfigError, Result, RuntimeError};
use crate::layers::{
    Activation, AttentionShape, Ending, GatedDeltaShape, GatedShape, GatedStreams, KdaDecay, KdaShape, Keys,
    LATENT_NORM_EPS, LayerInputs, LayerInputsShape, Linear, Mamba2, Mamba2Rules, Mamba2Shape, MlaShape, MlpShape,
    OutputGate, RmsNorm, size,
};
use crate::prediction::{PredictionLayer, PredictionNames};
use crate::step::Names;
use crate::weights::{Scope, Weights};

/// A norm's weights, its channels and its epsilon give the norm.
pub(crate) type LoadNorm = fn(&Scope<'_>, usize, f64) -> Result<RmsNorm>;

/// What stands behind the last layer, and of how many residual streams it makes one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ends {
    /// A norm of the only one.
    Norm,
    /// Their mean, and a norm of it.
    Mean { streams: usize },
    /// A mixture by gates that come through a layer of so many channels.
    Gated { streams: usize, rank: usize },
}

/// What stands around the layers, and what it is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorNames {
    /// What the names of all tensors but the head's begin with.
    pub(crate) root: &'static str,
    pub(crate) embedding: &'static str,
    /// The norm behind the last layer, or what else makes one stream of several there.
    pub(crate) norm: &'static str,
    /// What it is.
    pub(crate) ends: Ends,
    /// The epsilon of all norms.
    pub(crate) eps: f64,
    /// How a norm of so many channels is read.
    pub(crate) load_norm: LoadNorm,
    /// Whether the embedding is the vocabulary projection too.
    pub(crate) tied: bool,
    /// Factor on the embedded tokens.
    pub(crate) embedding_scale: f64,
    /// What each layer takes of the tokens beside the stream.
    pub(crate) layer_inputs: Option<LayerInputsShape>,
    /// Factor on the logits.
    pub(crate) logit_scale: f64,
    /// Logits become `cap * tanh(logit / cap)`.
    pub(crate) logit_softcap: Option<f64>,
    /// What a prediction layer is called, where its model may have one.
    pub(crate) prediction: Option<PredictionNames>,
}

impl TensorNames {
    /// The names that most models have.
    pub(crate) fn new(eps: f64, tied: bool) -> Self {
        Self {
            root: "model",
            embedding: "embed_tokens",
            norm: "norm",
            ends: Ends::Norm,
            eps,
            load_norm: RmsNorm::load,
            tied,
            embedding_scale: 1.0,
            layer_inputs: None,
            logit_scale: 1.0,
            logit_softcap: None,
            prediction: None,
        }
    }

    /// The names that models have whose first ancestor was Mamba.
    pub(crate) fn backbone(eps: f64, tied: bool) -> Self {
        Self { root: "backbone", embedding: "embeddings", norm: "norm_f", ..Self::new(eps, tied) }
    }

    fn norm(&self, weights: &Scope<'_>, size: usize) -> Result<RmsNorm> {
        (self.load_norm)(weights, size, self.eps)
    }

    fn ending(&self, weights: &Scope<'_>, hidden: usize) -> Result<Ending> {
        Ok(match self.ends {
            Ends::Norm => Ending::Norm(self.norm(weights, hidden)?),
            Ends::Mean { streams } => Ending::Mean { streams, norm: self.norm(weights, hidden)? },
            Ends::Gated { streams, rank } => {
                let shape = GatedShape { hidden, streams, rank, norm_eps: self.eps };
                Ending::Gated(GatedStreams::load(weights, shape, false)?)
            }
        })
    }
}

/// A layer that is being loaded.
pub(crate) struct Layer<'a> {
    /// Its absolute number.
    pub(crate) index: u32,
    /// What it is made of.
    pub(crate) blocks: &'a [BlockSpec],
    /// Channels of the residual stream.
    pub(crate) hidden: usize,
    /// Its weights.
    pub(crate) weights: Scope<'a>,
    frame: TensorNames,
    spec: &'a LayerSpec,
    decoder: &'a str,
}

/// Builds a decoder around the blocks that `blocks_of` makes of each layer.
pub(crate) fn decoder<'a>(
    model: &'a Model,
    weights: &'a Weights,
    frame: TensorNames,
    mut blocks_of: impl FnMut(&Layer<'a>) -> Result<Vec<Block>>,
) -> Result<Decoder> {
    let hidden = size(model.hidden_size.ok_or(ConfigError::Missing { key: "hidden_size" })?);
    let vocab_size = size(model.vocab_size.ok_or(ConfigError::Missing { key: "vocab_size" })?);
    let root = weights.scope(frame.root);
    let mut blocks = Vec::new();
    for (index, spec) in (0..).zip(&model.layers) {
        let weights = root.enter("layers").enter(index);
        let decoder = model.decoder.as_str();
        blocks.extend(blocks_of(&Layer { index, blocks: &spec.blocks, hidden, weights, frame, spec, decoder })?);
    }
    let prediction = match frame.prediction.filter(|_| weights.predicts()) {
        Some(names) => Some(prediction(model, weights, frame, names, hidden, &mut blocks_of)?),
        None => None,
    };
    let embedding = root.enter(frame.embedding).product("weight", [vocab_size, hidden])?;
    let ending = frame.ending(&root.enter(frame.norm), hidden)?;
    let head = Head::load(&embedding, weights, hidden, frame.tied)?;
    let head = Head { scale: frame.logit_scale, softcap: frame.logit_softcap, ..head };
    // Layers that graphs compute have theirs in these too.
    let layer_inputs = frame.layer_inputs.filter(|_| !model.layers.is_empty());
    let layer_inputs = layer_inputs.map(|shape| LayerInputs::load(&root, hidden, model.layers.len(), shape));
    let (layer_inputs, names, embedding_scale) = (layer_inputs.transpose()?, Names::new(), frame.embedding_scale);
    let text = Blocks { embedding, blocks, ending, embedding_scale, layer_inputs, names, prediction };
    Ok(Decoder::new(text, Some(head), weights.backend()).with_mapped(weights.mapped_bytes()))
}

/// Reads what predicts, whose layers are like the model's last ones of their kinds.
fn prediction<'a>(
    model: &'a Model,
    weights: &'a Weights,
    frame: TensorNames,
    names: PredictionNames,
    hidden: usize,
    blocks_of: &mut impl FnMut(&Layer<'a>) -> Result<Vec<Block>>,
) -> Result<PredictionLayer> {
    let index = model.layers.len() as u32;
    let own = |number: usize| match names.root {
        Some(root) => weights.scope(root).enter("layers").enter(number),
        None => weights.scope(frame.root).enter("layers").enter(index),
    };
    let around = names.root.map_or_else(|| own(0), |root| weights.scope(root));
    let mut blocks = Vec::new();
    for (number, part) in names.parts.iter().enumerate() {
        let like = model.layers.iter().rfind(|spec| part.is_like(spec));
        let spec = like.ok_or(ConfigError::Missing { key: "num_hidden_layers" })?;
        let (decoder, weights) = (model.decoder.as_str(), own(number));
        blocks.extend(blocks_of(&Layer { index, blocks: &spec.blocks, hidden, weights, frame, spec, decoder })?);
    }
    let norm = |name: &str| frame.norm(&around.enter(name), hidden);
    let norms = [norm(names.token_norm)?, norm(names.hidden_norm)?, norm(names.norm)?];
    let projection = Linear::load(&around.enter(names.projection), 2 * hidden, hidden, false)?;
    Ok(PredictionLayer::new(norms, projection, blocks, names.goes_on_normed))
}

impl<'a> Layer<'a> {
    /// Its weights under a name.
    pub(crate) fn enter(&self, name: impl std::fmt::Display) -> Scope<'a> {
        self.weights.enter(name)
    }

    /// Its norm of that name, over the residual stream.
    pub(crate) fn norm(&self, name: &str) -> Result<RmsNorm> {
        self.norm_of(&self.enter(name), self.hidden)
    }

    /// A norm over `size` channels.
    pub(crate) fn norm_of(&self, weights: &Scope<'_>, size: usize) -> Result<RmsNorm> {
        self.frame.norm(weights, size)
    }

    /// The shape of its attention, which must keep keys and values of its own and of one size.
    pub(crate) fn attention(&self, dims: &Attention, bias: bool) -> Result<AttentionShape> {
        match dims.shares_layer {
            None => self.sharing_attention(dims, bias),
            Some(_) => Err(self.refuse("attention over keys of its own")),
        }
    }

    /// The same of a layer that may read those of an earlier one.
    pub(crate) fn sharing_attention(&self, dims: &Attention, bias: bool) -> Result<AttentionShape> {
        let Attention { num_heads, num_kv_heads, head_dim, value_dim, window, shares_layer, .. } = *dims;
        if value_dim.is_some_and(|values| values != head_dim) {
            return Err(self.refuse("attention with values of the keys' size"));
        }
        Ok(AttentionShape {
            hidden: self.hidden,
            heads: size(num_heads),
            kv_heads: size(num_kv_heads),
            head_dim: size(head_dim),
            keys: shares_layer.map_or(Keys::Own, Keys::OfLayer),
            window: window.map_or(Window::Full, |window| Window::Sliding(size(window))),
            bias,
        })
    }

    /// The shape of its latent attention, which must see everything.
    pub(crate) fn mla(&self, dims: &Mla, bias: bool) -> Result<MlaShape> {
        if dims.window.is_some() {
            return Err(self.refuse("latent attention without a window"));
        }
        let (nope, rope) = (size(dims.qk_nope_head_dim), size(dims.qk_rope_head_dim));
        Ok(MlaShape {
            hidden: self.hidden,
            heads: size(dims.num_heads),
            q_lora_rank: dims.q_lora_rank.map(size),
            kv_lora_rank: size(dims.kv_lora_rank),
            nope,
            rope,
            value: size(dims.v_head_dim),
            bias,
            scale: 1.0 / ((nope + rope) as f64).sqrt(),
            norm_eps: LATENT_NORM_EPS,
            interleaved: false,
        })
    }

    /// The shape of its gated delta net, if it is one with a decay per head behind a convolution.
    pub(crate) fn gated_delta(
        &self,
        dims: &LinearAttention,
        activation: Activation,
        norm_eps: f64,
    ) -> Option<GatedDeltaShape> {
        let (DecayKind::PerHead, true, Some(d_conv)) = (dims.decay, dims.delta_rule, dims.d_conv) else { return None };
        Some(GatedDeltaShape {
            hidden: self.hidden,
            key_heads: size(dims.num_k_heads),
            value_heads: size(dims.num_v_heads),
            key_dim: size(dims.head_k_dim),
            value_dim: size(dims.head_v_dim),
            d_conv: size(d_conv),
            activation,
            norm_eps: norm_eps as f32,
            strength: 1.0,
            gate: OutputGate::Silu,
        })
    }

    /// The shape of its Kimi delta attention, if it is one: a decay per channel, and keys like values.
    pub(crate) fn kda(
        &self,
        dims: &LinearAttention,
        activation: Activation,
        norm_eps: f64,
        decay: KdaDecay,
    ) -> Option<KdaShape> {
        let (DecayKind::PerChannel, true, Some(d_conv)) = (dims.decay, dims.delta_rule, dims.d_conv) else {
            return None;
        };
        let is_even = (dims.num_k_heads, dims.head_k_dim) == (dims.num_v_heads, dims.head_v_dim);
        is_even.then_some(KdaShape {
            hidden: self.hidden,
            heads: size(dims.num_k_heads),
            head_dim: size(dims.head_k_dim),
            d_conv: size(d_conv),
            activation,
            norm_eps,
            decay,
        })
    }

    /// Its Mamba-2 mixer, whose weights are under `name`.
    pub(crate) fn mamba2(&self, name: &str, dims: &Mamba2Spec, rules: Mamba2Rules) -> Result<Mamba2> {
        Mamba2::load(&self.enter(name), self.index, Mamba2Shape::new(self.hidden, dims), rules)
    }

    /// The shape of a feed-forward layer without biases.
    pub(crate) fn mlp(&self, intermediate: u64, activation: Activation) -> MlpShape {
        MlpShape { hidden: self.hidden, intermediate: size(intermediate), bias: false, activation }
    }

    /// The error for a layer that this decoder cannot run, and what it can.
    pub(crate) fn refuse(&self, known: &'static str) -> RuntimeError {
        let facts = self.spec.known.iter().map(|fact| format!("{} = {} ({})", fact.what, fact.value, fact.from));
        let found = format!("{}: {}", self.spec, facts.collect::<Vec<_>>().join(", "));
        RuntimeError::Layer { layer: self.index, decoder: self.decoder.to_owned(), found, known }
    }
}
