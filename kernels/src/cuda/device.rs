//! Launches on candle's CUDA device, with the kernels that are embedded when this is built.
//!
//! It is type-checked; nothing of it has run on a GPU.

use super::{Buffer, Contents, Launch, Launches, Target};
use crate::launcher::{Graph, Launcher};
use candle_core::cuda::CudaStorageSlice;
use candle_core::cuda::cudarc::driver::{
    CudaFunction, CudaGraph, CudaModule, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
    SyncOnDrop, sys,
};
use candle_core::cuda::cudarc::nvrtc::Ptx;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, DType, Device, Error, InplaceOp1, Layout, Result, Storage, Tensor,
};
use half::{bf16, f16};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Launches on a device of candle's, with the modules that were loaded for it.
pub(crate) struct CudaLauncher {
    device: CudaDevice,
    kernels: Mutex<Kernels>,
}

/// The modules of a device, loaded when the first kernel is wanted, and the kernels that were.
#[derive(Default)]
struct Kernels {
    modules: Vec<Arc<CudaModule>>,
    functions: HashMap<String, CudaFunction>,
}

impl fmt::Debug for CudaLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaLauncher").field(&self.device).finish()
    }
}

impl CudaLauncher {
    pub(crate) fn new(device: &CudaDevice) -> Self {
        Self { device: device.clone(), kernels: Mutex::default() }
    }

    /// Opens the device of that number, with one stream for all threads.
    ///
    /// candle's own constructor gives each thread a stream of its own, so that steps of two threads would not wait for
    /// each other. With one stream nothing has to be told who waits for whom either, which graphs could not record.
    pub(crate) fn open(ordinal: usize) -> Result<Self> {
        let device = Device::new_cuda_with_stream(ordinal)?;
        let device = device.as_cuda_device()?;
        // SAFETY: everything on this device is on its one stream, which orders it.
        unsafe {
            device.disable_event_tracking();
        }
        Ok(Self::new(device))
    }

    fn function(&self, name: &str) -> Result<CudaFunction> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = kernels.functions.get(name) {
            return Ok(function.clone());
        }
        if kernels.modules.is_empty() {
            let stream = self.device.cuda_stream();
            let load = |binary: &&[u8]| stream.context().load_module(Ptx::from_binary(binary.to_vec()));
            kernels.modules = MODULES.iter().map(load).collect::<std::result::Result<_, _>>().map_err(Error::wrap)?;
        }
        let Some(function) = kernels.modules.iter().find_map(|module| module.load_function(name).ok()) else {
            candle_core::bail!("this build has no kernel {name}")
        };
        kernels.functions.insert(name.to_owned(), function.clone());
        Ok(function)
    }
}

impl Launcher for CudaLauncher {
    fn device(&self) -> Device {
        Device::Cuda(self.device.clone())
    }

    fn target(&self) -> crate::error::Result<Target> {
        use sys::CUdevice_attribute as Of;
        let context = self.device.cuda_stream().context().clone();
        let number = |attribute| Ok::<_, Error>(context.attribute(attribute).map_err(Error::wrap)?.max(1) as usize);
        Ok(Target {
            processors: number(Of::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes: number(Of::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        })
    }

    fn launch(&self, _: &'static str, launches: &Launches<'_>) -> crate::error::Result<Vec<Tensor>> {
        Ok(execute(self, launches)?)
    }

    fn upload(&self, memory: &Tensor, words: &[u32]) -> crate::error::Result<()> {
        Ok(memory.inplace_op1(&Upload(words))?)
    }

    /// What candle uploads of shapes stays on the device, and every kernel is loaded.
    fn warm_up(&self, step: &mut dyn FnMut()) {
        let _kept = self.device.enable_cuda_graph_htod_cache();
        step();
    }

    /// All that the stream is given is recorded, candle's products as well as our launches. Memory that the step takes and
    /// gives back becomes a part of the graph, at addresses that never change; what is uploaded meanwhile has to be the
    /// same in every step, and to have been uploaded by a step before.
    fn record(&self, step: &mut dyn FnMut()) -> crate::error::Result<Option<Box<dyn Graph>>> {
        use sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
        let stream = self.device.cuda_stream();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(Error::wrap)?;
        self.warm_up(step);
        // It ends in any case, since until then the stream computes nothing.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).map_err(Error::wrap)?;
        Ok(graph.map(|graph| Box::new(Recorded(graph)) as Box<dyn Graph>))
    }
}

/// A recorded step.
struct Recorded(CudaGraph);

// SAFETY: graphs may be used by any thread, though not by two at once, and whoever runs one borrows it exclusively.
unsafe impl Send for Recorded {}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorded")
    }
}

