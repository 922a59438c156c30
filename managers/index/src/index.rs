//! The books of all workers, shared by those who write and those who ask.

use std::sync::{Arc, PoisonError, RwLock};

use hashbrown::HashMap;

use crate::book::{Book, Reuse};
use crate::chain::Chain;
use crate::{Batch, Error};

/// How much an index keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Workers, each data-parallel rank one.
    pub workers: usize,
    /// Different blocks of each; one more is left out, and the worker's answers are called bounds from then on.
    pub blocks: usize,
}

impl Default for Bounds {
    /// Room for 4096 workers, and for 16 million tokens in blocks of 16 of each.
    fn default() -> Self {
        Self { workers: 4096, blocks: 1 << 20 }
    }
}

/// A data-parallel rank of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerRank {
    /// The worker, as the caller numbers them.
    pub worker: u64,
    /// The rank, as its events say.
    pub rank: u32,
}

/// What one worker can reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Who.
    pub who: WorkerRank,
    /// How much.
    pub reuse: Reuse,
}

/// What a prompt is asked by.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// Its tokens.
    Tokens(&'a [u32]),
    /// The engine's hashes of its blocks, each of all tokens up to the block's end.
    Hashes {
        /// One for each whole block.
        hashes: &'a [u64],
        /// Tokens of each block.
        block: usize,
        /// Tokens of the prompt.
        tokens: usize,
    },
}

/// Which worker holds what. Each has a lock of its own: events of one worker hold up no other's, nor questions about them.
#[derive(Default)]
pub struct Index {
    bounds: Bounds,
    books: RwLock<HashMap<WorkerRank, Arc<RwLock<Book>>>>,
}

impl Index {
    /// An index that keeps so much.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, books: RwLock::default() }
    }

    /// Takes the bytes that a worker of vLLM, SGLang or TensorRT-LLM's streaming published under this number.
    /// A gap in the numbers is remembered until the worker clears its blocks or begins anew.
    pub fn take(&self, worker: u64, number: u64, bytes: &[u8]) -> Result<(), Error> {
        self.take_batch(worker, number, &Batch::from_msgpack(bytes)?)
    }

    /// Takes an event, or a list of events, that TensorRT-LLM's `get_kv_cache_events` gave; they bring their numbers.
    pub fn take_trtllm(&self, worker: u64, bytes: &[u8]) -> Result<(), Error> {
        Batch::from_trtllm(bytes)?.iter().try_for_each(|(number, batch)| self.take_batch(worker, *number, batch))
    }

    fn take_batch(&self, worker: u64, number: u64, batch: &Batch) -> Result<(), Error> {
        let who = WorkerRank { worker, rank: batch.rank };
        let known = self.books.read().unwrap_or_else(PoisonError::into_inner).get(&who).cloned();
        let book = match known {
            Some(book) => book,
            None => self.welcome(who)?,
        };
        book.write().unwrap_or_else(PoisonError::into_inner).take(number, batch, self.bounds.blocks);
        Ok(())
    }

    /// The number that a worker's next batch has, if it published any. Who can have batches replayed takes those from here on
    /// before one with a higher number.
    pub fn next(&self, who: WorkerRank) -> Option<u64> {
        let book = self.books.read().unwrap_or_else(PoisonError::into_inner).get(&who).cloned()?;
        book.read().unwrap_or_else(PoisonError::into_inner).next()
    }

    fn welcome(&self, who: WorkerRank) -> Result<Arc<RwLock<Book>>, Error> {
        let mut books = self.books.write().unwrap_or_else(PoisonError::into_inner);
        if books.len() >= self.bounds.workers && !books.contains_key(&who) {
            return Err(Error::Workers { worker: who.worker, most: self.bounds.workers });
        }
        Ok(Arc::clone(books.entry(who).or_default()))
    }

    /// Forgets a worker with all its ranks.
    pub fn forget(&self, worker: u64) {
        self.books.write().unwrap_or_else(PoisonError::into_inner).retain(|who, _| who.worker != worker);
    }

    /// What each worker can reuse of a prompt, in the order of their numbers. The last token is always computed.
    pub fn ask(&self, prompt: Prompt<'_>) -> Vec<Answer> {
        let names = match prompt {
            Prompt::Tokens(tokens) => names(tokens),
            Prompt::Hashes { .. } => Vec::new(),
        };
        let mut answers: Vec<Answer> = self.each(|who, book| Answer {
            who,
            reuse: match prompt {
                Prompt::Tokens(tokens) => {
                    book.reuse(tokens.len().saturating_sub(1), |book, end| book.named(*names.get(end - 1)?))
                }
                Prompt::Hashes { hashes, block, tokens } => book.reuse(tokens.saturating_sub(1), |_, end| {
                    (block > 0 && end % block == 0).then(|| hashes.get(end / block - 1).copied()).flatten()
                }),
            },
        });
        answers.sort_unstable_by_key(|answer| answer.who);
        answers
    }

    /// How many different blocks each worker holds, and how many were left out of its book.
    pub fn sizes(&self) -> Vec<(WorkerRank, usize, u64)> {
        let mut sizes = self.each(|who, book| (who, book.blocks(), book.left_out()));
        sizes.sort_unstable_by_key(|(who, ..)| *who);
        sizes
    }

    fn each<T>(&self, of: impl Fn(WorkerRank, &Book) -> T) -> Vec<T> {
        let books: Vec<_> = self
            .books
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|(who, book)| (*who, Arc::clone(book)))
            .collect();
        books.iter().map(|(who, book)| of(*who, &book.read().unwrap_or_else(PoisonError::into_inner))).collect()
    }
}

/// What each beginning of the tokens is called.
fn names(tokens: &[u32]) -> Vec<u64> {
    let mut chain = Chain::default();
    tokens
        .iter()
        .map(|token| {
            chain.extend(&[*token]);
            chain.name()
        })
        .collect()
}
