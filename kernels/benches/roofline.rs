//! Prints what part of this machine's own rates each op reaches: `cargo bench --bench roofline -- [name]`.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use cacheplan_kernels::roofline::{Bound, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    keep_freed_memory();
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    println!(
        "{:<20} {:<64} {:>11} {:>11} {:>11} {:>5} {:>14} {:>5}",
        "op", "shape", "time", "achieved", "machine", "part", "processor time", "part"
    );
    run(&filter, |row| {
        let unit = match row.bound {
            Bound::Copy | Bound::Read => "GB/s",
            Bound::Compute => "GF/s",
        };
        println!(
            "{:<20} {:<64} {:>8.3} ms {:>6.1} {unit} {:>6.1} {unit} {:>5.2} {:>11.3} ms {:>5.2}",
            row.op,
            row.shape,
            row.time.wall * 1e3,
            row.work / row.time.wall / 1e9,
            row.work / row.machine.wall / 1e9,
            row.part(),
            row.time.processor * 1e3,
            row.processor_part(),
        );
    })?;
    Ok(())
}

/// Makes the allocator keep what is freed. By default it returns large outputs to the system after each call, and
/// faulting their pages in anew then takes longer than the op that writes them.
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets two parameters of the allocator, before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
}
