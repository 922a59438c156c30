//! Caches of a framework's own ops, whatever their kind.

use super::{PassError, Stage, Walk};

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    walk.insert_all(Stage::InsertCustomCaches)
}
