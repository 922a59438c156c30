//! One model over several devices: what each rank holds, and the sizes that all of them agree on.

use std::ops::Range;

use cacheplan_handlers::{Dim, HandlerError, Kind, ResourceHandler, Split};
use cacheplan_transforms::{Resource, Resources};

use crate::error::PlanError;
use crate::parallel::Parallel;
use crate::plan::{CachePlan, RankPlans};

impl Parallel {
    /// A stage that there is, with a layer of the model for each.
    pub(crate) fn refuse_stage(&self, stage: u32, layers: u32) -> Result<(), PlanError> {
        if stage >= self.pp {
            return Err(PlanError::Layout(format!("pipeline stage {stage} of {}", self.pp)));
        }
        if self.pp > layers.max(1) {
            return Err(PlanError::Layout(format!("`parallel.pp` {} is more than the {layers} layers", self.pp)));
        }
        Ok(())
    }

    /// The layers of a stage: contiguous, and the first stages have one more where they do not divide evenly.
    fn layers_of(&self, stage: u32, layers: u32) -> Range<u32> {
        let (each, more) = (layers / self.pp, layers % self.pp);
        let first = stage * each + stage.min(more);
        first..first + each + u32::from(stage < more)
    }
}

impl RankPlans {
    /// The plan of a stage.
    ///
    /// # Errors
    /// A stage that there is not.
    pub fn stage(&self, stage: u32) -> Result<&CachePlan, PlanError> {
        let last = self.parallel.pp.saturating_sub(1);
        self.stages.get(stage as usize).ok_or(PlanError::NoStage { stage, last })
    }

    /// The plan of a stage, alone.
    ///
    /// # Errors
    /// A stage that there is not.
    pub fn into_stage(mut self, stage: u32) -> Result<CachePlan, PlanError> {
        self.stage(stage)?;
        Ok(self.stages.swap_remove(stage as usize))
    }
}

/// What one rank of pipeline stage `stage` holds of a model's resources.
pub(crate) fn split(
    resources: &Resources,
    layers: u32,
    parallel: Parallel,
    stage: u32,
) -> Result<Resources, PlanError> {
    let own = parallel.layers_of(stage, layers);
    let mut held = Resources::default();
    for resource in resources {
        if resource.layer.is_some_and(|layer| !own.contains(&layer)) {
            continue;
        }
        if let Some(reader) = resource.shared_by.iter().find(|reader| !own.contains(reader)) {
            return Err(PlanError::Layout(format!(
                "`{}` is read by layer {reader}, which is on another stage; `parallel.pp` {} divides layers that share a cache",
                resource.name, parallel.pp
            )));
        }
        refuse_context_of_heads(resource, parallel)?;
        let handler = divide(resource, resources, parallel.tp.into())?;
        held.push(Resource { handler, ..resource.clone() }).map_err(|error| PlanError::Budget(error.to_string()))?;
    }
    Ok(held)
}

/// Whether every cache is divided by its tensor parallel ranks.
pub(crate) fn divides(resources: &Resources, parallel: Parallel) -> bool {
    let admits = |resource| {
        refuse_context_of_heads(resource, parallel).is_ok() && divide(resource, resources, parallel.tp.into()).is_ok()
    };
    parallel.validate().is_ok() && resources.iter().all(admits)
}

/// Ranks can divide the tokens of a head only where each of them would hold that head.
fn refuse_context_of_heads(resource: &Resource, parallel: Parallel) -> Result<(), PlanError> {
    let kv_heads = resource.handler.shape().iter().find(|dim| dim.split == Split::KvHeads).map_or(1, |dim| dim.size);
    let copies = u64::from(parallel.tp) / kv_heads.max(1);
    if parallel.dcp == 1 || !resource.handler.is_paged() || copies >= parallel.dcp.into() {
        return Ok(());
    }
    Err(PlanError::Layout(format!(
        "`{}`: `parallel.dcp` {} is more than the {} ranks of tp {} that hold each of its {kv_heads} heads",
        resource.name,
        parallel.dcp,
        copies.max(1),
        parallel.tp
    )))
}

fn divide(resource: &Resource, resources: &Resources, tp: u64) -> Result<ResourceHandler, PlanError> {
    let handler = &resource.handler;
    if tp == 1 || handler.shape().iter().all(|dim| dim.split == Split::Whole) {
        return Ok(handler.clone());
    }
    let uneven = |dim: &Dim, what: &str, size: u64| {
        PlanError::Layout(format!("`{}`: tp {tp} does not divide {what} {size} of `{}`", resource.name, dim.name))
    };
    let mut shape = handler.shape().to_vec();
    for dim in &mut shape {
        let divided = match &dim.split {
            Split::Whole => (dim.size, Split::Whole),
            // Fewer heads than ranks: each head is on several ranks.
            Split::KvHeads if tp.is_multiple_of(dim.size) => (1, Split::KvHeads),
            Split::KvHeads | Split::Heads if dim.size.is_multiple_of(tp) => (dim.size / tp, dim.split.clone()),
            Split::KvHeads | Split::Heads => return Err(uneven(dim, "size", dim.size)),
            Split::KvChannels(heads) if tp.is_multiple_of(*heads) => (dim.size / heads, Split::KvChannels(1)),
            Split::KvChannels(heads) if heads.is_multiple_of(tp) => (dim.size / tp, Split::KvChannels(heads / tp)),
            Split::KvChannels(heads) => return Err(uneven(dim, "heads", *heads)),
            Split::Sections(sections) => {
                let groups = groups_per_section(resource, resources, sections);
                // The one group of all heads is on every rank, as vLLM and SGLang have it.
                if let ([inner, group, same], Some(1)) = (&**sections, groups)
                    && group == same
                    && inner.is_multiple_of(tp)
                {
                    let sections = vec![inner / tp, *group, *group];
                    (dim.size, dim.split) = (sections.iter().sum(), Split::Sections(sections));
                    continue;
                }
                if let Some(groups) = groups.filter(|groups| !groups.is_multiple_of(tp)) {
                    return Err(uneven(dim, "n_groups", groups));
                }
                if let Some(section) = sections.iter().find(|section| !section.is_multiple_of(tp)) {
                    return Err(uneven(dim, "section", *section));
                }
                let sections: Vec<u64> = sections.iter().map(|section| section / tp).collect();
                (dim.size / tp, Split::Sections(sections))
            }
        };
        (dim.size, dim.split) = divided;
    }
    let of_rank =
        ResourceHandler::new(handler.kind().clone(), handler.growth(), shape, handler.dtype(), handler.layout())
            .map_err(|error: HandlerError| PlanError::Budget(error.to_string()))?;
    Ok(match handler.recurrence() {
        Some(recurrence) => of_rank.with_recurrence(recurrence.of_rank(tp)),
        None => of_rank,
    })
}

