//! What is known of a model besides its graph.

use cacheplan_handlers::DType;
use serde::{Deserialize, Serialize};

use crate::graph::Graph;

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
    /// The kind of each layer as its description calls it, `mamba`.
    pub layer_kinds: Vec<String>,
    /// The model's own config where there was one: `text_config` merged over the rest, bare `Infinity` as a string.
    pub config: serde_json::Map<String, serde_json::Value>,
}

/// One thing that a front-end found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What it is, `attention.head_dim`.
    pub what: String,
    /// Its value.
    pub value: String,
    /// How it is known: the keys it follows from, or what was assumed.
    pub from: String,
    /// Whether nothing in the model's files says so.
    pub assumed: bool,
}

impl Model {
    pub(crate) fn new(info: ModelInfo, graph: Graph) -> Self {
        let (facts, layer_kinds, config) = Default::default();
        Self { info, graph, source: "GraphBuilder".to_owned(), facts, layer_kinds, config }
    }
}

/// The facts about a model that a plan refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
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
    /// Hash of the description that was read, as lower-case hex; empty if there is no file.
    pub fingerprint: String,
}

/// The size of a model's weights and how it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightBytes {
    /// Bytes over all ranks.
    pub bytes: u64,
    /// Read from tensor headers (exact) or computed from dimensions (assumed).
    pub exact: bool,
}
