//! The library way to describe a model without any file; the config front-end uses it too.

mod kept;

use std::borrow::Cow;
use std::sync::Arc;

use cacheplan_handlers::{DType, DecayKind};

use crate::graph::{Attribute, Extent, Graph, Name, Op, OpId, TensorId};
use crate::layers::{
    Attention, BlockSpec, CompressedAttention, FeedForward, LayerSpec, LinearAttention, Mamba1, Mamba2, Mla,
};
use crate::model::{Fact, Model, ModelInfo, PredictionLayer};
use crate::weights::{Stored, WeightBytes, WeightClass};

use self::kept::Kept;

pub(crate) use self::kept::Entries;

/// Describes a model layer by layer.
///
/// Blocks are added to the current layer, in the order in which they run; the residual stream links them.
///
/// ```
/// use cacheplan_handlers::DType;
/// use cacheplan_transforms::{GraphBuilder, PassContext, layers::{Attention, Mamba2}};
///
/// let mut builder = GraphBuilder::new("made_up", 64, DType::Bf16);
/// builder.layer();
/// builder.mamba2(&Mamba2 { num_heads: 8, head_dim: 16, d_state: 16, n_groups: 2, d_conv: 4, state_dtype: None });
/// builder.layer();
/// builder.attention(&Attention::grouped(4, 2, 16));
/// let mut model = builder.build();
///
/// let collected = model.graph.collect(&PassContext::default())?;
/// let names: Vec<&str> = collected.resources.iter().map(|resource| resource.name.as_str()).collect();
/// assert_eq!(names, ["kv_cache_1", "ssm_state_0", "conv_state_0"]);
/// # Ok::<(), cacheplan_transforms::PassError>(())
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    model_type: String,
    hidden_size: u64,
    dtype: DType,
    weight_dtype: DType,
    /// Whether the parameters described are all there are.
    /// Why the sum of the parameters means nothing: some are not described.
    weights_unknown: Option<String>,
    counted_elsewhere: bool,
    layers: Vec<LayerSpec>,
    vocab_size: Option<u64>,
    residual: TensorId,
    /// The mask that attention reads beside causality.
    mask: Option<TensorId>,
    /// What each layer caches of its own, for layers that read it.
    kept: Vec<Vec<Kept>>,
    /// How often the current layer has run before, where it runs several times in a step.
    run: u64,
}

impl GraphBuilder {
    /// A model without layers: token embeddings of `hidden_size` channels, activations of `dtype`.
    pub fn new(model_type: impl Into<String>, hidden_size: u64, dtype: DType) -> Self {
        let mut graph = Graph::new();
        let ids = graph.add_input(Name::new(None, "input_ids"), vec![Extent::BATCH, Extent::SEQUENCE], DType::Int32);
        let embedding = graph.add_op(Op::new(Name::new(None, "embed_tokens"), Op::EMBEDDING).input("ids", ids));
        let shape = vec![Extent::BATCH, Extent::SEQUENCE, hidden_size.into()];
        let residual = graph.add_output(embedding, Name::new(None, "embeddings"), shape, dtype);
        Self {
            graph,
            model_type: model_type.into(),
            hidden_size,
            dtype,
            weight_dtype: dtype,
            weights_unknown: None,
            counted_elsewhere: false,
            layers: Vec::new(),
            vocab_size: None,
            residual,
            mask: None,
            kept: Vec::new(),
            run: 0,
        }
    }

    /// The element type of weight matrices added from now on.
    pub fn weight_dtype(&mut self, dtype: DType) -> &mut Self {
        self.weight_dtype = dtype;
        self
    }

    /// Stores the weights that were added as `how` says of their names.
    pub(crate) fn store(&mut self, how: impl Fn(&Name) -> Result<Option<Stored>, String>) {
        if let Err(why) = self.graph.store_parameters(how) {
            self.forget_weights(|| why);
        }
    }

    /// Starts the next layer and gives its absolute index.
    pub fn layer(&mut self) -> u32 {
        self.layers.push(LayerSpec::default());
        self.kept.push(Vec::new());
        self.layers.len() as u32 - 1
    }

