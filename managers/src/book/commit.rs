//! Committing speculative steps: which candidates count, and what the pools must do for it.

use std::sync::Arc;

use super::cache::CacheBook;
use super::layout::Layout;
use super::sequence::{Draft, Sequence};
use super::{PoolOp, SequenceId};
use crate::book::error::{BookError, Result};

/// Which candidates of a speculative step were accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted<'a> {
    /// The first so many; 0 rolls back to before the step.
    First(u32),
    /// The candidates on a path through the token tree, ascending; the empty path rolls back.
    Path(&'a [u32]),
}

impl Accepted<'_> {
    fn len(self) -> u32 {
        match self {
            Self::First(count) => count,
            Self::Path(path) => path.len() as u32,
        }
    }

    fn path(self) -> Vec<u32> {
        match self {
            Self::First(count) => (0..count).collect(),
            Self::Path(path) => path.to_vec(),
        }
    }

    fn last(self) -> Option<u32> {
        match self {
            Self::First(count) => count.checked_sub(1),
            Self::Path(path) => path.last().copied(),
        }
    }
}

impl CacheBook {
    /// Commits or rolls back the speculative steps of the sequences named, attention and states alike.
    ///
    /// # Errors
    /// An acceptance that does not fit its candidates; then none has changed.
    pub fn commit(&mut self, accepted: &[(SequenceId, Accepted<'_>)]) -> Result<()> {
        let ops = self.prepare_commit(accepted)?;
        self.ops.extend(ops.into_iter().map(|(_, op)| op));
        self.apply_commit(accepted)
    }

    /// What a commit does to the pools, and for whom. Nothing has been committed yet.
    pub(crate) fn prepare_commit(
        &mut self,
        accepted: &[(SequenceId, Accepted<'_>)],
    ) -> Result<Vec<(SequenceId, PoolOp)>> {
        self.steps += 1;
        let stamp = self.steps;
        let layout = Arc::clone(&self.layout);
        let mut ops = Vec::new();
        for &(id, acceptance) in accepted {
            let draft = self.speculating(id)?;
            check_acceptance(&layout, id, acceptance, draft)?;
            let sequence = self.sequences.get_mut(id)?;
            if std::mem::replace(&mut sequence.step, stamp) == stamp {
                return Err(BookError::DuplicateSequence(id));
            }
            if let Accepted::Path(path) = acceptance {
                ops.extend(gather_path(&layout, sequence, path).map(|op| (id, op)));
            }
            if let (Some(to), Some(row), Some(_)) = (sequence.slot, draft.row, acceptance.last()) {
                ops.push((id, PoolOp::CommitStates { row, path: acceptance.path(), to }));
            }
        }
        Ok(ops)
    }

    /// Takes over what [`CacheBook::prepare_commit`] has checked.
    pub(crate) fn apply_commit(&mut self, accepted: &[(SequenceId, Accepted<'_>)]) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        for &(id, acceptance) in accepted {
            let sequence = self.sequences.get_mut(id)?;
            self.free_rows.extend(sequence.draft.take().and_then(|draft| draft.row));
            sequence.tokens += acceptance.len();
            let tokens = sequence.tokens;
            for ((table, spec), blocks) in sequence.tables.iter_mut().zip(&layout.paged).zip(&mut self.blocks) {
                table.end_draft(spec, blocks, spec.blocks_for(tokens) as usize)?;
            }
        }
        Ok(())
    }

    fn speculating(&self, id: SequenceId) -> Result<Draft> {
        self.resident(id)?.draft.ok_or(BookError::WrongState {
            sequence: id,
            found: "committed",
            expected: "speculating",
        })
    }
}

fn check_acceptance(layout: &Layout, sequence: SequenceId, accepted: Accepted<'_>, draft: Draft) -> Result<()> {
    let bad = |reason: String| Err(BookError::BadAcceptance { sequence, reason });
    let candidates = draft.candidates;
    if let Some(last) = accepted.last().filter(|&last| last >= candidates) {
        return bad(format!("candidate {last} was accepted of {candidates}"));
    }
    if let Accepted::Path(path) = accepted {
        if !path.is_sorted_by(|left, right| left < right) {
            return bad(format!("the accepted path {path:?} is not ascending"));
        }
        let linear = path.iter().zip(0..).all(|(&candidate, position)| candidate == position);
        if let Some(spec) = layout.paged.iter().find(|spec| spec.stride > 1).filter(|_| !linear) {
            return bad(format!("pool `{}` compresses tokens, so a path with gaps cannot be gathered", spec.id));
        }
    }
    Ok(())
}

/// The copies that bring the entries of an accepted path into order.
fn gather_path<'a>(layout: &'a Layout, sequence: &'a Sequence, path: &'a [u32]) -> impl Iterator<Item = PoolOp> + 'a {
    let base = sequence.tokens;
    let pools = sequence.tables.iter().zip(&layout.paged).enumerate();
    pools.flat_map(move |(paged, (table, spec))| {
        let place = |position: u32| {
            let block = table.block(position / spec.entries_per_block)?;
            Some((block, position % spec.entries_per_block))
        };
        // A candidate never stands before its place in the path, so copying in order overwrites nothing still needed.
        let moved = path.iter().zip(0..).filter(|&(&candidate, position)| candidate != position);
        let copies = moved.filter_map(move |(&candidate, position)| {
            Some(PoolOp::CopyEntry { paged, from: place(base + candidate)?, to: place(base + position)? })
        });
        copies.collect::<Vec<_>>()
    })
}
