//! Speculative commits: attention and states move on together, whichever scheme the plan has.

use candle_core::Tensor;

use super::mamba::{MambaCacheManager, ReplayLayer};
use super::manager::{CacheManager, Route};
use crate::ManagerError;
use crate::book::{Accepted, PoolOp, SequenceId, SlotId, StepMetadata};
use crate::device::error::Result;

/// Steps a layer's live state over its accepted inputs, with the kernel that the layer decodes with.
type Replay<'a> = &'a mut dyn FnMut(&ReplayLayer<'_>) -> Result<()>;

impl CacheManager {
    /// Keeps the candidates' inputs of a layer for the commit: `[total_tokens, elems]`, the rows of `step`.
    ///
    /// `route` leads to a resource such as `replay.x`, or to a convolution, whose inputs lie behind its state.
    ///
    /// # Errors
    /// A route to something that keeps no inputs, or another shape; a failing device.
    pub fn stash(&self, route: Route, step: &StepMetadata, inputs: &Tensor) -> Result<()> {
        let place = self.current(route)?;
        for (sequence, rows) in step.cu_seqlens.windows(2).enumerate() {
            let (row, slot) = (step.draft_rows[sequence], step.slots[sequence]);
            let (Ok(row), Ok(slot)) = (u32::try_from(row), u32::try_from(slot)) else { continue };
            let (first, count) = (rows[0] as usize, (rows[1] - rows[0]) as usize);
            self.pools.states()?.stash(place, row, SlotId(slot), &inputs.narrow(0, first, count)?)?;
        }
        Ok(())
    }

    /// Commits blocks and states from the same accept lengths, all sequences or none.
    ///
    /// # Errors
    /// An acceptance that does not fit, or a plan that keeps inputs to replay; nothing has changed then.
    /// [`ManagerError::ContentsLost`] if the device fails: the sequences that it names are preempted, the others
    /// still speculate.
    pub fn commit(&mut self, accepted: &[(SequenceId, Accepted<'_>)]) -> Result<()> {
        if self.mamba().is_some_and(MambaCacheManager::has_stashes) {
            return Err(ManagerError::NeedsReplay);
        }
        self.commit_replaying(accepted, &mut |_| Ok(()))
    }

    /// As [`CacheManager::commit`] where the plan keeps inputs instead of states.
    ///
    /// `replay` is called for each layer that keeps inputs and each sequence with an accepted candidate, and steps
    /// the live state over them. Convolutions need no recurrence and move on by themselves.
    ///
    /// # Errors
    /// As [`CacheManager::commit`]; what `replay` refuses counts as a failing device.
    pub fn commit_replaying(&mut self, accepted: &[(SequenceId, Accepted<'_>)], replay: Replay<'_>) -> Result<()> {
        self.settle()?;
        let ops = self.book.prepare_commit(accepted)?;
        let mut begun = Vec::new();
        let done = ops.iter().try_for_each(|(sequence, op)| {
            if begun.last() != Some(sequence) {
                begun.push(*sequence);
            }
            self.run(op)?;
            match op {
                PoolOp::CommitStates { row, path, to } => {
                    self.pools.states()?.replays(*row, path, *to)?.iter().try_for_each(&mut *replay)
                }
                _ => Ok(()),
            }
        });
        self.lose_unless(done, &begun)?;
        Ok(self.book.apply_commit(accepted)?)
    }
}