/// Groups in the two equal sections of a convolution beside a recurrent state: `[d_inner, g, g]` holds B and C, whose
/// groups are `d_state` wide; `[g, g, d_inner]` holds queries and keys, whose heads are as wide as the state's rows.
fn groups_per_section(conv: &Resource, resources: &Resources, sections: &[u64]) -> Option<u64> {
    let ssm = resources.of_kind(&Kind::Ssm).find(|ssm| ssm.layer == conv.layer)?;
    let (section, width) = match sections {
        [_, g, h] if g == h => (*g, "d_state"),
        [g, h, _] if g == h => (*g, "head_dim"),
        _ => return None,
    };
    let width = ssm.handler.dim(width)?;
    section.is_multiple_of(width).then_some(section / width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cacheplan_handlers::DType;
    use rstest::rstest;

    fn one(handler: ResourceHandler) -> Resources {
        let mut resources = Resources::default();
        let (name, node) = ("r".to_owned(), String::new());
        resources
            .push(Resource { name, layer: Some(0), handler, node, provenance: vec![], shared_by: vec![] })
            .unwrap();
        resources
    }

    fn unit_bytes(handler: ResourceHandler, tp: u32) -> Result<u64, PlanError> {
        let held = split(&one(handler), 1, Parallel { tp, ..Parallel::default() }, 0)?;
        Ok(held.get("r").unwrap().handler.unit_bytes())
    }

    #[rstest]
    #[case(8, 1, 4096)]
    #[case(8, 4, 1024)]
    #[case(8, 16, 512)]
    #[case(2, 8, 512)]
    fn kv_heads_are_divided_or_replicated(#[case] heads: u64, #[case] tp: u32, #[case] bytes: u64) {
        let kv = ResourceHandler::kv_paged(heads, 128, DType::Bf16).unwrap();
        assert_eq!(unit_bytes(kv, tp), Ok(bytes));
    }

    #[rstest]
    #[case(8, 4, 256)]
    #[case(8, 16, 128)]
    #[case(0, 4, 1024)]
    fn channels_of_kv_heads_go_with_them(#[case] heads: u64, #[case] tp: u32, #[case] channels: u64) {
        let conv = ResourceHandler::causal_conv(1024, 2, vec![], DType::Int8).unwrap().of_kv_heads(heads).unwrap();
        assert_eq!(unit_bytes(conv, tp), Ok(channels));
    }

    #[rstest]
    #[case(1)]
    #[case(8)]
    fn a_latent_is_whole_on_every_rank(#[case] tp: u32) {
        assert_eq!(unit_bytes(ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap(), tp), Ok(1152));
    }

    #[rstest]
    #[case(ResourceHandler::kv_paged(6, 128, DType::Bf16), 4)]
    #[case(ResourceHandler::ssm(6, 64, 128, DType::F32), 4)]
    #[case(ResourceHandler::causal_conv(20, 4, vec![10, 5, 5], DType::Bf16), 2)]
    fn what_does_not_divide_is_named(#[case] handler: Result<ResourceHandler, HandlerError>, #[case] tp: u32) {
        let error = unit_bytes(handler.unwrap(), tp).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`r`: tp {tp} does not divide")), "{error}");
    }

    #[rstest]
    #[case(vec![4096, 512, 512], (64, 64, 128), 4, true)]
    #[case(vec![4096, 512, 512], (64, 64, 128), 8, false)]
    #[case(vec![2048, 2048, 4096], (32, 128, 128), 16, true)]
    #[case(vec![2048, 2048, 4096], (32, 128, 128), 32, false)]
    fn groups_of_a_convolution_stay_whole(
        #[case] sections: Vec<u64>,
        #[case] state: (u64, u64, u64),
        #[case] tp: u32,
        #[case] divides: bool,
    ) {
        let conv = ResourceHandler::causal_conv(sections.iter().sum(), 4, sections, DType::Bf16).unwrap();
        let mut resources = one(ResourceHandler::ssm(state.0, state.1, state.2, DType::F32).unwrap());
        let ssm = resources.get("r").unwrap().clone();
        resources.push(Resource { name: "conv".into(), handler: conv, ..ssm }).unwrap();
        let held = split(&resources, 1, Parallel { tp, ..Parallel::default() }, 0);
        assert_eq!(held.is_ok(), divides, "{held:?}");
    }
}
