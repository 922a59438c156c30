//! The last `d_conv - 1` columns of causal convolutions, one per sequence.

use super::{PassError, Stage, Walk};

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    walk.insert_all(Stage::InsertCachedCausalConv)
}