impl Graph for Recorded {
    fn run(&mut self) -> crate::error::Result<()> {
        Ok(self.0.launch().map_err(Error::wrap)?)
    }
}

/// Overwrites the first words of a tensor, in one copy.
///
/// Not by the device's own method, which keeps what it uploads while a step is about to be recorded.
struct Upload<'a>(&'a [u32]);

impl InplaceOp1 for Upload<'_> {
    fn name(&self) -> &'static str {
        "upload"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle_core::bail!("a buffer on the device is uploaded to")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        let stream = storage.device.cuda_stream();
        let CudaStorageSlice::U32(slice) = &mut storage.slice else { candle_core::bail!("a buffer is words") };
        stream.memcpy_htod(self.0, &mut slice.slice_mut(..self.0.len())).map_err(Error::wrap)
    }
}

/// Runs launches one after the other; outputs come back in the order of their buffers.
///
/// All work on a device that [`CudaLauncher::open`] made is on one stream, which orders what launches read and write behind the pointers.
fn execute(launcher: &CudaLauncher, launches: &Launches<'_>) -> Result<Vec<Tensor>> {
    let device = &launcher.device;
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
        run(launcher, &stream, launch, &launch.parameter(|buffer| addresses[buffer]))?;
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

fn run(launcher: &CudaLauncher, stream: &Arc<CudaStream>, launch: &Launch, bytes: &[u8]) -> Result<()> {
    let mut parameter = Parameter([0; Parameter::BYTES]);
    let Some(part) = parameter.0.get_mut(..bytes.len()) else {
        candle_core::bail!("{} takes {} bytes of parameters, at most {}", launch.kernel, bytes.len(), Parameter::BYTES)
    };
    part.copy_from_slice(bytes);
    let function = launcher.function(&launch.kernel)?;
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

/// New memory for what does not lie on the device yet.
fn allocate(device: &CudaDevice, buffer: &Buffer<'_>) -> Result<CudaStorageSlice> {
    Ok(match &buffer.contents {
        Contents::Input(_) | Contents::Pool(_) | Contents::Uploaded(_) => {
            candle_core::bail!("{} is no new memory", buffer.name)
        }
        Contents::Indices(values) => CudaStorageSlice::I32(device.clone_htod(values.host())?),
        Contents::Lengths(values) => CudaStorageSlice::U32(device.clone_htod(values.host())?),
        Contents::Slots(values) => CudaStorageSlice::I64(device.clone_htod(values.host())?),
        Contents::Pairs(pairs) => {
            let words: Vec<u32> = pairs.iter().flat_map(|&(from, to)| [from, to]).collect();
            CudaStorageSlice::U32(device.clone_htod(&words)?)
        }
        Contents::Floats(values) => CudaStorageSlice::F32(device.clone_htod(values.host())?),
        Contents::Scratch(elements) => CudaStorageSlice::F32(uninitialised(device, *elements)?),
        Contents::Output(dtype, shape) => {
            let elements = shape.iter().product();
            match dtype {
                DType::F32 => CudaStorageSlice::F32(uninitialised(device, elements)?),
                DType::BF16 => CudaStorageSlice::BF16(uninitialised::<bf16>(device, elements)?),
                DType::F16 => CudaStorageSlice::F16(uninitialised::<f16>(device, elements)?),
                DType::U32 => CudaStorageSlice::U32(uninitialised::<u32>(device, elements)?),
                DType::U8 => CudaStorageSlice::U8(uninitialised::<u8>(device, elements)?),
                other => candle_core::bail!("no kernel gives {other:?}"),
            }
        }
    })
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
