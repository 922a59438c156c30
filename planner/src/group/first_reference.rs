//! AutoDeploy's first rule: the first handler of a kind is the reference, what does not match it is local.

use std::collections::HashSet;

use cacheplan_handlers::{Growth, Kind, Mismatch, ResourceHandler};
use cacheplan_transforms::{Resource, Resources};
use serde::{Deserialize, Serialize};

use super::{Group, unmanaged_reason};
use crate::Owner;
use crate::speculation::is_replay;

/// Full attention for everyone: this rule knows no windows.
const EVERY_TOKEN: Growth = Growth::Paged { stride: 1, window: None };

pub(super) fn group(resources: &Resources) -> Vec<Group<'_>> {
    let mut groups = Vec::new();
    let mut kv = resources.iter().filter(|resource| is_kv(resource));
    if let Some(reference) = kv.next() {
        let mut managed = reference_group(Owner::KvCacheManager, reference, EVERY_TOKEN);
        let mut local = Vec::new();
        for resource in kv {
            match kv_mismatch(&resource.handler, &reference.handler) {
                None => managed.members.push(resource),
                Some(why) => local.push(Group::local(resource, EVERY_TOKEN, unlike(reference, &why))),
            }
        }
        groups.push(managed);
        groups.extend(local);
    }
    groups.extend(group_rest(resources));
    groups
}

/// Everything but KV: states by reference, the rest local.
pub(super) fn group_rest(resources: &Resources) -> Vec<Group<'_>> {
    let ssm = resources.of_kind(&Kind::Ssm).next();
    let conv = resources.of_kind(&Kind::CausalConv).next();
    let conv_refused = ssm.zip(conv).is_some_and(|(ssm, conv)| n_groups(&ssm.handler, &conv.handler).is_none());
    let conv_reference = if conv_refused { None } else { conv };

    let alike = |reference: Option<&'_ Resource>| {
        reference.map_or(0, |reference| {
            let kind = reference.handler.kind();
            resources.of_kind(kind).filter(|other| other.handler.mismatch(&reference.handler).is_none()).count()
        })
    };
    let layers = managed_layers(alike(ssm), alike(conv_reference));

    let mut managed_ssm =
        ssm.map(|reference| reference_group(Owner::MambaCacheManager, reference, Growth::PerSequence));
    let mut managed_conv =
        conv_reference.map(|reference| reference_group(Owner::MambaCacheManager, reference, Growth::PerSequence));
    for group in managed_ssm.iter_mut().chain(&mut managed_conv) {
        group.members.clear();
    }
    let mut twins: Vec<Group<'_>> = Vec::new();
    let mut local = Vec::new();
    let mut replays = Vec::new();
    for resource in resources.iter().filter(|resource| !is_kv(resource)) {
        let handler = &resource.handler;
        let (reference, managed) = match handler.kind() {
            Kind::Ssm => (ssm, &mut managed_ssm),
            Kind::CausalConv => (conv_reference, &mut managed_conv),
            Kind::IntermediateSsm | Kind::IntermediateCausalConv => {
                match twin(handler, ssm, conv_reference) {
                    Some(reference) => {
                        join(&mut twins, resource, format!("the speculative twin of `{}`", reference.name));
                    }
                    None => local.push(Group::local(resource, handler.growth(), "the twin of no managed state".into())),
                }
                continue;
            }
            kind if is_replay(kind) => {
                replays.push(resource);
                continue;
            }
            _ => {
                local.push(Group::local(resource, handler.growth(), generic_reason(handler.growth()).into()));
                continue;
            }
        };
        let reason = match reference.map(|reference| (reference, handler.mismatch(&reference.handler))) {
            None => constraint_text(ssm, conv),
            Some((reference, Some(why))) => unlike(reference, &why),
            Some((_, None)) => match managed {
                Some(group) if group.members.len() < layers => {
                    group.members.push(resource);
                    continue;
                }
                _ => format!("the manager has {layers} layers, the fewer of its ssm and conv states"),
            },
        };
        local.push(Group::local(resource, handler.growth(), reason));
    }
    let with_ssm: HashSet<Option<u32>> =
        managed_ssm.iter().flat_map(|group| &group.members).map(|ssm| ssm.layer).collect();
    for resource in replays {
        // What is replayed belongs to the recurrent state of its layer, and has its manager.
        let like_first = twins.iter().find(|group| group.kind == resource.handler.kind());
        if with_ssm.contains(&resource.layer)
            && like_first.is_none_or(|group| group.members[0].handler == resource.handler)
        {
            join(&mut twins, resource, "the replayed inputs of managed ssm states".into());
        } else {
            local.push(Group::local(resource, resource.handler.growth(), "the inputs of no managed state".into()));
        }
    }
    managed_ssm.into_iter().chain(managed_conv).chain(twins).chain(local).collect()
}

