//! The CUDA driver, opened when the command runs: the few calls that kernels need.
//!
//! All work goes to the default stream, which takes it in order.
#![allow(unsafe_code, reason = "the driver is a C library")]

use cacheplan_kernels::Target;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// What of the driver's API the machine code in this binary asks for: that of the compiler, CUDA 13.0.
const VERSION: i32 = 13_000;

/// Why a device cannot be used, or stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error("there is no {file}, which comes with NVIDIA's driver (`--device emulator` needs none)")]
    Absent { file: &'static str, source: libloading::Error },
    #[error("the driver has no {call}; one of CUDA 13.0 (580) or later has")]
    Symbol { call: &'static str, source: libloading::Error },
    #[error("the driver speaks CUDA {}.{}, kernels are built for {}.{}: install driver 580 or later",
        found / 1000, found % 1000 / 10, VERSION / 1000, VERSION % 1000 / 10)]
    TooOld { found: i32 },
    #[error("there is no device cuda:{asked}: the driver has {found}")]
    NoDevice { asked: usize, found: i32 },
    #[error("{name} has compute capability {}.{}, kernels are built for 8.0 and later", found.0, found.1)]
    TooSmall { name: String, found: (i32, i32) },
    #[error("no module in this binary has the kernel {0}")]
    NoKernel(String),
    #[error("{call}: {name} ({code}): {text}")]
    Call { call: &'static str, code: c_int, name: String, text: String },
}

type Result<T, E = DriverError> = std::result::Result<T, E>;
type Handle = *mut c_void;

macro_rules! calls {
    ($($field:ident = $symbol:literal ($($parameter:ty),*);)*) => {
        struct Calls { $($field: unsafe extern "C" fn($($parameter),*) -> c_int,)* }

        impl Calls {
            fn of(library: &Library) -> Result<Self> {
                Ok(Self { $($field: {
                    // SAFETY: the signature is that of `cuda.h`.
                    let call = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                    *call.map_err(|source| DriverError::Symbol { call: $symbol, source })?
                },)* })
            }
        }

        impl Driver {
            $(fn $field(&self) -> (&'static str, unsafe extern "C" fn($($parameter),*) -> c_int) {
                ($symbol, self.calls.$field)
            })*
        }
    };
}

calls! {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (c_int, *mut *const c_char);
    error_text = "cuGetErrorString" (c_int, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_set = "cuCtxSetCurrent" (Handle);
    context_wait = "cuCtxSynchronize" ();
    memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    module_load = "cuModuleLoadData" (*mut Handle, *const c_void);
    module_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    function_set = "cuFuncSetAttribute" (Handle, c_int, c_int);
    allocate = "cuMemAlloc_v2" (*mut u64, usize);
    free = "cuMemFree_v2" (u64);
    upload = "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    download = "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    copy = "cuMemcpyDtoD_v2" (u64, u64, usize);
    fill = "cuMemsetD8_v2" (u64, u8, usize);
    launch = "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_wait = "cuEventSynchronize" (Handle);
    event_elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
}

/// A call with its arguments, as a result.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),*)) => {{
        let (symbol, call) = $driver.$name();
        // SAFETY: the arguments are what `cuda.h` asks for, and pointers among them are valid for as long as the call reads
        // or writes them.
        let code = unsafe { call($($argument),*) };
        $driver.check(symbol, code)
    }};
}

struct Driver {
    calls: Calls,
    /// Where the calls lie.
    _library: Library,
}