    /// Says what the current layer is called, and how its dimensions are known.
    pub(crate) fn explain(&mut self, kind: &str, known: &Arc<[Fact]>) {
        if let Some(layer) = self.layers.last_mut() {
            (layer.kind, layer.known) = (kind.to_owned(), known.clone());
        }
    }

    fn block(&mut self, block: BlockSpec) {
        if let Some(layer) = self.layers.last_mut() {
            layer.blocks.push(block);
        }
    }

    /// Adds the weight of the token embeddings, and of the head where it is not the same.
    pub fn vocabulary(&mut self, vocab_size: u64, tied: bool) -> &mut Self {
        self.vocab_size = Some(vocab_size);
        for part in ["embed_tokens.weight", "lm_head.weight"].into_iter().take(if tied { 1 } else { 2 }) {
            self.graph.add_parameter(Name::new(None, part), &[vocab_size, self.hidden_size], self.dtype);
        }
        self
    }

    /// The same where embeddings and head are of another width: so many weights.
    pub(crate) fn vocabulary_of(&mut self, vocab_size: u64, weights: u64) {
        self.vocab_size = Some(vocab_size);
        self.more_weights("embed_tokens.weight", weights);
    }

    /// Lets attention that is added from now on read a mask beside causality; one op makes it for all layers.
    pub fn mask(&mut self) -> &mut Self {
        if self.mask.is_none() {
            let id = self.graph.add_op(Op::new(Name::new(None, "mask"), Op::MASK).input("x", self.residual));
            let shape = vec![Extent::BATCH, Extent::SEQUENCE, Extent::Symbol("tokens".into())];
            self.mask = Some(self.graph.add_output(id, Name::new(None, "mask"), shape, self.dtype));
        }
        self
    }

    /// Adds attention.
    pub fn attention(&mut self, dims: &Attention) -> &mut Self {
        self.block(BlockSpec::Attention(*dims));
        let Attention { num_heads, num_kv_heads, head_dim, .. } = *dims;
        let value_dim = dims.value_dim.unwrap_or(head_dim);
        let query_channels = num_heads.saturating_mul(head_dim);
        let kv_channels = num_kv_heads.saturating_mul(head_dim.saturating_add(value_dim));
        let shared = self.kept_by(dims.shares_layer, Op::ATTENTION, "").map(|kept| kept.tensors);
        let width = if shared.is_some() { query_channels } else { query_channels.saturating_add(kv_channels) };
        let qkv = self.linear("attention.qkv", "attention.qkv.weight", self.residual, self.hidden_size, width);
        let query = self.heads(qkv, "attention.query", num_heads, head_dim);
        let [key, value] = shared.unwrap_or_else(|| {
            let key = self.heads(qkv, "attention.key", num_kv_heads, head_dim);
            [key, self.heads(qkv, "attention.value", num_kv_heads, value_dim)]
        });
        self.keep(Op::ATTENTION, "", [key, value], 1);
        let mut op = self.op("attention", Op::ATTENTION).input("query", query).input("key", key).input("value", value);
        if let Some(mask) = self.mask {
            op = op.input("mask", mask);
        }
        let op = op.maybe(Attribute::WINDOW, dims.window.map(Attribute::Number)).shared_with(dims.shares_layer);
        let id = self.graph.add_op(op.maybe(Attribute::CACHE_DTYPE, dims.cache_dtype.map(Attribute::DType)));
        let context_channels = num_heads.saturating_mul(value_dim);
        let output = self.channels(id, "attention.context", context_channels);
        self.project("attention.out", "attention.out.weight", output, context_channels)
    }

