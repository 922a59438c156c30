//! Checkpoint positions where a state fills one KV block.
//!
//! Engines that page states like KV can keep a state only at block ends, and prefill chunks must end on block
//! boundaries. These are the rules of such a plan; [`Strategy`](super::Strategy) has none of these limits.

use super::key::floor;

/// Positions under the rule that states live at block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAligned {
    /// Tokens per block. 0 counts as 1.
    pub block: usize,
    /// A draft model that reads one unit past a hit and drops it, so that a hit loses its last block.
    pub drops_last: bool,
    /// Tokens at the end of a prompt that have to be computed, at least 1.
    pub look_ahead: usize,
}

/// An interior state that one forward could leave. Lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interior {
    /// Start of the forward.
    pub start: usize,
    /// End of the forward.
    pub end: usize,
    /// Tokens that the state has absorbed.
    pub position: usize,
    /// Unit in which prefixes are identified.
    pub hash_unit: usize,
    /// Unit, from the start of the forward, at which the kernel passes states.
    pub align: usize,
}

impl BlockAligned {
    fn block(&self) -> usize {
        self.block.max(1)
    }

    /// The deepest position whose state can serve a resend of a prompt of `prompt` tokens.
    #[must_use]
    pub fn last_position(&self, prompt: usize) -> usize {
        if self.drops_last {
            floor(prompt, self.block()).saturating_sub(self.block())
        } else {
            floor(prompt.saturating_sub(self.look_ahead), self.block())
        }
    }

    /// The positions from which a prompt, and one that continues it, would be replayed.
    #[must_use]
    pub fn replay_positions(&self, prompt: usize) -> Vec<usize> {
        if !self.drops_last {
            return vec![self.last_position(prompt)];
        }
        let mut positions = vec![self.last_position(prompt.saturating_sub(1)), self.last_position(prompt)];
        positions.dedup();
        positions
    }

    /// The positions whose states are kept: replay positions, the branch, and one per `interval` tokens.
    /// An interval of 0 keeps no more; `None` keeps all.
    #[must_use]
    pub fn kept(&self, prompt: usize, interval: Option<usize>, branch: Option<usize>) -> Vec<usize> {
        let ends = (1..=prompt / self.block()).map(|i| i * self.block());
        let Some(interval) = interval else {
            return ends.collect();
        };
        let replay = self.replay_positions(prompt);
        let branch = branch.map(|b| floor(b, self.block()));
        ends.filter(|end| replay.contains(end) || branch == Some(*end) || interval > 0 && end.is_multiple_of(interval))
            .collect()
    }

    /// How many tokens a forward from `start` takes with a budget of `budget`: as many as leave the running state on
    /// a block boundary, or all that are left of the prompt. 0 means that the request has to wait.
    ///
    /// Where kernels cannot leave `interior` states, the forward also stops at the last position and at the branch.
    #[must_use]
    pub fn schedule(&self, prompt: usize, start: usize, budget: usize, interior: bool, branch: Option<usize>) -> usize {
        let mut end = prompt.min(start.saturating_add(budget));
        if !interior || !start.is_multiple_of(self.block()) {
            let stops = [
                Some(floor(start, self.block()) + self.block()).filter(|_| !start.is_multiple_of(self.block())),
                Some(self.last_position(prompt)),
                branch.map(|b| floor(b, self.block())),
            ];
            let stop = stops.into_iter().flatten().filter(|&stop| stop > start).min();
            end = end.min(stop.unwrap_or(end));
        }
        if end < prompt {
            end = floor(end, self.block());
        }
        end.saturating_sub(start)
    }

    /// Whether an interior state can be kept: the forward starts on a block, the kernel passes the position, prefixes
    /// are identified there, and the block it would fill is not the one that the end of the forward fills.
    #[must_use]
    pub fn keeps_interior(&self, at: Interior) -> bool {
        let Interior { start, end, position, hash_unit, align } = at;
        let column = |len: usize| (len - 1) / self.block();
        start.is_multiple_of(self.block())
            && start < position
            && position < end
            && (position - start).is_multiple_of(align)
            && position.is_multiple_of(hash_unit)
            && !(end.is_multiple_of(self.block()) && column(position) == column(end))
    }
}
