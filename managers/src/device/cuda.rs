//! The counters of a CUDA device's memory pool, which every stream-ordered allocation goes through.

use candle_core::CudaDevice;
use candle_core::cuda::cudarc::driver::sys::CUmemPool_attribute::{
    self, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH,
};
use candle_core::cuda::cudarc::driver::{result, sys};

/// Bytes that the pool has handed out.
pub(super) fn used(device: &CudaDevice) -> Option<u64> {
    read(device, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
}

/// The most bytes handed out at once since the last [`reset_high_water`].
pub(super) fn high_water(device: &CudaDevice) -> Option<u64> {
    read(device, CU_MEMPOOL_ATTR_USED_MEM_HIGH)
}

/// Starts a new high water at what is handed out now, and tells how much that is.
pub(super) fn reset_high_water(device: &CudaDevice) -> Option<u64> {
    let pool = settled_pool(device)?;
    let mut zero = 0u64;
    // SAFETY: the device is alive, and the attribute is a 64-bit integer that may be set to 0.
    unsafe { result::mem_pool::set_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, (&raw mut zero).cast()).ok()? };
    used(device)
}

fn read(device: &CudaDevice, attribute: CUmemPool_attribute) -> Option<u64> {
    let pool = settled_pool(device)?;
    let mut bytes = 0u64;
    // SAFETY: the device is alive, and the attribute is a 64-bit integer that the driver writes to `bytes`.
    unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()).ok()? };
    Some(bytes)
}

/// The device's pool once all work before has run, so that the counters are of that work.
fn settled_pool(device: &CudaDevice) -> Option<sys::CUmemoryPool> {
    device.cuda_stream().synchronize().ok()?;
    let ordinal = i32::try_from(device.cuda_stream().context().ordinal()).ok()?;
    // SAFETY: the ordinal is of a device that is alive.
    unsafe { result::device::get_default_mem_pool(result::device::get(ordinal).ok()?).ok() }
}
