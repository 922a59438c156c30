//! What is known of a model besides its graph.

use cacheplan_handlers::DType;
use serde::{Deserialize, Serialize};

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
    /// Hash of the description that was read, as lower-case hex.
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
