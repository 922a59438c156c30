//! The books of all workers, shared by those who write and those who ask.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use crate::book::Book;
use crate::chain::Chain;
use crate::locks::{read, write};
use crate::multiples::greatest_common_divisor;
use crate::run::Keys;
use crate::spans::BySlot;
use crate::texts::Texts;
use crate::view::{Count, Reuse, View};
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
        /// One for each whole block. Where a worker's block has the same one, all that comes before is taken for the same.
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
    /// In the order of the workers.
    slots: Vec<(WorkerRank, u32)>,
    books: Vec<Arc<RwLock<Book>>>,
    free: Vec<u32>,
}

impl Workers {
    /// Where a worker stands among the slots, or would.
    fn find(&self, who: WorkerRank) -> Result<usize, usize> {
        self.slots.binary_search_by_key(&who, |(known, _)| *known)
    }
}

/// Which worker holds what.
///
/// Each worker's events have a lock of their own, and what workers hold of a text is locked in stretches of at most 4096 blocks:
/// a question waits for no more than the event that is being written there. Locks are taken in one order: workers, a book, views.
pub struct Index {
    bounds: Bounds,
    workers: RwLock<Workers>,
    /// By slot, side by side and apart from the books, so that a question reads no book.
    views: RwLock<Vec<View>>,
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
            views: RwLock::default(),
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

    /// Takes a batch that was read before.
    pub fn take_batch(&self, worker: u64, number: u64, batch: &Batch) -> Result<(), Error> {
        let who = WorkerRank { worker, rank: batch.rank };
        if batch.events.iter().any(|event| event.block() == Some(0)) {
            let found = "0".to_owned();
            return Err(Error::Field { event: "BlockStored", field: "block_size", found, wanted: "above zero" });
        }
        for block in batch.events.iter().filter_map(Event::block) {
            self.widest.fetch_max(block, Ordering::Relaxed);
            if !block.is_multiple_of(self.quantum.load(Ordering::Relaxed)) {
                let common = |known| Some(greatest_common_divisor(known, block));
                let _ = self.quantum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, common);
            }
        }
        loop {
            let book = self.book(who)?;
            let mut book = write(&book);
            if !book.is_gone {
                if book.take(number, batch, self.bounds.blocks, &self.texts) {
                    self.show(&book);
                }
                return Ok(());
            }
        }
    }

    /// Notes what questions need of a book; workers whose groups are the same share a shape.
    fn show(&self, book: &Book) {
        let View { shape, trust } = book.view();
        let mut views = write(&self.views);
        let shape = views.iter().find(|view| view.shape == shape).map_or(shape, |view| Arc::clone(&view.shape));
        views[book.slot() as usize] = View { shape, trust };
    }

    fn known(&self, who: WorkerRank) -> Option<Arc<RwLock<Book>>> {
        let workers = read(&self.workers);
        let at = workers.find(who).ok()?;
        Some(Arc::clone(&workers.books[workers.slots[at].1 as usize]))
    }

    fn book(&self, who: WorkerRank) -> Result<Arc<RwLock<Book>>, Error> {
        if let Some(book) = self.known(who) {
            return Ok(book);
        }
        let mut workers = write(&self.workers);
        let at = match workers.find(who) {
            Ok(at) => return Ok(Arc::clone(&workers.books[workers.slots[at].1 as usize])),
            Err(at) => at,
        };
        if workers.slots.len() >= self.bounds.workers {
            return Err(Error::Workers { worker: who.worker, most: self.bounds.workers });
        }
        let slot = workers.free.pop().unwrap_or(workers.books.len() as u32);
        let book = Arc::new(RwLock::new(Book::new(slot)));
        match workers.books.get_mut(slot as usize) {
            Some(old) => *old = Arc::clone(&book),
            None => {
                workers.books.push(Arc::clone(&book));
                write(&self.views).push(View::default());
            }
        }
        workers.slots.insert(at, (who, slot));
        Ok(book)
    }

    /// The number that a worker's next batch has, if it published any.
    pub fn next(&self, who: WorkerRank) -> Option<u64> {
        read(&*self.known(who)?).next()
    }

    /// The numbers of a worker's batches that come before this one and did not arrive. Who can have them replayed takes them first.
    pub fn missing(&self, worker: u64, number: u64, batch: &Batch) -> Range<u64> {
        let book = self.known(WorkerRank { worker, rank: batch.rank });
        book.map_or(0..number, |book| read(&book).missing(number, batch))
    }

    /// Forgets a worker with all its ranks.
    pub fn forget(&self, worker: u64) {
        let mut workers = write(&self.workers);
        let gone: Vec<_> = workers.slots.extract_if(.., |(who, _)| who.worker == worker).collect();
        for (_, slot) in gone {
            let mut book = write(&workers.books[slot as usize]);
            book.clear(&self.texts);
            book.is_gone = true;
            write(&self.views)[slot as usize] = View::default();
            drop(book);
            workers.free.push(slot);
        }
    }

    /// What each worker can reuse of a prompt, in the order of their numbers. The last token is always computed.
    pub fn ask(&self, prompt: Prompt<'_>) -> Vec<Answer> {
        let workers = read(&self.workers);
        let quantum = self.quantum.load(Ordering::Relaxed).max(1);
        let (names, keys, quantum, most) = match prompt {
            Prompt::Tokens(tokens) => (names(tokens, quantum), None, quantum, tokens.len().saturating_sub(1)),
            Prompt::Hashes { hashes, block, tokens } => {
                (Vec::new(), Some(if block == 0 { &[] } else { hashes }), block.max(1), tokens.saturating_sub(1))
            }
        };
        let is_by_tokens = keys.is_none();
        let keys = keys.map_or(Keys::Names(&names), Keys::Hashes);
        let views = read(&self.views);
        let has_gaps = views.iter().any(|view| view.shape.has_gaps());
        let widest = (!has_gaps).then(|| self.widest.load(Ordering::Relaxed));
        let held = BySlot::new(&self.texts.follow(keys, quantum, widest), views.len());
        // Workers that follow each other mostly hold the same beginning of a prompt: it is counted once.
        let (mut counted, mut count) = (None, Count::default());
        let answer = |(who, slot): &(WorkerRank, u32)| {
            let (view, spans) = (&views[*slot as usize], held.of(*slot));
            let of = (Arc::as_ptr(&view.shape), spans);
            if counted != Some(of) {
                (counted, count) = (Some(of), view.shape.count(most, spans));
            }
            let Count { tokens, keys, limited_by } = count;
            let trust = view.trust[usize::from(is_by_tokens)];
            Answer { who: *who, reuse: Reuse { tokens, keys, limited_by, trust } }
        };
        workers.slots.iter().map(answer).collect()
    }

    /// How many different blocks each worker holds, and how many were left out of its book.
    pub fn sizes(&self) -> Vec<(WorkerRank, usize, u64)> {
        let workers = read(&self.workers);
        let size = |(who, slot): &(WorkerRank, u32)| {
            let book = read(&workers.books[*slot as usize]);
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
