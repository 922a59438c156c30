//! Peaks of work, counted by the allocator or by the device's pool.

use candle_core::Device;

use super::peak::Peak;
use crate::CountingAllocator;

impl CountingAllocator {
    /// Runs `body`, and returns its result and peak; `None` if nothing counts the device's bytes.
    ///
    /// On the CPU every thread of the process counts, so that nothing else should run meanwhile.
    pub fn measure_peak<R>(device: &Device, body: impl FnOnce() -> R) -> (R, Option<Peak>) {
        match device {
            Device::Cpu => {
                let before = Self::current();
                Self::reset_peak();
                let result = body();
                let peak = before.zip(Self::peak()).map(|(before, peak)| Peak {
                    resident_bytes: before,
                    beyond_bytes: peak.saturating_sub(before),
                    method: "counting allocator",
                });
                (result, peak)
            }
            Device::Cuda(cuda) => cuda_peak(cuda, body),
            Device::Metal(_) => (body(), None),
        }
    }

    /// Gives memory that was freed back to a device whose pool keeps it, so that it counts as free.
    pub fn trim_device(device: &Device) {
        if let Device::Cuda(cuda) = device {
            give_back(cuda);
        }
    }
}

#[cfg(feature = "cuda")]
fn give_back(device: &candle_core::CudaDevice) {
    // A device that keeps it has less to give, no more.
    let _ = super::cuda::trim(device);
}

#[cfg(not(feature = "cuda"))]
fn give_back(_: &candle_core::CudaDevice) {}

#[cfg(feature = "cuda")]
fn cuda_peak<R>(device: &candle_core::CudaDevice, body: impl FnOnce() -> R) -> (R, Option<Peak>) {
    let (result, peak) = super::cuda::watch(device, body);
    (result, peak.map(super::peak::PoolPeak::of_work))
}

#[cfg(not(feature = "cuda"))]
fn cuda_peak<R>(_: &candle_core::CudaDevice, body: impl FnOnce() -> R) -> (R, Option<Peak>) {
    (body(), None)
}
