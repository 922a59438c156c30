//! Checkpoints in pools of their own, where they are stored otherwise than the states of running sequences.

use cacheplan_handlers::{DType, Growth, Kind, ResourceHandler, Shape};

use crate::plan::{CachePlan, Member, Pool, StoredStates};
use crate::solver::group::Group;

impl CachePlan {
    /// Bytes of one sequence's states and convolutions where recurrent states that have wider elements are stored so; `None`
    /// where that is no less than on the device, checkpoints included.
    pub fn stored_state_bytes(&self, stored: StoredStates) -> Option<u64> {
        let held = self.resources.iter().filter(|resource| is_held(resource.handler.growth()));
        let bytes = |resource: &crate::plan::PlannedResource| {
            let own = self.pool(&resource.pool)?.members.iter().find(|member| member.resource == resource.name)?.bytes;
            let smaller = match stored {
                StoredStates::Own => None,
                StoredStates::Bf16 => bf16_bytes(&resource.handler),
                StoredStates::Int8 => int8_bytes(&resource.handler),
            };
            Some(smaller.unwrap_or(own))
        };
        let all = held.map(bytes).try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))?;
        let apart = self.pools.iter().filter(|pool| pool.checkpoints_of.is_some()).map(|pool| pool.unit_bytes);
        let slots = self.pools.iter().filter(|pool| {
            let is_member = |resource: &&crate::plan::PlannedResource| resource.pool == pool.id;
            self.resources.iter().filter(is_member).any(|resource| is_held(resource.handler.growth()))
        });
        let own: u64 = match apart.clone().next() {
            Some(_) => apart.sum(),
            None => slots.map(|pool| pool.unit_bytes).sum(),
        };
        (stored == StoredStates::Own || all < own).then_some(if stored == StoredStates::Own { own } else { all })
    }
}

/// A recurrent state `[num_heads, head_dim, d_state]` of 32 bits in 16.
fn bf16_bytes(handler: &ResourceHandler) -> Option<u64> {
    (*handler.kind() == Kind::Ssm && handler.dtype() == DType::F32).then(|| handler.unit_bytes() / 2)
}

/// One pool of checkpoints for each pool of slots that a sequence holds; sizes come later.
pub(crate) fn pools(groups: &[Group<'_>], pools: &[Pool]) -> Vec<Pool> {
    let held = groups.iter().zip(pools).filter(|(group, _)| is_held(group.growth));
    held.map(|(group, pool)| stored(group, pool)).collect()
}

/// Whether a sequence's share is part of its checkpoint.
const fn is_held(growth: Growth) -> bool {
    matches!(growth, Growth::PerSequence | Growth::PerSlotToken)
}

fn stored(group: &Group<'_>, pool: &Pool) -> Pool {
    let (mut offset, mut dtype) = (0, pool.dtype);
    let members = group.members.iter().zip(&pool.members).map(|(resource, member)| {
        let smaller = int8_bytes(&resource.handler);
        if smaller.is_some() {
            dtype = DType::Int8;
        }
        let bytes = smaller.unwrap_or(member.bytes);
        offset += bytes;
        Member { resource: member.resource.clone(), offset: offset - bytes, bytes }
    });
    let members = members.collect();
    Pool {
        id: format!("checkpoint.{}", pool.id),
        unit_bytes: offset,
        reserved: 0,
        dtype,
        checkpoints_of: Some(pool.id.clone()),
        members,
        ..pool.clone()
    }
}

/// A recurrent state `[num_heads, head_dim, d_state]` as one byte per element, then a float32 scale per head and
/// channel; `None` for what would not be smaller so, or is no such state.
fn int8_bytes(handler: &ResourceHandler) -> Option<u64> {
    let (Kind::Ssm, Some(Shape::Ssm { num_heads, head_dim, d_state })) = (handler.kind(), handler.known_shape()) else {
        return None;
    };
    let bytes = num_heads.checked_mul(d_state)?.checked_mul(head_dim.checked_add(4)?)?;
    (bytes < handler.unit_bytes()).then_some(bytes)
}
