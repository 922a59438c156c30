//! A worker's pool as vLLM keeps it: pages that all groups share, the least recently used given away first. It computes one prompt
//! after the other; outputs are not kept.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Range, RangeInclusive};

use cacheplan_index::{Event, Kind, Stored};
use serde::Deserialize;

use crate::trace::Request;

/// Where states, and the blocks that a window needs, are kept.
#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Checkpoints {
    /// Where a chunk ends: vLLM with a dense retention.
    #[default]
    ChunkEnds,
    /// At the last whole block below the prompt's end, and where keys go further than the rest: vLLM's retention of 0.
    Boundaries,
}

/// Groups whose blocks are stored, kept and given away together.
#[derive(Clone)]
pub(crate) struct Set {
    pub(crate) groups: RangeInclusive<u32>,
    pub(crate) kind: Kind,
    pub(crate) block: usize,
    pub(crate) window: usize,
}

impl Set {
    fn pages(&self) -> usize {
        self.groups.clone().count()
    }

    /// The ends of the blocks that a hit of so many tokens needs.
    fn needed(&self, end: usize) -> impl Iterator<Item = usize> + use<> {
        let blocks = match self.kind {
            Kind::Window => (self.window - 1).div_ceil(self.block),
            _ => 1,
        };
        let block = self.block;
        (1..=end / block).rev().take(blocks).map(move |number| number * block)
    }
}

/// What a worker says of its blocks.
pub(crate) enum Said {
    /// Of a stretch of the prompt, these blocks are kept.
    Stored {
        set: usize,
        stretch: Range<usize>,
        ends: Vec<usize>,
    },
    Removed {
        set: usize,
        hash: u64,
    },
}

impl Said {
    /// As events, one for each group.
    pub(crate) fn events(&self, sets: &[Set], request: &Request) -> Vec<Event> {
        match self {
            Self::Stored { set, stretch, ends } => {
                let set = &sets[*set];
                let stored = |group| {
                    Event::Stored(Stored {
                        hashes: ends.iter().map(|end| request.hash(*end)).collect(),
                        parent: (stretch.start > 0).then(|| request.hash(stretch.start)),
                        block: set.block as u32,
                        group: Some(group),
                        kind: Some(set.kind),
                        window: (set.window > 0).then_some(set.window as u32),
                        on_device: true,
                        ..Stored::default()
                    })
                };
                set.groups.clone().map(stored).collect()
            }
            Self::Removed { set, hash } => {
                let removed =
                    |group| Event::Removed { hashes: vec![*hash], group: Some(group), window: None, on_device: true };
                sets[*set].groups.clone().map(removed).collect()
            }
        }
    }
}

/// A block of a set.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Block {
    set: usize,
    hash: u64,
}

