//! Contributor tools.
fn main() {}
