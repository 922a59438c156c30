//! A model as a GGUF file without weights: a true header, and a hole where weights would be.
//!
//! An engine that starts on it allocates the caches that the model would have. What no cache depends on is as small as the
//! engine takes it: feed-forward blocks, experts, the vocabulary.

mod architectures;
mod bytes;
mod compressed;
mod layer;

use self::architectures::{ARCHITECTURES, Architecture, Feed, Linear};
use self::bytes::{Header, Kind, Value};
use crate::frontend::FrontendError;
use crate::layers::{Attention, BlockSpec, LayerSpec, LinearAttention, Mamba1, Mamba2, Mla};
use crate::model::Model;

/// Channels of a feed-forward block, and tokens of the vocabulary.
const FEED: u64 = 32;
const EXPERTS: u64 = 2;
const TOKENS: u64 = 259;

/// A GGUF file without its weights.
#[derive(Debug)]
pub struct GgufSkeleton {
    /// Its architecture, in llama.cpp's words.
    pub architecture: &'static str,
    /// All that stands before the weights.
    pub header: Vec<u8>,
    /// Bytes of the file, the hole included.
    pub length: u64,
}

impl Model {
    /// The model as a GGUF file with a hole for its weights, for an engine that says at its start what its caches take.
    ///
    /// # Errors
    /// A model of no architecture that llama.cpp has and that can be written, or with layers that this one has not.
    pub fn gguf_skeleton(&self) -> Result<GgufSkeleton, FrontendError> {
        let of_model = |known: &&Architecture| known.model_types.contains(&self.info.model_type.as_str());
        let architecture = ARCHITECTURES.iter().find(of_model).ok_or_else(|| self.unwritten("its model type"))?;
        let hidden = self.hidden_size.ok_or_else(|| self.unwritten("its hidden size, which is not known"))?;
        let mut file = Skeleton { architecture, hidden, header: Header::default() };
        file.keys(self)?;
        file.tensor("token_embd.weight", &[hidden, TOKENS]);
        file.vector(if architecture.name == "lfm2" { "token_embd_norm" } else { "output_norm" }, hidden);
        // Gemma 2 has none of its own.
        if architecture.name != "gemma2" {
            file.tensor("output.weight", &[hidden, TOKENS]);
        }
        if architecture.name == "gemma4" {
            file.rope_frequencies(self);
        }
        if architecture.linear == Linear::GatedKda {
            file.vector("output_res_score", hidden);
        }
        if architecture.name == "deepseek4" {
            file.stream_ends();
        }
        let feeds: Vec<bool> = file.feeds(self).collect();
        for (index, (layer, feeds)) in self.layers.iter().zip(feeds).enumerate() {
            file.layer(index, layer, feeds).map_err(|block| self.unwritten(&format!("layer {index}, {block}")))?;
        }
        let (header, length) = file.header.finish();
        Ok(GgufSkeleton { architecture: architecture.name, header, length })
    }

    fn unwritten(&self, what: &str) -> FrontendError {
        let known: Vec<&str> = ARCHITECTURES.iter().flat_map(|known| known.model_types).copied().collect();
        FrontendError::BadValue {
            file: self.source.clone(),
            key: "model_type".to_owned(),
            found: self.info.model_type.clone(),
            expected: format!("no GGUF file can be written of it for {what}; of these it can: {}", known.join(", ")),
        }
    }
}

/// A file as it grows.
struct Skeleton<'a> {
    architecture: &'a Architecture,
    hidden: u64,
    header: Header,
}

/// What blocks of a kind have in common, where a file states it once.
struct Dimensions<'a> {
    attention: Option<&'a Attention>,
    mla: Option<&'a Mla>,
    mamba1: Option<&'a Mamba1>,
    mamba2: Option<&'a Mamba2>,
    linear: Option<&'a LinearAttention>,
    short_conv: Option<u64>,
    index_head_dim: Option<u64>,
}

fn blocks(model: &Model) -> impl Iterator<Item = &BlockSpec> {
    model.layers.iter().flat_map(|layer| &layer.blocks)
}

/// Whether an indexer chooses the tokens that this layer looks at.
fn is_indexed(layer: &LayerSpec) -> bool {
    layer.blocks.iter().any(|block| matches!(block, BlockSpec::Indexer { .. }))
}

/// The attention of a layer, if it has one.
fn attention(layer: &LayerSpec) -> Option<&Attention> {
    layer
        .blocks
        .iter()
        .find_map(|block| if let BlockSpec::Attention(attention) = block { Some(attention) } else { None })
}

