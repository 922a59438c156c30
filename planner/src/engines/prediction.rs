//! What an engine would allocate.

use cacheplan_handlers::DType;
use serde::{Deserialize, Serialize};

use crate::plan::CachePlan;

/// What an engine would allocate; what it has no notion of is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnginePrediction {
    /// The engine's name.
    pub name: String,
    /// The version whose rules were used.
    pub version: String,
    /// Tokens in a block or page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u64>,
    /// Bytes of one layer's page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<u64>,
    /// Groups of layers that share a block table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<u64>,
    /// Layers in a group, padding included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_size: Option<u64>,
    /// Blocks, those that pad included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_blocks: Option<u64>,
    /// Blocks that one sequence of `max_seq_len` tokens needs over all groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_per_request: Option<u64>,
    /// Layers that fill groups and have no pages of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding_layers: Option<u64>,
    /// Bytes of the largest state before its page is padded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_page_bytes: Option<u64>,
    /// Sequences of `max_seq_len` tokens that the blocks hold, as it logs them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<f64>,
    /// Tokens in this version's sense: what it logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens of the pool for sliding windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    /// Slots for states, padding excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_slots: Option<u64>,
    /// Bytes of pages, or of the one pool that also holds states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_bytes: Option<u64>,
    /// Bytes of the pool of what drafts, where it is one beside the model's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_kv_bytes: Option<u64>,
    /// Bytes that are divided off for it, which may be others; no part of a plan.
    #[serde(skip)]
    pub draft_share_bytes: Option<u64>,
    /// Bytes of values in it, where they lie apart from keys and that is known; no part of a plan.
    #[serde(skip)]
    pub draft_value_bytes: Option<u64>,
    /// Bytes of values among those of pages, where they lie apart from keys and that is known; no part of a plan.
    #[serde(skip)]
    pub value_bytes: Option<u64>,
    /// The element type of pages, where it is logged; no part of a plan.
    #[serde(skip)]
    pub kv_dtype: Option<DType>,
    /// Bytes of states in pools of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
    /// Bytes of recurrent states among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssm_bytes: Option<u64>,
    /// Bytes of convolution states among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conv_bytes: Option<u64>,
    /// Bytes of buffers for the recurrent states of drafted tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation_bytes: Option<u64>,
    /// Bytes of buffers for the convolution states of drafted tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation_conv_bytes: Option<u64>,
    /// What the pages of each layer take, of an engine that lays whole layers on a device; no part of a plan.
    #[serde(skip)]
    pub of_layers: Vec<OfLayer>,
    /// Bytes of the buffers for a step, estimated, of an engine that allocates them before it serves; no part of a plan.
    #[serde(skip)]
    pub compute_bytes: Option<u64>,
    /// Tokens that a step must have room for, where it asserts that; no part of a plan.
    #[serde(skip)]
    pub least_step: Option<u64>,
    /// Sequences of the budget's workload that run at once.
    pub sequences: u64,
    /// Bytes of the budget that hold nothing such a sequence needs.
    pub wasted_bytes: u64,
    /// What limits the sequences, and the rules used with where each comes from.
    pub notes: Vec<String>,
}

/// What the pages of a layer take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfLayer {
    /// The layer, where it is one of the model's.
    pub layer: Option<u32>,
    /// Whether they are those of a window, which lie apart.
    pub windowed: bool,
    /// Their bytes.
    pub bytes: u64,
}

impl EnginePrediction {
    /// The prediction beside the plan of the same request.
    pub fn beside(self, plan: &CachePlan) -> EnginePlan<'_> {
        EnginePlan { plan, engine: self }
    }
}

/// A plan with an engine's prediction beside it, as one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct EnginePlan<'a> {
    /// Our plan.
    #[serde(flatten)]
    pub plan: &'a CachePlan,
    /// The engine's allocation.
    pub engine: EnginePrediction,
}

impl EnginePlan<'_> {
    /// Both as YAML, with the keys of their JSON.
    pub fn yaml(&self) -> String {
        // Plain data always has a JSON value.
        crate::render::yaml(&serde_json::to_value(self).unwrap_or_default())
    }

    /// Both as text tables, at most 100 columns wide.
    pub fn table(&self) -> String {
        format!("{}\n{}", self.plan.table(), self.engine.table())
    }

    /// Both as Markdown.
    pub fn markdown(&self) -> String {
        format!("{}\n{}", self.plan.markdown(), self.engine.markdown())
    }
}
