//! What one worker holds, and how far it can go on from there.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;

use crate::chain::Chain;
use crate::events::{Batch, Event, Kind, Stored};

/// Hashes of blocks are spread already; a table needs both ends of a number to be.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

type Table<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Groups that are told apart; a block keeps one bit for each.
const GROUPS: u32 = 64;

/// A block, by its hash.
#[derive(Clone, Copy, Default)]
struct Held {
    /// What its tokens are called, where they are known; zero is nothing.
    tokens: u64,
    /// The groups that hold it.
    groups: u64,
}

/// Groups of one kind, block and window: all must hold a block.
#[derive(Clone, Copy, PartialEq)]
struct Component {
    kind: Kind,
    block: usize,
    window: usize,
    groups: u64,
}

/// What of an answer can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The engine counts the same, if none of its layers drafts, once each of its groups has stored a block:
    /// one that has not is not known to be there.
    Exact,
    /// The engine goes on from at most as much: its events name no groups, so that states and windows are not seen.
    AtMostNoGroups,
    /// The engine goes on from at most as much: a group is of a kind without a rule, or one too many.
    AtMostUnknownGroup,
    /// The engine goes on from at least as much: blocks were left out when the bound was reached.
    AtLeastBound,
    /// Neither: events were lost, or came before the index was there; blocks smaller than their group's were seen.
    Estimate,
}

/// What one worker can reuse of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// The tokens that it can go on from.
    pub tokens: usize,
    /// The tokens whose keys alone are there, all that are needed before them included.
    pub keys: usize,
    /// What holds fewer than the keys would allow: windows or states.
    pub limited_by: Option<Kind>,
    /// What the counts are worth.
    pub trust: Trust,
}

#[derive(Default)]
pub(crate) struct Book {
    blocks: Table<u64, Held>,
    /// From what tokens are called to a block's hash.
    by_tokens: Table<u64, u64>,
    /// Copies of a block beyond the first: the engine keeps them apart, and removes each.
    copies: Table<(u64, u8), u32>,
    groups: Vec<Option<Component>>,
    /// The windows of groups without numbers: the widest sees everything.
    windows: Vec<u32>,
    components: Vec<Component>,
    /// Hits end at multiples of this.
    unit: usize,
    next: Option<u64>,
    is_lost: bool,
    is_full: bool,
    has_no_groups: bool,
    has_unknown: bool,
    has_parts: bool,
    left_out: u64,
}

