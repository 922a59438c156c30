//! What is known of a model besides its graph.

use cacheplan_handlers::DType;
use serde::{Deserialize, Serialize};

pub use crate::fact::Fact;
use crate::graph::Graph;
use crate::layers::{BlockSpec, LayerSpec};
use crate::weights::WeightBytes;

/// A model as a front-end read it: facts, graph, and how each fact is known.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Model {
    /// The facts that a plan refers to.
    pub info: ModelInfo,
    /// The ops and tensors; the passes have not seen it yet.
    pub graph: Graph,
    /// Where it was read from and in which format, in one line.
    pub source: String,
    /// What was read, from which key, and what had to be assumed.
    pub facts: Vec<Fact>,
    /// What each layer is made of.
    pub layers: Vec<LayerSpec>,
    /// Channels of the residual stream, where they could be told.
    pub hidden_size: Option<u64>,
    /// Tokens that the model knows, where they could be told.
    pub vocab_size: Option<u64>,
    /// Why the config does not tell the size of its weights, where it does not; headers may.
    pub weights_unknown: Option<String>,
    /// The layers that predict further tokens, where it has such.
    pub prediction: PredictionLayer,
    /// What its files state and yet may not be meant, one sentence each.
    pub doubts: Vec<String>,
    /// Whose decoder runs the model: what its description says, else its own type.
    pub decoder: String,
    /// The model's own config where there was one: `text_config` merged over the rest, bare `Infinity` as a string, and
    /// the keys of its decoder in that decoder's spelling. A decoder reads from it what no cache depends on.
    pub config: serde_json::Map<String, serde_json::Value>,
    /// What stands around that of a decoder which is nested in the config of a larger model: the configs of its other parts, such as
    /// `vision_config`.
    pub around: serde_json::Map<String, serde_json::Value>,
    /// How the states of an exported graph are bound to its caches; empty for models that are no graph, and where some
    /// state's use is not known.
    pub states: Vec<StateBinding>,
}

impl Model {
    /// What the config says of the whole model under a key, a null aside: of its decoder, or of its other parts.
    pub fn stated(&self, key: &str) -> Option<&serde_json::Value> {
        self.config.get(key).or_else(|| self.around.get(key)).filter(|value| !value.is_null())
    }

    /// The channels inside each layer's routed experts; of a model without such experts nothing.
    pub fn expert_channels(&self) -> impl Iterator<Item = u64> {
        self.layers.iter().flat_map(|layer| &layer.blocks).filter_map(|block| match block {
            BlockSpec::FeedForward(block) if block.experts > 0 => Some(block.intermediate_size),
            _ => None,
        })
    }

    pub(crate) fn new(info: ModelInfo, graph: Graph, layers: Vec<LayerSpec>) -> Self {
        let (source, decoder) = ("GraphBuilder".to_owned(), info.model_type.clone());
        let (facts, hidden_size, vocab_size, weights_unknown, prediction, doubts, states) = Default::default();
        let (config, around) = Default::default();
        Self {
            info,
            graph,
            source,
            facts,
            layers,
            hidden_size,
            vocab_size,
            weights_unknown,
            prediction,
            doubts,
            decoder,
            config,
            around,
            states,
        }
    }
}

/// What one of a model's layers that predict further tokens is like; none of them is among the model's layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictionLayer {
    /// Bytes of its weights, which the model's do not count; absent where those were read from headers.
    pub weights: Option<WeightBytes>,
    /// Whether it looks at a window, as the model's last layer with one, and not at all tokens.
    pub windowed: bool,
}

/// The facts about a model that a plan refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// What people call it: `org/name` on the Hugging Face hub, else the folder or file that it was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `model_type` of the description, `nemotron_h`.
    #[serde(rename = "type")]
    pub model_type: String,
    /// Decoder layers, those without caches included.
    pub layers: u32,
    /// The activation dtype the model states, `bf16` where it states none.
    pub dtype: DType,
    /// The longest sequence the model states, in tokens.
    pub max_position_embeddings: Option<u64>,
    /// Bytes of the weights, where they could be told.
    pub weights: Option<WeightBytes>,
    /// Where it was read on the Hugging Face hub, `org/name@commit`; absent for what lies elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Hash of the description that was read, as lower-case hex; empty if there is no file.
    pub fingerprint: String,
    /// The most tokens that one call of an exported graph takes, all of one sequence, where its caches have fixed
    /// shapes; absent for models that take any step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_tokens: Option<u64>,
}

impl ModelInfo {
    /// Its name with its type, `granite-4.0-h-small (granitemoehybrid)`; the type alone where it has no name.
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("{name} ({})", self.model_type),
            None => self.model_type.clone(),
        }
    }
}

/// How a graph keeps a state from one call to the next: an input, and the output that takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateBinding {
    /// The graph's input.
    pub input: String,
    /// The graph's output.
    pub output: String,
    /// The layer whose cache it is; of a tensor with a row for each layer, the layers of its rows.
    pub layers: Vec<u32>,
    /// What of that cache.
    pub part: StatePart,
}

/// What of a layer's cache an exported graph carries, and how the output renews it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatePart {
    /// Keys of the tokens so far, `[batch, heads, tokens, head_dim]`; the output has the new ones behind them.
    Keys,
    /// Values, in the same way.
    Values,
    /// Both in one, `[batch, 2, heads, capacity, head_dim]`; of the output only the new tokens' columns count.
    KeysAndValues,
    /// The last inputs of a convolution, `[batch, channels, columns]`, replaced.
    Convolution,
    /// A recurrent state, replaced.
    Recurrence,
    /// Keys, values or latents of all layers and of as many tokens as there may be,
    /// `[layers, 1, heads, tokens, head_dim]`; of the output only the new tokens' columns count. The cache of a row is
    /// called as the input and its layer are, `past_k_5`.
    Fixed,
}