impl<'a> Dimensions<'a> {
    fn of(model: &'a Model) -> Self {
        let mut all = Self {
            attention: None,
            mla: None,
            mamba1: None,
            mamba2: None,
            linear: None,
            short_conv: None,
            index_head_dim: None,
        };
        for block in blocks(model) {
            match block {
                // A file states those of full attention, and those of windows beside them.
                BlockSpec::Attention(found) if all.attention.is_none_or(|known| known.window.is_some()) => {
                    all.attention = Some(found);
                }
                BlockSpec::Mla(found) => all.mla = Some(found),
                BlockSpec::Mamba1(found) => all.mamba1 = Some(found),
                BlockSpec::Mamba2(found) => all.mamba2 = Some(found),
                BlockSpec::LinearAttention(found) => all.linear = Some(found),
                BlockSpec::ShortConv { d_conv, .. } => all.short_conv = Some(*d_conv),
                BlockSpec::Indexer { index_head_dim } => all.index_head_dim = Some(*index_head_dim),
                BlockSpec::CompressedAttention(found) => {
                    all.index_head_dim = found.index_head_dim.or(all.index_head_dim);
                }
                _ => {}
            }
        }
        all
    }
}

impl Skeleton<'_> {
    fn number(&mut self, key: &str, value: u64) {
        let name = format!("{}.{key}", self.architecture.name);
        // What a layer has more of than that, no engine loads.
        self.header.key(&name, Value::Number(u32::try_from(value).unwrap_or(u32::MAX)));
    }

    /// A number for each layer, or one where all are the same.
    fn numbers(&mut self, key: &str, values: &[u64]) {
        match values {
            [first, rest @ ..] if rest.iter().all(|value| value == first) => self.number(key, *first),
            values => {
                let name = format!("{}.{key}", self.architecture.name);
                let values = values.iter().map(|value| u32::try_from(*value).unwrap_or(u32::MAX)).collect();
                self.header.key(&name, Value::Numbers(values));
            }
        }
    }

    fn keys(&mut self, model: &Model) -> Result<(), FrontendError> {
        let own = self.architecture;
        let layers = model.layers.len() as u64;
        self.header.key("general.architecture", Value::Text(own.name));
        self.number("block_count", layers);
        self.number("embedding_length", self.hidden);
        self.number("context_length", model.info.max_position_embeddings.unwrap_or(1 << 20));
        self.number("vocab_size", TOKENS);
        for norm in ["layer_norm_rms_epsilon", "layer_norm_epsilon"] {
            self.header.key(&format!("{}.attention.{norm}", own.name), Value::Float(1e-5));
        }
        let feeds: Vec<u64> = self.feeds(model).map(|feeds| if feeds { FEED } else { 0 }).collect();
        self.numbers("feed_forward_length", &feeds);
        if !matches!(own.feed, Feed::None | Feed::Dense | Feed::Ungated | Feed::Joined)
            || ["llama4", "glm4moe"].contains(&own.name)
        {
            self.number("expert_count", EXPERTS);
            self.number("expert_used_count", 1);
        }
        for key in ["expert_feed_forward_length", "expert_shared_feed_forward_length"] {
            self.number(key, FEED);
        }
        // Where leading layers may be dense, all are, but for those that have an indexer for being none.
        let dense = match own.feed {
            Feed::SharedWhereIndexed => model.layers.iter().take_while(|layer| !is_indexed(layer)).count() as u64,
            _ => layers,
        };
        self.number("leading_dense_block_count", dense);
        own.keys.iter().for_each(|(key, value)| self.number(key, (*value).into()));
        for (key, value) in own.floats {
            self.header.key(&format!("{}.{key}", own.name), Value::Float(*value));
        }
        self.cache_keys(model);
        self.tokenizer();
        Ok(())
    }

    /// The dimensions that caches have.
    fn cache_keys(&mut self, model: &Model) {
        let all = Dimensions::of(model);
        let own = self.architecture;
        if let Some(full) = all.attention {
            let of_layers = |of: fn(&Attention) -> u64| -> Vec<u64> {
                model.layers.iter().map(|layer| attention(layer).map_or(0, of)).collect()
            };
            let heads = of_layers(|attention| attention.num_heads);
            // The first number decides whether there are heads at all.
            if own.name == "deci" {
                self.numbers("attention.head_count", &heads);
            } else {
                self.number("attention.head_count", full.num_heads);
            }
            if all.linear.is_some() {
                self.number("attention.head_count_kv", full.num_kv_heads);
            } else {
                self.numbers("attention.head_count_kv", &of_layers(|attention| attention.num_kv_heads));
            }
            self.number("attention.key_length", full.head_dim);
            self.number("attention.value_length", full.value_dim.unwrap_or(full.head_dim));
            self.number("rope.dimension_count", full.head_dim);
            self.header.key(&format!("{}.rope.dimension_sections", own.name), Value::Numbers(vec![8, 8, 8, 0]));
        }
        let windows: Vec<Option<u64>> =
            model.layers.iter().map(|layer| attention(layer).and_then(|attention| attention.window)).collect();
        if let Some(window) = windows.iter().flatten().next() {
            self.number("attention.sliding_window", *window);
            let pattern = Value::Flags(windows.iter().map(Option::is_some).collect());
            self.header.key(&format!("{}.attention.sliding_window_pattern", own.name), pattern);
            let inside = model.layers.iter().filter_map(attention).find(|attention| attention.window.is_some());
            if let Some(inside) = inside {
                self.number("attention.key_length_swa", inside.head_dim);
                self.number("attention.value_length_swa", inside.value_dim.unwrap_or(inside.head_dim));
            }
        }
        if let Some(mla) = all.mla {
            let key = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
            self.number("attention.head_count", mla.num_heads);
            if let Some(rank) = mla.q_lora_rank {
                self.number("attention.q_lora_rank", rank);
            }
            self.number("attention.kv_lora_rank", mla.kv_lora_rank);
            self.number("rope.dimension_count", mla.qk_rope_head_dim);
            if own.expands_latents {
                self.number("attention.head_count_kv", mla.num_heads);
                self.number("attention.key_length", key);
                self.number("attention.value_length", mla.v_head_dim);
            } else {
                // A layer with a state in its place has none.
                let has_latent =
                    |layer: &LayerSpec| layer.blocks.iter().any(|block| matches!(block, BlockSpec::Mla(_)));
                let latents: Vec<u64> = model.layers.iter().map(|layer| has_latent(layer).into()).collect();
                self.numbers("attention.head_count_kv", &latents);
                self.number("attention.key_length", mla.kv_lora_rank + mla.qk_rope_head_dim);
                self.number("attention.value_length", mla.kv_lora_rank);
                self.number("attention.key_length_mla", key);
                self.number("attention.value_length_mla", mla.v_head_dim);
            }
        }
        self.compressed_keys(model);
        if let Some(index_head_dim) = all.index_head_dim {
            self.number("attention.indexer.key_length", index_head_dim);
            for key in ["head_count", "top_k", "block_size", "local_blocks"] {
                self.number(&format!("attention.indexer.{key}"), 1);
            }
        }
        if let Some(d_conv) = all.short_conv {
            self.number("shortconv.l_cache", d_conv);
        }
        let scan = (all.mamba1.map(|it| [it.d_conv, it.d_inner, it.d_state, it.dt_rank, 0]))
            .or(all.mamba2.map(|it| [it.d_conv, it.num_heads * it.head_dim, it.d_state, it.num_heads, it.n_groups]))
            .or(all.linear.map(|it| {
                let values = it.num_v_heads * it.head_v_dim;
                [it.d_conv.unwrap_or(0), values, it.head_k_dim, it.num_v_heads, it.num_k_heads]
            }));
        if let Some(numbers) = scan {
            let keys = ["conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count"];
            for (key, number) in keys.into_iter().zip(numbers) {
                self.number(&format!("ssm.{key}"), number);
            }
        }
        if let Some(linear) = all.linear {
            self.number("kda.head_dim", linear.head_v_dim);
            let interval = model.layers.iter().position(|layer| attention(layer).is_some());
            self.number("full_attention_interval", interval.map_or(4, |first| first as u64 + 1));
        }
    }

    /// A vocabulary of all bytes.
    fn tokenizer(&mut self) {
        let special = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
        let tokens = special.chain((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"))).collect();
        let kinds = [2, 3, 3].into_iter().chain([6; 256]).collect();
        self.header.key("tokenizer.ggml.model", Value::Text("llama"));
        self.header.key("tokenizer.ggml.tokens", Value::Texts(tokens));
        self.header.key("tokenizer.ggml.token_type", Value::Numbers(kinds));
        self.header.key("tokenizer.ggml.scores", Value::Floats([0.0; 259].to_vec()));
        self.header.key("tokenizer.ggml.bos_token_id", Value::Number(1));
        self.header.key("tokenizer.ggml.eos_token_id", Value::Number(2));
    }

    /// A matrix, or several of the same: the elements of a row, rows, matrices.
    fn tensor(&mut self, name: &str, axes: &[u64]) {
        self.header.tensor(name, axes, Kind::smallest(axes[0]));
    }

    fn vector(&mut self, name: &str, length: u64) {
        self.header.tensor(&format!("{name}.weight"), &[length], Kind::F32);
    }

    /// What full attention turns its heads by.
    fn rope_frequencies(&mut self, model: &Model) {
        if let Some(full) = Dimensions::of(model).attention {
            self.vector("rope_freqs", full.head_dim / 2);
        }
    }

    /// Whether each layer has a feed-forward block. Where the model does not tell its size, all layers have one, or all
    /// that would be empty.
    fn feeds(&self, model: &Model) -> impl Iterator<Item = bool> {
        let is_feed = |block: &BlockSpec| matches!(block, BlockSpec::FeedForward(_));
        let is_known = blocks(model).any(is_feed);
        let feed = self.architecture.feed;
        model.layers.iter().map(move |layer| match feed {
            Feed::None => false,
            _ if is_known => layer.blocks.iter().any(is_feed),
            Feed::Ungated => layer.blocks.is_empty(),
            _ => true,
        })
    }
}
