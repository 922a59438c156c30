//! Which rows, blocks and slots of a step belong to which sequence.
//!
//! Activations are ragged: all tokens of the step lie in one `[total_tokens, ..]` tensor and sequence `i` owns
//! rows `cu_seqlens[i]..cu_seqlens[i + 1]`.

use crate::error::{KernelError, Result};
use crate::numbers::Numbers;
use std::cell::RefCell;
use std::ops::Range;

/// The sequences of a step that attend through block tables.
#[derive(Clone, Copy, Debug)]
pub struct PagedBatch<'a> {
    /// `[batch + 1]` row offsets of this step's query tokens, starting at 0.
    pub cu_seqlens: Numbers<'a, u32>,
    /// `[batch]` context length of each sequence after this step, so its own tokens included. The last query
    /// token of sequence `i` stands at position `kv_lens[i] - 1`. 0 marks a padding row: its output is 0.
    pub kv_lens: Numbers<'a, u32>,
    /// `[batch, max_blocks]` pool block of each logical block; -1 where none is needed.
    pub block_tables: Numbers<'a, i32>,
    /// Row length of `block_tables`.
    pub max_blocks: usize,
    /// `[total_tokens]` row that each token follows, which comes before it in the same sequence; -1 for what was there
    /// before the step. A token sees that and the tokens on its path, and stands behind them, wherever it is written.
    /// Without parents each token follows the row before it.
    pub parents: Option<&'a [i32]>,
    /// What each token sees, where that is not all that stands before it.
    pub chosen: Option<Chosen<'a>>,
}

/// The positions that each token of a step sees, its own among them if it is to see itself.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// `[total_tokens + 1]`: those of token `i` are `positions[starts[i]..starts[i + 1]]`.
    pub starts: &'a [u32],
    /// Rising for each token, and none behind its own.
    pub positions: &'a [u32],
}

impl Chosen<'_> {
    /// The positions of a row.
    pub(crate) fn of(&self, row: usize) -> &[u32] {
        &self.positions[self.starts[row] as usize..self.starts[row + 1] as usize]
    }

    /// Checks that there is a list for each token, and that it sees nothing behind itself.
    fn check(&self, op: &'static str, batch: &PagedBatch<'_>, total_tokens: usize) -> Result<()> {
        let argument = |reason: String| Err(KernelError::Argument { op, reason });
        if batch.parents.is_some() {
            return argument("tokens of a tree cannot choose what they see".to_owned());
        }
        let ends = self.starts.first() == Some(&0) && self.starts.last() == Some(&(self.positions.len() as u32));
        if self.starts.len() != total_tokens + 1 || !ends || !self.starts.is_sorted() {
            let positions = self.positions.len();
            return argument(format!("chosen.starts must rise from 0 to {positions} over {total_tokens} tokens"));
        }
        for (sequence, &kv_len) in batch.kv_lens.iter().enumerate().filter(|(_, kv_len)| **kv_len > 0) {
            let rows = batch.rows(sequence);
            for row in rows.clone() {
                let (seen, position) = (self.of(row), kv_len as usize - (rows.end - row));
                let rises = seen.is_sorted_by(|a, b| a < b);
                if !rises || seen.last().is_some_and(|last| *last as usize > position) {
                    return argument(format!("token {row} at position {position} cannot see {seen:?}"));
                }
            }
        }
        Ok(())
    }
}

impl<'a> PagedBatch<'a> {
    /// The sequences that these lists describe, with so many blocks in a row of the tables.
    pub fn new(
        cu_seqlens: impl Into<Numbers<'a, u32>>,
        kv_lens: impl Into<Numbers<'a, u32>>,
        block_tables: impl Into<Numbers<'a, i32>>,
        max_blocks: usize,
    ) -> Self {
        let (cu_seqlens, kv_lens) = (cu_seqlens.into(), kv_lens.into());
        Self { cu_seqlens, kv_lens, block_tables: block_tables.into(), max_blocks, parents: None, chosen: None }
    }

    /// The same with tokens that form trees, see [`parents`](Self::parents).
    #[must_use]
    pub fn with_parents(self, parents: &'a [i32]) -> Self {
        Self { parents: Some(parents), ..self }
    }

    /// The same with tokens that see some positions alone.
    #[must_use]
    pub fn with_chosen(self, chosen: Chosen<'a>) -> Self {
        Self { chosen: Some(chosen), ..self }
    }

