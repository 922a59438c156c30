//! What the emulator remembers of each cell of memory: whether it was written, by whom, and who has read it.
//!
//! Two accesses of a cell, one of them a write, are a race unless something orders them: the same thread, an earlier
//! launch, a barrier of the block between them, or a barrier of the warp between lanes of one warp. Values play no
//! part, so that a race is found whatever order the emulator happens to choose.

/// Who touches a cell, and after which barriers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Counts blocks over all launches, from 1; 0 is before all of them.
    pub(crate) block: u32,
    /// Barriers of the block so far.
    pub(crate) barriers: u32,
    /// Barriers of the warp so far.
    pub(crate) warp_barriers: u32,
    /// Number of the thread in its block.
    pub(crate) thread: u16,
}

impl Moment {
    fn warp(&self) -> u16 {
        self.thread / 32
    }
}

/// What a thread does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Atomic,
}

/// Those of whom some may not be ordered before what comes next: the last one, and whether there were others.
#[derive(Clone, Copy, Debug, Default)]
struct Accessors {
    last: Moment,
    other_blocks: bool,
    other_warps: bool,
    other_lanes: bool,
}

impl Accessors {
    fn only(moment: Moment) -> Self {
        Self { last: moment, ..Self::default() }
    }

    /// One more, beside those that nothing orders before it.
    fn add(&mut self, now: Moment, first_block: u32) {
        let last = self.last;
        if last.block < first_block {
            *self = Self::only(now);
        } else if last.block != now.block {
            *self = Self { other_blocks: true, ..Self::only(now) };
        } else if last.barriers != now.barriers {
            *self = Self { other_blocks: self.other_blocks, ..Self::only(now) };
        } else if last.warp() != now.warp() {
            *self = Self { last: now, other_warps: true, ..*self };
        } else if last.warp_barriers != now.warp_barriers {
            *self = Self { last: now, other_lanes: false, ..*self };
        } else if last.thread != now.thread {
            *self = Self { last: now, other_lanes: true, ..*self };
        }
    }

    /// Whether one of them is not ordered before `now`.
    fn race_with(&self, now: Moment, first_block: u32) -> bool {
        let last = self.last;
        if last.block < first_block {
            return false;
        }
        if self.other_blocks || last.block != now.block {
            return true;
        }
        if last.barriers != now.barriers {
            return false;
        }
        if self.other_warps || last.warp() != now.warp() {
            return true;
        }
        last.warp_barriers == now.warp_barriers && (self.other_lanes || last.thread != now.thread)
    }
}

/// The history of one cell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    writers: Accessors,
    readers: Accessors,
    initialised: bool,
    /// The writers were atomic, so that they are no race among each other.
    atomic: bool,
    /// The thread, plus one, whose asynchronous copy is under way to this cell.
    copying: u16,
}

/// Why an access of a cell is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    Uninitialised,
    /// A copy of that thread has not landed.
    InFlight(u16),
    /// Beside a write of that moment.
    Written(Moment),
    /// Beside a read of that moment.
    Read(Moment),
}

impl Cell {
    pub(crate) fn initialised() -> Self {
        Self { initialised: true, ..Self::default() }
    }

    pub(crate) fn is_initialised(&self) -> bool {
        self.initialised
    }

    /// Notes an access and says what is wrong with it. `first_block` is the first block of this launch.
    pub(crate) fn touch(&mut self, access: Access, now: Moment, first_block: u32) -> Option<Conflict> {
        let conflict = self.conflict(access, now, first_block);
        match access {
            Access::Read => self.readers.add(now, first_block),
            Access::Write => self.writers = Accessors::only(now),
            Access::Atomic if self.atomic => self.writers.add(now, first_block),
            Access::Atomic => self.writers = Accessors::only(now),
        }
        if access != Access::Read {
            self.initialised = true;
            self.atomic = access == Access::Atomic;
        }
        conflict
    }

    fn conflict(&self, access: Access, now: Moment, first_block: u32) -> Option<Conflict> {
        if self.copying != 0 {
            return Some(Conflict::InFlight(self.copying - 1));
        }
        if access != Access::Write && !self.initialised {
            return Some(Conflict::Uninitialised);
        }
        let both_atomic = self.atomic && access == Access::Atomic;
        if !both_atomic && self.writers.race_with(now, first_block) {
            return Some(Conflict::Written(self.writers.last));
        }
        if access != Access::Read && self.readers.race_with(now, first_block) {
            return Some(Conflict::Read(self.readers.last));
        }
        None
    }

    /// A copy to this cell begins; it counts as a write from now until it has landed.
    pub(crate) fn begin_copy(&mut self, now: Moment, first_block: u32) -> Option<Conflict> {
        let conflict = self.touch(Access::Write, now, first_block);
        self.copying = now.thread + 1;
        conflict
    }