    /// Adds multi-head latent attention.
    pub fn mla(&mut self, dims: &Mla) -> &mut Self {
        self.block(BlockSpec::Mla(*dims));
        let head = dims.qk_nope_head_dim.saturating_add(dims.qk_rope_head_dim);
        let query_channels = dims.num_heads.saturating_mul(head);
        let compressed = match dims.q_lora_rank {
            None => self.residual,
            Some(rank) => {
                let id = self.linear("mla.query_down", "mla.query_down.weight", self.residual, self.hidden_size, rank);
                self.channels(id, "mla.compressed_query", rank)
            }
        };
        let from = dims.q_lora_rank.unwrap_or(self.hidden_size);
        let up = self.linear("mla.query_up", "mla.query_up.weight", compressed, from, query_channels);
        let query = self.heads(up, "mla.query", dims.num_heads, head);
        let shared = self.kept_by(dims.shares_layer, Op::MLA, "").map(|kept| kept.tensors);
        let [latent, rope_key] = shared.unwrap_or_else(|| {
            let width = dims.kv_lora_rank.saturating_add(dims.qk_rope_head_dim);
            let down = self.linear("mla.kv_down", "mla.kv_down.weight", self.residual, self.hidden_size, width);
            let latent = self.channels(down, "mla.latent", dims.kv_lora_rank);
            [latent, self.channels(down, "mla.rope_key", dims.qk_rope_head_dim)]
        });
        self.keep(Op::MLA, "", [latent, rope_key], 1);
        let value_channels = dims.num_heads.saturating_mul(dims.v_head_dim);
        let nope_and_value = dims.num_heads.saturating_mul(dims.qk_nope_head_dim.saturating_add(dims.v_head_dim));
        let up = self.parameter("mla.kv_up.weight", &[dims.kv_lora_rank, nope_and_value]);
        let op = self.op("mla", Op::MLA).input("query", query).input("latent", latent).input("rope_key", rope_key);
        let op = op.maybe(Attribute::WINDOW, dims.window.map(Attribute::Number)).shared_with(dims.shares_layer);
        let cache_dtype = dims.cache_dtype.map(Attribute::DType);
        let id = self.graph.add_op(op.input("up", up).maybe(Attribute::CACHE_DTYPE, cache_dtype));
        let output = self.channels(id, "mla.context", value_channels);
        self.project("mla.out", "mla.out.weight", output, value_channels)
    }

    /// Adds the indexer that chooses the tokens which the layer's sparse attention looks at.
    pub fn indexer(&mut self, index_head_dim: u64) -> &mut Self {
        self.index_keys(&Entries { width: index_head_dim, stride: 1, window: None, dtype: None, shares_layer: None })
    }

    /// Adds attention over a window and compressed entries.
    pub fn compressed_attention(&mut self, dims: &CompressedAttention) -> &mut Self {
        self.block(BlockSpec::CompressedAttention(*dims));
        let CompressedAttention { num_heads, head_dim, window, ratio, .. } = *dims;
        let channels = num_heads.saturating_mul(head_dim);
        let width = channels.saturating_add(head_dim);
        let qk = self.linear("attention.qk", "attention.qk.weight", self.residual, self.hidden_size, width);
        let query = self.heads(qk, "attention.query", num_heads, head_dim);
        let key = self.channels(qk, "attention.key", head_dim);
        let mut op = self.op("attention", Op::COMPRESSED_ATTENTION).input("query", query).input("latent", key);
        op = op
            .attribute(Attribute::WINDOW, Attribute::Number(window))
            .attribute(Attribute::RATIO, Attribute::Number(ratio));
        if let Some(index_head_dim) = dims.index_head_dim {
            let weight = "attention.index_proj.weight";
            let from = self.hidden_size;
            let index = self.linear("attention.index_proj", weight, self.residual, from, index_head_dim);
            op = op.input("index_key", self.channels(index, "attention.index_key", index_head_dim));
        }
        let id = self.graph.add_op(op.maybe(Attribute::CACHE_DTYPE, dims.cache_dtype.map(Attribute::DType)));
        let output = self.channels(id, "attention.context", channels);
        self.project("attention.out", "attention.out.weight", output, channels)
    }

    /// Adds RWKV-4's time mixing of `width` channels and its channel mixing.
    pub fn rwkv4(&mut self, width: u64) -> &mut Self {
        self.block(BlockSpec::Rwkv4 { width });
        let projection = self.linear("rwkv.kvr", "rwkv.kvr.weight", self.residual, self.hidden_size, width);
        let key = self.channels(projection, "rwkv.key", width);
        let id = self.graph.add_op(self.op("rwkv", Op::RWKV4).input("x", self.residual).input("key", key));
        let output = self.channels(id, "rwkv.out", width);
        self.project("rwkv.out_proj", "rwkv.out_proj.weight", output, width)
    }