    /// The rows on the path to a row of a tree, itself first.
    pub(crate) fn path(parents: &[i32], row: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(row), |row| usize::try_from(parents[*row]).ok())
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.kv_lens.len()
    }

    /// Whether the step has no sequence.
    pub fn is_empty(&self) -> bool {
        self.kv_lens.is_empty()
    }

    pub(crate) fn rows(&self, sequence: usize) -> Range<usize> {
        rows(&self.cu_seqlens, sequence)
    }

    /// The rows of sequences without a context.
    pub(crate) fn padding(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.len()).filter(|&sequence| self.kv_lens[sequence] == 0).map(|sequence| self.rows(sequence))
    }

    pub(crate) fn blocks(&self, sequence: usize) -> &[i32] {
        &self.block_tables[sequence * self.max_blocks..][..self.max_blocks]
    }

    /// Checks lengths against each other; which blocks are really needed depends on the mask and is checked there.
    pub(crate) fn check(&self, op: &'static str, total_tokens: usize) -> Result<()> {
        check_cu_seqlens(op, &self.cu_seqlens, self.len(), total_tokens)?;
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
        if let Some(parents) = self.parents {
            check_parents(op, parents, total_tokens, (0..self.len()).map(|sequence| self.rows(sequence)))?;
        }
        for (at, &kv_len) in self.kv_lens.iter().enumerate() {
            let queries = self.rows(at).len();
            if kv_len != 0 && (kv_len as usize) < queries {
                return Err(KernelError::index(
                    op,
                    "kv_lens",
                    at,
                    kv_len,
                    format!("expected 0 or at least the {queries} tokens of this step"),
                ));
            }
        }
        self.chosen.map_or(Ok(()), |chosen| chosen.check(op, self, total_tokens))
    }
}

/// The sequences of a step that carry a recurrent state.
#[derive(Clone, Copy, Debug)]
pub struct StateBatch<'a> {
    /// `[batch + 1]` row offsets of this step's tokens, starting at 0.
    pub cu_seqlens: Numbers<'a, u32>,
    /// `[batch]` slot of each sequence. -1 marks a padding row: its output is 0 and no state is touched.
    pub slots: Numbers<'a, i32>,
    /// Which states are written.
    pub writes: StateWrites<'a>,
}

/// Which states a step writes.
///
/// To verify drafted tokens, run them as a [`Tree`](Self::Tree) and move the accepted node's state with
/// [`crate::PoolRows::copy`]; or run them as a tree without slots, keep the op's inputs, and run those of the accepted
/// tokens once more as a [`Replay`](Self::Replay).
#[derive(Clone, Copy, Debug, Default)]
pub enum StateWrites<'a> {
    /// The slot of each sequence receives the state after its last token.
    #[default]
    Final,
    /// None: the step reads states and gives outputs.
    Nothing,
    /// As `Final`, with the bits of a step for each token: however many tokens there are, one follows the other, and a
    /// narrow pool rounds the state after each of them. What is read out is of no use to a replay, so that the inputs
    /// of the readout need not be kept: `k` may stand for `q`, and `b` for `c`.
    Replay,
    /// As `Final`; besides, `[total_tokens]` slots receive the state after their token, -1 for none. These are the
    /// checkpoints of a prefix cache.
    AlsoAfter(&'a [i32]),
    /// Tokens form trees. The slot of a sequence is only read.
    Tree {
        /// `[total_tokens]` row that each token follows, which comes before it in the same sequence; -1 for the state
        /// of the sequence.
        parents: &'a [i32],
        /// `[total_tokens]` slot that receives the state after each token; empty where no state is kept.
        slots: &'a [i32],
    },
}

impl<'a> StateBatch<'a> {
    /// A step that moves each sequence's state on to its last token.
    pub fn new(cu_seqlens: impl Into<Numbers<'a, u32>>, slots: impl Into<Numbers<'a, i32>>) -> Self {
        Self { cu_seqlens: cu_seqlens.into(), slots: slots.into(), writes: StateWrites::Final }
    }

    /// The same with other states written.
    #[must_use]
    pub fn with_writes(self, writes: StateWrites<'a>) -> Self {
        Self { writes, ..self }
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the step has no sequence.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn rows(&self, sequence: usize) -> Range<usize> {
        rows(&self.cu_seqlens, sequence)
    }

    /// The sequences that have a slot and at least one token, as `(rows, slot)`.
    pub(crate) fn active(&self) -> impl Iterator<Item = (Range<usize>, usize)> + '_ {
        (0..self.len()).filter_map(|sequence| self.sequence(sequence))
    }

    /// The rows and the slot of a sequence that has both.
    pub(crate) fn sequence(&self, sequence: usize) -> Option<(Range<usize>, usize)> {
        let rows = self.rows(sequence);
        let slot = usize::try_from(self.slots[sequence]).ok()?;
        (!rows.is_empty()).then_some((rows, slot))
    }

