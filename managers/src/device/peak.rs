//! The most bytes that a piece of work has beyond what is resident, counted and not derived.

use candle_core::Device;

use crate::CountingAllocator;

/// What was counted around a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// Bytes allocated before it.
    pub resident_bytes: u64,
    /// The most bytes allocated at once during it, beyond those.
    pub beyond_bytes: u64,
    /// What counted.
    pub method: &'static str,
}

impl CountingAllocator {
    /// What `body` returns, and its peak; `None` if nothing counts the device's bytes.
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
}

#[cfg(feature = "cuda")]
fn cuda_peak<R>(device: &candle_core::CudaDevice, body: impl FnOnce() -> R) -> (R, Option<Peak>) {
    let before = super::cuda::reset_high_water(device);
    let result = body();
    let high = super::cuda::high_water(device);
    let peak = before.zip(high).map(|(before, high)| Peak {
        resident_bytes: before,
        beyond_bytes: high.saturating_sub(before),
        method: "CUDA memory pool, USED_MEM_HIGH",
    });
    (result, peak)
}

#[cfg(not(feature = "cuda"))]
fn cuda_peak<R>(_: &candle_core::CudaDevice, body: impl FnOnce() -> R) -> (R, Option<Peak>) {
    (body(), None)
}
