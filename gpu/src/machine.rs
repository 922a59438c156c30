//! What executes launches, behind the ops of the kernels' crate, and what is noted of it.

use cacheplan_kernels::{Device, Executor, KernelError, Launches, execute_with};
use candle_core::Tensor;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device, or the emulator in place of one.
pub(crate) trait Machine: Send + Sync {
    /// What launches are made for.
    fn device(&self) -> Device;
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

/// The one executor of this process, and what it notes.
pub(crate) struct Watch(Arc<Shared>);

struct Shared {
    machine: Box<dyn Machine>,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    kernels: Vec<String>,
    cost: Cost,
}

/// Why an op was not gone on with.
enum Stop {
    Left,
    Failed(String),
}

impl Watch {
    /// From now on every op runs on `machine`.
    pub(crate) fn start(machine: Box<dyn Machine>) -> Self {
        let shared = Arc::new(Shared { machine, notes: Mutex::default() });
        execute_with(Box::new(Behind(Arc::clone(&shared))));
        Self(shared)
    }

    /// Calls an op, up to where it would be left to candle's own ops: those would run on the CPU, and prove nothing.
    pub(crate) fn call(&self, op: impl FnOnce() -> Result<Vec<Tensor>, KernelError>) -> Outcome {
        *self.0.notes() = Notes::default();
        // No state outlives a call that is broken off but the notes, which are taken here.
        let end = match catch_unwind(AssertUnwindSafe(op)) {
            Ok(Ok(given)) => End::Given(given),
            Ok(Err(error)) => End::Failed(error.to_string()),
            Err(stopped) => match stopped.downcast::<Stop>() {
                Ok(stop) => match *stop {
                    Stop::Left => End::Left,
                    Stop::Failed(what) => End::Failed(what),
                },
                Err(panic) => resume_unwind(panic),
            },
        };
        let Notes { kernels, cost } = std::mem::take(&mut *self.0.notes());
        Outcome { kernels, cost, end }
    }
}

impl Shared {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Behind(Arc<Shared>);

impl Executor for Behind {
    fn device(&self) -> Device {
        self.0.machine.device()
    }

    fn execute(&self, _op: &'static str, launches: &Launches<'_>) -> Vec<Tensor> {
        let ran = self.0.machine.execute(launches);
        let mut notes = self.0.notes();
        notes.kernels.extend(launches.launches.iter().map(|launch| launch.kernel.clone()));
        match ran {
            Ok(Ran { outputs, cost }) => {
                notes.cost.add(cost);
                outputs
            }
            Err(Fault(what)) => {
                drop(notes);
                resume_unwind(Box::new(Stop::Failed(what)))
            }
        }
    }

    fn leave(&self, _op: &'static str) {
        resume_unwind(Box::new(Stop::Left));
    }
}
