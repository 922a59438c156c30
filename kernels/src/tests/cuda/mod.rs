//! The CUDA kernels, executed by the emulator, against the references.
//!
//! They need the PTX that `cargo xtask cuda-prove` makes, and are run by it.

mod attention;
mod conv1d;
mod mamba2;
mod pool;

use super::Random;
use crate::PoolRows;
use crate::cuda::{Contents, Launches};
use cacheplan_emulator::{BufferId, Device, Kernel, Module, Options, Run, Shape};
use candle_core::{CpuStorage, DType, Device as Place, Storage, Tensor};
use half::{bf16, f16};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The folder of the PTX files, and in it `proven` with a file for each kernel that was executed.
fn folder() -> PathBuf {
    std::env::var("CACHEPLAN_CUDA_PTX").expect("CACHEPLAN_CUDA_PTX: run `cargo xtask cuda-prove`").into()
}

/// Whether all shapes and mutants are wanted, or a sample of them.
fn prove_all() -> bool {
    std::env::var_os("CACHEPLAN_PROVE_ALL").is_some()
}

/// The kernels of all files by their names.
fn kernels() -> &'static HashMap<String, Kernel> {
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
struct Emulated {
    outputs: Vec<Tensor>,
    runs: Vec<Run>,
}

/// Executes launches over CPU tensors: pools are changed in place, outputs are new.
fn emulate(launches: &Launches<'_>, options: &Options) -> Emulated {
    let emulated = execute(launches, options, |kernel| kernels()[kernel].clone());
    for (launch, run) in launches.launches.iter().zip(&emulated.runs) {
        let reports: Vec<String> = run.reports.iter().map(ToString::to_string).collect();
        assert!(reports.is_empty(), "{} {:?}:\n{}", launch.kernel, launch.grid, reports.join("\n"));
        std::fs::write(folder().join("proven").join(&launch.kernel), "").unwrap();
    }
    emulated
}

/// As [`emulate`], whatever is reported, over the kernels that `kernel` names.
fn execute(launches: &Launches<'_>, options: &Options, kernel: impl Fn(&str) -> Kernel) -> Emulated {
    let mut device = Device::new();
    let buffers: Vec<BufferId> = launches
        .buffers
        .iter()
        .map(|buffer| match &buffer.contents {
            Contents::Input(tensor) => device.input(buffer.name, &span(tensor), tensor.dtype().size_in_bytes()),
            Contents::Indices(values) => device.input(buffer.name, &values.map_bytes(|value| value.to_le_bytes()), 4),
            Contents::Lengths(values) => device.input(buffer.name, &values.map_bytes(|value| value.to_le_bytes()), 4),
            Contents::Pairs(pairs) => {
                let words: Vec<u32> = pairs.iter().flat_map(|&(from, to)| [from, to]).collect();
                device.input(buffer.name, &words.map_bytes(|word| word.to_le_bytes()), 4)
            }
            Contents::Floats(values) => device.input(buffer.name, &values.map_bytes(|value| value.to_le_bytes()), 4),
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
fn span(tensor: &Tensor) -> Vec<u8> {
    let (storage, layout) = tensor.storage_and_layout();
    let start = layout.start_offset();
    let steps = layout.dims().iter().zip(layout.stride()).map(|(dim, stride)| dim.saturating_sub(1) * stride);
    let range = start..start + if tensor.elem_count() == 0 { 0 } else { steps.sum::<usize>() + 1 };
    let Storage::Cpu(storage) = &*storage else { panic!("the emulator's tensors lie on the CPU") };
    match storage {
        CpuStorage::U8(data) => data[range].to_vec(),
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

/// Random values in a dtype.
fn random(random: &mut Random, shape: &[usize], dtype: DType) -> Tensor {
    random.tensor(shape).to_dtype(dtype).unwrap()
}

/// The elements of some rows.
fn part<'a>(data: &'a [f64], rows: &Range<usize>, width: usize) -> &'a [f64] {
    &data[rows.start * width..rows.end * width]
}

/// Orders of blocks and warps, with and without moved approximations.
fn schedules() -> impl Iterator<Item = Options> {
    let all = [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3)];
    let count = if prove_all() { all.len() } else { 2 };
    // The first is plain, so that a mistake in it is easy to follow; then all is mixed.
    all.into_iter().rev().take(count).map(|(order, perturb)| Options { order, perturb, early_copies: false })
}

/// Takes out each barrier, wait and commit of the kernels in turn, and wants each of these mutants reported.
///
/// `equivalent` holds the lines without which a kernel is as good, each with the reason.
fn prove_mutants(launches: &Launches<'_>, equivalent: &[(&str, &str)]) {
    for launch in &launches.launches {
        let kernel = &kernels()[&launch.kernel];
        for (at, text) in kernel.synchronisations() {
            let mutant = |name: &str| if name == launch.kernel { kernel.without(at) } else { kernels()[name].clone() };
            let found = execute(launches, &Options::default(), mutant).runs.iter().any(|run| !run.reports.is_empty());
            let excused = equivalent.iter().any(|(line, _)| text.contains(line));
            assert!(found != excused, "{} without {text}: reported {found}, excused {excused}", launch.kernel);
        }
    }
}

/// Caps on what a kernel asks of memory, at a shape that is large enough to say something.
fn assert_traffic(emulated: &Emulated, warp_instructions_per_kib: f64) {
    for run in &emulated.runs {
        let stats = &run.stats;
        assert!(stats.sector_ratio() <= 1.02, "{} of {} sectors", stats.sectors, stats.ideal_sectors);
        let found = stats.warp_instructions_per_kib();
        assert!(found <= warp_instructions_per_kib, "{found:.1} warp instructions per KiB: {stats:?}");
    }
}
