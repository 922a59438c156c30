//! What lies below the device: host memory, and below it a disk.
//!
//! To the tree both are one tier, whose units it numbers. Which of them lie in host memory is decided here: the newest.
//! What host memory has no room for moves on to the disk, and what the tree gives up was the oldest of all.

use std::collections::VecDeque;

use serde::Serialize;

use crate::prefix::{HostBlockId, HostSlotId, HostTier, Offload};

/// Where a unit lies that the device has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Place {
    Host,
    Disk,
}

/// The units of one kind below the device.
#[derive(Debug)]
pub(super) struct Shelf {
    /// How many host memory has room for.
    host: usize,
    /// Units in host memory, the oldest first, each with the visit that put it there; of an earlier visit it is gone.
    queue: VecDeque<(u32, u64)>,
    on_host: usize,
    /// Of each unit its last visit, and where it lies.
    units: Vec<Option<(u64, Place)>>,
    visits: u64,
    /// Units that moved on from host memory to the disk.
    written: u64,
}

impl Shelf {
    pub(super) fn new(host: usize) -> Self {
        Self { host, queue: VecDeque::new(), on_host: 0, units: Vec::new(), visits: 0, written: 0 }
    }

    /// Takes a unit in that came from the device, or was used: it is the newest. A number that the tree uses again
    /// was given up before.
    pub(super) fn put(&mut self, unit: u32) {
        self.take(unit);
        let at = unit as usize;
        if self.units.len() <= at {
            self.units.resize(at + 1, None);
        }
        self.visits += 1;
        self.units[at] = Some((self.visits, Place::Host));
        self.queue.push_back((unit, self.visits));
        self.on_host += 1;
        while self.on_host > self.host {
            let Some((oldest, visit)) = self.queue.pop_front() else { break };
            if let Some(place) =
                self.units.get_mut(oldest as usize).filter(|place| **place == Some((visit, Place::Host)))
            {
                *place = Some((visit, Place::Disk));
                self.on_host -= 1;
                self.written += 1;
            }
        }
    }

    /// Gives a unit up that went back to the device.
    pub(super) fn take(&mut self, unit: u32) {
        let place = self.units.get_mut(unit as usize).and_then(Option::take);
        self.on_host -= usize::from(matches!(place, Some((_, Place::Host))));
    }

    pub(super) fn place(&self, unit: u32) -> Option<Place> {
        self.units.get(unit as usize).copied().flatten().map(|(_, place)| place)
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }
}

/// What went over the links, and what loading saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Moved {
    /// Prompt tokens whose keys came from host memory.
    pub host_tokens: u64,
    /// Prompt tokens whose keys came from the disk.
    pub disk_tokens: u64,
    /// Bytes that came from host memory or through it.
    pub host_bytes: u64,
    /// Bytes that came from the disk.
    pub disk_bytes: u64,
    /// Bytes that the disk took.
    pub written_bytes: u64,
    /// Requests that loaded something.
    pub loads: u64,
    /// Requests that could have loaded, where computing takes no longer.
    pub declined: u64,
    /// Seconds that computing what was reused takes at best, less those of loading it.
    pub seconds_saved: f64,
}

/// How fast tiers are read, in bytes each second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Links {
    /// From host memory to the device.
    pub host: f64,
    /// From the disk to host memory.
    pub disk: f64,
}

/// Tells the seconds that computing a prompt's tokens takes at best, from one of them to another.
pub type Compute<'a> = &'a (dyn Fn(usize, usize) -> f64 + Sync);

/// What lies below the device, what it costs to bring back, and what that saves.
pub(super) struct Below<'a> {
    /// KV blocks, window blocks, states.
    shelves: [Shelf; 3],
    /// Bytes of a unit of each.
    bytes: [usize; 3],
    page: usize,
    links: Links,
    /// Absent where no rates of the device are known, so that every load counts.
    compute: Option<Compute<'a>>,
    moved: Moved,
}

/// What of a hit lies below the device.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) blocks: Vec<HostBlockId>,
    pub(super) windows: Vec<HostBlockId>,
    pub(super) state: Option<HostSlotId>,
}

impl Wanted {
    fn units(&self) -> [Vec<u32>; 3] {
        let ids = |units: &[HostBlockId]| units.iter().map(|unit| unit.0).collect();
        [ids(&self.blocks), ids(&self.windows), self.state.iter().map(|slot| slot.0).collect()]
    }
}

