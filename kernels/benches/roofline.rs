//! Prints what part of this machine's own rates each op reaches: `cargo bench --bench roofline -- [name]`.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use cacheplan_kernels::roofline::{Measurement, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    println!("{}", Measurement::headings());
    run(&filter, |measured| println!("{measured}"))?;
    Ok(())
}
