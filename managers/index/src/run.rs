//! Blocks that follow each other in a text, and who holds which of them.

use crate::multiples::least_common_multiple;
use crate::spans::Span;

/// What is asked by: one key for every `quantum` tokens.
#[derive(Clone, Copy)]
pub(crate) enum Keys<'a> {
    Hashes(&'a [u64]),
    Names(&'a [u64]),
}

impl<'a> Keys<'a> {
    pub(crate) fn all(self) -> &'a [u64] {
        match self {
            Self::Hashes(keys) | Self::Names(keys) => keys,
        }
    }
}

/// Blocks side by side that the same groups of a slot hold.
#[derive(Clone, Copy, PartialEq)]
struct Held {
    slot: u32,
    first: u32,
    last: u32,
    groups: u64,
}

/// What a slot held of a run before and after.
pub(crate) struct Change {
    /// The groups that held the block before.
    pub(crate) before: u64,
    /// Those that do now.
    pub(crate) after: u64,
    /// Whether the slot holds anything of the run.
    pub(crate) holds_run: bool,
}

pub(crate) struct Run {
    step: usize,
    hashes: Vec<u64>,
    /// Zero where nobody said.
    names: Vec<u64>,
    /// How many slots hold each block.
    holders: Vec<u32>,
    /// By slot, then by place.
    held: Vec<Held>,
}

impl Run {
    pub(crate) fn new(step: usize) -> Self {
        Self { step, hashes: Vec::new(), names: Vec::new(), holders: Vec::new(), held: Vec::new() }
    }

    pub(crate) fn step(&self) -> usize {
        self.step
    }

    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    pub(crate) fn has(&self, at: usize, hash: u64) -> bool {
        self.hashes.get(at) == Some(&hash)
    }

    /// Whether a slot's groups hold the block at a place.
    pub(crate) fn is_held(&self, slot: u32, at: usize) -> bool {
        let at = at as u32;
        self.held.get(self.find(slot, at)).is_some_and(|held| held.slot == slot && held.first <= at)
    }

    pub(crate) fn is_called(&self, at: usize, name: u64) -> bool {
        self.names.get(at) == Some(&name)
    }

    pub(crate) fn name_of(&self, at: usize, hash: u64) -> Option<u64> {
        if self.has(at, hash) { self.names.get(at).copied() } else { None }
    }

    pub(crate) fn push(&mut self, hash: u64, name: u64) {
        self.hashes.push(hash);
        self.names.push(name);
        self.holders.push(0);
    }

    /// Calls a block that had no name so; says whether it had none.
    pub(crate) fn call(&mut self, at: usize, name: u64) -> bool {
        let is_new = name != 0 && self.names[at] == 0;
        if is_new {
            self.names[at] = name;
        }
        is_new
    }

    /// The first stretch of the slot that ends at the place or behind it.
    fn find(&self, slot: u32, at: u32) -> usize {
        self.held.partition_point(|held| (held.slot, held.last) < (slot, at))
    }

    pub(crate) fn add(&mut self, slot: u32, at: usize, groups: u64) -> Change {
        self.change(slot, at, |before| before | groups)
    }

    pub(crate) fn remove(&mut self, slot: u32, at: usize, groups: u64) -> Change {
        self.change(slot, at, |before| before & !groups)
    }

    fn change(&mut self, slot: u32, place: usize, of: impl Fn(u64) -> u64) -> Change {
        // A run is far shorter than 2^32 blocks.
        let at = place as u32;
        let found = self.find(slot, at);
        let old = self.held.get(found).copied().filter(|held| held.slot == slot && held.first <= at);
        let before = old.map_or(0, |old| old.groups);
        let after = of(before);
        if before != after {
            self.holders[place] += u32::from(before == 0);
            self.holders[place] -= u32::from(after == 0);
            let ahead = old.filter(|old| old.first < at).map(|old| Held { last: at - 1, ..old });
            let now = (after != 0).then_some(Held { slot, first: at, last: at, groups: after });
            let behind = old.filter(|old| old.last > at).map(|old| Held { first: at + 1, ..old });
            let pieces = [ahead, now, behind].into_iter().flatten();
            self.held.splice(found..found + usize::from(old.is_some()), pieces);
            for at in (found.saturating_sub(1)..found + 3).rev() {
                self.join(at);
            }
        }
        let near = [found.checked_sub(1), Some(found)];
        let holds_run = near.into_iter().flatten().any(|at| self.held.get(at).is_some_and(|held| held.slot == slot));
        Change { before, after, holds_run }
    }

