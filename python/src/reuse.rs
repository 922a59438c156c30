//! Prefix reuse in four calls of an engine's loop: `admit`, `next_tokens`, `computed`, `finish`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cacheplan_managers::prefix::{self, Key, Namespace, ReuseLease, Strategy, TenantId};
use pyo3::prelude::*;

use crate::book::{CacheBook, Sequence};
use crate::errors::{self, Said, error};
use crate::lack::Lack;
use crate::plan::Plan;

/// A prefix cache over the blocks and slots of a book.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct PrefixReuse(Mutex<prefix::PrefixReuse>);

/// What a sequence has of the cache, from its admission to its end.
#[pyclass(frozen, module = "cacheplan")]
pub(crate) struct Lease {
    lease: Mutex<Option<ReuseLease>>,
    sequence: Sequence,
    cached: usize,
}

impl Lease {
    fn take(&self) -> PyResult<ReuseLease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(ended)
    }
}

fn ended() -> PyErr {
    error("BookError", "this lease has ended: its sequence was finished or abandoned", Said::default())
}

#[pymethods]
impl Lease {
    #[getter]
    fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// Tokens at the front of the prompt that need not be computed.
    #[getter]
    fn cached(&self) -> usize {
        self.cached
    }
}

impl PrefixReuse {
    fn lock(&self) -> MutexGuard<'_, prefix::PrefixReuse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PrefixReuse {
    #[new]
    #[pyo3(signature = (plan, book, decode_interval))]
    fn new(plan: &Plan, book: &CacheBook, decode_interval: Option<usize>) -> PyResult<Self> {
        let strategy = Strategy::complete(decode_interval);
        book.with(|open| {
            let reuse = prefix::PrefixReuse::new(&plan.plan, &mut open.book, strategy).map_err(errors::book)?;
            Ok(Self(Mutex::new(reuse)))
        })
    }

    #[pyo3(signature = (book, prompt, salt, adapter, tenant))]
    fn admit(&self, book: &CacheBook, prompt: Vec<u32>, salt: String, adapter: String, tenant: u16) -> PyResult<Lease> {
        let namespace = Namespace { salt, adapter };
        book.with(|open| {
            let key = Key { namespace: &namespace, tokens: &prompt };
            let lease = self.lock().admit(&mut open.book, key, TenantId(tenant)).map_err(errors::book)?;
            let (sequence, cached) = (Sequence(lease.sequence()), lease.cached());
            Ok(Lease { lease: Mutex::new(Some(lease)), sequence, cached })
        })
    }

    /// How many of the next `budget` tokens a forward should compute at most, to end where a state is to be kept.
    fn next_tokens(&self, lease: &Lease, budget: usize) -> PyResult<usize> {
        let held = lease.lease.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.lock().next_tokens(held.as_ref().ok_or_else(ended)?, budget))
    }

    /// Keeps what a forward has computed; `decoded` are the tokens behind the prompt that it computed.
    fn computed(&self, book: &CacheBook, lease: &Lease, decoded: Vec<u32>) -> PyResult<()> {
        let mut held = lease.lease.lock().unwrap_or_else(PoisonError::into_inner);
        let held = held.as_mut().ok_or_else(ended)?;
        book.with(|open| self.lock().computed(&mut open.book, held, &decoded).map_err(errors::book))
    }

    /// Ends a sequence, and keeps what it has computed.
    fn finish(&self, book: &CacheBook, lease: &Lease) -> PyResult<()> {
        let lease = lease.take()?;
        book.with(|open| self.lock().finish(&mut open.book, lease).map_err(errors::book))
    }

    /// Gives up the hold of a sequence that leaves nothing more; the sequence itself is the caller's to end.
    fn abandon(&self, lease: &Lease) -> PyResult<()> {
        self.lock().abandon(lease.take()?).map_err(errors::book)
    }

    /// Evicts something that helps against what an operation lacked; false where nothing does.
    fn make_room(&self, book: &CacheBook, lack: &Lack) -> PyResult<bool> {
        book.with(|open| self.lock().make_room(&mut open.book, &lack.0).map_err(errors::book))
    }

    /// Gives back everything that no running sequence holds.
    fn clear(&self, book: &CacheBook) -> PyResult<()> {
        book.with(|open| self.lock().clear(&mut open.book).map_err(errors::book))
    }

    /// What it has achieved so far, as JSON.
    fn metrics(&self) -> PyResult<String> {
        serde_json::to_string(&self.lock().metrics()).map_err(|failed| error("BookError", failed, Said::default()))
    }
}