    /// Adds a Mamba-1 mixer.
    pub fn mamba1(&mut self, dims: &Mamba1) -> &mut Self {
        self.block(BlockSpec::Mamba1(*dims));
        let Mamba1 { d_inner, d_state, d_conv, dt_rank, state_dtype } = *dims;
        let width = d_inner.saturating_mul(2);
        let projection = self.linear("mamba.in_proj", "mamba.in_proj.weight", self.residual, self.hidden_size, width);
        let x = self.channels(projection, "mamba.x", d_inner);
        let convolved = self.causal_conv("mamba.conv1d", "mamba.conv1d.weight", x, vec![d_inner], d_conv);
        let selected = dt_rank.saturating_add(d_state.saturating_mul(2));
        let selection = self.linear("mamba.x_proj", "mamba.x_proj.weight", convolved, d_inner, selected);
        let b = self.channels(selection, "mamba.b", d_state);
        let c = self.channels(selection, "mamba.c", d_state);
        let dt = self.parameter("mamba.dt_proj.weight", &[dt_rank, d_inner]);
        let a = self.parameter("mamba.a_log", &[d_inner, d_state]);
        let op = self.op("mamba", Op::SELECTIVE_SCAN).input("x", convolved).input("b", b).input("c", c);
        let op = op.input("dt", dt).input("a", a);
        let id = self.graph.add_op(op.maybe(Attribute::STATE_DTYPE, state_dtype.map(Attribute::DType)));
        let output = self.channels(id, "mamba.y", d_inner);
        self.project("mamba.out_proj", "mamba.out_proj.weight", output, d_inner)
    }

    /// Adds a Mamba-2 mixer.
    pub fn mamba2(&mut self, dims: &Mamba2) -> &mut Self {
        self.block(BlockSpec::Mamba2(*dims));
        let Mamba2 { num_heads, head_dim, d_state, n_groups, d_conv, state_dtype } = *dims;
        let d_inner = num_heads.saturating_mul(head_dim);
        let shared = n_groups.saturating_mul(d_state);
        let conv_dim = shared.saturating_mul(2).saturating_add(d_inner);
        let width = d_inner.saturating_add(conv_dim).saturating_add(num_heads);
        let projection = self.linear("mamba.in_proj", "mamba.in_proj.weight", self.residual, self.hidden_size, width);
        let xbc = self.channels(projection, "mamba.xbc", conv_dim);
        let sections = if shared == 0 { vec![d_inner] } else { vec![d_inner, shared, shared] };
        let convolved = self.causal_conv("mamba.conv1d", "mamba.conv1d.weight", xbc, sections, d_conv);
        let split = self.graph.add_op(self.op("mamba.split", Op::SPLIT).input("x", convolved));
        let x = self.heads(split, "mamba.x", num_heads, head_dim);
        let b = self.heads(split, "mamba.b", n_groups.max(1), d_state);
        let c = self.heads(split, "mamba.c", n_groups.max(1), d_state);
        let op = self.op("mamba", Op::SSD).input("x", x).input("b", b).input("c", c);
        let id = self.graph.add_op(op.maybe(Attribute::STATE_DTYPE, state_dtype.map(Attribute::DType)));
        let output = self.channels(id, "mamba.y", d_inner);
        self.project("mamba.out_proj", "mamba.out_proj.weight", output, d_inner)
    }

