//! Which rows, blocks and slots of a step belong to which sequence.
//!
//! Activations are ragged: all tokens of the step lie in one `[total_tokens, ..]` tensor and sequence `i` owns
//! rows `cu_seqlens[i]..cu_seqlens[i + 1]`.

use crate::error::{KernelError, Result};
use std::ops::Range;

/// The sequences of a step that attend through block tables.
#[derive(Clone, Copy, Debug)]
pub struct PagedBatch<'a> {
    /// `[batch + 1]` row offsets of this step's query tokens, starting at 0.
    pub cu_seqlens: &'a [u32],
    /// `[batch]` context length of each sequence after this step, so its own tokens included. The last query
    /// token of sequence `i` stands at position `kv_lens[i] - 1`. 0 marks a padding row: its output is 0.
    pub kv_lens: &'a [u32],
    /// `[batch, max_blocks]` pool block of each logical block; -1 where none is needed.
    pub block_tables: &'a [i32],
    /// Row length of `block_tables`.
    pub max_blocks: usize,
}

impl PagedBatch<'_> {
    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.kv_lens.len()
    }

    /// Whether the step has no sequence.
    pub fn is_empty(&self) -> bool {
        self.kv_lens.is_empty()
    }

    pub(crate) fn rows(&self, sequence: usize) -> Range<usize> {
        rows(self.cu_seqlens, sequence)
    }

    pub(crate) fn blocks(&self, sequence: usize) -> &[i32] {
        &self.block_tables[sequence * self.max_blocks..][..self.max_blocks]
    }

    /// Checks lengths against each other; which blocks are really needed depends on the mask and is checked there.
    pub(crate) fn check(&self, op: &'static str, total_tokens: usize) -> Result<()> {
        check_cu_seqlens(op, self.cu_seqlens, self.len(), total_tokens)?;
        if self.block_tables.len() != self.len() * self.max_blocks {
            return Err(KernelError::Argument {
                op,
                reason: format!(
                    "block_tables has {} entries, expected {} sequences x {} blocks",
                    self.block_tables.len(),
                    self.len(),
                    self.max_blocks
                ),
            });
        }
        for (at, &kv_len) in self.kv_lens.iter().enumerate() {
            let queries = self.rows(at).len();
            if kv_len != 0 && (kv_len as usize) < queries {
                return Err(KernelError::Index {
                    op,
                    operand: "kv_lens",
                    at,
                    found: i64::from(kv_len),
                    expected: format!("expected 0 or at least the {queries} tokens of this step"),
                });
            }
        }
        Ok(())
    }
}

/// The sequences of a step that carry a recurrent state.
#[derive(Clone, Copy, Debug)]
pub struct StateBatch<'a> {
    /// `[batch + 1]` row offsets of this step's tokens, starting at 0.
    pub cu_seqlens: &'a [u32],
    /// `[batch]` slot of each sequence. -1 marks a padding row: its output is 0 and no state is touched.
    pub slots: &'a [i32],
}

impl StateBatch<'_> {
    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the step has no sequence.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn rows(&self, sequence: usize) -> Range<usize> {
        rows(self.cu_seqlens, sequence)
    }

    /// The sequences that have a slot and at least one token, as `(rows, slot)`.
    pub(crate) fn active(&self) -> impl Iterator<Item = (Range<usize>, usize)> + '_ {
        self.slots.iter().enumerate().filter_map(|(sequence, &slot)| {
            let rows = self.rows(sequence);
            let slot = usize::try_from(slot).ok()?;
            (!rows.is_empty()).then_some((rows, slot))
        })
    }

    /// Checks lengths, and that every slot exists and belongs to one sequence only.
    pub(crate) fn check(&self, op: &'static str, total_tokens: usize, num_slots: usize) -> Result<()> {
        check_cu_seqlens(op, self.cu_seqlens, self.len(), total_tokens)?;
        check_distinct(op, "slots", self.slots, num_slots)
    }
}

fn rows(cu_seqlens: &[u32], sequence: usize) -> Range<usize> {
    cu_seqlens[sequence] as usize..cu_seqlens[sequence + 1] as usize
}

fn check_cu_seqlens(op: &'static str, cu_seqlens: &[u32], batch: usize, total_tokens: usize) -> Result<()> {
    let bounds_hold = cu_seqlens.len() == batch + 1
        && cu_seqlens[0] == 0
        && cu_seqlens[batch] as usize == total_tokens
        && cu_seqlens.is_sorted();
    if bounds_hold {
        return Ok(());
    }
    Err(KernelError::Argument {
        op,
        reason: format!(
            "cu_seqlens must hold {} non-decreasing offsets from 0 to the {total_tokens} tokens, found {cu_seqlens:?}",
            batch + 1
        ),
    })
}

/// Checks that every non-negative entry exists and that none occurs twice: a kernel writes through each of them.
pub(crate) fn check_distinct(op: &'static str, operand: &'static str, entries: &[i32], count: usize) -> Result<()> {
    let refuse = |at: usize, expected: String| {
        Err(KernelError::Index { op, operand, at, found: i64::from(entries[at]), expected })
    };
    for (at, &entry) in entries.iter().enumerate() {
        if entry < -1 || (entry >= 0 && entry as usize >= count) {
            return refuse(at, format!("expected -1 or less than {count}"));
        }
        // Batches are at most a few hundred sequences: a scan needs no allocation and stays below a microsecond.
        if entry >= 0 && entries[..at].contains(&entry) {
            return refuse(at, "which an earlier entry holds already".to_owned());
        }
    }
    Ok(())
}
