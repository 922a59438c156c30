//! Launches in the emulator, over tensors on the CPU. The proofs of the kernels and those of whole models share it.

use super::{Contents, Launches, PoolRows};
use cacheplan_emulator::{BufferId, Device, Kernel, Module, Options, Run, Shape};
use candle_core::{CpuStorage, Device as Place, Storage, Tensor};
use half::{bf16, f16};
use std::collections::HashMap;
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
        .map(|buffer| match &buffer.contents {
            Contents::Input(tensor) => device.input(buffer.name, &span(tensor), tensor.dtype().size_in_bytes()),
            Contents::Indices(values) => device.input(buffer.name, &values.map_bytes(|value| value.to_le_bytes()), 4),
            Contents::Lengths(values) => device.input(buffer.name, &values.map_bytes(|value| value.to_le_bytes()), 4),
            Contents::Slots(values) => device.input(buffer.name, &values.map_bytes(|value| value.to_le_bytes()), 8),
            Contents::Pairs(pairs) => {
                let words: Vec<u32> = pairs.iter().flat_map(|&(from, to)| [from, to]).collect();
                device.input(buffer.name, &words.map_bytes(|word| word.to_le_bytes()), 4)
            }
            Contents::Floats(values) => device.input(buffer.name, &values.map_bytes(|value| value.to_le_bytes()), 4),
            Contents::Uploaded(words) => device.input(buffer.name, &span(words), 4),
            Contents::Scratch(elements) => device.buffer(buffer.name, *elements as u64 * 4, 4),
            Contents::Pool(tensor) => {
                let data = span(tensor);
                let id = device.buffer(buffer.name, data.len() as u64, tensor.dtype().size_in_bytes());
                device.upload(id, 0, &data);
                id
            }
            Contents::Output(dtype, shape) => {
                let bytes = shape.iter().product::<usize>() * dtype.size_in_bytes();
                device.buffer(buffer.name, bytes as u64, dtype.size_in_bytes())
            }
        })
        .collect();
    let mut runs = Vec::new();
    for launch in &launches.launches {
        let shape = Shape { grid: launch.grid, block: [launch.threads, 1, 1], shared_bytes: launch.shared_bytes };
        let parameter = launch.parameter(|buffer| device.address(buffers[buffer]));
        runs.push(device.run(&kernel(&launch.kernel), &shape, &parameter, options).unwrap());
    }
    let mut outputs = Vec::new();
    for (buffer, &id) in launches.buffers.iter().zip(&buffers) {
        match &buffer.contents {
            Contents::Output(dtype, shape) => {
                let bytes = shape.iter().product::<usize>() * dtype.size_in_bytes();
                let (data, written) = device.download(id, 0, bytes);
                assert!(written, "all of {} is written", buffer.name);
                outputs.push(Tensor::from_raw_buffer(&data, *dtype, shape, &Place::Cpu).unwrap());
            }
            Contents::Pool(pool) => {
                let (data, _) = device.download(id, 0, pool.elem_count() * pool.dtype().size_in_bytes());
                let data = Tensor::from_raw_buffer(&data, pool.dtype(), pool.dims(), &Place::Cpu).unwrap();
                let rows: Vec<u32> = (0..pool.dims()[0] as u32).collect();
                PoolRows(pool).scatter(&rows, &data).unwrap();
            }
            _ => {}
        }
    }
    Emulated { outputs, runs }
}

/// The bytes of a tensor's memory from its first element to its last.
pub(super) fn span(tensor: &Tensor) -> Vec<u8> {
    let (storage, layout) = tensor.storage_and_layout();
    let start = layout.start_offset();
    let steps = layout.dims().iter().zip(layout.stride()).map(|(dim, stride)| dim.saturating_sub(1) * stride);
    let range = start..start + if tensor.elem_count() == 0 { 0 } else { steps.sum::<usize>() + 1 };
    let Storage::Cpu(storage) = &*storage else { panic!("the emulator's tensors lie on the CPU") };
    match storage {
        CpuStorage::U8(data) => data[range].to_vec(),
        CpuStorage::U32(data) => data[range].map_bytes(|value| value.to_le_bytes()),
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