pub(super) fn is_kv(resource: &Resource) -> bool {
    matches!(resource.handler.kind(), Kind::KvPaged | Kind::MlaPaged)
}

fn reference_group(owner: Owner, reference: &Resource, growth: Growth) -> Group<'_> {
    let reason = format!("matches the first {} resource, `{}`", reference.handler.kind(), reference.name);
    let (kind, dtype) = (reference.handler.kind(), reference.handler.dtype());
    Group { owner, kind, growth, dtype, members: vec![reference], reason }
}

/// The rule compares head_dim, dtype, kv_factor and layout; neither heads nor windows.
fn kv_mismatch(handler: &ResourceHandler, reference: &ResourceHandler) -> Option<Mismatch> {
    let dim = |name: &str| {
        let (mine, theirs) = (handler.dim(name).unwrap_or_default(), reference.dim(name).unwrap_or_default());
        (mine != theirs).then(|| Mismatch::Dim { dim: name.to_owned(), reference: theirs, found: mine })
    };
    let dtype = || {
        let (mine, theirs) = (handler.dtype(), reference.dtype());
        (mine != theirs).then_some(Mismatch::DType { reference: theirs, found: mine })
    };
    let layout = || {
        let (mine, theirs) = (handler.layout(), reference.layout());
        (mine != theirs).then_some(Mismatch::Layout { reference: theirs, found: mine })
    };
    dim("head_dim").or_else(dtype).or_else(|| dim("kv_factor")).or_else(layout)
}

fn unlike(reference: &Resource, why: &Mismatch) -> String {
    format!("unlike the reference `{}`: {why}", reference.name)
}

fn constraint_text(ssm: Option<&Resource>, conv: Option<&Resource>) -> String {
    let (Some(ssm), Some(conv)) = (ssm, conv) else { return "no reference".into() };
    format!(
        "no integer n_groups >= 0 gives conv_dim {} = {} * {} + 2 * n_groups * {} (from `{}` and `{}`)",
        dim(&conv.handler, "conv_dim"),
        dim(&ssm.handler, "head_dim"),
        dim(&ssm.handler, "num_heads"),
        dim(&ssm.handler, "d_state"),
        ssm.name,
        conv.name,
    )
}

fn generic_reason(growth: Growth) -> &'static str {
    match growth {
        Growth::PerSequence | Growth::PerDraftPosition => {
            "a generic state; this policy manages ssm and causal_conv only"
        }
        Growth::Paged { .. } => "pages of another kind; this policy manages one kind of KV only",
        other => unmanaged_reason(other),
    }
}

/// The managed reference that a speculative handler is the twin of.
fn twin<'a>(handler: &ResourceHandler, ssm: Option<&'a Resource>, conv: Option<&'a Resource>) -> Option<&'a Resource> {
    let reference = if *handler.kind() == Kind::IntermediateSsm { ssm } else { conv }?;
    (reference.handler.intermediate().as_ref() == Some(handler)).then_some(reference)
}

/// Adds a resource to the group of its kind.
fn join<'a>(twins: &mut Vec<Group<'a>>, resource: &'a Resource, reason: String) {
    let kind = resource.handler.kind();
    if let Some(group) = twins.iter_mut().find(|group| group.kind == kind) {
        group.members.push(resource);
        return;
    }
    let (growth, dtype) = (resource.handler.growth(), resource.handler.dtype());
    twins.push(Group { owner: Owner::MambaCacheManager, kind, growth, dtype, members: vec![resource], reason });
}

fn dim(handler: &ResourceHandler, name: &str) -> u64 {
    handler.dim(name).unwrap_or_default()
}

/// Layers of the one state manager: the fewer of both lists, or the longer where one is empty.
fn managed_layers(ssm: usize, conv: usize) -> usize {
    if ssm > 0 && conv > 0 { ssm.min(conv) } else { ssm.max(conv) }
}

