//! The books of an engine: sequences, blocks, slots, and the metadata of each step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use cacheplan_managers::book::{self, SequenceId, StepMetadata, Work};
use pyo3::prelude::*;

use crate::array::Array;
use crate::errors::{self, Said, error};
use crate::plan::Plan;

/// A handle of one sequence. Stale and foreign ones are errors at every use.
#[pyclass(frozen, eq, hash, module = "cacheplan")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sequence(pub(crate) SequenceId);

#[pymethods]
impl Sequence {
    fn __repr__(&self) -> String {
        format!("<cacheplan.Sequence {}>", self.0)
    }
}

/// Books for the pools of a plan. They belong to the thread that made them.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct CacheBook {
    home: ThreadId,
    open: Mutex<Option<Open>>,
}

pub(crate) struct Open {
    pub(crate) book: book::CacheBook,
    /// The last step; its memory is used again where nobody looks at it any more.
    step: Arc<StepMetadata>,
    pools: Arc<[String]>,
}

impl CacheBook {
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Open) -> PyResult<R>) -> PyResult<R> {
        if thread::current().id() != self.home {
            let hint = Some("give each thread a book of its own".into());
            let message = "this book belongs to the thread that made it";
            return Err(error("BookError", message, Said { hint, ..Said::default() }));
        }
        let mut open: MutexGuard<'_, Option<Open>> = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        act(open.as_mut().ok_or_else(|| error("BookError", "this book was closed", Said::default()))?)
    }

    fn act<R>(
        &self,
        act: impl FnOnce(&mut book::CacheBook) -> Result<R, cacheplan_managers::BookError>,
    ) -> PyResult<R> {
        self.with(|open| act(&mut open.book).map_err(errors::book))
    }
}

#[pymethods]
impl CacheBook {
    #[new]
    fn new(plan: &Plan) -> PyResult<Self> {
        let book = book::CacheBook::new(&plan.plan).map_err(errors::book)?;
        let pools = book.layout().paged.iter().map(|spec| spec.id.clone()).collect();
        let open = Open { book, step: Arc::default(), pools };
        Ok(Self { home: thread::current().id(), open: Mutex::new(Some(open)) })
    }

    fn admit(&self, prompt_tokens: u32) -> PyResult<Sequence> {
        self.act(|book| book.admit(prompt_tokens)).map(Sequence)
    }

    /// Grows sequences by so many tokens each, all or none, and says where everything lies.
    fn step(&self, work: Vec<(PyRef<'_, Sequence>, u32)>) -> PyResult<Step> {
        let work: Vec<Work> =
            work.iter().map(|(sequence, tokens)| Work { sequence: sequence.0, tokens: *tokens }).collect();
        self.with(|open| {
            let Open { book, step, pools } = open;
            if Arc::get_mut(step).is_none() {
                *step = Arc::default();
            }
            // Nobody else has it now.
            let Some(metadata) = Arc::get_mut(step) else {
                return Err(error("BookError", "no memory", Said::default()));
            };
            book.step(&work, metadata).map_err(errors::book)?;
            Ok(Step { metadata: Arc::clone(step), pools: Arc::clone(pools) })
        })
    }

    fn finish(&self, sequence: &Sequence) -> PyResult<()> {
        self.act(|book| book.finish(sequence.0))
    }

    /// Takes everything from a sequence; it must be computed again after `resume`.
    fn preempt(&self, sequence: &Sequence) -> PyResult<()> {
        self.act(|book| book.preempt(sequence.0))
    }

    fn resume(&self, sequence: &Sequence, tokens: u32) -> PyResult<()> {
        self.act(|book| book.resume(sequence.0, tokens))
    }

    fn fork(&self, sequence: &Sequence) -> PyResult<Sequence> {
        self.act(|book| book.fork(sequence.0)).map(Sequence)
    }

    fn truncate(&self, sequence: &Sequence, tokens: u32) -> PyResult<()> {
        self.act(|book| book.truncate(sequence.0, tokens))
    }

    /// Tokens whose caches the sequence has.
    fn tokens(&self, sequence: &Sequence) -> PyResult<u32> {
        self.act(|book| book.tokens(sequence.0))
    }

    /// Its slot of recurrent states, if the plan has any.
    fn slot(&self, sequence: &Sequence) -> PyResult<Option<u32>> {
        Ok(self.act(|book| book.slot(sequence.0))?.map(|slot| slot.0))
    }

    /// The copies and clearings of pool contents that are due, in order, in words.
    fn take_ops(&self) -> PyResult<Vec<String>> {
        self.with(|open| Ok(open.book.take_ops().iter().map(|op| format!("{op:?}")).collect()))
    }

    /// How full the pools are, as JSON.
    fn stats(&self) -> PyResult<String> {
        self.with(|open| {
            serde_json::to_string(&open.book.stats()).map_err(|failed| error("BookError", failed, Said::default()))
        })
    }

    fn prometheus(&self) -> PyResult<String> {
        self.with(|open| Ok(open.book.stats().prometheus()))
    }

    /// Ends the books; every later call is an error.
    fn close(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }
}

/// Where the tokens of one step lie. Arrays of it keep its memory; the next step then writes elsewhere.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Step {
    metadata: Arc<StepMetadata>,
    pools: Arc<[String]>,
}

#[pymethods]
impl Step {
    /// `[batch + 1]` offsets of this step's tokens.
    #[getter]
    fn cu_seqlens(&self) -> Array {
        Array::u32(&self.metadata, |step| &step.cu_seqlens)
    }

    /// `[batch]` length of each sequence after this step.
    #[getter]
    fn kv_lens(&self) -> Array {
        Array::u32(&self.metadata, |step| &step.kv_lens)
    }

    /// `[total_tokens]` position of each token in its sequence.
    #[getter]
    fn positions(&self) -> Array {
        Array::u32(&self.metadata, |step| &step.positions)
    }

    /// `[batch]` slot of each sequence; -1 in plans without states.
    #[getter]
    fn slots(&self) -> Array {
        Array::i32(&self.metadata, |step| &step.slots, None)
    }

    #[getter]
    fn batch(&self) -> usize {
        self.metadata.batch()
    }

    #[getter]
    fn total_tokens(&self) -> usize {
        self.metadata.total_tokens()
    }

    /// One per paged pool, in the plan's order.
    #[getter]
    fn pools(&self) -> Vec<Pool> {
        (0..self.metadata.pools.len())
            .map(|at| Pool { metadata: Arc::clone(&self.metadata), pools: Arc::clone(&self.pools), at })
            .collect()
    }

    fn __repr__(&self) -> String {
        format!("<cacheplan.Step of {} sequences, {} tokens>", self.batch(), self.total_tokens())
    }
}

/// One paged pool's part of a step.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Pool {
    metadata: Arc<StepMetadata>,
    pools: Arc<[String]>,
    at: usize,
}

#[pymethods]
impl Pool {
    /// Its id in the plan.
    #[getter]
    fn id(&self) -> &str {
        self.pools.get(self.at).map_or("", String::as_str)
    }

    /// `[batch, max_blocks]` block of each logical block; -1 where there is none.
    #[getter]
    fn block_tables(&self) -> Array {
        let columns = self.metadata.pools[self.at].max_blocks;
        Array::i32(&self.metadata, |step| &step.pools[self.at].block_tables, Some(columns))
    }

    /// `[total_tokens]` int64: where each token is written, `block * entries_per_block + entry`; -1 writes nothing.
    #[getter]
    fn slot_mapping(&self) -> Array {
        Array::i64(&self.metadata, |step| &step.pools[self.at].slot_mapping)
    }
}
