//! The tensor of one pool.

use std::borrow::Cow;
use std::cell::RefCell;

use cacheplan_handlers::DType;
use cacheplan_kernels::{Backend, PoolRows};
use cacheplan_planner::Pool;
use candle_core::backend::BackendDevice;
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Shape, Storage, Tensor};

#[cfg(feature = "cuda")]
use super::cuda::used as cuda_pool_bytes;
use super::fault;
use crate::device::error::Result;
use crate::{BookError, CountingAllocator, ManagerError};

/// One pool `[units, unit_elems]`, zeroed at birth; it never moves.
#[derive(Debug)]
pub(crate) struct PoolTensor {
    pub(crate) id: String,
    /// Where it lies, and what moves its units.
    on: Backend,
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
    pub(crate) fn allocate(pool: &Pool, on: &Backend) -> Result<Self> {
        let bad = |reason: String| BookError::BadPlan { pool: pool.id.clone(), reason };
        let dtype = storage_dtype(pool.dtype);
        let elem_bytes = dtype.size_in_bytes();
        let fits = |value: u64| usize::try_from(value).map_err(|_| bad(format!("{value} does not fit this machine")));
        let (units, unit_bytes) = (fits(pool.units)?, fits(pool.unit_bytes)?);
        if pool.unit_bytes.checked_mul(pool.units) != Some(pool.bytes) {
            return Err(
                bad(format!("{} units of {} bytes are not {} bytes", pool.units, pool.unit_bytes, pool.bytes)).into()
            );
        }
        if !unit_bytes.is_multiple_of(elem_bytes) {
            return Err(
                bad(format!("a unit of {unit_bytes} bytes holds no whole number of {} elements", pool.dtype)).into()
            );
        }
        let unit_elems = unit_bytes / elem_bytes;
        let mut tensor = Self {
            id: pool.id.clone(),
            on: on.clone(),
            tensor: Tensor::zeros((0, unit_elems), dtype, &Device::Cpu)?,
            unit_elems,
            reserved: pool.reserved.min(pool.units) as u32,
            elem_bytes,
            planned_bytes: 0,
            actual_bytes: None,
        };
        tensor.fill_device(units)?;
        Ok(tensor)
    }

    /// Room for `units` units of this pool in host memory.
    pub(crate) fn on_host(&self, units: u32) -> Result<Self> {
        Ok(Self { reserved: 0, ..self.alike(units as usize, &Backend::Cpu)? })
    }

    /// The same pool on another device, with the contents of `held` units if only they matter.
    pub(crate) fn moved_to(&self, on: &Backend, held: Option<&[u32]>) -> Result<Self> {
        let kept = self.kept(held, self.units());
        let contents = self.read_units(&kept)?.to_device(&Device::Cpu)?;
        let moved = self.alike(self.units(), on)?;
        moved.write_units(&kept, &contents)?;
        Ok(moved)
    }

    /// A zeroed pool like this one with `units` units.
    fn alike(&self, units: usize, on: &Backend) -> Result<Self> {
        let mut tensor = Self {
            id: self.id.clone(),
            on: on.clone(),
            tensor: Tensor::zeros((0, self.unit_elems), self.tensor.dtype(), &Device::Cpu)?,
            planned_bytes: 0,
            actual_bytes: None,
            ..*self
        };
        tensor.fill_device(units)?;
        Ok(tensor)
    }

