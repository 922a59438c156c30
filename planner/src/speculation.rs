//! What speculative decoding adds to a model's caches.

use cacheplan_handlers::{DType, Dim, Growth, HandlerError, Kind, ResourceHandler, Split};
use cacheplan_transforms::{Resource, ResourceError, Resources};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ByteSize;

/// How many tokens are drafted, and how states are rolled back to the accepted ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speculation {
    /// Tokens that are drafted in each step.
    pub draft_tokens: u32,
    /// How states are rolled back.
    #[serde(default)]
    pub scheme: Scheme,
    /// Layers of the model's own prediction head, each with caches like those of its last full-attention layer.
    #[serde(default)]
    pub mtp_layers: u32,
    /// Weights of the draft model; 0 where it has none of its own.
    #[serde(default)]
    pub draft_weights: Option<ByteSize>,
}

/// How recurrent states are rolled back to the accepted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// A copy of every state at each candidate position; the accepted one is scattered back.
    #[default]
    Snapshots,
    /// The inputs of the recurrence at each candidate position; accepted ones are replayed. The convolution's own state
    /// is wide enough for the inputs of all candidates, so that accepting none of them changes nothing.
    Replay,
}

impl Speculation {
    /// Candidate positions of a step, the committed one included.
    pub(crate) fn positions(&self) -> u64 {
        u64::from(self.draft_tokens) + 1
    }
}

#[derive(Debug, Error)]
pub(crate) enum SpeculationError {
    #[error(transparent)]
    Handler(#[from] HandlerError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
    #[error("`speculation.mtp_layers` is stated, but the model has no full attention to be like")]
    NoAttention,
}

/// The model's resources with what its speculation needs, then those that draft.
///
/// Twins that a pass collected already are kept as they are.
pub(crate) fn extend(
    resources: &Resources,
    speculation: &Speculation,
    draft: Option<&Resources>,
) -> Result<Resources, SpeculationError> {
    let mut extended = Resources::default();
    let has_twins = resources.iter().any(|resource| resource.handler.is_speculative());
    for resource in resources {
        match speculation.scheme {
            _ if has_twins => extended.push(resource.clone())?,
            Scheme::Snapshots => {
                extended.push(resource.clone())?;
                if let Some(twin) = resource.handler.intermediate() {
                    extended.push(derived(resource, "intermediate", twin))?;
                }
            }
            Scheme::Replay => {
                let handler = match resource.handler.kind() {
                    Kind::CausalConv => widened(&resource.handler, speculation.positions())?,
                    _ => resource.handler.clone(),
                };
                extended.push(Resource { handler, ..resource.clone() })?;
                for (what, handler) in stash(resource, resources)? {
                    extended.push(derived(resource, what, handler))?;
                }
            }
        }
    }
    with_drafts(extended, speculation, draft)
}

/// The resources, then those of the prediction head and of the draft model, named `draft.…`.
pub(crate) fn with_drafts(
    mut resources: Resources,
    speculation: &Speculation,
    draft: Option<&Resources>,
) -> Result<Resources, SpeculationError> {
    let full = Growth::Paged { stride: 1, window: None };
    let last = resources.iter().rfind(|resource| resource.handler.growth() == full).and_then(|last| last.layer);
    // Sparse attention keeps the keys of its indexer beside its latents.
    let like = |resource: &&Resource| resource.handler.growth() == full && resource.layer == last;
    let like: Vec<Resource> = resources.iter().filter(like).cloned().collect();
    if like.is_empty() && speculation.mtp_layers > 0 {
        return Err(SpeculationError::NoAttention);
    }
    for layer in 0..speculation.mtp_layers {
        for (position, like) in like.iter().enumerate() {
            let provenance = vec![format!("as `{}`, for layer {layer} of the prediction head", like.name)];
            let name = match position {
                0 => format!("draft.mtp_{layer}"),
                _ => format!("draft.mtp_{layer}.{position}"),
            };
            let node = format!("mtp.layers.{layer}");
            resources.push(Resource { name, node, provenance, shared_by: Vec::new(), ..like.clone() })?;
        }
    }
    for resource in draft.into_iter().flatten() {
        resources.push(Resource { name: format!("draft.{}", resource.name), ..resource.clone() })?;
    }
    Ok(resources)
}

fn derived(resource: &Resource, what: &str, handler: ResourceHandler) -> Resource {
    let provenance = vec![format!("{what} of `{}` for speculation", resource.name)];
    Resource {
        name: format!("{what}.{}", resource.name),
        handler,
        provenance,
        shared_by: Vec::new(),
        ..resource.clone()
    }
}

/// A convolution state with the columns of all candidates behind its own.
fn widened(conv: &ResourceHandler, candidates: u64) -> Result<ResourceHandler, HandlerError> {
    let mut shape = conv.shape().to_vec();
    if let Some(columns) = shape.last_mut() {
        columns.size += candidates;
    }
    ResourceHandler::new(conv.kind().clone(), conv.growth(), shape, conv.dtype(), conv.layout())
}

/// Whether a resource holds inputs of a recurrence that are replayed.
pub(crate) fn is_replay(kind: &Kind) -> bool {
    matches!(kind, Kind::Custom(name) if name.starts_with("replay."))
}

/// Inputs of a recurrence: `x`, `B`, and the two per-head scalars, as in a Mamba-2 step.
fn stash(state: &Resource, resources: &Resources) -> Result<Vec<(&'static str, ResourceHandler)>, HandlerError> {
    let handler = &state.handler;
    let dims = ["num_heads", "head_dim", "d_state"].map(|name| handler.dim(name));
    let (&Kind::Ssm, [Some(heads), Some(head_dim), Some(d_state)]) = (handler.kind(), dims) else {
        return Ok(Vec::new());
    };
    let beside = resources.of_kind(&Kind::CausalConv).find(|conv| conv.layer == state.layer);
    let groups = beside.and_then(|conv| crate::n_groups(handler, &conv.handler)).unwrap_or(1).max(1);
    let input = |kind: &str, shape: Vec<Dim>, dtype| {
        ResourceHandler::new(Kind::Custom(kind.into()), Growth::PerDraftPosition, shape, dtype, None)
    };
    let heads = Dim::split("num_heads", heads, Split::Heads);
    let groups = Dim::split("n_groups", groups, Split::Heads);
    Ok(vec![
        ("replay_x", input("replay.x", vec![heads.clone(), Dim::whole("head_dim", head_dim)], DType::Bf16)?),
        ("replay_b", input("replay.b", vec![groups, Dim::whole("d_state", d_state)], DType::Bf16)?),
        ("replay_dt", input("replay.dt", vec![heads.clone()], DType::F32)?),
        ("replay_decay", input("replay.decay", vec![heads], DType::F32)?),
    ])
}
