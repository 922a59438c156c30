//! The latent and the rope key of multi-head latent attention, in pages.

use super::{PassError, Stage, Walk};

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    walk.insert_all(Stage::InsertCachedMla)
}
