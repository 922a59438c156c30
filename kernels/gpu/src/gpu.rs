//! Launches on a device, through the driver alone.

use crate::driver::{DriverError, Event, Function, Gpu, Memory};
use crate::emulated::{Held, give_back, held, range};
use crate::machine::{Cost, Fault, Machine, Ran};
use cacheplan_kernels::{Contents, Launches, Target};
use candle_core::{DType, Tensor};
use half::{bf16, f16};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Bytes in front of each buffer and behind it that no kernel may write.
const GUARD: usize = 256;
/// What memory holds that nobody has written: no number in any format of floats, and -1.
const POISON: u8 = 0xff;

/// A device as it is checked: every buffer between guards, and nothing in it but what launches were given.
pub(crate) struct Checked {
    gpu: Gpu,
    target: Target,
}

/// A device as it is measured: each op again and again, with nothing of its memory in the caches.
pub(crate) struct Measured {
    gpu: Gpu,
    target: Target,
    flush: Flush,
    /// Those that were looked up.
    functions: Mutex<HashMap<String, Function>>,
}

impl From<DriverError> for Fault {
    fn from(error: DriverError) -> Self {
        Self(error.to_string())
    }
}

impl Checked {
    pub(crate) fn new(gpu: Gpu, target: Target) -> Self {
        Self { gpu, target }
    }
}

impl Machine for Checked {
    fn target(&self) -> Target {
        self.target
    }

    fn execute(&self, launches: &Launches<'_>) -> Result<Ran, Fault> {
        self.gpu.enter()?;
        let mut memory = Vec::with_capacity(launches.buffers.len());
        for buffer in &launches.buffers {
            let Held { bytes, data, .. } = held(&buffer.contents);
            let guarded = self.gpu.allocate(bytes + 2 * GUARD)?;
            guarded.fill(POISON)?;
            guarded.write(GUARD, &data.unwrap_or_default())?;
            memory.push((guarded, bytes));
        }
        for launch in launches.launches.iter().filter(|launch| !launch.grid.contains(&0)) {
            let parameter = launch.parameter(|buffer| memory[buffer].0.address() + GUARD as u64);
            let function = self.gpu.function(&launch.kernel)?;
            self.gpu.launch(function, launch.grid, launch.threads, launch.shared_bytes, &parameter)?;
        }
        self.gpu.wait()?;
        let mut found = Vec::with_capacity(memory.len());
        for (buffer, (memory, bytes)) in launches.buffers.iter().zip(&memory) {
            let whole = memory.read(0, bytes + 2 * GUARD)?;
            let (front, rest) = whole.split_at(GUARD);
            let (data, behind) = rest.split_at(*bytes);
            let around = if front.iter().chain(behind).all(|&byte| byte == POISON) { None } else { Some("around ") };
            let inside = held_still(&buffer.contents, data);
            if let Some(place) = around.or((!inside).then_some("")) {
                return Err(Fault(format!("something was written {place}{}, which is only read", buffer.name)));
            }
            found.push(data.to_vec());
        }
        Ok(Ran { outputs: give_back(launches, |at, _| std::mem::take(&mut found[at])), cost: Cost::default() })
    }
}

/// Whether a buffer that is only read still holds what it was given.
fn held_still(contents: &Contents<'_>, data: &[u8]) -> bool {
    match contents {
        Contents::Pool(_) | Contents::Scratch(_) | Contents::Output(..) => true,
        input => held(input).data.is_none_or(|given| given == data),
    }
}

/// Calls that are timed, of which the median counts, after as many that are not as bring clocks up.
const REPEATS: usize = 30;
const WARM_UP: usize = 5;

impl Measured {
    pub(crate) fn new(gpu: Gpu, target: Target, l2_bytes: usize) -> Result<Self, Fault> {
        let flush = Flush::new(&gpu, target.processors, l2_bytes)?;
        Ok(Self { gpu, target, flush, functions: Mutex::default() })
    }

    /// Median seconds of what `work` queues.
    pub(crate) fn time(&self, mut work: impl FnMut() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        let (start, end): (Event, Event) = (self.gpu.event()?, self.gpu.event()?);
        let mut times = Vec::with_capacity(REPEATS);
        for repeat in 0..WARM_UP + REPEATS {
            // While this runs, all that follows is queued: no launch waits for the host.
            self.flush.run(&self.gpu)?;
            self.gpu.record(&start)?;
            work()?;
            self.gpu.record(&end)?;
            let seconds = self.gpu.seconds(&start, &end)?;
            if repeat >= WARM_UP {
                times.push(seconds);
            }
        }
        Ok(median(&mut times))
    }

