//! Who executes launches of kernels.

use crate::cuda::{Launches, Target};
use crate::error::Result;
use candle_core::{Device, Tensor};
use std::fmt::Debug;

/// Executes launches: a CUDA device, or the emulator in place of one.
pub trait Launcher: Debug + Send + Sync {
    /// The device that operands lie on.
    fn device(&self) -> Device;

    /// What launches are made for.
    ///
    /// # Errors
    /// A device that does not answer.
    fn target(&self) -> Result<Target>;

    /// Runs the launches of an op: pools are changed in place, outputs come back in the order of their buffers.
    ///
    /// # Errors
    /// A failing device, a kernel that is not there.
    fn launch(&self, op: &'static str, launches: &Launches<'_>) -> Result<Vec<Tensor>>;

    /// Takes note of an op without a kernel for its operands, before candle's own ops compute it.
    ///
    /// # Errors
    /// [`KernelError::NoKernel`](crate::KernelError::NoKernel), where candle's own ops are not wanted.
    fn without_kernel(&self, op: &'static str) -> Result<()> {
        let _ = op;
        Ok(())
    }

    /// Overwrites the first words of a step's buffer.
    ///
    /// # Errors
    /// A failing device.
    fn upload(&self, memory: &Tensor, words: &[u32]) -> Result<()> {
        Ok(memory.slice_set(&Tensor::new(words, memory.device())?, 0, 0)?)
    }

    /// Runs a step that is to be recorded next, with other numbers but the same shapes, on the same thread.
    fn warm_up(&self, step: &mut dyn FnMut()) {
        step();
    }

    /// Records what `step` gives the device to do, without doing it; none where there are no graphs, and `step` is not
    /// called.
    ///
    /// # Errors
    /// What cannot be recorded. Nothing was computed then.
    fn record(&self, step: &mut dyn FnMut()) -> Result<Option<Box<dyn Graph>>> {
        let _ = step;
        Ok(None)
    }
}

/// Repeats a recorded step over the buffer and the pools that it was recorded with.
pub trait Graph: Debug + Send {
    /// Runs what was recorded.
    ///
    /// # Errors
    /// A failing device.
    fn run(&mut self) -> Result<()>;
}