    /// The rows of sequences without a slot.
    pub(crate) fn padding(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.len()).filter(|&sequence| self.slots[sequence] < 0).map(|sequence| self.rows(sequence))
    }

    /// The stretches of a sequence's rows between which states are read or written.
    pub(crate) fn stretches(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let writes = self.writes;
        let mut start = rows.start;
        std::iter::from_fn(move || {
            let mut end = rows.end;
            match writes {
                StateWrites::Final | StateWrites::Nothing => {}
                StateWrites::AlsoAfter(slots) => {
                    let cut = (start..rows.end).find(|&row| slots[row] >= 0);
                    end = cut.map_or(rows.end, |row| row + 1);
                }
                StateWrites::Replay | StateWrites::Tree { .. } => end = (start + 1).min(rows.end),
            }
            let stretch = start..end;
            start = end;
            (!stretch.is_empty()).then_some(stretch)
        })
    }

    /// The slot that receives the state after `row`, other than that of the sequence.
    pub(crate) fn snapshot(&self, row: usize) -> Option<usize> {
        match self.writes {
            StateWrites::Final | StateWrites::Nothing | StateWrites::Replay => None,
            StateWrites::AlsoAfter(slots) | StateWrites::Tree { slots, .. } => usize::try_from(*slots.get(row)?).ok(),
        }
    }

    /// The row whose state `row` starts from; None for the state of the sequence, which starts at row `first`.
    pub(crate) fn parent(&self, first: usize, row: usize) -> Option<usize> {
        match self.writes {
            StateWrites::Tree { parents, .. } => usize::try_from(parents[row]).ok(),
            _ => (row > first).then(|| row - 1),
        }
    }

    /// The row `back` tokens before `row`, or how many tokens before the sequence's first that is.
    pub(crate) fn behind(&self, first: usize, row: usize, back: usize) -> Result<usize, usize> {
        let mut row = row;
        for left in (1..=back).rev() {
            row = self.parent(first, row).ok_or(left)?;
        }
        Ok(row)
    }

    /// Whether the slot of a sequence receives the state after its last token.
    pub(crate) fn writes_final(&self) -> bool {
        matches!(self.writes, StateWrites::Final | StateWrites::AlsoAfter(_) | StateWrites::Replay)
    }

    /// Whether each token starts from the state as the pool holds it after the token before.
    pub(crate) fn rounds_each_token(&self) -> bool {
        matches!(self.writes, StateWrites::Replay | StateWrites::Tree { .. })
    }

    /// Checks lengths, and that every slot exists and is written by one sequence or token only.
    pub(crate) fn check(&self, op: &'static str, total_tokens: usize, num_slots: usize) -> Result<()> {
        check_cu_seqlens(op, &self.cu_seqlens, self.len(), total_tokens)?;
        check_distinct(op, "slots", &self.slots, &[], num_slots)?;
        let (StateWrites::AlsoAfter(snapshots) | StateWrites::Tree { slots: snapshots, .. }) = self.writes else {
            return Ok(());
        };
        let argument = |reason: String| Err(KernelError::Argument { op, reason });
        let keeps = !(snapshots.is_empty() && matches!(self.writes, StateWrites::Tree { .. }));
        if keeps && snapshots.len() != total_tokens {
            return argument(format!("{} snapshot slots for {total_tokens} tokens", snapshots.len()));
        }
        check_distinct(op, "snapshot slots", snapshots, &self.slots, num_slots)?;
        let StateWrites::Tree { parents, .. } = self.writes else { return Ok(()) };
        check_parents(op, parents, total_tokens, self.active().map(|(rows, _)| rows))?;
        let unkept = |row: &usize| snapshots.get(*row).is_some_and(|slot| *slot < 0);
        match self.active().flat_map(|(rows, _)| rows).find(unkept) {
            Some(at) => {
                let (found, expected) = (i64::from(parents[at]), "whose token has no snapshot slot".to_owned());
                Err(KernelError::index(op, "parents", at, found, expected))
            }
            None => Ok(()),
        }
    }
}

/// Checks that each token of these sequences follows an earlier one of its sequence, or none of the step.
fn check_parents(
    op: &'static str,
    parents: &[i32],
    total_tokens: usize,
    mut sequences: impl Iterator<Item = Range<usize>>,
) -> Result<()> {
    if parents.len() != total_tokens {
        let reason = format!("{} parents for {total_tokens} tokens", parents.len());
        return Err(KernelError::Argument { op, reason });
    }
    sequences.try_for_each(|rows| {
        let first = rows.start;
        let earlier = |row: usize| match usize::try_from(parents[row]) {
            Ok(parent) => (first..row).contains(&parent),
            Err(_) => parents[row] == -1,
        };
        match (first..rows.end).find(|row| !earlier(*row)) {
            Some(at) => {
                let expected = format!("expected -1 or an earlier row of the sequence, {first}..{at}");
                Err(KernelError::index(op, "parents", at, parents[at], expected))
            }
            None => Ok(()),
        }
    })
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

/// Checks that every non-negative entry exists and that none occurs twice, here or among `others`: a kernel writes
/// through each of them.
fn check_distinct(
    op: &'static str,
    operand: &'static str,
    entries: &[i32],
    others: &[i32],
    count: usize,
) -> Result<()> {
    thread_local! {
        static SEEN: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
    }
    SEEN.with_borrow_mut(|seen| {
        seen.clear();
        seen.resize(count, false);
        for &other in others {
            if let Some(seen) = usize::try_from(other).ok().and_then(|other| seen.get_mut(other)) {
                *seen = true;
            }
        }
        for (at, &found) in entries.iter().enumerate() {
            let expected = match usize::try_from(found) {
                Err(_) if found == -1 => continue,
                Ok(entry) if entry < count => {
                    if !std::mem::replace(&mut seen[entry], true) {
                        continue;
                    }
                    "which another sequence or token holds already".to_owned()
                }
                _ => format!("expected -1 or less than {count}"),
            };
            return Err(KernelError::index(op, operand, at, found, expected));
        }
        Ok(())
    })
}
