//! What an instruction does to the registers and the memory of a warp.

use crate::launch::Machine;
use crate::memory::BUFFER_BITS;
use crate::op::{HalfFloat, Op, Shuffle, Vote};
use crate::report::Fault;
use crate::shadow::{Access, Cell, Conflict, Moment};
use crate::table::{SHARED_WINDOW, insert_bits};
use crate::types::{Bits, Register, Space, Type, mask};
use crate::warp::{Copy, LANES, Mask, Warp, lanes};
use half::{bf16, f16};

/// Where an access lies once it was found to be allowed.
#[derive(Clone, Copy)]
enum Location {
    Shared(usize),
    Global(usize, u64),
    Parameter(usize),
}

impl Machine<'_> {
    /// Executes an instruction for `active` lanes, of which there is one at least.
    pub(crate) fn step(&mut self, warp: &mut Warp, at: usize, active: Mask) {
        let kernel = self.kernel;
        let instruction = &kernel.code[at];
        warp.use_registers(&instruction.reads);
        match &instruction.op {
            Op::Lanes { compute, into, from: [a, b, c], approximate } => {
                let perturbed = *approximate && self.options.perturb != 0;
                for lane in lanes(active) {
                    let mut value = compute(warp.value(*a, lane), warp.value(*b, lane), warp.value(*c, lane));
                    if perturbed {
                        value = self.nudge(f32::of(value), at, warp, lane).bits();
                    }
                    self.set(warp, *into, lane, value);
                }
            }
            Op::Compare { compute, into, complement, from: [a, b], with } => {
                for lane in lanes(active) {
                    let mut holds = bool::of(compute(warp.value(*a, lane), warp.value(*b, lane), 0));
                    let mut fails = !holds;
                    if let Some(with) = with {
                        let other = bool::of(warp.value(with.predicate, lane));
                        (holds, fails) = ((with.join)(holds, other), (with.join)(fails, other));
                    }
                    self.set(warp, *into, lane, holds.bits());
                    if let Some(complement) = complement {
                        self.set(warp, *complement, lane, fails.bits());
                    }
                }
            }
            Op::InsertBits { into, from } => {
                for lane in lanes(active) {
                    let [a, b, start, len] = from.map(|register| warp.value(register, lane) as u32);
                    self.set(warp, *into, lane, u64::from(insert_bits(a, b, start, len)));
                }
            }
            Op::Split { into, from, bits } => {
                for lane in lanes(active) {
                    let value = warp.value(*from, lane);
                    for (part, register) in (0..).zip(into) {
                        if let Some(register) = register {
                            self.set(warp, *register, lane, value >> (part * bits) & mask(*bits));
                        }
                    }
                }
            }
            Op::Join { into, from, bits } => {
                for lane in lanes(active) {
                    let parts =
                        (0..).zip(from).map(|(part, from)| (warp.value(*from, lane) & mask(*bits)) << (part * bits));
                    let value = parts.fold(0, |value, part| value | part);
                    self.set(warp, *into, lane, value);
                }
            }
            Op::Load { space, ty, into, address } => {
                let bytes = ty.bytes() * into.len();
                let addresses: Vec<u64> = lanes(active).map(|lane| warp.address(address, lane)).collect();
                if self.count(*space, &addresses, bytes, false) {
                    warp.load(into, (addresses.len() * bytes) as u64, &mut self.run.stats);
                }
                for (lane, address) in lanes(active).zip(addresses) {
                    let mut data = [0; 16];
                    self.read(warp, at, lane, *space, address, &mut data[..bytes]);
                    for (element, register) in data.chunks(ty.bytes()).zip(into) {
                        if let Some(register) = register {
                            self.set(warp, *register, lane, extend(element, *ty));
                        }
                    }
                }
            }
            Op::Store { space, ty, from, address } => {
                let bytes = ty.bytes() * from.len();
                let addresses: Vec<u64> = lanes(active).map(|lane| warp.address(address, lane)).collect();
                self.count(*space, &addresses, bytes, true);
                for (lane, address) in lanes(active).zip(addresses) {
                    let mut data = [0; 16];
                    for (element, register) in data.chunks_mut(ty.bytes()).zip(from) {
                        let value = warp.value(*register, lane).to_le_bytes();
                        element.copy_from_slice(&value[..element.len()]);
                    }
                    self.write(warp, at, lane, *space, address, &data[..bytes]);
                }
            }
            Op::Atomic { space, combine, into, address, from: [a, b] } => {
                for lane in lanes(active) {
                    let address = warp.address(address, lane);
                    let Some(place) = self.locate(warp, at, lane, *space, address, 4, Access::Atomic) else { continue };
                    let mut data = [0; 4];
                    self.copy_out(place, &mut data);
                    let old = u64::from(u32::from_le_bytes(data));
                    let new = combine(old, warp.value(*a, lane), warp.value(*b, lane)) as u32;
                    self.copy_in(place, &new.to_le_bytes());
                    if let Some(into) = into {
                        self.set(warp, *into, lane, old);
                    }
                }
            }
            Op::CopyAsync { to, from, bytes, source_bytes } => {
                let (mut sources, mut targets) = (Vec::new(), Vec::new());
                for lane in lanes(active) {
                    let (to, from) = (warp.address(to, lane), warp.address(from, lane));
                    let source_bytes =
                        source_bytes.map_or(*bytes, |count| (warp.value(count, lane) as usize).min(*bytes));
                    targets.push(to);
                    if source_bytes > 0 {
                        sources.push(from);
                    }
                    self.begin_copy(warp, at, lane, Copy { to, from, bytes: *bytes, source_bytes });
                }
                if !sources.is_empty() {
                    self.run.stats.global(&sources, *bytes, false);
                }
                self.run.stats.shared(&targets, *bytes);
                warp.note_in_flight(&mut self.run.stats);
            }
            Op::CopyCommit => {
                for lane in lanes(active) {
                    let copies = &mut warp.copies[lane];
                    let open = std::mem::take(&mut copies.open);
                    copies.groups.push_back(open);
                }
            }
            Op::CopyWait(open) => {
                for lane in lanes(active) {
                    while warp.copies[lane].groups.len() > *open {
                        for copy in warp.copies[lane].groups.pop_front().unwrap_or_default() {
                            self.end_copy(warp, at, lane, &copy);
                        }
                    }
                }
            }
            Op::LoadMatrix { into, address, transposed } => {
                if self.whole(warp, at, active) {
                    self.load_matrix(warp, at, into, address, *transposed);
                }
            }
            Op::Multiply { float, d, a, b, c } => {
                if self.whole(warp, at, active) {
                    self.multiply(warp, at, *float, [d, a, b, c]);
                }
            }
            Op::Shuffle { mode, into, found, from, .. } => {
                self.shuffle_lanes(warp, at, active, *mode, (*into, *found), from);
            }
            Op::Vote { vote, into, from, .. } => {
                let votes =
                    lanes(active).filter(|lane| bool::of(warp.value(*from, *lane))).fold(0, |m, lane| m | 1 << lane);
                let result: u32 = match vote {
                    Vote::Ballot => votes,
                    Vote::Any => u32::from(votes != 0),
                    Vote::All => u32::from(votes == active),
                };
                lanes(active).for_each(|lane| self.set(warp, *into, lane, u64::from(result)));
            }
            Op::Nothing => {}
            Op::Branch(_) | Op::Exit | Op::BlockBarrier | Op::WarpBarrier(_) => {
                unreachable!("steering is no step of the lanes")
            }
        }
    }

    fn set(&self, warp: &mut Warp, register: Register, lane: usize, value: u64) {
        warp.registers[register][lane] = value & mask(self.kernel.widths[register]);
    }

    /// Moves a value by up to 2 units of the last place, by a hash of where and when it was made.
    fn nudge(&self, value: f32, at: usize, warp: &Warp, lane: usize) -> f32 {
        if self.options.perturb == 0 || !value.is_finite() || value == 0.0 {
            return value;
        }
        let place = [at as u64, u64::from(self.block), warp.number as u64, lane as u64, u64::from(value.to_bits())];
        let hash = place
            .iter()
            .fold(self.options.perturb, |hash, part| (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        match hash % 5 {
            0 => value.next_down().next_down(),
            1 => value.next_down(),
            2 => value,
            3 => value.next_up(),
            _ => value.next_up().next_up(),
        }
    }

    fn moment(&self, warp: &Warp, lane: usize) -> Moment {
        let thread = (warp.number * LANES + lane) as u16;
        Moment { block: self.block, barriers: self.barriers, warp_barriers: warp.barriers, thread }
    }

    /// Whether all lanes of the warp are here, as matrix instructions want it.
    fn whole(&mut self, warp: &Warp, at: usize, active: Mask) -> bool {
        if active != Mask::MAX {
            let what = format!("only lanes {active:08x} are here");
            self.report(Fault::Unconverged, at, (warp.number * LANES) as u32, what);
        }
        active == Mask::MAX
    }

    /// Counts a request, and says whether it went to global memory.
    fn count(&mut self, space: Space, addresses: &[u64], bytes: usize, stores: bool) -> bool {
        let shared = space == Space::Shared || (space == Space::Generic && addresses[0] >= SHARED_WINDOW);
        if space == Space::Param {
            return false;
        }
        if shared {
            self.run.stats.shared(addresses, bytes);
        } else {
            self.run.stats.global(addresses, bytes, stores);
        }
        !shared
    }

    fn read(&mut self, warp: &Warp, at: usize, lane: usize, space: Space, address: u64, data: &mut [u8]) {
        if let Some(place) = self.locate(warp, at, lane, space, address, data.len(), Access::Read) {
            self.copy_out(place, data);
        }
    }

    fn write(&mut self, warp: &Warp, at: usize, lane: usize, space: Space, address: u64, data: &[u8]) {
        if let Some(place) = self.locate(warp, at, lane, space, address, data.len(), Access::Write) {
            self.copy_in(place, data);
        }
    }

    fn copy_out(&mut self, place: Location, data: &mut [u8]) {
        match place {
            Location::Shared(at) => data.copy_from_slice(&self.shared.bytes[at..at + data.len()]),
            Location::Parameter(at) => data.copy_from_slice(&self.parameters[at..at + data.len()]),
            Location::Global(buffer, offset) => {
                let (page, at) = self.device.buffers[buffer].page(offset);
                data.copy_from_slice(&page.bytes[at..at + data.len()]);
            }
        }
    }

    fn copy_in(&mut self, place: Location, data: &[u8]) {
        match place {
            Location::Shared(at) => self.shared.bytes[at..at + data.len()].copy_from_slice(data),
            Location::Parameter(_) => {}
            Location::Global(buffer, offset) => {
                let (page, at) = self.device.buffers[buffer].page(offset);
                page.bytes[at..at + data.len()].copy_from_slice(data);
            }
        }
    }

    /// Checks an access and notes it in the shadow.
    #[expect(clippy::too_many_arguments, reason = "an access is all of these")]
    fn locate(
        &mut self,
        warp: &Warp,
        at: usize,
        lane: usize,
        space: Space,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Option<Location> {
        let thread = (warp.number * LANES + lane) as u32;
        let place = match self.place(space, address, bytes, access) {
            Ok(place) => place,
            Err((fault, what)) => {
                self.report(fault, at, thread, what);
                return None;
            }
        };
        let (now, first_block) = (self.moment(warp, lane), self.first_block);
        let touch = |cells: &mut [Cell]| {
            cells.iter_mut().map(|cell| cell.touch(access, now, first_block)).fold(None, Option::or)
        };
        let conflict = match place {
            Location::Parameter(_) => None,
            Location::Shared(offset) => touch(self.shared.cells(offset, bytes)),
            Location::Global(buffer, offset) => {
                let buffer = &mut self.device.buffers[buffer];
                let read_only = buffer.read_only;
                let (page, offset) = buffer.page(offset);
                let cells = page.cells(offset, bytes);
                if read_only {
                    // Nobody writes, so that only what was never written can be wrong.
                    (!cells.iter().all(Cell::is_initialised)).then_some(Conflict::Uninitialised)
                } else {
                    touch(cells)
                }
            }
        };
        if let Some(conflict) = conflict {
            self.report_conflict(conflict, at, thread, place, access);
        }
        Some(place)
    }

    /// Where an address lies, or why it is not allowed.
    fn place(&self, space: Space, address: u64, bytes: usize, access: Access) -> Result<Location, (Fault, String)> {
        if !address.is_multiple_of(bytes as u64) {
            return Err((Fault::Misaligned, format!("{bytes} bytes at {address:#x}")));
        }
        let outside = |what: String| Err((Fault::OutOfBounds, what));
        let shared = match space {
            Space::Shared => Some(address),
            Space::Generic => address.checked_sub(SHARED_WINDOW),
            Space::Param => {
                let end = address + bytes as u64;
                return if end <= self.parameters.len() as u64 && access == Access::Read {
                    Ok(Location::Parameter(address as usize))
                } else {
                    outside(format!("{bytes} bytes at {address} of {} of parameters", self.parameters.len()))
                };
            }
            Space::Global => None,
        };
        if let Some(offset) = shared {
            let size = self.shared.bytes.len() as u64;
            return match offset.checked_add(bytes as u64) {
                Some(end) if end <= size => Ok(Location::Shared(offset as usize)),
                _ => outside(format!("{bytes} bytes at {offset} of {size} of shared memory")),
            };
        }
        let (number, offset) = (address >> BUFFER_BITS, address & mask(BUFFER_BITS));
        let number = (number as usize).wrapping_sub(1);
        let Some(buffer) = self.device.buffers.get(number) else {
            return outside(format!("{bytes} bytes at {address:#x}, where no buffer is"));
        };
        if offset + bytes as u64 > buffer.bytes {
            return outside(format!("{bytes} bytes at {offset} of {} ({} bytes)", buffer.name, buffer.bytes));
        }
        if buffer.read_only && access != Access::Read {
            return Err((Fault::ReadOnly, format!("{access:?} of {}", buffer.name)));
        }
        Ok(Location::Global(number, offset))
    }

    fn report_conflict(&mut self, conflict: Conflict, at: usize, thread: u32, place: Location, access: Access) {
        let name = match place {
            Location::Shared(offset) => format!("shared memory at {offset}"),
            Location::Global(buffer, offset) => format!("{} at {offset}", self.device.buffers[buffer].name),
            Location::Parameter(_) => return,
        };
        let (fault, what) = match conflict {
            Conflict::Uninitialised => (Fault::Uninitialised, name),
            Conflict::InFlight(by) => (Fault::InFlight, format!("{name}, which thread {by} still copies")),
            Conflict::Written(by) => (Fault::Race, format!("{access:?} of {name}, which {} wrote", self.who(by))),
            Conflict::Read(by) => (Fault::Race, format!("{access:?} of {name}, which {} read", self.who(by))),
        };
        self.report(fault, at, thread, what);
    }

    fn who(&self, by: Moment) -> String {
        if by.block == self.block {
            format!("thread {}", by.thread)
        } else {
            format!("thread {} of another block", by.thread)
        }
    }

    /// From now on the source may be read and the target written at any time until the wait.
    fn begin_copy(&mut self, warp: &mut Warp, at: usize, lane: usize, copy: Copy) {
        let thread = (warp.number * LANES + lane) as u32;
        let Copy { to, from, bytes, source_bytes } = copy;
        if !from.is_multiple_of(bytes as u64) {
            self.report(Fault::Misaligned, at, thread, format!("{bytes} bytes at {from:#x}"));
            return;
        }
        if source_bytes > 0 && self.locate(warp, at, lane, Space::Global, from, source_bytes, Access::Read).is_none() {
            return;
        }
        let (now, first_block) = (self.moment(warp, lane), self.first_block);
        match self.place(Space::Shared, to, bytes, Access::Write) {
            Ok(place @ Location::Shared(offset)) => {
                let cells = self.shared.cells(offset, bytes);
                let conflict = cells.iter_mut().map(|cell| cell.begin_copy(now, first_block)).fold(None, Option::or);
                if let Some(conflict) = conflict {
                    self.report_conflict(conflict, at, thread, place, Access::Write);
                }
                if self.options.early_copies {
                    self.land(&copy);
                }
                warp.copies[lane].open.push(copy);
            }
            Ok(_) => {}
            Err((fault, what)) => self.report(fault, at, thread, what),
        }
    }

    fn end_copy(&mut self, warp: &Warp, at: usize, lane: usize, copy: &Copy) {
        if copy.source_bytes > 0 {
            // The source may have been read as late as now.
            self.locate(warp, at, lane, Space::Global, copy.from, copy.source_bytes, Access::Read);
        }
        let now = self.moment(warp, lane);
        self.shared.cells(copy.to as usize, copy.bytes).iter_mut().for_each(|cell| cell.end_copy(now));
        if !self.options.early_copies {
            self.land(copy);
        }
    }

    fn land(&mut self, copy: &Copy) {
        let mut data = [0; 16];
        if let Ok(place) = self.place(Space::Global, copy.from, copy.source_bytes.max(1), Access::Read) {
            self.copy_out(place, &mut data[..copy.source_bytes]);
        }
        self.copy_in(Location::Shared(copy.to as usize), &data[..copy.bytes]);
    }

    /// Lane `8 j + i` names row `i` of matrix `j`, of 8 halves.
    fn load_matrix(
        &mut self,
        warp: &mut Warp,
        at: usize,
        into: &[Register],
        address: &crate::types::Address,
        transposed: bool,
    ) {
        for (matrix, &register) in into.iter().enumerate() {
            let rows: Vec<u64> = (0..8).map(|row| warp.address(address, matrix * 8 + row)).collect();
            self.run.stats.shared(&rows, 16);
            let mut halves = [[0u64; 8]; 8];
            for (row, &address) in rows.iter().enumerate() {
                let mut data = [0; 16];
                self.read(warp, at, matrix * 8 + row, Space::Shared, address, &mut data);
                for (half, bytes) in halves[row].iter_mut().zip(data.chunks(2)) {
                    *half = extend(bytes, Type::B16);
                }
            }
            for lane in 0..LANES {
                let (row, column) = (lane / 4, lane % 4 * 2);
                let (low, high) = match transposed {
                    false => (halves[row][column], halves[row][column + 1]),
                    true => (halves[column][row], halves[column + 1][row]),
                };
                self.set(warp, register, lane, low | high << 16);
            }
        }
    }

    /// `d = a b + c` of `[16, 16]`, `[16, 8]` and `[16, 8]`, whose elements lie over the lanes.
    fn multiply(&mut self, warp: &mut Warp, at: usize, float: HalfFloat, [d, a, b, c]: [&[Register]; 4]) {
        let halves = |register: Register, lane: usize, warp: &Warp| {
            let bits = warp.value(register, lane);
            [bits, bits >> 16].map(|bits| match float {
                HalfFloat::F16 => f16::of(bits).to_f32(),
                HalfFloat::Bf16 => bf16::of(bits).to_f32(),
            })
        };
        let (mut left, mut right) = ([[0f32; 16]; 16], [[0f32; 8]; 16]);
        for lane in 0..LANES {
            let (row, column) = (lane / 4, lane % 4 * 2);
            for (part, &register) in a.iter().enumerate() {
                let (row, column) = (row + part % 2 * 8, column + part / 2 * 8);
                [left[row][column], left[row][column + 1]] = halves(register, lane, warp);
            }
            for (part, &register) in b.iter().enumerate() {
                [right[column + part * 8][row], right[column + part * 8 + 1][row]] = halves(register, lane, warp);
            }
        }
        for lane in 0..LANES {
            for (part, (&into, &from)) in d.iter().zip(c).enumerate() {
                let (row, column) = (lane / 4 + part / 2 * 8, lane % 4 * 2 + part % 2);
                let product: f32 = (0..16).map(|k| left[row][k] * right[k][column]).sum();
                let sum = self.nudge(product + f32::of(warp.value(from, lane)), at, warp, lane);
                self.set(warp, into, lane, sum.bits());
            }
        }
    }

    /// `from` is the value, the lane or distance, and the clamp with the mask of segments.
    fn shuffle_lanes(
        &mut self,
        warp: &mut Warp,
        at: usize,
        active: Mask,
        mode: Shuffle,
        (into, found): (Register, Option<Register>),
        [value, by, bounds]: &[Register; 3],
    ) {
        let values = warp.registers[*value];
        for lane in lanes(active) {
            let (by, bounds) = (warp.value(*by, lane) & 31, warp.value(*bounds, lane));
            let (clamp, segment, here) = (bounds & 31, bounds >> 8 & 31, lane as u64);
            let (least, most) = (here & segment, (here & segment) | (clamp & !segment));
            let (from, inside) = match mode {
                // `most` is the bound of the lower end here.
                Shuffle::Up => (here.wrapping_sub(by), here as i64 - by as i64 >= most as i64),
                Shuffle::Down => (here + by, here + by <= most),
                Shuffle::Butterfly => (here ^ by, here ^ by <= most),
                Shuffle::Index => (least | (by & !segment), (least | (by & !segment)) <= most),
            };
            let from = if inside { from as usize } else { lane };
            if active >> from & 1 == 0 {
                let thread = (warp.number * LANES + lane) as u32;
                self.report(Fault::Unconverged, at, thread, format!("reads lane {from}, which takes no part"));
            }
            self.set(warp, into, lane, values[from]);
            if let Some(found) = found {
                self.set(warp, found, lane, inside.bits());
            }
        }
    }
}

/// An element of memory as a register holds it.
fn extend(bytes: &[u8], ty: Type) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(word);
    let unused = 64 - ty.bits();
    if ty.signed() { ((value << unused) as i64 >> unused) as u64 } else { value }
}
