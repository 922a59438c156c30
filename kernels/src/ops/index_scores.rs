//! The choice of an indexer: which entries of a paged pool a token's queries score best.

use super::quant::{KvQuant, check_quant};
use crate::backend::Run;
use crate::batch::PagedBatch;
use crate::error::{KernelError, Result};
use crate::portable::attention::{StoredRows, stored_rows};
use crate::view::KvLayerView;
use candle_core::{DType, Tensor};
use std::cmp::Ordering;

const OP: &str = "index_scores";

/// Queries of a sequence whose scores are made at once, which bounds what they take.
const QUERIES: usize = 64;

/// How scores are made from queries and the entries' keys: `sum over heads of share * max(0, scale * q . k)`.
#[derive(Clone, Copy, Debug)]
pub struct IndexScores<'a> {
    /// Factor on `q . k`.
    pub scale: f32,
    /// `[total_tokens, heads]`: what each head counts; absent where each counts 1.
    pub shares: Option<&'a Tensor>,
    /// Consecutive tokens that an entry stands for. A token sees the entries whose tokens do not stand behind it.
    pub stride: usize,
    /// Entries that are chosen at most.
    pub most: usize,
    /// How an 8-bit or 4-bit pool stores rows; none for any other.
    pub quant: Option<KvQuant<'a>>,
}

impl IndexScores<'_> {
    /// The best entries for each token of `q` `[total_tokens, heads, head_dim]`, rising; of two that are equal the earlier
    /// is better. The host is told them, so that a step that asks is not recorded.
    ///
    /// The pool has one key for each entry, `batch` its block tables and the lengths of sequences in tokens.
    ///
    /// # Errors
    /// Operands that do not fit each other, a failing device.
    pub fn best(
        &self,
        on: &Run<'_>,
        q: &Tensor,
        pool: &Tensor,
        view: &KvLayerView,
        batch: &PagedBatch<'_>,
    ) -> Result<Vec<Vec<u32>>> {
        let blocks = self.check(q, pool, view, batch)?;
        on.note_host_read();
        let (tokens, _, head_dim) = q.dims3()?;
        let mut best = vec![Vec::new(); tokens];
        for sequence in 0..batch.len() {
            let (rows, kv_len) = (batch.rows(sequence), batch.kv_lens[sequence] as usize);
            let entries = kv_len / self.stride;
            if entries == 0 || rows.is_empty() {
                continue;
            }
            check_blocks(batch, sequence, entries, view, blocks)?;
            let of = StoredRows { kv: 0, entries: 0..entries, head_dim, quant: self.quant };
            let keys = stored_rows(pool, view, batch.blocks(sequence), &of)?.squeeze(0)?;
            for first in rows.clone().step_by(QUERIES) {
                let some = first..(first + QUERIES).min(rows.end);
                let scores = self.scores(on, q, &keys, some.start, some.len())?;
                for (row, scores) in some.zip(scores.to_vec2::<f32>()?) {
                    let seen = (kv_len - (rows.end - row) + 1) / self.stride;
                    best[row] = highest(self.most, &scores[..seen]);
                }
            }
        }
        Ok(best)
    }

    /// `[queries, entries]` of a sequence's keys `[entries, head_dim]`.
    fn scores(&self, on: &Run<'_>, q: &Tensor, keys: &Tensor, first: usize, queries: usize) -> Result<Tensor> {
        let (_, heads, head_dim) = q.dims3()?;
        let rows = q.narrow(0, first, queries)?.to_dtype(DType::F32)?.reshape((queries * heads, head_dim))?;
        let scores = (super::linear(on, &rows, keys)? * f64::from(self.scale))?.relu()?;
        let scores = scores.reshape((queries, heads, ()))?;
        let Some(shares) = self.shares else { return Ok(scores.sum(1)?) };
        let shares = shares.narrow(0, first, queries)?.to_dtype(DType::F32)?.unsqueeze(2)?;
        Ok(scores.broadcast_mul(&shares)?.sum(1)?)
    }

    /// Checks the operands of a call, and returns the pool's number of blocks.
    fn check(&self, q: &Tensor, pool: &Tensor, view: &KvLayerView, batch: &PagedBatch<'_>) -> Result<usize> {
        let argument = |reason: &str| Err(KernelError::Argument { op: OP, reason: reason.to_owned() });
        let blocks = view.check(OP, pool)?;
        view.check_table(OP)?;
        if (view.kv_factor, view.num_kv_heads) != (1, 1) {
            return argument("an entry has one key");
        }
        if self.stride == 0 {
            return argument("an entry stands for one token at least");
        }
        let &[tokens, heads, head_dim] = q.dims() else { return argument("q must be [total_tokens, heads, head_dim]") };
        batch.check(OP, tokens)?;
        check_quant(OP, pool, view, self.quant.as_ref(), head_dim)?;
        if self.shares.is_some_and(|shares| shares.dims() != [tokens, heads]) {
            return argument("shares must be [total_tokens, heads] of q");
        }
        Ok(blocks)
    }
}

/// Checks that the blocks of a sequence's entries exist.
fn check_blocks(
    batch: &PagedBatch<'_>,
    sequence: usize,
    entries: usize,
    view: &KvLayerView,
    blocks: usize,
) -> Result<()> {
    for logical in 0..entries.div_ceil(view.tokens_per_block) {
        let found = batch.blocks(sequence).get(logical).copied().unwrap_or(-1);
        if usize::try_from(found).map_or(true, |block| block >= blocks) {
            return Err(KernelError::index(
                OP,
                "block_tables",
                sequence * batch.max_blocks + logical,
                found,
                format!("but sequence {sequence} has entries in that block: expected less than {blocks}"),
            ));
        }
    }
    Ok(())
}

/// The places of the `most` highest scores, rising; the earlier one where two are equal.
fn highest(most: usize, scores: &[f32]) -> Vec<u32> {
    let mut places: Vec<u32> = (0..scores.len() as u32).collect();
    let better = |&a: &u32, &b: &u32| -> Ordering { scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)) };
    if most < places.len() {
        if most > 0 {
            places.select_nth_unstable_by(most - 1, better);
        }
        places.truncate(most);
        places.sort_unstable();
    }
    places
}
