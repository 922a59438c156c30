//! Ops over planned pools.
