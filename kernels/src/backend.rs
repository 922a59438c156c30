//! Where ops run: on the CPU, as candle's own ops, or as launches of kernels.

use crate::cuda::{Contents, Launches, Target};
use crate::error::{KernelError, Result};
use crate::launcher::Launcher;
use crate::numbers::{Numbers, StepLists};
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Computes ops whose operands lie on its device.
#[derive(Clone, Debug)]
pub enum Backend {
    /// The CPU's own ops, which read pools where they lie.
    Cpu,
    /// candle's own ops.
    Candle(Device),
    /// Launches of kernels, and candle's own ops where no kernel was made for the operands.
    Launching(Arc<dyn Launcher>),
}

impl From<&Device> for Backend {
    fn from(device: &Device) -> Self {
        match device {
            Device::Cpu => Self::Cpu,
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Self::Launching(Arc::new(crate::cuda::CudaLauncher::new(device))),
            other => Self::Candle(other.clone()),
        }
    }
}

impl From<&Self> for Backend {
    fn from(backend: &Self) -> Self {
        backend.clone()
    }
}

impl Backend {
    /// Opens the CUDA device of that number, on which everything is one stream's, so that steps can be recorded.
    ///
    /// # Errors
    /// A device that does not answer.
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Ok(Self::Launching(Arc::new(crate::cuda::CudaLauncher::open(ordinal)?)))
    }

    /// The device that operands lie on.
    pub fn device(&self) -> Device {
        match self {
            Self::Cpu => Device::Cpu,
            Self::Candle(device) => device.clone(),
            Self::Launching(launcher) => launcher.device(),
        }
    }

    /// Whether ops are launches, as far as there are kernels.
    pub fn launches(&self) -> bool {
        matches!(self, Self::Launching(_))
    }

    /// Begins a step whose lists are on the host alone.
    pub fn run(&self) -> Run<'_> {
        Run { backend: self, uploaded: None, host_read: AtomicBool::new(false) }
    }
}

/// Memory of a device for the lists of a step, whose address never changes.
#[derive(Debug)]
pub struct StepBuffer {
    backend: Backend,
    /// `[words]` of u32.
    memory: Tensor,
}

impl StepBuffer {
    /// Takes memory for so many words.
    ///
    /// # Errors
    /// A device without it.
    pub fn new(words: usize, on: &Backend) -> Result<Self> {
        let memory = Tensor::zeros(words.max(1), DType::U32, &on.device())?;
        Ok(Self { backend: on.clone(), memory })
    }

    /// Words that it has room for.
    pub fn capacity(&self) -> usize {
        self.memory.elem_count()
    }

    /// Brings a step's lists to the device, in one copy.
    ///
    /// # Errors
    /// More words than there is room for; a failing device.
    pub fn upload(&mut self, lists: &StepLists) -> Result<()> {
        let (words, room) = (lists.words().len(), self.capacity());
        if words > room {
            return Err(KernelError::Argument {
                op: "step buffer",
                reason: format!("{words} words, and room for {room}"),
            });
        }
        match &self.backend {
            Backend::Launching(launcher) => launcher.upload(&self.memory, lists.words()),
            Backend::Cpu | Backend::Candle(_) => Ok(()),
        }
    }

    /// Begins a step whose lists were uploaded last, or were of the same lengths.
    pub fn run(&self) -> Run<'_> {
        Run { uploaded: Some(&self.memory), ..self.backend.run() }
    }
}

/// One step on a backend, which every op of it is given.
#[derive(Debug)]
pub struct Run<'a> {
    backend: &'a Backend,
    /// Where the step's lists were uploaded.
    uploaded: Option<&'a Tensor>,
    host_read: AtomicBool,
}

/// What candle's own ops, in place of a kernel, have to do with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// They read lists of the step there, or tell it results.
    OnHost,
    /// Nothing: a step with them can be recorded.
    OnDevice,
}

