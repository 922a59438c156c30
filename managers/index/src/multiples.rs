//! Where blocks of several sizes meet.

pub(crate) fn greatest_common_divisor(one: usize, other: usize) -> usize {
    let (mut left, mut right) = (one, other);
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}

/// Blocks of no common multiple that counts meet nowhere: the largest number stands for it.
pub(crate) fn least_common_multiple(one: usize, other: usize) -> usize {
    (one / greatest_common_divisor(one, other).max(1)).saturating_mul(other)
}
