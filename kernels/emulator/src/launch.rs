//! Launches: buffers, blocks, the warps of a block, and where the lanes of a warp meet again.

use crate::kernel::{Instruction, Kernel};
use crate::memory::{BUFFER_BITS, Buffer, Region};
use crate::op::Op;
use crate::report::{Fault, Report};
use crate::stats::Stats;
use crate::warp::{Group, LANES, Mask, Place, Status, Waiting, Warp};
use thiserror::Error;

/// A device: buffers, and kernels that run over them.
#[derive(Clone, Debug, Default)]
pub struct Device {
    pub(crate) buffers: Vec<Buffer>,
    /// Blocks that ran so far, over all launches.
    blocks: u32,
}

/// A buffer of a [`Device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(usize);

/// The size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory beside what the kernel declares.
    pub shared_bytes: usize,
}

/// How to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Shuffles the order of warps and blocks; 0 keeps it.
    pub order: u64,
    /// Moves results of approximate instructions, and of matrix products, by up to 2 units of the last place; 0 leaves them.
    pub perturb: u64,
    /// Lets asynchronous copies land at once instead of when they are waited for.
    pub early_copies: bool,
}

/// What a launch did.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Counts of its accesses.
    pub stats: Stats,
    /// Mistakes, in the order in which they were found.
    pub reports: Vec<Report>,
}

/// Why a launch did not begin.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kernel} was launched with {found}, expected {expected}")]
pub struct LaunchError {
    kernel: String,
    found: String,
    expected: String,
}

impl Device {
    /// A device without buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer that nobody has written. `element` is the size of the smallest element that two threads may write side
    /// by side.
    pub fn buffer(&mut self, name: &str, bytes: u64, element: usize) -> BufferId {
        self.buffers.push(Buffer::new(name, bytes, element, false));
        BufferId(self.buffers.len() - 1)
    }

    /// A buffer that kernels only read.
    pub fn input(&mut self, name: &str, data: &[u8], element: usize) -> BufferId {
        self.buffers.push(Buffer::new(name, data.len() as u64, element, true));
        let id = BufferId(self.buffers.len() - 1);
        self.upload(id, 0, data);
        id
    }

    /// Writes to a buffer from `offset` bytes on.
    pub fn upload(&mut self, id: BufferId, offset: u64, data: &[u8]) {
        self.buffers[id.0].upload(offset, data);
    }

    /// Reads `bytes` bytes from `offset` on, and whether all of them were ever written.
    pub fn download(&mut self, id: BufferId, offset: u64, bytes: usize) -> (Vec<u8>, bool) {
        self.buffers[id.0].download(offset, bytes)
    }

