//! The counters of a CUDA device's memory pool, which every stream-ordered allocation goes through.

use candle_core::CudaDevice;
use candle_core::cuda::cudarc::driver::sys::CUmemPool_attribute::{
    self, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
    CU_MEMPOOL_ATTR_USED_MEM_HIGH,
};
use candle_core::cuda::cudarc::driver::{result, sys};

use super::peak::{Counted, PoolPeak};

/// Bytes that the pool has handed out.
pub(super) fn used(device: &CudaDevice) -> Option<u64> {
    read(settled_pool(device)?, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
}

/// Gives what the pool holds beyond what it has handed out back to the device, and that of graphs that are gone.
pub(super) fn trim(device: &CudaDevice) -> Option<()> {
    let pool = settled_pool(device)?;
    // SAFETY: the device is alive, and nothing that is in use is touched.
    unsafe {
        result::mem_pool::trim_to(pool, 0).ok()?;
        sys::cuDeviceGraphMemTrim(handle(device)?).result().ok()
    }
}

/// What `body` returns, and what the pool says around it.
pub(super) fn watch<R>(device: &CudaDevice, body: impl FnOnce() -> R) -> (R, Option<PoolPeak>) {
    let before = begin(device);
    let result = body();
    let peak = before.and_then(|before| {
        let pool = settled_pool(device)?;
        let used = read(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
        Some(PoolPeak { before, high: Counted { used, reserved: read(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)? } })
    });
    (result, peak)
}

/// Starts new high waters at what there is now. What lies unused in the pool goes back to the device first, since work
/// that finds it there would seem to need nothing.
fn begin(device: &CudaDevice) -> Option<Counted> {
    trim(device)?;
    let pool = settled_pool(device)?;
    for attribute in [CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] {
        let mut zero = 0u64;
        // SAFETY: the device is alive, and the attribute is a 64-bit integer that may be set to 0.
        unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut zero).cast()).ok()? };
    }
    let used = read(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
    Some(Counted { used, reserved: read(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)? })
}

fn read(pool: sys::CUmemoryPool, attribute: CUmemPool_attribute) -> Option<u64> {
    let mut bytes = 0u64;
    // SAFETY: the device is alive, and the attribute is a 64-bit integer that the driver writes to `bytes`.
    unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()).ok()? };
    Some(bytes)
}

/// The device's pool once all work before has run, so that the counters are of that work.
fn settled_pool(device: &CudaDevice) -> Option<sys::CUmemoryPool> {
    device.cuda_stream().synchronize().ok()?;
    // SAFETY: the device is alive.
    unsafe { result::device::get_default_mem_pool(handle(device)?).ok() }
}

fn handle(device: &CudaDevice) -> Option<sys::CUdevice> {
    result::device::get(i32::try_from(device.cuda_stream().context().ordinal()).ok()?).ok()
}