    /// Seconds in which the driver itself copies so many bytes.
    pub(crate) fn driver_copy(&self, bytes: usize) -> Result<f64, Fault> {
        let (from, to) = (self.gpu.allocate(bytes)?, self.gpu.allocate(bytes)?);
        from.fill(0x3c)?;
        Ok(self.time(|| to.copy_from(&from))?)
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn function(&self, name: &str) -> Result<Function, DriverError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = functions.get(name) {
            return Ok(function);
        }
        let function = self.gpu.function(name)?;
        functions.insert(name.to_owned(), function);
        Ok(function)
    }
}

impl Machine for Measured {
    fn target(&self) -> Target {
        self.target
    }

    /// Pools and outputs stay on the device: outputs come back as zeros.
    fn execute(&self, launches: &Launches<'_>) -> Result<Ran, Fault> {
        self.gpu.enter()?;
        let mut memory = Vec::with_capacity(launches.buffers.len());
        let mut outputs = Vec::new();
        for buffer in &launches.buffers {
            memory.push(match &buffer.contents {
                Contents::Input(tensor) | Contents::Pool(tensor) => numbers(&self.gpu, tensor)?,
                contents => {
                    let Held { bytes, data, .. } = held(contents);
                    let memory = self.gpu.allocate(bytes)?;
                    memory.write(0, &data.unwrap_or_default())?;
                    memory
                }
            });
            if let Contents::Output(dtype, shape) = &buffer.contents {
                let zeros = Tensor::zeros(shape.as_slice(), *dtype, &candle_core::Device::Cpu);
                outputs.push(zeros.map_err(|error| Fault(error.to_string()))?);
            }
        }
        let mut queued = Vec::new();
        for launch in launches.launches.iter().filter(|launch| !launch.grid.contains(&0)) {
            let parameter = launch.parameter(|buffer| memory[buffer].address());
            queued.push((self.function(&launch.kernel)?, launch, parameter));
        }
        let seconds = self.time(|| {
            queued.iter().try_for_each(|(function, launch, parameter)| {
                self.gpu.launch(*function, launch.grid, launch.threads, launch.shared_bytes, parameter)
            })
        })?;
        Ok(Ran { outputs, cost: Cost { seconds: Some(seconds), counts: None } })
    }
}

/// A tensor's memory on the device with numbers between -1 and 1 that repeat: what a host would upload for long.
fn numbers(gpu: &Gpu, tensor: &Tensor) -> Result<Memory, DriverError> {
    const PATTERN: usize = 1 << 16;
    let mut state = 1u32;
    let mut numbers = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    let bytes: Vec<u8> = match tensor.dtype() {
        DType::F32 => numbers.by_ref().take(PATTERN).flat_map(f32::to_le_bytes).collect(),
        DType::F16 => numbers.by_ref().take(PATTERN).flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
        DType::BF16 => numbers.by_ref().take(PATTERN).flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
        // Numbers of experts.
        DType::U32 => (0..PATTERN as u32).flat_map(|at| (at % 64).to_le_bytes()).collect(),
        // Any code of 8 bits below the one that is no number.
        _ => numbers.by_ref().take(PATTERN).map(|x| (x * 60.0 + 60.0) as u8).collect(),
    };
    let memory = gpu.allocate(range(tensor).len() * tensor.dtype().size_in_bytes())?;
    let known = bytes.len().min(memory.bytes());
    memory.write(0, &bytes[..known])?;
    memory.repeat(known)?;
    Ok(memory)
}

pub(crate) fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Reads more than the second-level cache holds, so that it has nothing else, and nothing that it still has to write.
struct Flush {
    function: Function,
    memory: Memory,
    sum: Memory,
    blocks: u32,
}

impl Flush {
    const THREADS: u32 = 256;

    fn new(gpu: &Gpu, processors: usize, l2_bytes: usize) -> Result<Self, DriverError> {
        let memory = gpu.allocate((4 * l2_bytes).max(256 << 20).next_multiple_of(16))?;
        memory.fill(0)?;
        let blocks = 8 * processors as u32;
        Ok(Self { function: gpu.function("read_memory")?, memory, sum: gpu.allocate(4)?, blocks })
    }

    fn run(&self, gpu: &Gpu) -> Result<(), DriverError> {
        let mut parameter = Vec::with_capacity(24);
        for word in [self.memory.address(), self.sum.address(), self.memory.bytes() as u64 / 16] {
            parameter.extend(word.to_le_bytes());
        }
        gpu.launch(self.function, [self.blocks, 1, 1], Self::THREADS, 0, &parameter)
    }
}
