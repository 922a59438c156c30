//! AutoDeploy's first rule: the first handler of a kind is the reference, what does not match it is local.

use std::collections::HashSet;

use cacheplan_handlers::{CompatKey, Growth, Kind, Mismatch, ResourceHandler, Shape};
use cacheplan_transforms::{Resource, Resources};

use super::{Group, unmanaged_reason};
use crate::plan::Owner;

/// Full attention for everyone: this rule knows no windows.
const EVERY_TOKEN: Growth = Growth::Paged { stride: 1, window: None };

pub(super) fn group(resources: &Resources, max_seq_len: u64) -> Vec<Group<'_>> {
    let mut groups = Vec::new();
    let mut kv = resources.iter().filter(|resource| resource.handler.kind().is_kv());
    if let Some(reference) = kv.next() {
        let mut managed = reference_group(Owner::KvCacheManager, reference, EVERY_TOKEN);
        let mut local = Vec::new();
        let key = reference.handler.compat_key(max_seq_len);
        for resource in kv {
            match kv_mismatch(&resource.handler.compat_key(max_seq_len), &key) {
                None => managed.members.push(resource),
                Some(why) => local.push(Group::local(resource, EVERY_TOKEN, unlike(reference, &why))),
            }
        }
        groups.push(managed);
        groups.extend(local);
    }
    groups.extend(group_rest(resources, max_seq_len));
    groups
}

/// Everything but KV: states by reference, the rest local.
pub(super) fn group_rest(resources: &Resources, max_seq_len: u64) -> Vec<Group<'_>> {
    let ssm = resources.of_kind(&Kind::Ssm).next();
    let conv = resources.of_kind(&Kind::CausalConv).next();
    let refusal = ssm.zip(conv).and_then(|(ssm, conv)| conv_refused(ssm, conv));
    let conv_reference = conv.filter(|_| refusal.is_none());
    let mismatch = |resource: &Resource, reference: &Resource| {
        let key = reference.handler.compat_key(max_seq_len);
        resource.handler.compat_key(max_seq_len).mismatches(&key).next()
    };

    let alike = |reference: Option<&'_ Resource>| {
        reference.map_or(0, |reference| {
            let kind = reference.handler.kind();
            resources.of_kind(kind).filter(|other| mismatch(other, reference).is_none()).count()
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
    for resource in resources.iter().filter(|resource| !resource.handler.kind().is_kv()) {
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
            kind if kind.is_replay() => {
                replays.push(resource);
                continue;
            }
            _ => {
                local.push(Group::local(resource, handler.growth(), generic_reason(handler.growth()).into()));
                continue;
            }
        };
        let reason = match reference.map(|reference| (reference, mismatch(resource, reference))) {
            None => refusal.clone().unwrap_or_default(),
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

fn reference_group(owner: Owner, reference: &Resource, growth: Growth) -> Group<'_> {
    let reason = format!("matches the first {} resource, `{}`", reference.handler.kind(), reference.name);
    let (kind, dtype) = (reference.handler.kind(), reference.handler.dtype());
    Group { owner, kind, growth, dtype, members: vec![reference], reason }
}

/// The part of the key that AutoDeploy's rules compare: dimensions, dtype and layout; neither heads nor windows.
pub(super) fn kv_mismatch(key: &CompatKey<'_>, reference: &CompatKey<'_>) -> Option<Mismatch> {
    let compared =
        |why: &Mismatch| matches!(why, Mismatch::Dim { .. } | Mismatch::DType { .. } | Mismatch::Layout { .. });
    key.mismatches(reference).find(compared)
}

fn unlike(reference: &Resource, why: &Mismatch) -> String {
    format!("unlike the reference `{}`: {why}", reference.name)
}

/// Why a manager cannot hold both states: no group count gives the convolution's channels.
fn conv_refused(ssm: &Resource, conv: &Resource) -> Option<String> {
    let (Some(Shape::Ssm { num_heads, head_dim, d_state }), Some(Shape::CausalConv { conv_dim, .. })) =
        (ssm.handler.known_shape(), conv.handler.known_shape())
    else {
        return None;
    };
    groups_of(num_heads, head_dim, d_state, conv_dim).is_none().then(|| {
        format!(
            "no integer n_groups >= 0 gives conv_dim {conv_dim} = {head_dim} * {num_heads} + 2 * n_groups * {d_state} \
             (from `{}` and `{}`)",
            ssm.name, conv.name,
        )
    })
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

/// Layers of the one state manager: the fewer of both lists, or the longer where one is empty.
fn managed_layers(ssm: usize, conv: usize) -> usize {
    if ssm > 0 && conv > 0 { ssm.min(conv) } else { ssm.max(conv) }
}

/// The group count that `conv_dim = head_dim * num_heads + 2 * n_groups * d_state` implies; `None` if no integer does.
///
/// A state without a state dimension poses no constraint and has no groups.
fn groups_of(num_heads: u64, head_dim: u64, d_state: u64, conv_dim: u64) -> Option<u64> {
    if d_state == 0 {
        return Some(0);
    }
    let both = conv_dim.checked_sub(head_dim.checked_mul(num_heads)?)?;
    let pair = d_state.checked_mul(2)?;
    (both % pair == 0).then_some(both / pair)
}

#[cfg(test)]
mod tests {
    use super::groups_of;
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
}
