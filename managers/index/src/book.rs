//! What one worker holds, and how far it can go on from there.

use std::sync::Arc;

use crate::chain::Chain;
use crate::events::{Batch, Event, Kind, Stored};
use crate::run::least_common_multiple;
use crate::spans::{Component, Span, keys, last_state, last_window};
use crate::spread::Table;
use crate::texts::{Kept, Runs, Texts};

/// Groups that are told apart; a block keeps one bit for each.
const GROUPS: u32 = 64;

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
    /// By which the texts know this worker.
    slot: u32,
    /// Nothing is kept of it any more: it was forgotten while a batch was under way.
    pub(crate) is_gone: bool,
    runs: Runs,
    blocks: usize,
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
    pub(crate) fn new(slot: u32) -> Self {
        Self { slot, ..Self::default() }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.next
    }

    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether what is held behind a gap counts: no group needs all blocks.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.components.is_empty() && self.components.iter().all(|one| one.kind != Kind::Full)
    }

    /// Takes a batch with the publisher's number. A publisher that begins anew is a process that began anew.
    pub(crate) fn take(&mut self, number: u64, batch: &Batch, most: usize, texts: &Texts) {
        match self.next {
            None => self.is_lost = number != 0,
            Some(_) if number == 0 => {
                self.clear(texts);
                *self = Self::new(self.slot);
            }
            // Sent again.
            Some(next) if number < next => return,
            Some(next) => self.is_lost |= number > next,
        }
        self.next = Some(number.saturating_add(1));
        for event in &batch.events {
            match event {
                Event::Stored(stored) if stored.on_device => self.store(stored, most, texts),
                Event::Removed { hashes, group, window, on_device: true } => {
                    let number = self.number(*group, *window);
                    self.remove(hashes, number, texts);
                }
                Event::Cleared => {
                    self.clear(texts);
                    // Nothing is held: nothing that was lost counts any more.
                    (self.is_lost, self.is_full) = (false, false);
                }
                Event::Stored(_) | Event::Removed { .. } => {}
            }
        }
    }

    pub(crate) fn clear(&mut self, texts: &Texts) {
        for (_, run) in self.runs.drain() {
            texts.drop_slot(self.slot, &run);
        }
        self.blocks = 0;
        self.copies.clear();
    }

    fn store(&mut self, stored: &Stored, most: usize, texts: &Texts) {
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
            Some(parent) => texts.name(parent).map(Chain::after),
        };
        let mut parent = stored.parent;
        for (at, hash) in stored.hashes.iter().enumerate() {
            let name = chain.as_mut().map_or(0, |chain| {
                chain.extend(&stored.tokens[at * block..(at + 1) * block]);
                chain.name()
            });
            let has_room = self.blocks < most || texts.is_held(self.slot, *hash);
            let kept = Kept { hash: *hash, name, block, slot: self.slot, groups: bit };
            let Some((place, change)) = has_room.then(|| texts.keep(&kept, parent)).flatten() else {
                self.is_full = true;
                self.left_out += 1;
                continue;
            };
            parent = Some(*hash);
            if change.before & bit != 0 {
                let copies = self.copies.entry((*hash, number as u8)).or_default();
                *copies = copies.saturating_add(1);
            }
            if change.before == 0 {
                self.blocks += 1;
                self.runs.entry(Arc::as_ptr(&place.run) as usize).or_insert(place.run);
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

    fn remove(&mut self, hashes: &[u64], number: u32, texts: &Texts) {
        if number >= GROUPS {
            return;
        }
        for hash in hashes {
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
            // Of what came before the index, or was left out.
            let Some(place) = texts.place(*hash) else { continue };
            let Some(change) = texts.drop_groups(self.slot, &place, *hash, 1 << number) else { continue };
            self.blocks -= usize::from(change.before != 0 && change.after == 0);
            if !change.holds_run {
                self.runs.remove(&(Arc::as_ptr(&place.run) as usize));
            }
        }
    }

    /// What can be reused of at most `most` tokens, of which these stretches are held.
    pub(crate) fn reuse(&self, most: usize, spans: &[Span]) -> Reuse {
        let unit = self.unit.max(1);
        let trust = self.trust();
        let mut of_keys = if self.components.is_empty() { 0 } else { most };
        for full in self.components.iter().filter(|one| one.kind == Kind::Full) {
            of_keys = keys(spans, full, of_keys);
        }
        of_keys = of_keys / unit * unit;
        let (mut tokens, mut limited_by) = (of_keys, None);
        // Each component accepts a length or names a shorter one; all must accept the same.
        let mut accepted = 0;
        while accepted < self.components.len() && tokens > 0 {
            accepted = 0;
            for one in &self.components {
                let shorter = match one.kind {
                    Kind::State => last_state(spans, one, tokens, unit),
                    Kind::Window => last_window(spans, one, tokens, unit),
                    Kind::Full | Kind::Unknown => tokens,
                };
                if shorter == tokens {
                    accepted += 1;
                } else {
                    (tokens, limited_by) = (shorter, limited_by.or(Some(one.kind)));
                }
            }
        }
        Reuse { tokens, keys: of_keys, limited_by, trust }
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