    /// Where a buffer lies in the device's memory.
    pub fn address(&self, id: BufferId) -> u64 {
        (id.0 as u64 + 1) << BUFFER_BITS
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// Where the launch does not fit the kernel: bytes of parameters, threads.
    pub fn run(
        &mut self,
        kernel: &Kernel,
        shape: &Shape,
        parameters: &[u8],
        options: &Options,
    ) -> Result<Run, LaunchError> {
        check(kernel, shape, parameters)?;
        let mut machine = Machine {
            first_block: self.blocks + 1,
            device: self,
            kernel,
            parameters,
            options,
            run: Run::default(),
            shared: Region::new(0, SHARED_CELL),
            place: Place { grid: shape.grid, threads: shape.block, block: [0; 3] },
            block: 0,
            barriers: 0,
            random: options.order,
        };
        let [columns, rows, layers] = shape.grid;
        let mut blocks: Vec<u32> = (0..columns * rows * layers).collect();
        machine.shuffle(&mut blocks);
        for block in blocks {
            machine.device.blocks += 1;
            machine.block = machine.device.blocks;
            machine.place.block = [block % columns, block / columns % rows, block / columns / rows];
            machine.shared = Region::new(kernel.shared_bytes + shape.shared_bytes, SHARED_CELL);
            machine.run_block();
        }
        Ok(machine.run)
    }
}

/// Shared memory is watched in pieces of a half float.
const SHARED_CELL: usize = 2;

fn check(kernel: &Kernel, shape: &Shape, parameters: &[u8]) -> Result<(), LaunchError> {
    let threads: u32 = shape.block.iter().product();
    let refuse = |found: String, expected: String| Err(LaunchError { kernel: kernel.name.clone(), found, expected });
    if parameters.len() != kernel.param_bytes {
        return refuse(
            format!("{} bytes of parameters", parameters.len()),
            format!("{} as the kernel declares them", kernel.param_bytes),
        );
    }
    let most = kernel.max_threads.unwrap_or(1024);
    if threads == 0 || threads > most {
        return refuse(format!("{threads} threads"), format!("1 to {most}"));
    }
    Ok(())
}

impl Kernel {
    /// The instructions that order accesses, by their number, as PTX text with the line of the source.
    pub fn synchronisations(&self) -> impl Iterator<Item = (usize, String)> {
        let code = self.code.iter().enumerate();
        code.filter(|(_, instruction)| instruction.op.synchronises())
            .map(|(at, Instruction { source, text, .. })| (at, format!("{source}: {text}")))
    }

    /// The kernel with one instruction taken out: a mistake to be found.
    #[must_use]
    pub fn without(&self, instruction: usize) -> Self {
        let mut mutant = self.clone();
        mutant.code[instruction].op = Op::Nothing;
        mutant
    }
}

/// One launch while it runs.
pub(crate) struct Machine<'a> {
    pub(crate) device: &'a mut Device,
    pub(crate) kernel: &'a Kernel,
    pub(crate) parameters: &'a [u8],
    pub(crate) options: &'a Options,
    pub(crate) run: Run,
    pub(crate) shared: Region,
    place: Place,
    /// The first block of this launch, and the one that runs.
    pub(crate) first_block: u32,
    pub(crate) block: u32,
    /// Barriers of this block so far.
    pub(crate) barriers: u32,
    random: u64,
}

/// What a warp does after an instruction.
enum Next {
    /// Its group goes on at that instruction.
    At(usize),
    /// Groups have changed, or the warp stands at a barrier.
    Regroup,
}