impl Book {
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.next
    }

    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Takes a batch with the publisher's number. A publisher that begins anew is a process that began anew.
    pub(crate) fn take(&mut self, number: u64, batch: &Batch, most: usize) {
        match self.next {
            None => self.is_lost = number != 0,
            Some(_) if number == 0 => *self = Self::default(),
            // Sent again.
            Some(next) if number < next => return,
            Some(next) => self.is_lost |= number > next,
        }
        self.next = Some(number.saturating_add(1));
        for event in &batch.events {
            match event {
                Event::Stored(stored) if stored.on_device => self.store(stored, most),
                Event::Removed { hashes, group, window, on_device: true } => {
                    let number = self.number(*group, *window);
                    self.remove(hashes, number);
                }
                Event::Cleared => {
                    self.blocks.clear();
                    self.by_tokens.clear();
                    self.copies.clear();
                    // Nothing is held: nothing that was lost counts any more.
                    (self.is_lost, self.is_full) = (false, false);
                }
                Event::Stored(_) | Event::Removed { .. } => {}
            }
        }
    }

    fn store(&mut self, stored: &Stored, most: usize) {
        let number = self.number(stored.group, stored.window);
        if number >= GROUPS {
            self.has_unknown = true;
            return;
        }
        self.learn(number as usize, stored);
        let bit = 1 << number;
        let block = stored.block as usize;
        let mut chain = match stored.parent {
            // Whether they are all of the stretch decides whether tokens and hashes go together.
            _ if stored.is_keyed || stored.hashes.len().checked_mul(block) != Some(stored.tokens.len()) => None,
            None => Some(Chain::default()),
            Some(parent) => {
                let parent = self.blocks.get(&parent).map_or(0, |held| held.tokens);
                (parent != 0).then(|| Chain::after(parent))
            }
        };
        for (at, hash) in stored.hashes.iter().enumerate() {
            let tokens = chain.as_mut().map_or(0, |chain| {
                chain.extend(&stored.tokens[at * block..(at + 1) * block]);
                chain.name()
            });
            if self.blocks.len() >= most && !self.blocks.contains_key(hash) {
                self.is_full = true;
                self.left_out += 1;
                continue;
            }
            let held = self.blocks.entry(*hash).or_default();
            if held.groups & bit != 0 {
                let copies = self.copies.entry((*hash, number as u8)).or_default();
                *copies = copies.saturating_add(1);
            }
            held.groups |= bit;
            if held.tokens == 0 && tokens != 0 {
                held.tokens = tokens;
                self.by_tokens.insert(tokens, *hash);
            }
        }
    }

    /// A group's number; one that has none is told by its window.
    fn number(&mut self, group: Option<u32>, window: Option<u32>) -> u32 {
        match (group, window) {
            (Some(group), _) => group,
            (None, None) => 0,
            (None, Some(window)) => {
                let at = self.windows.iter().position(|known| *known == window).unwrap_or_else(|| {
                    // One beyond those that are told apart stands for all further ones.
                    self.windows.truncate(GROUPS as usize);
                    self.windows.push(window);
                    self.windows.len() - 1
                });
                at as u32
            }
        }
    }

    /// What a group keeps follows from its events.
    fn learn(&mut self, number: usize, stored: &Stored) {
        self.has_no_groups |= stored.group.is_none();
        let told = Component {
            kind: stored.kind.unwrap_or(if stored.group.is_none() { Kind::Full } else { Kind::Unknown }),
            block: stored.block as usize,
            window: stored.window.unwrap_or(0) as usize,
            groups: 1 << number,
        };
        let same = |known: Component| {
            (known.block, known.window, known.kind == told.kind || stored.group.is_none())
                == (told.block, told.window, true)
        };
        if self.groups.len() <= number {
            self.groups.resize(number + 1, None);
        }
        match self.groups[number] {
            Some(known) if same(known) => return,
            // The tail of a prompt is stored in a part of a block.
            Some(known) if told.block < known.block => {
                self.has_parts = true;
                return;
            }
            Some(known) => self.has_parts |= known.block < told.block,
            None => {}
        }
        self.groups[number] = Some(told);
        self.has_unknown |= told.kind == Kind::Unknown || (told.kind == Kind::Window && told.window == 0);
        let widest = self.windows.iter().max().map(|widest| *widest as usize);
        for (group, window) in self.groups.iter_mut().zip(&self.windows) {
            if let Some(group) = group {
                group.kind = if Some(*window as usize) == widest { Kind::Full } else { Kind::Window };
            }
        }
        let mut components: Vec<Component> = Vec::new();
        for group in self.groups.iter().flatten().filter(|group| group.kind != Kind::Unknown) {
            let same = components
                .iter_mut()
                .find(|one| (one.kind, one.block, one.window) == (group.kind, group.block, group.window));
            match same {
                Some(one) => one.groups |= group.groups,
                None => components.push(*group),
            }
        }
        self.unit = components.iter().map(|one| one.block).fold(1, least_common_multiple);
        self.components = components;
    }

    fn remove(&mut self, hashes: &[u64], number: u32) {
        if number >= GROUPS {
            return;
        }
        for hash in hashes {
            // Of what came before the index, or was left out.
            let Some(held) = self.blocks.get_mut(hash).filter(|held| held.groups & 1 << number != 0) else { continue };
            // Most books have no copies at all.
            if !self.copies.is_empty()
                && let Some(copies) = self.copies.get_mut(&(*hash, number as u8))
            {
                *copies -= 1;
                if *copies == 0 {
                    self.copies.remove(&(*hash, number as u8));
                }
                continue;
            }
            held.groups &= !(1 << number);
            if held.groups == 0 {
                let tokens = held.tokens;
                self.blocks.remove(hash);
                if tokens != 0 && self.by_tokens.get(&tokens) == Some(hash) {
                    self.by_tokens.remove(&tokens);
                }
            }
        }
    }

    /// The hash of the block whose tokens are called so.
    pub(crate) fn named(&self, tokens: u64) -> Option<u64> {
        self.by_tokens.get(&tokens).copied()
    }

    /// What can be reused of at most `most` tokens, of which `hash` tells the hash up to a number of them.
    pub(crate) fn reuse(&self, most: usize, hash: impl Fn(&Self, usize) -> Option<u64>) -> Reuse {
        let holds = |groups: u64, end: usize| {
            hash(self, end).and_then(|hash| self.blocks.get(&hash)).is_some_and(|held| held.groups & groups == groups)
        };
        let unit = self.unit.max(1);
        let trust = self.trust();
        let mut keys = if self.components.is_empty() { 0 } else { most };
        for full in self.components.iter().filter(|one| one.kind == Kind::Full) {
            let blocks = keys / full.block;
            let first_missing = (0..blocks).find(|at| !holds(full.groups, (at + 1) * full.block));
            keys = first_missing.unwrap_or(blocks) * full.block;
        }
        keys = keys / unit * unit;
        let (mut tokens, mut limited_by) = (keys, None);
        // Each component accepts a length or names a shorter one; all must accept the same.
        let mut accepted = 0;
        while accepted < self.components.len() && tokens > 0 {
            accepted = 0;
            for one in &self.components {
                let shorter = match one.kind {
                    Kind::State => last_state(tokens, unit, |end| holds(one.groups, end)),
                    Kind::Window => last_window(tokens, unit, one, |end| holds(one.groups, end)),
                    Kind::Full | Kind::Unknown => tokens,
                };
                if shorter == tokens {
                    accepted += 1;
                } else {
                    (tokens, limited_by) = (shorter, limited_by.or(Some(one.kind)));
                }
            }
        }
        Reuse { tokens, keys, limited_by, trust }
    }

    fn trust(&self) -> Trust {
        match self {
            _ if self.is_lost || self.has_parts || self.next.is_none() => Trust::Estimate,
            _ if self.is_full && (self.has_no_groups || self.has_unknown) => Trust::Estimate,
            _ if self.is_full => Trust::AtLeastBound,
            _ if self.has_no_groups => Trust::AtMostNoGroups,
            _ if self.has_unknown => Trust::AtMostUnknownGroup,
            _ => Trust::Exact,
        }
    }
}

/// The longest multiple of `unit`, at most `tokens`, that has a state.
fn last_state(tokens: usize, unit: usize, holds: impl Fn(usize) -> bool) -> usize {
    (1..=tokens / unit).rev().map(|units| units * unit).find(|end| holds(*end)).unwrap_or(0)
}

/// The longest multiple of `unit`, at most `tokens`, before which a window's blocks are all there.
fn last_window(tokens: usize, unit: usize, of: &Component, holds: impl Fn(usize) -> bool) -> usize {
    let needed = of.window.saturating_sub(1).div_ceil(of.block).max(1);
    let mut end = tokens / unit * unit;
    while end > 0 {
        let blocks = end / of.block;
        let missing = (blocks.saturating_sub(needed)..blocks).rev().find(|at| !holds((at + 1) * of.block));
        match missing {
            Some(at) => end = at * of.block / unit * unit,
            None => break,
        }
    }
    end
}

fn least_common_multiple(one: usize, other: usize) -> usize {
    let (mut left, mut right) = (one, other);
    while right != 0 {
        (left, right) = (right, left % right);
    }
    // Blocks of no common multiple that counts meet nowhere.
    (one / left.max(1)).saturating_mul(other)
}
