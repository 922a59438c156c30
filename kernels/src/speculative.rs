//! Speculative decoding over recurrent states.
//!
//! A verify step runs drafted tokens as [`StateWrites::Tree`](crate::StateWrites::Tree): the state of a sequence is
//! only read and each token's state goes to a slot of its own. Slots hold all layers of a pool, so that one copy per
//! sequence then commits a state in every layer at once.

use crate::error::{KernelError, Result};
use crate::pool::copy_rows;
use candle_core::Tensor;
use std::cell::RefCell;

/// Moves, for each sequence, the state after its last accepted token into the sequence's slot, over all layers.
///
/// `snapshots` `[batch, depth]` names for each sequence the slots of the tokens on its accepted path, in order;
/// `accepted` `[batch]` how many of them were accepted. 0 leaves the state as it was before the step. Sequences with
/// slot -1 are skipped.
pub fn commit_accepted(pool: &Tensor, slots: &[i32], snapshots: &[i32], depth: usize, accepted: &[u32]) -> Result<()> {
    const OP: &str = "commit_accepted";
    if snapshots.len() != slots.len() * depth || accepted.len() != slots.len() {
        let reason = format!(
            "{} snapshot slots and {} accepted lengths for {} sequences of depth {depth}",
            snapshots.len(),
            accepted.len(),
            slots.len()
        );
        return Err(KernelError::Argument { op: OP, reason });
    }
    thread_local! {
        // Kept, so that a decode step allocates nothing.
        static PAIRS: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) };
    }
    let mut pairs = PAIRS.take();
    pairs.clear();
    for (sequence, (&slot, &accepted)) in slots.iter().zip(accepted).enumerate() {
        let Ok(slot) = u32::try_from(slot) else { continue };
        let Some(last) = (accepted as usize).checked_sub(1) else { continue };
        if last >= depth {
            return Err(KernelError::Index {
                op: OP,
                operand: "accepted",
                at: sequence,
                found: i64::from(accepted),
                expected: format!("expected at most the depth of {depth}"),
            });
        }
        let at = sequence * depth + last;
        let snapshot = u32::try_from(snapshots[at]).map_err(|_| KernelError::Index {
            op: OP,
            operand: "snapshots",
            at,
            found: i64::from(snapshots[at]),
            expected: "but its token was accepted: expected a slot".to_owned(),
        })?;
        pairs.push((snapshot, slot));
    }
    let copied = copy_rows(pool, &pairs);
    PAIRS.set(pairs);
    copied
}
