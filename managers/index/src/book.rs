//! What one worker holds, from its events.

use std::ops::Range;
use std::sync::Arc;

use crate::chain::Chain;
use crate::events::{Batch, Event, Kind, Stored};
use crate::spans::Component;
use crate::spread::Table;
use crate::texts::{Kept, Runs, Texts};
use crate::view::{Shape, Trust, View};

/// Groups that are told apart; a block keeps one bit for each.
const GROUPS: u32 = 64;

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
    shape: Arc<Shape>,
    /// How often the shape changed.
    shapes: u32,
    /// The number of the batch that comes next.
    next: Option<u64>,
    /// When the last batch was published, as the publisher says.
    time: u64,
    is_lost: bool,
    is_full: bool,
    has_no_groups: bool,
    has_unknown: bool,
    has_parts: bool,
    /// Blocks were stored of which only the hashes are known.
    has_unnamed: bool,
    /// Blocks of the batch under way whose tokens their event does not tell; another group's may.
    unnamed: Vec<u64>,
    left_out: u64,
}

/// How a batch stands to those before it.
enum Follows {
    /// The publisher began, or began anew.
    Anew,
    /// It was taken already.
    Again,
    /// It is the one of this number, or comes after that one.
    Behind(u64),
}

impl Book {
    pub(crate) fn new(slot: u32) -> Self {
        Self { slot, ..Self::default() }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
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

    pub(crate) fn view(&self) -> View {
        View { shape: Arc::clone(&self.shape), trust: self.trusts() }
    }

    /// The numbers that come before a batch and were not taken.
    pub(crate) fn missing(&self, number: u64, batch: &Batch) -> Range<u64> {
        match self.follows(number, batch) {
            Follows::Anew => 0..number,
            Follows::Again => number..number,
            Follows::Behind(next) => next..number,
        }
    }

    /// A publisher counts from zero: one that says a lower number at a later time is a process that began anew.
    fn follows(&self, number: u64, batch: &Batch) -> Follows {
        match self.next {
            None => Follows::Anew,
            Some(next) if number >= next => Follows::Behind(next),
            Some(_) if number == 0 || batch.time > self.time => Follows::Anew,
            Some(_) => Follows::Again,
        }
    }

    /// Takes a batch with the publisher's number; says whether its view changed.
    pub(crate) fn take(&mut self, number: u64, batch: &Batch, most: usize, texts: &Texts) -> bool {
        let before = (self.shapes, self.trusts());
        match self.follows(number, batch) {
            Follows::Anew => {
                self.clear(texts);
                *self = Self { shapes: self.shapes.wrapping_add(1), is_lost: number > 0, ..Self::new(self.slot) };
            }
            Follows::Again => return false,
            Follows::Behind(next) => self.is_lost |= number > next,
        }
        self.time = self.time.max(batch.time);
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
                    (self.is_lost, self.is_full, self.has_unnamed) = (false, false, false);
                    self.unnamed.clear();
                }
                Event::Stored(_) | Event::Removed { .. } => {}
            }
        }
        self.has_unnamed |= self.unnamed.drain(..).any(|hash| texts.name(hash).is_none());
        before != (self.shapes, self.trusts())
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
        // Only of all blocks of a stretch is it known which tokens each has.
        let is_whole = stored.hashes.len().checked_mul(block) == Some(stored.tokens.len());
        let mut chain = match stored.parent {
            _ if stored.is_keyed || !is_whole => None,
            None => Some(Chain::default()),
            Some(parent) => texts.name(parent).map(Chain::after),
        };
        let mut parent = stored.parent;
        for (at, hash) in stored.hashes.iter().enumerate() {
            let name = chain.as_mut().map_or(0, |chain| {
                chain.extend(&stored.tokens[at * block..(at + 1) * block]);
                chain.name()
            });
            if name == 0 && !stored.is_keyed {
                self.unnamed.push(*hash);
            }
            let has_room = self.blocks < most || texts.is_held(self.slot, *hash);
            let kept = Kept { hash: *hash, name, block, slot: self.slot, groups: bit };
            let Some((place, change)) = has_room.then(|| texts.keep(&kept, parent)).flatten() else {
                self.is_full = true;
                self.left_out += 1;
                continue;
            };
            parent = Some(*hash);
            if change.before & bit != 0 {
                if self.copies.len() < most {
                    let copies = self.copies.entry((*hash, number as u8)).or_default();
                    *copies = copies.saturating_add(1);
                } else {
                    (self.is_full, self.left_out) = (true, self.left_out + 1);
                }
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
        self.shape = Arc::new(Shape::new(self.groups.iter().flatten().copied()));
        self.shapes = self.shapes.wrapping_add(1);
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

    /// Of answers to questions by hashes, and by tokens.
    fn trusts(&self) -> [Trust; 2] {
        let by_hashes = self.trust();
        let by_tokens = match by_hashes {
            _ if !self.has_unnamed => by_hashes,
            Trust::Exact => Trust::AtLeastNamed,
            Trust::AtLeastBound => by_hashes,
            _ => Trust::Estimate,
        };
        [by_hashes, by_tokens]
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
