//! Bookkeeping without tensors: blocks, slots, tables, the prefix tree.