    /// Adds a recurrence with one matrix per value head.
    pub fn linear_attention(&mut self, dims: &LinearAttention) -> &mut Self {
        self.block(BlockSpec::LinearAttention(*dims));
        let LinearAttention { num_k_heads, num_v_heads, head_k_dim, head_v_dim, d_conv, state_dtype, .. } = *dims;
        let key_channels = num_k_heads.saturating_mul(head_k_dim);
        let value_channels = num_v_heads.saturating_mul(head_v_dim);
        let qkv_channels = key_channels.saturating_mul(2).saturating_add(value_channels);
        let projection =
            self.linear("linear_attn.qkv", "linear_attn.qkv.weight", self.residual, self.hidden_size, qkv_channels);
        let mut qkv = self.channels(projection, "linear_attn.qkv.out", qkv_channels);
        if let Some(d_conv) = d_conv {
            let sections = vec![key_channels, key_channels, value_channels];
            qkv = self.causal_conv("linear_attn.conv1d", "linear_attn.conv1d.weight", qkv, sections, d_conv);
        }
        let split = self.graph.add_op(self.op("linear_attn.split", Op::SPLIT).input("x", qkv));
        let query = self.heads(split, "linear_attn.query", num_k_heads, head_k_dim);
        let key = self.heads(split, "linear_attn.key", num_k_heads, head_k_dim);
        let value = self.heads(split, "linear_attn.value", num_v_heads, head_v_dim);
        let op = self.op("linear_attn", Op::LINEAR_ATTENTION);
        let mut op = op.input("query", query).input("key", key).input("value", value);
        if dims.delta_rule {
            op = op.input("beta", self.gate("linear_attn.beta", &[num_v_heads]));
        }
        match dims.decay {
            DecayKind::Fixed => {}
            DecayKind::PerHead => op = op.input("decay", self.gate("linear_attn.decay", &[num_v_heads])),
            DecayKind::PerChannel => op = op.input("decay", self.gate("linear_attn.decay", &[num_v_heads, head_k_dim])),
        }
        let id = self.graph.add_op(op.maybe(Attribute::STATE_DTYPE, state_dtype.map(Attribute::DType)));
        let output = self.channels(id, "linear_attn.context", value_channels);
        self.project("linear_attn.out", "linear_attn.out.weight", output, value_channels)
    }

    /// Adds a gated short convolution over `channels`.
    pub fn short_conv(&mut self, channels: u64, d_conv: u64) -> &mut Self {
        self.block(BlockSpec::ShortConv { channels, d_conv });
        let width = channels.saturating_mul(3);
        let projection = self.linear("conv.in_proj", "conv.in_proj.weight", self.residual, self.hidden_size, width);
        let x = self.channels(projection, "conv.x", channels);
        let output = self.causal_conv("conv", "conv.weight", x, vec![channels], d_conv);
        self.project("conv.out_proj", "conv.out_proj.weight", output, channels)
    }

    /// Adds an RG-LRU recurrence of `width` channels behind a convolution.
    pub fn rg_lru(&mut self, width: u64, d_conv: u64, state_dtype: Option<DType>) -> &mut Self {
        self.block(BlockSpec::RgLru { width, d_conv, state_dtype });
        let both = width.saturating_mul(2);
        let projection = self.linear("recurrent.in", "recurrent.in.weight", self.residual, self.hidden_size, both);
        let x = self.channels(projection, "recurrent.x", width);
        let convolved = self.causal_conv("recurrent.conv1d", "recurrent.conv1d.weight", x, vec![width], d_conv);
        let op = self.op("recurrent", Op::RG_LRU).input("x", convolved);
        let id = self.graph.add_op(op.maybe(Attribute::STATE_DTYPE, state_dtype.map(Attribute::DType)));
        let output = self.channels(id, "recurrent.y", width);
        self.project("recurrent.out", "recurrent.out.weight", output, width)
    }

    /// Adds a feed-forward block.
    pub fn feed_forward(&mut self, dims: &FeedForward) -> &mut Self {
        self.block(BlockSpec::FeedForward(*dims));
        let seen = dims.latent_size.filter(|_| dims.experts > 0).unwrap_or(self.hidden_size);
        let matrix = [dims.matrices, seen, dims.intermediate_size];
        let mut op = self.op("mlp", if dims.experts == 0 { Op::MLP } else { Op::MOE }).input("x", self.residual);
        if dims.experts == 0 {
            op = op.input("weight", self.parameter("mlp.weight", &matrix));
        } else {
            let experts = [dims.experts, matrix[0], matrix[1], matrix[2]];
            op = op.input("experts", self.parameter("mlp.experts.weight", &experts));
            op = op.input("router", self.parameter("mlp.router.weight", &[self.hidden_size, dims.experts]));
            if dims.latent_size.is_some() {
                op = op.input("latent", self.parameter("mlp.latent.weight", &[2, self.hidden_size, seen]));
            }
        }
        if dims.shared_size > 0 {
            let shared = [dims.matrices, self.hidden_size, dims.shared_size];
            op = op.input("shared", self.parameter("mlp.shared.weight", &shared));
        }
        let id = self.graph.add_op(op);
        self.residual = self.channels(id, "mlp.out", self.hidden_size);
        self
    }

