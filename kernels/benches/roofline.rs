//! Prints what part of this machine's own rates each op reaches: `cargo bench --bench roofline -- [words]`.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use cacheplan_kernels::roofline::{Measurement, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    println!("{}", Measurement::headings());
    run(&words.join(" "), |measured| println!("{measured}"))?;
    Ok(())
}
