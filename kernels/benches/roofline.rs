//! Prints what part of this machine's own rates each op reaches: `cargo bench --bench roofline -- [name]`.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use cacheplan_kernels::roofline::{Bound, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    println!("{:<20} {:<64} {:>10} {:>11} {:>11} {:>6}", "op", "shape", "time", "achieved", "machine", "part");
    run(&filter, |row| {
        let unit = match row.bound {
            Bound::Copy | Bound::Read => "GB/s",
            Bound::Compute => "GF/s",
        };
        println!(
            "{:<20} {:<64} {:>7.3} ms {:>6.1} {unit} {:>6.1} {unit} {:>6.2}",
            row.op,
            row.shape,
            row.seconds * 1e3,
            row.rate() / 1e9,
            row.peak / 1e9,
            row.fraction(),
        );
    })?;
    Ok(())
}
