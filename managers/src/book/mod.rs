//! Bookkeeping without tensors: blocks, slots, tables, the prefix tree.

pub mod ids;
pub mod prefix;
