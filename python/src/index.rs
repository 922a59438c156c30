//! Which worker of a fleet can go on from how many tokens: `cacheplan_index`.

use cacheplan_index::{Answer, Bounds, Kind, Prompt, Trust, WorkerRank};
use pyo3::prelude::*;

use crate::errors::{Said, error};

/// Threads share it; asking and taking release the interpreter lock.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Index {
    index: cacheplan_index::Index,
}

/// Worker, rank, tokens, tokens of keys, what limits, what it is worth.
type Row = (u64, u32, usize, usize, Option<&'static str>, &'static str);

fn row(answer: Answer) -> Row {
    let Answer { who, reuse } = answer;
    let limited_by = reuse.limited_by.map(|kind| match kind {
        Kind::Full => "keys",
        Kind::Window => "window",
        Kind::State => "state",
        Kind::Unknown => "unknown",
    });
    let trust = match reuse.trust {
        Trust::Exact => "exact",
        Trust::AtMostNoGroups | Trust::AtMostUnknownGroup => "at_most",
        Trust::AtLeastBound | Trust::AtLeastNamed => "at_least",
        Trust::Estimate => "estimate",
    };
    (who.worker, who.rank, reuse.tokens, reuse.keys, limited_by, trust)
}

fn refused(failed: cacheplan_index::Error) -> PyErr {
    error("EventError", failed, Said::default())
}

#[pymethods]
impl Index {
    #[new]
    fn new(workers: usize, blocks: usize) -> Self {
        Self { index: cacheplan_index::Index::new(Bounds { workers, blocks, ..Bounds::default() }) }
    }

    fn take(&self, py: Python<'_>, worker: u64, number: u64, data: &[u8]) -> PyResult<()> {
        py.detach(|| self.index.take(worker, number, data)).map_err(refused)
    }

    fn take_trtllm(&self, py: Python<'_>, worker: u64, data: &[u8]) -> PyResult<()> {
        py.detach(|| self.index.take_trtllm(worker, data)).map_err(refused)
    }

    fn next_number(&self, worker: u64, rank: u32) -> Option<u64> {
        self.index.next(WorkerRank { worker, rank })
    }

    fn forget(&self, worker: u64) {
        self.index.forget(worker);
    }

    fn ask_tokens(&self, py: Python<'_>, tokens: Vec<u32>) -> Vec<Row> {
        py.detach(|| self.index.ask(Prompt::Tokens(&tokens)).into_iter().map(row).collect())
    }

    fn ask_hashes(&self, py: Python<'_>, hashes: Vec<u64>, block: usize, tokens: usize) -> Vec<Row> {
        let prompt = Prompt::Hashes { hashes: &hashes, block, tokens };
        py.detach(|| self.index.ask(prompt).into_iter().map(row).collect())
    }

    fn sizes(&self) -> Vec<(u64, u32, usize, u64)> {
        self.index.sizes().into_iter().map(|(who, blocks, left_out)| (who.worker, who.rank, blocks, left_out)).collect()
    }
}
