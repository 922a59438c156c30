//! The device that the caches will live on: what can be learned of it, and what is computed in there.

use cacheplan_handlers::DType;
use cacheplan_kernels::Backend;
use cacheplan_planner::DeviceInfo;
use candle_core::Device;

use crate::error::{Result, RuntimeError};

/// The device called `cpu` or `cuda:N`.
pub(crate) fn open_device(name: &str) -> Result<Backend> {
    let ordinal = match name.split_once(':') {
        None if name == "cpu" => return Ok(Backend::Cpu),
        Some(("cuda", ordinal)) => ordinal.parse().ok(),
        _ => None,
    };
    let ordinal = ordinal.ok_or_else(|| RuntimeError::UnknownDevice(name.to_owned()))?;
    open_cuda(ordinal)
}

/// The float of that name in candle's words.
pub(crate) fn stored_dtype(dtype: DType) -> Option<candle_core::DType> {
    match dtype {
        DType::F32 => Some(candle_core::DType::F32),
        DType::F16 => Some(candle_core::DType::F16),
        DType::Bf16 => Some(candle_core::DType::BF16),
        _ => None,
    }
}

/// The dtype to compute in: f32 on the CPU, which has no fast bf16, else the model's own.
pub(crate) fn compute_dtype(model: DType, on: &Backend) -> candle_core::DType {
    match model {
        _ if on.device().is_cpu() => candle_core::DType::F32,
        DType::F16 => candle_core::DType::F16,
        DType::F32 => candle_core::DType::F32,
        _ => candle_core::DType::BF16,
    }
}

/// The device's memory as it is now; `None` where the platform does not tell.
pub(crate) fn device_info(device: &Device) -> Option<DeviceInfo> {
    match device {
        Device::Cpu => host_memory(),
        Device::Cuda(cuda) => cuda_memory(cuda),
        Device::Metal(_) => None,
    }
}

/// The host's memory as Linux states it.
fn host_memory() -> Option<DeviceInfo> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    let (total, free) = (kibibytes("MemTotal")?.checked_mul(1024)?, kibibytes("MemAvailable")?.checked_mul(1024)?);
    Some(DeviceInfo::cpu("cpu", total, free))
}

#[cfg(feature = "cuda")]
fn open_cuda(ordinal: usize) -> Result<Backend> {
    Ok(Backend::cuda(ordinal)?)
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_: usize) -> Result<Backend> {
    Err(RuntimeError::WithoutCuda)
}

#[cfg(feature = "cuda")]
fn cuda_memory(device: &candle_core::CudaDevice) -> Option<DeviceInfo> {
    let stream = device.cuda_stream();
    let context = stream.context();
    let (free, total) = context.mem_get_info().ok()?;
    Some(DeviceInfo::cuda(context.name().ok()?, total as u64, free as u64))
}

#[cfg(not(feature = "cuda"))]
fn cuda_memory(_: &candle_core::CudaDevice) -> Option<DeviceInfo> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_refused_by_name() {
        assert!(matches!(open_device("cpu").unwrap(), Backend::Cpu));
        assert_eq!(open_device("tpu:0").unwrap_err().to_string(), "unknown device `tpu:0`; name `cpu` or `cuda:N`");
        if !cfg!(feature = "cuda") {
            assert!(matches!(open_device("cuda:0"), Err(RuntimeError::WithoutCuda)));
        }
    }

    #[test]
    fn the_host_states_less_free_than_total_memory() {
        if let Some(info) = device_info(&Device::Cpu) {
            assert!(info.free_bytes > 0 && info.free_bytes <= info.total_bytes, "{info:?}");
        }
    }
}
