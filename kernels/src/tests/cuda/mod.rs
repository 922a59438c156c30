//! The CUDA kernels, executed by the emulator, against the references.
//!
//! They need the PTX that `cargo xtask cuda-prove` makes, and are run by it.

mod attend;
mod conv1d;
mod decode;
mod elementwise;
mod emulate;
mod experts;
mod kv_cache;
mod linear_attention;
mod machine;
mod mamba2;
mod mla;
mod norm;
mod pool;
mod prefill;
mod scans;
mod states;

use super::Random;
use crate::{Buffer, Contents, Launches, PoolRows, Target};
use cacheplan_emulator::Options;
use candle_core::{DType, Tensor};
use emulate::{Emulated, execute, folder, kernels, span};
use std::ops::Range;

/// What launches are made for where nothing depends on it.
const TARGET: Target = Target { processors: 132, shared_bytes: 227 << 10 };

/// Whether all shapes and mutants are wanted, or a sample of them.
fn prove_all() -> bool {
    std::env::var_os("CACHEPLAN_PROVE_ALL").is_some()
}

/// Executes launches over CPU tensors: pools are changed in place, outputs are new.
fn emulate(launches: &Launches<'_>, options: &Options) -> Emulated {
    let emulated = execute(launches, options, |kernel| kernels()[kernel].clone());
    for (launch, run) in launches.launches.iter().zip(&emulated.runs) {
        let reports: Vec<String> = run.reports.iter().map(ToString::to_string).collect();
        assert!(reports.is_empty(), "{} {:?}:\n{}", launch.kernel, launch.grid, reports.join("\n"));
        std::fs::write(folder().join("proven").join(&launch.kernel), "").unwrap();
    }
    emulated
}

/// Random values in a dtype.
fn random(random: &mut Random, shape: &[usize], dtype: DType) -> Tensor {
    random.tensor(shape).to_dtype(dtype).unwrap()
}

/// The elements of some rows.
fn part<'a>(data: &'a [f64], rows: &Range<usize>, width: usize) -> &'a [f64] {
    &data[rows.start * width..rows.end * width]
}

/// Orders of blocks and warps, with and without moved approximations.
fn schedules() -> impl Iterator<Item = Options> {
    let all = [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3)];
    let count = if prove_all() { all.len() } else { 2 };
    // The first is plain, so that a mistake in it is easy to follow; then all is mixed.
    all.into_iter().rev().take(count).map(|(order, perturb)| Options { order, perturb, early_copies: false })
}

/// Takes out each barrier, wait and commit of the kernels in turn, and wants each of these mutants reported.
///
/// `equivalent` holds the lines without which a kernel is as good, each with the reason.
fn prove_mutants(launches: &Launches<'_>, equivalent: &[(&str, &str)]) {
    for launch in &launches.launches {
        let kernel = &kernels()[&launch.kernel];
        for (at, text) in kernel.synchronisations() {
            let mutant = |name: &str| if name == launch.kernel { kernel.without(at) } else { kernels()[name].clone() };
            let found = execute(launches, &Options::default(), mutant).runs.iter().any(|run| !run.reports.is_empty());
            let excused = equivalent.iter().any(|(line, _)| text.contains(line));
            assert!(found != excused, "{} without {text}: reported {found}, excused {excused}", launch.kernel);
        }
    }
}

/// Caps on what a kernel asks of memory, at a shape that is large enough to say something.
fn assert_traffic(emulated: &Emulated, warp_instructions_per_kib: f64) {
    for run in &emulated.runs {
        let stats = &run.stats;
        assert!(stats.sector_ratio() <= 1.02, "{} of {} sectors", stats.sectors, stats.ideal_sectors);
        let found = stats.warp_instructions_per_kib();
        assert!(found <= warp_instructions_per_kib, "{found:.1} warp instructions per KiB: {stats:?}");
    }
}
