//! Tensors of the pools.
