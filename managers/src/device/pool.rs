//! The tensor of one pool.

use cacheplan_handlers::DType;
use cacheplan_planner::Pool;
use candle_core::backend::BackendDevice;
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{Device, Shape, Storage, Tensor};

#[cfg(feature = "cuda")]
use super::cuda::used as cuda_pool_bytes;
use crate::{CountingAllocator, ManagerError};

/// One pool `[units, unit_elems]`, zeroed at birth; it never moves.
#[derive(Debug)]
pub(crate) struct PoolTensor {
    pub(crate) id: String,
    pub(crate) tensor: Tensor,
    pub(crate) unit_elems: usize,
    /// Units at the front that pad batches and stay zero.
    pub(crate) reserved: u32,
    /// Bytes of one element of the tensor, which for packed dtypes is one byte.
    pub(crate) elem_bytes: usize,
    pub(crate) planned_bytes: u64,
    /// What an allocator or the device counted; `None` if nobody counts.
    pub(crate) actual_bytes: Option<u64>,
}

impl PoolTensor {
    pub(crate) fn allocate(pool: &Pool, device: &Device) -> Result<Self, ManagerError> {
        let bad = |reason: String| ManagerError::BadPlan { pool: pool.id.clone(), reason };
        let dtype = storage_dtype(pool.dtype);
        let elem_bytes = dtype.size_in_bytes();
        let fits = |value: u64| usize::try_from(value).map_err(|_| bad(format!("{value} does not fit this machine")));
        let (units, unit_bytes) = (fits(pool.units)?, fits(pool.unit_bytes)?);
        if pool.unit_bytes.checked_mul(pool.units) != Some(pool.bytes) {
            return Err(bad(format!("{} units of {} bytes are not {} bytes", pool.units, pool.unit_bytes, pool.bytes)));
        }
        if !unit_bytes.is_multiple_of(elem_bytes) {
            return Err(bad(format!("a unit of {unit_bytes} bytes holds no whole number of {} elements", pool.dtype)));
        }
        let unit_elems = unit_bytes / elem_bytes;
        let shape = Shape::from((units, unit_elems));
        let (storage, actual_bytes) = zeroed(&shape, dtype, device, pool)?;
        let tensor = Tensor::from_storage(storage, shape, BackpropOp::none(), false);
        Ok(Self {
            id: pool.id.clone(),
            tensor,
            unit_elems,
            reserved: pool.reserved.min(pool.units) as u32,
            elem_bytes,
            planned_bytes: pool.bytes,
            actual_bytes,
        })
    }

    pub(crate) fn units(&self) -> usize {
        self.tensor.elem_count() / self.unit_elems.max(1)
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        (self.unit_elems * self.elem_bytes) as u64
    }

    /// Becomes the pool of another plan, with the units that both have.
    pub(crate) fn replace(&mut self, pool: &Pool, device: &Device) -> Result<(), ManagerError> {
        if pool.bytes == self.planned_bytes && device.same_device(self.tensor.device()) {
            return Ok(());
        }
        let fresh = Self::allocate(pool, device)?;
        let kept = self.units().min(fresh.units());
        let contents = self.tensor.narrow(0, 0, kept)?.to_device(device)?;
        fresh.tensor.slice_set(&contents, 0, 0)?;
        *self = fresh;
        Ok(())
    }

    pub(crate) fn copy_units(&self, pairs: &[(u32, u32)]) -> Result<(), ManagerError> {
        Ok(cacheplan_kernels::copy_rows(&self.tensor, pairs)?)
    }

    pub(crate) fn zero_units(&self, units: &[u32]) -> Result<(), ManagerError> {
        Ok(cacheplan_kernels::zero_rows(&self.tensor, units)?)
    }

    /// The contents of units, as a tensor of its own.
    pub(crate) fn read_units(&self, units: &[u32]) -> Result<Tensor, ManagerError> {
        Ok(cacheplan_kernels::gather_rows(&self.tensor, units)?)
    }

    pub(crate) fn write_units(&self, units: &[u32], values: &Tensor) -> Result<(), ManagerError> {
        Ok(cacheplan_kernels::scatter_rows(&self.tensor, units, values)?)
    }

    /// Copies `len` elements inside the pool, or from another pool of its dtype; offsets count from the pool's start.
    pub(crate) fn copy_elems(&self, source: &Self, from: usize, to: usize, len: usize) -> Result<(), ManagerError> {
        let mut piece = source.tensor.flatten_all()?.narrow(0, from, len)?;
        if std::ptr::eq(self, source) {
            // Source and target would share their storage, which no op allows.
            piece = piece.copy()?;
        }
        Ok(self.tensor.flatten_all()?.slice_set(&piece, 0, to)?)
    }

    /// Sets every element of the units; integers take their largest byte for NaN.
    pub(crate) fn fill_units(&self, units: impl Iterator<Item = u32>, value: f64) -> Result<(), ManagerError> {
        let dtype = self.tensor.dtype();
        let value = if value.is_nan() && dtype.is_int() { f64::from(u8::MAX) } else { value };
        let row = Tensor::full(value as f32, (1, self.unit_elems), &Device::Cpu)?.to_dtype(dtype)?;
        let row = row.to_device(self.tensor.device())?;
        for unit in units {
            self.write_units(&[unit], &row)?;
        }
        Ok(())
    }
}

/// The element type of a pool's tensor: packed and scaled formats are bytes.
pub(crate) fn storage_dtype(dtype: DType) -> candle_core::DType {
    match dtype {
        DType::F32 => candle_core::DType::F32,
        DType::F16 => candle_core::DType::F16,
        DType::Bf16 => candle_core::DType::BF16,
        DType::F8E4m3 => candle_core::DType::F8E4M3,
        DType::Int32 => candle_core::DType::I32,
        DType::F8E5m2 | DType::Int8 | DType::Nvfp4 | DType::Mxfp4 | DType::Q8_0 | DType::Q4_0 => candle_core::DType::U8,
    }
}

/// Zeroed storage, and what it really took.
fn zeroed(
    shape: &Shape,
    dtype: candle_core::DType,
    device: &Device,
    pool: &Pool,
) -> Result<(Storage, Option<u64>), ManagerError> {
    match device {
        Device::Cpu => {
            // Asks first, since a vector that cannot be had ends the process.
            let mut probe = Vec::<u8>::new();
            let available = usize::try_from(pool.bytes).is_ok_and(|bytes| probe.try_reserve_exact(bytes).is_ok());
            drop(probe);
            if !available {
                return Err(ManagerError::OutOfDeviceMemory { pool: pool.id.clone(), bytes: pool.bytes });
            }
            let (storage, bytes) = CountingAllocator::measure(|| CpuDevice.zeros_impl(shape, dtype));
            Ok((Storage::Cpu(storage?), bytes))
        }
        Device::Cuda(cuda) => {
            let before = cuda_pool_bytes(cuda);
            let storage = cuda.zeros_impl(shape, dtype)?;
            let bytes = cuda_pool_bytes(cuda).zip(before).map(|(after, before)| after.saturating_sub(before));
            Ok((Storage::Cuda(storage), bytes))
        }
        Device::Metal(metal) => Ok((Storage::Metal(metal.zeros_impl(shape, dtype)?), None)),
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda_pool_bytes(_: &candle_core::CudaDevice) -> Option<u64> {
    None
}