    /// The units whose contents matter to a pool of `units` units: `held`, or all.
    fn kept<'a>(&self, held: Option<&'a [u32]>, units: usize) -> Cow<'a, [u32]> {
        held.map_or_else(|| (0..self.units().min(units) as u32).collect(), Cow::Borrowed)
    }

    /// Takes the memory of `units` units, zeroed, in place of none.
    fn fill_device(&mut self, units: usize) -> Result<()> {
        fault::check()?;
        let bytes = units as u64 * self.unit_bytes();
        let shape = Shape::from((units, self.unit_elems));
        let (storage, actual_bytes) = zeroed(&shape, self.tensor.dtype(), &self.on.device(), &self.id, bytes)?;
        self.tensor = Tensor::from_storage(storage, shape, BackpropOp::none(), false);
        (self.planned_bytes, self.actual_bytes) = (bytes, actual_bytes);
        Ok(())
    }

    pub(crate) fn units(&self) -> usize {
        self.tensor.elem_count() / self.unit_elems.max(1)
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        (self.unit_elems * self.elem_bytes) as u64
    }

    /// Becomes as large as the pool of another plan; contents stay, or those of `held` units if only they matter.
    ///
    /// On the CPU the memory itself grows or shrinks. Elsewhere the contents wait in host memory, so that the device
    /// never holds two pools.
    pub(crate) fn resize(&mut self, pool: &Pool, held: Option<&[u32]>) -> Result<()> {
        if pool.bytes == self.planned_bytes {
            return Ok(());
        }
        let units = pool.units as usize;
        if self.on.device().is_cpu() {
            return self.resize_host_memory(units);
        }
        let kept = self.kept(held, units);
        let contents = self.read_units(&kept)?.to_device(&Device::Cpu)?;
        let before = self.units();
        self.tensor = Tensor::zeros((0, self.unit_elems), self.tensor.dtype(), &Device::Cpu)?;
        let taken = self.fill_device(units);
        if taken.is_err() {
            self.fill_device(before)?;
        }
        self.write_units(&kept, &contents)?;
        taken
    }

    /// Grows or shrinks a pool in host memory without a second copy of it.
    fn resize_host_memory(&mut self, units: usize) -> Result<()> {
        fault::check()?;
        let bytes = units as u64 * self.unit_bytes();
        let resize = Resize { elems: units * self.unit_elems, resized: RefCell::default() };
        let (done, allocated) = CountingAllocator::measure(|| self.tensor.inplace_op1(&resize));
        done.map_err(|_| ManagerError::OutOfDeviceMemory { pool: self.id.clone(), bytes })?;
        if let Some(storage) = resize.resized.into_inner() {
            let shape = Shape::from((units, self.unit_elems));
            self.tensor = Tensor::from_storage(Storage::Cpu(storage), shape, BackpropOp::none(), false);
            let actual = self.actual_bytes.zip(allocated);
            self.actual_bytes = actual.and_then(|(before, more)| before.checked_add_signed(more));
            self.planned_bytes = bytes;
        }
        Ok(())
    }

    pub(crate) fn copy_units(&self, pairs: &[(u32, u32)]) -> Result<()> {
        fault::check()?;
        Ok(PoolRows(&self.tensor).copy(&self.on.run(), pairs)?)
    }

    pub(crate) fn zero_units(&self, units: &[u32]) -> Result<()> {
        fault::check()?;
        Ok(PoolRows(&self.tensor).zero(&self.on.run(), units)?)
    }

    /// The contents of units, as a tensor of its own.
    pub(crate) fn read_units(&self, units: &[u32]) -> Result<Tensor> {
        fault::check()?;
        Ok(PoolRows(&self.tensor).gather(units)?)
    }

    pub(crate) fn write_units(&self, units: &[u32], values: &Tensor) -> Result<()> {
        fault::check()?;
        Ok(PoolRows(&self.tensor).scatter(units, values)?)
    }

    /// Overwrites elements; the offset counts from the pool's start.
    pub(crate) fn write_elems(&self, to: usize, values: &Tensor) -> Result<()> {
        fault::check()?;
        Ok(self.tensor.flatten_all()?.slice_set(values, 0, to)?)
    }

    /// Copies `len` elements inside the pool, or from another pool of its dtype; offsets count from the pool's start.
    pub(crate) fn copy_elems(&self, source: &Self, from: usize, to: usize, len: usize) -> Result<()> {
        let mut piece = source.tensor.flatten_all()?.narrow(0, from, len)?;
        if std::ptr::eq(self, source) {
            // Source and target would share their storage, which no op allows.
            piece = piece.copy()?;
        }
        self.write_elems(to, &piece)
    }

    /// Sets every element of the units; integers take their largest byte for NaN.
    pub(crate) fn fill_units(&self, units: impl Iterator<Item = u32>, value: f64) -> Result<()> {
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
        DType::F8E5m2
        | DType::Int8
        | DType::Int8PerTokenHead
        | DType::Nvfp4
        | DType::Mxfp4
        | DType::Mxfp8
        | DType::Q8_0
        | DType::Q4_0
        | DType::Q4_1
        | DType::Q5_0
        | DType::Q5_1
        | DType::Iq4Nl => candle_core::DType::U8,
    }
}

/// Takes the storage out of a pool's tensor, resized; new elements are zero.
struct Resize {
    elems: usize,
    resized: RefCell<Option<CpuStorage>>,
}

impl Resize {
    fn resize<T: Clone + Default>(&self, data: &mut Vec<T>) -> candle_core::Result<Vec<T>> {
        let more = self.elems.saturating_sub(data.len());
        data.try_reserve_exact(more).map_err(candle_core::Error::wrap)?;
        let mut data = std::mem::take(data);
        data.resize(self.elems, T::default());
        data.shrink_to(self.elems);
        Ok(data)
    }
}

impl InplaceOp1 for Resize {
    fn name(&self) -> &'static str {
        "resize"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        let resized = match storage {
            CpuStorage::U8(data) => CpuStorage::U8(self.resize(data)?),
            CpuStorage::I32(data) => CpuStorage::I32(self.resize(data)?),
            CpuStorage::F8E4M3(data) => CpuStorage::F8E4M3(self.resize(data)?),
            CpuStorage::F16(data) => CpuStorage::F16(self.resize(data)?),
            CpuStorage::BF16(data) => CpuStorage::BF16(self.resize(data)?),
            CpuStorage::F32(data) => CpuStorage::F32(self.resize(data)?),
            _ => candle_core::bail!("a pool of this dtype cannot be resized"),
        };
        // Of another dtype, so that a tensor that somebody kept is an error and not a read of nothing.
        *storage = CpuStorage::F64(Vec::new());
        self.resized.replace(Some(resized));
        Ok(())
    }
}

/// Zeroed storage, and what it really took.
fn zeroed(
    shape: &Shape,
    dtype: candle_core::DType,
    device: &Device,
    pool: &str,
    bytes: u64,
) -> Result<(Storage, Option<u64>)> {
    match device {
        Device::Cpu => {
            // Asks first, since a vector that cannot be had ends the process.
            let mut probe = Vec::<u8>::new();
            let available = usize::try_from(bytes).is_ok_and(|bytes| probe.try_reserve_exact(bytes).is_ok());
            drop(probe);
            if !available {
                return Err(ManagerError::OutOfDeviceMemory { pool: pool.to_owned(), bytes });
            }
            let (storage, bytes) = CountingAllocator::measure(|| CpuDevice.zeros_impl(shape, dtype));
            Ok((Storage::Cpu(storage?), bytes.and_then(|bytes| bytes.try_into().ok())))
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
