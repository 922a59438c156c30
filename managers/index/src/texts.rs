//! The texts of which workers hold blocks: each block once, those that follow each other side by side.
//!
//! A question follows a text along such a run to the last place that is alike, and meets there who holds what of it. Locks are
//! taken in one order: a stripe of the hashes, then a run. A place that was read before its run was locked is checked there.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use hashbrown::HashMap;

use crate::locks::{read, write};
use crate::run::{Change, Keys, Run};
use crate::spans::Span;
use crate::spread::Table;

/// The longest run, in blocks: what a hole keeps in memory, and what one lock covers.
const LONGEST: usize = 4096;
const STRIPES: usize = 256;

/// Where a block stands.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) run: Arc<RwLock<Run>>,
    pub(crate) at: usize,
}

impl Place {
    fn is(&self, run: &Arc<RwLock<Run>>, at: usize) -> bool {
        Arc::ptr_eq(&self.run, run) && self.at == at
    }
}

/// A block that is to be kept.
pub(crate) struct Kept {
    pub(crate) hash: u64,
    /// What its tokens are called; zero where nobody said.
    pub(crate) name: u64,
    pub(crate) block: usize,
    pub(crate) slot: u32,
    pub(crate) groups: u64,
}

pub(crate) struct Texts {
    by_hash: Vec<RwLock<Table<u64, Place>>>,
    /// Where a text can be entered by what it is called: the beginnings of runs.
    by_name: Vec<RwLock<Table<u64, Vec<Place>>>>,
    blocks: AtomicUsize,
    most: usize,
}

fn stripe<T>(stripes: &[RwLock<T>], key: u64) -> &RwLock<T> {
    &stripes[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % STRIPES]
}

impl Texts {
    pub(crate) fn new(most: usize) -> Self {
        let stripes = || (0..STRIPES).map(|_| RwLock::default());
        Self {
            by_hash: stripes().collect(),
            by_name: (0..STRIPES).map(|_| RwLock::default()).collect(),
            blocks: AtomicUsize::new(0),
            most,
        }
    }

    pub(crate) fn place(&self, hash: u64) -> Option<Place> {
        read(stripe(&self.by_hash, hash)).get(&hash).cloned()
    }

    /// What the tokens up to the end of a block are called, if that is known.
    pub(crate) fn name(&self, hash: u64) -> Option<u64> {
        let place = self.place(hash)?;
        let run = read(&place.run);
        run.name_of(place.at, hash).filter(|name| *name != 0)
    }

    /// Notes that a slot's groups hold a block behind `parent`. `None`: there is no room for another block.
    pub(crate) fn keep(&self, kept: &Kept, parent: Option<u64>) -> Option<(Place, Change)> {
        let before = parent.and_then(|parent| Some((parent, self.place(parent)?)));
        let mut hashes = write(stripe(&self.by_hash, kept.hash));
        if let Some(place) = hashes.get(&kept.hash) {
            let mut run = write(&place.run);
            if run.has(place.at, kept.hash) {
                let change = run.add(kept.slot, place.at, kept.groups);
                let is_new_name = run.call(place.at, kept.name);
                drop(run);
                let follows =
                    before.as_ref().is_some_and(|(_, before)| before.is(&place.run, place.at.wrapping_sub(1)));
                // Whoever comes from elsewhere must find the way in by name too.
                if kept.name != 0 && (!follows && place.at > 0 || is_new_name && place.at == 0) {
                    self.enter(kept.name, place);
                }
                return Some((place.clone(), change));
            }
        }
        if self.blocks.load(Ordering::Relaxed) >= self.most {
            return None;
        }
        self.blocks.fetch_add(1, Ordering::Relaxed);
        if let Some((parent, before)) = before {
            let mut run = write(&before.run);
            if run.step() == kept.block
                && run.len() == before.at + 1
                && run.len() < LONGEST
                && run.has(before.at, parent)
            {
                run.push(kept.hash, kept.name);
                let change = run.add(kept.slot, before.at + 1, kept.groups);
                drop(run);
                let place = Place { run: before.run, at: before.at + 1 };
                hashes.insert(kept.hash, place.clone());
                return Some((place, change));
            }
        }
        let mut run = Run::new(kept.block);
        run.push(kept.hash, kept.name);
        let change = run.add(kept.slot, 0, kept.groups);
        let place = Place { run: Arc::new(RwLock::new(run)), at: 0 };
        hashes.insert(kept.hash, place.clone());
        if kept.name != 0 {
            self.enter(kept.name, &place);
        }
        Some((place, change))
    }

