//! How far a worker can go on along the stretches of a prompt that it holds.

use crate::events::Kind;

/// Blocks of a prompt, one behind the other, that the same groups of a worker hold.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Span {
    /// The tokens up to the end of the first block.
    pub(crate) first: usize,
    /// The tokens up to the end of the last one.
    pub(crate) last: usize,
    /// Tokens of each.
    pub(crate) step: usize,
    pub(crate) groups: u64,
    /// The last token of this and of all that begin before it.
    pub(crate) reach: usize,
}

impl Span {
    fn has(&self, groups: u64, end: usize) -> bool {
        self.groups & groups == groups
            && self.first <= end
            && end <= self.last
            && (end == self.first || (end - self.first).is_multiple_of(self.step))
    }
}

/// Groups of one kind, block and window: all must hold a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Component {
    pub(crate) kind: Kind,
    pub(crate) block: usize,
    pub(crate) window: usize,
    pub(crate) groups: u64,
}

impl Component {
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.kind, self.block, self.window) == (other.kind, other.block, other.window)
    }
}

/// The stretches of a prompt that each slot holds, as they begin one behind the other.
pub(crate) struct BySlot {
    /// Where the stretches of each slot begin, and where the last one's end.
    begins: Vec<usize>,
    spans: Vec<Span>,
}

impl BySlot {
    pub(crate) fn new(found: &[(u32, Span)], slots: usize) -> Self {
        let mut begins = vec![0; slots + 1];
        found.iter().for_each(|(slot, _)| begins[*slot as usize] += 1);
        (1..begins.len()).for_each(|slot| begins[slot] += begins[slot - 1]);
        let mut spans = vec![Span::default(); found.len()];
        // From the last to the first, each slot's end moves to where its stretches begin.
        for (slot, span) in found.iter().rev() {
            begins[*slot as usize] -= 1;
            spans[begins[*slot as usize]] = *span;
        }
        for slot in begins.windows(2).filter(|slot| slot[1] - slot[0] > 1) {
            spans[slot[0]..slot[1]].sort_by_key(|span| span.first);
            let mut reach = 0;
            for span in &mut spans[slot[0]..slot[1]] {
                reach = reach.max(span.last);
                span.reach = reach;
            }
        }
        Self { begins, spans }
    }

    pub(crate) fn of(&self, slot: u32) -> &[Span] {
        &self.spans[self.begins[slot as usize]..self.begins[slot as usize + 1]]
    }
}

/// The stretch that has a block which ends here, of those that begin no later. Blocks of several sizes may lie across each other.
fn covering(before: &[Span], groups: u64, end: usize) -> Option<&Span> {
    before.iter().rev().take_while(|span| span.reach >= end).find(|span| span.has(groups, end))
}

/// How many of `most` tokens have keys without a gap.
pub(crate) fn keys(spans: &[Span], of: &Component, most: usize) -> usize {
    let (mut end, mut before) = (0, 0);
    while end + of.block <= most {
        let next = end + of.block;
        before += spans[before..].iter().take_while(|span| span.first <= next).count();
        let Some(span) = covering(&spans[..before], of.groups, next) else { break };
        end = if of.block.is_multiple_of(span.step) {
            next + (span.last.min(most) - next) / of.block * of.block
        } else {
            next
        };
    }
    end
}

/// The longest multiple of `unit`, at most `tokens`, that has a state.
pub(crate) fn last_state(spans: &[Span], of: &Component, tokens: usize, unit: usize) -> usize {
    let mut best = 0;
    for span in spans.iter().rev().filter(|span| span.groups & of.groups == of.groups && span.first <= tokens) {
        let steps = (span.last.min(tokens) - span.first) / span.step;
        let ends = (0..=steps).rev().map(|steps| span.first + steps * span.step).take_while(|end| *end > best);
        best = ends.into_iter().find(|end| end.is_multiple_of(unit)).unwrap_or(best);
    }
    best
}

/// The longest multiple of `unit`, at most `tokens`, before which a window's blocks are all there.
pub(crate) fn last_window(spans: &[Span], of: &Component, tokens: usize, unit: usize) -> usize {
    let needed = of.window.saturating_sub(1).div_ceil(of.block).max(1);
    let mut end = tokens / unit * unit;
    'shorter: while end > 0 {
        let blocks = end / of.block;
        let before = blocks.saturating_sub(needed) * of.block;
        let mut next = blocks * of.block;
        while next > before {
            let begun = spans.partition_point(|span| span.first <= next);
            let Some(span) = covering(&spans[..begun], of.groups, next) else {
                end = (next - of.block) / unit * unit;
                continue 'shorter;
            };
            let steps = if of.block.is_multiple_of(span.step) { (next - span.first) / of.block } else { 0 };
            next = next.saturating_sub((steps + 1) * of.block);
        }
        break;
    }
    end
}