pub(crate) struct Worker<'a> {
    sets: &'a [Set],
    /// Hits end at multiples of this.
    unit: usize,
    checkpoints: Checkpoints,
    chunk: usize,
    /// Pages in which nothing is kept.
    free: usize,
    /// What is kept, and since when nobody uses it; zero while somebody does.
    held: HashMap<Block, u64>,
    by_age: BTreeMap<u64, Block>,
    clock: u64,
    /// What nobody took yet.
    pub(crate) said: Vec<Said>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(sets: &'a [Set], unit: usize, pages: usize, checkpoints: Checkpoints, chunk: usize) -> Self {
        let (held, by_age, said) = (HashMap::new(), BTreeMap::new(), Vec::new());
        Self { sets, unit, checkpoints, chunk, free: pages, held, by_age, clock: 0, said }
    }

    /// The tokens that the worker goes on from, and those of which it has the keys.
    fn reusable(&self, request: &Request) -> (usize, usize) {
        let has = |set, end| self.held.contains_key(&Block { set, hash: request.hash(end) });
        let most = (request.tokens - 1) / self.unit;
        let keys = (1..=most).take_while(|block| has(0, block * self.unit)).count() * self.unit;
        let goes_on =
            |end: &usize| (1..self.sets.len()).all(|set| self.sets[set].needed(*end).all(|end| has(set, end)));
        (self.ends(keys).find(goes_on).unwrap_or(0), keys)
    }

    fn ends(&self, most: usize) -> impl Iterator<Item = usize> + use<> {
        let unit = self.unit;
        (1..=most / unit).rev().map(move |block| block * unit)
    }

    /// Computes a prompt and keeps what the engine keeps of it; says how many tokens were reused.
    pub(crate) fn serve(&mut self, request: &Request) -> usize {
        let (reused, keys) = self.reusable(request);
        // What the prompt uses beside keys, by set: where each block ends, and whether it is kept.
        let mut used: Vec<VecDeque<(usize, bool)>> = vec![VecDeque::new(); self.sets.len()];
        self.ends(reused).for_each(|end| self.pin(Block { set: 0, hash: request.hash(end) }));
        for (set, used) in used.iter_mut().enumerate().skip(1).filter(|_| reused > 0) {
            for end in self.sets[set].needed(reused) {
                self.pin(Block { set, hash: request.hash(end) });
                used.push_front((end, true));
            }
        }
        let unit = self.unit;
        let last = (request.tokens - 1) / unit * unit;
        let boundaries = [last, keys].map(|end| if self.checkpoints == Checkpoints::Boundaries { end } else { 0 });
        // The engine ends chunks where a state is to be kept; what a window needs is written by the way.
        let ends_there = self.sets.iter().any(|set| set.kind == Kind::State);
        let (mut from, whole) = (reused, request.tokens / unit * unit);
        while from < whole {
            let most = (from + (self.chunk / unit).max(1) * unit).min(whole);
            let to =
                boundaries.into_iter().filter(|end| ends_there && (from + 1..most).contains(end)).min().unwrap_or(most);
            let kept_ends = if self.checkpoints == Checkpoints::ChunkEnds { [to, 0] } else { boundaries };
            for (set, used) in used.iter_mut().enumerate().skip(1) {
                self.release(request, set, used, self.passed(set, from));
            }
            self.keep(request, 0, from..to, (from / unit + 1..=to / unit).map(|block| block * unit));
            for (set, used) in used.iter_mut().enumerate().skip(1) {
                let needed: Vec<usize> = kept_ends.iter().flat_map(|end| self.sets[set].needed(*end)).collect();
                // A window's blocks are written whether they are kept or not; of states, those that are kept.
                let block = self.sets[set].block;
                let written: Vec<usize> = match self.sets[set].kind {
                    Kind::Window => (from / block + 1..=to / block).map(|number| number * block).collect(),
                    _ => needed.iter().copied().find(|end| *end == to).into_iter().collect(),
                };
                let new = |end: &&usize| needed.contains(*end) && !self.has(request, set, **end);
                let kept: Vec<usize> = written.iter().filter(new).copied().collect();
                let scratch = written.iter().filter(|end| !kept.contains(end)).count() * self.sets[set].pages();
                let has_room = self.room(scratch);
                used.extend(
                    written.iter().filter(|end| has_room || kept.contains(end)).map(|end| (*end, kept.contains(end))),
                );
                self.keep(request, set, from..to, kept.into_iter());
            }
            from = to;
        }
        self.ends(whole).for_each(|end| self.give_back(Block { set: 0, hash: request.hash(end) }));
        for (set, mut used) in used.into_iter().enumerate().skip(1) {
            self.release(request, set, &mut used, usize::MAX);
        }
        reused
    }

    fn has(&self, request: &Request, set: usize, end: usize) -> bool {
        self.held.contains_key(&Block { set, hash: request.hash(end) })
    }

    /// Blocks that end here or before are no longer needed by who goes on from so many tokens.
    fn passed(&self, set: usize, tokens: usize) -> usize {
        match self.sets[set].kind {
            Kind::Window => (tokens + 1).saturating_sub(self.sets[set].window),
            _ => tokens.saturating_sub(1),
        }
    }

    fn release(&mut self, request: &Request, set: usize, used: &mut VecDeque<(usize, bool)>, passed: usize) {
        while let Some((end, is_kept)) = used.front().copied().filter(|(end, _)| *end <= passed) {
            used.pop_front();
            if is_kept {
                self.give_back(Block { set, hash: request.hash(end) });
            } else {
                self.free += self.sets[set].pages();
            }
        }
    }

    fn pin(&mut self, block: Block) {
        if let Some(age) = self.held.insert(block, 0) {
            self.by_age.remove(&age);
        }
    }

    /// Nobody uses a block any more: it may go when all that was given back before has gone.
    fn give_back(&mut self, block: Block) {
        if let Some(age) = self.held.get_mut(&block) {
            self.by_age.remove(age);
            self.clock += 1;
            *age = self.clock;
            self.by_age.insert(self.clock, block);
        }
    }

    /// Takes pages, from what was given back first if none are free.
    fn room(&mut self, pages: usize) -> bool {
        while self.free < pages {
            let Some((_, gone)) = self.by_age.pop_first() else { return false };
            self.held.remove(&gone);
            self.free += self.sets[gone.set].pages();
            self.said.push(Said::Removed { set: gone.set, hash: gone.hash });
        }
        self.free -= pages;
        true
    }

    fn keep(&mut self, request: &Request, set: usize, stretch: Range<usize>, ends: impl Iterator<Item = usize>) {
        let mut kept = Vec::new();
        for end in ends {
            let block = Block { set, hash: request.hash(end) };
            if self.held.contains_key(&block) {
                self.pin(block);
            } else if self.room(self.sets[set].pages()) {
                self.held.insert(block, 0);
                kept.push(end);
            }
        }
        if !kept.is_empty() {
            self.said.push(Said::Stored { set, stretch, ends: kept });
        }
    }
}
