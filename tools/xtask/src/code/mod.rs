//! What the sources of this repository say of themselves: who imports whom, how many lines each part has, and how many words
//! its docs have.

pub(crate) mod circles;
pub(crate) mod lines;
mod modules;
mod paths;
mod product;
mod sources;
mod tree;
pub(crate) mod words;
