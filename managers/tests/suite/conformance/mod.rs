//! Cases of AutoDeploy's test tables that speak of managers, each named after its row.
//!
//! `docs/conformance.md` lists the rows that other crates hold and those from which we deviate.

#[cfg(feature = "device")]
mod interface;
mod named_pages;
mod sequence_info;
mod windows;
