//! The state of one warp: its registers, where its lanes are, and the copies that they have under way.

use crate::kernel::{Guard, Kernel, Special};
use crate::stats::Stats;
use crate::types::Address;
use crate::types::Register;
use std::collections::VecDeque;

pub(crate) const LANES: usize = 32;

/// Lanes of a warp, one bit for each.
pub(crate) type Mask = u32;

pub(crate) fn lanes(mask: Mask) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

/// Lanes that execute the same instruction next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) at: usize,
    pub(crate) lanes: Mask,
}

/// Lanes that wait for others at an instruction of the whole warp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) at: usize,
    pub(crate) lanes: Mask,
    pub(crate) members: Mask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Running,
    AtBarrier,
    Done,
}

/// An asynchronous copy of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
    /// The rest of `bytes` becomes 0.
    pub(crate) source_bytes: usize,
}

/// The copies of a lane: not committed yet, and in groups, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    pub(crate) open: Vec<Copy>,
    pub(crate) groups: VecDeque<Vec<Copy>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Warp {
    pub(crate) number: usize,
    pub(crate) registers: Vec<[u64; LANES]>,
    pub(crate) groups: Vec<Group>,
    pub(crate) waiting: Vec<Waiting>,
    /// Lanes that have not returned.
    pub(crate) live: Mask,
    pub(crate) status: Status,
    /// Warp barriers so far.
    pub(crate) barriers: u32,
    pub(crate) copies: Vec<Copies>,
    loads: Loads,
}

/// The grid and block that a warp belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) grid: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) block: [u32; 3],
}

impl Warp {
    /// A warp at the start of a kernel. Its registers hold the constants and what `place` says.
    pub(crate) fn new(kernel: &Kernel, number: usize, place: &Place) -> Self {
        let threads = place.threads.iter().product::<u32>() as usize;
        let count = (threads - number * LANES).min(LANES);
        let live = if count == LANES { Mask::MAX } else { (1 << count) - 1 };
        let mut registers = vec![[0; LANES]; kernel.widths.len().max(1)];
        for &(register, value) in &kernel.constants {
            registers[register] = [value; LANES];
        }
        for &(special, register) in &kernel.specials {
            registers[register] = std::array::from_fn(|lane| {
                let thread = (number * LANES + lane) as u32;
                let [x, y, _] = place.threads;
                u64::from(match special {
                    Special::Thread(axis) => [thread % x, thread / x % y, thread / x / y][axis],
                    Special::ThreadCount(axis) => place.threads[axis],
                    Special::Block(axis) => place.block[axis],
                    Special::BlockCount(axis) => place.grid[axis],
                    Special::Lane => lane as u32,
                })
            });
        }
        Self {
            number,
            registers,
            groups: vec![Group { at: 0, lanes: live }],
            waiting: Vec::new(),
            live,
            status: Status::Running,
            barriers: 0,
            copies: vec![Copies::default(); LANES],
            loads: Loads { of: vec![0; kernel.widths.len().max(1)], ..Loads::default() },
        }
    }

    pub(crate) fn value(&self, register: Register, lane: usize) -> u64 {
        self.registers[register][lane]
    }

    pub(crate) fn address(&self, address: &Address, lane: usize) -> u64 {
        address.base.map_or(0, |base| self.value(base, lane)).wrapping_add(address.offset as u64)
    }

    /// Of `lanes`, those whose guard lets them execute.
    pub(crate) fn guarded(&self, guard: Option<Guard>, group: Mask) -> Mask {
        let Some(Guard { predicate, negated }) = guard else { return group };
        lanes(group).filter(|lane| (self.value(predicate, *lane) & 1 == 1) != negated).fold(0, |mask, l| mask | 1 << l)
    }

    /// Notes that an instruction needs these registers: loads up to the last of them have arrived.
    pub(crate) fn use_registers(&mut self, registers: &[Register]) {
        let newest = registers.iter().map(|register| self.loads.of[*register]).max().unwrap_or(0);
        while self.loads.arrived < newest {
            self.loads.arrived += 1;
            self.loads.bytes -= self.loads.pending.pop_front().unwrap_or(0);
        }
    }

    /// Notes that registers receive `bytes` of global memory.
    pub(crate) fn load(&mut self, into: &[Option<Register>], bytes: u64, stats: &mut Stats) {
        self.loads.issued += 1;
        self.loads.bytes += bytes;
        self.loads.pending.push_back(bytes);
        for register in into.iter().flatten() {
            self.loads.of[*register] = self.loads.issued;
        }
        self.note_in_flight(stats);
    }

    pub(crate) fn note_in_flight(&self, stats: &mut Stats) {
        let copy = |copy: &Copy| copy.source_bytes as u64;
        let copies: u64 =
            self.copies.iter().flat_map(|lane| lane.groups.iter().flatten().chain(&lane.open)).map(copy).sum();
        stats.bytes_in_flight = stats.bytes_in_flight.max(self.loads.bytes + copies);
    }
}

/// Loads in the order of the code, as a scoreboard sees them.
#[derive(Clone, Debug, Default)]
struct Loads {
    /// The number of the load that fills each register, 0 for none.
    of: Vec<u64>,
    issued: u64,
    arrived: u64,
    bytes: u64,
    pending: VecDeque<u64>,
}
