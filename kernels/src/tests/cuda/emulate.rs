//! Launches in the emulator, over tensors on the CPU. The proofs of the kernels and those of whole models share it.

use super::{Buffer, Contents, Launches, PoolRows};
use cacheplan_emulator::{BufferId, Device, Kernel, Module, Options, Run, Shape};
use candle_core::{CpuStorage, Device as Place, Storage, Tensor};
use half::{bf16, f16};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The folder of the PTX files, and in it `proven` with a file for each kernel that was executed.
pub(super) fn folder() -> PathBuf {
    std::env::var("CACHEPLAN_CUDA_PTX").expect("CACHEPLAN_CUDA_PTX: run `cargo xtask cuda-prove`").into()
}

/// The kernels of all files by their names.
pub(super) fn kernels() -> &'static HashMap<String, Kernel> {
    static KERNELS: OnceLock<HashMap<String, Kernel>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
        let mut kernels = HashMap::new();
        for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "ptx")) {
            let module = Module::parse(&std::fs::read_to_string(&file).unwrap())
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            kernels.extend(module.kernels.into_iter().map(|kernel| (kernel.name.clone(), kernel)));
        }
        kernels
    })
}

/// What launches did.
pub(super) struct Emulated {
    pub(super) outputs: Vec<Tensor>,
    pub(super) runs: Vec<Run>,
}

/// Executes launches over CPU tensors with the kernels that `kernel` names, whatever is reported: pools are changed in
/// place, outputs are new.
pub(super) fn execute(launches: &Launches<'_>, options: &Options, kernel: impl Fn(&str) -> Kernel) -> Emulated {
    let mut device = Device::new();
    let buffers: Vec<BufferId> = launches
        .buffers
        .iter()
        .map(|buffer| {
            let Held { bytes, element, data } = held(&buffer.contents);
            match (&buffer.contents, data) {
                (Contents::Pool(_), Some(data)) => {
                    let id = device.buffer(buffer.name, bytes as u64, element);
                    device.upload(id, 0, &data);
                    id
                }
                (_, Some(data)) => device.input(buffer.name, &data, element),
                (_, None) => device.buffer(buffer.name, bytes as u64, element),
            }
        })
        .collect();
    let mut runs = Vec::new();
    for launch in &launches.launches {
        let shape = Shape { grid: launch.grid, block: [launch.threads, 1, 1], shared_bytes: launch.shared_bytes };
        let parameter = launch.parameter(|buffer| device.address(buffers[buffer]));
        runs.push(device.run(&kernel(&launch.kernel), &shape, &parameter, options).unwrap());
    }
    let outputs = give_back(launches, |at, bytes| {
        let (data, written) = device.download(buffers[at], 0, bytes);
        let Buffer { name, contents } = &launches.buffers[at];
        assert!(written || !matches!(contents, Contents::Output(..)), "all of {name} is written");
        data
    });
    Emulated { outputs, runs }
}

/// What a buffer holds before its launches.
pub(crate) struct Held {
    pub(crate) bytes: usize,
    /// Bytes of an element.
    pub(crate) element: usize,
    /// None where a kernel writes it first.
    pub(crate) data: Option<Vec<u8>>,
}

pub(crate) fn held(contents: &Contents<'_>) -> Held {
    let (element, data) = match contents {
        Contents::Input(tensor) | Contents::Pool(tensor) => (tensor.dtype().size_in_bytes(), span(tensor)),
        Contents::Indices(values) => (4, values.map_bytes(|value| value.to_le_bytes())),
        Contents::Lengths(values) => (4, values.map_bytes(|value| value.to_le_bytes())),
        Contents::Slots(values) => (8, values.map_bytes(|value| value.to_le_bytes())),
        Contents::Pairs(pairs) => {
            (4, pairs.iter().flat_map(|&(from, to)| [from, to]).flat_map(u32::to_le_bytes).collect())
        }
        Contents::Floats(values) => (4, values.map_bytes(|value| value.to_le_bytes())),
        Contents::Uploaded(words) => (4, span(words)),
        Contents::Scratch(elements) => return Held { bytes: elements * 4, element: 4, data: None },
        Contents::Output(dtype, shape) => {
            let element = dtype.size_in_bytes();
            return Held { bytes: shape.iter().product::<usize>() * element, element, data: None };
        }
    };
    Held { bytes: data.len(), element, data: Some(data) }
}

/// The outputs of launches, and their pools as they are afterwards. `download` reads so many bytes of a buffer.
pub(crate) fn give_back(launches: &Launches<'_>, mut download: impl FnMut(usize, usize) -> Vec<u8>) -> Vec<Tensor> {
    let mut outputs = Vec::new();
    for (at, buffer) in launches.buffers.iter().enumerate() {
        match &buffer.contents {
            Contents::Output(dtype, shape) => {
                let data = download(at, shape.iter().product::<usize>() * dtype.size_in_bytes());
                outputs.push(Tensor::from_raw_buffer(&data, *dtype, shape, &Place::Cpu).unwrap());
            }
            Contents::Pool(pool) => {
                let data = download(at, pool.elem_count() * pool.dtype().size_in_bytes());
                let data = Tensor::from_raw_buffer(&data, pool.dtype(), pool.dims(), &Place::Cpu).unwrap();
                let rows: Vec<u32> = (0..pool.dims()[0] as u32).collect();
                PoolRows(pool).scatter(&rows, &data).unwrap();
            }
            _ => {}
        }
    }
    outputs
}

/// The elements of a tensor's memory from its first to its last.
pub(crate) fn range(tensor: &Tensor) -> Range<usize> {
    let layout = tensor.layout();
    let start = layout.start_offset();
    let steps = layout.dims().iter().zip(layout.stride()).map(|(dim, stride)| dim.saturating_sub(1) * stride);
    start..start + if tensor.elem_count() == 0 { 0 } else { steps.sum::<usize>() + 1 }
}

/// The bytes of a tensor's memory from its first element to its last.
pub(super) fn span(tensor: &Tensor) -> Vec<u8> {
    let range = range(tensor);
    let (storage, _) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { panic!("the emulator's tensors lie on the CPU") };
    match storage {
        CpuStorage::U8(data) => data[range].to_vec(),
        CpuStorage::U32(data) => data[range].map_bytes(|value| value.to_le_bytes()),
        CpuStorage::I32(data) => data[range].map_bytes(|value| value.to_le_bytes()),
        CpuStorage::F8E4M3(data) => data[range].map_bytes(|value| [value.to_bits()]),
        CpuStorage::F16(data) => data[range].map_bytes(|value: &f16| value.to_le_bytes()),
        CpuStorage::BF16(data) => data[range].map_bytes(|value: &bf16| value.to_le_bytes()),
        CpuStorage::F32(data) => data[range].map_bytes(|value| value.to_le_bytes()),
        _ => panic!("{:?}", tensor.dtype()),
    }
}

trait MapBytes<T> {
    fn map_bytes<const N: usize>(&self, bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8>;
}

impl<T> MapBytes<T> for [T] {
    fn map_bytes<const N: usize>(&self, bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
        self.iter().flat_map(bytes).collect()
    }
}
