//! What executes launches, behind the ops of the kernels' crate, and what is noted of it.

use cacheplan_kernels::{Backend, KernelError, Launcher, Launches, Run, Target};
use candle_core::{Device, Error, Tensor};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device, or the emulator in place of one.
pub(crate) trait Machine: Send + Sync {
    /// What launches are made for.
    fn target(&self) -> Target;
    /// Runs the launches of an op. Its outputs come back in the order of their buffers.
    fn execute(&self, launches: &Launches<'_>) -> Result<Ran, Fault>;
}

/// What running the launches of an op gave.
pub(crate) struct Ran {
    pub(crate) outputs: Vec<Tensor>,
    pub(crate) cost: Cost,
}

/// What launches took, as far as who executed them can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Median of the repeats, where they were timed.
    pub(crate) seconds: Option<f64>,
    /// Sectors of 32 bytes asked for, the fewest that hold what moved, instructions of warps, and bytes moved.
    pub(crate) counts: Option<[u64; 4]>,
}

impl Cost {
    fn add(&mut self, other: Self) {
        let (seconds, counts) = (&mut self.seconds, &mut self.counts);
        *seconds = other.seconds.map(|more| seconds.unwrap_or(0.0) + more);
        *counts = other.counts.map(|more| {
            let mut sum = counts.unwrap_or_default();
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            sum
        });
    }
}

/// What went wrong while launches ran, in words.
#[derive(Clone, Debug)]
pub(crate) struct Fault(pub(crate) String);

/// What one call of an op came to.
pub(crate) struct Outcome {
    /// Kernels that ran.
    pub(crate) kernels: Vec<String>,
    pub(crate) cost: Cost,
    pub(crate) end: End,
}

pub(crate) enum End {
    /// The op gave these.
    Given(Vec<Tensor>),
    /// No kernel was made for these operands, and the op was not gone on with.
    Left,
    Failed(String),
}

/// A machine behind ops, and what it notes of them.
pub(crate) struct Watch {
    backend: Backend,
    watched: Arc<Watched>,
}

struct Watched {
    machine: Box<dyn Machine>,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    kernels: Vec<String>,
    cost: Cost,
}

impl Watch {
    pub(crate) fn new(machine: Box<dyn Machine>) -> Self {
        let watched = Arc::new(Watched { machine, notes: Mutex::default() });
        Self { backend: Backend::Launching(watched.clone()), watched }
    }

    /// Calls an op on the machine.
    pub(crate) fn call(&self, op: impl FnOnce(&Run<'_>) -> Result<Vec<Tensor>, KernelError>) -> Outcome {
        *self.watched.notes() = Notes::default();
        let end = match op(&self.backend.run()) {
            Ok(given) => End::Given(given),
            Err(KernelError::NoKernel { .. }) => End::Left,
            Err(error) => End::Failed(error.to_string()),
        };
        let Notes { kernels, cost } = std::mem::take(&mut *self.watched.notes());
        Outcome { kernels, cost, end }
    }
}

impl Watched {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl Launcher for Watched {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn target(&self) -> Result<Target, KernelError> {
        Ok(self.machine.target())
    }

    fn launch(&self, _: &'static str, launches: &Launches<'_>) -> Result<Vec<Tensor>, KernelError> {
        let ran = self.machine.execute(launches);
        let mut notes = self.notes();
        notes.kernels.extend(launches.launches.iter().map(|launch| launch.kernel.clone()));
        let Ran { outputs, cost } = ran.map_err(|Fault(what)| Error::Msg(what))?;
        notes.cost.add(cost);
        Ok(outputs)
    }

    /// candle's own ops would run on the CPU, and prove nothing.
    fn without_kernel(&self, op: &'static str) -> Result<(), KernelError> {
        Err(KernelError::NoKernel { op })
    }
}
