//! A step's metadata in memory of the device that stays where it is.
//!
//! Ops are told of a step by slices on the host. [`DeviceBatch`] holds the same numbers on the device: they are uploaded
//! once a step, in one copy, and lie at the same addresses in every step of the same lengths. While it lends them,
//! launches whose operands are those slices read what lies on the device instead. Slices are known by where they lie on
//! the host, which cannot change as long as they are borrowed, so that no op needs a second form of its operands.
//!
//! A recorded step is told nothing else. Whatever the host tells an op besides is noted, so that such a step is never
//! recorded.

use super::{Contents, Launches};
use crate::Rope;
use crate::error::{KernelError, Result};
use crate::ops::rope::RopeTable;
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const OP: &str = "device batch";

/// Words of 16 bytes: each part begins at a multiple.
const ALIGNMENT: usize = 4;

/// Numbers of a step.
#[derive(Clone, Copy, Debug)]
enum Numbers<'a> {
    Indices(&'a [i32]),
    Lengths(&'a [u32]),
    Slots(&'a [i64]),
    Floats(&'a [f32]),
}

impl Numbers<'_> {
    /// Where they lie on the host.
    fn addresses(&self) -> Range<usize> {
        match self {
            Self::Indices(numbers) => addresses(numbers),
            Self::Lengths(numbers) => addresses(numbers),
            Self::Slots(numbers) => addresses(numbers),
            Self::Floats(numbers) => addresses(numbers),
        }
    }

    fn words(&self) -> usize {
        self.addresses().len() / size_of::<u32>()
    }

    fn write(&self, to: &mut Vec<u32>) {
        match self {
            Self::Indices(numbers) => to.extend(numbers.iter().map(|number| number.cast_unsigned())),
            Self::Lengths(numbers) => to.extend_from_slice(numbers),
            Self::Slots(numbers) => {
                for number in *numbers {
                    to.extend([*number as u32, (number >> 32) as u32]);
                }
            }
            Self::Floats(numbers) => to.extend(numbers.iter().map(|number| number.to_bits())),
        }
    }
}

fn addresses<T>(numbers: &[T]) -> Range<usize> {
    let start = numbers.as_ptr().addr();
    start..start + size_of_val(numbers)
}

/// What the ops of a step are told of it, in the order in which it lies on the device.
#[derive(Debug)]
pub struct HostBatch<'a> {
    positions: &'a [u32],
    numbers: Vec<Numbers<'a>>,
    rotations: Vec<(Rope, Arc<RopeTable>)>,
}

impl<'a> HostBatch<'a> {
    /// The positions of a step's tokens, and the rotations that its layers make of them.
    ///
    /// # Errors
    /// A rotation by more positions than one a token.
    pub fn new<'b>(positions: &'a [u32], ropes: impl IntoIterator<Item = &'b Rope>) -> Result<Self> {
        let mut rotations: Vec<(Rope, Arc<RopeTable>)> = Vec::new();
        for rope in ropes {
            if rotations.iter().all(|(known, _)| known != rope) {
                rotations.push((rope.clone(), Arc::new(rope.angles(positions, positions.len())?)));
            }
        }
        Ok(Self { positions, numbers: vec![Numbers::Lengths(positions)], rotations })
    }

    /// Indices, of which -1 is none.
    pub fn indices(&mut self, numbers: &'a [i32]) {
        self.numbers.push(Numbers::Indices(numbers));
    }

    /// Lengths, offsets and rows.
    pub fn lengths(&mut self, numbers: &'a [u32]) {
        self.numbers.push(Numbers::Lengths(numbers));
    }

    /// Slots of tokens.
    pub fn slots(&mut self, numbers: &'a [i64]) {
        self.numbers.push(Numbers::Slots(numbers));
    }

    /// Words that it takes on the device.
    pub fn words(&self) -> usize {
        self.parts().map(|part| part.words().next_multiple_of(ALIGNMENT)).sum()
    }

    fn parts(&self) -> impl Iterator<Item = Numbers<'_>> {
        let angles = self.rotations.iter().flat_map(|(_, table)| [&table.cos, &table.sin]);
        self.numbers.iter().copied().chain(angles.map(|angles| Numbers::Floats(angles)))
    }
}

/// Memory of the device for the metadata of a step, whose address never changes.
#[derive(Debug)]
pub struct DeviceBatch {
    /// `[words]` of u32.
    memory: Tensor,
    staging: Vec<u32>,
}

impl DeviceBatch {
    /// Memory for so many words.
    ///
    /// # Errors
    /// A device without it.
    pub fn new(words: usize, device: &Device) -> Result<Self> {
        Ok(Self { memory: Tensor::zeros(words.max(1), DType::U32, device)?, staging: Vec::with_capacity(words) })
    }

    /// Words that it has room for.
    pub fn capacity(&self) -> usize {
        self.memory.elem_count()
    }