    /// Adds an op of a framework's own to the current layer: it reads the residual stream at the port `x`, and its
    /// output of `hidden_size` channels takes the stream's place.
    ///
    /// `inputs` are further tensors that only this op reads, each with its port and its shape behind batch and
    /// sequence; a descriptor reads the dimensions of the op's caches from them.
    pub fn custom(&mut self, part: &'static str, kind: &'static str, inputs: &[(&'static str, &[u64])]) -> &mut Self {
        self.block(BlockSpec::Op(kind.to_owned()));
        let mut op = self.op(part, kind).input("x", self.residual).attribute(Attribute::STATEFUL, Attribute::Flag);
        if !inputs.is_empty() {
            let projection = self.graph.add_op(self.op("custom.in", Op::LINEAR).input("x", self.residual));
            for &(port, shape) in inputs {
                let tensor = self.tensor(projection, port, shape);
                op = op.input(port, tensor);
            }
        }
        let id = self.graph.add_op(op);
        self.residual = self.channels(id, "custom.out", self.hidden_size);
        self
    }

    /// The finished model. Its weights are the sum of the parameters described, which is an assumption.
    pub fn build(mut self) -> Model {
        for layer in self.layers.iter_mut().filter(|layer| layer.kind.is_empty()) {
            layer.kind = layer.blocks.first().map_or("none", BlockSpec::name).to_owned();
        }
        let weights = self.weight_bytes();
        let prediction = weights.and_then(|_| self.prediction_layer_bytes());
        let info = ModelInfo {
            name: None,
            model_type: self.model_type,
            layers: self.layers.len() as u32,
            dtype: self.dtype,
            max_position_embeddings: None,
            weights,
            fingerprint: String::new(),
            revision: None,
            step_tokens: None,
        };
        Model {
            hidden_size: Some(self.hidden_size),
            vocab_size: self.vocab_size,
            weights_unknown: self.weights_unknown,
            prediction: PredictionLayer { weights: prediction, windowed: false },
            ..Model::new(info, self.graph, self.layers)
        }
    }

    /// Adds weights of the current layer, or of none, that no dimension tells; `part` says of what.
    pub(crate) fn more_weights(&mut self, part: &'static str, count: u64) {
        if count > 0 {
            self.graph.add_parameter(self.name(part), &[count], self.dtype);
        }
    }

    /// Some weights are not described, so that their sum means nothing; the first reason is kept.
    pub(crate) fn forget_weights(&mut self, why: impl FnOnce() -> String) {
        self.weights_unknown.get_or_insert_with(why);
    }

    fn weight_bytes(&self) -> Option<WeightBytes> {
        self.graph
            .parameter_bytes(|_| true)
            .filter(|_| self.weights_unknown.is_none())
            .and_then(WeightBytes::of_dimensions)
    }

    /// What a layer that predicts a token further takes: the weights of the last attention layer, two norms and a matrix
    /// that joins the hidden row with the token's embedding, and a norm before the head that it shares.
    fn prediction_layer_bytes(&self) -> Option<WeightBytes> {
        let attends = |layer: &LayerSpec| {
            layer.blocks.iter().any(|block| matches!(block, BlockSpec::Attention(_) | BlockSpec::Mla(_)))
        };
        let like = self.layers.iter().rposition(attends)?;
        let mut classes = self.graph.parameter_bytes(|name| name.layer == Some(like as u32))?;
        let joining = self.hidden_size.checked_mul(self.hidden_size.checked_mul(2)?.checked_add(3)?)?;
        classes.add(WeightClass::Replicated, self.dtype.row_bytes(joining)?)?;
        WeightBytes::of_dimensions(classes)
    }

    /// An op of the current layer; of which run of it, it says.
    fn op(&self, part: impl Into<Cow<'static, str>>, kind: &'static str) -> Op {
        let op = Op::new(self.name(part), kind);
        if self.run == 0 { op } else { op.attribute(Attribute::RUN, Attribute::Number(self.run)) }
    }

    fn name(&self, part: impl Into<Cow<'static, str>>) -> Name {
        let part = part.into();
        let part = if self.run == 0 { part } else { format!("{part}.run{}", self.run).into() };
        Name::new(self.layer_index(), part)
    }

    fn layer_index(&self) -> Option<u32> {
        (self.layers.len() as u32).checked_sub(1)
    }

    /// A weight of the current layer, which all of its runs have in common.
    fn parameter(&mut self, part: &'static str, shape: &[u64]) -> TensorId {
        let shape = if self.counted_elsewhere { &[0] } else { shape };
        self.parameter_in(part, shape, self.weight_dtype)
    }

    fn parameter_in(&mut self, part: &'static str, shape: &[u64], dtype: DType) -> TensorId {
        let name = Name::new(self.layer_index(), part);
        let known = if self.run == 0 { None } else { self.graph.last_parameter(&name) };
        known.unwrap_or_else(|| self.graph.add_parameter(name, shape, dtype))
    }

    /// Whether matrices that are added from now on are counted elsewhere, so that they are empty here.
    pub(crate) fn count_elsewhere(&mut self, elsewhere: bool) {
        self.counted_elsewhere = elsewhere;
    }

    fn linear(&mut self, part: &'static str, weight: &'static str, x: TensorId, from: u64, to: u64) -> OpId {
        let weight = self.parameter(weight, &[from, to]);
        self.graph.add_op(self.op(part, Op::LINEAR).input("x", x).input("weight", weight))
    }

    /// Multiplies back to the residual stream.
    fn project(&mut self, part: &'static str, weight: &'static str, x: TensorId, from: u64) -> &mut Self {
        let id = self.linear(part, weight, x, from, self.hidden_size);
        self.residual = self.channels(id, "hidden", self.hidden_size);
        self
    }

    fn causal_conv(
        &mut self,
        part: &'static str,
        weight: &'static str,
        x: TensorId,
        sections: Vec<u64>,
        d_conv: u64,
    ) -> TensorId {
        let channels = sections.iter().fold(0u64, |sum, &section| sum.saturating_add(section));
        let weight = self.parameter_in(weight, &[channels, d_conv], self.dtype);
        let op = self.op(part, Op::CAUSAL_CONV).input("x", x).input("weight", weight);
        let id = self.graph.add_op(op.attribute(Attribute::SECTIONS, Attribute::Numbers(sections)));
        self.channels(id, "convolved", channels)
    }

    /// What a projection of the residual stream, whose weight is counted elsewhere, gives each head.
    fn gate(&mut self, part: &'static str, rest: &[u64]) -> TensorId {
        let id = self.graph.add_op(self.op(part, Op::LINEAR).input("x", self.residual));
        self.tensor(id, part, rest)
    }

    fn channels(&mut self, op: OpId, part: &'static str, channels: u64) -> TensorId {
        self.tensor(op, part, &[channels])
    }

    fn heads(&mut self, op: OpId, part: &'static str, heads: u64, head_dim: u64) -> TensorId {
        self.tensor(op, part, &[heads, head_dim])
    }

    fn tensor(&mut self, op: OpId, part: impl Into<Cow<'static, str>>, rest: &[u64]) -> TensorId {
        self.tensor_in(op, part, rest, self.dtype)
    }

    fn tensor_in(&mut self, op: OpId, part: impl Into<Cow<'static, str>>, rest: &[u64], dtype: DType) -> TensorId {
        let leading = [Extent::BATCH, Extent::SEQUENCE].into_iter();
        let shape = leading.chain(rest.iter().map(|&size| Extent::Known(size))).collect();
        self.graph.add_output(op, self.name(part), shape, dtype)
    }
}
