//! The emulator in place of a device.

#[allow(dead_code, clippy::unwrap_used, clippy::expect_used, reason = "shared with the proofs of the kernels")]
#[path = "../../src/tests/cuda/emulate.rs"]
mod emulate;

use crate::machine::{Cost, Fault, Machine, Ran};
use crate::modules::MODULES;
use cacheplan_emulator::{Kernel, Module, Options};
use cacheplan_kernels::{Buffer, Contents, Launches, PoolRows, Target};
use std::collections::HashMap;

pub(crate) use emulate::{Held, give_back, held, range};

/// The kernels in this binary, executed on the CPU.
pub(crate) struct Emulator {
    kernels: HashMap<String, Kernel>,
    /// In which order blocks and warps run, and how approximations err.
    options: Options,
    /// What contexts are split over.
    processors: usize,
}

impl Emulator {
    pub(crate) fn new(seed: u64, processors: usize) -> Result<Self, Fault> {
        let mut kernels = HashMap::new();
        for module in MODULES {
            let parsed = Module::parse(module.ptx).map_err(|error| Fault(format!("{}.ptx: {error}", module.name)))?;
            kernels.extend(parsed.kernels.into_iter().map(|kernel| (kernel.name.clone(), kernel)));
        }
        Ok(Self { kernels, options: Options { order: seed | 1, perturb: seed | 1, early_copies: false }, processors })
    }
}

impl Machine for Emulator {
    fn target(&self) -> Target {
        Target { processors: self.processors, shared_bytes: 227 << 10 }
    }

    fn execute(&self, launches: &Launches<'_>) -> Result<Ran, Fault> {
        for launch in &launches.launches {
            if !self.kernels.contains_key(&launch.kernel) {
                return Err(Fault(format!("no module in this binary has the kernel {}", launch.kernel)));
            }
        }
        let emulated = emulate::execute(launches, &self.options, |kernel| self.kernels[kernel].clone());
        let mut counts = [0; 4];
        for (launch, run) in launches.launches.iter().zip(&emulated.runs) {
            if let Some(report) = run.reports.first() {
                return Err(Fault(format!("{} {:?}: {report}", launch.kernel, launch.grid)));
            }
            let stats = &run.stats;
            let more = [stats.sectors, stats.ideal_sectors, stats.warp_instructions, stats.moved_bytes()];
            counts.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        Ok(Ran { outputs: emulated.outputs, cost: Cost { seconds: None, counts: Some(counts) } })
    }
}
