//! Checkpoints in pools of their own, where they are stored otherwise than the states of running sequences.

use cacheplan_handlers::{DType, Growth, Kind, ResourceHandler, Shape};

use crate::plan::{Member, Pool};
use crate::solver::group::Group;

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