    /// The thread that copies has waited for it.
    pub(crate) fn end_copy(&mut self, now: Moment) {
        self.copying = 0;
        self.writers = Accessors::only(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn at(block: u32, barriers: u32, warp_barriers: u32, thread: u16) -> Moment {
        Moment { block, barriers, warp_barriers, thread }
    }

    /// Every pair of accesses, by what lies between them.
    #[rstest]
    #[case::same_thread(at(1, 0, 0, 3), at(1, 0, 0, 3), false)]
    #[case::lanes(at(1, 0, 0, 3), at(1, 0, 0, 4), true)]
    #[case::lanes_over_a_warp_barrier(at(1, 0, 0, 3), at(1, 0, 1, 4), false)]
    #[case::warps(at(1, 0, 0, 3), at(1, 0, 0, 40), true)]
    #[case::warps_over_a_warp_barrier(at(1, 0, 0, 3), at(1, 0, 1, 40), true)]
    #[case::warps_over_a_block_barrier(at(1, 0, 0, 3), at(1, 1, 0, 40), false)]
    #[case::blocks(at(1, 0, 0, 3), at(2, 0, 0, 3), true)]
    #[case::blocks_over_their_own_barriers(at(1, 0, 0, 3), at(2, 1, 1, 3), true)]
    fn accesses_race_unless_something_orders_them(#[case] first: Moment, #[case] second: Moment, #[case] race: bool) {
        for (before, after) in [
            (Access::Write, Access::Read),
            (Access::Read, Access::Write),
            (Access::Write, Access::Write),
            (Access::Write, Access::Atomic),
            (Access::Atomic, Access::Read),
        ] {
            let mut cell = Cell::initialised();
            assert_eq!(cell.touch(before, first, 1), None);
            assert_eq!(cell.touch(after, second, 1).is_some(), race, "{before:?}, then {after:?}");
            // An earlier launch is over.
            let mut cell = Cell::initialised();
            cell.touch(before, first, 1);
            assert_eq!(cell.touch(after, Moment { block: 9, ..second }, 9), None);
        }
        for harmless in [Access::Read, Access::Atomic] {
            let mut cell = Cell::initialised();
            cell.touch(harmless, first, 1);
            assert_eq!(cell.touch(harmless, second, 1), None, "{harmless:?} twice");
        }
    }

    /// A later reader must not hide an earlier one from a writer.
    #[rstest]
    #[case::lanes([at(1, 0, 0, 0), at(1, 0, 0, 1)])]
    #[case::warps([at(1, 0, 0, 32), at(1, 0, 0, 1)])]
    #[case::warps_with_a_barrier_of_one([at(1, 0, 0, 32), at(1, 0, 1, 1)])]
    #[case::blocks([at(1, 0, 0, 1), at(2, 0, 0, 1)])]
    #[case::blocks_with_barriers([at(1, 0, 0, 1), at(2, 1, 0, 1)])]
    fn the_last_of_several_accessors_does_not_speak_for_all(#[case] accessors: [Moment; 2]) {
        for access in [Access::Read, Access::Atomic] {
            let mut cell = Cell::initialised();
            for moment in accessors {
                assert_eq!(cell.touch(access, moment, 1), None);
            }
            assert!(cell.touch(Access::Write, accessors[1], 1).is_some(), "{access:?}");
        }
    }

    #[test]
    fn a_copy_is_in_flight_until_its_thread_has_waited() {
        let mut cell = Cell::default();
        assert_eq!(cell.begin_copy(at(1, 0, 0, 5), 1), None);
        assert_eq!(cell.touch(Access::Read, at(1, 0, 0, 5), 1), Some(Conflict::InFlight(5)));
        cell.end_copy(at(1, 0, 0, 5));
        assert_eq!(cell.touch(Access::Read, at(1, 0, 0, 5), 1), None);
        assert!(matches!(cell.touch(Access::Read, at(1, 0, 0, 6), 1), Some(Conflict::Written(_))));
        assert_eq!(cell.touch(Access::Read, at(1, 0, 1, 6), 1), None);
    }

    #[test]
    fn what_nobody_wrote_is_uninitialised() {
        let mut cell = Cell::default();
        assert_eq!(cell.touch(Access::Read, at(1, 0, 0, 0), 1), Some(Conflict::Uninitialised));
        assert_eq!(cell.touch(Access::Atomic, at(1, 0, 0, 0), 1), Some(Conflict::Uninitialised));
        assert_eq!(cell.touch(Access::Read, at(1, 0, 0, 0), 1), None);
    }
}
