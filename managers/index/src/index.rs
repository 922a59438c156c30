//! The books of all workers, shared by those who write and those who ask.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::book::{Book, Reuse};
use crate::chain::Chain;
use crate::run::Keys;
use crate::spans::Span;
use crate::texts::Texts;
use crate::{Batch, Error, Event};

/// How much an index keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Workers, each data-parallel rank one.
    pub workers: usize,
    /// Different blocks of each; one more is left out, and the worker's answers are called bounds from then on.
    pub blocks: usize,
    /// Different blocks of all together, likewise.
    pub texts: usize,
}

impl Default for Bounds {
    /// Room for 4096 workers, for 16 million tokens in blocks of 16 of each, and for a billion of different texts.
    fn default() -> Self {
        Self { workers: 4096, blocks: 1 << 20, texts: 1 << 26 }
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

/// Who there is, by the slots under which the texts know them.
#[derive(Default)]
struct Workers {
    slots: BTreeMap<WorkerRank, u32>,
    books: Vec<Arc<RwLock<Book>>>,
    free: Vec<u32>,
}

/// Which worker holds what.
///
/// Each worker's events have a lock of their own, and what workers hold of a text is locked in stretches of at most 4096 blocks:
/// a question waits for no more than the event that is being written there.
pub struct Index {
    bounds: Bounds,
    workers: RwLock<Workers>,
    texts: Texts,
    /// The greatest length of which all blocks are multiples, and the widest block.
    quantum: AtomicUsize,
    widest: AtomicUsize,
}

impl Default for Index {
    fn default() -> Self {
        Self::new(Bounds::default())
    }
}

impl Index {
    /// An index that keeps so much.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            workers: RwLock::default(),
            texts: Texts::new(bounds.texts),
            quantum: AtomicUsize::new(0),
            widest: AtomicUsize::new(0),
        }
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
        for block in batch.events.iter().filter_map(Event::block) {
            self.widest.fetch_max(block, Ordering::Relaxed);
            if !block.is_multiple_of(self.quantum.load(Ordering::Relaxed)) {
                let common = |known| Some(greatest_common_divisor(known, block));
                let _ = self.quantum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, common);
            }
        }
        loop {
            let book = self.book(who)?;
            let mut book = book.write().unwrap_or_else(PoisonError::into_inner);
            if !book.is_gone {
                book.take(number, batch, self.bounds.blocks, &self.texts);
                return Ok(());
            }
        }
    }

    fn known(&self, who: WorkerRank) -> Option<Arc<RwLock<Book>>> {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        workers.slots.get(&who).map(|slot| Arc::clone(&workers.books[*slot as usize]))
    }

    fn book(&self, who: WorkerRank) -> Result<Arc<RwLock<Book>>, Error> {
        if let Some(book) = self.known(who) {
            return Ok(book);
        }
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = workers.slots.get(&who) {
            return Ok(Arc::clone(&workers.books[*slot as usize]));
        }
        if workers.slots.len() >= self.bounds.workers {
            return Err(Error::Workers { worker: who.worker, most: self.bounds.workers });
        }
        let slot = workers.free.pop().unwrap_or(workers.books.len() as u32);
        let book = Arc::new(RwLock::new(Book::new(slot)));
        match workers.books.get_mut(slot as usize) {
            Some(old) => *old = Arc::clone(&book),
            None => workers.books.push(Arc::clone(&book)),
        }
        workers.slots.insert(who, slot);
        Ok(book)
    }

    /// The number that a worker's next batch has, if it published any. Who can have batches replayed takes those from here on
    /// before one with a higher number.
    pub fn next(&self, who: WorkerRank) -> Option<u64> {
        self.known(who)?.read().unwrap_or_else(PoisonError::into_inner).next()
    }

    /// Forgets a worker with all its ranks.
    pub fn forget(&self, worker: u64) {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<(WorkerRank, u32)> =
            workers.slots.iter().filter(|(who, _)| who.worker == worker).map(|(who, slot)| (*who, *slot)).collect();
        for (who, slot) in gone {
            let mut book = workers.books[slot as usize].write().unwrap_or_else(PoisonError::into_inner);
            book.clear(&self.texts);
            book.is_gone = true;
            drop(book);
            workers.slots.remove(&who);
            workers.free.push(slot);
        }
    }

    /// What each worker can reuse of a prompt, in the order of their numbers. The last token is always computed.
    pub fn ask(&self, prompt: Prompt<'_>) -> Vec<Answer> {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        let quantum = self.quantum.load(Ordering::Relaxed).max(1);
        let (names, keys, quantum, most) = match prompt {
            Prompt::Tokens(tokens) => (names(tokens, quantum), None, quantum, tokens.len().saturating_sub(1)),
            Prompt::Hashes { hashes, block, tokens } => {
                (Vec::new(), Some(if block == 0 { &[] } else { hashes }), block.max(1), tokens.saturating_sub(1))
            }
        };
        let keys = keys.map_or(Keys::Names(&names), Keys::Hashes);
        let books = || workers.slots.iter().map(|(who, slot)| (who, *slot, &workers.books[*slot as usize]));
        let has_gaps = books().any(|(.., book)| book.read().unwrap_or_else(PoisonError::into_inner).has_gaps());
        let widest = (!has_gaps).then(|| self.widest.load(Ordering::Relaxed));
        let mut found = self.texts.follow(keys, quantum, widest);
        // Runs list their holders by slot, so that most of it is in order.
        found.sort_by_key(|(slot, span)| (*slot, span.first));
        let spans: Vec<Span> = found.iter().map(|(_, span)| *span).collect();
        let mut begins = vec![0; workers.books.len() + 1];
        found.iter().for_each(|(slot, _)| begins[*slot as usize + 1] += 1);
        (1..begins.len()).for_each(|slot| begins[slot] += begins[slot - 1]);
        books()
            .map(|(who, slot, book)| {
                let slot = slot as usize;
                let held = &spans[begins[slot]..begins[slot + 1]];
                Answer { who: *who, reuse: book.read().unwrap_or_else(PoisonError::into_inner).reuse(most, held) }
            })
            .collect()
    }

    /// How many different blocks each worker holds, and how many were left out of its book.
    pub fn sizes(&self) -> Vec<(WorkerRank, usize, u64)> {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        let size = |(who, slot): (&WorkerRank, &u32)| {
            let book = workers.books[*slot as usize].read().unwrap_or_else(PoisonError::into_inner);
            (*who, book.blocks(), book.left_out())
        };
        workers.slots.iter().map(size).collect()
    }

    /// How many different blocks all workers together hold.
    pub fn texts(&self) -> usize {
        self.texts.len()
    }
}

/// What each beginning of the tokens, in steps, is called.
fn names(tokens: &[u32], step: usize) -> Vec<u64> {
    let mut chain = Chain::default();
    let name = |tokens: &[u32]| {
        chain.extend(tokens);
        chain.name()
    };
    tokens.chunks_exact(step).map(name).collect()
}

fn greatest_common_divisor(one: usize, other: usize) -> usize {
    let (mut left, mut right) = (one, other);
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}