    fn enter(&self, name: u64, place: &Place) {
        let mut names = write(stripe(&self.by_name, name));
        let places = names.entry(name).or_default();
        if !places.iter().any(|known| known.is(&place.run, place.at)) {
            places.push(place.clone());
        }
    }

    /// Notes that a slot's groups hold a block no longer; what nobody holds at the end of a run is forgotten.
    pub(crate) fn drop_groups(&self, slot: u32, place: &Place, hash: u64, groups: u64) -> Option<Change> {
        let mut run = write(&place.run);
        if !run.has(place.at, hash) {
            return None;
        }
        let change = run.remove(slot, place.at, groups);
        let gone = run.trim();
        drop(run);
        self.forget(&place.run, &gone);
        Some(change)
    }

    /// Notes that a slot holds nothing of a run.
    pub(crate) fn drop_slot(&self, slot: u32, run: &Arc<RwLock<Run>>) {
        let mut locked = write(run);
        locked.remove_slot(slot);
        let gone = locked.trim();
        drop(locked);
        self.forget(run, &gone);
    }

    fn forget(&self, run: &Arc<RwLock<Run>>, gone: &[(usize, u64, u64)]) {
        self.blocks.fetch_sub(gone.len(), Ordering::Relaxed);
        for (at, hash, name) in gone {
            let is_there = |key: u64, of: fn(&Run, usize, u64) -> bool| of(&read(run), *at, key);
            // Another may have stored it anew at the same place meanwhile.
            let mut hashes = write(stripe(&self.by_hash, *hash));
            if hashes.get(hash).is_some_and(|place| place.is(run, *at)) && !is_there(*hash, Run::has) {
                hashes.remove(hash);
            }
            drop(hashes);
            if *name != 0 {
                let mut names = write(stripe(&self.by_name, *name));
                if let Some(places) = names.get_mut(name) {
                    places.retain(|place| !place.is(run, *at) || is_there(*name, Run::is_called));
                    if places.is_empty() {
                        names.remove(name);
                    }
                }
            }
        }
    }

    /// Where a text is entered by what it is called.
    fn entries(&self, name: u64) -> Vec<Place> {
        read(stripe(&self.by_name, name)).get(&name).cloned().unwrap_or_default()
    }

    /// What is held of a prompt, by slot. A gap of `widest` tokens ends it, unless nothing does.
    pub(crate) fn follow(&self, keys: Keys<'_>, quantum: usize, widest: Option<usize>) -> Vec<(u32, Span)> {
        let all = keys.all();
        let (mut found, mut reached) = (Vec::new(), 0);
        let mut next = BTreeSet::from([0]);
        while let Some(at) = next.pop_first() {
            let Some(key) = all.get(at) else { continue };
            let (end, mut is_found) = ((at + 1) * quantum, false);
            let (one, several) = match keys {
                Keys::Hashes(_) => (self.place(*key), Vec::new()),
                Keys::Names(_) => (None, self.entries(*key)),
            };
            for place in one.iter().chain(&several) {
                let run = read(&place.run);
                let Some((last, behind)) = run.match_from(place.at, keys, at, quantum) else { continue };
                is_found = true;
                // What stands before in the run is a beginning of the same text, though the question has no key for it.
                let back = place.at.min((quantum - 1) / run.step());
                run.spans(place.at - back, last, end - back * run.step(), &mut found);
                reached = reached.max(end + (last - place.at) * run.step());
                next.insert(behind);
                if run.step() > quantum {
                    next.insert(at + 1);
                }
            }
            if !is_found && widest.is_none_or(|widest| end < reached + widest) {
                next.insert(at + 1);
            }
        }
        found
    }

    /// Whether a slot holds a block.
    pub(crate) fn is_held(&self, slot: u32, hash: u64) -> bool {
        self.place(hash).is_some_and(|place| {
            let run = read(&place.run);
            run.has(place.at, hash) && run.is_held(slot, place.at)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }
}

/// Runs of which a slot holds something, by their addresses.
pub(crate) type Runs = HashMap<usize, Arc<RwLock<Run>>>;