/// The group count that `conv_dim = head_dim * num_heads + 2 * n_groups * d_state` implies; `None` if no integer does.
///
/// A state without a state dimension poses no constraint and has no groups.
pub fn n_groups(ssm: &ResourceHandler, conv: &ResourceHandler) -> Option<u64> {
    groups_of(dim(ssm, "num_heads"), dim(ssm, "head_dim"), dim(ssm, "d_state"), dim(conv, "conv_dim"))
}

fn groups_of(num_heads: u64, head_dim: u64, d_state: u64, conv_dim: u64) -> Option<u64> {
    if d_state == 0 {
        return Some(0);
    }
    let both = conv_dim.checked_sub(head_dim.checked_mul(num_heads)?)?;
    let pair = d_state.checked_mul(2)?;
    (both % pair == 0).then_some(both / pair)
}

/// What AutoDeploy's manager is told about a model's states; dummies stand for what the model lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MambaParams {
    /// Heads of the recurrent state; `conv_dim` without one.
    pub num_heads: u64,
    /// 1 without a recurrent state.
    pub head_dim: u64,
    /// 0 without a recurrent state.
    pub d_state: u64,
    /// Channels of the convolution state; 1 without one.
    pub conv_dim: u64,
    /// Kernel width of the convolution; 1, hence no state, without one.
    pub d_conv: u64,
    /// Implied by the dimensions; 0 where either state is missing.
    pub n_groups: u64,
    /// Layers that the manager owns.
    pub layers: usize,
}

/// The parameters for `ssm` and `conv` references with these many equal handlers; `None` without any state.
pub fn mamba_params(
    ssm: Option<(&ResourceHandler, usize)>,
    conv: Option<(&ResourceHandler, usize)>,
) -> Option<MambaParams> {
    let layers = managed_layers(ssm.map_or(0, |(_, count)| count), conv.map_or(0, |(_, count)| count));
    if layers == 0 {
        return None;
    }
    let (conv_dim, d_conv) = conv.map_or((1, 1), |(conv, _)| (dim(conv, "conv_dim"), dim(conv, "d_conv - 1") + 1));
    let (num_heads, head_dim, d_state) = match (ssm, conv) {
        (Some((ssm, _)), _) => (dim(ssm, "num_heads"), dim(ssm, "head_dim"), dim(ssm, "d_state")),
        (None, Some(_)) => (conv_dim, 1, 0),
        (None, None) => (1, 1, 0),
    };
    let n_groups = match conv {
        Some(_) if d_state > 0 => groups_of(num_heads, head_dim, d_state, conv_dim).unwrap_or(0),
        _ => 0,
    };
    Some(MambaParams { num_heads, head_dim, d_state, conv_dim, d_conv, n_groups, layers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cacheplan_handlers::DType;
    use rstest::rstest;

    #[rstest]
    #[case((4, 64, 16, 320), Some(2))]
    #[case((4, 64, 16, 256), Some(0))]
    #[case((4, 64, 16, 255), None)]
    #[case((4, 64, 16, 272), None)]
    #[case((4, 64, 16, 288), Some(1))]
    #[case((4, 64, 16, 240), None)]
    #[case((4, 64, 0, 7), Some(0))]
    #[case((128, 64, 128, 10240), Some(8))]
    #[case((32, 128, 128, 8192), Some(16))]
    fn conv_dim_implies_the_groups(#[case] dims: (u64, u64, u64, u64), #[case] groups: Option<u64>) {
        let (num_heads, head_dim, d_state, conv_dim) = dims;
        assert_eq!(groups_of(num_heads, head_dim, d_state, conv_dim), groups);
    }

    #[test]
    fn dummies_stand_for_a_missing_state() {
        let conv = ResourceHandler::causal_conv(256, 4, vec![], DType::F32).unwrap();
        let ssm = ResourceHandler::ssm(4, 64, 16, DType::F32).unwrap();
        let only_conv = mamba_params(None, Some((&conv, 3))).unwrap();
        assert_eq!((only_conv.num_heads, only_conv.head_dim, only_conv.d_state), (256, 1, 0));
        assert_eq!((only_conv.n_groups, only_conv.layers), (0, 3));
        let only_ssm = mamba_params(Some((&ssm, 2)), None).unwrap();
        assert_eq!((only_ssm.conv_dim, only_ssm.d_conv, only_ssm.n_groups, only_ssm.layers), (1, 1, 0, 2));
        assert_eq!(mamba_params(Some((&ssm, 3)), Some((&conv, 2))).unwrap().layers, 2);
        assert_eq!(mamba_params(None, None), None);
    }
}