    /// Makes one stretch of two that touch, if the same groups hold both.
    fn join(&mut self, at: usize) {
        if let [one, other, ..] = self.held.get(at..).unwrap_or_default()
            && (one.slot, one.groups, one.last + 1) == (other.slot, other.groups, other.first)
        {
            self.held[at].last = other.last;
            self.held.remove(at + 1);
        }
    }

    pub(crate) fn remove_slot(&mut self, slot: u32) {
        for held in self.held.iter().filter(|held| held.slot == slot) {
            self.holders[held.first as usize..=held.last as usize].iter_mut().for_each(|holders| *holders -= 1);
        }
        self.held.retain(|held| held.slot != slot);
    }

    /// Takes away what nobody holds at the end: place, hash and name of each.
    pub(crate) fn trim(&mut self) -> Vec<(usize, u64, u64)> {
        let mut gone = Vec::new();
        while self.holders.last() == Some(&0)
            && let (Some(hash), Some(name)) = (self.hashes.pop(), self.names.pop())
        {
            self.holders.pop();
            gone.push((self.hashes.len(), hash, name));
        }
        gone
    }

    /// From a place at which a question's key stands: the last place that it reaches, and the next key to ask by.
    pub(crate) fn match_from(&self, place: usize, keys: Keys<'_>, at: usize, quantum: usize) -> Option<(usize, usize)> {
        let (here, asked) = match keys {
            Keys::Hashes(keys) => (&self.hashes, keys),
            Keys::Names(keys) => (&self.names, keys),
        };
        let is_equal = |place: usize, at: usize| here.get(place).is_some_and(|here| asked.get(at) == Some(here));
        if !is_equal(place, at) {
            return None;
        }
        let together = least_common_multiple(self.step, quantum);
        let (in_run, in_keys) = (together / self.step, together / quantum);
        let most = ((here.len() - place - 1) / in_run).min((asked.len() - at - 1) / in_keys);
        let equal = reach(most, |steps| is_equal(place + steps * in_run, at + steps * in_keys));
        Some((place + equal * in_run, at + equal * in_keys + 1))
    }

    /// Who holds what from one place to another, of which the first ends at so many tokens of a prompt.
    pub(crate) fn spans(&self, from: usize, to: usize, end: usize, out: &mut Vec<(u32, Span)>) {
        out.reserve(self.held.len());
        out.extend(self.held.iter().filter(|held| held.first as usize <= to && held.last as usize >= from).map(
            |held| {
                let (first, last) = ((held.first as usize).max(from), (held.last as usize).min(to));
                let span = Span {
                    first: end + (first - from) * self.step,
                    last: end + (last - from) * self.step,
                    step: self.step,
                    groups: held.groups,
                    reach: end + (last - from) * self.step,
                };
                (held.slot, span)
            },
        ));
    }
}

/// The farthest of `most` steps at which two texts are equal. A key stands for all that comes before it: most texts are told
/// alike by their last one, and where they part is found in steps that double and then halve.
fn reach(most: usize, is_equal: impl Fn(usize) -> bool) -> usize {
    if is_equal(most) {
        return most;
    }
    let (mut equal, mut step) = (0, 1);
    while step < most - equal && is_equal(equal + step) {
        equal += step;
        step *= 2;
    }
    let mut other = most.min(equal + step);
    while other - equal > 1 {
        let middle = equal + (other - equal) / 2;
        if is_equal(middle) { equal = middle } else { other = middle }
    }
    equal
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of blocks of `step` tokens, and a question by every `quantum` tokens that parts from it behind `part` tokens.
    fn reached(step: usize, quantum: usize, blocks: usize, part: usize) -> Option<(usize, usize)> {
        let mut run = Run::new(step);
        (1..=blocks).for_each(|block| run.push((block * step) as u64, 0));
        let other = |end: usize| if end > part { 1 << 32 } else { 0 };
        let keys: Vec<u64> = (1..=40).map(|at| at * quantum).map(|end| (end + other(end)) as u64).collect();
        let together = least_common_multiple(step, quantum);
        run.match_from(together / step - 1, Keys::Hashes(&keys), together / quantum - 1, quantum)
    }

    #[test]
    fn a_text_is_followed_to_where_a_question_parts_from_it() {
        for (step, quantum) in [(1, 1), (2, 1), (1, 2), (2, 3), (6, 4)] {
            let together = least_common_multiple(step, quantum);
            for blocks in together / step..40 {
                for part in 0..50 * together {
                    let end = part.min(blocks * step).min(40 * quantum) / together * together;
                    let expected = (end > 0).then(|| (end / step - 1, end / quantum));
                    assert_eq!(reached(step, quantum, blocks, part), expected, "{step}, {quantum}, {blocks}, {part}");
                }
            }
        }
    }
}
