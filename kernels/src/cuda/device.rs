//! Launches on candle's CUDA device, with the kernels that are embedded when this is built.
//!
//! It is type-checked; nothing of it has run on a GPU.

use super::{Buffer, Contents, Device, Launch, Launches};
use candle_core::cuda::cudarc::driver::{
    CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg, SyncOnDrop,
    sys,
};
use candle_core::cuda::cudarc::nvrtc::Ptx;
use candle_core::cuda::{CudaStorageSlice, DeviceId};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Error, Result, Storage, Tensor};
use half::{bf16, f16};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// What the launches are made for.
pub(super) fn describe(device: &CudaDevice) -> Result<Device> {
    use sys::CUdevice_attribute as Of;
    let context = device.cuda_stream().context().clone();
    let number = |attribute| Ok::<_, Error>(context.attribute(attribute).map_err(Error::wrap)?.max(1) as usize);
    Ok(Device {
        processors: number(Of::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes: number(Of::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    })
}

/// Runs launches one after the other; outputs come back in the order of their buffers.
///
/// All work on a device that [`open_device`](super::open_device) made is on one stream, which orders what launches read and write behind the pointers.
pub(super) fn execute(device: &CudaDevice, launches: &Launches<'_>) -> Result<Vec<Tensor>> {
    let stream = device.cuda_stream();
    let tensors = launches.buffers.iter().map(|buffer| match &buffer.contents {
        Contents::Input(tensor) | Contents::Pool(tensor) => Some(tensor.storage_and_layout()),
        Contents::Uploaded(words) => Some(words.storage_and_layout()),
        _ => None,
    });
    let tensors: Vec<_> = tensors.collect();
    let mut memory = Vec::with_capacity(launches.buffers.len());
    for (buffer, tensor) in launches.buffers.iter().zip(&tensors) {
        memory.push(match tensor {
            None => Memory::Own(allocate(device, buffer)?),
            Some((storage, layout)) => match &**storage {
                Storage::Cuda(storage) => Memory::Lent(storage, layout.start_offset()),
                _ => candle_core::bail!("{} does not lie on the device of the op", buffer.name),
            },
        });
    }
    // The guards outlive the launches.
    let (addresses, _guards): (Vec<u64>, Vec<SyncOnDrop<'_>>) = memory
        .iter()
        .map(|memory| match memory {
            Memory::Own(slice) => address(slice, 0, &stream),
            Memory::Lent(storage, start) => address(&storage.slice, *start, &stream),
        })
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .unzip();
    for launch in &launches.launches {
        if launch.grid.contains(&0) {
            continue;
        }
        run(device, &stream, launch, &launch.parameter(|buffer| addresses[buffer]))?;
    }
    drop((addresses, _guards));
    let mut outputs = Vec::new();
    for (buffer, memory) in launches.buffers.iter().zip(memory) {
        if let (Contents::Output(_, shape), Memory::Own(slice)) = (&buffer.contents, memory) {
            let storage = Storage::Cuda(CudaStorage { slice, device: device.clone() });
            outputs.push(Tensor::from_storage(storage, shape.as_slice(), BackpropOp::none(), false));
        }
    }
    Ok(outputs)
}

/// Memory that a launch works on.
enum Memory<'a> {
    Own(CudaStorageSlice),
    /// A tensor's storage, and the element at which the tensor begins.
    Lent(&'a CudaStorage, usize),
}

/// The parameter of a kernel, of which the driver reads as much as the kernel declares.
#[repr(C, align(8))]
struct Parameter([u8; Parameter::BYTES]);

impl Parameter {
    const BYTES: usize = 512;
}

// SAFETY: plain bytes.
unsafe impl DeviceRepr for Parameter {}

fn run(device: &CudaDevice, stream: &Arc<CudaStream>, launch: &Launch, bytes: &[u8]) -> Result<()> {
    let mut parameter = Parameter([0; Parameter::BYTES]);
    let Some(part) = parameter.0.get_mut(..bytes.len()) else {
        candle_core::bail!("{} takes {} bytes of parameters, at most {}", launch.kernel, bytes.len(), Parameter::BYTES)
    };
    part.copy_from_slice(bytes);
    let function = function(device, &launch.kernel)?;
    if launch.shared_bytes > 48 << 10 {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, launch.shared_bytes as i32).map_err(Error::wrap)?;
    }
    let [x, y, z] = launch.grid;
    let shape = LaunchConfig {
        grid_dim: (x, y, z),
        block_dim: (launch.threads, 1, 1),
        shared_mem_bytes: launch.shared_bytes as u32,
    };
    let mut builder = stream.launch_builder(&function);
    builder.arg(&parameter);
    // SAFETY: the launch was made for checked operands, whose memory is held until it has been queued on the stream that
    // everything else on this device is queued on.
    unsafe { builder.launch(shape) }.map_err(Error::wrap)?;
    Ok(())
}

/// The kernels of one device.
struct Kernels {
    modules: Vec<Arc<CudaModule>>,
    functions: HashMap<String, CudaFunction>,
}

fn function(device: &CudaDevice, name: &str) -> Result<CudaFunction> {
    static DEVICES: Mutex<Vec<(DeviceId, Kernels)>> = Mutex::new(Vec::new());
    let mut devices: MutexGuard<'_, Vec<_>> = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let at = match devices.iter().position(|(id, _)| *id == device.id()) {
        Some(at) => at,
        None => {
            let stream = device.cuda_stream();
            let load = |binary: &&[u8]| stream.context().load_module(Ptx::from_binary(binary.to_vec()));
            let modules = MODULES.iter().map(load).collect::<std::result::Result<Vec<_>, _>>().map_err(Error::wrap)?;
            devices.push((device.id(), Kernels { modules, functions: HashMap::new() }));
            devices.len() - 1
        }
    };
    let Kernels { modules, functions } = &mut devices[at].1;
    if let Some(function) = functions.get(name) {
        return Ok(function.clone());
    }
    let Some(function) = modules.iter().find_map(|module| module.load_function(name).ok()) else {
        candle_core::bail!("no module that was built has the kernel {name}")
    };
    functions.insert(name.to_owned(), function.clone());
    Ok(function)
}

/// New memory for what does not lie on the device yet.
fn allocate(device: &CudaDevice, buffer: &Buffer<'_>) -> Result<CudaStorageSlice> {
    Ok(match &buffer.contents {
        Contents::Input(_) | Contents::Pool(_) | Contents::Uploaded(_) => {
            candle_core::bail!("{} is no new memory", buffer.name)
        }
        Contents::Indices(values) => CudaStorageSlice::I32(device.clone_htod(*values)?),
        Contents::Lengths(values) => CudaStorageSlice::U32(device.clone_htod(*values)?),
        Contents::Slots(values) => CudaStorageSlice::I64(device.clone_htod(*values)?),
        Contents::Pairs(pairs) => {
            let words: Vec<u32> = pairs.iter().flat_map(|&(from, to)| [from, to]).collect();
            CudaStorageSlice::U32(device.clone_htod(&words)?)
        }
        Contents::Floats(values) => CudaStorageSlice::F32(device.clone_htod(*values)?),
        Contents::Scratch(elements) => CudaStorageSlice::F32(uninitialised(device, *elements)?),
        Contents::Output(dtype, shape) => {
            let elements = shape.iter().product();
            match dtype {
                DType::F32 => CudaStorageSlice::F32(uninitialised(device, elements)?),
                DType::BF16 => CudaStorageSlice::BF16(uninitialised::<bf16>(device, elements)?),
                DType::F16 => CudaStorageSlice::F16(uninitialised::<f16>(device, elements)?),
                DType::U32 => CudaStorageSlice::U32(uninitialised::<u32>(device, elements)?),
                other => candle_core::bail!("no kernel gives {other:?}"),
            }
        }
    })
}

/// Overwrites the first words of a tensor, in one copy.
///
/// Not by the device's own method, which keeps what it uploads while a step is about to be recorded.
pub(super) fn upload(storage: &mut CudaStorage, words: &[u32]) -> Result<()> {
    let stream = storage.device.cuda_stream();
    let CudaStorageSlice::U32(slice) = &mut storage.slice else { candle_core::bail!("a batch is words") };
    stream.memcpy_htod(words, &mut slice.slice_mut(..words.len())).map_err(Error::wrap)
}

fn uninitialised<T: DeviceRepr>(device: &CudaDevice, elements: usize) -> Result<CudaSlice<T>> {
    // SAFETY: a kernel writes all of it before it is read, which the proofs of each kernel show.
    unsafe { device.alloc(elements) }
}

/// Where element `start` lies, and the guard that orders other streams behind what is done there.
fn address<'a>(
    slice: &'a CudaStorageSlice,
    start: usize,
    stream: &'a Arc<CudaStream>,
) -> Result<(u64, SyncOnDrop<'a>)> {
    macro_rules! of {
        ($slice:expr, $element:ty) => {{
            let (address, guard) = $slice.device_ptr(stream);
            Ok((address + (start * size_of::<$element>()) as u64, guard))
        }};
    }
    match slice {
        CudaStorageSlice::U8(slice) => of!(slice, u8),
        CudaStorageSlice::U32(slice) => of!(slice, u32),
        CudaStorageSlice::I32(slice) => of!(slice, i32),
        CudaStorageSlice::I64(slice) => of!(slice, i64),
        CudaStorageSlice::BF16(slice) => of!(slice, bf16),
        CudaStorageSlice::F16(slice) => of!(slice, f16),
        CudaStorageSlice::F32(slice) => of!(slice, f32),
        CudaStorageSlice::F8E4M3(slice) => of!(slice, u8),
        _ => candle_core::bail!("no kernel reads tensors of this type"),
    }
}