impl Run<'_> {
    /// Where it runs.
    pub fn backend(&self) -> &Backend {
        self.backend
    }

    /// Notes that the host told an op something that is in no uploaded list, or was told something.
    pub fn note_host_read(&self) {
        self.host_read.store(true, Ordering::Relaxed);
    }

    /// Whether the host had no part in the step, so that it can be recorded.
    pub fn is_recordable(&self) -> bool {
        !self.host_read.load(Ordering::Relaxed)
    }

    /// A list as a tensor on the device: where it was uploaded, or uploaded now.
    ///
    /// # Errors
    /// A failing device.
    pub fn tensor(&self, list: Numbers<'_, u32>) -> candle_core::Result<Tensor> {
        match (list.place(), self.uploaded) {
            ((Some(word), words), Some(memory)) if words > 0 => memory.narrow(0, word, words),
            _ => {
                self.note_host_read();
                Tensor::new(list.host(), &self.backend.device())
            }
        }
    }

    /// Whether the CPU's ops read tensors where they lie.
    pub(crate) fn reads_in_place(&self) -> bool {
        matches!(self.backend, Backend::Cpu)
    }

    /// Computes an op by whichever of its forms the backend has.
    pub(crate) fn compute<'o, T: Outputs>(
        &self,
        op: &'static str,
        fallback: Fallback,
        launches: impl FnOnce(&Target) -> Option<Launches<'o>>,
        cpu: impl FnOnce() -> Result<T>,
        portable: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let launcher = match self.backend {
            Backend::Cpu => return cpu(),
            Backend::Candle(_) => return portable(),
            Backend::Launching(launcher) => launcher,
        };
        let target = launcher.target()?;
        if let Some(mut launches) = launches(&target).filter(|made| made.fit(&target)) {
            self.place(&mut launches)?;
            let given = T::of(launcher.launch(op, &launches)?);
            return given.ok_or_else(|| candle_core::Error::Msg(format!("{op}: an output is missing")).into());
        }
        launcher.without_kernel(op)?;
        if fallback == Fallback::OnHost {
            self.note_host_read();
        }
        portable()
    }

    /// Points launches to the lists that were uploaded. What else they are told of the step is uploaded with them.
    pub(crate) fn place(&self, launches: &mut Launches<'_>) -> Result<()> {
        for buffer in &mut launches.buffers {
            let list = match &buffer.contents {
                Contents::Indices(numbers) => numbers.place(),
                Contents::Lengths(numbers) => numbers.place(),
                Contents::Slots(numbers) => numbers.place(),
                Contents::Pairs(pairs) => (None, pairs.len()),
                Contents::Floats(numbers) => match numbers.place() {
                    // They belong to the op, and are the same in every step.
                    (None, _) => continue,
                    listed => listed,
                },
                _ => continue,
            };
            match (list, self.uploaded) {
                // What is empty is the same in every step.
                ((_, 0), _) => {}
                ((Some(word), words), Some(memory)) => {
                    buffer.contents = Contents::Uploaded(memory.narrow(0, word, words)?);
                }
                _ => self.note_host_read(),
            }
        }
        Ok(())
    }
}

/// What an op gives, made of the outputs of its launches.
pub(crate) trait Outputs: Sized {
    fn of(outputs: Vec<Tensor>) -> Option<Self>;
}

impl Outputs for () {
    fn of(_: Vec<Tensor>) -> Option<Self> {
        Some(())
    }
}

impl Outputs for Tensor {
    fn of(outputs: Vec<Tensor>) -> Option<Self> {
        outputs.into_iter().next()
    }
}

impl Outputs for (Tensor, Tensor) {
    fn of(outputs: Vec<Tensor>) -> Option<Self> {
        let mut outputs = outputs.into_iter();
        Some((outputs.next()?, outputs.next()?))
    }
}

impl Outputs for (Tensor, Option<Tensor>) {
    fn of(outputs: Vec<Tensor>) -> Option<Self> {
        let mut outputs = outputs.into_iter();
        Some((outputs.next()?, outputs.next()))
    }
}
