//! What speculative decoding adds to a model's caches.

use cacheplan_handlers::{DType, Growth, Kind, ResourceHandler};
use cacheplan_transforms::{Resource, Resources};

use crate::budget::Speculation;
use crate::error::PlanError;
use crate::plan::Scheme;

/// The model's resources with what its speculation needs to put states back.
///
/// This is the one place where the twins of states are derived.
pub(crate) fn extend(
    resources: &Resources,
    speculation: &Speculation,
    activations: DType,
) -> Result<Resources, PlanError> {
    let rollback = speculation.rollback_of(resources);
    let mut extended = Vec::with_capacity(2 * resources.len());
    for resource in resources {
        let handler = &resource.handler;
        let (own, kept) = match rollback {
            _ if handler.as_ring().is_some() => {
                (handler.with_drafted(speculation.draft_tokens.into()).map_err(unusable)?, Vec::new())
            }
            None => (handler.clone(), Vec::new()),
            Some(Scheme::Snapshots) => {
                let twin = handler.intermediate().map(|twin| derived(resource, "intermediate", twin));
                (handler.clone(), twin.into_iter().collect())
            }
            Some(Scheme::Replay) if *handler.kind() == Kind::CausalConv => {
                (handler.with_candidates(speculation.positions()).map_err(unusable)?, Vec::new())
            }
            Some(Scheme::Replay) => (handler.clone(), stash(resource, activations)?),
        };
        extended.push(Resource { handler: own, ..resource.clone() });
        extended.extend(kept);
    }
    Resources::try_from(extended).map_err(unusable)
}

/// The caches of the model's prediction head, `mtp_0` and so on: like those of its last full-attention layer, or of its last
/// with a window where its head has one; with an index where latents are chosen by one, also where that layer has none. Within a window
/// none are chosen.
pub(crate) fn head(
    resources: &Resources,
    speculation: &Speculation,
    max_seq_len: u64,
    has_window: bool,
) -> Result<Resources, PlanError> {
    let is_like = |resource: &&Resource| match resource.handler.growth() {
        Growth::Paged { stride: 1, window: Some(_) } if has_window => true,
        growth => !has_window && growth.within(max_seq_len) == Growth::Paged { stride: 1, window: None },
    };
    let last = resources.iter().rfind(is_like).and_then(|last| last.layer);
    let of_last = || resources.iter().filter(is_like).filter(|resource| resource.layer == last);
    let has = |kind: &Kind| of_last().any(|resource| resource.handler.kind() == kind);
    let chooses = !has_window && has(&Kind::MlaPaged) && !has(&Kind::IndexKey);
    let index = resources.iter().rfind(|resource| chooses && *resource.handler.kind() == Kind::IndexKey);
    // Sparse attention keeps the keys of its indexer beside its latents.
    let like = || of_last().chain(index);
    if like().next().is_none() && speculation.mtp_layers > 0 {
        let reason = "`speculation.mtp_layers` is stated, but the model has no full attention to be like";
        return Err(PlanError::Budget(reason.into()));
    }
    let mut head = Resources::default();
    for layer in 0..speculation.mtp_layers {
        for (position, like) in like().enumerate() {
            let provenance = vec![format!("as `{}`, for layer {layer} of the prediction head", like.name)];
            let name = match position {
                0 => format!("mtp_{layer}"),
                _ => format!("mtp_{layer}.{position}"),
            };
            let node = format!("mtp.layers.{layer}");
            // An index of another layer stands where the head does.
            let own = Resource { name, node, provenance, layer: last, shared_by: Vec::new(), ..like.clone() };
            head.push(own).map_err(unusable)?;
        }
    }
    Ok(head)
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

/// What is kept of each candidate to move a state on later; nothing for what is no state of a sequence.
fn stash(state: &Resource, activations: DType) -> Result<Vec<Resource>, PlanError> {
    if !state.handler.is_state() {
        return Ok(Vec::new());
    }
    let inputs = state.handler.replay_inputs(activations).map_err(unusable)?;
    let inputs = inputs.ok_or_else(|| PlanError::NoReplay {
        resource: state.name.clone(),
        node: state.node.clone(),
        kind: state.handler.kind().clone(),
    })?;
    let named = |input: ResourceHandler| derived(state, &input.kind().name().replace('.', "_"), input);
    Ok(inputs.into_iter().map(named).collect())
}

fn unusable(error: impl std::fmt::Display) -> PlanError {
    PlanError::Budget(error.to_string())
}