impl<'a> Below<'a> {
    /// `host` is how many units of each kind host memory has room for.
    pub(super) fn new(
        host: HostTier,
        bytes: [usize; 3],
        page: usize,
        links: Links,
        compute: Option<Compute<'a>>,
    ) -> Self {
        let shelves = [host.blocks, host.windows, host.slots].map(|units| Shelf::new(units as usize));
        Self { shelves, bytes, page, links, compute, moved: Moved::default() }
    }

    /// Takes in what left the device.
    pub(super) fn offload(&mut self, offloads: &[Offload]) {
        for offload in offloads {
            match *offload {
                Offload::Block { to, .. } => self.shelves[0].put(to.0),
                Offload::Window { to, .. } => self.shelves[1].put(to.0),
                Offload::State { to, .. } => self.shelves[2].put(to.0),
            }
        }
    }

    /// Tells whether loading takes less time than computing does at best, for a prompt that goes on behind `hit`
    /// tokens instead of `resident`.
    pub(super) fn pays(&mut self, wanted: &Wanted, resident: usize, hit: usize, prompt: usize) -> bool {
        let Some(compute) = self.compute else { return true };
        let saved = compute(resident, prompt) - compute(hit, prompt);
        let pays = self.seconds(wanted) < saved;
        self.moved.declined += u64::from(!pays);
        pays
    }

    /// Bytes through host memory, and those of them from the disk.
    fn bytes_of(&self, wanted: &Wanted) -> [u64; 2] {
        let mut bytes = [0, 0];
        for ((units, shelf), unit_bytes) in wanted.units().iter().zip(&self.shelves).zip(self.bytes) {
            let on_disk = units.iter().filter(|&&unit| shelf.place(unit) == Some(Place::Disk)).count();
            bytes[0] += (units.len() * unit_bytes) as u64;
            bytes[1] += (on_disk * unit_bytes) as u64;
        }
        bytes
    }

    /// One after the other: nothing is taken to overlap.
    fn seconds(&self, wanted: &Wanted) -> f64 {
        let [host, disk] = self.bytes_of(wanted);
        host as f64 / self.links.host + disk as f64 / self.links.disk
    }

    /// Counts a load that was made. Blocks are the device's again; a state is copied, and the newest from now on.
    pub(super) fn loaded(&mut self, wanted: &Wanted, resident: usize, hit: usize, prompt: usize) {
        let [host, disk] = self.bytes_of(wanted);
        self.moved.loads += 1;
        self.moved.host_bytes += host;
        self.moved.disk_bytes += disk;
        if let Some(compute) = self.compute {
            let saved = compute(resident, prompt) - compute(hit, prompt);
            self.moved.seconds_saved += saved - self.seconds(wanted);
        }
        let [blocks, windows, states] = wanted.units();
        for unit in blocks {
            let from = match self.shelves[0].place(unit) {
                Some(Place::Disk) => &mut self.moved.disk_tokens,
                _ => &mut self.moved.host_tokens,
            };
            *from += self.page as u64;
            self.shelves[0].take(unit);
        }
        windows.into_iter().for_each(|unit| self.shelves[1].take(unit));
        states.into_iter().for_each(|unit| self.shelves[2].put(unit));
    }

    pub(super) fn moved(&self) -> Moved {
        let written = self.shelves.iter().zip(self.bytes).map(|(shelf, bytes)| shelf.written() * bytes as u64).sum();
        Moved { written_bytes: written, ..self.moved }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The stack property, unit by unit: what a smaller host keeps, a larger one keeps; nothing is lost between
        /// the tiers, and host memory never holds more than it has room for.
        #[test]
        fn a_larger_host_keeps_all_that_a_smaller_one_keeps(
            host in 0_usize..6,
            more in 0_usize..4,
            steps in proptest::collection::vec((any::<bool>(), 0_u32..12), 0..200),
        ) {
            let (mut small, mut large) = (Shelf::new(host), Shelf::new(host + more));
            let mut held = std::collections::BTreeSet::new();
            for (put, unit) in steps {
                for shelf in [&mut small, &mut large] {
                    if put { shelf.put(unit) } else { shelf.take(unit) }
                }
                if put { held.insert(unit); } else { held.remove(&unit); }
                let on = |shelf: &Shelf, place| (0..12).filter(|&unit| shelf.place(unit) == Some(place)).count();
                prop_assert!(on(&small, Place::Host) <= host && on(&large, Place::Host) <= host + more);
                prop_assert_eq!(on(&small, Place::Host), small.on_host);
                prop_assert_eq!(on(&small, Place::Host) + on(&small, Place::Disk), held.len());
                for unit in 0..12 {
                    prop_assert!(small.place(unit) != Some(Place::Host) || large.place(unit) == Some(Place::Host));
                }
            }
            prop_assert!(large.written() <= small.written());
        }
    }
}
