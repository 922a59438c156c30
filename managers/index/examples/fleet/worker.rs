//! A worker's pool as vLLM keeps it: pages that keys and states share, the least recently used given away first.

use std::collections::{BTreeMap, HashMap};

use cacheplan_index::{Event, Kind, Stored};

/// Keys of a block, or the states behind it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Keys(u64),
    State(u64),
}

pub(crate) struct Worker {
    free: usize,
    state_groups: usize,
    block: usize,
    held: HashMap<What, u64>,
    by_age: BTreeMap<u64, What>,
    clock: u64,
    /// Events that nobody took yet.
    pub(crate) events: Vec<Event>,
}

impl Worker {
    pub(crate) fn new(pages: usize, block: usize, state_groups: usize) -> Self {
        let (held, by_age) = (HashMap::new(), BTreeMap::new());
        Self { free: pages, state_groups, block, held, by_age, clock: 0, events: Vec::new() }
    }

    fn groups(&self, what: What) -> std::ops::RangeInclusive<usize> {
        if matches!(what, What::Keys(_)) { 0..=0 } else { 1..=self.state_groups }
    }

    /// Counts the blocks, of at most `most`, that the worker goes on from: keys of all, and states behind the last.
    fn reusable(&self, hashes: &[u64], most: usize) -> usize {
        let keys = hashes[..most].iter().take_while(|hash| self.held.contains_key(&What::Keys(**hash))).count();
        (1..=keys).rev().find(|blocks| self.held.contains_key(&What::State(hashes[blocks - 1]))).unwrap_or(0)
    }

    /// Computes a prompt and keeps what the engine keeps of it; says how many tokens were reused.
    pub(crate) fn serve(&mut self, hashes: &[u64], tokens: usize, chunk: usize) -> usize {
        let reused = self.reusable(hashes, hashes.len().min((tokens - 1) / self.block));
        // In use, nothing of it is given away.
        let mut used: Vec<What> = Vec::new();
        for (at, hash) in hashes.iter().enumerate().rev() {
            used.push(What::Keys(*hash));
            if at + 1 == reused {
                used.push(What::State(*hash));
            }
        }
        for what in &used {
            if let Some(age) = self.held.get(what) {
                self.by_age.remove(age);
            }
        }
        // Chunks end where the schedule cuts them; groups are freed in their order, ends of prompts first.
        let mut ends = Vec::new();
        let mut end = reused;
        while end < hashes.len() {
            end = (end + (chunk / self.block).max(1)).min(hashes.len());
            ends.push(end);
        }
        let last = ends.pop();
        let between = ends.iter().map(|end| What::State(hashes[end - 1]));
        let order: Vec<What> = between.chain(used).chain(last.map(|end| What::State(hashes[end - 1]))).collect();
        for (at, hash) in hashes.iter().enumerate().skip(reused) {
            self.keep(What::Keys(*hash), *hash, at.checked_sub(1).map(|before| hashes[before]));
            if ends.contains(&(at + 1)) || last == Some(at + 1) {
                self.keep(What::State(*hash), *hash, at.checked_sub(1).map(|before| hashes[before]));
            }
        }
        for what in order {
            if self.held.contains_key(&what) {
                self.clock += 1;
                if let Some(age) = self.held.insert(what, self.clock) {
                    self.by_age.remove(&age);
                }
                self.by_age.insert(self.clock, what);
            }
        }
        reused * self.block
    }

    fn keep(&mut self, what: What, hash: u64, parent: Option<u64>) {
        if self.held.contains_key(&what) {
            return;
        }
        let pages = self.groups(what).count();
        while self.free < pages {
            let Some((_, gone)) = self.by_age.pop_first() else { return };
            self.held.remove(&gone);
            self.free += self.groups(gone).count();
            let (What::Keys(hash) | What::State(hash)) = gone;
            for group in self.groups(gone) {
                let group = Some(group as u32);
                self.events.push(Event::Removed { hashes: vec![hash], group, window: None, on_device: true });
            }
        }
        self.free -= pages;
        // Not among those that may go until the prompt is computed.
        self.held.insert(what, 0);
        let kind = if matches!(what, What::Keys(_)) { Kind::Full } else { Kind::State };
        for group in self.groups(what) {
            self.events.push(Event::Stored(Stored {
                hashes: vec![hash],
                parent,
                block: self.block as u32,
                group: Some(group as u32),
                kind: Some(kind),
                on_device: true,
                ..Stored::default()
            }));
        }
    }
}