    /// Brings a step's numbers to the device, in one copy.
    ///
    /// # Errors
    /// More words than there is room for; a failing device.
    pub fn upload(&mut self, host: &HostBatch<'_>) -> Result<()> {
        let (words, room) = (host.words(), self.capacity());
        if words > room {
            return Err(KernelError::Argument { op: OP, reason: format!("{words} words, and room for {room}") });
        }
        self.staging.clear();
        for part in host.parts() {
            part.write(&mut self.staging);
            self.staging.resize(self.staging.len().next_multiple_of(ALIGNMENT), 0);
        }
        self.memory.inplace_op1(&Upload(&self.staging))?;
        #[cfg(feature = "launches")]
        super::executor::uploaded(self.memory.device());
        Ok(())
    }

    /// Runs `body`, in which launches that are told `host` read what was uploaded last, of the same lengths. Gives what
    /// it returns, and whether nothing was told of the step by the host.
    pub fn lend<R>(&self, host: &HostBatch<'_>, body: impl FnOnce() -> R) -> (R, bool) {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let lent = Lent(NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut word = 0;
        let mut parts = Vec::new();
        for part in host.parts() {
            parts.push((part.addresses(), word));
            word += part.words().next_multiple_of(ALIGNMENT);
        }
        batches().push(Batch {
            number: lent.0,
            memory: self.memory.clone(),
            parts,
            positions: addresses(host.positions),
            rotations: host.rotations.clone(),
            left: false,
        });
        let result = body();
        let left = batches().iter().any(|batch| batch.number == lent.0 && batch.left);
        (result, !left)
    }
}

/// Ends a loan, whatever happens meanwhile.
struct Lent(u64);

impl Drop for Lent {
    fn drop(&mut self) {
        batches().retain(|batch| batch.number != self.0);
    }
}

/// What is lent now.
struct Batch {
    number: u64,
    memory: Tensor,
    /// Where each part lies on the host, and its first word on the device.
    parts: Vec<(Range<usize>, usize)>,
    positions: Range<usize>,
    rotations: Vec<(Rope, Arc<RopeTable>)>,
    left: bool,
}

fn batches() -> MutexGuard<'static, Vec<Batch>> {
    static BATCHES: Mutex<Vec<Batch>> = Mutex::new(Vec::new());
    BATCHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where numbers of the host lie on the device, as words, if they are lent.
fn lent<T>(numbers: &[T]) -> Option<candle_core::Result<Tensor>> {
    let wanted = addresses(numbers);
    if wanted.is_empty() {
        return None;
    }
    batches().iter().find_map(|batch| {
        let (part, word) = batch.parts.iter().find(|(part, _)| part.start <= wanted.start && wanted.end <= part.end)?;
        let first = word + (wanted.start - part.start) / size_of::<u32>();
        Some(batch.memory.narrow(0, first, wanted.len() / size_of::<u32>()))
    })
}

/// Rows of a step as a tensor on its device: where they were uploaded, or uploaded now.
///
/// # Errors
/// A failing device.
pub fn rows(rows: &[u32], device: &Device) -> candle_core::Result<Tensor> {
    lent(rows).unwrap_or_else(|| {
        leave();
        Tensor::new(rows, device)
    })
}

/// The angles of a rotation, if they are lent for these positions.
pub(crate) fn rotations(rope: &Rope, positions: &[u32]) -> Option<Arc<RopeTable>> {
    let wanted = addresses(positions);
    let mut batches = batches();
    let batch = batches.iter_mut().find(|batch| !wanted.is_empty() && batch.positions == wanted)?;
    let found = batch.rotations.iter().find(|(known, _)| known == rope).map(|(_, table)| table.clone());
    batch.left |= found.is_none();
    found
}

/// Notes that what is told of a step is read from the host.
pub(crate) fn leave() {
    batches().iter_mut().for_each(|batch| batch.left = true);
}

/// Lets launches read what is lent. What else they are told of the step is uploaded with them.
pub(crate) fn read_lent(launches: &mut Launches<'_>) -> Result<()> {
    for buffer in &mut launches.buffers {
        let found = match &buffer.contents {
            Contents::Indices(numbers) => lent(numbers),
            Contents::Lengths(numbers) => lent(numbers),
            Contents::Slots(numbers) => lent(numbers),
            Contents::Floats(numbers) => lent(numbers),
            Contents::Pairs(_) => None,
            _ => continue,
        };
        match found {
            Some(words) => buffer.contents = Contents::Uploaded(words?),
            // Floats that are not lent belong to the op, and are the same in every step.
            None if matches!(buffer.contents, Contents::Floats(_)) => {}
            None => leave(),
        }
    }
    Ok(())
}

/// Overwrites the first words of a batch.
struct Upload<'a>(&'a [u32]);

impl InplaceOp1 for Upload<'_> {
    fn name(&self) -> &'static str {
        "upload"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        match storage {
            CpuStorage::U32(words) => words[..self.0.len()].copy_from_slice(self.0),
            _ => candle_core::bail!("a batch is words"),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut candle_core::CudaStorage, _: &Layout) -> candle_core::Result<()> {
        super::device::upload(storage, self.0)
    }
}
