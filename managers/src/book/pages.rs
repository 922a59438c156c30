//! Block tables in the ragged form that FlashInfer-like kernels read.

use super::cache::CacheBook;
use super::ids::SequenceId;
use crate::book::error::{BookError, Result};

/// Chooses how a windowed pool shows the pages that its window has passed. Pools without a window look the same in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedPages {
    /// They are cut off, and lengths count from the first page that is left.
    Cut,
    /// They stand in the table as the padding block, and lengths count every token; the kernel masks by position.
    Kept,
    /// The pages are the sequence's ring, which needs [`Windows::Cyclic`](super::Windows::Cyclic): position `p` lies in
    /// its page `p / page size % pages`, and lengths count every token. It shows a decode or speculative step; a
    /// longer step needs one of the other forms.
    Ring,
}

/// The pages of a batch in one paged pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaggedPages {
    /// Pages of all sequences, one after the other.
    pub pages: Vec<u32>,
    /// `[batch + 1]` offsets into `pages`.
    pub cu_num_pages: Vec<u32>,
    /// `[batch]` entries in each sequence's last page, 1 to the page's size; 0 for a sequence without entries.
    pub last_page_len: Vec<u32>,
    /// `[batch]` entries of each sequence in its pages.
    pub seq_len_with_cache: Vec<u32>,
    /// `[batch]` the page that the sequence will grow into, if it has been reserved; else -1.
    pub extra_page: Vec<i32>,
}

impl CacheBook {
    /// The pages of sequences in a paged pool, candidates of a speculative step included.
    ///
    /// # Errors
    /// A stale handle, a sequence that is not resident, an unknown pool.
    pub fn ragged_pages(&self, sequences: &[SequenceId], paged: usize, passed: PassedPages) -> Result<RaggedPages> {
        let spec = self.layout.paged.get(paged).ok_or_else(|| BookError::UnknownPool(paged.to_string()))?;
        let mut ragged = RaggedPages { cu_num_pages: vec![0], ..RaggedPages::default() };
        for &id in sequences {
            let sequence = self.resident(id)?;
            let table = &sequence.tables[paged];
            let tokens = sequence.tokens + sequence.draft.map_or(0, |draft| draft.candidates);
            let used = spec.blocks_for(tokens) as usize;
            let first = match passed {
                PassedPages::Cut => table.released().min(used),
                PassedPages::Kept | PassedPages::Ring => 0,
            };
            let entries = spec.entries(tokens) - first as u32 * spec.entries_per_block;
            let page = |&page: &i32| page.max(0) as u32;
            match (passed, spec.ring as usize) {
                (PassedPages::Ring, 0) if spec.window.is_some() => {
                    return Err(BookError::NoRing { pool: spec.id.clone() });
                }
                (PassedPages::Ring, ring) if ring > 0 && used > ring => {
                    let latest = |slot: usize| used - 1 - (used - 1 - slot) % ring;
                    ragged.pages.extend((0..ring).map(|slot| page(&table.entries()[latest(slot)])));
                }
                _ => ragged.pages.extend(table.entries()[first..used].iter().map(page)),
            }
            ragged.cu_num_pages.push(ragged.pages.len() as u32);
            ragged.last_page_len.push(entries.checked_sub(1).map_or(0, |last| last % spec.entries_per_block + 1));
            ragged.seq_len_with_cache.push(entries);
            ragged.extra_page.push(table.entries().get(used).copied().unwrap_or(-1));
        }
        Ok(ragged)
    }
}