impl Machine<'_> {
    /// A shuffle that the options' seed decides.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        if self.options.order == 0 {
            return;
        }
        for end in (1..items.len()).rev() {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            items.swap(end, (self.random >> 33) as usize % (end + 1));
        }
    }

    /// Runs each warp until it waits or is done, then lets those at the barrier pass it.
    fn run_block(&mut self) {
        self.barriers = 0;
        let threads = self.place.threads.iter().product::<u32>() as usize;
        let mut warps: Vec<Warp> =
            (0..threads.div_ceil(LANES)).map(|number| Warp::new(self.kernel, number, &self.place)).collect();
        loop {
            let mut order: Vec<usize> = (0..warps.len()).collect();
            self.shuffle(&mut order);
            for number in order {
                if warps[number].status == Status::Running {
                    self.run_warp(&mut warps[number]);
                }
            }
            if warps.iter().all(|warp| warp.status == Status::Done) {
                return;
            }
            self.barriers += 1;
            self.run.stats.barriers += 1;
            warps.iter_mut().filter(|warp| warp.status == Status::AtBarrier).for_each(|w| w.status = Status::Running);
        }
    }

    /// Runs until all lanes are done or stand at the block's barrier.
    ///
    /// The lanes that are furthest behind in the code go first, so that branches meet again where they can.
    fn run_warp(&mut self, warp: &mut Warp) {
        while warp.status == Status::Running {
            let Some(behind) = warp.groups.iter().map(|group| group.at).min() else {
                if let Some(&Waiting { at, lanes, members }) = warp.waiting.first() {
                    let thread = (warp.number * LANES) as u32 + lanes.trailing_zeros();
                    let live = warp.live;
                    self.report(
                        Fault::Deadlock,
                        at,
                        thread,
                        format!("{lanes:08x} wait for {members:08x} of {live:08x}"),
                    );
                }
                warp.status = Status::Done;
                return;
            };
            let here = warp.groups.iter().filter(|group| group.at == behind).fold(0, |mask, group| mask | group.lanes);
            warp.groups.retain(|group| group.at != behind);
            let ahead = warp.groups.iter().map(|group| group.at).min().unwrap_or(usize::MAX);
            let mut at = behind;
            loop {
                match self.instruction(warp, at, here) {
                    Next::At(next) if next < ahead => at = next,
                    Next::At(next) => {
                        warp.groups.push(Group { at: next, lanes: here });
                        break;
                    }
                    Next::Regroup => break,
                }
            }
        }
    }

    /// One instruction of the lanes `here`, which are no group while they run.
    fn instruction(&mut self, warp: &mut Warp, at: usize, here: Mask) -> Next {
        let kernel = self.kernel;
        let instruction = &kernel.code[at];
        let active = warp.guarded(instruction.guard, here);
        self.run.stats.warp_instructions += 1;
        if active == 0 {
            return Next::At(at + 1);
        }
        let part = |warp: &mut Warp, at: usize, lanes: Mask| {
            if lanes != 0 {
                warp.groups.push(Group { at, lanes });
            }
        };
        match &instruction.op {
            Op::Branch(target) if active == here => Next::At(*target),
            Op::Branch(target) => {
                part(warp, *target, active);
                part(warp, at + 1, here & !active);
                Next::Regroup
            }
            Op::Exit => {
                warp.live &= !active;
                part(warp, at + 1, here & !active);
                Next::Regroup
            }
            Op::BlockBarrier => {
                if active != warp.live {
                    let thread = (warp.number * LANES) as u32 + active.trailing_zeros();
                    let what = format!("lanes {active:08x} of {:08x} are at the barrier", warp.live);
                    self.report(Fault::BarrierDivergence, at, thread, what);
                }
                part(warp, at + 1, here);
                warp.status = Status::AtBarrier;
                Next::Regroup
            }
            Op::Shuffle { members, .. } | Op::Vote { members, .. } | Op::WarpBarrier(members) => {
                let members = warp.value(*members, active.trailing_zeros() as usize) as Mask;
                let waiting = warp.waiting.iter().filter(|waiting| waiting.at == at);
                let come = waiting.fold(active, |come, waiting| come | waiting.lanes);
                if members & warp.live & !come != 0 || active & !members != 0 {
                    warp.waiting.push(Waiting { at, lanes: active, members });
                    part(warp, at + 1, here & !active);
                    return Next::Regroup;
                }
                warp.waiting.retain(|waiting| waiting.at != at);
                if matches!(instruction.op, Op::WarpBarrier(_)) {
                    // A barrier of some lanes orders these only, which the shadow cannot tell; it then counts as none.
                    if come == warp.live {
                        warp.barriers += 1;
                    }
                } else {
                    self.step(warp, at, come);
                }
                part(warp, at + 1, here | come);
                Next::Regroup
            }
            _ => {
                self.step(warp, at, active);
                Next::At(at + 1)
            }
        }
    }

    pub(crate) fn report(&mut self, fault: Fault, at: usize, thread: u32, what: String) {
        let Instruction { line, source, text, .. } = &self.kernel.code[at];
        let reports = &mut self.run.reports;
        if let Some(known) = reports.iter_mut().find(|known| known.line == *line && known.fault == fault) {
            known.count += 1;
            return;
        }
        reports.push(Report {
            fault,
            line: *line,
            source: source.clone(),
            instruction: text.clone(),
            block: self.place.block,
            thread,
            what,
            count: 1,
        });
    }
}