// Numbers of `CUdevice_attribute`.
const PROCESSORS: c_int = 16;
const CLOCK_KHZ: c_int = 13;
const MEMORY_CLOCK_KHZ: c_int = 36;
const L2_BYTES: c_int = 38;
const MAJOR: c_int = 75;
const MINOR: c_int = 76;
const MOST_SHARED_BYTES: c_int = 97;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`, and what a kernel may have without it.
const SHARED_BYTES: c_int = 8;
const USUAL_SHARED_BYTES: usize = 48 << 10;

/// What the driver says of a device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Description {
    pub(crate) name: String,
    /// The CUDA version that the driver speaks.
    pub(crate) driver: String,
    pub(crate) compute_capability: String,
    pub(crate) processors: usize,
    /// Of a block that asks for them.
    pub(crate) shared_bytes: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) free_bytes: usize,
    pub(crate) l2_bytes: usize,
    pub(crate) clock_khz: usize,
    pub(crate) memory_clock_khz: usize,
}

impl Description {
    /// What launches are made for.
    pub(crate) fn target(&self) -> Target {
        Target { processors: self.processors, shared_bytes: self.shared_bytes }
    }
}

/// A device, and the kernels on it.
#[derive(Clone)]
pub(crate) struct Gpu {
    driver: Arc<Driver>,
    device: c_int,
    context: Handle,
    modules: Vec<Handle>,
}

// SAFETY: the driver's handles may be used on any thread; whoever does makes the context its own first (`enter`).
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Gpu {}

/// Memory of a device.
pub(crate) struct Memory {
    gpu: Gpu,
    address: u64,
    bytes: usize,
}

/// A moment in the order of a device's work.
pub(crate) struct Event(Handle);

/// A kernel of a module.
#[derive(Clone, Copy)]
pub(crate) struct Function(Handle);

// SAFETY: as for `Gpu`.
unsafe impl Send for Function {}
// SAFETY: as for `Gpu`.
unsafe impl Sync for Function {}

impl Driver {
    fn open() -> Result<Self> {
        const FILE: &str = "libcuda.so.1";
        // SAFETY: the driver's library may be loaded at any time.
        let library = unsafe { Library::new(FILE) }.map_err(|source| DriverError::Absent { file: FILE, source })?;
        Ok(Self { calls: Calls::of(&library)?, _library: library })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let text = |say: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text: *const c_char = null();
            // SAFETY: the driver gives a string of its own, which lives as long as it does, or none.
            unsafe { if say(code, &raw mut text) == 0 && !text.is_null() { CStr::from_ptr(text) } else { c"unknown" } }
                .to_string_lossy()
                .into_owned()
        };
        Err(DriverError::Call { call, code, name: text(self.error_name().1), text: text(self.error_text().1) })
    }
}

impl Gpu {
    /// The device of that number, with modules of machine code.
    pub(crate) fn open(number: usize, modules: &[&[u8]]) -> Result<Self> {
        let driver = Arc::new(Driver::open()?);
        call!(driver, init(0))?;
        let mut found = 0;
        call!(driver, driver_version(&raw mut found))?;
        if found < VERSION {
            return Err(DriverError::TooOld { found });
        }
        let mut count = 0;
        call!(driver, device_count(&raw mut count))?;
        let wanted = c_int::try_from(number).ok().filter(|&number| number < count);
        let wanted = wanted.ok_or(DriverError::NoDevice { asked: number, found: count })?;
        let mut gpu = Self { driver, device: 0, context: null_mut(), modules: Vec::new() };
        call!(gpu.driver, device_get(&raw mut gpu.device, wanted))?;
        call!(gpu.driver, context_retain(&raw mut gpu.context, gpu.device))?;
        gpu.enter()?;
        let capability = (gpu.attribute(MAJOR)?, gpu.attribute(MINOR)?);
        if capability < (8, 0) {
            return Err(DriverError::TooSmall { name: gpu.name()?, found: capability });
        }
        for module in modules {
            let mut handle = null_mut();
            call!(gpu.driver, module_load(&raw mut handle, module.as_ptr().cast()))?;
            gpu.modules.push(handle);
        }
        Ok(gpu)
    }

    /// Makes the device that of this thread.
    pub(crate) fn enter(&self) -> Result<()> {
        call!(self.driver, context_set(self.context))
    }

    fn attribute(&self, attribute: c_int) -> Result<c_int> {
        let mut value = 0;
        call!(self.driver, device_attribute(&raw mut value, attribute, self.device))?;
        Ok(value)
    }

    fn name(&self) -> Result<String> {
        let mut name = [0u8; 256];
        // The last byte stays 0.
        call!(self.driver, device_name(name.as_mut_ptr().cast(), 255, self.device))?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    pub(crate) fn describe(&self) -> Result<Description> {
        let (mut free, mut total, mut version) = (0, 0, 0);
        call!(self.driver, memory_info(&raw mut free, &raw mut total))?;
        call!(self.driver, driver_version(&raw mut version))?;
        let number = |attribute| Ok::<_, DriverError>(usize::try_from(self.attribute(attribute)?).unwrap_or(0));
        // Clocks went from newer drivers' list of attributes.
        let clock = |attribute| number(attribute).unwrap_or(0);
        Ok(Description {
            name: self.name()?,
            driver: format!("{}.{}", version / 1000, version % 1000 / 10),
            compute_capability: format!("{}.{}", number(MAJOR)?, number(MINOR)?),
            processors: number(PROCESSORS)?.max(1),
            shared_bytes: number(MOST_SHARED_BYTES)?,
            memory_bytes: total,
            free_bytes: free,
            l2_bytes: number(L2_BYTES)?,
            clock_khz: clock(CLOCK_KHZ),
            memory_clock_khz: clock(MEMORY_CLOCK_KHZ),
        })
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<Memory> {
        let mut address = 0;
        // The driver refuses to give nothing.
        call!(self.driver, allocate(&raw mut address, bytes.max(1)))?;
        Ok(Memory { gpu: self.clone(), address, bytes })
    }

    pub(crate) fn function(&self, name: &str) -> Result<Function> {
        let symbol = format!("{name}\0");
        for &module in &self.modules {
            let mut function = null_mut();
            if call!(self.driver, module_function(&raw mut function, module, symbol.as_ptr().cast())).is_ok() {
                return Ok(Function(function));
            }
        }
        Err(DriverError::NoKernel(name.to_owned()))
    }

    /// Queues a kernel with its one parameter.
    pub(crate) fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        threads: u32,
        shared_bytes: usize,
        parameter: &[u8],
    ) -> Result<()> {
        if shared_bytes > USUAL_SHARED_BYTES {
            call!(self.driver, function_set(function.0, SHARED_BYTES, shared_bytes as c_int))?;
        }
        // As aligned as any field of a parameter.
        let mut words: Vec<u64> = parameter.chunks(8).map(word).collect();
        let mut parameters = [words.as_mut_ptr().cast::<c_void>()];
        let [x, y, z] = grid;
        call!(
            self.driver,
            launch(
                function.0,
                x,
                y,
                z,
                threads,
                1,
                1,
                shared_bytes as c_uint,
                null_mut(),
                parameters.as_mut_ptr(),
                null_mut()
            )
        )
    }

    /// Waits for all that was queued.
    pub(crate) fn wait(&self) -> Result<()> {
        call!(self.driver, context_wait())
    }

    /// Marks this moment among what is queued. Events are few, and live as long as the process.
    pub(crate) fn event(&self) -> Result<Event> {
        let mut event = null_mut();
        call!(self.driver, event_create(&raw mut event, 0))?;
        Ok(Event(event))
    }

    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        call!(self.driver, event_record(event.0, null_mut()))
    }

    /// Seconds between two events, once both have come.
    pub(crate) fn seconds(&self, from: &Event, to: &Event) -> Result<f64> {
        let mut milliseconds = 0f32;
        call!(self.driver, event_wait(to.0))?;
        call!(self.driver, event_elapsed(&raw mut milliseconds, from.0, to.0))?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

impl Memory {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Sets every byte.
    pub(crate) fn fill(&self, byte: u8) -> Result<()> {
        call!(self.gpu.driver, fill(self.address, byte, self.bytes))
    }

    /// Writes bytes from `at` on.
    pub(crate) fn write(&self, at: usize, data: &[u8]) -> Result<()> {
        self.bounds(at, data.len());
        if data.is_empty() {
            return Ok(());
        }
        call!(self.gpu.driver, upload(self.address + at as u64, data.as_ptr().cast(), data.len()))
    }

    /// Reads bytes from `at` on, once all that was queued is done.
    pub(crate) fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>> {
        self.bounds(at, bytes);
        let mut data = vec![0u8; bytes];
        if bytes > 0 {
            call!(self.gpu.driver, download(data.as_mut_ptr().cast(), self.address + at as u64, bytes))?;
        }
        Ok(data)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues a copy of as many bytes as both have.
    pub(crate) fn copy_from(&self, other: &Self) -> Result<()> {
        call!(self.gpu.driver, copy(self.address, other.address, self.bytes.min(other.bytes)))
    }

    /// Fills all of it with what its first `bytes` hold, again and again.
    pub(crate) fn repeat(&self, bytes: usize) -> Result<()> {
        let mut done = bytes;
        while done < self.bytes {
            let more = done.min(self.bytes - done);
            call!(self.gpu.driver, copy(self.address + done as u64, self.address, more))?;
            done += more;
        }
        Ok(())
    }

    fn bounds(&self, at: usize, bytes: usize) {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes), "within the memory");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // What fails here has failed before, and was reported.
        let _ = call!(self.gpu.driver, free(self.address));
    }
}
