//! Who executes launches: a device of CUDA, or, in proofs of whole models, whoever asked to.

use super::{Device, Launches, batch};
use crate::error::Result;
use candle_core::Tensor;
use std::sync::OnceLock;

/// Executes the launches of operands that lie on the CPU.
pub trait Executor: Send + Sync {
    /// The device that launches are made for.
    fn device(&self) -> Device;
    /// Runs them: pools are changed in place, outputs come back in the order of their buffers.
    fn execute(&self, op: &'static str, launches: &Launches<'_>) -> Vec<Tensor>;
    /// Notes that the metadata of a step was uploaded.
    fn upload(&self) {}
    /// Notes that a step is told nothing by the host, so that a device would record it.
    fn record(&self) {}
    /// Notes an op without a kernel for its operands, which is left to candle's own ops.
    fn leave(&self, op: &'static str);
}

static EXECUTOR: OnceLock<Box<dyn Executor>> = OnceLock::new();

/// From now on every op of operands on the CPU takes the way that it takes on a device. Whoever comes first is it.
pub fn execute_with(executor: Box<dyn Executor>) {
    let _ = EXECUTOR.set(executor);
}

/// Whether ops on this device are those of the CPU.
pub(crate) fn reads_in_place(device: &candle_core::Device) -> bool {
    device.is_cpu() && EXECUTOR.get().is_none()
}

/// What an op gives that has been executed.
pub(crate) trait Outputs {
    fn of(outputs: Vec<Tensor>) -> Option<Self>
    where
        Self: Sized;
}

impl Outputs for () {
    fn of(_outputs: Vec<Tensor>) -> Option<Self> {
        Some(())
    }
}

impl Outputs for Tensor {
    fn of(outputs: Vec<Tensor>) -> Option<Self> {
        outputs.into_iter().next()
    }
}

impl Outputs for (Tensor, Tensor) {
    fn of(outputs: Vec<Tensor>) -> Option<Self> {
        let mut outputs = outputs.into_iter();
        Some((outputs.next()?, outputs.next()?))
    }
}

/// Whether ops on this device are launches, as far as they have kernels.
pub fn launches_on(device: &candle_core::Device) -> bool {
    device.is_cuda() || (device.is_cpu() && EXECUTOR.get().is_some())
}

/// Tells the executor that the metadata of a step was uploaded.
pub(super) fn uploaded(device: &candle_core::Device) {
    if let Some(executor) = EXECUTOR.get().filter(|_| device.is_cpu()) {
        executor.upload();
    }
}

/// Tells the executor that a device would record a step.
pub(super) fn recorded(device: &candle_core::Device) {
    if let Some(executor) = EXECUTOR.get().filter(|_| device.is_cpu()) {
        executor.record();
    }
}

/// Ops that are told nothing of a step, and tell the host nothing, by the files that they are in.
const WITHOUT_STEP: [&str; 4] = ["elementwise", "experts", "linear", "norm"];

/// Executes an op's launches where there is an executor for the device of its operands, and launches.
pub(crate) fn launch<'a, T: Outputs>(
    device: &candle_core::Device,
    op: &'static str,
    launches: impl FnOnce(&Device) -> Option<Launches<'a>>,
) -> Result<Option<T>> {
    let made_for = match device {
        #[cfg(feature = "cuda")]
        candle_core::Device::Cuda(device) => super::device::describe(device)?,
        _ => match EXECUTOR.get().filter(|_| device.is_cpu()) {
            Some(executor) => executor.device(),
            None => return Ok(None),
        },
    };
    let Some(mut launches) = launches(&made_for).filter(|made| made.fit(&made_for)) else {
        if !op.split("::").next().is_some_and(|file| WITHOUT_STEP.contains(&file.trim())) {
            batch::leave();
        }
        if let Some(executor) = EXECUTOR.get().filter(|_| device.is_cpu()) {
            executor.leave(op);
        }
        return Ok(None);
    };
    batch::read_lent(&mut launches)?;
    #[cfg(feature = "cuda")]
    if let candle_core::Device::Cuda(device) = device {
        return Ok(T::of(super::device::execute(device, &launches)?));
    }
    Ok(EXECUTOR.get().and_then(|executor| T::of(executor.execute(op, &launches))))
}
