//! What the sources of this repository say of themselves: who imports whom, and how many lines each part has.

pub(crate) mod circles;
pub(crate) mod lines;
mod modules;
mod paths;
mod product;
mod sources;
mod tree;
