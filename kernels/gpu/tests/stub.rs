//! A stand-in for NVIDIA's driver, `libcuda.so.1`: memory and kernels are the emulator's.
//!
//! What it does not know it refuses, so that the calls of the runner are held to `cuda.h` as far as they go. With
//! `STUB=idle` it takes every launch and runs none, with `STUB=old` it is a driver of CUDA 12.8, with `STUB=bare` it has
//! no device.
#![allow(
    unsafe_code,
    missing_docs,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    reason = "a C library for tests, whose pointers are what `cuda.h` says"
)]

use cacheplan_emulator::{BufferId, Device, Kernel, Module, Options, Shape};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex};

struct Compiled {
    #[allow(dead_code, reason = "what the runner says of modules")]
    name: &'static str,
    binary: &'static [u8],
    ptx: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

const OK: c_int = 0;
const INVALID_VALUE: c_int = 1;
const NOT_FOUND: c_int = 500;
const ILLEGAL_ADDRESS: c_int = 700;

#[derive(Default)]
struct State {
    device: Device,
    /// By the upper part of addresses.
    buffers: HashMap<u64, (BufferId, u64)>,
    kernels: Vec<Kernel>,
    modules: Vec<Vec<String>>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

fn mode(name: &str) -> bool {
    std::env::var("STUB").is_ok_and(|stub| stub == name)
}

impl State {
    /// The buffer that so many bytes from an address on lie in, and where.
    fn find(&self, address: u64, bytes: usize) -> Option<(BufferId, u64)> {
        let (start, (id, size)) =
            self.buffers.iter().find(|(start, (_, size))| (**start..**start + size.max(&1)).contains(&address))?;
        let offset = address - start;
        (offset + bytes as u64 <= *size).then_some((*id, offset))
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> c_int {
    if flags == 0 { OK } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = if mode("old") { 12_080 } else { 13_000 } };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_int, name: *mut *const c_char) -> c_int {
    let text = match code {
        ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        _ => c"CUDA_ERROR_INVALID_VALUE",
    };
    unsafe { *name = text.as_ptr() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> c_int {
    unsafe { cuGetErrorName(code, text) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    unsafe { *count = c_int::from(!mode("bare")) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, number: c_int) -> c_int {
    unsafe { *device = 40 + number };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) -> c_int {
    let text = c"Stub".to_bytes_with_nul();
    if device != 40 || (bytes as usize) < text.len() {
        return INVALID_VALUE;
    }
    unsafe { text.as_ptr().cast::<c_char>().copy_to(name, text.len()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    let found = match attribute {
        16 => 32,
        38 => 1 << 20,
        97 => 227 << 10,
        75 => 9,
        76 => 0,
        13 | 36 => 1_000_000,
        _ => return INVALID_VALUE,
    };
    unsafe { *value = found };
    if device == 40 { OK } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
    unsafe { *context = 50 as *mut c_void };
    if device == 40 { OK } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> c_int {
    if context as usize == 50 { OK } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    unsafe { (*free, *total) = (1 << 33, 1 << 34) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> c_int {
    // The image is one of those that the runner has.
    let given = |binary: &[u8]| unsafe { std::slice::from_raw_parts(image.cast::<u8>(), binary.len()) } == binary;
    let mut by_size: Vec<&Compiled> = MODULES.iter().collect();
    by_size.sort_by_key(|module| module.binary.len());
    let Some(found) = by_size.into_iter().find(|module| given(module.binary)) else { return INVALID_VALUE };
    let state = &mut *STATE.lock().unwrap();
    let kernels = Module::parse(found.ptx).unwrap().kernels;
    state.modules.push(kernels.iter().map(|kernel| kernel.name.clone()).collect());
    state.kernels.extend(kernels);
    unsafe { *module = state.modules.len() as *mut c_void };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> c_int {
    let state = STATE.lock().unwrap();
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    if !state.modules[module as usize - 1].iter().any(|kernel| kernel == name) {
        return NOT_FOUND;
    }
    let at = state.kernels.iter().position(|kernel| kernel.name == name).unwrap();
    unsafe { *function = (at + 1) as *mut c_void };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) -> c_int {
    if function.is_null() || attribute != 8 || value <= 48 << 10 { INVALID_VALUE } else { OK }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    if bytes == 0 {
        return INVALID_VALUE;
    }
    let state = &mut *STATE.lock().unwrap();
    let id = state.device.buffer("memory", bytes as u64, 1);
    let start = state.device.address(id);
    state.buffers.insert(start, (id, bytes as u64));
    unsafe { *address = start };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    if STATE.lock().unwrap().buffers.remove(&address).is_some() { OK } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_int {
    let state = &mut *STATE.lock().unwrap();
    let Some((id, offset)) = state.find(to, bytes) else { return INVALID_VALUE };
    state.device.upload(id, offset, unsafe { std::slice::from_raw_parts(from.cast(), bytes) });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_int {
    let state = &mut *STATE.lock().unwrap();
    let Some((id, offset)) = state.find(from, bytes) else { return INVALID_VALUE };
    let (data, _) = state.device.download(id, offset, bytes);
    unsafe { data.as_ptr().copy_to(to.cast(), bytes) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> c_int {
    let state = &mut *STATE.lock().unwrap();
    let (Some(to), Some(from)) = (state.find(to, bytes), state.find(from, bytes)) else { return INVALID_VALUE };
    if !mode("idle") {
        let (data, _) = state.device.download(from.0, from.1, bytes);
        state.device.upload(to.0, to.1, &data);
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, byte: u8, bytes: usize) -> c_int {
    let state = &mut *STATE.lock().unwrap();
    let Some((id, offset)) = state.find(to, bytes) else { return INVALID_VALUE };
    if bytes < 1 << 24 {
        state.device.upload(id, offset, &vec![byte; bytes]);
    }
    OK
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "as in cuda.h")]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    x: c_uint,
    y: c_uint,
    z: c_uint,
    threads: c_uint,
    rows: c_uint,
    layers: c_uint,
    shared_bytes: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    let state = &mut *STATE.lock().unwrap();
    if !stream.is_null() || !extra.is_null() || function.is_null() || x * y * z == 0 {
        return INVALID_VALUE;
    }
    if mode("idle") {
        return OK;
    }
    let kernel = state.kernels[function as usize - 1].clone();
    let parameter = unsafe { std::slice::from_raw_parts((*parameters).cast::<u8>(), kernel.param_bytes) };
    let shape = Shape { grid: [x, y, z], block: [threads, rows, layers], shared_bytes: shared_bytes as usize };
    match state.device.run(&kernel, &shape, parameter, &Options::default()) {
        Ok(run) if run.reports.is_empty() => OK,
        Ok(_) => ILLEGAL_ADDRESS,
        Err(_) => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, flags: c_uint) -> c_int {
    unsafe { *event = 60 as *mut c_void };
    if flags == 0 { OK } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> c_int {
    if event as usize == 60 && stream.is_null() { OK } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: *mut c_void) -> c_int {
    if event as usize == 60 { OK } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: *mut c_void, to: *mut c_void) -> c_int {
    unsafe { *milliseconds = 0.5 };
    if from as usize == 60 && to as usize == 60 { OK } else { INVALID_VALUE }
}
