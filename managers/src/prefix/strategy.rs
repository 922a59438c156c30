//! At which lengths a request leaves checkpoints.
//!
//! What engines ship as modes are choices of one mechanism: which positions of an extend are worth a state, and
//! whether the final state moves into the tree.

use serde::{Deserialize, Serialize};

use super::config::TreeConfig;
use super::key::floor;

/// Chooses what happens at the position where an earlier request turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BranchRule {
    /// Nothing.
    Ignore,
    /// Checkpoint there in place of the aligned position: one checkpoint per forward.
    Instead,
    /// Checkpoint there too.
    Also,
}

/// Which checkpoints a request leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strategy {
    /// The running state at the end of every prefill chunk.
    pub chunk_ends: bool,
    /// The deepest interior state of every chunk. The end of a prompt serves no resend of it, since at least one
    /// token has to be computed; the interior one does.
    pub interior: bool,
    /// The branch position that the lookup reported.
    pub branch: BranchRule,
    /// The running state whenever the length is a multiple of this during decode.
    pub decode_interval: Option<usize>,
    /// The final state, wherever it is.
    pub finish: bool,
}

impl Strategy {
    /// One running state per request and nothing beside it: chunk ends and the exact finish.
    pub const NO_BUFFER: Self =
        Self { chunk_ends: true, interior: false, branch: BranchRule::Ignore, decode_interval: None, finish: true };

    /// A second buffer tracks one aligned or branch position per forward and a position per decode interval; only
    /// what was tracked last is kept at the finish.
    #[must_use]
    pub const fn double_buffered(decode_interval: usize) -> Self {
        Self {
            chunk_ends: false,
            interior: true,
            branch: BranchRule::Instead,
            decode_interval: Some(decode_interval),
            finish: false,
        }
    }

    /// Everything that can serve a later request.
    #[must_use]
    pub const fn complete(decode_interval: Option<usize>) -> Self {
        Self { chunk_ends: true, interior: true, branch: BranchRule::Also, decode_interval, finish: true }
    }
}

/// One forward over a part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend {
    /// Tokens that the running state has absorbed before.
    pub start: usize,
    /// Tokens that it has absorbed after.
    pub end: usize,
    /// Length of the prompt.
    pub prompt: usize,
    /// The branch position of the request's lookup.
    pub branch: Option<usize>,
}

/// Tells where the state of a checkpoint comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The state that the scan passes at a multiple of the model's chunk, **counted from the start of the extend**.
    Interior,
    /// The running state after the extend.
    End,
    /// No state exists there unless the forward is cut in two at this position.
    Cut,
}

/// A state that an extend should leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Tokens that the state has absorbed.
    pub position: usize,
    /// How to get it.
    pub source: Source,
}

impl Strategy {
    /// The checkpoints of one forward, shallowest first. All of them can be keyed: they are multiples of the page.
    #[must_use]
    pub fn checkpoints(&self, tree: &TreeConfig, extend: Extend) -> Vec<Checkpoint> {
        let Extend { start, end, prompt, branch } = extend;
        let branch = branch.filter(|&b| self.branch != BranchRule::Ignore && start < b && b <= end);
        let deepest = match (self.chunk_ends, end < prompt) {
            // The one tracked position of this forward.
            (false, _) => end,
            // The chunk's end serves every prompt that goes on.
            (true, true) => start,
            (true, false) => prompt.saturating_sub(1),
        };
        let aligned = start + floor(deepest.saturating_sub(start), tree.grid());
        let mut positions = Vec::new();
        match (self.branch, branch) {
            (BranchRule::Instead, Some(b)) if (b - start).is_multiple_of(tree.chunk) => positions.push(b),
            (BranchRule::Also, Some(b)) => positions.extend([b, aligned]),
            _ => positions.push(aligned),
        }
        if !self.interior {
            positions.clear();
        }
        if self.chunk_ends {
            positions.push(end);
        }
        positions.retain(|&p| p > start && p.is_multiple_of(tree.page));
        positions.sort_unstable();
        positions.dedup();
        let source = |position: usize| match position {
            p if p == end => Source::End,
            p if (p - start).is_multiple_of(tree.chunk) => Source::Interior,
            _ => Source::Cut,
        };
        positions.into_iter().map(|position| Checkpoint { position, source: source(position) }).collect()
    }

    /// Tells whether the running state should be kept after decode has reached `len` tokens.
    #[must_use]
    pub fn keeps_decoded(&self, tree: &TreeConfig, len: usize) -> bool {
        self.decode_interval.is_some_and(|interval| len.is_multiple_of(interval)) && len.is_multiple_of(tree.page)
    }
}
